"""Curvature of a decision boundary: by the formula for level sets, and by the contour estimate of the thesis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tether.measure.boundary import Boundary
from tether.measure.contour import Array, Curve, contour
from tether.measure.derivatives import ByAutograd, Jet, Smooth
from tether.measure.each import each
from tether.measure.score import Extent, Score, axes, rectangle, whole

__all__ = ["ContourEstimate", "Curvature", "boundary_curvature"]

CELLS = 2  # the default smoothing, in cells of the grid


@dataclass(frozen=True)
class ContourEstimate:
    """Curvature by (4.60) at the points of the contour on the grid."""

    mean: float
    std: float
    max: float

    def __str__(self) -> str:
        return f"contour estimate: mean {self.mean:.4g}, std {self.std:.4g}, max {self.max:.4g}"


@dataclass(frozen=True)
class Curvature:
    """Curvature along a decision boundary: mean and standard deviation over its length, and the largest."""

    mean: float
    std: float
    max: float
    smoothing: float  # width of the Gaussian, in units of the plane
    contour: ContourEstimate
    boundary: Boundary  # of the score itself
    curves: list[Curve]  # of the smoothed score
    curvatures: list[Array]  # at the points of these curves

    @property
    def exists(self) -> bool:
        """False if there is no boundary; the curvature is then nan."""
        return bool(self.curves)

    @property
    def length(self) -> float:
        return sum(curve.length for curve in self.curves)

    def __str__(self) -> str:
        if not self.exists:
            return str(self.boundary) if not self.boundary.exists else "no boundary is left by the smoothing"
        values = f"mean {self.mean:.4g}, std {self.std:.4g}, max {self.max:.4g}"
        return f"curvature: {values} over a length of {self.length:.4g}, smoothed over {self.smoothing:.3g}"

    def plot(self, ax: Any = None, data: tuple[Any, Any] | None = None) -> Any:
        """The decision boundary, its colour the curvature, over both classes' areas."""
        import matplotlib.pyplot as plt
        from matplotlib.collections import LineCollection
        from matplotlib.colors import LogNorm

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        Boundary([], self.boundary.field, self.boundary.extent, self.boundary.level).plot(ax, data)
        if not self.exists:
            return ax
        norm = LogNorm(max(self.mean / 30, 1e-12), max(self.mean * 30, 1e-11), clip=True)
        for curve, values in zip(self.curves, self.curvatures, strict=True):
            points = np.concatenate([curve.points, curve.points[:1]]) if curve.closed else curve.points
            pieces = np.stack([points[:-1], points[1:]], axis=1)
            lines = LineCollection(list(pieces), cmap="viridis_r", norm=norm, linewidths=1.4)
            lines.set_array(np.maximum(values[: len(pieces)], 1e-12))
            ax.add_collection(lines)
        ax.figure.colorbar(lines, ax=ax, label="curvature")
        return ax


@each()
def boundary_curvature(
    f: Any,
    extent: Extent,
    *,
    smoothing: float | None = None,
    grid: int = 1000,
    level: float = 0.0,
    chunk: int = 4096,
) -> Curvature:
    """Curvature of the curve φ = level, with φ = f smoothed by a Gaussian (section 4.7.3.3).

    ``κ = |φ_xx φ_y² − 2 φ_xy φ_x φ_y + φ_yy φ_x²| / (φ_x² + φ_y²)^{3/2}`` at points moved onto the curve by Newton's
    method, averaged over its length.

    >>> circle = boundary_curvature(lambda p: p.square().sum(1) - 4, extent=(-3, 3, -3, 3), smoothing=0)
    >>> print(f"{circle.mean:.6f} {circle.std:.6f} {circle.max:.6f}")
    0.500000 0.000000 0.500000
    >>> print(circle.contour)
    contour estimate: mean 0.5778, std 0.2843, max 1.124

    The boundary of a ReLU network is a polygon: its curvature is 0 except at the corners, where it is not defined. So
    it must be smoothed over some scale. A corner of angle α then contributes α to ``mean · length``, for any scale, but
    its largest curvature is proportional to 1/smoothing.

    ``.contour`` holds the estimate of the thesis, ``κ = |x''y' − x'y''| / (x'² + y'²)^{3/2}`` (4.60) by central
    differences from point to point of the contour on the grid, with equal weight for all points. The points are not
    evenly spaced, so the estimate does not converge on finer grids: for circles its mean is 15 % too large, and two
    close points can make it arbitrarily large. Use it to compare classifiers on equal grids.

    Args:
        f: a model or function that takes points, a tensor of shape (n, 2), and returns one score for each, or two
            logits, of which the difference is taken.
        extent: the rectangle (x0, x1, y0, y1).
        smoothing: width (standard deviation) of the Gaussian, in units of the plane, at least one cell of the grid;
            None takes two cells. 0 takes f as it is, with derivatives by autograd.
        grid: points along each side.
        level: of the score on the boundary: 0 for a logit, 0.5 for a probability.
        chunk: points in one call of f.
    """
    extent = rectangle(extent)
    x, y = axes(extent, whole("grid", grid, 3))
    cell = float(max(x[1] - x[0], y[1] - y[0]))
    width = CELLS * cell if smoothing is None else float(smoothing)
    if not (width == 0 or (math.isfinite(width) and width >= cell * (1 - 1e-9))):
        raise ValueError(
            f"smoothing={smoothing!r} must be 0 or at least a cell of the grid, {cell:.3g}; make the grid finer, e.g. "
            f"grid={max(grid, math.ceil(CELLS * grid * cell / width) if width > 0 else grid)}"
        )
    with Score(f, chunk) as score:
        smooth = Smooth(score, x, y, width, level) if width else None
        field = score.on(x, y) if smooth is None else smooth.inner
        raw = contour(x, y, field, level)
        found = raw if smooth is None else contour(x, y, smooth.field())
        derivatives = smooth if smooth is not None else ByAutograd(score, level)
        curves = [_onto(curve, derivatives, cell) for curve in found]
        jets = [derivatives(curve.points) for curve in curves]
    if smooth is None:
        _refuse_polygons(jets, raw)
    values = [_curvature(*jet[1:]) for jet in jets]
    mean, std, top = _over_length(curves, values)
    edge = Boundary(raw, field, extent, level)
    return Curvature(mean, std, top, width, _estimate(raw), edge, curves, values)


def _curvature(fx: Array, fy: Array, fxx: Array, fxy: Array, fyy: Array) -> Array:
    return np.abs(fxx * fy**2 - 2 * fxy * fx * fy + fyy * fx**2) / (fx**2 + fy**2) ** 1.5


def _over_length(curves: list[Curve], values: list[Array]) -> tuple[float, float, float]:
    """Mean and deviation, with half the length of the two neighbouring steps as the weight of a point."""
    if not curves:
        return math.nan, math.nan, math.nan
    weights = []
    for curve in curves:
        steps = curve.steps
        before = np.roll(steps, 1) if curve.closed else np.append(0, steps)
        weights.append((before + (steps if curve.closed else np.append(steps, 0))) / 2)
    w, k = np.concatenate(weights), np.concatenate(values)
    mean = float(np.average(k, weights=w))
    return mean, math.sqrt(float(np.average((k - mean) ** 2, weights=w))), float(k.max())


def _estimate(curves: list[Curve]) -> ContourEstimate:
    """(4.60), with central differences over the index of the point as derivatives."""
    values = []
    for points, closed in curves:
        if len(points) < 3:
            continue
        along = np.concatenate([points[-2:], points, points[:2]]) if closed else points
        d = np.gradient(along, axis=0)
        dd = np.gradient(d, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            k = np.abs(dd[:, 0] * d[:, 1] - d[:, 0] * dd[:, 1]) / (d**2).sum(1) ** 1.5
        values.append(k[2:-2] if closed else k)
    if not values:
        return ContourEstimate(math.nan, math.nan, math.nan)
    k = np.concatenate(values)
    return ContourEstimate(float(k.mean()), float(k.std()), float(k.max()))


def _onto(curve: Curve, derivatives: Any, cell: float) -> Curve:
    """The points of a curve moved along ∇φ onto φ = 0, in a few steps of at most one cell each."""
    points = curve.points
    for _ in range(4):
        value, fx, fy, *_ = derivatives(points)
        slope = np.maximum(fx**2 + fy**2, 1e-300)
        move = (-value / slope)[:, None] * np.stack([fx, fy], axis=1)
        size = np.hypot(*move.T)
        points = points + move * np.minimum(1, cell / np.maximum(size, 1e-300))[:, None]
        if size.max() < 1e-9 * cell:
            break
    return Curve(points, curve.closed)


def _refuse_polygons(jets: list[Jet], curves: list[Curve]) -> None:
    """Raise for a piecewise linear f: without smoothing its curvature would be 0."""
    flat = all(not np.any(second) for jet in jets for second in jet[3:])
    if flat and any(np.ptp(np.arctan2(jet[2], jet[1])) > 1e-6 for jet in jets):
        raise ValueError(
            "smoothing=0: f is linear in pieces, as ReLU networks are, and its boundary a polygon whose curvature is 0 "
            "but at its corners; give the scale over which to smooth them, e.g. smoothing=0.01"
        )
