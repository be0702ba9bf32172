"""Linear → ReLU → Linear at all points of a line at once: between its kinks the output is a parabola in α.

With z_α = (1 − α) z_0 + α z_1 a hidden unit is on or off, and changes at most once. Where S is the set of units that
are on,

    W_α relu(z_α) = (1 − α)² Σ_S z_0 W_0 + α(1 − α) Σ_S (z_0 W_1 + z_1 W_0) + α² Σ_S z_1 W_1,

and the three sums change by one term at a kink. So many points cost little more than a few. A bias is a unit that is
always on, with z = 1. The kernel is compiled on first use. Without it the layers are run point by point.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch

from tether import native

__all__ = ["kernel_suits", "through"]

FEW = 16  # up to so many points a product at each point is as fast


def kernel_suits(tensors: Sequence[torch.Tensor], points: int) -> bool:
    """Can the kernel take these pre-activations or weights, and is it faster for so many points?"""
    first = tensors[0]
    if len(tensors) != 2 or points < FEW or first.dim() != 2 or any(x.dtype != first.dtype for x in tensors):
        return False
    if not native.serves(first.dtype, first.device):
        return False
    # inf and nan must appear in the result, but comparisons would hide them
    return all(math.isfinite(bound) for x in tensors if x.numel() for bound in x.aminmax())


def through(
    z: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], alphas: Sequence[float]
) -> torch.Tensor:
    """W_α relu(z_α) + b_α for increasing α: points × rows × outputs.

    Args:
        z: pre-activations at α = 0 and 1, rows × units.
        weights: units × outputs, contiguous.
        biases: may be empty.
        alphas: the points.
    """
    z = [x.detach().contiguous() for x in z]
    (rows, units), outputs, dtype = z[0].shape, weights[0].shape[1], z[0].dtype
    out = torch.empty(len(alphas), rows, outputs, dtype=dtype, device="cpu")
    base = torch.zeros(3, outputs, dtype=dtype, device="cpu")
    if biases:
        base = torch.stack((biases[0], biases[0] + biases[1], biases[1]))
    places, threads = array("d", alphas), torch.get_num_threads()
    sums = torch.empty(threads * 3 * outputs, dtype=dtype, device="cpu")
    lists = torch.empty(threads * (len(alphas) + 2 * units), dtype=torch.int64, device="cpu")
    at = [
        *native.where("pre-activations", z, dtype, rows * units),
        *native.where("weights", weights, dtype, units * outputs),
        *native.where("biases", [base], dtype, 3 * outputs),
        *(x.data_ptr() for x in (out, sums, lists)),
    ]
    native.call("kinks", dtype, rows, units, outputs, len(alphas), places.buffer_info()[0], *at, threads)
    return out
