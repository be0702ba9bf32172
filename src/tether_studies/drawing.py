"""What the studies' figures share: panels, curves with bands, bars with errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["draw_bars", "draw_curve", "draw_curves", "subplots"]


def subplots(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Make a figure and its panels, as pyplot does; matplotlib is not imported before."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"legend.frameon": False, "legend.fontsize": 8})
    return plt.subplots(rows, columns, layout="constrained", **options)


def draw_curve(axis: Any, x: Any, values: np.ndarray, label: str, band: str = "error", **style: Any) -> None:
    """Draw the mean of some runs over time (records × runs), and as a band its standard error or all of its range."""
    mean = values.mean(1)
    (line,) = axis.plot(x, mean, label=label, **{"lw": 1.3, **style})
    if band and values.shape[1] > 1:
        error = values.std(1, ddof=1) / math.sqrt(values.shape[1])
        low, high = (values.min(1), values.max(1)) if band == "range" else (mean - error, mean + error)
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)


def draw_curves(axis: Any, found: Mapping[str, Mapping[str, Any]], key: str, x: str = "steps", **style: Any) -> None:
    """Draw a curve for each name; where the times of all runs are recorded, those of the first count."""
    for i, (name, one) in enumerate(found.items()):
        values, times = one[key], one[x] if np.ndim(one[x]) == 1 else one[x][:, 0]
        draw_curve(axis, times, values.reshape(len(values), -1), name, **{"color": f"C{i}", **style})


def draw_bars(axis: Any, cells: Mapping[str, np.ndarray], ticks: Sequence[Any], colours: Sequence[str]) -> None:
    """Draw bars side by side at every tick, one for each name: means of ticks × runs, with standard errors."""
    width = 0.8 / len(cells)
    for k, ((label, values), colour) in enumerate(zip(cells.items(), colours, strict=False)):
        place = np.arange(len(ticks)) + width * (k - (len(cells) - 1) / 2)
        error = values.std(1, ddof=1) / values.shape[1] ** 0.5
        axis.bar(place, values.mean(1), 0.95 * width, yerr=error, color=colour, label=label, capsize=2)
    axis.set(xticks=range(len(ticks)), xticklabels=ticks)
