"""Stages: a step of words that take several gradients, each where the stage before has led."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import Write, commit, local, write
from tether.engine.rows import Row
from tether.engine.steps import counted, held_back, usable

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["in_stages"]

Closure = Callable[[], Any]
Undo = Callable[[Callable[[torch.Tensor], bool]], list[Write]]  # of the parameters that it is true of


def in_stages(opt: Optimizer, closure: Closure | None) -> Any:
    """Run the words of all parts as written, with a fresh gradient before each stage."""
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
            own = {key: local(x).clone() for key, x in row.state.get(param, {}).items()}
            saved.append((row, param, local(param).detach().clone(), own))
    thermostats = [(row.group, row.group["thermostat"]) for row in rows]

    def undo(of: Callable[[torch.Tensor], bool]) -> list[Write]:
        writes: list[Write] = []
        chosen = [entry for entry in saved if of(entry[1])]
        for row, param, value, own in chosen:
            writes.append(write(local(param).copy_, value))
            for key, x in row.state.get(param, {}).items():
                if key in own:
                    writes.append(write(local(x).copy_, own[key]))
                elif key == "momentum":  # made by this step: at rest
                    writes.append(write(local(x).zero_))
        if len(chosen) == len(saved):
            writes += [write(group.__setitem__, "thermostat", ξ) for group, ξ in thermostats]
        return writes

    return undo
