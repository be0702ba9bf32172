"""A run: model, optimizer, data and loss, ready to step."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from tether.ensemble.hooks import hooked_anywhere, hooked_step
from tether.ensemble.losses import LOSSES, Loss, checked_loss, enough_classes, fitted, mean_losses, one_loss
from tether.ensemble.perceptrons import Perceptrons
from tether.ensemble.replicas import Replicas
from tether.loop.generators import restore, states
from tether.loop.minibatches import Minibatches
from tether.loop.ready import ReadyMade
from tether.loop.record import Log
from tether.optimizer import NonFiniteEnergy, NonFiniteGradient, Optimizer

__all__ = ["Penalty", "Run"]

Penalty = Callable[[torch.nn.Module], torch.Tensor]


class Run:
    """One run of `train`, without its records, checkpoints and callbacks."""

    def __init__(
        self,
        model: torch.nn.Module,
        opt: torch.optim.Optimizer,
        data: Any,
        loss: Loss,
        batch: int | None,
        replacement: bool,
        order: str,
        each: bool,
        seed: int,
        compiled: bool,
        resumable: bool,
        penalty: Penalty | None = None,
    ) -> None:
        self.model, self.opt, self.loss, self.data = model, opt, checked_loss(loss), data
        self.penalty = _checked_penalty(penalty)
        self.many = isinstance(model, Replicas)
        self.n = len(model) if isinstance(model, Replicas) else 1
        self.each = each
        self.stream: Minibatches | None = None
        self.ready: ReadyMade | None = None
        self.perceptrons: Perceptrons | None = None
        _check_parameters(model, opt)
        if each and not self.many:
            raise ValueError("each=True gives every replica data of its own: the model must be tether.Replicas")
        if data is None and batch is not None:
            raise ValueError("there are no points to take a batch of: data=None is for a loss of the model alone")
        if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(d, torch.Tensor) for d in data):
            self._cut(data[0], data[1], batch, (seed, replacement, order), compiled)
        elif data is not None:
            if batch is not None:
                raise ValueError("batch= cuts tensors: data that come in batches already are taken as they are")
            if order != "shuffled":
                raise ValueError(
                    f"order={order!r} is of minibatches of tensors: data that come in batches have their own"
                )
            self.ready = ReadyMade(data, resumable)
        moved = {id(p) for group in opt.param_groups for p in group["params"]}
        self.tested = isinstance(opt, Optimizer) and any(row.rhythm.tested for row in opt.rows)
        self.trusted = isinstance(opt, Optimizer) and moved == {id(p) for p in model.parameters()}
        self.look()

    def _cut(
        self, x: torch.Tensor, y: torch.Tensor, batch: int | None, how: tuple[int, bool, str], compiled: bool
    ) -> None:
        """Set up minibatches of tensors, and compiled gradients where they are supported."""
        axis = int(self.each)
        if x.dim() <= axis or y.dim() <= axis or y.shape[axis] != x.shape[axis]:
            inputs = x.shape[axis] if x.dim() > axis else "no"
            raise ValueError(f"{inputs} inputs but targets of shape {tuple(y.shape)}: one target for each input")
        known = self.loss in LOSSES and self.loss is not functional.cross_entropy
        if known and not y.is_floating_point():
            y = y.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())
        self.x, self.y = x, y
        first = next(iter(self.model.parameters()))
        lanes = self.model.replicas if isinstance(self.model, Replicas) else getattr(first, "replicas", None)
        self.stream = Minibatches(x.shape[axis], batch, lanes, *how)
        if compiled and self.many:
            wide = y.unsqueeze(-1) if known and y.dim() == 1 + axis else y
            self.perceptrons = Perceptrons.make(self.model, x, wide, self.loss, self.each)
        if self.perceptrons is not None:
            enough_classes(self.loss, (len(x), self.perceptrons.widths[-1]))

    def look(self) -> None:
        """Choose how to compute gradients and how to step: hooks must be called if there are any."""
        self.fast = None if self.perceptrons is None or hooked_anywhere(self.model) else self.perceptrons
        # torch wraps `step` and `zero_grad` for its profiler and for hooks, which costs as much as a few small nets
        plain = type(self.opt).zero_grad is torch.optim.Optimizer.zero_grad and "zero_grad" not in vars(self.opt)
        self.clear: Any = self._clear if plain else self.opt.zero_grad
        self.advance: Any = self.opt.step
        if isinstance(self.opt, Optimizer) and not _watched(self.opt):
            self.advance = self.opt.advance

    def _clear(self) -> None:
        """What torch's `zero_grad` does."""
        for group in self.opt.param_groups:
            for param in group["params"]:
                param.grad = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the model to callbacks, with sleeping weights at their values. Callbacks may change anything."""
        asked = [p.requires_grad for p in self.model.parameters()]
        with getattr(self.opt, "awake", nullcontext)():
            yield
        if asked != [p.requires_grad for p in self.model.parameters()]:
            self.perceptrons = None  # parameters were frozen or unfrozen, which only autograd handles
        self.look()

    def release(self) -> None:
        """Leave the model in its usual state: nothing asleep, and slow parameters require gradients."""
        release = getattr(self.opt, "release", None)
        if release is not None:
            release()

    def state(self) -> dict[str, Any]:
        """What is needed, beside model and optimizer, to get the same batches and random numbers again."""
        return self.ready.state() if self.ready is not None else {"pass": None, "now": states(())}

    def batches(self, first: int, steps: int, saved: dict[str, Any] | None) -> Iterator[tuple[int, Any]]:
        """The remaining steps, each with its batch."""
        if self.ready is not None:
            yield from self.ready.batches(first, steps, saved)
            return
        if saved is not None:
            restore(saved["now"], ())
        for step in range(first, steps):
            yield step, None if self.stream is None else self.stream(step)

    def step(self, step: int, batch: Any, log: Log) -> torch.Tensor:
        """One step of the optimizer; replicas whose loss or gradient is not finite are stopped first."""
        kept: list[torch.Tensor] = []

        def closure() -> torch.Tensor:
            losses = self.gradients(batch).detach()
            kept.append(losses)
            energies = losses if self.penalty is None else losses + self._penalised(self.penalty).to(losses)
            fine = self.fast is not None and self.fast.finite and self.penalty is None
            # a proposal may lead anywhere, and is rejected then
            if not fine and not math.isfinite(energies.sum().item()) and (not self.tested or len(kept) == 1):
                self._judge(energies, step, log)
            return energies if isinstance(self.opt, Optimizer) else energies.sum()  # torch's LBFGS wants one number

        while True:
            kept.clear()
            try:
                self.advance(closure)
                break
            except NonFiniteEnergy:  # of a single model, whose loss has been judged
                break
            except NonFiniteGradient as error:
                self._stop(error.replicas or (0,), step, log, "a gradient that is not finite")
                if len(log.stopped) == self.n:
                    break
        return kept[0]

    def gradients(self, batch: Any) -> torch.Tensor:
        """Losses of all replicas, or the loss of one network, with gradients in place."""
        if self.fast is not None:
            losses = self.fast(batch)
            if self.trusted:
                self.opt.finite = self.fast.finite  # type: ignore[attr-defined]
            return losses
        self.clear()
        with torch.enable_grad():
            losses = self._losses(batch)
            if losses.requires_grad:
                (losses.sum() if self.many else losses).backward()
            elif any(p.requires_grad for p in self.model.parameters()):
                raise ValueError("the loss does not depend on the parameters: is it detached, or made under no_grad?")
        return losses

    def _penalised(self, penalty: Penalty) -> torch.Tensor:
        """The penalties of all replicas, or that of one network, their gradients added to those in place."""
        params = [p for p in self.model.parameters() if p.requires_grad]
        with torch.enable_grad():
            found = penalty(self.model)
            found = self._one_each(found, "penalty") if self.many else one_loss(found)
            slopes = torch.autograd.grad(found.sum(), params, allow_unused=True) if found.requires_grad else ()
        for param, slope in zip(params, slopes, strict=False):
            if slope is not None:
                param.grad = slope if param.grad is None else param.grad.add_(slope)
        if self.fast is not None and self.trusted:
            self.opt.finite = False  # type: ignore[attr-defined]
        return found.detach()

    def _one_each(self, found: torch.Tensor, what: str) -> torch.Tensor:
        found = found.reshape(-1)
        if len(found) != self.n:
            raise ValueError(f"the {what} has {len(found)} values, not one for each of {self.n} replicas")
        return found

    def _losses(self, batch: Any) -> torch.Tensor:
        if self.data is None:
            losses = self.loss(self.model)
            return self._one_each(losses, "loss") if self.many else one_loss(losses)
        if self.stream is None:
            x, y = batch
        elif not self.many:
            x, y = self.x[batch[0]], self.y[batch[0]]
        elif self.each:
            rows = torch.arange(self.n, device=batch.device).unsqueeze(1)
            x, y = self.x[rows, batch], self.y[rows, batch]
        else:
            x, y = self.x[batch], self.y[batch]
        if self.many:
            each = self.stream is not None
            return mean_losses(self.loss, self.model(x, each=each), y, each)
        out = self.model(x)
        return one_loss(self.loss(out, fitted(self.loss, out, y)))

    def _judge(self, losses: torch.Tensor, step: int, log: Log) -> None:
        """Stop the replicas whose loss is not finite."""
        lost = (~losses.isfinite()).reshape(-1).nonzero().flatten().tolist()
        self._stop([i for i in lost if i not in log.stopped], step, log, "a loss that is not finite")

    def _stop(self, replicas: Sequence[int], step: int, log: Log, why: str) -> None:
        """Stop replicas, with a warning."""
        if not replicas:
            return
        log.stopped.update(dict.fromkeys(replicas, step))
        numbers = ", ".join(map(str, replicas))
        what = f"replica {numbers} has {why} at step {step} and is stopped" if self.many else f"{why} at step {step}"
        warnings.warn(f"{what}: lower lr", stacklevel=4)
        if self.many and isinstance(self.opt, Optimizer):
            self.opt.stop(replicas)


def _checked_penalty(penalty: Any) -> Penalty | None:
    if penalty is not None and not callable(penalty):
        raise TypeError(
            f"penalty={penalty!r} must be a function of the model, e.g. penalty=tether.soft(lambda w: w, 0.1)"
        )
    found: Penalty | None = penalty
    return found


def _check_parameters(model: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    """Raise if the optimizer belongs to another model; warn if every parameter is frozen."""
    own = {id(p) for p in model.parameters()}
    moved = [p for group in opt.param_groups for p in group["params"] if id(p) in own]
    if not moved:
        raise ValueError(
            "the optimizer moves no parameter of this model: make it from this one, e.g. tether.methods.sgd(model), "
            "and after model.to(...), which may replace the parameters"
        )
    if not any(p.requires_grad for p in moved):
        warnings.warn(
            "every parameter is frozen, so nothing will move: call model.requires_grad_(True) before the optimizer "
            "is made",
            stacklevel=4,
        )


def _watched(opt: Optimizer) -> bool:
    """Is `step` overridden, wrapped by a scheduler, or hooked?"""
    own = inspect.unwrap(type(opt).step) is inspect.unwrap(Optimizer.step) and "step" not in vars(opt)
    return not own or hooked_step(opt)
