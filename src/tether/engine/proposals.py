"""Proposals: a step that the energies accept or reject, one verdict for each replica.

The closure must see the proposed parameters, so they are written on the way. What follows from the verdict is one
commit: the replicas that are rejected get back what they had, and the step counts. A gradient that is not finite, and a
step that a surface refuses or cannot take back, reject a replica; it rests at its start until the others are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from tether.engine.before import Before
from tether.engine.commit import Write, commit, write
from tether.engine.gradients import NonFiniteEnergy, faulty_gradients, faulty_replicas
from tether.engine.readings import masses
from tether.engine.rows import Row
from tether.engine.stages import lacking, standing
from tether.engine.steps import counted, usable
from tether.engine.together import one_temperature
from tether.noise import bits
from tether.surfaces import SurfaceError

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["propose"]

Closure = Callable[[], Any]


def propose(opt: Optimizer, closure: Closure | None) -> Any:
    """Propose a step of all parts and accept or reject it; returns what the closure returns at the start."""
    rows = opt.rows
    one_temperature(rows)
    if all(row.still for row in rows):
        return standing(opt, closure)
    if closure is None:
        raise lacking(rows[0].word.text, len(legs_of(rows[0])) - 1)
    with torch.enable_grad():
        loss = closure()
    stopped = usable(opt)
    if stopped is None:
        return loss
    start = energies(opt, loss)
    resting = {*stopped, *unusable(opt, start, stopped)}
    if len(resting) == opt.lanes.rows and not opt.replicas:
        return loss
    for row in rows:
        row.begin(True, sorted(resting))
    proposal = Proposal(opt, closure, start, resting)
    try:
        proposal.run()
    except BaseException:
        if not proposal.done:
            with torch.no_grad():  # wherever it came from
                commit(proposal.before.everything())
        raise
    return loss


class Proposal:
    """A proposal on its way: the replicas that rest, those that are lost, and how to take all of it back."""

    def __init__(self, opt: Optimizer, closure: Closure, start: torch.Tensor, resting: set[int]) -> None:
        self.opt, self.closure, self.start, self.resting = opt, closure, start, resting
        self.moving = [row for row in opt.rows if not row.still and row.bodies]
        self.kicked = kicked(opt)
        self.before = Before(opt.rows)
        self.lost: set[int] = set()  # rejected on the way
        self.done: list[bool] = []

    def run(self) -> None:
        """Redraw momenta, move, and commit to the verdict."""
        energy, accepted = self.start, set[int]()
        if self.moving:
            redraw, first, *others = zip(*map(legs_of, self.moving), strict=True)
            self.move(redraw)
            before = self.start + self.own_energy()
            self.move(first)
            for legs in others:
                energy = energy if self.over() else self.look()
                if not self.over():
                    self.move(legs)
            accepted = self.accepted(before, energy + self.own_energy()) - self.lost - self.resting
        rejected = sorted({*range(self.opt.lanes.rows)} - accepted)
        back = (self.before.replicas(rejected) if self.opt.replicas else self.before.everything()) if rejected else []
        commit([*back, *self.tallied(accepted), *counted(self.opt), write(self.done.append, True)])

    def over(self) -> bool:
        """Is there nobody left to move?"""
        return len(self.lost | self.resting) == self.opt.lanes.rows

    def look(self) -> torch.Tensor:
        """The energies where the proposal is now, with gradients in place; replicas that have none are lost."""
        with torch.enable_grad():
            found = energies(self.opt, self.closure())
        self.opt.finite = False
        if kicked(self.opt) != self.kicked:
            raise RuntimeError(
                "the loss has gradients of other parameters than at the start of the proposal, so that it could not be "
                "taken back: let every call of the closure use the same parameters"
            )
        if faulty_gradients(self.opt.param_groups):
            self.lose(faulty_replicas(self.opt.param_groups) if self.opt.replicas else [0])
        return found

    def move(self, legs: Sequence[Any]) -> None:
        """Let every part make its next leg; replicas that a surface refuses are lost, and the others try again."""
        while True:
            writes: list[Write] = []
            try:
                astray = [stray for row, leg in zip(self.moving, legs, strict=True) for stray in self.plan(row, leg)]
                writes = [one for row in self.moving for one in row.writes()]
            except (SurfaceError, LinAlgError) as error:
                which = getattr(error, "which", None)
                self.lose(range(self.opt.lanes.rows) if which is None else replicas_of(which, self.opt.lanes.rows))
                if self.over():
                    return
                continue
            commit(writes)
            self.lose([i for stray in astray for i in replicas_of(stray, self.opt.lanes.rows)])
            return

    def plan(self, row: Row, leg: Any) -> list[torch.Tensor]:
        """Plan one part's leg; returns which of its tensors would not come back."""
        row.begin(True, sorted(self.resting | self.lost) if self.opt.replicas else ())
        row.scalars["γ"] = inf  # of the leg that redraws momenta
        for body in row.bodies:
            body.watch()
        row.play(leg, times=row.rhythm.times(row.word, row.values["lr"]))
        return [body.astray for body in row.bodies if body.astray is not None]

    def lose(self, replicas: Sequence[int]) -> None:
        """Reject these replicas and let them rest at their start."""
        new = sorted({*replicas} - self.lost)
        self.lost |= {*new}
        if new and self.opt.replicas:
            commit(self.before.replicas(new, rest=True))

    def own_energy(self) -> torch.Tensor:
        """pᵀM⁻¹p/2, and ωθᵀθ/2 of weight decay, for each replica."""
        count, total = self.opt.lanes.rows, torch.zeros_like(self.start)
        for row in self.moving:
            ω = torch.as_tensor(row.values["ω"], dtype=torch.float64).cpu()
            for param in row.group["params"]:
                p = row.state.get(param, {}).get("momentum")
                if p is not None and param in self.kicked:
                    p = p.detach().to("cpu", torch.float64)
                    total += squared(p / masses(row, p) ** 0.5, count) / 2
                if bool(ω.any()) and param in self.kicked:
                    total += ω * squared(param, count) / 2
        return total

    def accepted(self, before: torch.Tensor, after: torch.Tensor) -> set[int]:
        """min(1, e^{−ΔH/τ}) (1.65), by a uniform number that the step and the replica name."""
        opt, group = self.opt, self.opt.rows[0].group
        named = group["seed"], group["step"], "accept/", opt.lanes.rows, opt.lanes.numbers
        u = (bits(1, *named).flatten().double() + 0.5) * 2.0**-32
        τ = torch.as_tensor(opt.rows[0].values["τ"], dtype=torch.float64).cpu()
        return {*(after.isfinite() & (after - before <= -τ * u.log())).nonzero().flatten().tolist()}

    def tallied(self, accepted: set[int]) -> list[Write]:
        """One proposal more for all that do not rest."""
        group = self.opt.rows[0].group
        moved = [[i not in self.resting for i in range(self.opt.lanes.rows)]]
        new = torch.tensor([*moved, [i in accepted for i in range(self.opt.lanes.rows)]], device="cpu")
        tested = group["tested"] + new.view(group["tested"].shape)
        return [write(row.group.__setitem__, "tested", tested) for row in self.opt.rows]


def legs_of(row: Row) -> Any:
    """What a part does in a proposal, cut where gradients are taken."""
    return row.rhythm.legs(row.word)


def energies(opt: Optimizer, loss: Any) -> torch.Tensor:
    """What a closure has returned, as one energy for each replica."""
    try:
        numbers = [] if loss is None else loss
        found = numbers.detach() if isinstance(numbers, torch.Tensor) else torch.as_tensor(numbers, dtype=torch.float64)
        told = f"{found.numel()} numbers" if not found.is_complex() else "complex numbers"
    except (TypeError, ValueError, RuntimeError):
        found, told = torch.empty(0), type(loss).__name__
    n = opt.lanes.rows
    if found.numel() != n or found.is_complex():
        what = f"one energy for each of the {n} replicas" if opt.replicas else "one number, the whole loss"
        fix = "losses.sum().backward() and return losses" if opt.replicas else "loss.backward() and return loss"
        raise ValueError(f"the closure returned {told}; a proposal is accepted by {what}: let the closure call {fix}")
    return found.to("cpu", torch.float64).flatten()


def unusable(opt: Optimizer, start: torch.Tensor, resting: Sequence[int]) -> list[int]:
    """The replicas whose energy is not finite where they start: an error, or they rest."""
    found = [i for i in (~start.isfinite()).nonzero().flatten().tolist() if i not in resting]
    if found and opt.on_nonfinite == "raise":
        raise NonFiniteEnergy(float(start[found[0]]), found if opt.replicas else [])
    opt.missed = opt.missed + bool(found)
    return found


def kicked(opt: Optimizer) -> set[torch.Tensor]:
    """The parameters with a gradient."""
    return {param for row in opt.rows for param in row.group["params"] if param.grad is not None}


def squared(x: torch.Tensor, rows: int) -> torch.Tensor:
    """The sum of squares for each replica, in double precision: a proposal is judged by a small difference."""
    return x.detach().to("cpu", torch.float64).reshape(rows, -1).square().sum(1)


def replicas_of(which: torch.Tensor, rows: int) -> list[int]:
    """The replicas of these tensors of a stack."""
    found: list[int] = which.reshape(-1, rows).any(0).nonzero().flatten().tolist()
    return found
