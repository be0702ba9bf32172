"""Figure 3.15: a few steps of DHSGD lead SGD to much better minima of the four-turn spiral.

DHSGD for 2,500 steps, then SGD for 47,500, over step sizes of both; beside it SGD alone. 1000 points, 20 at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from tether_studies.drawing import draw_bars, subplots
from tether_studies.judges import more, near, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.planar import Task, each, learn, starts
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.15",
    "DHSGD first, then SGD, beats SGD",
    "thesis, Figure 3.15",
    notes="The network is not given: 100 nodes, as in the other figures with four turns, from torch's own start. The "
    "step sizes of DHSGD are ours.",
)
FIRST = (0.1, 0.2, 0.3, 0.4, 0.5)  # step sizes of DHSGD
THEN = (0.05, 0.1, 0.15, 0.2)  # of SGD
ALONE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
PUBLISHED = 70.0


@dataclass(frozen=True)
class Config:
    nodes: int = at(100, quick=20)
    first: int = at(2_500, quick=50)
    steps: int = at(50_000, quick=150)
    runs: int = at(4, quick=2, full=20)


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies, step sizes × runs."""
    task, seed, runs = Task("spiral", {"turns": 4.0}, config.nodes), lab.named_seed("runs"), config.runs
    options = {"cells": len(ALONE), "records": 20, "checkpoint": lab.checkpoint("SGD alone")}
    sgd = recipe("sgd", lr=each(ALONE, runs))
    alone = partial(learn, task, sgd, config.steps, runs, seed, **options)  # type: ignore[arg-type]
    return lab.pieces({"DHSGD, then SGD": lambda: hybrid(config, task, seed, lab), "SGD alone": alone})


def hybrid(config: Config, task: Task, seed: int, lab: Lab) -> Results:
    """Every pair of step sizes at once; the accuracy after DHSGD and over time after that."""
    pairs, runs = list(product(FIRST, THEN)), config.runs
    first, then = (each(sizes, runs) for sizes in zip(*pairs, strict=True))
    nets, sets = starts(task, runs, seed, len(pairs)), task.sets(runs, seed, len(pairs))
    before = learn(task, recipe("dhsgd", lr=first), config.first, runs, seed, nets=nets, sets=sets)
    place, rest = lab.checkpoint("DHSGD, then SGD"), config.steps - config.first
    sgd = recipe("sgd", lr=then)
    after = learn(task, sgd, rest, runs, seed + 1, nets=nets, sets=sets, records=20, checkpoint=place)
    return {"before": before["accuracy"][-1], **after, "steps": after["steps"] + config.first}


def grid(results: Results) -> np.ndarray:
    """DHSGD's step size × SGD's × runs."""
    return results["DHSGD, then SGD"]["accuracy"][-1].reshape(len(FIRST), len(THEN), -1)


def claims(results: Results, config: Config) -> Claims:
    alone, both = results["SGD alone"]["accuracy"][-1], grid(results)
    best = int(alone.mean(1).argmax())
    yield Claim(
        "SGD alone, with a tuned step size, stays at 70 % after 50,000 steps",
        "70 %",
        f"{plus_minus(alone[best])} % with h = {ALONE[best]}, the best of {ALONE}",
        *near(alone[best], PUBLISHED, within=5.0),
    )
    i, j = np.unravel_index(both.mean(2).argmax(), both.shape[:2])
    yield Claim(
        "2,500 steps of DHSGD first improve it significantly",
        "significantly (Figure 3.15; no number in the text)",
        f"{plus_minus(both[i, j])} % with h = {FIRST[i]} and then {THEN[j]}",
        *more(both[i, j], alone[best]),
    )
    better = both.mean(2) > alone[best].mean()
    yield Claim(
        "and not for one pair of step sizes alone",
        "Figure 3.15 shows a range of both step sizes",
        f"{better.sum()} of {better.size} pairs are above the best of SGD alone",
        *yes(better.mean() > 0.5, "more than half of them, in the mean over runs"),
    )


def tables(results: Results, config: Config) -> list[Table]:
    before = results["DHSGD, then SGD"]["before"].reshape(len(FIRST), -1)
    rows = [[h, plus_minus(x), *map(plus_minus, y)] for h, x, y in zip(FIRST, before, grid(results), strict=True)]
    head = ["h of DHSGD", "after DHSGD, %", *(f"then SGD {h}, %" for h in THEN)]
    alone = [[h, plus_minus(x)] for h, x in zip(ALONE, results["SGD alone"]["accuracy"][-1], strict=True)]
    return [
        Table(head, rows, f"{config.runs} runs, {config.first:,} of {config.steps:,} steps with DHSGD"),
        Table(["h of SGD alone", "test accuracy %"], alone),
    ]


def draw(results: Results, config: Config) -> Figures:
    figure, axis = subplots(figsize=(6.4, 4.4))
    cells = {f"then SGD, h = {h}": grid(results)[:, j] for j, h in enumerate(THEN)}
    draw_bars(axis, cells, FIRST, ("#1f77b4", "#d62728", "#e8b82c", "#8e44ad"))
    best = results["SGD alone"]["accuracy"][-1].mean(1).max()
    axis.axhline(best, color="k", ls="--", lw=1, label="SGD alone, best h")
    axis.set(xlabel="step size of DHSGD", ylabel="test accuracy %", ylim=(45, 100))
    axis.set_title(f"Four turns, {config.first:,} steps of DHSGD, then SGD (Figure 3.15)", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2)
    return {"hybrid": figure}
