"""Constraints for any torch optimizer, and the weight decay that the papers compare with.

A constrained optimizer keeps its class and its attributes: two of torch's step hooks project its parameters. Torch
drops hooks when an optimizer is copied or pickled, so `copyreg` is told how to do that for the optimizer's class.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tether.engine.commit import local
from tether.engine.given import lanes_of, stacked
from tether.engine.gradients import NonFiniteGradient, faulty_gradients
from tether.engine.moving import Moving
from tether.engine.placed import Stack, place, stacks, write
from tether.engine.programs import Program
from tether.engine.readings import furthest
from tether.optimizer import Optimizer
from tether.part import known_names, matches
from tether.sharded.collected import Collected
from tether.sharded.ranks import admit_sharded, ranks_of
from tether.surfaces import Surface

__all__ = ["constrain", "decay_groups", "is_constrained", "violation"]

# The momenta of torch's optimizers, by their keys in the state, that are steps up to a factor. Adam's first moments are
# not: they are divided by second moments, entry by entry. Projected, they would be large where no gradient has been yet
# (behind a ReLU that is off), and be divided by nearly 0.
MOMENTA = ("momentum_buffer",)


STEP = Program([("θ", {"θ": 1.0, "g": -1.0}, -1)])  # the letter X for a time 1: θ ← θ − g, back onto Σ


class Kept:
    """Parameters of an optimizer that are kept on one surface."""

    def __init__(self, surface: Surface, params: list[torch.Tensor], names: list[str]) -> None:
        self.surface, self.params, self.names = surface, params, names
        self.lanes = lanes_of(names[0], params[0], int(stacked(params[0])))
        self.ranks = ranks_of(params)
        self.bodies: list[Moving] | None = None
        self.before: list[tuple[Stack, torch.Tensor]] = []
        self.starts: list[torch.Tensor] = []
        self.steps: list[torch.Tensor] = []  # room for them, and for the starts
        self.under_way = False
        self.apart: list[Collected] = []  # by owners, for no rank holds them whole

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"bodies": None, "before": [], "starts": [], "steps": [], "apart": []}

    def bodies_of(self, state: Mapping[torch.Tensor, Any]) -> list[Moving]:
        """The parameters by shape, as the engine moves them; anew where somebody replaced a parameter or its state."""
        if self.bodies is None or not all(body.kept.state is state and body.kept.still() for body in self.bodies):
            found = stacks(self.params, self.names, self.surface)
            self.bodies = [Moving(mine, names, state, False, self.lanes, self.surface) for mine, names in found]
        return self.bodies

    @torch.no_grad()
    def remember(self, optimizer: torch.optim.Optimizer, *called: Any) -> None:
        """Keep the points at which a step starts: projections follow the normals there."""
        if self.ranks is None:
            self.admit(optimizer, *called)
            if not alike(self.starts, self.params):
                self.starts, self.steps = ([torch.empty_like(p) for p in self.params] for _ in range(2))
            torch._foreach_copy_(self.starts, self.params)
            self.under_way = True
            return
        moving = [(p, name) for p, name in zip(self.params, self.names, strict=True) if p.grad is not None]
        held, self.apart = self.ranks.stacks(moving, self.surface, self.lanes)
        self.before = [(stack, stack.point(optimizer.state)) for stack in held]

    def admit(self, optimizer: torch.optim.Optimizer, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> None:
        """Raise for gradients that are not finite, before a step spoils the moments.

        Not where a closure will make new ones, nor where a GradScaler has told the optimizer; a device is not asked.
        """
        closure = len(args) > 1 or bool(kwargs)  # the first is the optimizer itself
        if closure or getattr(optimizer, "found_inf", None) is not None or not self.params[0].is_cpu:
            return
        dense = [i for i, p in enumerate(self.params) if p.grad is not None and p.grad.layout is torch.strided]
        faulty = faulty_gradients(
            [{"params": [self.params[i] for i in dense], "param_names": [self.names[i] for i in dense]}]
        )
        if faulty:
            raise NonFiniteGradient(faulty, skip="torch.amp.GradScaler, or by an `if` before opt.step()")

    @torch.no_grad()
    def project(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Bring the parameters back onto Σ and the momenta into the tangent space there."""
        if self.under_way:
            self.under_way = False
            self.move(optimizer)
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
            self.turn(optimizer, stack, q)
        self.before, self.apart = [], []

    def move(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer's step again, from where it began, on Σ."""
        for step, start, param in zip(self.steps, self.starts, self.params, strict=True):
            torch.sub(start, param, out=step)
        torch._foreach_copy_(self.params, self.starts)
        steps = dict(zip(self.params, self.steps, strict=True))
        for body in self.bodies_of(optimizer.state):
            body.begin(0.0, given=[None if param.grad is None else steps[param] for param in body.params])
            if not body.live:
                continue
            body.take(STEP, (0, 0))
            for one in body.writes():
                one()
            self.turn(optimizer, body, body.q if self.surface.slack else body.surface.lift(body.gather(body.params)))

    def turn(self, optimizer: torch.optim.Optimizer, stack: Stack, q: torch.Tensor) -> None:
        """Project the momenta of a stack into the tangent space at q."""
        for key in MOMENTA:
            momenta = [optimizer.state[param].get(key) for param in stack.home]
            if all(isinstance(m, torch.Tensor) for m in momenta):
                here = [local(m) for m in momenta]
                lone = stack.window(here)
                flat = stack.gather(here).contiguous() if lone is None else lone
                stack.surface.shadow_(q, flat)
                if lone is None:
                    stack.scattered(flat, here)()


def alike(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Are there as many, of the same shapes, dtypes and devices?"""
    kinds = ([(x.shape, x.dtype, x.device) for x in tensors] for tensors in (ours, theirs))
    return next(kinds) == next(kinds)


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


def violation(optimizer: torch.optim.Optimizer) -> Any:
    """How far the parameters are from their surfaces: the largest |g|, with replicas one for each.

    Of an optimizer that `constrain` was given, or of a `tether.Optimizer`.

    >>> from tether.surfaces import Sphere
    >>> model = torch.nn.Linear(4, 4)
    >>> opt = constrain(torch.optim.AdamW(model.named_parameters(), lr=0.1), {"weight": Sphere()})
    >>> violation(opt) < 1e-6
    True
    """
    if isinstance(optimizer, Optimizer):
        return optimizer.violation()
    if optimizer not in KEPT:
        raise ValueError(
            f"nothing constrains this {type(optimizer).__name__}: tether.constrain(opt, {{glob: surface}}) first"
        )
    worst = torch.zeros(1, dtype=torch.float64)
    for held in KEPT[optimizer]:
        named = list(zip(held.names, held.params, strict=True))
        worst = torch.maximum(worst, furthest(named, held.surface, held.lanes, optimizer.state, held.ranks))
    return worst if len(worst) > 1 else float(worst)


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
    known = [name for group in optimizer.param_groups for name in group["param_names"]]
    for where, (_, params, _) in chosen.items():
        if not params:
            raise ValueError(f"{where!r} matches no parameter of the optimizer; {known_names(known)}")
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
