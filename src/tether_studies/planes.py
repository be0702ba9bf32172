"""Figures 3.3 to 3.5: the loss from a start to where Adam and AdLaLa end, and over the plane of two ends.

One hidden layer of ReLU nodes: 100 for MNIST (128 images at a time), 20 for the spirals of one and two turns (500
points, 25 at a time). Both methods begin at the same states, torch's own. Lines (3.34) are of test loss; a plane (§3.4)
lies between a start and two ends of AdLaLa, which saw other minibatches and other noise.
"""

from __future__ import annotations

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
from tether_studies.digits import first_digits, perceptron
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, near, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.lines import BARRIER, SHAPES, counted, draw_lines, packed, spirals, state_of
from tether_studies.quantities import Quantity, listed, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.3",
    "barriers lie between start and end on spirals, not on MNIST, and AdLaLa crosses higher ones",
    "thesis, Figures 3.3–3.5",
    data=("mnist",),
    notes="The thesis does not give the parameters of these runs: Adam has step size 0.005, AdLaLa h = 0.25, γ = 0.5, "
    "τ = 1e-4, σ = 0.01, ε = 0.1 on weights and biases by themselves.",
)
WARM: dict[str, Any] = {"temperature": 1e-4, "noise": 0.01, "coupling": 0.1, "per": "tensor"}
METHODS = {"Adam": recipe("Adam", lr=0.005), "AdLaLa": recipe("adlala", lr=0.25, friction=0.5, **WARM)}
ACCURACY = Quantity("test accuracy (%)", lambda one: one["accuracies"], 2)
END = Quantity("test loss", lambda one: one["losses"][:, -1], 3)
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
        data, test = first_digits(True, 60_000), first_digits(False, config.test)
    else:
        sizes, loss, batch, steps, runs = (2, 20, 1), bce, 25, config.steps, config.runs
        data, test = (spirals(500, seed + k, turns=1 if name == ONE else 2) for k in (0, 1))
    start = state_of(tether.Replicas(lambda: perceptron(*sizes), runs, seed=seed))

    def trained(method: str, seed: int) -> tether.Replicas:
        nets = tether.Replicas(lambda: perceptron(*sizes), runs)
        nets.load_state_dict(start)
        tether.train(nets, METHODS[method](nets, seed), data, loss, steps, batch, seed=seed, progress=False)
        return nets

    ends = {method: trained(method, seed) for method in METHODS}
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


def claims(results: Results, config: Config) -> Claims:
    shapes = {name: {method: results[name][f"{method}: shapes"] for method in METHODS} for name in SETS}
    told = {name: "; ".join(f"{method} {counted(x)}" for method, x in of.items()) for name, of in shapes.items()}
    for name, side in ((MNIST, "left"), (ONE, "right")):
        count = len(shapes[name]["Adam"])
        yield Claim(
            f"no barrier from start to end: {name}",
            f"Figure 3.3, {side}: no evidence of a loss-barrier",
            told[name],
            *yes(
                not any((x == "barrier").any() for x in shapes[name].values()),
                f"{count} starts; a rise of 2 % of the largest loss counts",
            ),
        )
    ends, two = END.of({m: {"losses": results[MNIST][f"{m}: losses"]} for m in METHODS}), results[TWO]
    yield Claim(
        "on MNIST both end with a similar test loss",
        "Figure 3.3, left: final test loss is similar",
        listed(ends, END.digits),
        *near(ends["AdLaLa"], ends["Adam"], 0.05),
    )
    yield Claim(
        "on the spiral of two turns there typically is a barrier",
        "Figure 3.4: barriers for both methods",
        told[TWO],
        *yes(
            all((x == "barrier").mean() > 0.5 for x in shapes[TWO].values()),
            f"in more than half of {config.runs} runs of each",
        ),
    )
    heights = {method: two[f"{method}: barriers"] for method in METHODS}
    yield Claim(
        "which is higher for AdLaLa",
        "Figure 3.4: consistently significantly higher for AdLaLa than for Adam",
        listed(heights, 2),
        *more(heights["AdLaLa"], heights["Adam"], paired=True),
    )
    loss, right = ({m: two[f"{m}: {key}"] for m in METHODS} for key in ("losses", "accuracies"))
    loss = {m: x[:, -1] for m, x in loss.items()}
    judged = {
        "loss": less(loss["AdLaLa"], loss["Adam"], paired=True),
        "accuracy": more(right["AdLaLa"], right["Adam"], paired=True),
    }
    yield Claim(
        "and leads to lower test loss and higher accuracy",
        "Figure 3.4: AdLaLa 99 and 98 %, Adam 91 and 94 % test accuracy in two runs",
        ", ".join(f"{m} {plus_minus(right[m])} %, loss {plus_minus(loss[m], 3)}" for m in METHODS),
        *every(judged),
    )
    barred = {name: float((results[name]["across"] == "barrier").mean()) for name in (MNIST, TWO)}
    yield Claim(
        "in planes the loss of MNIST falls monotonically, that of the spiral has saddles",
        "Figure 3.5: monotonic decline for MNIST, saddle points for two turns",
        ", ".join(f"{name}: barriers on {100 * x:.0f} % of the lines across" for name, x in barred.items()),
        *yes(barred[MNIST] == 0 < barred[TWO], "one plane for each set"),
    )


def tables(results: Results, config: Config) -> list[Table]:
    keys = ("losses", "shapes", "barriers", "accuracies")
    rows = {(name, m): {key: results[name][f"{m}: {key}"] for key in keys} for name in SETS for m in METHODS}
    return [tabulated(["data", "method"], rows, [SHAPES, BARRIER, ACCURACY, END])]


def draw(results: Results, config: Config) -> Figures:
    """Figures 3.3 and 3.4 above, 3.5 below."""
    figure, panels = subplots(2, 3, figsize=(10.2, 6.4))
    for name, (top, bottom) in zip(SETS, panels.T, strict=True):
        found = results[name]
        for method, colour in zip(METHODS, ("#1f5fa8", "#c2452d"), strict=True):
            draw_lines(top, found[f"{method}: losses"], colour, method)
        top.set(title=name, ylabel="test loss" if name == MNIST else "")
        top.legend()
        mesh = bottom.contourf(found["alphas"], found["betas"], np.log10(np.maximum(found["plane"].T, 1e-6)), levels=30)
        figure.colorbar(mesh, ax=bottom, label="log₁₀ of the test loss" if name == TWO else None)
        bottom.set(xlabel="α (0 start, 1 ends)", ylabel="β (1 one end, 0 the other)" if name == MNIST else "")
    return {"planes": figure}
