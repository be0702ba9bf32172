"""Means of time series and their standard errors."""

from __future__ import annotations

import math

import torch

__all__ = ["mean_and_error", "split_rhat"]


def mean_and_error(series: torch.Tensor) -> tuple[float, float]:
    """The mean of chains × draws and its standard error, by the means of √draws blocks of each chain.

    Consecutive draws are correlated, but blocks longer than the correlation time are nearly independent. The error is
    nan if there are fewer than two blocks.
    """
    chains, draws = series.shape
    mean = float(series.mean())
    length = max(1, math.isqrt(draws))
    count = draws // length
    blocks = series[:, draws - count * length :].reshape(chains * count, length).mean(1)
    return mean, float(blocks.std() / math.sqrt(len(blocks))) if len(blocks) > 1 else math.nan


def split_rhat(series: torch.Tensor) -> float:
    """R-hat of chains × draws, each cut into two halves: √((variance within + between)/within), 1 where they agree.

    It is the split form of Gelman et al., Bayesian Data Analysis, 3rd edition, 11.4; nan with fewer than 4 draws.
    """
    half = series.shape[1] // 2
    if half < 2:
        return math.nan
    parts = torch.cat([series[:, :half], series[:, -half:]]).double()
    within, between = parts.var(1).mean(), parts.mean(1).var()
    return float(((half - 1) / half + between / within).sqrt())
