"""The loop: minibatches on a named stream, records, checkpoints, for one network or for replicas."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from tether.mlp import LOSSES, Loss, Perceptrons, mean_losses, plain
from tether.noise import Normals, permutations
from tether.optimizer import NonFiniteGradient, Optimizer
from tether.replicas import Replicas

__all__ = ["Minibatches", "Record", "train"]

Callback = Callable[[int, torch.nn.Module, torch.optim.Optimizer], Mapping[str, Any] | None]


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
        loss: mean loss of a batch, ``loss(output, target)``; without data ``loss(model)``, one for each replica.
        steps: how many steps in all; a resumed run makes those that are left.
        batch: points in a minibatch; None takes all.
        log_every: record the minibatch losses every so many steps; None records about a hundred times.
        callbacks: called as ``callback(step, model, opt)`` at every record; what they return, by name, is recorded.
        replacement: draw each minibatch anew from all points instead of going through them epoch by epoch.
        each: the data hold a set for each replica along their first axis.
        seed: names the minibatches; None takes the optimizer's.
        checkpoint: a file; the run is saved there now and then, and goes on from there if it exists: killed at any
            moment and started again, it ends with the same numbers.
        checkpoint_seconds: how often.
        progress: show a progress bar; None does so on a terminal.
        compiled: False takes gradients by autograd also where a compiled path serves: slower, the same to rounding.
    """
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps={steps!r} must be 0 or more")
    if log_every is not None and log_every < 1:
        raise ValueError(f"log_every={log_every!r} must be 1 or more")
    seed = seed if seed is not None else int(opt.param_groups[0].get("seed", 0))
    run = _Run(model, opt, data, loss, batch, replacement, each, seed, compiled)
    every = log_every or max(1, steps // 100)
    record, first = Record(), 0
    path = None if checkpoint is None else Path(checkpoint)
    setting = {"batch": batch, "replacement": replacement, "seed": seed, "log_every": every, "each": each}
    if path is not None and path.exists():
        first, record = _load(path, model, opt, setting)
    was_training = model.training
    model.train()
    bar = _bar(steps, first, sys.stderr.isatty() if progress is None else progress)
    saved = time.monotonic()
    hooks = list(callbacks)
    rows: list[torch.Tensor] = list(record.losses)
    metrics: dict[str, list[torch.Tensor]] = {name: list(values) for name, values in record.metrics.items()}
    try:
        for step, batch_of in run.batches(first, steps):
            losses = run.step(step, batch_of, record)
            if (step + 1) % every == 0 or step + 1 == steps:
                record.steps.append(step + 1)
                rows.append(losses.detach().clone())
                for hook in hooks:
                    for name, value in (hook(step + 1, model, opt) or {}).items():
                        metrics.setdefault(name, []).append(torch.as_tensor(value).detach().clone())
                bar(step + 1, losses)
            if path is not None and (step + 1 == steps or time.monotonic() - saved > checkpoint_seconds):
                _finish(record, rows, metrics)
                _save(path, step + 1, model, opt, record, setting)
                saved = time.monotonic()
            if len(record.stopped) == run.n:
                break
    finally:
        bar(None, None)
        model.train(was_training)
    _finish(record, rows, metrics)
    return record


class _Run:
    """Model, optimizer and data, ready to step."""

    def __init__(
        self,
        model: torch.nn.Module,
        opt: torch.optim.Optimizer,
        data: Any,
        loss: Loss,
        batch: int | None,
        replacement: bool,
        each: bool,
        seed: int,
        compiled: bool,
    ) -> None:
        self.model, self.opt, self.loss = model, opt, plain(loss)
        self.own = isinstance(opt, Optimizer)
        # torch wraps `step` for its profiler and for hooks, which costs as much as moving a few small nets
        watched = "step" in vars(opt) or opt._optimizer_step_pre_hooks or opt._optimizer_step_post_hooks
        self.advance: Any = opt._step if isinstance(opt, Optimizer) and not watched else opt.step
        self.many = isinstance(model, Replicas)
        self.n = len(model) if isinstance(model, Replicas) else 1
        if each and not self.many:
            raise ValueError("each=True gives every replica data of its own: the model must be tether.Replicas")
        self.each, self.stream, self.fast = each, None, None
        self.data = data
        if data is None:
            if batch is not None:
                raise ValueError("there are no points to take a batch of: data=None is for a loss of the model alone")
            return
        if not (isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(d, torch.Tensor) for d in data)):
            if batch is not None:
                raise ValueError("batch= cuts tensors: data that come in batches already are taken as they are")
            return
        x, y = data
        points = x.shape[int(each)]
        if len(y.shape) <= int(each) or y.shape[int(each)] != points:
            raise ValueError(f"{points} inputs but targets of shape {tuple(y.shape)}: one target for each input")
        if self.loss in LOSSES and self.loss is not functional.cross_entropy:
            y = y if y.is_floating_point() else y.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())
            y = y.unsqueeze(-1) if y.dim() == 1 + each else y
        self.x, self.y = x, y
        first = next(iter(model.parameters()))
        lanes = getattr(first, "replicas", None)
        if self.many:
            lanes = model.replicas
        self.stream = Minibatches(points, batch, lanes, seed, replacement)
        if compiled and self.many:
            self.fast = Perceptrons.make(model, x, y, self.loss, each)
        moved = {id(p) for group in opt.param_groups for p in group["params"]}
        self.trusted = self.own and moved == {id(p) for p in model.parameters()}

    def batches(self, first: int, steps: int) -> Iterator[tuple[int, Any]]:
        """The steps that are left, with what each needs."""
        if self.stream is not None or self.data is None:
            for step in range(first, steps):
                yield step, None if self.stream is None else self.stream(step)
            return
        step = 0
        while step < steps:
            before = step
            for pair in self.data:
                if step >= steps:
                    return
                if step >= first:
                    yield step, pair
                step += 1
            if step == before:
                raise ValueError("the data hold no batch")

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
