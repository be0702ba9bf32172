"""What the studies' figures share: panels, curves with bands, means with errors, bars, lines of loss."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tether_studies.judges import mean_error

__all__ = ["WHOLE", "beside", "curves", "draw_bars", "draw_curves", "draw_means", "lines", "subplots"]

MANY = 10  # lines, as many as there are colours
WHOLE = "whole network"
Pieces = Mapping[str, Mapping[str, Any]]


def subplots(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Make a figure and its panels, as pyplot does; matplotlib is not imported before."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"legend.frameon": False, "legend.fontsize": 8})
    return plt.subplots(rows, columns, layout="constrained", **options)


def curves(
    groups: Mapping[str, Pieces], keys: Mapping[str, str], x: str = "steps", across: bool = False, **style: Any
) -> tuple[Any, Any]:
    """Draw what was recorded over time: a column for each group under its title, a row for each key with its label.

    Across, groups are rows and keys are columns. Returns the figure and its panels, groups × keys.
    """
    rows, columns = (len(groups), len(keys)) if across else (len(keys), len(groups))
    size = (max(6.4, 3.7 * columns), max(4.2, 3.3 * rows))
    figure, panels = subplots(rows, columns, figsize=size, sharex="col", squeeze=False)
    by_group = panels if across else panels.T
    for line, (title, found) in zip(by_group, groups.items(), strict=True):
        for axis, (key, label) in zip(line, keys.items(), strict=True):
            draw_curves(axis, found, key, x, **style)
            axis.set_ylabel(label)
        line[0].set_title(title)
        line[0].legend()
    for axis in panels[-1]:
        axis.set_xlabel(x)
    return figure, by_group


def beside(published: Mapping[str, tuple[float, float]], measured: Mapping[str, Any], label: str) -> Any:
    """Published means with their standard deviations beside the means and deviations of our runs, a row for each name.

    The runs themselves are dots; a deviation that is not published is nan.
    """
    figure, axis = subplots(figsize=(6.4, 1 + 0.5 * len(published)))
    for i, (name, (mean, deviation)) in enumerate(published.items()):
        runs = np.ravel(measured[name])
        bar = 0 if math.isnan(deviation) else deviation
        axis.errorbar(mean, i + 0.12, xerr=bar, fmt="s", color="#c2452d", capsize=3, label="" if i else "published")
        ours = {"fmt": "o", "color": "#1f5fa8", "capsize": 3, "label": "" if i else "measured"}
        axis.errorbar(runs.mean(), i - 0.12, xerr=runs.std(ddof=1) if len(runs) > 1 else 0, **ours)
        axis.plot(runs, np.full(len(runs), i - 0.12), ".", color="0.6", ms=3, zorder=0)
    axis.set_yticks(range(len(published)), list(published))
    axis.set(xlabel=f"{label}; bars are standard deviations", ylim=(len(published) - 0.5, -0.5))
    axis.legend()
    return figure


def draw_curves(axis: Any, found: Pieces, key: str, x: str = "steps", band: str = "error", **style: Any) -> None:
    """Draw the mean over runs for each name, and as a band its standard error or the range of all runs.

    Where the times of all runs are recorded, those of the first count.
    """
    for i, (name, one) in enumerate(found.items()):
        values, times = np.reshape(one[key], (len(one[key]), -1)), one[x] if np.ndim(one[x]) == 1 else one[x][:, 0]
        mean = values.mean(1)
        axis.plot(times, mean, label=name, **{"lw": 1.3, "color": f"C{i}", **style})
        if band and values.shape[1] > 1:
            error = values.std(1, ddof=1) / math.sqrt(values.shape[1])
            low, high = (values.min(1), values.max(1)) if band == "range" else (mean - error, mean + error)
            axis.fill_between(times, low, high, color=f"C{i}", alpha=0.2, lw=0)


def draw_means(axis: Any, x: Sequence[Any], values: Sequence[Any], **style: Any) -> None:
    """Draw mean and standard error of the runs at each x."""
    means, errors = zip(*map(mean_error, values), strict=True)
    axis.errorbar(x, means, errors, **{"fmt": "o-", "capsize": 3, **style})


def draw_bars(axis: Any, cells: Mapping[str, np.ndarray], ticks: Sequence[Any]) -> None:
    """Draw bars side by side at every tick, one for each name: means of ticks × runs, with standard errors."""
    width, colours = 0.8 / len(cells), ("#1f77b4", "#d62728", "#e8b82c", "#8e44ad", "#2ca02c")
    for k, ((label, values), colour) in enumerate(zip(cells.items(), colours, strict=False)):
        place = np.arange(len(ticks)) + width * (k - (len(cells) - 1) / 2)
        error = values.std(1, ddof=1) / values.shape[1] ** 0.5
        axis.bar(place, values.mean(1), 0.95 * width, yerr=error, color=colour, label=label, capsize=2)
    axis.set(xticks=range(len(ticks)), xticklabels=ticks)


def _shade(i: int, count: int) -> Any:
    """The colour of a line among so many: from dark to light where there are more than colours."""
    if count <= MANY:
        return f"C{i}"
    from matplotlib import colormaps

    return colormaps["viridis"](0.92 * i / (count - 1))


def lines(
    groups: Mapping[str, Mapping[str, np.ndarray]], columns: int, mean: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Draw the loss on the way from start to end: a panel for each group under its title, in so many columns.

    Each run has a line, or all have their mean, with its standard error as a band. That of the whole network is dashed.
    """
    rows = -(-len(groups) // columns)
    size = (max(8.4, 3.7 * columns), 3.4 * rows)
    figure, panels = subplots(rows, columns, figsize=size, squeeze=False, **options)
    for axis, (title, found) in zip(panels.flat, groups.items(), strict=False):
        for i, (label, losses) in enumerate(found.items()):
            whole, alphas = label == WHOLE, np.linspace(0, 1, losses.shape[1])
            style = {"color": "black" if whole else _shade(i, len(found)), "ls": "--" if whole else "-"}
            shown, width = (losses.mean(0)[None], 1.5) if mean else (losses, 0.8)
            axis.plot(alphas, shown.T, label=[label, *(None for _ in shown[1:])], lw=width, **style)
            if mean and len(losses) > 1:
                error = losses.std(0, ddof=1) / np.sqrt(len(losses))
                axis.fill_between(alphas, shown[0] - error, shown[0] + error, color=style["color"], alpha=0.2, lw=0)
        axis.set(title=title, xlim=(0, 1), xlabel="α (0 start, 1 end)", ylabel="test loss")
        axis.spines[["top", "right"]].set_visible(False)
        if found:
            axis.legend(fontsize=7, ncols=2 if len(found) > MANY else 1)
    for empty in panels.flat[len(groups) :]:
        empty.set_axis_off()
    return figure, panels
