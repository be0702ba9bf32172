"""Owners: matrices that are cut over ranks are assembled, each by one of them. One all-to-all in and one out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tether.engine import host
from tether.sharded.pieces import Piece, block_of, cut_dims
from tether.surfaces import SurfaceError

__all__ = ["Owners"]

Tensors = list[torch.Tensor]


class Owners:
    """DTensors of one shape and placement, each with an owner among the ranks that hold its blocks.

    The ranks take turns, from `start` on, so that each owns its share of the matrices. With an `axis`, they are those
    along this axis of the mesh.
    """

    def __init__(self, params: Sequence[Any], start: int, dtype: torch.dtype, axis: int | None = None) -> None:
        first = params[0]
        self.group, self.rank, self.places = holders(first, axis)
        mesh, self.shape = first.device_mesh.shape, tuple(first.shape)
        self.dtype, self.device = dtype, first.to_local().device
        blocks = [block_of(self.shape, mesh, first.placements, place) for place in self.places]
        self.blocks = [Piece(self.shape, *block, cut_dims(first)) for block in blocks]
        self.sizes = [math.prod(block.sizes) for block in self.blocks]
        self.owner = [(start + i) % len(self.places) for i in range(len(params))]
        self.mine = [i for i, owner in enumerate(self.owner) if owner == self.rank]

    def exchange(self, out: Sequence[Tensors], lengths: Sequence[int]) -> list[torch.Tensor]:
        """Send some tensors to each rank; returns what each has sent, so many numbers."""
        nothing = torch.empty(0, dtype=self.dtype, device=self.device)
        messages = [torch.cat([nothing, *(x.detach().reshape(-1).to(self.dtype) for x in each)]) for each in out]
        received = torch.empty(sum(lengths), dtype=self.dtype, device=self.device)
        sent = [len(message) for message in messages]
        dist.all_to_all_single(received, torch.cat(messages), list(lengths), sent, group=self.group)
        return list(received.split(list(lengths)))

    def collect(self, tensors: Sequence[Tensors]) -> list[Tensors]:
        """From this rank's blocks of some tensors of each matrix, the whole tensors of the matrices that it owns."""
        ranks = range(len(self.blocks))
        out = [[x for i, each in enumerate(tensors) if self.owner[i] == j for x in each] for j in ranks]
        number = sum(len(tensors[i]) for i in self.mine)
        found = self.exchange(out, [number * size for size in self.sizes])
        wholes = [torch.empty(self.shape, dtype=self.dtype, device=self.device) for _ in range(number)]
        for block, size, message in zip(self.blocks, self.sizes, found, strict=True):
            for k, whole in enumerate(wholes):
                whole[block.slices] = message[k * size : (k + 1) * size].view(block.sizes)
        rest = iter(wholes)
        return [[next(rest) for _ in tensors[i]] for i in self.mine]

    def spread(self, wholes: Sequence[Tensors], each: int, trouble: Exception | None = None) -> list[Tensors]:
        """From the whole tensors of the matrices that this rank owns, its blocks of those of all, `each` of a matrix.

        Every message begins with a number that says whether its sender has trouble. Then all raise together.
        """
        fine = torch.full((1,), float(trouble is None), dtype=self.dtype, device=self.device)
        if trouble is not None:
            wholes = [[torch.zeros(self.shape, dtype=self.dtype, device=self.device)] * each for _ in self.mine]
        out = [[fine, *(x[block.slices] for whole in wholes for x in whole)] for block in self.blocks]
        size, counts = self.sizes[self.rank], [self.owner.count(j) for j in range(len(self.blocks))]
        found = self.exchange(out, [1 + count * each * size for count in counts])
        if trouble is not None:
            raise trouble
        self.check(found)
        at = [1] * len(found)
        blocks: list[Tensors] = []
        for owner in self.owner:
            own = found[owner][at[owner] : at[owner] + each * size].view(each, *self.blocks[self.rank].sizes)
            at[owner] += each * size
            blocks.append(list(own))
        return blocks

    def check(self, found: Tensors) -> None:
        """Raise where a rank has told of trouble. Only a host that reads numbers can be in trouble by them."""
        if host.reads(self.device) and not all(bool(message[0] == 1) for message in found):
            raise SurfaceError("another rank could not move its share: see its error. No parameter was moved")


def holders(x: Any, axis: int | None = None) -> tuple[Any, int, list[Sequence[int]]]:
    """The ranks that together hold a DTensor once, or those along an axis of the mesh.

    Returns their group, this rank's number in it, and their places in the mesh.
    """
    mesh, at = x.device_mesh, list(x.device_mesh.get_coordinate())
    axes = [i for i, one in enumerate(x.placements) if hasattr(one, "dim")] if axis is None else [axis]
    if len(axes) == 1:
        axis = axes[0]
        places: list[Sequence[int]] = [[*at[:axis], j, *at[axis + 1 :]] for j in range(mesh.shape[axis])]
        return mesh.get_group(axis), at[axis], places
    if mesh.size() == dist.get_world_size() and len(axes) == mesh.ndim:
        return None, dist.get_rank(), [(mesh.mesh == j).nonzero()[0].tolist() for j in range(mesh.size())]
    raise SurfaceError(
        f"a matrix is cut by several axes of a mesh of {mesh.size()} ranks, {x.placements}: cut it by one axis, by "
        "fully_shard or by tensor parallelism, or use a mesh of all ranks without replication"
    )
