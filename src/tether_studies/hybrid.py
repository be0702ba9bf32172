"""Figure 3.15: a few steps of DHSGD lead SGD to much better minima of the four-turn spiral.

DHSGD for 2,500 steps, then SGD for 47,500, over step sizes of both; beside it SGD alone. 1000 points, 20 at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import more, near, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.planar import Task, learn, tiled, tiled_sets, train
from tether_studies.study import Claim, Results, Study, Table, at

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
    task, seed = Task("spiral", {"turns": 4.0}, config.nodes), lab.named_seed("runs")
    alone = torch.tensor(ALONE).repeat_interleave(config.runs)

    def both() -> Results:
        return hybrid(config, task, seed, lab)

    def sgd() -> Results:
        place = lab.checkpoint("SGD alone")
        settings: dict[str, Any] = {"cells": len(ALONE), "records": 20, "checkpoint": place}
        return learn(task, ("sgd", {"lr": alone}), config.steps, config.runs, seed, **settings)

    return lab.pieces({"DHSGD, then SGD": both, "SGD alone": sgd})


def hybrid(config: Config, task: Task, seed: int, lab: Lab) -> Results:
    """Every pair of step sizes at once; the accuracy after DHSGD and over time after that."""
    pairs = torch.cartesian_prod(torch.tensor(FIRST), torch.tensor(THEN)).repeat_interleave(config.runs, 0)
    cells = len(FIRST) * len(THEN)
    nets = tiled(tether.Replicas(task.network, config.runs, seed=seed), task, cells)
    sets = tiled_sets(task.sets(config.runs, seed), cells)
    before = train(nets, task, ("dhsgd", {"lr": pairs[:, 0]}), sets, config.first, config.runs, seed)
    after = train(
        nets,
        task,
        ("sgd", {"lr": pairs[:, 1]}),
        sets,
        config.steps - config.first,
        config.runs,
        seed + 1,
        records=20,
        checkpoint=lab.checkpoint("DHSGD, then SGD"),
    )
    after["steps"] = after["steps"] + config.first
    return {"before": before["accuracy"][-1], **after}


def grid(results: Results) -> np.ndarray:
    """DHSGD's step size × SGD's × runs."""
    return results["DHSGD, then SGD"]["accuracy"][-1].reshape(len(FIRST), len(THEN), -1)


def claims(results: Results, config: Config) -> list[Claim]:
    alone, both = results["SGD alone"]["accuracy"][-1], grid(results)
    best = int(alone.mean(1).argmax())
    i, j = np.unravel_index(both.mean(2).argmax(), both.shape[:2])
    better = both.mean(2) > alone[best].mean()
    return [
        Claim(
            "SGD alone, with a tuned step size, stays at 70 % after 50,000 steps",
            "70 %",
            f"{plus_minus(alone[best])} % with h = {ALONE[best]}, the best of {ALONE}",
            *near(alone[best], PUBLISHED, within=5.0),
        ),
        Claim(
            "2,500 steps of DHSGD first improve it significantly",
            "significantly (Figure 3.15; no number in the text)",
            f"{plus_minus(both[i, j])} % with h = {FIRST[i]} and then {THEN[j]}",
            *more(both[i, j], alone[best]),
        ),
        Claim(
            "and not for one pair of step sizes alone",
            "Figure 3.15 shows a range of both step sizes",
            f"{better.sum()} of {better.size} pairs are above the best of SGD alone",
            *yes(better.mean() > 0.5, "more than half of them, in the mean over runs"),
        ),
    ]


def tables(results: Results, config: Config) -> list[Table]:
    both, alone = grid(results), results["SGD alone"]["accuracy"][-1]
    before = results["DHSGD, then SGD"]["before"].reshape(len(FIRST), -1)
    rows = [
        [h, plus_minus(before[i]), *(plus_minus(both[i, j]) for j in range(len(THEN)))] for i, h in enumerate(FIRST)
    ]
    head = ["h of DHSGD", "after DHSGD, %", *(f"then SGD {h}, %" for h in THEN)]
    return [
        Table(head, rows, f"{config.runs} runs, {config.first:,} of {config.steps:,} steps with DHSGD"),
        Table(["h of SGD alone", "test accuracy %"], [[h, plus_minus(x)] for h, x in zip(ALONE, alone, strict=True)]),
    ]


def draw(results: Results, config: Config) -> dict[str, Any]:
    both, alone = grid(results), results["SGD alone"]["accuracy"][-1]
    figure, axis = subplots(figsize=(6.4, 4.4))
    for j, (h, colour) in enumerate(zip(THEN, ("#1f77b4", "#d62728", "#e8b82c", "#8e44ad"), strict=True)):
        error = both[:, j].std(1, ddof=1) / both.shape[2] ** 0.5
        place = np.arange(len(FIRST)) + 0.2 * (j - 1.5)
        axis.bar(place, both[:, j].mean(1), 0.19, yerr=error, color=colour, label=f"then SGD, h = {h}", capsize=2)
    axis.axhline(alone.mean(1).max(), color="k", ls="--", lw=1, label="SGD alone, best h")
    axis.set(xticks=range(len(FIRST)), xticklabels=FIRST, ylim=(45, 100))
    axis.set(xlabel="step size of DHSGD", ylabel="test accuracy %")
    axis.set_title(f"Four turns, {config.first:,} steps of DHSGD, then SGD (Figure 3.15)", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return {"hybrid": figure}
