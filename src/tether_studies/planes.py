"""Figures 3.3 to 3.5: the loss from a start to where Adam and AdLaLa end, and over the plane of two ends.

One hidden layer of ReLU nodes: 100 for MNIST (128 images at a time), 20 for the spirals of one and two turns (500
points, 25 at a time). Both methods begin at the same states, torch's own. Lines (3.34) are of test loss; a plane (§3.4)
lies between a start and two ends of AdLaLa, which saw other minibatches and other noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

import tether
from tether.measure import linear_path, surface
from tether.measure.shape import classify
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, near, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.lines import counted, draw_lines, packed
from tether_studies.straight_lines import digits, perceptron, spirals
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-3.3",
    "barriers lie between start and end on spirals, not on MNIST, and AdLaLa crosses higher ones",
    "thesis, Figures 3.3–3.5",
    data=("mnist",),
    notes="The thesis does not give the parameters of these runs: Adam has step size 0.005, AdLaLa h = 0.25, γ = 0.5, "
    "τ = 1e-4, σ = 0.01, ε = 0.1 on weights and biases by themselves.",
)


ADLALA = {"lr": 0.25, "friction": 0.5, "temperature": 1e-4, "noise": 0.01, "coupling": 0.1, "per": "tensor"}
COLOURS = {"Adam": "#1f5fa8", "AdLaLa": "#c2452d"}
MNIST, ONE, TWO = SETS = ("MNIST", "spiral, 1 turn", "spiral, 2 turns")


@dataclass(frozen=True)
class Config:
    runs: int = at(10, quick=2)
    steps: int = at(20_000, quick=60)
    images_runs: int = at(4, quick=2, full=10)  # on MNIST
    images_steps: int = at(1000, quick=20, full=4690)
    test: int = at(10_000, quick=300)  # images
    points: int = at(51, quick=7)
    side: int = at(31, quick=4, full=51)  # points along a side of a plane


def run(config: Config, lab: Lab) -> Results:
    """Lines by method and set; run i of both methods begins at the same state."""
    return lab.pieces({name: partial(ends_of, name, config, lab.named_seed(name)) for name in SETS})


def ends_of(name: str, config: Config, seed: int) -> Results:
    """Train by both methods, once more by AdLaLa, and measure between."""
    loss: Callable[..., torch.Tensor]
    if name == MNIST:
        sizes, loss, batch = (784, 100, 10), cross_entropy, 128
        steps, runs = config.images_steps, config.images_runs
        data, test = digits(True, 60_000), digits(False, config.test)
    else:
        sizes, loss, batch, steps, runs = (2, 20, 1), bce, 25, config.steps, config.runs
        data, test = (spirals(500, seed + k, turns=1 if name == ONE else 2) for k in (0, 1))
    start = copy.deepcopy(tether.Replicas(lambda: perceptron(*sizes), runs, seed=seed).state_dict())

    def trained(method: str, seed: int) -> tether.Replicas:
        nets = tether.Replicas(lambda: perceptron(*sizes), runs)
        nets.load_state_dict(start)
        opt: torch.optim.Optimizer = torch.optim.Adam(nets.parameters(), lr=0.005)
        if method == "AdLaLa":
            opt = tether.methods.adlala(nets, seed=seed, **ADLALA)  # type: ignore[arg-type]
        tether.train(nets, opt, data, loss, steps, batch, seed=seed, progress=False)
        return nets

    ends = {method: trained(method, seed) for method in COLOURS}
    results: Results = {}
    for method, nets in ends.items():
        results |= packed(method, linear_path(nets, start, nets.state_dict(), test, config.points, loss=loss))
    two = (ends["AdLaLa"], trained("AdLaLa", seed + 1))
    first, one, other = (
        {key: x[0] for key, x in state.items()} for state in (start, *(nets.state_dict() for nets in two))
    )
    plane = surface(two[0][0], first, one, other, test, config.side, config.side, loss=loss)
    shapes = [classify(plane.alphas, row, 0.02)[0] for row in plane.losses.T]
    return {**results, "plane": plane.losses, "alphas": plane.alphas, "betas": plane.betas, "across": shapes}


def claims(results: Results, config: Config) -> list[Claim]:
    shapes = {(name, method): results[name][f"{method}: shapes"] for name in SETS for method in COLOURS}
    two = results[TWO]
    heights = {method: two[f"{method}: barriers"] for method in COLOURS}
    ends = {(name, method): results[name][f"{method}: losses"][:, -1] for name in SETS for method in COLOURS}
    right = {method: plus_minus(two[f"{method}: accuracies"]) for method in COLOURS}
    told = {name: "; ".join(f"{method} {counted(shapes[name, method])}" for method in COLOURS) for name in SETS}
    barred = {name: float((results[name]["across"] == "barrier").mean()) for name in SETS}
    return [
        *(
            Claim(
                f"no barrier from start to end: {name}",
                f"Figure 3.3, {side}: no evidence of a loss-barrier",
                told[name],
                *yes(
                    not any((shapes[name, method] == "barrier").any() for method in COLOURS),
                    f"{len(shapes[name, 'Adam'])} starts; a rise of 2 % of the largest loss counts",
                ),
            )
            for name, side in ((MNIST, "left"), (ONE, "right"))
        ),
        Claim(
            "on MNIST both end with a similar test loss",
            "Figure 3.3, left: final test loss is similar",
            ", ".join(f"{method} {plus_minus(ends[MNIST, method], 3)}" for method in COLOURS),
            *near(ends[MNIST, "AdLaLa"], ends[MNIST, "Adam"], 0.05),
        ),
        Claim(
            "on the spiral of two turns there typically is a barrier",
            "Figure 3.4: barriers for both methods",
            told[TWO],
            *yes(
                all((shapes[TWO, method] == "barrier").mean() > 0.5 for method in COLOURS),
                f"in more than half of {config.runs} runs of each",
            ),
        ),
        Claim(
            "which is higher for AdLaLa",
            "Figure 3.4: consistently significantly higher for AdLaLa than for Adam",
            ", ".join(f"{method} {plus_minus(heights[method], 2)}" for method in COLOURS),
            *more(heights["AdLaLa"], heights["Adam"], paired=True),
        ),
        Claim(
            "and leads to lower test loss and higher accuracy",
            "Figure 3.4: AdLaLa 99 and 98 %, Adam 91 and 94 % test accuracy in two runs",
            ", ".join(f"{m} {right[m]} %, loss {plus_minus(ends[TWO, m], 3)}" for m in COLOURS),
            *every({
                "loss": less(ends[TWO, "AdLaLa"], ends[TWO, "Adam"], paired=True),
                "accuracy": more(two["AdLaLa: accuracies"], two["Adam: accuracies"], paired=True),
            }),
        ),
        Claim(
            "in planes the loss of MNIST falls monotonically, that of the spiral has saddles",
            "Figure 3.5: monotonic decline for MNIST, saddle points for two turns",
            ", ".join(f"{name}: barriers on {100 * barred[name]:.0f} % of the lines across" for name in (MNIST, TWO)),
            *yes(barred[MNIST] == 0 < barred[TWO], "one plane for each set"),
        ),
    ]  # fmt: skip


def tables(results: Results, config: Config) -> list[Table]:
    rows = [
        (
            *(name, method, counted(results[name][f"{method}: shapes"])),
            *(plus_minus(results[name][f"{method}: {key}"], 2) for key in ("barriers", "accuracies")),
            plus_minus(results[name][f"{method}: losses"][:, -1], 3),
        )
        for name in SETS
        for method in COLOURS
    ]
    return [Table(("data", "method", "shapes", "barrier", "test accuracy (%)", "test loss"), rows)]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(2, 3, figsize=(10.2, 6.4))
    for name, (top, bottom) in zip(SETS, panels.T, strict=True):
        for method, colour in COLOURS.items():
            draw_lines(top, results[name][f"{method}: losses"], colour, method)
        top.set(title=name, ylabel="test loss" if name == MNIST else "")
        top.legend(frameon=False)
        found = results[name]
        mesh = bottom.contourf(found["alphas"], found["betas"], np.log10(np.maximum(found["plane"].T, 1e-6)), levels=30)
        figure.colorbar(mesh, ax=bottom, label="log₁₀ of the test loss" if name == TWO else None)
        bottom.set(xlabel="α (0 start, 1 ends)", ylabel="β (1 one end, 0 the other)" if name == MNIST else "")
    return {"planes": figure}
