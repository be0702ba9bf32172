"""Figure 6.1A: the loss along straight lines falls for digits, and meets barriers on the spiral.

The network has two hidden layers of 50 ReLU nodes, trained by Adam with step size 5e-4 from torch's own start: on MNIST
in batches of 128, on the spiral of four turns, of 10,000 points and 5,000 to test with, in batches of 500 (§6.1.10.1).
Lines of test loss run from each run's start θ_i to its end θ_f, from another start θ'_i to θ_f, and between the two
starts; and one layer at a time goes from start to end with the others at their end (6.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

import tether
from tether.measure import linear_path
from tether_studies.digits import first_digits, perceptron
from tether_studies.drawing import subplots
from tether_studies.judges import less, more
from tether_studies.lab import Lab
from tether_studies.lines import all_are, by_layer, counted, draw_lines, highest, packed, spirals, state_of
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-6.1",
    "from start to end the loss falls for digits and meets barriers on the spiral",
    "thesis, Figure 6.1A",
    data=("mnist",),
    notes="The thesis does not say how long these networks were trained: here ten epochs of MNIST, and the spiral "
    "until its test accuracy is 100 %. After half as many steps, at 99.8 %, one line in ten has no barrier yet.",
)
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
    return lab.pieces({name: partial(lines_of, name, config, lab) for name in SETS})


def lines_of(name: str, config: Config, lab: Lab) -> Results:
    """The lines of every run, by what they join and by layer."""
    seed, place = lab.named_seed(name), lab.checkpoint(name)
    loss: Callable[..., torch.Tensor]
    if name == "MNIST":
        sizes, loss, batch, steps = (784, 50, 50, 10), cross_entropy, 128, config.steps
        data, test = first_digits(True, 60_000), first_digits(False, config.test)
    else:
        sizes, loss, batch, steps = (2, 50, 50, 1), bce, 500, config.spiral_steps
        data, test = spirals(10_000, seed), spirals(5_000, seed + 1)
    nets = tether.Replicas(lambda: perceptron(*sizes), config.runs, seed=seed)
    start = state_of(nets)
    other = tether.Replicas(lambda: perceptron(*sizes), config.runs, seed=seed + 1).state_dict()
    opt = torch.optim.Adam(nets.parameters(), lr=5e-4)
    tether.train(nets, opt, data, loss, steps, batch, seed=seed, checkpoint=place, progress=False)
    end = nets.state_dict()
    results = by_layer(nets, start, end, test, config.points, loss)
    for line, ends in zip(LINES, ((start, end), (other, end), (start, other)), strict=True):
        results |= packed(line, linear_path(nets, *ends, test, config.points, loss=loss))
    return results


def claims(results: Results, config: Config) -> Claims:
    digits, spiral = results["MNIST"], results["spiral"]
    own, other, _ = LINES
    accuracy = {name: results[name][f"{own}: accuracies"].mean() for name in SETS}
    count = f"{config.runs} runs; a rise of 2 % of the largest loss counts"
    yield Claim(
        "on MNIST the loss falls monotonically from start to end",
        "Figure 6.1A, left: no barrier in 10 runs (blue)",
        f"{counted(digits[f'{own}: shapes'])}; test accuracy {accuracy['MNIST']:.1f} %",
        *all_are("monotone", digits[f"{own}: shapes"], count),
    )
    yield Claim(
        "and so it does from any random initialization",
        "Figure 6.1A, left: no barrier in 10 runs (green)",
        counted(digits[f"{other}: shapes"]),
        *all_are("monotone", digits[f"{other}: shapes"], count),
    )
    yield Claim(
        "the same network on the spiral meets barriers",
        "Figure 6.1A, right: barriers (blue)",
        f"{counted(spiral[f'{own}: shapes'])}; test accuracy {accuracy['spiral']:.1f} %",
        *all_are("barrier", spiral[f"{own}: shapes"], count),
    )
    rises = highest(spiral, own)
    yield Claim(
        "which rise above the loss at initialization",
        "Figure 6.1A, right: rising above the level of loss at initialization",
        f"by {rises.mean():.2f}, from {rises.min():.2f} to {rises.max():.2f}",
        *more(rises, np.zeros(config.runs)),
    )
    near, far = (spiral[f"{line}: barriers"] for line in (own, other))
    yield Claim(
        "and even higher to other initializations",
        "Figure 6.1A, right: green above blue",
        f"barriers of {far.mean():.2f} instead of {near.mean():.2f}",
        *less(near, far, paired=True),
    )


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name, line in product(SETS, [*LINES, *(f"layer {layer}" for layer in LAYERS)]):
        losses, shapes, barriers = (results[name][f"{line}: {key}"] for key in ("losses", "shapes", "barriers"))
        levels = [losses[:, 0].mean(), losses.max(1).mean(), losses[:, -1].mean()]
        way = " → ".join(f"{level:.3g}" for level in levels)
        rows.append((name, line, counted(shapes), f"{barriers.mean():.3g}", way))
    return [Table(("data", "line", "shapes", "barrier", "loss: start → top → end"), rows, "Means over the runs")]


def draw(results: Results, config: Config) -> Figures:
    """Figure 6.1A, and the layers below it."""
    figure, panels = subplots(2, 2, figsize=(8.4, 6.4), sharex=True)
    for (upper, lower), name in zip(panels.T, SETS, strict=True):
        for line, colour in LINES.items():
            draw_lines(upper, results[name][f"{line}: losses"], colour, line)
        for (layer, colour), label in zip(LAYERS.items(), ("first", "second", "third"), strict=True):
            draw_lines(lower, results[name][f"layer {layer}: losses"], colour, f"{label} layer")
        upper.set(title=name, xlabel="")
        for axis in (upper, lower):
            axis.legend()
    for axis in panels[:, 0]:
        axis.set_ylabel("test loss")
    return {"lines": figure}
