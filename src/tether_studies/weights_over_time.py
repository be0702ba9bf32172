"""Figures 3.6 and 3.7: thermodynamic methods excite the weights at once, and on four turns AdLaLa alone gets ahead.

500 ReLU nodes, 1000 points, 20 at a time, on two and four turns, seen after 50, 1000 and 10,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tether_studies.drawing import subplots
from tether_studies.judges import every, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import Recipe, Task, learn
from tether_studies.study import Claim, Results, Study, Table, at
from tether_studies.weights import ADLALA, accuracy, histogram, inner, parameters

STUDY = Study(
    "fig-3.6",
    "thermodynamic methods excite all weights at once; on four turns that pays",
    "thesis, Figures 3.6, 3.7",
    notes="The figures show a single run; here several. Their start is not given: 0.01 N(0, 1) is taken, as in Figures "
    "3.9 and 3.14, with biases 0. Their captions give σ = 0.01 for SGLD; here also the σ = 0.1 of Figure 3.8.",
)


METHODS: dict[str, Recipe] = {
    "SGD": ("sgd", {"lr": 0.2}),
    "Adam": ("Adam", {"lr": 0.005}),
    "SGLD": ("sgld", {"lr": 0.1, "noise": 0.01}),
    "SGLD σ=0.1": ("sgld", {"lr": 0.1, "noise": 0.1}),  # as in Figure 3.8; not in the captions
    "AdLaLa": ("adlala", ADLALA),
}
FRICTIONS = {2: 0.5, 4: 0.1}  # of AdLaLa, by the turns
PUBLISHED = {  # test accuracies at step 10,000
    2: {"SGD": 96.0, "Adam": 99.0, "SGLD": 74.0, "AdLaLa": 99.0},
    4: {"SGD": 58.0, "Adam": 67.0, "SGLD": 54.0, "AdLaLa": 80.0},
}


@dataclass(frozen=True)
class Config:
    runs: int = at(8, quick=2, full=100)
    nodes: int = at(500, quick=50)
    times: tuple[int, ...] = at((50, 1000, 10_000), quick=(20, 40, 100))
    start: float = 0.01  # standard deviation of the first weights


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies and parameters at three times."""
    seed, work = lab.named_seed("runs"), {}
    for turns, friction in FRICTIONS.items():
        task = Task("spiral", {"turns": float(turns)}, config.nodes, spread=config.start)
        for name, (method, settings) in METHODS.items():
            recipe = (method, {**settings, "friction": friction} if name == "AdLaLa" else settings)
            options: dict[str, Any] = {"records": config.times, "watch": parameters}
            work[f"{turns} turns, {name}"] = partial(
                learn, task, recipe, config.times[-1], config.runs, seed, **options
            )
    return lab.pieces(work)


def claims(results: Results, config: Config) -> list[Claim]:
    return [*accuracies(results), *sizes(results)]


def accuracies(results: Results) -> list[Claim]:
    two, four = ({name: accuracy(results[f"{t} turns, {name}"]) for name in METHODS} for t in FRICTIONS)
    return [
        Claim(
            "on two turns SGD, Adam and AdLaLa find good minima, SGLD does not",
            "Figure 3.6, step 10,000: " + ", ".join(f"{name} {value:.0f} %" for name, value in PUBLISHED[2].items()),
            ", ".join(f"{name} {plus_minus(x)} %" for name, x in two.items()),
            *every({f"{name} > SGLD": more(two[name], two["SGLD"]) for name in ("SGD", "Adam", "AdLaLa")}),
        ),
        Claim(
            "on four turns AdLaLa is far ahead of SGD, Adam and SGLD",
            "Figure 3.7, step 10,000: " + ", ".join(f"{name} {value:.0f} %" for name, value in PUBLISHED[4].items()),
            ", ".join(f"{name} {plus_minus(x)} %" for name, x in four.items()),
            *every({f"AdLaLa > {name}": more(four["AdLaLa"], four[name]) for name in ("SGD", "Adam", "SGLD")}),
        ),
    ]


def sizes(results: Results) -> list[Claim]:
    early = {name: np.abs(inner(results[f"4 turns, {name}"], 0)).mean(1) for name in METHODS}
    late = {name: np.abs(inner(results[f"4 turns, {name}"])).mean(1) for name in METHODS}
    return [
        Claim(
            "after 50 steps the thermodynamic methods have excited the parameters more than SGD and Adam",
            "Figures 3.6, 3.7: the dark green histograms",
            "mean |parameter| on four turns: " + ", ".join(f"{name} {x.mean():.3f}" for name, x in early.items()),
            *every({f"{a} > {b}": more(early[a], early[b]) for a in ("SGLD", "AdLaLa") for b in ("SGD", "Adam")}),
        ),
        Claim(
            "SGLD assigns larger values to the parameters than AdLaLa",
            "Figures 3.6, 3.7: much larger",
            "mean |parameter| on four turns, in the end: "
            + ", ".join(f"{name} {x.mean():.3f}" for name, x in late.items()),
            *more(late["SGLD"], late["AdLaLa"]),
        ),
    ]


def tables(results: Results, config: Config) -> list[Table]:
    rows = [
        [turns, name, *map(plus_minus, results[f"{turns} turns, {name}"]["accuracy"][:, 0]), published.get(name, "–")]
        for turns, published in PUBLISHED.items()
        for name in METHODS
    ]
    times = [f"% at step {t:,}" for t in config.times]
    return [Table(["turns", "method", *times, "thesis %, at the end"], rows, f"Test accuracy, {config.runs} runs")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(4, len(METHODS), figsize=(8.6, 8.4), sharex="row")
    rows = [(turns, kind) for turns in PUBLISHED for kind in ("weights 1", "biases")]
    for column, name in enumerate(METHODS):
        for (turns, kind), axis in zip(rows, panels[:, column], strict=True):
            for i, colour in enumerate(("#14532d", "#3f9b5f", "#f2c14e")):
                values = results[f"{turns} turns, {name}"][kind][i]
                label = f"step {config.times[i]:,}"
                histogram(axis, values, 2.0, 80, logarithmic=True, color=colour, alpha=0.6, label=label)
            if column == 0:
                axis.set_ylabel(f"{turns} turns, {kind}", fontsize=9)
        panels[0, column].set_title(name, fontsize=10)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    title = "value; beyond ±2 in the outermost bins"
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, title=title)
    title = f"First layer over time, {config.nodes} nodes, logarithmic counts (Figures 3.6, 3.7)"
    figure.suptitle(title, fontsize=11)
    return {"weights": figure}
