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

from tether.identity import differences, facts_of_optimizer, facts_of_run
from tether.losses import Loss
from tether.minibatches import Minibatches, whole
from tether.record import Log, Record
from tether.resume import CURE, check_writable, load_all, read, write
from tether.run import Run

__all__ = ["Minibatches", "Record", "train"]

Callback = Callable[[int, torch.nn.Module, torch.optim.Optimizer], Mapping[str, Any] | None]


<<<<<<< HEAD
=======
@dataclass
class Record:
    """What a run left behind; for replicas every row has a number for each."""

    steps: list[int] = field(default_factory=list)  # after how many steps the rows below were taken
    losses: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # minibatch losses: rows, or rows × replicas
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)  # what the callbacks returned, row by row
    stopped: dict[int, int] = field(default_factory=dict)  # replica → the step at which it diverged

    def __str__(self) -> str:
        if not self.steps:
            return "nothing recorded"
        last = self.losses[-1].flatten()
        spread = f" ± {float(last.std()):.2g}" if len(last) > 1 else ""
        text = f"{self.steps[-1]:,} steps, loss {float(last.mean()):.4g}{spread}"
        return text + (f", stopped: replica {', '.join(map(str, self.stopped))}" if self.stopped else "")


class Minibatches:
    """Which points each replica sees at which step: named by seed, epoch and replica, so that a run can be resumed.

    Without replacement every epoch is a fresh permutation and its last batch may be smaller.
    """

    def __init__(
        self, points: int, batch: int | None, lanes: Sequence[int] | None, seed: int, replacement: bool = False
    ) -> None:
        self.points, self.batch = points, points if batch is None else batch
        self.seed, self.replacement = seed, replacement
        if not 1 <= self.batch <= points:
            raise ValueError(f"batch={batch!r} must be between 1 and the number of points, {points}")
        self.rows = 1 if lanes is None else len(lanes)
        self.lanes, whole = lanes, self.batch * self.rows
        device = torch.device("cpu")
        self.normals = Normals(["minibatches"], [whole], [0], whole, torch.float64, device, self.rows, lanes)
        self.per_epoch = 1 if replacement else -(-points // self.batch)
        self.epoch, self.order = -1, torch.empty(0)
        self.everything = torch.arange(points, device="cpu").expand(self.rows, points).contiguous()

    def __call__(self, step: int) -> torch.Tensor:
        """The points of a step: replicas × batch."""
        if self.batch == self.points and not self.replacement:
            return self.everything
        epoch, k = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            if self.replacement:
                numbers = self.normals.draw(self.seed, epoch, 0).view(self.rows, -1)
                self.order = (torch.special.ndtr(numbers) * self.points).long().clamp_max_(self.points - 1)
            else:
                self.order = permutations(self.points, self.seed, epoch, "minibatches", self.rows, self.lanes)
            self.epoch = epoch
        return self.order[:, k * self.batch : (k + 1) * self.batch]


>>>>>>> native
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
    each: bool = False,
    seed: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
    compiled: bool = True,
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
        log_every: record the minibatch losses every so many steps; None records about a hundred times, and a resumed
            run as often as it began.
        callbacks: called as ``callback(step, model, opt)`` at every record; what they return, by name, is recorded.
            Weights that sleep are awake for them.
        replacement: draw each minibatch anew from all points instead of going through them epoch by epoch.
        each: the data hold a set for each replica along their first axis.
        seed: names the minibatches; None takes the optimizer's.
        checkpoint: a file; the run is saved there now and then, and goes on from there if it exists: killed at any
            moment and started again, it ends with the same numbers, and `steps` may be more than at first. Another
            model, optimizer, loss or data set is refused. The generators of torch, numpy and Python are saved too, and
            those that a DataLoader, its sampler or its data set hold as attributes.
        checkpoint_seconds: how often.
        progress: show a progress bar; None does so on a terminal.
        compiled: False takes gradients by autograd also where a compiled path serves: slower, the same to rounding.
    """
    steps = whole("steps", steps)
    log_every = None if log_every is None else whole("log_every", log_every, 1)
    batch = None if batch is None else whole("batch", batch, None)
    seed = whole("seed", opt.param_groups[0].get("seed", 0) if seed is None else seed, None)
    path = None if checkpoint is None else Path(checkpoint)
    run = Run(model, opt, data, loss, batch, replacement, each, seed, compiled, resumable=path is not None)
    file: _File | None = None
    record, first, saved, every = Record(), 0, None, log_every or max(1, steps // 100)
    if path is not None:
        settings = {"batch": batch, "replacement": replacement, "each": each, "seed": seed}
        file = _File(path, model, opt, settings | facts_of_run(model, data, loss))
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
    """The checkpoint of a run: where, of what, and as it began."""

    def __init__(self, path: Path, model: torch.nn.Module, opt: torch.optim.Optimizer, facts: dict[str, Any]) -> None:
        check_writable(path)
        self.path, self.model, self.opt, self.facts = path, model, opt, facts
        self.begun = facts_of_optimizer(opt)  # before a scheduler has changed it

    def save(self, step: int, record: Record, run: dict[str, Any], every: int) -> None:
        """Write all of it; a disk that is full must not end the run."""
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
            write(self.path, state)
        except OSError as error:
            warnings.warn(f"{self.path} could not be written at step {step} ({error}): make room for it", stacklevel=3)

<<<<<<< HEAD
    def load(self, steps: int, log_every: int | None) -> tuple[int, Record, dict[str, Any], int]:
        """Go on from the file if it is of this run: its step, its record, its generators and its rows' distance."""
        state = read(self.path)
        if "facts" not in state:
            raise ValueError(f"{self.path} is no checkpoint of a run: {CURE}")
        every = state["log_every"]
        found = differences(self.facts, state["facts"])
        if self.begun != state["now"]:  # the very optimizer that has made these steps may go on
            found += differences(self.begun, state["begun"])
        if log_every not in (None, every):
            found.append(f"log_every={log_every} instead of {every}")
        if found:
            raise ValueError(
                f"{self.path} is the checkpoint of another run ({', '.join(found)}): remove it, choose another path, "
                "or go on as it was begun"
            )
        if state["step"] > steps:
            raise ValueError(
                f"{self.path} has made {state['step']} steps, more than steps={steps}: ask for as many or more, or "
                "choose another path"
            )
        load_all(self.path, state, self.model, self.opt)
        self.begun = state["begun"]
        return state["step"], Record(**state["record"]), state["run"], every
=======
    def step(self, step: int, batch: Any, record: Record) -> torch.Tensor:
        """One step of the optimizer; replicas whose loss or gradient is not finite are stopped first."""
        kept: list[torch.Tensor] = []

        def closure() -> torch.Tensor:
            losses = self.gradients(batch)
            kept.append(losses.detach())
            self.judge(losses.detach(), step, record)
            return losses.detach().sum()

        while True:
            try:
                self.advance(closure)
                break
            except NonFiniteGradient as error:
                self.stop(error.replicas or (0,), step, record, "a gradient that is not finite")
                if len(record.stopped) == self.n:
                    break
        return kept[0] if self.many else kept[0].squeeze(0)

    def gradients(self, batch: Any) -> torch.Tensor:
        """Losses of all replicas, with gradients in place."""
        if self.fast is not None:
            losses = self.fast(batch)
            if self.trusted:
                self.opt._known_finite = self.fast.finite  # type: ignore[attr-defined]
            return losses
        self.opt.zero_grad()
        with torch.enable_grad():
            if self.data is None:
                losses = self.loss(self.model).reshape(-1)
                if len(losses) != self.n:
                    raise ValueError(f"the loss has {len(losses)} values, not one for each of {self.n} replicas")
                losses.sum().backward()
                return losses
            if self.stream is None:
                x, y, each = batch[0], batch[1], False
            elif self.many:
                each = True
                if self.each:
                    rows = torch.arange(self.n, device="cpu").unsqueeze(1)
                    x, y = self.x[rows, batch], self.y[rows, batch]
                else:
                    x, y = self.x[batch], self.y[batch]
            else:
                x, y, each = self.x[batch[0]], self.y[batch[0]], False
            if self.many:
                losses = mean_losses(self.loss, self.model(x, each=each), y, each)
            else:
                losses = self.loss(self.model(x), y).unsqueeze(0)
            losses.sum().backward()
        return losses

    def judge(self, losses: torch.Tensor, step: int, record: Record) -> None:
        if not bool(losses.isfinite().all()):
            lost = (~losses.isfinite()).nonzero().flatten().tolist()
            self.stop([i for i in lost if i not in record.stopped], step, record, "a loss that is not finite")

    def stop(self, replicas: Sequence[int], step: int, record: Record, why: str) -> None:
        """Let replicas stand still, and say so."""
        if not replicas:
            return
        record.stopped.update(dict.fromkeys(replicas, step))
        numbers = ", ".join(map(str, replicas))
        what = f"replica {numbers} has {why} at step {step} and is stopped" if self.many else f"{why} at step {step}"
        warnings.warn(f"{what}: lower lr", stacklevel=4)
        if self.many and isinstance(self.opt, Optimizer):
            self.opt.stop(replicas)


def _finish(record: Record, rows: list[torch.Tensor], metrics: dict[str, list[torch.Tensor]]) -> None:
    record.losses = torch.stack(rows) if rows else torch.empty(0)
    record.metrics = {name: torch.stack(values) for name, values in metrics.items()}


def _save(
    path: Path, step: int, model: torch.nn.Module, opt: torch.optim.Optimizer, record: Record, setting: dict[str, Any]
) -> None:
    """Write all of it to a new file and then let that take the old one's place: there is always a whole one."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "record": vars(record),
        "setting": setting,
        "generator": torch.get_rng_state(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(state, fresh)
    fresh.replace(path)


def _load(
    path: Path, model: torch.nn.Module, opt: torch.optim.Optimizer, setting: dict[str, Any]
) -> tuple[int, Record]:
    state = torch.load(path, weights_only=True)
    different = {key: state["setting"].get(key) for key in setting if state["setting"].get(key) != setting[key]}
    if different:
        wanted = ", ".join(f"{key}={setting[key]!r} instead of {value!r}" for key, value in different.items())
        raise ValueError(f"{path} is the checkpoint of another run ({wanted}): remove it, or go on as it was begun")
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["generator"])
    return state["step"], Record(**state["record"])
>>>>>>> native


def _bar(steps: int, first: int, show: bool) -> Callable[[int | None, torch.Tensor | None], None]:
    """A progress bar where rich is installed and somebody looks."""
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
