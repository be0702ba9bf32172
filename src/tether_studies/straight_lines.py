"""Figure 6.1A: the loss along straight lines falls for digits, and meets barriers on the spiral.

The network has two hidden layers of 50 ReLU nodes, trained by Adam with step size 5e-4 from torch's own start: on MNIST
in batches of 128, on the spiral of four turns, of 10,000 points and 5,000 to test with, in batches of 500 (§6.1.10.1).
Lines of test loss run from each run's start θ_i to its end θ_f, from another start θ'_i to θ_f, and between the two
starts; and one layer at a time goes from start to end with the others at their end (6.2).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

import tether
from tether.measure import layer_paths, linear_path
from tether_studies.drawing import subplots
from tether_studies.judges import less, more, yes
from tether_studies.lab import Lab
from tether_studies.lines import counted, draw_lines, highest, packed
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-6.1",
    "from start to end the loss falls for digits and meets barriers on the spiral",
    "thesis, Figure 6.1A",
    data=("mnist",),
    notes="The thesis does not say how long these networks were trained: here ten epochs of MNIST, and the spiral "
    "until its test accuracy is 100 %. After half as many steps, at 99.8 %, one line in ten has no barrier yet.",
)


__all__ = ["Pair", "digits", "perceptron", "spirals"]

Pair = tuple[torch.Tensor, torch.Tensor]
LINES = {"θ_i → θ_f": "#1f5fa8", "θ'_i → θ_f": "#3a8f4d", "θ_i → θ'_i": "#222222"}
LAYERS = {"0": "#c2452d", "2": "#d99a1c", "4": "#7a5aa6"}
SETS = ("MNIST", "spiral")


@dataclass(frozen=True)
class Config:
    runs: int = at(10, quick=2)
    steps: int = at(4690, quick=100, full=46_900)  # on MNIST: ten epochs
    spiral_steps: int = at(40_000, quick=200, full=100_000)
    points: int = at(51, quick=11)  # of a line
    test: int = at(10_000, quick=500)  # images of MNIST


def run(config: Config, lab: Lab) -> Results:
    """Lines of ten runs on both data sets."""
    return lab.pieces({name: lambda name=name: lines_of(name, config, lab) for name in SETS})  # type: ignore[misc]


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLUs between."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def digits(train: bool, count: int) -> Pair:
    """MNIST's first so many, pixels from 0 to 1."""
    x, y = tether.data.mnist(train)
    return x[:count].flatten(1).float() / 255, y[:count]


def spirals(count: int, seed: int, turns: int = 4) -> Pair:
    """A spiral, of four turns in (4.58), with targets for one logit."""
    x, y = tether.data.spiral(count, turns=turns, seed=seed)
    return x, y.float().unsqueeze(1)


def lines_of(name: str, config: Config, lab: Lab) -> Results:
    """The lines of every run, by what they join and by layer."""
    seed = lab.named_seed(name)
    loss: Callable[..., torch.Tensor]
    if name == "MNIST":
        sizes, loss, batch, steps = (784, 50, 50, 10), cross_entropy, 128, config.steps
        data, test = digits(True, 60_000), digits(False, config.test)
    else:
        sizes, loss, batch, steps = (2, 50, 50, 1), bce, 500, config.spiral_steps
        data, test = spirals(10_000, seed), spirals(5_000, seed + 1)
    nets = tether.Replicas(lambda: perceptron(*sizes), config.runs, seed=seed)
    start = copy.deepcopy(nets.state_dict())
    other = tether.Replicas(lambda: perceptron(*sizes), config.runs, seed=seed + 1).state_dict()
    opt = torch.optim.Adam(nets.parameters(), lr=5e-4)
    tether.train(nets, opt, data, loss, steps, batch, seed=seed, checkpoint=lab.checkpoint(name), progress=False)
    end = nets.state_dict()
    joined = dict(zip(LINES, ((start, end), (other, end), (start, other)), strict=True))
    results: Results = {}
    for line, ends in joined.items():
        results |= packed(line, linear_path(nets, *ends, test, config.points, loss=loss))
    by_layer = layer_paths(nets, start, end, test, config.points, loss=loss)
    for layer in by_layer[0]:
        results |= packed(f"layer {layer}", [paths[layer] for paths in by_layer])
    return results


def claims(results: Results, config: Config) -> list[Claim]:
    digits, spiral = results["MNIST"], results["spiral"]
    own, other, _ = LINES
    accuracy = {name: results[name][f"{own}: accuracies"].mean() for name in SETS}
    rises = {line: highest(spiral, line) for line in (own, other)}
    count = f"{config.runs} runs; a rise of 2 % of the largest loss counts"
    return [
        Claim(
            "on MNIST the loss falls monotonically from start to end",
            "Figure 6.1A, left: no barrier in 10 runs (blue)",
            f"{counted(digits[f'{own}: shapes'])}; test accuracy {accuracy['MNIST']:.1f} %",
            *yes(bool((digits[f"{own}: shapes"] == "monotone").all()), count),
        ),
        Claim(
            "and so it does from any random initialization",
            "Figure 6.1A, left: no barrier in 10 runs (green)",
            counted(digits[f"{other}: shapes"]),
            *yes(bool((digits[f"{other}: shapes"] == "monotone").all()), count),
        ),
        Claim(
            "the same network on the spiral meets barriers",
            "Figure 6.1A, right: barriers (blue)",
            f"{counted(spiral[f'{own}: shapes'])}; test accuracy {accuracy['spiral']:.1f} %",
            *yes(bool((spiral[f"{own}: shapes"] == "barrier").all()), count),
        ),
        Claim(
            "which rise above the loss at initialization",
            "Figure 6.1A, right: rising above the level of loss at initialization",
            f"by {rises[own].mean():.2f}, from {rises[own].min():.2f} to {rises[own].max():.2f}",
            *more(rises[own], np.zeros(config.runs)),
        ),
        Claim(
            "and even higher to other initializations",
            "Figure 6.1A, right: green above blue",
            f"barriers of {spiral[f'{other}: barriers'].mean():.2f} instead of {spiral[f'{own}: barriers'].mean():.2f}",
            *less(spiral[f"{own}: barriers"], spiral[f"{other}: barriers"], paired=True),
        ),
    ]


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name in SETS:
        found = results[name]
        for line in [*LINES, *(f"layer {layer}" for layer in LAYERS)]:
            losses = found[f"{line}: losses"]
            levels = [losses[:, 0].mean(), losses.max(1).mean(), losses[:, -1].mean()]
            rows.append((
                name,
                line,
                counted(found[f"{line}: shapes"]),
                f"{found[f'{line}: barriers'].mean():.3g}",
                " → ".join(f"{level:.3g}" for level in levels),
            ))  # fmt: skip
    return [Table(("data", "line", "shapes", "barrier", "loss: start → top → end"), rows, "Means over the runs")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(2, 2, figsize=(8.4, 6.4), sharex=True)
    names = dict(zip(LAYERS, ("first layer", "second layer", "third layer"), strict=True))
    for column, name in enumerate(SETS):
        upper, lower = panels[:, column]
        for line, colour in LINES.items():
            draw_lines(upper, results[name][f"{line}: losses"], colour, line)
        for layer, colour in LAYERS.items():
            draw_lines(lower, results[name][f"layer {layer}: losses"], colour, names[layer])
        upper.set(title=name, xlabel="")
        for axis in (upper, lower):
            axis.set_ylabel("" if column else "test loss")
            axis.legend(frameon=False, fontsize=8)
    return {"lines": figure}
