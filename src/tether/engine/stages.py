"""Stages: a step of words that take several gradients, each where the stage before has led."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.before import Before
from tether.engine.commit import Write, commit, write
from tether.engine.steps import counted, held_back, usable

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["in_stages", "lacking", "standing"]

Closure = Callable[[], Any]


def in_stages(opt: Optimizer, closure: Closure | None) -> Any:
    """Run the words of all parts as written, with a fresh gradient before each stage."""
    rows = opt.rows
    if all(row.still for row in rows):
        return standing(opt, closure)
    if closure is None:
        word = next(row.word for row in rows if row.word.needs_closure)
        raise lacking(word.text, len(word.stages) - 1)
    before, done = Before(rows), list[bool]()
    try:
        return stages(opt, closure, before, done)
    except BaseException:
        if not done:
            with torch.no_grad():  # wherever it came from
                commit(before.everything())
        raise


def standing(opt: Optimizer, closure: Closure | None) -> Any:
    """A step of no length: the closure is called, and the state is made."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for row in opt.rows:
        row.begin(True)
    return loss


def lacking(word: str, gradients: int) -> RuntimeError:
    """What to raise where there is no closure."""
    return RuntimeError(
        f"the word {word!r} takes {gradients} gradients per step: call opt.step(closure) with "
        "a closure that calls opt.zero_grad(), computes the loss, calls loss.backward() and returns the loss"
    )


def stages(opt: Optimizer, closure: Closure, before: Before, done: list[bool]) -> Any:
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
                commit(before.everything())
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
            writes += [*before.of(lambda param: param not in kicked), *back, *counted(opt), write(done.append, True)]
        commit(writes)
    return loss
