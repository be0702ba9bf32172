"""Pieces of a DTensor: which block of the whole parameter a process holds, and where its entries lie in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from tether.engine.commit import local
from tether.engine.pieces import Whole
from tether.noise import Normals
from tether.surfaces import Surface

__all__ = ["Copied", "Cut", "Piece", "across", "block_of", "by_rows", "cut_dims", "is_sharded", "piece_of", "wrapped"]

Tensors = list[torch.Tensor]


def is_sharded(x: torch.Tensor) -> bool:
    """Is it a DTensor? Asked without an import, which takes seconds."""
    return hasattr(x, "to_local")


def block_of(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], at: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offset and sizes of the block at a coordinate of a mesh, by the rule of `torch.chunk`.

    Where two axes of the mesh cut one axis of the tensor, the left one cuts first, unless it is strided: then
    `fully_shard` was applied to what tensor parallelism had cut before.
    """
    offset, sizes = [0] * len(shape), list(shape)
    axes = [i for i, placement in enumerate(placements) if hasattr(placement, "dim")]
    for i in sorted(axes, key=lambda i: hasattr(placements[i], "split_factor")):
        dim = placements[i].dim
        each = -(-sizes[dim] // mesh[i])
        first = min(at[i] * each, sizes[dim])
        offset[dim] += first
        sizes[dim] = min(each, sizes[dim] - first)
    return tuple(offset), tuple(sizes)


def cut_dims(x: Any) -> set[int]:
    """The axes along which a DTensor is cut."""
    return {placement.dim for placement in x.placements if hasattr(placement, "dim")}


def by_rows(x: Any) -> tuple[Any, ...]:
    """The placements of a DTensor that the same axes of the mesh cut by rows."""
    from torch.distributed.tensor import Shard

    return tuple(Shard(0) if hasattr(placement, "dim") else placement for placement in x.placements)


class Piece:
    """A block of a whole: the shape of the whole, where the block begins, its sizes, and the axes that are cut."""

    def __init__(self, shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int], dims: set[int]) -> None:
        self.shape, self.offset, self.sizes, self.dims = tuple(shape), tuple(offset), tuple(sizes), dims

    @property
    def slices(self) -> tuple[slice, ...]:
        """The block, as an index of the whole."""
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.sizes, strict=True))

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The consecutive entries of the whole that the block is made of: the index of the first, and their number."""
        if not math.prod(self.sizes):
            return [(0, 0)]
        if not self.shape:
            return [(0, 1)]
        last = max([d for d, size in enumerate(self.sizes) if size != self.shape[d]], default=0)
        inner, firsts = math.prod(self.shape[last + 1 :]), [0]
        for d in range(last):
            firsts = [i * self.shape[d] + self.offset[d] + j for i in firsts for j in range(self.sizes[d])]
        return [((i * self.shape[last] + self.offset[last]) * inner, self.sizes[last] * inner) for i in firsts]

    def like(self, sizes: Sequence[int]) -> Piece:
        """The block of these sizes of a tensor that is cut like this one, and has other axes where nothing is cut."""
        axes = range(len(sizes))
        shape = [self.shape[d] if d in self.dims else sizes[d] for d in axes]
        return Piece(shape, [self.offset[d] if d in self.dims else 0 for d in axes], sizes, self.dims)


def piece_of(x: Any) -> Piece:
    """What this process holds of a DTensor."""
    mesh = x.device_mesh
    return Piece(x.shape, *block_of(x.shape, mesh.shape, x.placements, mesh.get_coordinate()), cut_dims(x))


def wrapped(x: torch.Tensor, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> torch.Tensor:
    """A local tensor as a DTensor of this whole shape, over the same memory."""
    from torch.distributed.tensor import DTensor

    stride = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def across(placement: Any) -> Any:
    """The placement of the transposed matrix."""
    from torch.distributed.tensor import Shard

    if not hasattr(placement, "dim"):
        return placement
    dim = 0 if placement.dim else 1
    if hasattr(placement, "split_factor"):  # cut by fully_shard after tensor parallelism
        return type(placement)(dim, split_factor=placement.split_factor)
    return Shard(dim)


class Copied(Whole):
    """Plain tensors that every process holds, beside sharded ones."""

    def __init__(self, share: float) -> None:
        self.share = share


class Cut(Whole):
    """DTensors of one mesh and one placement."""

    sharded = True

    def __init__(self, params: Sequence[Any], share: float) -> None:
        self.share, self.mesh, self.placements = share, params[0].device_mesh, tuple(params[0].placements)
        self.pieces = [piece_of(param) for param in params]
        self.kept, self.layout = self.pieces, self.placements  # of state; not those of the parameter if it lies across
        self.contiguous = all(len(piece.runs) == 1 for piece in self.pieces)

    def tensors(self, params: Tensors) -> Tensors:
        return [local(param).detach() for param in params]

    def gradients(self, params: Tensors) -> list[torch.Tensor | None]:
        return [None if param.grad is None else self.own(param.grad, self.placements) for param in params]

    def own(self, x: Any, placements: Sequence[Any]) -> torch.Tensor:
        """This process's block of a DTensor that may be placed otherwise."""
        return local(x if tuple(x.placements) == tuple(placements) else x.redistribute(self.mesh, placements))

    def read(self, i: int, kept: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return self.own(kept, self.layout) if is_sharded(kept) else kept[self.kept[i].like(like.shape).slices]

    def keep(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return wrapped(x, self.mesh, self.layout, self.kept[i].like(x.shape).shape)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.pieces[0].like(shape).shape

    def kept_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.kept[0].like(shape).shape

    def restricted(self, surface: Surface) -> Surface:
        piece = self.pieces[0]
        return surface.restricted(piece.shape, piece.offset, piece.sizes) or surface

    def first(self, which: Sequence[int]) -> list[int] | None:
        return [self.pieces[i].runs[0][0] for i in which]

    def counts(self, params: Tensors) -> list[int]:
        return [math.prod(piece.shape) for piece in self.pieces]

    def normals(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]], places: tuple[Any, ...], rest: tuple[Any, ...]
    ) -> Normals:
        _, offsets, total = places
        each: list[tuple[Any, ...]] = []
        for name, shape, start, piece in zip(names, shapes, offsets, self.pieces, strict=True):
            for first, count in piece.like(shape).runs:
                each.append((name, count, start, first))
                start += count
        labels, counts, starts, firsts = ([one[i] for one in each] for i in range(4))
        dtype, device, rows, lanes = (*rest, 1, None)[:4]
        return Normals(labels, counts, starts, total, dtype, device, rows, lanes, firsts)
