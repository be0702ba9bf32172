"""Collected: matrices of any torch optimizer that `tether.constrain` keeps on a surface that cannot be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tether.engine.commit import local
from tether.sharded.gathered import width
from tether.sharded.owners import Owners
from tether.sharded.pieces import Cut
from tether.surfaces import Surface

__all__ = ["Collected"]

Tensors = list[torch.Tensor]


class Collected:
    """DTensors of one shape; their owners keep the points at which a step starts."""

    def __init__(self, params: list[Any], surface: Surface) -> None:
        self.surface, self.shape, self.home = surface, tuple(params[0].shape), params
        self.blocks, self.owners = Cut(params, 1.0).tensors(params), Owners(params, 0, width(params[0]))
        self.start = [each[0] for each in self.owners.collect([[x] for x in self.blocks])]

    def bring_back(self, momenta: Sequence[Tensors]) -> None:
        """Take the matrices back onto the surface, and momenta of several kinds into its tangent space."""
        here = [[x, *(local(kind[i]) for kind in momenta)] for i, x in enumerate(self.blocks)]
        found = self.owners.collect(here)
        wholes: list[Tensors] = []
        trouble: Exception | None = None
        try:
            wholes = self.returned(found) if found else []
        except Exception as error:
            trouble = error
        for old, new in zip(here, self.owners.spread(wholes, 1 + len(momenta), trouble), strict=True):
            for x, y in zip(old, new, strict=True):
                x.copy_(y)

    def returned(self, found: list[Tensors]) -> list[Tensors]:
        """The matrices of this rank, each with its momenta."""
        surface = self.surface
        start = surface.lift(torch.stack(self.start))
        θ, *momenta = (torch.stack([each[k] for each in found]) for k in range(len(found[0])))
        q = surface.project(surface.embed(start, θ), start)
        along = (surface.along(q, surface.lift(m), self.shape) for m in momenta)
        return [list(each) for each in zip(surface.lower(q, self.shape), *along, strict=True)]
