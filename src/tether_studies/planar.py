"""Perceptrons with one hidden layer on spirals and on sine against cosine: what the studies of chapter 3 share.

Every run has its own data and start, the same for all methods under comparison; the runs of all cells of a parameter
grid are trained together as replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.study import Results

__all__ = [
    *("Recipe", "Sets", "Task", "classifier", "draw_classifier", "draw_curve", "learn", "optimizer", "outputs"),
    *("plus_minus", "scores", "tiled", "tiled_sets", "train"),
]

Recipe = tuple[str, Mapping[str, Any]]  # a function of tether.methods or a class of torch.optim, and its settings
Sets = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Watch = Callable[[int, tether.Replicas], Mapping[str, torch.Tensor]]


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

    def sets(self, runs: int, seed: int) -> Sets:
        """Points to train on and their classes, points to test with and theirs, for each run."""
        make = getattr(tether.data, self.kind)
        found = []
        for count, offset in ((self.train, 0), (self.test, 1)):
            pairs = [make(count, **self.options, seed=seed + 2 * i + offset) for i in range(runs)]
            found += [torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]).float().unsqueeze(-1)]
        return found[0], found[1], found[2], found[3]

    @property
    def frame(self) -> tuple[float, float, float, float]:
        """The window of the plane that holds the points."""
        if self.kind == "spiral":
            return (-2.2, 2.2, -2.2, 2.2)
        width = float(self.options["scale"])
        return (-0.02 * width, 1.02 * width, -1.2, 1.2)


def optimizer(recipe: Recipe, nets: tether.Replicas, seed: int) -> torch.optim.Optimizer:
    """The optimizer of a recipe; its noise is named by the seed."""
    name, settings = recipe
    if hasattr(tether.methods, name):
        return getattr(tether.methods, name)(nets, seed=seed, **settings)
    return getattr(torch.optim, name)(nets.parameters(), **settings)


def learn(
    task: Task,
    recipe: Recipe,
    steps: int,
    runs: int,
    seed: int,
    *,
    cells: int = 1,
    **options: Any,
) -> Results:
    """Train some runs of every cell; the test loss and accuracy over time, as records × cells × runs.

    Args:
        task: data and network.
        recipe: the method; a setting may be a tensor with a value for each of the ``cells * runs`` replicas, the runs
            of a cell side by side.
        steps: how many.
        runs: how many of each cell; run i of every cell has the same data and the same start.
        seed: of data, starts, minibatches and noise.
        cells: settings of the method that are tried at once.
        options: of `train`.
    """
    nets = tether.Replicas(task.network, runs, seed=seed)
    sets = task.sets(runs, seed)
    if cells > 1:
        nets, sets = tiled(nets, task, cells), tiled_sets(sets, cells)
    return train(nets, task, recipe, sets, steps, runs, seed, **options)


def train(
    nets: tether.Replicas,
    task: Task,
    recipe: Recipe,
    sets: Sets,
    steps: int,
    runs: int,
    seed: int,
    *,
    records: int | Sequence[int] = 1,
    watch: Watch | None = None,
    portraits: bool = False,
    checkpoint: Path | None = None,
) -> Results:
    """Train replicas that are there already; see `learn`.

    Args:
        nets: what to train; also `task`, `recipe`, `sets`, `steps`, `runs` and `seed` as there.
        records: how often to test, evenly spaced, or after which steps; the end is always one.
        watch: further things to record, ``watch(step, nets)``.
        portraits: also the classifier of the median run of every cell, with that run's test points.
        checkpoint: where to keep what is done so far.
    """
    x, y, x_test, y_test = sets
    every = max(1, steps // records) if isinstance(records, int) else math.gcd(*records)

    def record(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
        if not isinstance(records, int) and step not in records and step != steps:
            return {}
        found = {"steps": step, **scores(nets, x_test, y_test)}
        return {**found, **(watch(step, nets) if watch is not None else {})}

    opt = optimizer(recipe, nets, seed)
    settings: dict[str, Any] = {"each": True, "seed": seed, "checkpoint": checkpoint, "progress": False}
    log = tether.train(nets, opt, (x, y), bce, steps, task.batch, every, [record], **settings)
    results: Results = {"stopped": len(log.stopped), **log.metrics}
    for name in ("loss", "accuracy"):
        results[name] = results[name].view(len(results["steps"]), -1, runs)
    if portraits:
        results |= portraits_of(nets, task, sets, results["accuracy"][-1])
    return results


def tiled(nets: tether.Replicas, task: Task, cells: int) -> tether.Replicas:
    """The same starts again for every cell."""
    many = tether.Replicas(task.network, cells * len(nets))
    with torch.no_grad():
        for p, start in zip(many.parameters(), nets.parameters(), strict=True):
            p.copy_(start.repeat(cells, *(1,) * (start.dim() - 1)))
    return many


def tiled_sets(sets: Sets, cells: int) -> Sets:
    x, y, x_test, y_test = (values.repeat(cells, 1, 1) for values in sets)
    return x, y, x_test, y_test


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


def portraits_of(nets: tether.Replicas, task: Task, sets: Sets, accuracy: torch.Tensor) -> Results:
    """For every cell the classifier of its median run on a grid, that run's accuracy and test points."""
    runs = accuracy.shape[1]
    medians = accuracy.argsort(1)[:, (runs - 1) // 2]
    at = (torch.arange(len(accuracy)) * runs + medians).tolist()
    return {
        "classifier": torch.stack([classifier(nets[i], task.frame) for i in at]),
        "points": sets[2][at],
        "classes": sets[3][at, :, 0],
        "median": accuracy.gather(1, medians.unsqueeze(1)).squeeze(1),
    }


@torch.no_grad()
def classifier(net: nn.Module, frame: tuple[float, float, float, float], size: int = 160) -> torch.Tensor:
    """The probability of class 1 on a grid over the frame, rows from below."""
    left, right, low, high = frame
    y, x = torch.meshgrid(torch.linspace(low, high, size), torch.linspace(left, right, size), indexing="ij")
    logits: torch.Tensor = net(torch.stack((x, y), -1).view(-1, 2))
    return logits.sigmoid().view(size, size).half()


def draw_curve(axis: Any, steps: np.ndarray, values: np.ndarray, label: str, **style: Any) -> None:
    """The mean of some runs over time (records × runs), with its standard error as a band."""
    mean, error = values.mean(1), values.std(1, ddof=1) / math.sqrt(values.shape[1])
    (line,) = axis.plot(steps, mean, label=label, lw=1.3, **style)
    axis.fill_between(steps, mean - error, mean + error, color=line.get_color(), alpha=0.2, lw=0)


COLOURS = ("#1f5fa8", "#c2452d")


def draw_classifier(axis: Any, field: np.ndarray, task: Task, x: np.ndarray, y: np.ndarray, title: str) -> None:
    """A shade for the probability of class 1, its boundary, and points of both classes."""
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
