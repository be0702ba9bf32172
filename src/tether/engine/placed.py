"""Parameters on a surface as stacks: those of one shape are one batch for the surface's maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tether.engine.blocks import Lanes
from tether.engine.commit import Write
from tether.engine.pieces import WHOLE, Whole
from tether.noise import Normals
from tether.surfaces import Free, Surface, SurfaceError

__all__ = ["Stack", "degrees", "place", "stacks", "write"]

Tensors = list[torch.Tensor]
PLAIN = Lanes()


def stacks(params: Tensors, names: list[str], surface: Surface) -> list[tuple[Tensors, list[str]]]:
    """Parameters that can be handled as one batch: of one shape, dtype and device, or all that g takes together."""
    chosen: dict[Any, tuple[Tensors, list[str]]] = {}
    for param, name in zip(params, names, strict=True):
        if not param.numel():
            continue
        kind = None if surface.together else (param.shape, param.dtype, param.device)
        mine, labels = chosen.setdefault(kind, ([], []))
        mine.append(param)
        labels.append(name)
    return list(chosen.values())


@torch.no_grad()
def place(
    named: Mapping[str, torch.Tensor], surface: Surface, seed: int, lanes: Lanes = PLAIN
) -> list[tuple[Stack, torch.Tensor]]:
    """Where parameters start on their surface, to be written; frozen ones are left where they are."""
    if surface.together and not all(param.requires_grad for param in named.values()):
        return []
    chosen = {name: param for name, param in named.items() if param.requires_grad}
    for name, param in chosen.items():
        surface.admit(name, param)
    groups = stacks(list(chosen.values()), list(chosen), surface)
    found = [Stack(mine, labels, surface, lanes) for mine, labels in groups]
    return [(stack, stack.placed(seed)) for stack in found]


@torch.no_grad()
def write(placed: Iterable[tuple[Stack, torch.Tensor]]) -> None:
    """Move parameters to where they start; all of them, or none where a dtype cannot hold its point."""
    placed = list(placed)
    for stack, values in placed:
        if not bool(values.to(stack.dtype).isfinite().all()):
            names = ", ".join(map(repr, stack.names))
            raise SurfaceError(
                f"{stack.surface!r} on {names}: the point to start from is out of the range of "
                f"{str(stack.dtype).removeprefix('torch.')}; use another dtype, or a surface closer to 0"
            )
    for stack, values in placed:
        stack.scattered(values, stack.params)()


class Stack:
    """Parameters of one shape on a surface; with replicas, all replicas of all of them."""

    def __init__(
        self, owners: Tensors, names: list[str], surface: Surface, lanes: Lanes = PLAIN, cut: Whole = WHOLE
    ) -> None:
        self.home, self.cut, self.share = owners, cut, cut.share
        self.params = params = cut.tensors(owners)
        self.names, self.lanes, self.rows = names, lanes, lanes.rows
        self.joint = surface.together
        shapes = [param.shape[lanes.batched :] for param in params]
        self.shape = (sum(map(math.prod, shapes)),) if self.joint else tuple(shapes[0])
        self.surface = cut.restricted(surface.bind(shapes if self.joint else shapes[:1]))
        self.dtype, self.device = params[0].dtype, params[0].device
        # Points and momenta of half-precision weights are kept in float32: Σ is thinner than a rounding error there.
        self.wide = torch.float64 if self.dtype is torch.float64 else torch.float32
        self.eps = torch.finfo(self.dtype).eps

    def gather(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Tensors shaped like the parameters as one stack."""
        if self.joint:
            return torch.cat([x.detach().reshape(self.rows, -1) for x in tensors], dim=1).to(self.wide)
        stacked = torch.stack(list(tensors)).detach().to(self.wide)
        return stacked.flatten(0, 1) if self.lanes.batched else stacked

    def window(self, tensors: Tensors) -> torch.Tensor | None:
        """As `gather`, but to write to: the only tensor itself. None where there are several, or it lies otherwise."""
        if len(tensors) > 1 or self.joint or tensors[0].dtype is not self.wide or not tensors[0].is_contiguous():
            return None
        return tensors[0] if self.lanes.batched else tensors[0].unsqueeze(0)

    def scattered(self, values: torch.Tensor, tensors: Tensors) -> Write:
        """The write that takes a stack back into such tensors."""
        if self.joint:
            pieces = values.split([x.numel() // self.rows for x in tensors], 1)
            written = [piece.reshape(x.shape) for piece, x in zip(pieces, tensors, strict=True)]
        else:
            written = self.shares(values)
        return partial(torch._foreach_copy_, tensors, written)

    def shares(self, values: torch.Tensor) -> Tensors:
        """What of a stack belongs to each owner."""
        if not self.lanes.batched:
            return list(values)
        return [values[i : i + self.rows] for i in range(0, len(values), self.rows)]

    def owners(self) -> Tensors:
        """The parameters that hold state: all, or the first for all that g takes together."""
        return self.home[:1] if self.joint else self.home

    def normals(self, shape: Sequence[int], prefix: str = "") -> Normals:
        """Normals for each owner, a tensor of this shape for each replica."""
        names = [prefix + " ".join(self.names)] if self.joint else [prefix + name for name in self.names]
        whole = math.prod(shape) * self.rows
        places = ([whole] * len(names), [i * whole for i in range(len(names))], whole * len(names))
        rest = self.wide, self.device, self.rows, self.lanes.numbers
        return self.cut.normals(names, [shape] * len(names), places, rest)

    def placed(self, seed: int) -> torch.Tensor:
        """Where the parameters start; random starts are named by the seed and the parameter."""
        θ = self.gather(self.params)
        q = self.surface.place(θ, self.normals(self.shape, "place/").draw(seed, 0, 0).view(-1, *self.shape))
        return torch.where(self.surface.holds(θ, q, self.eps), θ, self.surface.lower(q, self.shape))

    def point(self, state: Mapping[torch.Tensor, Any]) -> torch.Tensor:
        """The points of the parameters as they are: saved ones where they belong to them, else new ones."""
        θ = self.gather(self.params)
        if not self.surface.slack:
            return self.surface.lift(θ)
        saved = [state.get(owner, {}).get("point") for owner in self.owners()]
        fit = (None if x is None or tuple(x.shape) != self.cut.kept_shape(self.coordinates) else x for x in saved)
        saved = [
            None if x is None else self.cut.read(i, x, θ.new_empty(self.coordinates)).to(self.device, self.wide)
            for i, x in enumerate(fit)
        ]
        if all(x is None for x in saved):
            return self.surface.place(θ)
        new = self.shares(self.surface.place(θ)) if any(x is None for x in saved) else saved
        q = torch.stack([y if x is None else x for x, y in zip(saved, new, strict=True)])
        return self.surface.follow(θ, q.flatten(0, 1) if self.lanes.batched else q, self.eps)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The shape of a point, and of a momentum, of one owner."""
        return (*([self.rows] if self.lanes.batched else []), *self.surface.coordinates(self.shape))


def replaced(name: str, param: torch.Tensor, what: str, kept: torch.Tensor) -> ValueError:
    """What to raise where a parameter has another shape than what was kept for it."""
    return ValueError(
        f"{name!r} has shape {tuple(param.shape)} but its {what} {tuple(kept.shape)}: "
        "the parameter was replaced; build a new optimizer"
    )


def degrees(surface: Surface | Free, params: list[torch.Tensor], lanes: Lanes) -> int:
    """Degrees of freedom of one replica: the number of parameters, minus the constraints."""
    if isinstance(surface, Free):
        return sum(param.numel() for param in params) // lanes.rows
    groups = stacks(params, [""] * len(params), surface)
    bound = [Stack(mine, names, surface, lanes) for mine, names in groups]
    return sum((1 if b.joint else len(b.params)) * b.surface.dimension(b.shape) for b in bound)
