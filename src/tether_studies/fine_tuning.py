"""Fine-tuning by several methods: the same start and batches for all, and their speeds taken by turns.

As is usual when transformers are fine-tuned, and for all methods alike, gradients are clipped to a norm of 1 and step
sizes fall linearly to 0.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import mean_error, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.recipes import Recipe
from tether_studies.study import Claim, Claims, Results, Table

__all__ = ["Method", "Task", "draw", "multirate", "no_loss", "pieces", "sgd", "speed", "table"]

Method = Callable[[float], Recipe]  # by the step size
TURN = 10  # steps at a time
K = 5
SPEED, TRIED = "speed", "tried"


@dataclass(frozen=True)
class Task:
    """A pretrained model with a new head, which is copied, its data, and how it is judged."""

    model: Callable[[int], nn.Module]  # by a seed, as the sets are
    sets: Callable[[int, bool], tuple[list[Any], list[Any]]]  # training and test batches; those held out if True
    loss: Callable[[nn.Module, Any], torch.Tensor]
    right: Callable[[nn.Module, Any], torch.Tensor]  # which of a batch


def sgd(trained: Sequence[str] = ("",)) -> Method:
    """Momentum 0.9 for the parameters whose names begin so; the others are frozen."""
    return lambda h: lambda net, seed: torch.optim.SGD(frozen_but(net, trained), lr=h, momentum=0.9, foreach=True)


def multirate(fast: Sequence[str], drift: bool = True, k: int = K, slow: float | None = None) -> Method:
    """Algorithm 5.1, or 5.2 without drift, with the fast step h/k = `h`; the slow one is `slow` times that, else k."""
    where = "|".join(f"{name}.*" for name in fast)

    def made(net: nn.Module, seed: int, h: float) -> torch.optim.Optimizer:
        opt = tether.methods.multirate_sgd(net, fast=where, k=k, lr=k * h, momentum=0.9, drift=drift)
        if slow is not None:
            for group in opt.param_groups:
                group["lr"] = slow * h if group["every"] > 1 else h
        return opt

    return lambda h: partial(made, h=h)


def frozen_but(model: nn.Module, trained: Iterable[str]) -> list[nn.Parameter]:
    """Let only the named beginnings ask for gradients, and return them."""
    for name, param in model.named_parameters():
        param.requires_grad_(name.startswith(tuple(trained)))
    return [param for param in model.parameters() if param.requires_grad]


def pieces(task: Task, methods: Mapping[str, Method], config: Any, lab: Lab) -> Results:
    """Train every method in every run, each with its step size, and compare their speeds; first try step sizes.

    The config has `sizes`, one for each method, `tried`, `timed` steps and `runs`.
    """
    chosen = {name: methods[name] for name in config.methods}
    sizes = dict(zip(chosen, config.sizes, strict=True))
    tried = {f"{TRIED}, {name}, h={h:g}": chosen[name](h) for name in chosen for h in config.tried}
    seed = lab.named_seed(TRIED)

    def one(name: str, seed: int) -> Results:
        if name == SPEED:
            return by_turns(task, chosen, config.timed, seed)
        return train(task, chosen[name](sizes[name]), seed)

    found = lab.pieces({name: partial(train, task, made, seed, held_out=True) for name, made in tried.items()})
    return found | lab.runs([SPEED, *chosen], config.runs, one)


class Trainee:
    """A copy of a model with its method, and the random numbers of its dropout."""

    def __init__(self, model: nn.Module, made: Recipe, steps: int, seed: int) -> None:
        self.net = copy.deepcopy(model).train()
        self.opt = made(self.net, seed)
        self.fall = LambdaLR(self.opt, lambda n: 1 - n / steps)
        self.draws = torch.Generator().manual_seed(seed).get_state()
        self.seconds = 0.0

    def walk(self, batches: Iterable[Any], loss: Callable[[nn.Module, Any], torch.Tensor]) -> list[float]:
        """A step for each batch, timed; their losses."""
        params, losses = list(self.net.parameters()), []
        torch.set_rng_state(self.draws)
        began = time.process_time()
        for batch in batches:
            self.opt.zero_grad()
            found = loss(self.net, batch)
            found.backward()
            nn.utils.clip_grad_norm_([param for param in params if param.grad is not None], 1.0)
            self.opt.step()
            self.fall.step()
            losses.append(float(found.detach()))
        self.seconds += time.process_time() - began
        self.draws = torch.get_rng_state()
        return losses


def train(task: Task, made: Recipe, seed: int, held_out: bool = False) -> Results:
    """Losses of all batches, and in the end the accuracy in per cent."""
    batches, tests = task.sets(seed, held_out)
    trainee = Trainee(task.model(seed), made, len(batches), seed)
    losses = trainee.walk(batches, task.loss)
    trainee.net.eval()
    with torch.no_grad():
        right = torch.cat([task.right(trainee.net, test) for test in tests])
    return {"losses": losses, "accuracy": 100 * float(right.double().mean())}


def by_turns(task: Task, methods: Mapping[str, Method], timed: int, seed: int) -> Results:
    """Processor seconds of a step, one for each method: a few turns of each, so that a busy machine is fair to all."""
    batches = task.sets(seed, False)[0][:timed]
    model = task.model(seed)
    trainees = [Trainee(model, method(1e-3), len(batches), seed) for method in methods.values()]
    for trainee in trainees:
        trainee.walk(batches[:1], task.loss)
        trainee.seconds = 0.0
    for start in range(0, len(batches), TURN):
        for trainee in trainees:
            trainee.walk(batches[start : start + TURN], task.loss)
    return {"seconds": [trainee.seconds / len(batches) for trainee in trainees]}


def speed(results: Results, methods: Iterable[str]) -> dict[str, np.ndarray]:
    """How many times as fast as the first method, in each run."""
    seconds = results[SPEED]["seconds"]
    return dict(zip(methods, seconds[0] / seconds, strict=True))


def no_loss(results: Results, methods: Iterable[str], ours: str, tests: int, published: tuple[str, str]) -> Claims:
    """The two claims of section 5.4.1: faster than the first method, and as accurate, to an error of one test."""
    times = speed(results, methods)
    a, b = results[ours]["accuracy"], results[next(iter(times))]["accuracy"]
    yield Claim(
        "multirate fine-tuning takes little more than half the time of full fine-tuning",
        published[0],
        f"{plus_minus(times[ours], 2)} times as fast; held from 1.6 on",
        *more(times[ours], np.ones_like(times[ours]), by=0.6),
    )
    within = math.sqrt(b.mean() * (100 - b.mean()) / tests)
    yield Claim(
        "without a loss of test accuracy",
        published[1],
        f"{plus_minus(a, 2)} % against {plus_minus(b, 2)} %; held if not lower by {within:.1f} points, "
        "the error of one test",
        *more(a, b, by=-within, paired=True),
    )


def table(results: Results, methods: Iterable[str], published: Mapping[str, str], caption: str) -> list[Table]:
    """Accuracy and speed of every method, and the accuracies of the step sizes that were tried."""
    rows = []
    for i, (name, times) in enumerate(speed(results, methods).items()):
        milliseconds = f"{1000 * results[SPEED]['seconds'][i].mean():.0f}"
        accuracy = plus_minus(results[name]["accuracy"], 2)
        rows.append([name, accuracy, milliseconds, plus_minus(times, 2), published.get(name, "")])
    made = [Table(["method", "accuracy %", "ms a step", "speed", "thesis, accuracy %"], rows, caption)]
    tried = [
        [*name.split(", ", 1)[1].rsplit(", ", 1), f"{float(one['accuracy']):.2f}"]
        for name, one in results.items()
        if name.startswith(f"{TRIED}, ")
    ]
    return made + ([Table(["method", "step size", "accuracy %, held out"], tried, "Step sizes tried")] if tried else [])


def draw(results: Results, methods: Iterable[str], title: str) -> Any:
    """Loss against time on the way, and accuracy against time in the end."""
    figure, (left, right) = subplots(1, 2, figsize=(9, 3.8))
    for name, seconds in zip(methods, results[SPEED]["seconds"].mean(1), strict=True):
        losses = results[name]["losses"].mean(1)
        width = max(1, len(losses) // 20)
        smooth = losses[: len(losses) // width * width].reshape(-1, width).mean(1)
        (line,) = left.plot(seconds * width * (np.arange(len(smooth)) + 0.5), smooth, label=name)
        mean, error = mean_error(results[name]["accuracy"])
        right.errorbar(seconds * len(losses), mean, error, fmt="o", color=line.get_color(), capsize=3)
    left.set(title=title, xlabel="processor seconds", ylabel="training loss")
    right.set(title="in the end", xlabel="processor seconds", ylabel="test accuracy, %", xlim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
