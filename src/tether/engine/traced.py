"""Traced: the step as torch.compile sees it, from gradients to parameters by torch's operations alone.

A plan is made once, outside the graph: bodies, tables of noise, and a word's coefficients as formulas. Inside, what
changes between steps is a tensor: the step number, the step size before, ξ and the fields that are given as tensors. So
one graph serves all steps, and CUDA graphs can hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tether.engine import host, values
from tether.engine.blocks import Block
from tether.engine.carried import Carried
from tether.engine.drawn import Drawn, Wanted
from tether.engine.flat import Flat, kept
from tether.engine.formulas import Formula, worked_out
from tether.engine.interpreter import compose
from tether.engine.moving import Moving
from tether.engine.programs import Program
from tether.part import NUMERIC
from tether.rhythms import Always
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.engine.rows import Row
    from tether.optimizer import Optimizer

__all__ = ["Plan", "in_numbers", "leave", "plan", "step"]

CHOSEN = ("word", "on", "metric", "rhythm", "seed", "stopped", "normalised")
SYMBOLS = ("h", *values.SYMBOLS[1:])


class Planned(NamedTuple):
    """A row: its group, what a step does to it, and its bodies. The graph is guarded by the fields that are numbers."""

    group: dict[str, Any]
    updates: tuple[Any, ...]
    free: list[Block]
    bound: list[Moving]
    places: list[dict[tuple[str, int], tuple[int, int]]]  # of the normals of each body, by target and draw
    symbols: tuple[str, ...]  # of fields that are tensors, and h
    fixed: dict[str, Any]  # the other fields, on which the plan depends
    decay: Any
    before: torch.Tensor  # the step size before, and ξ: tensors of one number
    ξ: torch.Tensor | None


class Plan(NamedTuple):
    """A step: its parts, the step number, and how many steps had a gradient that is not finite."""

    parts: list[Planned]
    drawn: list[Drawn]
    step: torch.Tensor
    bad: torch.Tensor


def plan(opt: Optimizer) -> Plan | None:
    """The plan of the next steps; None where they cannot be traced. Only step numbers and ξ change their form."""
    if opt.replicas or opt.reference or opt.awakened or opt.released or not opt.rows:
        return None
    for row in opt.rows:
        row.read()
    if not all(traceable(row) for row in opt.rows):
        return None
    for row in opt.rows:
        row.begin(True)
    updates = [updates_of(row) for row in opt.rows]
    if None in updates or not all(row.bodies and all(map(complete, row.bodies)) for row in opt.rows):
        return None
    device = opt.rows[0].bodies[0].device
    before = opt.plan
    number = opt.rows[0].group["step"]
    step = number if isinstance(number, torch.Tensor) else torch.tensor(number, device=device)
    bad = torch.zeros((), dtype=torch.int64, device=device) if before is None else before.bad
    wanted = Wanted()
    parts = [part_of(row, step, own or (), wanted) for row, own in zip(opt.rows, updates, strict=True)]
    return Plan(parts, wanted.drawn(), step, bad)


def traceable(row: Row) -> bool:
    """Has the part one gradient for a step, no metric, rhythm or field of entries, a surface that looks at nothing?"""
    plain = row.rhythm == Always() and row.metric is None and not row.word.needs_closure
    looks = isinstance(row.surface, Surface) and row.surface.looks
    return plain and not looks and not row.group["stopped"] and not row.entries


def complete(body: Block | Moving) -> bool:
    """Have all of its tensors a gradient?"""
    return body.complete if isinstance(body, Block) else body.every and bool(body.grads)


def symbolic(row: Row) -> tuple[str, ...]:
    """The fields that are tensors, by their symbols, and h."""
    named = zip(SYMBOLS, NUMERIC, strict=True)
    return tuple(s for s, name in named if s == "h" or isinstance(row.group[name], torch.Tensor))


def updates_of(row: Row) -> tuple[Any, ...] | None:
    """The word as updates whose coefficients are formulas; None where a letter is not linear."""
    scalars = {**row.scalars, **{s: Formula(s) for s in symbolic(row)}}
    if row.group["normalised"] and isinstance(scalars["ε"], Formula):
        scalars["ε"] = scalars["ε"] / scalars["N"]
    times = Formula("h′"), Formula("h")
    pieces = compose(row.word.program, times, scalars, 0, isinstance(row.surface, Surface), False).pieces
    return pieces[0].updates if len(pieces) == 1 and isinstance(pieces[0], Program) else None


def part_of(row: Row, step: torch.Tensor, updates: tuple[Any, ...], wanted: Wanted) -> Planned:
    """A row as part of a plan."""
    group, device = row.group, step.device
    group["step"] = step
    before, ξ = held(group, "previous_lr", device), None
    if "ξ" in row.word.needs:
        ξ = held(group, "thermostat", device)
    free = [body for body in row.bodies if isinstance(body, Block)]
    bound = [body for body in row.bodies if isinstance(body, Moving)]
    bodies: list[Block | Moving] = [*free, *bound]
    places = [wanted.add(body, group["seed"], updates) for body in bodies]
    symbols = symbolic(row)
    names = [name for s, name in zip(SYMBOLS, NUMERIC, strict=True) if s not in symbols]
    fixed = {name: group[name] for name in (*names, *CHOSEN)}
    return Planned(group, updates, free, bound, places, symbols, fixed, row.values["ω"], before, ξ)


def held(group: dict[str, Any], field: str, device: torch.device) -> torch.Tensor:
    """A field as a tensor of one number, with the field as its view.

    AOTAutograd of torch 2.13 takes a float64 tensor without dimensions for a constant, and drops what is written to it.
    """
    found = torch.as_tensor(group[field], dtype=host.wide(device), device=device).reshape(1).clone()
    group[field] = found[0]
    return found


def leave(opt: Optimizer) -> int:
    """Plain numbers again, for a step that is not traced; returns how many steps had a bad gradient."""
    if opt.plan is None:
        return 0
    for group in opt.param_groups:
        group.update(in_numbers(group))
    missed, opt.plan = int(opt.plan.bad), None
    opt.missed = opt.missed + missed
    opt.clock.step = opt.param_groups[0]["step"]
    return missed


def in_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """The step number and the step size before as numbers."""
    before = group["previous_lr"]
    one = isinstance(before, torch.Tensor) and not before.dim()
    return {"step": int(group["step"]), "previous_lr": float(before) if one else before}


# inside the graph


def step(plan: Plan) -> None:
    """Move every part once."""
    normals = [each.normals(plan.step) for each in plan.drawn]
    moved = [moving(part, normals, plan.step.device) for part in plan.parts]
    flags = [x.isfinite().all() for each, _, _ in moved for x in [body.g for body in each]]
    bad = ~torch.stack([flag.to(plan.bad.device) for flag in flags]).all()
    stand = bad
    for part, (bodies, ξ, h) in zip(plan.parts, moved, strict=True):
        still = bad | (h == 0)  # a step of no length moves nothing
        for body in bodies:
            body.land(still)
        if part.ξ is not None:
            part.ξ.copy_(kept(still, part.ξ, ξ))
        part.before.copy_(kept(still, part.before, h))
        stand = still if part is plan.parts[0] else stand & still
    plan.step.add_(torch.where(stand, 0, 1))
    plan.bad.add_(torch.where(bad, 1, 0))


def moving(
    part: Planned, normals: list[list[torch.Tensor]], device: torch.device
) -> tuple[list[Any], Any, torch.Tensor]:
    """The bodies of a part after its word, ξ, and h."""
    group, wide = part.group, host.wide(device)
    known: dict[str, Any] = {"h′": part.before[0]}
    for field, value in part.fixed.items():  # what is looked at here guards the graph: a change makes a new one
        assert group[field] == value
    for s, field in zip(SYMBOLS, NUMERIC, strict=True):
        if s in part.symbols:
            value = group[field]  # as_tensor would make a float part of the graph; a sum takes it as an input
            zero = torch.zeros((), dtype=wide, device=device)
            known[s] = value.to(zero) if isinstance(value, torch.Tensor) else zero + value
    ω = known.get("ω", part.decay)
    drawn = [{key: normals[i][j] for key, (i, j) in places.items()} for places in part.places]
    bodies: list[Any] = [FreeBody(body, R, ω) for body, R in zip(part.free, drawn, strict=False)]
    bodies += [BoundBody(body, R, ω) for body, R in zip(part.bound, drawn[len(part.free) :], strict=True)]
    ξ: Any = 0.0 if part.ξ is None else part.ξ[0]
    for symbol, terms, draw in part.updates:
        if isinstance(terms, Formula):
            squares = [body.square().to(ξ) for body in bodies] if "p2" in terms.steps else [0.0]
            ξ = terms.at(ξ, sum(squares[1:], squares[0]), known)
            continue
        numbers = {s: worked_out(c, ξ, 0.0, known) for s, c in terms.items()}
        for body in bodies:
            body.update(symbol, numbers, draw)
    return bodies, ξ, known["h"]


class FreeBody:
    """The tensors of a block, as they lie in its flat momenta."""

    def __init__(self, body: Block, drawn: dict[tuple[str, int], torch.Tensor], ω: Any) -> None:
        self.body = body
        grads = [param.grad for param in body.params]
        self.θ, self.g = self.side_by_side(body.params), self.side_by_side(grads)
        if isinstance(ω, torch.Tensor) or ω != 0:
            self.g = self.g + ω * self.θ
        p = [] if body.flat is None else [body.flat]
        self.flat = Flat([self.θ], p, [self.g], 1, lambda draw: drawn["", draw].unsqueeze(0), list)
        self.update = self.flat.update

    def side_by_side(self, tensors: Any) -> torch.Tensor:
        """Tensors as one, each with the gap behind it."""
        body = self.body
        ends = [*body.offsets[1:], body.total]
        found = []
        for x, start, end, size in zip(tensors, body.offsets, ends, body.sizes, strict=True):
            flat = x.detach().to(body.dtype).reshape(-1)
            found.append(torch.nn.functional.pad(flat, (0, end - start - size)))
        return torch.cat(found)

    def square(self) -> torch.Tensor:
        return self.flat.square(False)

    def land(self, bad: torch.Tensor) -> None:
        """Write what has become of the tensors, unless a gradient is bad."""
        body, values = self.body, self.flat.values
        new = kept(bad, self.θ, values["θ"][0])
        torch._foreach_copy_(body.params, body.views(new))
        if body.flat is not None:
            body.flat.copy_(kept(bad, body.flat, values["p"][0]))


class BoundBody:
    """A stack on its surface."""

    def __init__(self, body: Moving, drawn: dict[tuple[str, int], torch.Tensor], ω: Any) -> None:
        self.body, self.drawn = body, drawn
        surface = body.surface
        self.θ = body.gather(body.params)
        self.g = body.gather([x.grad for x in body.params if x.grad is not None])
        if isinstance(ω, torch.Tensor) or ω != 0:
            self.g = self.g + ω * self.θ
        x = surface.follow(self.θ, body.q, body.eps) if surface.slack else surface.lift(self.θ)
        self.carried = Carried(surface, x, body.p, surface.lift(self.g), None, 1, self.noise)
        self.update = self.carried.update

    def noise(self, target: str, draw: int) -> torch.Tensor:
        body = self.body
        R = self.drawn[target, draw].view(body.shapes[target])
        return R if body.surface.slack else body.surface.lift(R)

    def square(self) -> torch.Tensor:
        self.carried.tighten()
        assert self.carried.m is not None
        return self.carried.m.square().sum()

    def land(self, bad: torch.Tensor) -> None:
        """Write points, momenta and parameters, unless a gradient is bad."""
        body, carried = self.body, self.carried
        carried.tighten()
        values = kept(bad, self.θ, body.surface.lower(carried.x, body.shape))
        pairs = list(zip(body.params, values, strict=True))
        if body.surface.slack:
            pairs.append((body.q, kept(bad, body.q, carried.x)))
        if body.p is not None and carried.m is not None:
            pairs.append((body.p, kept(bad, body.p, carried.m)))
        put([target for target, _ in pairs], [value for _, value in pairs])


@torch.library.custom_op("tether::put", mutates_args=["to"], schema="(Tensor(a!)[] to, Tensor[] values) -> ()")
def put(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """A fused copy that inductor leaves as it is.

    Inductor of torch 2.13 raises KeyError where it fuses the loop over rows that reads a tensor with the write to it:
    it takes the write, which only has to wait for the reading, for one more reader.
    """
    torch._foreach_copy_(to, values)
