"""A step: plan every row, then commit.

All checks and all that may fail come first, into buffers. Then everything is written in one go. Whatever is raised, an
interrupt included, parameters and state are those before the step or those after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import Write, commit, write
from tether.engine.gradients import NonFiniteGradient, faulty_gradients, faulty_replicas
from tether.engine.rows import Row
from tether.engine.values import noisy
from tether.rhythms.waiting import give_back, wait

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["set_clock", "step"]

Closure = Callable[[], Any]
Undo = Callable[[Callable[[torch.Tensor], bool]], list[Write]]  # of the parameters that it is true of


def step(opt: Optimizer, closure: Closure | None) -> Any:
    """Move every part once; returns what the closure returns."""
    rows = opt.rows
    for row in rows:
        row.read()
    if opt.awakened or opt.released or opt.alone:
        settle_first(opt)
    if any(row.word.needs_closure for row in rows):
        return in_stages(opt, closure)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    resting = usable(opt)
    if resting is not None:
        for row in rows:
            row.begin(True, resting)
        commit(planned(opt, resting))
    return loss


def settle_first(opt: Optimizer) -> None:
    """Refuse a step at the wrong moment; take up a rhythm that was let go, before a closure sees the weights."""
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


def usable(opt: Optimizer) -> Sequence[int] | None:
    """The replicas that rest in this step, for good or for a gradient that is not finite; None skips the step."""
    found = {} if opt.finite else faulty_gradients(opt.param_groups)
    opt.finite = False
    resting: Sequence[int] = opt.param_groups[0]["stopped"] if opt.param_groups else ()
    if not found:
        return resting
    faulty = faulty_replicas(opt.param_groups) if opt.replicas else []
    if (faulty or not opt.replicas) and opt.on_nonfinite == "raise":
        raise NonFiniteGradient(found, faulty)
    opt.skipped += bool(faulty) or not opt.replicas
    return [*resting, *faulty] if opt.replicas else None


def planned(opt: Optimizer, resting: Sequence[int]) -> list[Write]:
    """All writes of a step."""
    moving = [row for row in opt.rows if not row.still]
    if not moving:
        return []  # nothing moves and nothing counts: distributed checkpointing steps like this to make the state
    measure(opt, moving)
    back = held_back(moving, resting) if resting else []
    writes = [one for row in moving for one in row.plan()]
    return [*writes, *back, *counted(opt)]


def measure(opt: Optimizer, moving: Sequence[Row]) -> None:
    """Let parts with a metric take this step in it; equal metrics look at the network once."""
    found: dict[Any, Any] = {}
    for row in moving:
        if row.metric is not None and row.bodies:
            assert opt.model is not None
            if row.metric not in found:
                found[row.metric] = row.metric.measure(opt.model)
            row.enter(found[row.metric])


def held_back(rows: Sequence[Row], resting: Sequence[int]) -> list[Write]:
    """Writes, to come after all others, that let the replicas that rest be what they were."""
    index = torch.tensor(list(resting))
    back: list[Write] = []
    for row in rows:
        for x in row.tensors():
            at = index.to(x.device)
            back.append(write(x.index_copy_, 0, at, x.detach()[at]))
    return back


def counted(opt: Optimizer) -> list[Write]:
    """One step more for every part and the clock; only what is due at the next step asks for gradients."""
    writes = [row.counted() for row in opt.rows]
    now = opt.rows[0].group["step"] + 1
    writes.append(write(setattr, opt.clock, "step", now))
    for row in opt.rows:
        if row.rhythm.every > 1:
            due = row.rhythm.due(now)
            for param in row.slow():
                writes += [write(setattr, param, "requires_grad", due), write(setattr, param, "waits", not due)]
    return writes


def set_clock(opt: Optimizer) -> None:
    """Let only what is due at the next step ask for gradients: the backward pass stops where nothing is."""
    for row in opt.rows:
        if row.rhythm.every > 1:
            (give_back if row.rhythm.due(row.group["step"]) else wait)(row.slow())


def in_stages(opt: Optimizer, closure: Closure | None) -> Any:
    """Run the words as written, all parts together, with a fresh gradient before each stage."""
    rows = opt.rows
    if all(row.still for row in rows):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for row in rows:
            row.begin(True)
        return loss
    if closure is None:
        word = next(row.word for row in rows if row.word.needs_closure)
        raise RuntimeError(
            f"the word {word.text!r} takes {len(word.stages) - 1} gradients per step: call opt.step(closure) with "
            "a closure that calls opt.zero_grad(), computes the loss, calls loss.backward() and returns the loss"
        )
    undo, done = snapshot(rows), list[bool]()
    try:
        return stages(opt, closure, undo, done)
    except BaseException:
        if not done:
            with torch.no_grad():  # wherever it came from
                commit(undo(lambda param: True))
        raise


def stages(opt: Optimizer, closure: Closure, undo: Undo, done: list[bool]) -> Any:
    """The stages of a step: a gradient is taken at what the stage before has written. The last one marks it `done`."""
    rows, loss = opt.rows, None
    draws = [0] * len(rows)
    kicked: set[torch.Tensor] = set()
    count = max(len(row.word.stages) for row in rows)
    back: list[Write] = []
    for stage in range(count):
        resting: Sequence[int] = opt.param_groups[0]["stopped"]
        if stage:
            with torch.enable_grad():
                value = closure()
            loss = value if stage == 1 else loss
            found = usable(opt)
            if found is None:
                commit(undo(lambda param: True))
                return loss
            resting = found
        writes: list[Write] = []
        for row in rows:
            row.begin(stage > 0, resting)
        back = back or (held_back(rows, resting) if resting else [])
        for i, row in enumerate(rows):
            if stage == 1 and "g0" in row.word.needs:
                for body in row.bodies:
                    body.remember_gradient()
            if stage < len(row.word.stages) and not row.still:
                row.values["ξ"] = row.scalars["ξ"] = row.group["thermostat"]
                draws[i] = row.play(row.word.stages[stage], draw=draws[i])
                writes += row.writes()
        if stage:
            kicked.update(x for row in rows for x in row.group["params"] if x.grad is not None)
        if stage == count - 1:  # what drifted before the first kick and then got none goes back
            writes += [*undo(lambda param: param not in kicked), *back, *counted(opt), write(done.append, True)]
        commit(writes)
    return loss


def snapshot(rows: Sequence[Row]) -> Undo:
    """Copies of all that a step changes; returns what makes of some parameters and their state what they were."""
    saved = []
    for row in rows:
        for param in row.group["params"]:
            own = {key: x.clone() for key, x in row.state.get(param, {}).items()}
            saved.append((row, param, param.detach().clone(), own))
    thermostats = [(row.group, row.group["thermostat"]) for row in rows]

    def undo(of: Callable[[torch.Tensor], bool]) -> list[Write]:
        writes: list[Write] = []
        chosen = [entry for entry in saved if of(entry[1])]
        for row, param, value, own in chosen:
            writes.append(write(param.copy_, value))
            for key, x in row.state.get(param, {}).items():
                if key in own:
                    writes.append(write(x.copy_, own[key]))
                elif key == "momentum":  # made by this step: at rest
                    writes.append(write(x.zero_))
        if len(chosen) == len(saved):
            writes += [write(group.__setitem__, "thermostat", ξ) for group, ξ in thermostats]
        return writes

    return undo
