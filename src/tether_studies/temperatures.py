"""The same method at several temperatures: what Figures 3.1 and 3.17 share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tether_studies.drawing import subplots
from tether_studies.judges import plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import Task, draw_classifier, learn
from tether_studies.study import Results, Table

__all__ = ["accuracies", "draw", "sweep", "table"]

PIECE = "temperatures"


def sweep(
    lab: Lab, task: Task, method: str, temperatures: Sequence[float], steps: int, runs: int, **settings: Any
) -> Results:
    """Some runs at every temperature, all at once, from the same starts."""
    each = torch.tensor(temperatures).repeat_interleave(runs)

    def piece() -> Results:
        return learn(
            task,
            (method, {**settings, "temperature": each}),
            steps,
            runs,
            lab.named_seed("runs"),
            cells=len(temperatures),
            records=10,
            portraits=True,
            checkpoint=lab.checkpoint(PIECE),
        )

    return lab.pieces({PIECE: piece})


def accuracies(results: Results, temperatures: Sequence[float]) -> dict[float, np.ndarray]:
    """The test accuracies of the runs in the end, by temperature."""
    return dict(zip(temperatures, results[PIECE]["accuracy"][-1], strict=True))


def table(results: Results, temperatures: Sequence[float]) -> Table:
    """Accuracy and loss at every temperature."""
    found = results[PIECE]
    rows = [
        [f"{τ:.0e}", plus_minus(found["accuracy"][-1, i]), round(float(found["accuracy"][-1, i].min()), 1),
         round(float(found["accuracy"][-1, i].max()), 1), plus_minus(found["loss"][-1, i], 3)]
        for i, τ in enumerate(temperatures)
    ]  # fmt: skip
    return Table(["temperature τ", "test accuracy %", "worst", "best", "test loss"], rows)


def draw(
    results: Results, temperatures: Sequence[float], shown: Sequence[float], task: Task, title: str
) -> dict[str, Any]:
    """The classifiers of the median runs at four temperatures, and accuracy against temperature."""
    found = results[PIECE]
    figure, axis = subplots(figsize=(6.4, 8.6))
    axis.remove()
    axes = figure.subplot_mosaic("AB;CD;EE", height_ratios=[3, 3, 2])
    for name, τ in zip("ABCD", shown, strict=True):
        i = list(temperatures).index(τ)
        said = f"τ = {τ:.0e}   {found['median'][i]:.1f} %"
        draw_classifier(axes[name], found["classifier"][i], task, found["points"][i], found["classes"][i], said)
    final = found["accuracy"][-1]
    axes["E"].errorbar(temperatures, final.mean(1), final.std(1, ddof=1) / final.shape[1] ** 0.5, marker="o", capsize=3)
    for i, τ in enumerate(temperatures):
        axes["E"].plot([τ] * final.shape[1], final[i], ".", color="0.6", ms=3, zorder=0)
    axes["E"].set(xscale="log", xlabel="temperature τ", ylabel="test accuracy %")
    figure.suptitle(f"{title}; the median of {final.shape[1]} runs", fontsize=11)
    return {"temperature": figure}
