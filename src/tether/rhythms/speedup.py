"""How much faster a slow part makes training (5.6)."""

from __future__ import annotations

from tether.rhythms.rhythm import whole_steps

__all__ = ["speedup"]


def speedup(full: float, fast: float, k: int, forward: float = 0.0) -> float:
    """k L/(L + (k − 1) ℓ) (5.6): the time of k full backward passes over that of one and k − 1 through the fast part.

    The thesis calls ℓ the number of slow layers; it is that of the fast ones, which are the last. Any unit serves:
    layers of equal cost, operations or seconds. With the cost of a forward pass, which (5.6) leaves out, it is the
    ratio for whole steps.

    >>> round(speedup(34, 1, k=5), 3)  # ResNet-34, its last layer fast
    4.474
    >>> round(speedup(2, 0.1, k=5, forward=1), 3)  # a backward pass costs about two forward passes
    2.027

    Args:
        full: L, the cost of a backward pass through the whole network.
        fast: ℓ, the cost of one that stops at the first fast layer.
        k: the slow part moves every k steps.
        forward: the cost of a forward pass.
    """
    k = whole_steps("", "k", k)
    if not 0 <= fast <= full or not full > 0 or not forward >= 0:
        costs = f"full={full!r}, fast={fast!r}, forward={forward!r}"
        raise ValueError(f"{costs} must be costs with 0 ≤ fast ≤ full, e.g. speedup(full=34, fast=1, k=5)")
    return k * (forward + full) / (k * forward + full + (k - 1) * fast)
