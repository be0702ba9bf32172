"""The integrated autocorrelation time of a chain: how many draws are worth one that is independent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Autocorrelation", "autocorrelation_time"]


@dataclass(frozen=True)
class Autocorrelation:
    """T = 1 + 2 Σ ρ_s (1.67), its standard error, the window of the sum, and the effective sample size (1.68)."""

    time: float
    error: float
    window: int
    draws: int  # of all chains
    correlations: torch.Tensor  # ρ_s, from s = 0 on

    @property
    def ess(self) -> float:
        """N/T (1.68)."""
        return self.draws / self.time

    def __str__(self) -> str:
        return (
            f"autocorrelation time {self.time:.3g} ± {self.error:.2g}, {self.ess:.0f} independent of {self.draws} draws"
        )

    def plot(self, ax: Any) -> None:
        """ρ_s against s, with the end of the window."""
        ax.plot(self.correlations[: 3 * self.window + 2])
        ax.axvline(self.window, linestyle=":")
        ax.set(xlabel="lag", ylabel="autocorrelation")


def autocorrelation_time(series: Any, factor: float = 5.0) -> Autocorrelation:
    """T = 1 + 2 Σ_{s ≤ W} ρ_s of a scalar quantity, with W the first window of at least `factor` times T (Sokal).

    The standard error is T √((4W + 2)/N) (Madras, Sokal 1988). It needs chains much longer than T: with fewer than 50 T
    draws in all the result is too small.

    >>> chain = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    >>> abs(autocorrelation_time(chain).time - 1) < 0.2
    True

    Args:
        series: draws of one chain, or chains × draws, e.g. ``draws["weight"][..., 0, 0]`` of `tether.sample`. Several
            chains are taken to sample the same density: they share mean and variance.
        factor: a larger one has less bias and more noise.
    """
    x = torch.as_tensor(series).detach().to("cpu", torch.float64)
    x = x.unsqueeze(0) if x.dim() == 1 else x
    if x.dim() != 2 or x.shape[1] < 2:
        raise ValueError(f"series of shape {tuple(x.shape)}: give draws, or chains × draws, of one number, 2 or more")
    if not bool(x.isfinite().all()):
        raise ValueError("the series holds inf or nan: leave out the chains that diverged")
    if not factor > 0:
        raise ValueError(f"factor={factor!r} must be positive, e.g. factor=5.0")
    n = x.shape[1]
    x = x - x.mean()
    spectrum = torch.fft.rfft(x, 2 * n).abs().square()
    covariance = torch.fft.irfft(spectrum, 2 * n)[:, :n].mean(0) / n
    if not covariance[0] > 0:
        raise ValueError("the series is constant: it has no autocorrelation time")
    ρ = covariance / covariance[0]
    times = 2 * ρ.cumsum(0) - 1
    enough = torch.arange(n, device="cpu") >= factor * times.clamp_min(1)  # of draws that alternate, T < 1
    window = int(enough.double().argmax()) if bool(enough.any()) else n - 1
    time = float(times[window])
    return Autocorrelation(time, time * math.sqrt((4 * window + 2) / x.numel()), window, x.numel(), ρ)
