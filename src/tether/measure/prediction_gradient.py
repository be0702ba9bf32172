"""How sharply a classifier changes from one class to the other, along lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tether.measure.contour import Array
from tether.measure.each import each
from tether.measure.score import Extent, Score, rectangle, whole

__all__ = ["Line", "PredictionGradient", "prediction_gradient"]


@dataclass(frozen=True)
class Line:
    """The prediction along a line, and its derivative by the distance."""

    positions: Array  # distance from the start; along y = 0 and x = 0 the coordinate itself
    predictions: Array  # probability of class 1
    gradients: Array

    @property
    def mean(self) -> float:
        """Of |gradient|."""
        return float(np.abs(self.gradients).mean())

    @property
    def max(self) -> float:
        """Of |gradient|."""
        return float(np.abs(self.gradients).max())


@dataclass(frozen=True)
class PredictionGradient:
    """Lines by their names."""

    lines: dict[str, Line]

    def __getitem__(self, name: str) -> Line:
        return self.lines[name]

    @property
    def mean(self) -> float:
        """Of |gradient|, over all lines alike."""
        return float(np.mean([line.mean for line in self.lines.values()]))

    @property
    def max(self) -> float:
        """Of |gradient|, over all lines."""
        return max(line.max for line in self.lines.values())

    def __str__(self) -> str:
        rows = (f"{name}: mean {line.mean:.4g}, max {line.max:.4g}" for name, line in self.lines.items())
        return "|gradient of the prediction| along " + "; ".join(rows)

    def plot(self, ax: Any = None) -> Any:
        """The gradient along every line, after Figure 4.3."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        for name, line in self.lines.items():
            ax.plot(line.positions, line.gradients, linewidth=0.9, label=f"along {name}")
        ax.set(xlabel="position", ylabel="gradient of the prediction")
        ax.legend(frameon=False)
        return ax


@each()
def prediction_gradient(
    f: Any,
    extent: Extent | None = None,
    *,
    points: int = 1000,
    lines: Mapping[str, tuple[Any, Any]] | None = None,
    logits: bool = True,
    chunk: int = 4096,
) -> PredictionGradient:
    """Derivative of the predicted probability along y = 0 and x = 0, or any lines (Figure 4.3).

    By central differences over `points` equal steps, of second order also at the ends.

    >>> found = prediction_gradient(lambda p: 8 * p[:, 0], extent=(-1, 1, -1, 1))
    >>> print(found)  # the logistic function of 8x is steepest, 2, at 0
    |gradient of the prediction| along y = 0: mean 0.4992, max 2; x = 0: mean 0, max 0

    Args:
        f: a model or function of points that returns one score for each, or two logits.
        extent: the rectangle (x0, x1, y0, y1) that y = 0 and x = 0 cross.
        points: along each line.
        lines: other lines, as pairs (start, end) of inputs of any shape by their names, e.g. two images.
        logits: False if f returns probabilities, of class 1 or of both.
        chunk: points in one call of f.
    """
    whole("points", points, 3)
    if (extent is None) == (lines is None):
        raise ValueError("give either extent=(x0, x1, y0, y1), for the lines y = 0 and x = 0, or lines={name: (a, b)}")
    offsets: dict[str, float] = {}
    if extent is not None:
        x0, x1, y0, y1 = rectangle(extent)
        if not (x0 <= 0 <= x1 and y0 <= 0 <= y1):
            raise ValueError(f"y = 0 and x = 0 do not cross extent={tuple(extent)}: give lines={{name: (start, end)}}")
        lines, offsets = {"y = 0": ((x0, 0.0), (x1, 0.0)), "x = 0": ((0.0, y0), (0.0, y1))}, {"y = 0": x0, "x = 0": y0}
    found = {}
    with Score(f, chunk) as score:
        for name, (start, end) in (lines or {}).items():
            found[name] = _line(score, name, _array(start), _array(end), points, logits, offsets.get(name, 0.0))
    return PredictionGradient(found)


def _line(score: Score, name: str, start: Array, end: Array, points: int, logits: bool, offset: float) -> Line:
    length = float(np.linalg.norm(end - start)) if start.shape == end.shape else 0.0
    if not length > 0:
        raise ValueError(f"lines[{name!r}] must lead from one input to another of the same shape")
    share = np.linspace(0, 1, points).reshape(-1, *[1] * start.ndim)
    values = score.at((1 - share) * start + share * end)
    if logits:
        predictions = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    else:
        predictions = (values + 1) / 2 if score.columns == 2 else values
        if predictions.min() < -1e-6 or predictions.max() > 1 + 1e-6:
            raise ValueError(
                f"logits=False, but f answers with {values.min():.3g} … {values.max():.3g}: no probabilities"
            )
    positions = offset + length * share.reshape(-1)
    return Line(positions, predictions, np.gradient(predictions, length / (points - 1), edge_order=2))


def _array(point: Any) -> Array:
    given: Array = torch.as_tensor(point, dtype=torch.float64).detach().cpu().numpy()
    return given
