"""Figure 3.13: SGD overfits, LOL and AdLaLa with the right parameters do not.

500 ReLU nodes on a noisy two-turn spiral (c = 0.1), 200 points to train on and 4000 to test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import less, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import Task, learn
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.13",
    "SGD overfits a noisy spiral, LOL and AdLaLa need not",
    "thesis, Figure 3.13",
    notes="Neither the size of the minibatches nor the number of steps is given: 20 points and 80,000 steps are ours.",
)
WARM = {"temperature": 1e-4, "output_temperature": 1e-8}
METHODS = {
    "SGD": recipe("sgd", lr=0.1),
    "Adam": recipe("Adam", lr=0.005),
    "LOL": recipe("lol", lr=0.1, friction=1.0, temperature=1e-6),
    "AdLaLa": recipe("adlala", lr=0.1, friction=1000.0, noise=0.01, coupling=0.1, **WARM),
}


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=20)
    nodes: int = at(500, quick=40)
    train: int = 200
    test: int = at(4000, quick=400)
    batch: int = 20
    steps: int = at(80_000, quick=80, full=200_000)
    records: int = at(50, quick=8)


def run(config: Config, lab: Lab) -> Results:
    """Test loss and accuracy over time."""
    task = Task("spiral", {"turns": 2.0, "noise": 0.1}, config.nodes, config.train, config.test, config.batch)
    trained = partial(learn, task, steps=config.steps, runs=config.runs, seed=lab.named_seed("runs"))
    trained = partial(trained, records=config.records)
    return lab.pieces({x: partial(trained, recipe=METHODS[x], checkpoint=lab.checkpoint(x)) for x in METHODS})


def rise(found: Results) -> np.ndarray:
    """How much each run's test loss has grown since the time when the mean over runs was lowest."""
    loss = found["loss"][:, 0]
    return loss[-1] - loss[loss.mean(1).argmin()]


def claims(results: Results, config: Config) -> Claims:
    rises, loss = {name: rise(results[name]) for name in METHODS}, results["SGD"]["loss"][:, 0]
    said = {name: f"{name} {plus_minus(x, 3)}" for name, x in rises.items()}
    yield Claim(
        "SGD overfits: after a certain time its test loss increases",
        "Figure 3.13: monotonically",
        f"by {plus_minus(rises['SGD'], 3)} since its lowest, {plus_minus(loss.min(0), 3)}",
        *more(loss[-1], loss[len(loss) // 2]),
    )
    yield Claim(
        "LOL does not: its test loss rises less than SGD's, if at all",
        "Figure 3.13: no such behaviour with γ₁ = 1",
        f"rise since the lowest: {said['LOL']}, {said['SGD']}",
        *less(rises["LOL"], rises["SGD"]),
    )
    yield Claim(
        "nor does AdLaLa, with careful parameters",
        "Figure 3.13: no such behaviour with γ = 1000",
        f"rise since the lowest: {said['AdLaLa']}, {said['SGD']}",
        *less(rises["AdLaLa"], rises["SGD"]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name, found in results.items():
        loss, accuracy = found["loss"][:, 0], found["accuracy"][:, 0]
        lowest = int(loss.mean(1).argmin())
        least = [plus_minus(loss[lowest], 3), f"{found['steps'][lowest]:,}"]
        rows.append([name, *least, plus_minus(loss[-1], 3), plus_minus(accuracy[-1])])
    head = ["method", "lowest test loss", "at step", "test loss in the end", "test accuracy % in the end"]
    return [Table(head, rows, f"{config.runs} runs of {config.steps:,} steps")]


def draw(results: Results, config: Config) -> Figures:
    figure, (top, bottom) = subplots(2, 1, figsize=(6.4, 6.8), sharex=True)
    draw_curves(top, results, "loss")
    draw_curves(bottom, results, "accuracy")
    top.set(ylabel="test loss", title=f"Two turns, c = 0.1, {config.train} points to train on (Figure 3.13)")
    bottom.set(xlabel="steps", ylabel="test accuracy %")
    bottom.legend()
    return {"overfitting": figure}
