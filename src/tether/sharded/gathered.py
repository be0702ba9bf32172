"""Gathered: matrices on a surface that cannot be cut, moved by their owners.

The owner of a matrix assembles it, with its momenta and its gradient, takes it through the word as one process would,
and gives the blocks back. Momenta stay with the blocks, so that checkpoints hold them in any sharding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether.engine.blocks import Lanes, Owned
from tether.engine.commit import Write, commit, write
from tether.engine.moving import Moving
from tether.engine.placed import Stack, replaced
from tether.engine.programs import Program
from tether.letters import Letter
from tether.sharded.owners import Owners
from tether.sharded.pieces import Cut, across, is_sharded, wrapped
from tether.surfaces import Surface

__all__ = ["Gathered", "gathered_start"]

Name = tuple[int, int]
Tensors = list[torch.Tensor]


class Gathered:
    """A body of DTensors of one shape; `inner` moves the whole matrices that this rank owns."""

    kernel = None

    def __init__(
        self,
        owners: list[Any],
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        surface: Surface,
        size: int,
        start: int,
    ) -> None:
        self.home, self.surface, self.shape, self.cut = owners, surface, tuple(owners[0].shape), Cut(owners, 1.0)
        self.params = self.cut.tensors(owners)
        self.owners = Owners(owners, start, width(owners[0]))
        self.share = len(self.owners.blocks) / size  # as many groups move the same matrices
        self.p = [self.momentum(state[owner], i, names[i]) for i, owner in enumerate(owners)] if momenta else []
        kept = {"momentum": [state[owner]["momentum"] for owner in owners]} if momenta else {}
        self.kept = Owned(owners, state, kept)
        self.device = device = self.params[0].device
        self.whole = [torch.zeros(self.shape, dtype=owners[0].dtype, device=device) for _ in self.owners.mine]
        own: dict[torch.Tensor, Any] = {x: {} for x in self.whole}
        labels = [names[i] for i in self.owners.mine]
        self.inner = Moving(self.whole, labels, own, momenta, lanes, surface) if labels else None

    def momentum(self, own: dict[str, Any], i: int, name: str) -> torch.Tensor:
        """This rank's block of a momentum, in the parameter's shape; the state shows it in that of the surface."""
        block, piece = self.params[i], self.cut.pieces[i]
        whole = tuple(self.surface.coordinates(self.shape))
        turned = whole != (self.shape[0], math.prod(self.shape[1:]))
        p = torch.zeros(block.shape, dtype=self.owners.dtype, device=block.device)
        flat = p.view(block.shape[0], math.prod(block.shape[1:]))
        shown = flat.mT if turned else flat
        placements = [across(one) if turned else one for one in self.cut.placements]
        saved = own.get("momentum")
        if saved is not None and tuple(saved.shape) != whole:
            raise replaced(name, self.home[i], "momentum", saved)
        if saved is not None and is_sharded(saved):
            shown.copy_(saved.redistribute(self.cut.mesh, placements).to_local())
        elif saved is not None:
            p.copy_((saved.mT if turned else saved).reshape(self.shape)[piece.slices])
        own["momentum"] = wrapped(shown, self.cut.mesh, placements, whole)
        return p

    def begin(self, weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Assemble the matrices: one all-to-all."""
        grads = self.cut.gradients(self.home) if gradient else [None] * len(self.home)
        count = sum(g is not None for g in grads) if gradient else len(grads)
        self.live, self.degrees = count > 0, count * self.surface.dimension(self.shape)
        if not self.live:
            return
        tensors = [[θ, *self.p[i : i + 1]] for i, θ in enumerate(self.params)]
        for each, g in zip(tensors, grads, strict=True):
            each += [] if g is None else [g]
        found = self.owners.collect(tensors)
        if self.inner is None:
            return
        for j, (i, each) in enumerate(zip(self.owners.mine, found, strict=True)):
            self.whole[j].copy_(each[0])
            self.whole[j].grad = None if grads[i] is None else each[-1].to(self.whole[j].dtype)
            if self.inner.p is not None:
                self.inner.p[j].copy_(self.surface.lift(each[1].unsqueeze(0))[0])
        self.inner.begin(weight_decay, gradient, resting)

    @property
    def bad(self) -> torch.Tensor | None:
        """Must all stay what it was?"""
        return None if self.inner is None else self.inner.bad

    @bad.setter
    def bad(self, bad: torch.Tensor | None) -> None:
        if self.inner is not None:
            self.inner.bad = bad

    def remember_gradient(self) -> None:
        if self.inner is not None and self.inner.live:
            self.inner.remember_gradient()

    def take(self, program: Program, name: Name, ξ: torch.Tensor | None = None) -> None:
        if self.inner is not None and self.inner.live:
            self.inner.take(program, name, ξ)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], name: Name, draw: int) -> None:
        if self.inner is not None and self.inner.live:
            self.inner.apply(letter, scalars, name, draw)

    def square(self) -> torch.Tensor:
        if self.inner is None or not self.inner.live:
            return torch.zeros((), dtype=self.owners.dtype, device=self.owners.device)
        return self.inner.square()

    def writes(self) -> list[Write]:
        """Let the owners finish, and give the blocks back: one all-to-all."""
        trouble: Exception | None = None
        wholes: list[Tensors] = []
        try:
            if self.inner is not None:
                commit(self.inner.writes() if self.inner.live else [])
                p = self.inner.p
                lowered = [] if p is None else list(self.surface.lower(p, self.shape))
                wholes = [[x, *lowered[i : i + 1]] for i, x in enumerate(self.whole)]
        except Exception as error:
            trouble = error
        found = self.owners.spread(wholes, 1 + bool(self.p), trouble)
        new = [each[0].to(x.dtype) for each, x in zip(found, self.params, strict=True)]
        momenta = [each[1] for each in found] if self.p else []
        return [write(torch._foreach_copy_, [*self.params, *self.p], [*new, *momenta])]


def width(param: torch.Tensor) -> torch.dtype:
    """The dtype of points and momenta of a parameter."""
    return torch.float64 if param.dtype is torch.float64 else torch.float32


class Start:
    """Blocks to be written, as `tether.engine.placed.place` returns stacks."""

    def __init__(self, params: Tensors, names: list[str], surface: Surface) -> None:
        self.params, self.names, self.surface, self.dtype = params, names, surface, params[0].dtype

    def scattered(self, values: torch.Tensor, tensors: Tensors) -> Write:
        """The write that takes the values into the blocks."""
        return write(torch._foreach_copy_, tensors, list(values.to(self.dtype)))


def gathered_start(params: list[Any], names: list[str], surface: Surface, seed: int) -> tuple[Start, torch.Tensor]:
    """Where such matrices start: each owner places its own."""
    owners, blocks = Owners(params, 0, width(params[0])), Cut(params, 1.0).tensors(params)
    found, trouble = owners.collect([[x] for x in blocks]), None
    wholes: list[Tensors] = []
    try:
        if found:
            mine = [each[0].to(params[0].dtype) for each in found]
            wholes = [[x] for x in Stack(mine, [names[i] for i in owners.mine], surface).placed(seed)]
    except Exception as error:
        trouble = error
    values = torch.stack([each[0] for each in owners.spread(wholes, 1, trouble)])
    return Start(blocks, names, surface), values
