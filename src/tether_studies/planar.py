"""Perceptrons with one hidden layer on spirals and on sine against cosine: what the studies of chapter 3 share.

Every run has its own data and start, the same for all methods under comparison; the runs of all cells of a parameter
grid are trained together as replicas.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.experiment import Recipe
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, at_end
from tether_studies.study import Results

__all__ = ["ACCURACY", "BEST", "LOSS", "WORST", "Sets", "Task", "draw_classifier", "each", "learn"]
__all__ += ["on_grid", "scores", "starts", "todo"]

Sets = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Frame = tuple[float, float, float, float]
COLOURS = ("#1f5fa8", "#c2452d")  # of the classes

ACCURACY = at_end("accuracy", "test accuracy %", unit=" %")
LOSS = at_end("loss", "test loss", 3)
WORST = Quantity("worst", ACCURACY.take, show=lambda x: round(float(x.min()), 1))
BEST = Quantity("best", ACCURACY.take, show=lambda x: round(float(x.max()), 1))


@dataclass(frozen=True)
class Task:
    """A planar problem and the network that learns it."""

    kind: str = "spiral"  # or "trig"
    options: Mapping[str, float] = field(default_factory=dict)  # of tether.data.spiral or trig
    nodes: int = 100
    train: int = 1000
    test: int = 1000
    batch: int = 20
    spread: float | None = None  # standard deviation of the first weights; None is torch's own start

    def network(self) -> nn.Sequential:
        """ReLU nodes and a logistic output."""
        net = nn.Sequential(nn.Linear(2, self.nodes), nn.ReLU(), nn.Linear(self.nodes, 1))
        if self.spread is not None:
            with torch.no_grad():
                for name, parameter in net.named_parameters():
                    parameter.normal_(0, self.spread) if name.endswith("weight") else parameter.zero_()
        return net

    def sets(self, runs: int, seed: int, cells: int = 1) -> Sets:
        """Points to train on and their classes, points to test with and theirs, for each run; again for every cell."""
        make = getattr(tether.data, self.kind)
        found = []
        for count, offset in ((self.train, 0), (self.test, 1)):
            pairs = [make(count, **self.options, seed=seed + 2 * i + offset) for i in range(runs)]
            found += [torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]).float().unsqueeze(-1)]
        x, y, x_test, y_test = (values.repeat(cells, 1, 1) for values in found)
        return x, y, x_test, y_test

    @property
    def frame(self) -> Frame:
        """The window of the plane that holds the points, with three standard deviations of the noise around."""
        if self.kind == "spiral":
            side = 1.2 if self.options.get("scale") == 1.0 else 2.2
            return (-side, side, -side, side)
        width = float(self.options["scale"])
        return (-0.02 * width, 1.02 * width, -1.2, 1.2)


def each(values: Sequence[float], runs: int) -> torch.Tensor:
    """A setting for every replica: the runs of a cell stand side by side."""
    return torch.tensor(values).repeat_interleave(runs)


def starts(task: Task, runs: int, seed: int, cells: int = 1) -> tether.Replicas:
    """Networks of this seed, the same ones again for every cell."""
    nets = tether.Replicas(task.network, runs, seed=seed)
    if cells == 1:
        return nets
    many = tether.Replicas(task.network, cells * runs)
    with torch.no_grad():
        for p, start in zip(many.parameters(), nets.parameters(), strict=True):
            p.copy_(start.repeat(cells, *(1,) * (start.dim() - 1)))
    return many


def todo(lab: Lab, task: Task, methods: Mapping[Any, Recipe], steps: int, runs: int, **options: Any) -> dict[Any, Any]:
    """A piece of `learn` for each method; run i of all of them has the same data and start."""
    settings: dict[str, Any] = {"steps": steps, "runs": runs, "seed": lab.named_seed("runs"), **options}
    return {x: partial(learn, task, methods[x], checkpoint=lab.checkpoint(x), **settings) for x in methods}


def learn(
    task: Task,
    recipe: Recipe,
    steps: int,
    runs: int,
    seed: int,
    *,
    cells: int = 1,
    nets: tether.Replicas | None = None,
    sets: Sets | None = None,
    records: int | Sequence[int] = 1,
    watch: Callable[[int, tether.Replicas], Mapping[str, torch.Tensor]] | None = None,
    portraits: bool = False,
    checkpoint: Path | None = None,
) -> Results:
    """Train some runs of every cell; the test loss and accuracy over time, as records × cells × runs.

    A setting of the recipe may be a tensor with a value for each of the ``cells * runs`` replicas (`each`); run i of
    every cell has the same data and start. The seed names data, starts, minibatches and noise; `nets` and `sets` stand
    in place of its own. `records` is how often to test, evenly spaced, or after which steps; the end is always one.
    `watch` has further things to record. `portraits` adds the classifier of the median run of every cell.
    """
    trained = starts(task, runs, seed, cells) if nets is None else nets
    x, y, x_test, y_test = sets = sets or task.sets(runs, seed, cells)
    often = max(1, steps // records) if isinstance(records, int) else math.gcd(*records)

    def record(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
        if not isinstance(records, int) and step not in records and step != steps:
            return {}
        found = {"steps": step, **scores(trained, x_test, y_test)}
        return {**found, **(watch(step, trained) if watch is not None else {})}

    opt = recipe(trained, seed)
    settings: dict[str, Any] = {"each": True, "seed": seed, "checkpoint": checkpoint, "progress": False}
    log = tether.train(trained, opt, (x, y), bce, steps, task.batch, often, [record], **settings)
    results: Results = {"stopped": len(log.stopped), **log.metrics}
    for name in ("loss", "accuracy"):
        results[name] = results[name].view(len(results["steps"]), -1, runs)
    return results | (portraits_of(trained, task, sets, results["accuracy"][-1]) if portraits else {})


@torch.no_grad()
def outputs(nets: tether.Replicas, x: torch.Tensor) -> torch.Tensor:
    """The logits of every replica on its points, a few replicas at a time: the hidden layer of all would be large."""
    W, b, V, c = nets.parameters()
    found = []
    for i in range(0, len(nets), 16):
        k = slice(i, i + 16)
        hidden = torch.baddbmm(b[k].unsqueeze(1), x[k], W[k].mT).relu_()
        found.append(torch.baddbmm(c[k].unsqueeze(1), hidden, V[k].mT))
    return torch.cat(found)


def scores(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Mean loss and accuracy in per cent of every replica on its points."""
    out = outputs(nets, x)
    right = (out > 0) == (y > 0.5)
    return {"loss": bce(out, y, reduction="none").mean((1, 2)), "accuracy": 100 * right.float().mean((1, 2))}


def probability(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of the second class."""
    return net(x).sigmoid()


def portraits_of(nets: tether.Replicas, task: Task, sets: Sets, accuracy: torch.Tensor) -> Results:
    """For every cell the classifier of its median run on a grid, that run's accuracy and test points."""
    runs = accuracy.shape[1]
    medians = accuracy.argsort(1)[:, (runs - 1) // 2]
    at = (torch.arange(len(accuracy)) * runs + medians).tolist()
    fields = torch.stack([on_grid(partial(probability, nets[i]), task.frame) for i in at])
    median = accuracy.gather(1, medians.unsqueeze(1)).squeeze(1)
    return {"classifier": fields, "points": sets[2][at], "classes": sets[3][at, :, 0], "median": median}


@torch.no_grad()
def on_grid(chance: Callable[[torch.Tensor], torch.Tensor], frame: Frame, size: int = 160) -> torch.Tensor:
    """The probability of class 1 on a grid over the frame, rows from below."""
    left, right, low, high = frame
    y, x = torch.meshgrid(torch.linspace(low, high, size), torch.linspace(left, right, size), indexing="ij")
    return chance(torch.stack((x, y), -1).view(-1, 2)).view(size, size).half()


def draw_classifier(axis: Any, field: np.ndarray, task: Task, x: np.ndarray, y: np.ndarray, title: str) -> None:
    """Draw a shade for the probability of class 1, its boundary, and points of both classes."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("classes", ["#8db5de", "#f8f7f4", "#eeab99"])
    left, right, low, high = task.frame
    field = field.astype(np.float32)
    axis.imshow(field, extent=task.frame, origin="lower", cmap=shades, vmin=0, vmax=1, aspect="auto")
    if field.min() < 0.5 < field.max():
        grid = np.linspace(left, right, field.shape[1]), np.linspace(low, high, field.shape[0])
        axis.contour(*grid, field, levels=[0.5], colors="#222222", linewidths=0.8)
    for label, colour in enumerate(COLOURS):
        axis.scatter(*x[y == label].T, s=2, color=colour, linewidths=0)
    axis.set(xticks=[], yticks=[], xlim=(left, right), ylim=(low, high))
    axis.set_title(title, fontsize=10)
    if task.kind == "spiral":
        axis.set_box_aspect(1)
