"""Is a curve monotone, does it have a barrier or a plateau?"""

from __future__ import annotations

import math

import torch

__all__ = ["Barrier", "classify"]

ROUNDING = 1e-6  # relative differences below this are rounding errors
FLAT = 0.25  # the least length of a plateau, as a fraction of the path


class Barrier(float):
    """The height of a barrier as a float, 0 if there is none, with the position of its top."""

    alpha: float

    def __new__(cls, height: float = 0.0, alpha: float = math.nan) -> Barrier:
        self = super().__new__(cls, height)
        self.alpha = alpha
        return self

    @property
    def height(self) -> float:
        """The number itself."""
        return float(self)

    def __repr__(self) -> str:
        return f"Barrier(height={float(self):.4g}, alpha={self.alpha:.4g})"


def classify(alphas: torch.Tensor, losses: torch.Tensor, tolerance: float) -> tuple[str, Barrier, float]:
    """The shape of a curve, the height and place of its barrier, and the length of its plateau (§6.1.3.2).

    With t = (`tolerance` + 1e-6, for rounding) × the largest of all |losses|:

    - *barrier*: the loss rises by more than t; its height is the largest rise, max over i < j of L_j − L_i, its place
      the α_j of that top;
    - *plateau*: no barrier, but somewhere in the upper half of its range the loss stays within t over a quarter of the
      path or more; its length is that of the longest such stretch;
    - *monotone*: neither;
    - *not finite*: a loss is inf or nan.

    >>> alphas = torch.linspace(0, 1, 5)
    >>> classify(alphas, torch.tensor([2.0, 1.0, 4.0, 0.5, 0.0]), 0.02)
    ('barrier', Barrier(height=3, alpha=0.5), 0.0)
    >>> classify(alphas, torch.tensor([2.0, 2.0, 2.0, 1.0, 0.0]), 0.02)
    ('plateau', Barrier(height=0, alpha=nan), 0.5)
    """
    if not bool(losses.isfinite().all()):
        return "not finite", Barrier(math.nan), math.nan
    low, high = losses.min().item(), losses.max().item()
    slack = (tolerance + ROUNDING) * max(abs(low), abs(high))
    rises = losses - losses.cummin(0).values
    top = int(rises.argmax())
    barrier = Barrier(rises[top].item(), alphas[top].item()) if rises[top] > slack else Barrier()
    plateau = _longest(alphas.tolist(), losses.tolist(), slack, (low + high) / 2 if high - low > slack else low)
    if barrier:
        return "barrier", barrier, plateau
    whole = alphas[-1].item() - alphas[0].item()
    return "plateau" if plateau >= FLAT * whole * (1 - 1e-12) else "monotone", barrier, plateau


def _longest(alphas: list[float], losses: list[float], slack: float, floor: float) -> float:
    """The longest stretch at or above a floor within which the losses differ by no more than slack."""
    best, first = 0.0, 0
    for last, loss in enumerate(losses):
        if loss < floor:
            first = last + 1
            continue
        while max(losses[first : last + 1]) - min(losses[first : last + 1]) > slack:
            first += 1
        best = max(best, alphas[last] - alphas[first])
    return best
