"""Bands: spheres whose rows are cut. Ranks exchange blocks of columns for bands of whole rows, and move these.

A row and its slack must be in one place, so points and momenta stay with the bands: as state they are cut by rows,
as they would be under `fully_shard`. One all-to-all in and one out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether.engine.blocks import Lanes, Owned
from tether.engine.commit import Write, commit, write
from tether.engine.moving import Moving
from tether.engine.placed import Stack
from tether.letters import Letter
from tether.sharded.empty import Empty
from tether.sharded.gathered import Start, width
from tether.sharded.owners import Owners
from tether.sharded.pieces import Cut, block_of, by_rows, wrapped
from tether.surfaces import Sphere, Surface

__all__ = ["Bands", "banded", "banded_start", "by_bands"]

Name = tuple[int, int]
Tensors = list[torch.Tensor]


def columns_of(param: Any) -> int | None:
    """The axis of the mesh that cuts the rows of a parameter; None unless there is one, with rows dealt out before it.

    Before it: `fully_shard` over tensor parallelism has the axes in this order.
    """
    axes = [(i, placement.dim) for i, placement in enumerate(param.placements) if hasattr(placement, "dim")]
    strided = any(hasattr(placement, "split_factor") for placement in param.placements)
    across = [i for i, dim in axes if dim > 0]
    return across[0] if len(across) == 1 and axes[-1][0] == across[0] and not strided else None


def by_bands(param: Any, surface: Any) -> bool:
    """Is it on spheres of rows, and cut in a way that bands of whole rows can mend?"""
    return isinstance(surface, Sphere) and surface.per == "row" and columns_of(param) is not None


class Exchange:
    """DTensors of one shape, cut along columns, in blocks here and in bands of whole rows there."""

    def __init__(self, params: Sequence[Any]) -> None:
        self.owners = Owners(params, 0, width(params[0]), columns_of(params[0]))
        mesh, placements, shape = params[0].device_mesh, by_rows(params[0]), self.owners.shape
        bands = [block_of(shape, mesh.shape, placements, place) for place in self.owners.places]
        first = self.owners.blocks[0].offset[0]
        self.rows = [slice(offset[0] - first, offset[0] - first + sizes[0]) for offset, sizes in bands]
        self.columns = [(slice(None), *block.slices[1:]) for block in self.owners.blocks]
        self.heights, self.widths = [sizes[0] for _, sizes in bands], [block.sizes[1:] for block in self.owners.blocks]
        own = self.heights[self.owners.rank], *shape[1:]
        self.bands = [torch.zeros(own, dtype=params[0].dtype, device=self.owners.device) for _ in params]
        self.params: list[Any] = [wrapped(band, mesh, placements, shape) for band in self.bands]

    def bring(self, blocks: Tensors) -> Tensors:
        """Bands of tensors of which this rank has blocks."""
        out = [[x[rows] for x in blocks] for rows in self.rows]
        height = self.heights[self.owners.rank]
        lengths = [len(blocks) * height * torch.Size(width).numel() for width in self.widths]
        found = self.owners.exchange(out, lengths)
        bands = [torch.empty(self.bands[0].shape, dtype=self.owners.dtype, device=self.owners.device) for _ in blocks]
        for columns, sizes, message in zip(self.columns, self.widths, found, strict=True):
            for band, part in zip(bands, message.view(len(blocks), height, *sizes), strict=True):
                band[columns] = part
        return bands

    def give(self, bands: Tensors, trouble: Exception | None) -> Tensors:
        """Blocks of tensors of which this rank has bands. If one rank has trouble, all raise."""
        fine = torch.full((1,), float(trouble is None), dtype=self.owners.dtype, device=self.owners.device)
        out = [[fine, *(band[columns] for band in bands)] for columns in self.columns]
        own = self.owners.blocks[self.owners.rank].sizes
        count = len(bands) * torch.Size(own[1:]).numel()
        found = self.owners.exchange(out, [1 + count * height for height in self.heights])
        if trouble is not None:
            raise trouble
        self.owners.check(found)
        parts = [message[1:].view(len(bands), -1, *own[1:]) for message in found if len(message) > 1]
        return list(torch.cat(parts, 1)) if parts else [torch.empty(own, dtype=self.owners.dtype) for _ in bands]


class Bands:
    """A body of such DTensors; `inner` moves the bands of this rank."""

    kernel = None

    def __init__(
        self,
        owners: list[Any],
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        surface: Surface,
        share: float,
    ) -> None:
        self.home, self.cut, self.exchange, self.share = owners, Cut(owners, share), Exchange(owners), share
        self.params, bands = self.cut.tensors(owners), self.exchange.params
        self.device = self.params[0].device
        for band, found in zip(self.exchange.bands, self.exchange.bring(self.params), strict=True):
            band.copy_(found)
        shown = {band: state[owner] for band, owner in zip(bands, owners, strict=True)}
        body = Moving if self.exchange.bands[0].numel() else Empty
        self.inner = body(bands, names, shown, momenta, lanes, surface, Cut(bands, share))
        self.kept = Owned(owners, state, {key: [state[x][key] for x in owners] for key in self.inner.kept.kept})

    def begin(self, weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Bring the rows: one all-to-all."""
        grads = self.cut.gradients(self.home) if gradient else [None] * len(self.home)
        found = self.exchange.bring([*self.params, *(g for g in grads if g is not None)])
        rest = iter(found[len(self.params) :])
        for band, param, x, g in zip(self.exchange.bands, self.exchange.params, found, grads, strict=False):
            band.copy_(x)
            new = None if g is None else next(rest).to(band.dtype)
            param.grad = None if new is None else wrapped(new, param.device_mesh, param.placements, param.shape)
        self.inner.begin(weight_decay, gradient, resting)
        self.live, self.degrees = self.inner.live, self.inner.degrees

    @property
    def bad(self) -> torch.Tensor | None:
        """Must all stay what it was?"""
        return self.inner.bad

    @bad.setter
    def bad(self, bad: torch.Tensor | None) -> None:
        self.inner.bad = bad

    def remember_gradient(self) -> None:
        self.inner.remember_gradient()

    def take(self, program: Any, name: Name, ξ: torch.Tensor | None = None) -> None:
        self.inner.take(program, name, ξ)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], name: Name, draw: int) -> None:
        self.inner.apply(letter, scalars, name, draw)

    def square(self) -> torch.Tensor:
        return self.inner.square()

    def writes(self) -> list[Write]:
        """Let this rank's rows move, and give the blocks back. State is put back until the commit."""
        state = [x for x in (getattr(self.inner, "q", None), getattr(self.inner, "p", None)) if x is not None]
        before, trouble = [x.clone() for x in state], None
        after: Tensors = []
        try:
            commit(self.inner.writes())
        except Exception as error:
            trouble = error
        finally:  # an interrupt, too, must find the state of before
            after += [x.clone() for x in state]
            for x, old in zip(state, before, strict=True):
                x.copy_(old)
        blocks = self.exchange.give(self.exchange.bands, trouble)
        new = [x.to(param.dtype) for x, param in zip(blocks, self.params, strict=True)]
        return [write(torch._foreach_copy_, [*self.params, *state], [*new, *after])]


def banded(params: list[Any], names: list[str], surface: Surface) -> tuple[Exchange, Stack | None]:
    """Such parameters as bands, and a stack of them where this rank has rows."""
    exchange = Exchange(params)
    for band, found in zip(exchange.bands, exchange.bring(Cut(params, 1.0).tensors(params)), strict=True):
        band.copy_(found)
    here = exchange.bands[0].numel()
    return exchange, Stack(exchange.params, names, surface, cut=Cut(exchange.params, 1.0)) if here else None


def banded_start(params: list[Any], names: list[str], surface: Surface, seed: int) -> tuple[Start, torch.Tensor]:
    """Where such parameters start."""
    (exchange, stack), trouble = banded(params, names, surface), None
    placed = exchange.bands
    try:
        placed = placed if stack is None else list(stack.placed(seed))
    except Exception as error:
        trouble = error
    return Start(Cut(params, 1.0).tensors(params), names, surface), torch.stack(exchange.give(placed, trouble))
