"""Constraints for any torch optimizer, and the weight decay that the papers compare with.

A constrained optimizer keeps its class and its attributes: two of torch's step hooks project its parameters. Torch
drops hooks when an optimizer is copied or pickled, so `copyreg` is told how to do that for the optimizer's class.
"""

from __future__ import annotations

import copyreg
import operator
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tether.engine.commit import local
from tether.engine.given import lanes_of, stacked
from tether.engine.placed import Stack, place, stacks, write
from tether.optimizer import Optimizer
from tether.part import matches
from tether.sharded.collected import Collected
from tether.sharded.ranks import admit_sharded, ranks_of
from tether.surfaces import Surface

__all__ = ["constrain", "decay_groups", "is_constrained"]

# The momenta of torch's optimizers, by their keys in the state, that are steps up to a factor. Adam's first moments are
# not: they are divided by second moments, entry by entry. Projected, they would be large where no gradient has been yet
# (behind a ReLU that is off), and be divided by nearly 0.
MOMENTA = ("momentum_buffer",)


class Kept:
    """Parameters of an optimizer that are kept on one surface."""

    def __init__(self, surface: Surface, params: list[torch.Tensor], names: list[str]) -> None:
        self.surface, self.params, self.names = surface, params, names
        self.lanes = lanes_of(names[0], params[0], int(stacked(params[0])))
        self.ranks = ranks_of(params)
        self.before: list[tuple[Stack, torch.Tensor]] = []
        self.held: tuple[list[torch.Tensor], list[Stack]] | None = None  # what moved last, and its stacks
        self.apart: list[Collected] = []  # by owners, for no rank holds them whole

    @torch.no_grad()
    def remember(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep the points at which a step starts: projections follow the normals there."""
        moving = [(p, name) for p, name in zip(self.params, self.names, strict=True) if p.grad is not None]
        if self.ranks is None:
            held = self.stacks(moving)
        else:
            held, self.apart = self.ranks.stacks(moving, self.surface, self.lanes)
        self.before = [(stack, stack.point(optimizer.state)) for stack in held]

    def stacks(self, moving: list[tuple[torch.Tensor, str]]) -> list[Stack]:
        """Parameters by shape; those of the last step, if the same ones move."""
        params = [p for p, _ in moving]
        if self.held is None or len(params) != len(self.held[0]) or any(map(operator.is_not, params, self.held[0])):
            found = stacks(params, [name for _, name in moving], self.surface)
            self.held = params, [Stack(mine, labels, self.surface, self.lanes) for mine, labels in found]
        return self.held[1]

    @torch.no_grad()
    def project(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Bring the parameters back onto Σ and the momenta into the tangent space there."""
        for matrices in self.apart:
            kinds = [[optimizer.state[param].get(key) for param in matrices.home] for key in MOMENTA]
            matrices.bring_back([kind for kind in kinds if all(isinstance(m, torch.Tensor) for m in kind)])
        for stack, start in self.before:
            surface = stack.surface
            q = surface.project(surface.embed(start, stack.gather(stack.params)), start)
            stack.scattered(surface.lower(q, stack.shape), stack.params)()
            for i, (owner, share) in enumerate(zip(stack.owners(), stack.shares(q), strict=True)):
                if surface.slack:
                    optimizer.state[owner]["point"] = stack.cut.keep(i, share.clone())
            for key in MOMENTA:
                momenta = [optimizer.state[param].get(key) for param in stack.home]
                if all(isinstance(m, torch.Tensor) for m in momenta):
                    here = [local(m) for m in momenta]
                    flat = surface.along(q, surface.lift(stack.gather(here)), stack.shape)
                    stack.scattered(flat, here)()
        self.before, self.apart = [], []


KEPT: WeakKeyDictionary[torch.optim.Optimizer, list[Kept]] = WeakKeyDictionary()


def constrain(optimizer: torch.optim.Optimizer, surfaces: Mapping[str, Surface]) -> torch.optim.Optimizer:
    """Keep the parameters of any torch optimizer on surfaces, in place; returns the optimizer.

    After each step the parameters are projected back onto their surface, and the momenta of SGD, RMSprop and Muon into
    its tangent space. Adam's moments stay as they are: its steps are projected, not its averages.
    Schedulers, checkpoints, deep copies and pickles work; slack variables are kept in the optimizer's state.

    >>> from tether.surfaces import Orthogonal
    >>> model = torch.nn.Linear(4, 4)
    >>> opt = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    >>> opt = constrain(opt, {"weight": Orthogonal()})

    Args:
        optimizer: built from ``named_parameters()``, so that globs can find its parameters.
        surfaces: glob on parameter names → surface; the first match wins.
    """
    if isinstance(optimizer, Optimizer):
        raise TypeError("a tether.Optimizer has surfaces of its own: give its parts on=, e.g. Part('weight', on=...)")
    chosen = [Kept(*found) for found in _choose(optimizer, surfaces)]
    placed = [
        entry
        for held in chosen
        for entry in (place if held.ranks is None else held.ranks.place)(
            dict(zip(held.names, held.params, strict=True)), held.surface, 0, held.lanes
        )
    ]
    write(placed)
    if type(optimizer) not in copyreg.dispatch_table:  # a class may have a way of its own
        copyreg.pickle(type(optimizer), _reduced)
    return _hold(optimizer, chosen)


def is_constrained(optimizer: torch.optim.Optimizer) -> bool:
    """Has the optimizer parameters that `constrain` keeps on a surface?"""
    return optimizer in KEPT


def _choose(
    optimizer: torch.optim.Optimizer, surfaces: Mapping[str, Surface]
) -> list[tuple[Surface, list[torch.Tensor], list[str]]]:
    """For each glob its surface, the parameters that it finds, and their names. Raises where they do not fit."""
    chosen: dict[str, tuple[Surface, list[torch.Tensor], list[str]]] = {}
    for where, surface in surfaces.items():
        if not isinstance(surface, Surface):
            raise TypeError(f"{where!r}: {surface!r} is no surface, e.g. tether.Orthogonal()")
        chosen[where] = (surface, [], [])
    taken = {id(param) for held in KEPT.get(optimizer, []) for param in held.params}
    for group in optimizer.param_groups:
        if "param_names" not in group:
            raise ValueError("parameters are found by name: build the optimizer from model.named_parameters()")
        for name, param in zip(group["param_names"], group["params"], strict=True):
            found = next((row for where, row in chosen.items() if matches(name, where)), None)
            if found is None:
                continue
            if id(param) in taken:
                raise ValueError(f"{name!r} is constrained already: give each weight one surface, in one call")
            surface, params, names = found
            surface.check(name, param.shape[int(stacked(param)) :])
            admit_sharded(name, param, surface, None, stacked(param), state=False)
            params.append(param)
            names.append(name)
    for where, (_, params, _) in chosen.items():
        if not params:
            raise ValueError(f"{where!r} matches no parameter of the optimizer")
    return list(chosen.values())


def _hold(optimizer: torch.optim.Optimizer, chosen: list[Kept]) -> torch.optim.Optimizer:
    """Let the hooks of an optimizer keep these parameters on their surfaces."""
    for held in chosen:
        optimizer.register_step_pre_hook(held.remember)
        optimizer.register_step_post_hook(held.project)
    KEPT[optimizer] = [*KEPT.get(optimizer, []), *chosen]
    return optimizer


def _reduced(optimizer: torch.optim.Optimizer) -> Any:
    """How to copy or pickle an optimizer: as torch does, and with its constraints if it has any."""
    usual = optimizer.__reduce_ex__(4)
    if optimizer not in KEPT or isinstance(usual, str):
        return usual
    return _rebuilt, (*usual[:3], KEPT[optimizer])


def _rebuilt(make: Callable[..., Any], given: tuple[Any, ...], state: Any, chosen: list[Kept]) -> Any:
    """A copy of a constrained optimizer. It holds copies of the same parameters, which lie on their surfaces."""
    optimizer = make(*given)
    optimizer.__setstate__(state)
    return _hold(optimizer, chosen)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Param groups with weight decay on weights and none on biases and norm layers, for any optimizer.

    >>> groups = decay_groups(torch.nn.Linear(2, 2), weight_decay=0.01)
    >>> [(group["weight_decay"], len(group["params"])) for group in groups]
    [(0.01, 1), (0.0, 1)]
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    groups = [
        {"params": [(n, p) for n, p in named if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [(n, p) for n, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
