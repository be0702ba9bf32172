"""Figures 5.4 to 5.6 and Tables 5.1 to 5.3: pretrained networks fine-tuned with their slow layers on a slow clock.

All methods have the same start and batches, and their speeds are taken by turns. As is usual when transformers are
fine-tuned, and for all methods alike, gradients are clipped to a norm of 1 and step sizes fall linearly to 0.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

import tether
from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, Table
from tether_studies.judges import more, no_worse, plus_minus

__all__ = ["FineTuning", "Method", "multirate", "sgd"]

Method = Callable[[float], Recipe]  # by the step size
TURN = 10  # steps at a time
K = 5
SPEED, TRIED = "speed", "tried"
TIMINGS = 6  # the least number of runs that speeds are taken in: they cost little


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


class Trainee:
    """A copy of a model with its method, and the random numbers of its dropout."""

    def __init__(self, model: nn.Module, made: Recipe, steps: int, seed: int, tempered: bool = True) -> None:
        self.net = copy.deepcopy(model).train()
        self.opt = made(self.net, seed)
        self.tempered = tempered  # gradients clipped, step sizes falling to 0
        self.fall = LambdaLR(self.opt, lambda n: 1 - n / steps if tempered else 1.0)
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
            if self.tempered:
                nn.utils.clip_grad_norm_([param for param in params if param.grad is not None], 1.0)
            self.opt.step()
            self.fall.step()
            losses.append(float(found.detach()))
        self.seconds += time.process_time() - began
        self.draws = torch.get_rng_state()
        return losses


class FineTuning(Experiment):
    """A pretrained model with a new head, which is copied, its data, and methods with their step sizes."""

    known: ClassVar[Mapping[str, Method]]  # the first is full fine-tuning, the second ours
    thesis: ClassVar[Mapping[str, str]] = {}  # accuracies
    picture: ClassVar[tuple[str, str]]  # name and title
    runs: int
    methods: tuple[str, ...]
    sizes: tuple[float, ...]  # step sizes at first, one for each method; of multirate h/k
    tried: tuple[float, ...]  # step sizes to try on data held out
    timed: int  # steps, to compare speeds
    tests: Any  # on how many a network is tested
    tempered: bool  # gradients clipped to norm 1, step sizes falling to 0
    last: int  # tests in the end, a fiftieth of the steps apart, whose mean counts

    def model(self, seed: int) -> nn.Module:
        raise NotImplementedError

    def sets(self, seed: int, held_out: bool) -> tuple[list[Any], list[Any]]:
        """Training and test batches; those held out if asked for."""
        raise NotImplementedError

    def out(self, net: nn.Module, batch: Any) -> torch.Tensor:
        return net(batch[0])

    def loss(self, net: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(self.out(net, batch), batch[1])

    def right(self, net: nn.Module, batch: Any) -> torch.Tensor:
        return self.out(net, batch).argmax(1) == batch[1]

    def run(self, lab: Lab) -> Results:
        """Run i of every method has the same start and batches; step sizes are tried first."""
        made = {name: self.known[name](h) for name, h in zip(self.methods, self.sizes, strict=True)}
        tried = {f"{TRIED}, {x}, h={h:g}": self.known[x](h) for x in self.methods for h in self.tried}
        seed = lab.named_seed(TRIED)

        def one(name: str, seed: int) -> Results:
            return self.by_turns(seed) if name == SPEED else self.train(made[name], seed)

        found = lab.each(tried, lambda name: self.train(tried[name], seed, held_out=True))
        return found | lab.runs([SPEED], max(self.runs, TIMINGS), one) | lab.runs(made, self.runs, one)

    def train(self, made: Recipe, seed: int, held_out: bool = False) -> Results:
        """Losses of all batches, and the accuracy in per cent in the end."""
        batches, tests = self.sets(seed, held_out)
        trainee = Trainee(self.model(seed), made, len(batches), seed, self.tempered)
        losses, accuracies, apart = list[float](), list[float](), max(1, len(batches) // 50)
        for end in range(len(batches) - apart * (self.last - 1), len(batches) + 1, apart):
            losses += trainee.walk(batches[len(losses) : end], self.loss)
            trainee.net.eval()
            with torch.no_grad():
                right = torch.cat([self.right(trainee.net, test) for test in tests])
            trainee.net.train()
            accuracies.append(100 * float(right.double().mean()))
        return {"losses": losses, "accuracy": np.mean(accuracies), "accuracies": accuracies}

    def by_turns(self, seed: int) -> Results:
        """Processor seconds of a step, one for each method: a few turns of each, so that a busy machine is fair."""
        batches, model = self.sets(seed, False)[0][: self.timed], self.model(seed)
        trainees = [Trainee(model, self.known[name](1e-3), len(batches), seed, self.tempered) for name in self.methods]
        for trainee in trainees:
            trainee.walk(batches[:1], self.loss)
            trainee.seconds = 0.0
        for start in range(0, len(batches), TURN):
            for trainee in trainees:
                trainee.walk(batches[start : start + TURN], self.loss)
        return {"seconds": [trainee.seconds / len(batches) for trainee in trainees]}

    def speeds(self, results: Results) -> dict[str, np.ndarray]:
        """How many times as fast as the first method, in each run."""
        seconds = results[SPEED]["seconds"]
        return dict(zip(self.methods, seconds[0] / seconds, strict=True))

    def claims(self, results: Results) -> Found:
        """The two claims of section 5.4.1: faster than the first method, and as accurate, to an error of one test."""
        full, ours = self.methods[:2]
        times, a, b = self.speeds(results)[ours], results[ours]["accuracy"], results[full]["accuracy"]
        faster = more(times, 1.6)
        yield f"{plus_minus(times, 2)} times as fast; held from 1.6 on", faster
        within = math.sqrt(b.mean() * (100 - b.mean()) / self.tests)
        said = f"{plus_minus(a, 2)} % against {plus_minus(b, 2)} %; held if not lower by {within:.1f} points"
        yield f"{said}, the error of one test", no_worse(a, b, within)

    def tables(self, results: Results) -> list[Table]:
        """Accuracy and speed of every method, and the accuracies of the step sizes that were tried."""
        rows, tried = [], []
        for i, (name, times) in enumerate(self.speeds(results).items()):
            milliseconds = f"{1000 * results[SPEED]['seconds'][i].mean():.0f}"
            accuracy = plus_minus(results[name]["accuracy"], 2)
            rows.append([name, accuracy, milliseconds, plus_minus(times, 2), self.thesis.get(name, "")])
        for name, one in results.items():
            if name.startswith(f"{TRIED}, "):
                tried.append([*name.split(", ", 1)[1].rsplit(", ", 1), f"{float(one['accuracy']):.2f}"])
        steps = len(results[self.methods[0]]["losses"])
        caption = f"{self.runs} runs of {steps} steps, mean ± standard error; k = {K} where it is not given"
        made = [Table(["method", "accuracy %", "ms a step", "speed", "thesis, accuracy %"], rows, caption)]
        head = ["method", "step size", "accuracy %, held out"]
        return made + ([Table(head, tried, "Step sizes tried")] if tried else [])

    def draw(self, results: Results) -> Figures:
        """Loss against time on the way, and accuracy against time in the end."""
        name, title = self.picture
        figure, (left, right) = subplots(1, 2, figsize=(9, 3.8))
        for method, seconds in zip(self.methods, results[SPEED]["seconds"].mean(1), strict=True):
            losses = results[method]["losses"].mean(1)
            width = max(1, len(losses) // 20)
            smooth = losses[: len(losses) // width * width].reshape(-1, width).mean(1)
            (line,) = left.plot(seconds * width * (np.arange(len(smooth)) + 0.5), smooth, label=method)
            draw_means(right, [seconds * len(losses)], [results[method]["accuracy"]], color=line.get_color())
        left.set(title=title, xlabel="processor seconds", ylabel="training loss")
        right.set(title="in the end", xlabel="processor seconds", ylabel="test accuracy, %", xlim=(0, None))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return {name: figure}
