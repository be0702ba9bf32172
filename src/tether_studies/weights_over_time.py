"""Figures 3.6 and 3.7: thermodynamic methods excite the weights at once, and on four turns AdLaLa alone gets ahead.

500 ReLU nodes, 1000 points, 20 at a time, on two and four turns, seen after 50, 1000 and 10,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tether_studies.drawing import subplots
from tether_studies.judges import every, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, Task, learn
from tether_studies.quantities import listed
from tether_studies.recipes import Recipe, recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at
from tether_studies.weights import adlala, histogram, inner, parameters

STUDY = Study(
    "fig-3.6",
    "thermodynamic methods excite all weights at once; on four turns that pays",
    "thesis, Figures 3.6, 3.7",
    notes="The figures show a single run; here several. Their start is not given: 0.01 N(0, 1) is taken, as in Figures "
    "3.9 and 3.14, with biases 0. Their captions give σ = 0.01 for SGLD; here also the σ = 0.1 of Figure 3.8.",
)
METHODS = ("SGD", "Adam", "SGLD", "SGLD σ=0.1", "AdLaLa")
PUBLISHED = {  # test accuracies at step 10,000, by the turns
    2: {"SGD": 96.0, "Adam": 99.0, "SGLD": 74.0, "AdLaLa": 99.0},
    4: {"SGD": 58.0, "Adam": 67.0, "SGLD": 54.0, "AdLaLa": 80.0},
}


@dataclass(frozen=True)
class Config:
    runs: int = at(8, quick=2, full=100)
    nodes: int = at(500, quick=50)
    times: tuple[int, ...] = at((50, 1000, 10_000), quick=(20, 40, 100))
    start: float = 0.01  # standard deviation of the first weights


def methods(turns: int) -> dict[str, Recipe]:
    made = (
        recipe("sgd", lr=0.2),
        recipe("Adam", lr=0.005),
        recipe("sgld", lr=0.1, noise=0.01),
        recipe("sgld", lr=0.1, noise=0.1),  # as in Figure 3.8; not in the captions
        adlala(friction=0.5 if turns == 2 else 0.1),
    )
    return dict(zip(METHODS, made, strict=True))


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies and parameters at three times."""
    seed, work = lab.named_seed("runs"), {}
    for turns in PUBLISHED:
        task = Task("spiral", {"turns": float(turns)}, config.nodes, spread=config.start)
        for name, made in methods(turns).items():
            trained = partial(learn, task, made, config.times[-1], config.runs, seed)
            work[f"{turns} turns, {name}"] = partial(trained, records=config.times, watch=parameters)
    return lab.pieces(work)


def claims(results: Results, config: Config) -> Claims:
    two, four = ({name: ACCURACY.take(results[f"{t} turns, {name}"]) for name in METHODS} for t in PUBLISHED)
    published = {t: ", ".join(f"{name} {x:.0f} %" for name, x in numbers.items()) for t, numbers in PUBLISHED.items()}
    yield Claim(
        "on two turns SGD, Adam and AdLaLa find good minima, SGLD does not",
        f"Figure 3.6, step 10,000: {published[2]}",
        listed(two, unit=" %"),
        *every({f"{name} > SGLD": more(two[name], two["SGLD"]) for name in ("SGD", "Adam", "AdLaLa")}),
    )
    yield Claim(
        "on four turns AdLaLa is far ahead of SGD, Adam and SGLD",
        f"Figure 3.7, step 10,000: {published[4]}",
        listed(four, unit=" %"),
        *every({f"AdLaLa > {name}": more(four["AdLaLa"], four[name]) for name in ("SGD", "Adam", "SGLD")}),
    )
    early, late = (
        {name: np.abs(inner(results[f"4 turns, {name}"], record)).mean(1) for name in METHODS} for record in (0, -1)
    )
    yield Claim(
        "after 50 steps the thermodynamic methods have excited the parameters more than SGD and Adam",
        "Figures 3.6, 3.7: the dark green histograms",
        "mean |parameter| on four turns: " + ", ".join(f"{name} {x.mean():.3f}" for name, x in early.items()),
        *every({f"{a} > {b}": more(early[a], early[b]) for a in ("SGLD", "AdLaLa") for b in ("SGD", "Adam")}),
    )
    yield Claim(
        "SGLD assigns larger values to the parameters than AdLaLa",
        "Figures 3.6, 3.7: much larger",
        "mean |parameter| on four turns, in the end: "
        + ", ".join(f"{name} {x.mean():.3f}" for name, x in late.items()),
        *more(late["SGLD"], late["AdLaLa"]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    rows = [
        [turns, name, *map(plus_minus, results[f"{turns} turns, {name}"]["accuracy"][:, 0]), published.get(name, "–")]
        for turns, published in PUBLISHED.items()
        for name in METHODS
    ]
    times = [f"% at step {t:,}" for t in config.times]
    return [Table(["turns", "method", *times, "thesis %, at the end"], rows, f"Test accuracy, {config.runs} runs")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(4, len(METHODS), figsize=(8.6, 8.4), sharex="row")
    rows = [(turns, kind) for turns in PUBLISHED for kind in ("weights 1", "biases")]
    for column, name in enumerate(METHODS):
        for (turns, kind), axis in zip(rows, panels[:, column], strict=True):
            for i, colour in enumerate(("#14532d", "#3f9b5f", "#f2c14e")):
                values, label = results[f"{turns} turns, {name}"][kind][i], f"step {config.times[i]:,}"
                histogram(axis, values, 2.0, 80, logarithmic=True, color=colour, alpha=0.6, label=label)
            if column == 0:
                axis.set_ylabel(f"{turns} turns, {kind}", fontsize=9)
        panels[0, column].set_title(name, fontsize=10)
    title = "value; beyond ±2 in the outermost bins"
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, title=title)
    figure.suptitle(f"First layer over time, {config.nodes} nodes, logarithmic counts (Figures 3.6, 3.7)", fontsize=11)
    return {"weights": figure}
