"""The same method at several temperatures: what Figures 3.1 and 3.17 share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tether_studies.drawing import subplots
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, BEST, LOSS, WORST, Task, draw_classifier, each, learn
from tether_studies.quantities import tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Figures, Results, Table

__all__ = ["accuracies", "draw", "sweep", "table", "told"]

PIECE = "temperatures"


def sweep(
    lab: Lab, task: Task, method: str, temperatures: Sequence[float], steps: int, runs: int, **settings: Any
) -> Results:
    """Some runs at every temperature, all at once, from the same starts."""
    made = recipe(method, temperature=each(temperatures, runs), **settings)
    options: dict[str, Any] = {"cells": len(temperatures), "records": 10, "checkpoint": lab.checkpoint(PIECE)}
    seed = lab.named_seed("runs")
    return lab.pieces({PIECE: lambda: learn(task, made, steps, runs, seed, portraits=True, **options)})


def accuracies(results: Results, temperatures: Sequence[float]) -> dict[float, np.ndarray]:
    """The test accuracies of the runs in the end, by temperature."""
    return dict(zip(temperatures, results[PIECE]["accuracy"][-1], strict=True))


def told(at: dict[float, np.ndarray], temperatures: Sequence[float]) -> str:
    """The accuracies at some temperatures, in words."""
    return ", ".join(f"{ACCURACY.text(at[τ])} % at {τ:.0e}" for τ in temperatures)


def table(results: Results, temperatures: Sequence[float]) -> Table:
    """Accuracy and loss at every temperature."""
    found = results[PIECE]
    rows = {f"{τ:.0e}": {k: found[k][:, i] for k in ("accuracy", "loss")} for i, τ in enumerate(temperatures)}
    return tabulated("temperature τ", rows, [ACCURACY, WORST, BEST, LOSS])


def draw(results: Results, temperatures: Sequence[float], shown: Sequence[float], task: Task, title: str) -> Figures:
    """The classifiers of the median runs at four temperatures, and accuracy against temperature."""
    found = results[PIECE]
    figure, (first, second, below) = subplots(3, 2, figsize=(6.4, 8.6), height_ratios=[3, 3, 2])
    for panel, τ in zip([*first, *second], shown, strict=True):
        i = list(temperatures).index(τ)
        said = f"τ = {τ:.0e}   {found['median'][i]:.1f} %"
        draw_classifier(panel, found["classifier"][i], task, found["points"][i], found["classes"][i], said)
    for panel in below:
        panel.remove()
    wide = figure.add_subplot(3, 1, 3)
    final = found["accuracy"][-1]
    wide.errorbar(temperatures, final.mean(1), final.std(1, ddof=1) / final.shape[1] ** 0.5, marker="o", capsize=3)
    for i, τ in enumerate(temperatures):
        wide.plot([τ] * final.shape[1], final[i], ".", color="0.6", ms=3, zorder=0)
    wide.set(xscale="log", xlabel="temperature τ", ylabel="test accuracy %")
    figure.suptitle(f"{title}; the median of {final.shape[1]} runs", fontsize=11)
    return {"temperature": figure}
