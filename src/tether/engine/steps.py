"""A step: plan every row, then commit.

All checks and all that may fail come first, into buffers. Then everything is written in one go. Whatever is raised, an
interrupt included, parameters and state are those before the step or those after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch

from tether import native
from tether.engine import host
from tether.engine.alike import as_one
from tether.engine.commit import Write, commit, write
from tether.engine.gradients import NonFiniteGradient, faulty_gradients, faulty_replicas
from tether.engine.pieces import Ranks
from tether.engine.rows import Row
from tether.engine.traced import in_numbers, leave
from tether.engine.values import noisy
from tether.engine.verdict import Verdict
from tether.rhythms import Rhythm
from tether.rhythms.waiting import give_back, wait

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["at_once", "counted", "held_back", "set_clock", "settle_first", "usable"]

Closure = Callable[[], Any]


def at_once(opt: Optimizer, closure: Closure | None) -> Any:
    """Move every part once by one gradient; returns what the closure returns."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    resting = usable(opt, wait=False)
    if resting is not None:
        rows = as_one(opt)
        for row in rows:
            row.begin(True, resting, opt.bad)
        commit(planned(opt, rows, resting))
    return loss


def settle_first(opt: Optimizer) -> None:
    """Refuse a step at the wrong moment; take up a rhythm that was let go, before a closure sees the weights."""
    missed = leave(opt)
    if missed and opt.on_nonfinite == "raise":
        raise NonFiniteGradient({"?": f"in {missed} compiled steps, which do not tell where"})
    if opt.verdict is not None:
        verdict, opt.verdict = opt.verdict, None
        if verdict.found():
            take_back(opt, verdict.counts)
            if opt.on_nonfinite == "raise":
                raise verdict.error()
    if opt.awakened:
        raise RuntimeError("a step inside opt.awake() would move weights that sleep: leave the block first")
    if opt.released:
        commit([one for row in opt.rows for one in row.rhythm.lie_down(row)])
        opt.released = False
    if opt.alone and torch._C._current_graph_task_id() != -1 and any(noisy(row.word, row.values) for row in opt.rows):
        raise RuntimeError(
            "a step in the backward pass by an optimizer of one parameter without a name: all such parameters "
            "would get the same noise; name it, Optimizer([(name, param)], ...)"
        )


def usable(opt: Optimizer, wait: bool = True) -> Sequence[int] | None:
    """The replicas that rest in this step, for good or for a gradient that is not finite; None skips the step.

    Gradients on an accelerator are judged there, and `opt.bad` is the answer, unless the step must `wait` for it.
    """
    if opt.ranks is not None:
        if wait or host.reads(opt.ranks.device):
            return opt.ranks.usable(opt)
        judge(opt)
        return ()
    groups = opt.param_groups
    grads = [x.grad for group in groups for x in group["params"] if x.grad is not None]
    fine = opt.finite or not grads or native.finite(grads)
    opt.finite, opt.bad = False, None
    resting: Sequence[int] = groups[0]["stopped"] if groups else ()
    if fine is None and not wait and not any(host.reads(grad.device) for grad in grads):
        judge(opt)
        return resting
    found = {} if fine else faulty_gradients(groups)
    if not found:
        return resting
    faulty = faulty_replicas(opt.param_groups) if opt.replicas else []
    if (faulty or not opt.replicas) and opt.on_nonfinite == "raise":
        raise NonFiniteGradient(found, faulty)
    opt.missed = opt.missed + (bool(faulty) or not opt.replicas)
    return [*resting, *faulty] if opt.replicas else None


def judge(opt: Optimizer) -> None:
    """Let the device decide whether the gradients are finite: nobody waits for the answer before the next step."""
    verdict = Verdict(opt.param_groups, opt.lanes.rows if opt.replicas else 0)
    if opt.ranks is not None:
        verdict.bad = opt.ranks.worst(verdict.bad.float()) > 0
    skip = opt.on_nonfinite == "skip"
    opt.bad = verdict.bad.any() if opt.replicas and not skip else verdict.bad
    if skip:
        opt.missed = opt.missed + verdict.bad.any()
    if not (skip and opt.replicas):  # then the other replicas have moved, and the step counts
        opt.verdict = verdict.sent()
        if opt.verdict is not None:
            opt.verdict.counts = [in_numbers(group) for group in opt.param_groups]


def take_back(opt: Optimizer, counts: Sequence[dict[str, Any]]) -> None:
    """The last step moved nothing: let it not have been counted, and the rhythms be where they were."""
    for row, before in zip(opt.rows, counts, strict=True):
        row.group.update(before)
    opt.clock.step = opt.rows[0].group["step"]
    for row in opt.rows:
        if not opt.released:
            commit(row.rhythm.rise(row))
            commit(row.rhythm.lie_down(row))
    set_clock(opt)


def planned(opt: Optimizer, rows: Sequence[Row], resting: Sequence[int]) -> list[Write]:
    """All writes of a step."""
    moving = [row for row in rows if not row.still]
    if not moving:
        return []  # nothing moves and nothing counts: distributed checkpointing steps like this to make the state
    found: dict[Any, Any] = {}
    for row in moving:
        if row.metric is not None and row.bodies:
            measure(opt, row, found)
    back = held_back(moving, resting) if resting else []
    played = in_step(opt.ranks, moving) if opt.ranks is not None else ()
    writes: list[Write] = []
    for row in moving:
        if row.bodies:
            writes += row.writes() if row in played else row.rhythm.plan(row)
    return [*writes, *back, *counted(opt)]


def in_step(ranks: Ranks, rows: Sequence[Row]) -> list[Row]:
    """Let all rows with a thermostat plan their words side by side, so that one message carries pᵀp of all of them."""
    chosen = [row for row in rows if row.bodies and "ξ" in row.word.needs and type(row.rhythm).plan is Rhythm.plan]
    turns = [row.in_turn(row.rhythm.beats(row)) for row in chosen]
    known: list[Any] = [None] * len(turns)
    while turns:
        asked = []
        for turn, p2 in zip(turns, known, strict=True):
            with suppress(StopIteration):
                asked.append((turn, turn.send(p2)))
        turns = [turn for turn, _ in asked]
        known = list(ranks.total(torch.stack([p2.double() for _, p2 in asked]))) if asked else []
    return chosen


def measure(opt: Optimizer, row: Row, found: dict[Any, Any]) -> None:
    """Let a part with a metric take this step in it; equal metrics look at the network once."""
    assert row.metric is not None
    if row.metric not in found:
        found[row.metric] = {} if opt.model is None else row.metric.measure(opt.model)
    row.enter(found[row.metric])


def held_back(rows: Sequence[Row], resting: Sequence[int]) -> list[Write]:
    """Writes, to come after all others, that let the replicas that rest be what they were."""
    back: list[Write] = []
    for row in rows:
        for x in row.tensors():
            at = host.indices(resting, x.device)
            back.append(write(x.index_copy_, 0, at, x.detach()[at]))
    return back


def counted(opt: Optimizer) -> list[Write]:
    """One step more for every part and the clock; only what is due at the next step asks for gradients."""
    now = opt.rows[0].group["step"] + 1
    writes: list[Write] = [write(setattr, opt.clock, "step", now)]
    equal: defaultdict[float, list[dict[str, Any]]] = defaultdict(list)  # groups by their lr: one write for all
    for row in opt.rows:
        lr = row.values["lr"]
        if type(lr) is float and lr:
            equal[lr].append(row.group)
        else:
            before = row.group["previous_lr"]
            before = torch.where(lr == 0, before, lr) if isinstance(lr, torch.Tensor) else lr or before
            writes.append(write(row.group.update, {"step": now, "previous_lr": before}))
        if row.rhythm.every > 1:
            due = row.rhythm.due(now)
            for param in row.slow():
                writes += [write(setattr, param, "requires_grad", due), write(setattr, param, "waits", not due)]
    for lr, groups in equal.items():
        writes.append(write(list, map(dict.update, groups, repeat({"step": now, "previous_lr": lr}))))
    return writes


def set_clock(opt: Optimizer) -> None:
    """Let only what is due at the next step ask for gradients: the backward pass stops where nothing is."""
    for row in opt.rows:
        if row.rhythm.every > 1:
            (give_back if row.rhythm.due(row.group["step"]) else wait)(row.slow())
