"""Split: orthogonal matrices that are cut along their long side. Ranks exchange Gram matrices, and no rows.

All that the maps of the surface ask about other rows are products QᵀV, s × s numbers for a matrix of r × s. Their sum
over ranks is the same on all of them, so that all come to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tether.sharded.owners import holders
from tether.sharded.pieces import Cut, Piece, across
from tether.surfaces import Orthogonal, Surface, SurfaceError
from tether.surfaces.orthogonal import polar_by_products

__all__ = ["Long", "Split", "by_long_side"]


def by_long_side(param: Any, surface: Any) -> bool:
    """Is it an orthogonal weight that one axis of the mesh cuts along the longer side of its matrix?"""
    rows, columns = param.shape[0], math.prod(param.shape[1:])
    axes = [placement for placement in param.placements if hasattr(placement, "dim")]
    if not isinstance(surface, Orthogonal) or len(axes) != 1:
        return False
    return columns > rows and param.dim() == 2 if axes[0].dim else rows > columns


class Long(Cut):
    """Such weights. Momenta are tall matrices, so that those of a wide weight are cut along the other axis."""

    def __init__(self, params: Sequence[Any], share: float) -> None:
        super().__init__(params, share)
        self.wide = params[0].shape[0] < math.prod(params[0].shape[1:])
        self.group, _, places = holders(params[0])
        self.ranks = len(places)
        if self.wide:
            self.layout = tuple(map(across, self.placements))
            self.kept = [Piece(x.shape[::-1], x.offset[::-1], x.sizes[::-1], {0}) for x in self.pieces]

    def restricted(self, surface: Surface) -> Surface:
        assert isinstance(surface, Orthogonal)
        return Split(surface, self.wide, self.group, self.ranks)


class Split(Orthogonal):
    """The surface of the rows of Q that this rank holds; wide weights are cut along their columns."""

    def __init__(self, whole: Orthogonal, wide: bool, group: Any, ranks: int) -> None:
        super().__init__(whole.tolerance, whole.iterations, whole.scale, whole.start, whole.fixed)
        self.whole, self.wide, self.group, self.ranks = whole, wide, group, ranks

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks that hold rows of the same matrices."""
        dist.all_reduce(numbers, group=self.group)
        return numbers

    def count(self, hard: torch.Tensor) -> None:
        self.whole.count(hard)

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        return None

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, columns = shape[0], math.prod(shape[1:])
        return (columns, rows) if self.wide else (rows, columns)

    def tall(self, θ: torch.Tensor) -> torch.Tensor:
        return θ.flatten(2).mT if self.wide else θ.flatten(2)

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return (q.mT if self.wide else q).reshape(len(q), *shape)

    def product(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.total(q.mT @ v)

    def longest(self, v: torch.Tensor) -> float:
        return math.sqrt(self.total(v.square().sum(-2)).amax().item())

    def finite(self, point: torch.Tensor) -> bool:
        return not bool(self.total((~point.isfinite()).sum().double()))

    def nearest(self, point: torch.Tensor) -> torch.Tensor:
        found = self.scale * polar_by_products(point, self.product)
        floor = 4 * torch.finfo(point.dtype).eps * math.sqrt(point.shape[-1])
        if not bool(self.excess(found).abs().amax() <= max(4 * self.tolerance_for(point.dtype), floor)):
            raise SurfaceError(f"{self.whole!r}: the step leads to a matrix without full rank; lower lr")
        return found

    def excess(self, q: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        """Each rank takes its share from the diagonal before numbers are rounded: what is sent is small."""
        gram = q.mT @ q
        squares = q.double().square().sum(-2) / self.scale**2
        torch.diagonal(gram, dim1=-2, dim2=-1).copy_(self.scale**2 * (squares - 1 / self.ranks))
        return self.total(gram).mul_(times / self.scale**2)
