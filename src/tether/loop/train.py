"""The loop: minibatches, records and checkpoints, for one network or for replicas."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from tether.ensemble.losses import Loss
from tether.loop.identity import differences, facts_of_optimizer, facts_of_run
from tether.loop.minibatches import Minibatches, whole_number
from tether.loop.record import Log, Record
from tether.loop.resume import CURE, check_writable, load_all, read_run, write_run
from tether.loop.run import Penalty, Run

__all__ = ["Minibatches", "Record", "train"]

Callback = Callable[[int, torch.nn.Module, torch.optim.Optimizer], Mapping[str, Any] | None]


def train(
    model: torch.nn.Module,
    opt: torch.optim.Optimizer,
    data: Any,
    loss: Loss = functional.cross_entropy,
    steps: int = 1000,
    batch: int | None = None,
    log_every: int | None = None,
    callbacks: Iterable[Callback] = (),
    *,
    replacement: bool = False,
    order: str = "shuffled",
    each: bool = False,
    seed: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    first: int = 0,
    progress: bool | None = None,
    compiled: bool = True,
    penalty: Penalty | None = None,
) -> Record:
    """Train a network, or all replicas at once, and record its losses.

    >>> from tether import Replicas, data, methods
    >>> net = lambda: torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    >>> ens = Replicas(net, n=10)
    >>> bce = torch.nn.functional.binary_cross_entropy_with_logits
    >>> record = train(ens, methods.sgd(ens, lr=0.1), data.spiral(500), bce, steps=20, batch=25, log_every=10)
    >>> record.steps, record.losses.shape
    ([10, 20], torch.Size([2, 10]))

    Args:
        model: a module, or `Replicas`, each of which sees minibatches of its own.
        opt: its optimizer, tether's or torch's (torch's elementwise ones treat replicas exactly as single nets).
        data: a pair (inputs, targets) of tensors, or an iterable of such pairs as batches, e.g. a DataLoader; None for
            a loss of the model alone.
        loss: mean loss of a batch, ``loss(output, target)``; without data ``loss(model)``, one for each replica. For
            torch's losses that compare number by number, targets take the shape of the output: (N,) and (N, 1) are
            the same. A loss of your own gets them as they are.
        steps: how many steps in all; a resumed run makes those that are left.
        batch: points in a minibatch; None takes all.
        log_every: record the minibatch losses every so many steps; None makes about a hundred records. A resumed run
            keeps the interval of its first part.
        callbacks: called as ``callback(step, model, opt)`` at every record; what they return, by name, is recorded.
            Sleeping weights have their values then.
        replacement: draw each minibatch from all points, instead of a permutation in each epoch.
        order: ``"symmetric"`` goes forth and back through the batches of an epoch before it shuffles them again, which
            lowers the bias of minibatches where h times the steps of an epoch is short against the motion; record or
            sample at the end of such a double epoch, e.g. with ``log_every`` a multiple of its steps.
        each: the first axis of the data is the replica: each has its own set.
        seed: the seed of the minibatches; None takes the optimizer's.
        checkpoint: a file to which the run is saved from time to time. If it exists, the run continues from it: a run
            that was killed and started again ends with the same numbers. `steps` may be larger than at first. Another
            model, optimizer, loss or data set is refused. The generators of torch, numpy and Python are saved too, and
            those that a DataLoader, its sampler or its data set hold as attributes.
        checkpoint_seconds: the time between two checkpoints.
        first: the number of steps that are behind, made by an earlier call. With tensors, ``train(..., steps=100)`` and
            then ``train(..., steps=300, first=100)`` end with the same numbers as 300 steps at once. Change the
            optimizer in between as you like.
        progress: show a progress bar; None does so on a terminal.
        compiled: False always takes gradients by autograd: slower, the same numbers to rounding.
        penalty: a function of the model that is added to the loss, one value for each replica, e.g. `tether.soft`. The
            losses on record are without it.
    """
    steps, first = whole_number("steps", steps), whole_number("first", first)
    if first > steps:
        raise ValueError(f"first={first} steps are behind already, more than steps={steps}: ask for as many or more")
    if first and checkpoint is not None:
        raise ValueError(f"first={first}: a checkpoint knows the steps that are behind; leave out one of the two")
    log_every = None if log_every is None else whole_number("log_every", log_every, 1)
    batch = None if batch is None else whole_number("batch", batch, None)
    seed = whole_number("seed", opt.param_groups[0].get("seed", 0) if seed is None else seed, None)
    path = None if checkpoint is None else Path(checkpoint)
    run = Run(
        *(model, opt, data, loss, batch, replacement, order, each, seed, compiled),
        resumable=path is not None,
        penalty=penalty,
    )
    file: _File | None = None
    record, saved, every = Record(), None, log_every or max(1, (steps - first) // 100)
    if path is not None:
        settings = {"batch": batch, "replacement": replacement, "order": order, "each": each, "seed": seed}
        file = _File(path, model, opt, settings | facts_of_run(model, data, loss, penalty))
        if path.exists():
            first, record, saved, every = file.load(steps, log_every)
    log = Log(record)
    was_training = model.training
    model.train()
    bar = _bar(steps, first, sys.stderr.isatty() if progress is None else progress)
    hooks = list(callbacks)
    written = time.monotonic()
    try:
        for step, batch_of in run.batches(first, steps, saved) if len(log.stopped) < run.n else ():
            losses = run.step(step, batch_of, log)
            over = step + 1 == steps or len(log.stopped) == run.n
            if (step + 1) % every == 0 or step + 1 == steps:
                log.add(step + 1, losses)
                if hooks:
                    with run.shown():
                        for hook in hooks:
                            log.note(step + 1, hook(step + 1, model, opt))
                bar(step + 1, losses)
            if file is not None and (over or time.monotonic() - written > checkpoint_seconds):
                with run.shown():
                    file.save(step + 1, log.record(), run.state(), every)
                written = time.monotonic()
            if over:
                break
    finally:
        bar(None, None)
        model.train(was_training)
        run.release()
    return log.record()


class _File:
    """The checkpoint of a run."""

    def __init__(self, path: Path, model: torch.nn.Module, opt: torch.optim.Optimizer, facts: dict[str, Any]) -> None:
        check_writable(path)
        self.path, self.model, self.opt, self.facts = path, model, opt, facts
        self.begun = facts_of_optimizer(opt)  # before a scheduler changes it

    def save(self, step: int, record: Record, run: dict[str, Any], every: int) -> None:
        """Write the checkpoint. A full disk gives a warning and does not end the run."""
        state = {
            "step": step,
            "model": self.model.state_dict(),
            "optimizer": self.opt.state_dict(),
            "record": vars(record),
            "run": run,
            "log_every": every,
            "facts": self.facts,
            "begun": self.begun,
            "now": facts_of_optimizer(self.opt),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_run(self.path, state)
        except OSError as error:
            warnings.warn(f"{self.path} could not be written at step {step} ({error}): make room for it", stacklevel=3)

    def load(self, steps: int, log_every: int | None) -> tuple[int, Record, dict[str, Any], int]:
        """Continue from the file if it belongs to this run: its step, record, generators and interval of records."""
        state = read_run(self.path)
        if "facts" not in state:
            raise ValueError(f"{self.path} is no checkpoint of a run: {CURE}")
        every = state["log_every"]
        found = differences(self.facts, state["facts"])
        if self.begun != state["now"]:  # the optimizer that made these steps may continue
            found += differences(self.begun, state["begun"])
        if log_every not in (None, every):
            found.append(f"log_every={log_every} instead of {every}")
        if found:
            raise ValueError(
                f"{self.path} is the checkpoint of another run ({', '.join(found)}): remove it, choose another path, "
                "or continue with the settings it began with"
            )
        if state["step"] > steps:
            raise ValueError(
                f"{self.path} has made {state['step']} steps, more than steps={steps}: ask for as many or more, or "
                "choose another path"
            )
        load_all(self.path, state, self.model, self.opt)
        self.begun = state["begun"]
        return state["step"], Record(**state["record"]), state["run"], every


def _bar(steps: int, first: int, show: bool) -> Callable[[int | None, torch.Tensor | None], None]:
    """A progress bar, if rich is installed and it should be shown."""
    if not show:
        return lambda step, losses: None
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return lambda step, losses: None
    columns = (TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), transient=True)
    task = bar.add_task("", total=steps, completed=first)
    bar.start()

    def show_step(step: int | None, losses: torch.Tensor | None) -> None:
        if step is None or losses is None:
            bar.stop()
        else:
            bar.update(task, completed=step, description=f"loss {float(losses.nanmean()):.4g}")

    return show_step
