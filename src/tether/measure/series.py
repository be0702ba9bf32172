"""Means of time series and their standard errors."""

from __future__ import annotations

import math

import torch

__all__ = ["mean_and_error"]


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
