"""Losses of a network at many states that are mixtures of a few, without repeating what they have in common.

In a chain of layers everything before the first layer that differs is computed once. If that layer is affine, its
outputs are affine in its parameters, Σ_j w_j (W_j x + b_j): they are computed once for each of the few states and
mixed. A ReLU and a Linear layer after it are evaluated at all points of a line at once (`kinks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils._pytree import tree_map

from tether.ensemble.hooks import hooked
from tether.measure import kinks
from tether.measure.batches import Batch, Loss, batches, loss_in, outputs
from tether.measure.states import State, mix, statistics
from tether.measure.untouched import untouched

__all__ = ["CHUNK", "Found", "evaluate"]

CHUNK = 512  # rows, so that activations of a few hundred units stay in the cache
ROOM = 2**28  # bytes of mixed tensors that may be kept from one batch to the next
AFFINE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class Found(NamedTuple):
    """A number for each state."""

    losses: torch.Tensor
    accuracies: torch.Tensor | None


class Stage(NamedTuple):
    """A module of the chain, and where its tensors are in the state."""

    module: nn.Module
    names: dict[str, str]


def evaluate(
    model: nn.Module,
    states: Sequence[State],
    weights: Sequence[Sequence[float]],
    data: Any,
    loss: Loss | None = None,
    *,
    chunk: int | None = CHUNK,
    recalibrate: Any = None,
    fast: bool = True,
) -> Found:
    """Mean losses at the states Σ_j w_j θ_j with Σ_j w_j = 1. Every batch is read once for all states.

    Args:
        model: measured in eval mode, and left as it was.
        states: the θ_j.
        weights: rows of one number for each of them, of sum 1.
        data: as `batches` takes it.
        loss: a mean over rows.
        chunk: rows of a pair to take at a time; None takes all.
        recalibrate: data from which every state gets BatchNorm statistics of its own.
        fast: False runs the whole model at every state.
    """
    with untouched(model), torch.no_grad():
        extra: list[dict[str, torch.Tensor]] = [{} for _ in weights]
        if recalibrate is not None:
            extra = _gather(model, states, weights, batches(recalibrate))
        stages = (_chain(model) if fast and recalibrate is None else None) or [_stage(model)]
        return _Walk(stages, states, weights, extra, batches(data, chunk)).losses(loss)


class _Walk:
    """The stages of a network, split into those that all points have in common and the rest."""

    def __init__(
        self,
        stages: list[Stage],
        states: Sequence[State],
        weights: Sequence[Sequence[float]],
        extra: list[dict[str, torch.Tensor]],
        data: Iterable[Batch],
    ) -> None:
        self.states, self.weights, self.extra, self.data = states, weights, extra, data
        self.moving = {name for name, x in states[0].items() if not all(torch.equal(x, s[name]) for s in states[1:])}
        first = next((k for k, s in enumerate(stages) if self.moving & set(s.names.values())), len(stages))
        if len(stages) == 1:
            first = 0
        self.before, self.rest = stages[:first], stages[first:]
        self.affine = len(stages) > 1 and bool(self.rest) and type(self.rest[0].module) in AFFINE
        again = not (isinstance(data, list) and len(data) == 1)  # will points be visited more than once?
        self.keep = again and len(weights) * sum(states[0][name].nbytes for name in self.moving) <= ROOM
        self.kept: dict[int, list[dict[str, torch.Tensor]]] = {}
        self.room: dict[str, torch.Tensor] = {}  # of tensors that are not kept: fresh memory costs more than the sum
        self.kinked = self.kinks()
        self.bytes_per_row = len(weights) * self.kinked[0][0][0].nbytes if self.kinked else 0

    def losses(self, loss: Loss | None) -> Found:
        """Mean losses at the points, and accuracies."""
        count, points = 0, len(self.weights)
        losses, right = [0.0] * points, [0.0] * points
        judged = True
        for batch in self.data:
            count += batch.rows
            answer = self.answers(batch)
            for p in range(points):
                out = answer(p)
                losses[p] += float(loss_in(out, batch, loss)) * batch.rows
                hits = _hits(out, batch.targets, loss) if judged else None
                judged = hits is not None
                right[p] += hits or 0.0
        found = torch.tensor(losses, dtype=torch.float64) / count
        return Found(found, torch.tensor(right, dtype=torch.float64) / count if judged else None)

    def answers(self, batch: Batch) -> Callable[[int], Any]:
        """The outputs of the network at each point, from those of the common part."""
        args, kwargs = batch.args, batch.kwargs
        if self.before:
            tensors = [{own: self.states[0][name] for own, name in s.names.items()} for s in self.before]
            args, kwargs = (_run(self.before, tensors, *_copy((args, kwargs))),), {}
        if not self.rest:
            return lambda p: args[0]
        if not self.affine:
            return lambda p: _run(self.rest, self.tensors(p), *_copy((args, kwargs)))
        layer, after = self.rest[0], self.rest[1:]
        ends = [
            _call(layer, {own: state[name] for own, name in layer.names.items()}, args, kwargs) for state in self.states
        ]
        if self.kinked and kinks.kernel_suits(ends, len(self.weights)) and len(ends[0]) * self.bytes_per_row <= ROOM:
            behind = kinks.through(ends, *self.kinked, [alpha for _, alpha in self.weights])
            return lambda p: _run(self.rest[3:], self.tensors(p)[3:], (behind[p],), {})

        def answer(p: int) -> Any:
            mixed = mix(ends, self.weights[p])
            if any(mixed is z for z in ends) and after:
                mixed = mixed.clone()  # later stages may work in place
            return _run(after, self.tensors(p)[1:], (mixed,), {})

        return answer

    def kinks(self) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Transposed weights and biases of the Linear layer after the first ReLU; None if `kinks` cannot be used."""
        alphas = [row[-1] for row in self.weights]
        increasing = all(a < b for a, b in pairwise(alphas))
        line = all(len(row) == 2 and abs(row[0] + row[1] - 1) < 1e-12 for row in self.weights)
        kinds = [type(stage.module) for stage in self.rest[:3]]
        if not (self.affine and kinds == [nn.Linear, nn.ReLU, nn.Linear] and increasing and line):
            return None
        names = self.rest[2].names
        turned = [state[names["weight"]].t().contiguous() for state in self.states]
        biases = [state[names["bias"]] for state in self.states if "bias" in names]
        finite = all(bool(bias.isfinite().all()) for bias in biases)
        return (turned, biases) if finite and kinks.kernel_suits(turned, len(alphas)) else None

    def tensors(self, p: int) -> list[dict[str, torch.Tensor]]:
        if p in self.kept:
            return self.kept[p]
        mixed: dict[str, torch.Tensor] = {}
        found = []
        for k, stage in enumerate(self.rest):
            skip = self.affine and k == 0
            found.append({} if skip else {own: self.tensor(name, p, mixed) for own, name in stage.names.items()})
        if self.keep:
            self.kept[p] = found
        return found

    def tensor(self, name: str, p: int, mixed: dict[str, torch.Tensor]) -> torch.Tensor:
        if name in self.extra[p]:
            return self.extra[p][name]
        if name not in self.moving:
            return self.states[0][name]
        if name not in mixed:
            ends = [state[name] for state in self.states]
            mixed[name] = mix(ends, self.weights[p], self.room.get(name))
            if not self.keep and not any(mixed[name] is x for x in ends):
                self.room[name] = mixed[name]
        return mixed[name]


def _chain(model: nn.Module) -> list[Stage] | None:
    """The modules of a Sequential in order, nested ones opened; None for other models, and for those with hooks."""
    if type(model) is not nn.Sequential or any(map(hooked, model.modules())):
        return None
    stages: list[Stage] = []

    def open_up(module: nn.Module, place: str) -> None:
        for name, child in module._modules.items():
            if type(child) is nn.Sequential:
                open_up(child, f"{place}{name}.")
            elif child is not None:
                stages.append(_stage(child, f"{place}{name}."))

    open_up(model, "")
    return stages if len(stages) > 1 else None


def _stage(module: nn.Module, place: str = "") -> Stage:
    return Stage(module, {own: place + own for own, x in module.state_dict().items() if isinstance(x, torch.Tensor)})


def _call(stage: Stage, tensors: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not tensors:
        return stage.module(*args, **kwargs)
    if type(stage.module) is nn.Linear and args:
        return functional.linear(args[0], tensors["weight"], tensors.get("bias"))
    # Every name is given, tied ones too: torch need not look for ties.
    return functional_call(stage.module, dict(tensors), args, dict(kwargs), tie_weights=False)


def _run(
    stages: Sequence[Stage],
    tensors: Sequence[Mapping[str, torch.Tensor]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """One stage after the other; the arguments may be overwritten."""
    for stage, own in zip(stages, tensors, strict=True):
        fresh = args[0].relu_() if type(stage.module) is nn.ReLU and args else _call(stage, own, args, kwargs)
        args, kwargs = (fresh,), {}
    return args[0]


def _copy(tree: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)


def _hits(answer: Any, targets: Any, loss: Loss | None) -> float | None:
    """The number of correct rows of a classifier's output; None if the targets are not classes."""
    if not isinstance(answer, torch.Tensor) and not hasattr(answer, "logits"):
        return None
    out = outputs(answer)
    if not isinstance(targets, torch.Tensor):
        return None
    if out.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point():
        return int((out.argmax(1) == targets).sum())
    binary = loss is functional.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
    if binary and out.shape == targets.shape:
        return float(((out > 0) == (targets > 0.5)).double().mean()) * len(out)
    return None


def _gather(
    model: nn.Module, states: Sequence[State], weights: Sequence[Sequence[float]], data: Any
) -> list[dict[str, torch.Tensor]]:
    """BatchNorm statistics of every state: means over the batches, as BatchNorm computes them in training."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    fresh = {name: torch.ones_like if name.endswith("var") else torch.zeros_like for name in statistics(model)}
    found = [{name: make(states[0][name]) for name, make in fresh.items()} for _ in weights]
    if not fresh:
        return found
    walk = _Walk([_stage(model)], states, weights, found, data)
    momenta = [m.momentum for m in norms]
    try:
        for m in norms:
            m.training, m.momentum = True, None  # None: the mean over all batches
        for batch in data:
            answer = walk.answers(batch)
            for p in range(len(weights)):
                answer(p)
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.training, m.momentum = False, momentum
    return found
