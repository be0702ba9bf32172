"""The decision boundary of a classifier of the plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tether.measure.contour import Array, Curve, contour
from tether.measure.each import each
from tether.measure.score import Extent, Score, axes, rectangle, whole

__all__ = ["Boundary", "boundary"]


@dataclass(frozen=True)
class Boundary:
    """The curves on which a score has a given level, in a rectangle of the plane."""

    curves: list[Curve]
    field: Array  # the score on the grid: field[j, i] at the i-th x and the j-th y
    extent: tuple[float, float, float, float]
    level: float

    @property
    def exists(self) -> bool:
        """False if the whole rectangle belongs to one class."""
        return bool(self.curves)

    @property
    def length(self) -> float:
        return sum(curve.length for curve in self.curves)

    def __str__(self) -> str:
        if not self.exists:
            return f"no boundary: the score stays on one side of {self.level:g} in the whole rectangle"
        closed = sum(curve.closed for curve in self.curves)
        return f"boundary of length {self.length:.4g} in {len(self.curves)} curves, {closed} of them closed"

    def plot(self, ax: Any = None, data: tuple[Any, Any] | None = None) -> Any:
        """Both classes as areas, the boundary as a line, and points with their classes 0 and 1 if given."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        away = self.field - self.level
        shade = 0.5 + 0.5 * np.tanh(away / (np.abs(away).mean() or 1.0))
        ax.imshow(shade, extent=self.extent, origin="lower", cmap=_shades(), vmin=0, vmax=1, interpolation="bilinear")
        for curve in self.curves:
            points = np.concatenate([curve.points, curve.points[:1]]) if curve.closed else curve.points
            ax.plot(*points.T, color="#222222", linewidth=0.9)
        if data is not None:
            x, y = (np.asarray(torch.as_tensor(part).detach().cpu()) for part in data)
            for label, colour in enumerate(("#1f5f9e", "#c2452d")):
                ax.scatter(*x[y.reshape(-1) == label].T, s=4, color=colour, linewidths=0)
        x0, x1, y0, y1 = self.extent
        ax.set(xlabel="x", ylabel="y", xlim=(x0, x1), ylim=(y0, y1), aspect="equal")
        return ax


@each()
def boundary(f: Any, extent: Extent, *, grid: int = 1000, level: float = 0.0, chunk: int = 4096) -> Boundary:
    """The curves f = level in a rectangle, found on a grid.

    >>> found = boundary(lambda p: p.square().sum(1) - 4, extent=(-3, 3, -3, 3))
    >>> print(found)  # a circle of radius 2
    boundary of length 12.57 in 1 curves, 1 of them closed

    Args:
        f: a model or function that takes points, a tensor of shape (n, 2), and returns one score for each, or two
            scores, of which the difference (second minus first) is taken. A model in half precision is evaluated in
            single precision, since its own rounding is coarser than the grid. A model inside a function is run in its
            current mode.
        extent: the rectangle (x0, x1, y0, y1).
        grid: points along each side.
        level: of the score on the boundary: 0 for a logit, 0.5 for a probability.
        chunk: points in one call of f.
    """
    extent = rectangle(extent)
    x, y = axes(extent, whole("grid", grid, 2))
    with Score(f, chunk) as score:
        field = score.on(x, y)
    return Boundary(contour(x, y, field, level), field, extent, level)


def _shades() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("classes", ["#8db5de", "#f8f7f4", "#eeab99"])
