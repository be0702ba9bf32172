"""Constraints for any torch optimizer, and the soft counterparts that the papers compare with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from tether.engine.blocks import Lanes
from tether.engine.given import lanes_of, stacked
from tether.engine.placed import Stack, place, stacks, write
from tether.ensemble.replicas import Replicas
from tether.optimizer import Optimizer
from tether.part import matches
from tether.surfaces import Surface

__all__ = ["constrain", "decay_groups", "orthogonal_penalty"]

# what torch's optimizers call the momentum they keep; second moments are no vectors and stay
MOMENTA = ("momentum_buffer", "exp_avg")


def constrain(optimizer: torch.optim.Optimizer, surfaces: Mapping[str, Surface]) -> torch.optim.Optimizer:
    """Keep the parameters of any torch optimizer on surfaces, in place; returns the optimizer.

    After each of its steps the parameters are projected back and its momentum into the tangent space there. Schedulers
    and checkpoints go on working; slack variables are kept in the optimizer's state.

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
    chosen: dict[str, tuple[Surface, list[torch.Tensor], list[str]]] = {}
    for where, surface in surfaces.items():
        if not isinstance(surface, Surface):
            raise TypeError(f"{where!r}: {surface!r} is no surface, e.g. tether.Orthogonal()")
        chosen[where] = (surface, [], [])
    taken: set[int] = getattr(optimizer, "constrained", set())
    for group in optimizer.param_groups:
        if "param_names" not in group:
            raise ValueError("parameters are found by name: build the optimizer from model.named_parameters()")
        for name, param in zip(group["param_names"], group["params"], strict=True):
            for where, (surface, params, names) in chosen.items():
                if matches(name, where):
                    if id(param) in taken:
                        raise ValueError(f"{name!r} is constrained already: give each weight one surface, in one call")
                    surface.check(name, param.shape[int(stacked(param)) :])
                    params.append(param)
                    names.append(name)
                    break
    lanes: dict[str, Lanes] = {}
    for where, (_, params, names) in chosen.items():
        if not params:
            raise ValueError(f"{where!r} matches no parameter of the optimizer")
        lanes[where] = lanes_of(names[0], params[0], int(stacked(params[0])))

    placed = [
        entry
        for where, (surface, params, names) in chosen.items()
        for entry in place(dict(zip(names, params, strict=True)), surface, 0, lanes[where])
    ]
    write(placed)
    before: dict[str, list[tuple[Stack, torch.Tensor]]] = {}

    @torch.no_grad()
    def remember(opt: torch.optim.Optimizer, *_: Any) -> None:
        """Where the step starts: projections go along the normals there."""
        for where, (surface, params, names) in chosen.items():
            moving = [(p, n) for p, n in zip(params, names, strict=True) if p.grad is not None]
            found = stacks([p for p, _ in moving], [n for _, n in moving], surface)
            held = [Stack(mine, labels, surface, lanes[where]) for mine, labels in found]
            before[where] = [(stack, stack.point(opt.state)) for stack in held]

    @torch.no_grad()
    def project(opt: torch.optim.Optimizer, *_: Any) -> None:
        """Back onto Σ, momentum along it."""
        for stack, q in (entry for entries in before.values() for entry in entries):
            surface = stack.surface
            q = surface.project(surface.embed(q, stack.gather(stack.params)), q)
            stack.scattered(surface.lower(q, stack.shape), stack.params)()
            for owner, share in zip(stack.owners(), stack.shares(q), strict=True):
                if surface.slack:
                    opt.state[owner]["point"] = share.clone()
            for key in MOMENTA:
                held = [opt.state[param].get(key) for param in stack.params]
                if all(isinstance(m, torch.Tensor) for m in held):
                    flat = surface.along(q, surface.lift(stack.gather(held)), stack.shape)
                    stack.scattered(flat, held)()
        before.clear()

    def again(memo: dict[int, Any]) -> torch.optim.Optimizer:
        """A deep copy, constrained as well: torch's own would lose the hooks."""
        twin = type(optimizer).__new__(type(optimizer))
        memo[id(optimizer)] = twin
        twin.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
        return constrain(twin, surfaces)

    def refuse(*_: Any) -> Any:
        raise TypeError(
            "a constrained optimizer cannot be pickled: save its state_dict() and call tether.constrain anew"
        )

    new = {id(param) for _, params, _ in chosen.values() for param in params}
    optimizer.constrained = taken | new  # type: ignore[attr-defined]
    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(project)
    optimizer.__deepcopy__ = again  # type: ignore[attr-defined]
    optimizer.__reduce_ex__ = refuse  # type: ignore[method-assign]
    return optimizer


def orthogonal_penalty(model: torch.nn.Module, where: str = "*.weight") -> torch.Tensor:
    """Σ ‖QᵀQ − I‖² over the matching weight matrices, Q the tall one of W and Wᵀ: the soft counterpart of `Orthogonal`.

    Add ``strength * orthogonal_penalty(model)`` to the loss; the papers' best strength is 0.05. With replicas it has
    a value for each.
    """
    replicas = isinstance(model, Replicas)
    terms: list[torch.Tensor] = []
    for name, param in model.named_parameters():
        if param.dim() > 1 + replicas and matches(name, where):
            m = param.flatten(1 + replicas)
            m = m if m.shape[-2] >= m.shape[-1] else m.mT
            excess = m.mT @ m - torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
            terms.append(excess.square().sum((-2, -1)))
    if not terms:
        raise ValueError(f"{where!r} matches no weight matrix of the model")
    return sum(terms[1:], terms[0])


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Param groups with weight decay on weights and none on biases and norm layers, for any optimizer."""
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    groups = [
        {"params": [(n, p) for n, p in named if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [(n, p) for n, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
