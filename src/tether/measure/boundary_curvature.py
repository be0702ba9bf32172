"""Curvature of a decision boundary: by the formula for level sets, and by the contour estimate of the thesis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tether.measure.boundary import Boundary, Extent, Score, axes, rectangle, whole
from tether.measure.contour import Array, Curve, contour
from tether.measure.each import each

__all__ = ["ContourEstimate", "Curvature", "boundary_curvature"]

REACH = 6.5  # a Gaussian is cut so many widths from its middle, at 7e-10 of its height
CELLS = 2  # the default smoothing, in cells of the grid
FINE = 6  # points of the grid in a Gaussian's width that are enough for its sums


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
        """False where there is no boundary, and the curvature is nan."""
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
    """Curvature of the curve φ = level, φ being f smoothed by a Gaussian (section 4.7.3.3).

    ``κ = |φ_xx φ_y² − 2 φ_xy φ_x φ_y + φ_yy φ_x²| / (φ_x² + φ_y²)^{3/2}`` at points moved onto the curve by Newton's
    method, averaged over its length.

    >>> circle = boundary_curvature(lambda p: p.square().sum(1) - 4, extent=(-3, 3, -3, 3), smoothing=0)
    >>> print(f"{circle.mean:.6f} {circle.std:.6f} {circle.max:.6f}")
    0.500000 0.000000 0.500000
    >>> print(circle.contour)
    contour estimate: mean 0.5778, std 0.2843, max 1.124

    The boundary of a ReLU network is a polygon: its curvature is 0 but at the corners, where there is none, so it has
    to be smoothed over some scale. A corner by the angle α then counts α in ``mean · length``, whatever the scale, but
    its largest curvature goes as 1/smoothing.

    ``.contour`` holds the estimate of the thesis, ``κ = |x''y' − x'y''| / (x'² + y'²)^{3/2}`` (4.60) by central
    differences from point to point of the contour on the grid, over all points alike. These lie unevenly, so it does
    not converge as the grid gets finer: on circles its mean is 15 % too large. Two points close to each other make it
    as large as one likes. It compares classifiers on equal grids.

    Args:
        f: a model or function that takes points, a tensor of shape (n, 2), and answers with a score for each, or with
            two logits, of which the difference is taken.
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
        smooth = _Smooth(score, x, y, width, level) if width else None
        field = score.on(x, y) if smooth is None else smooth.inner
        raw = contour(x, y, field, level)
        found = raw if smooth is None else contour(x, y, smooth.field())
        derivatives = smooth if smooth is not None else _Autograd(score, level)
        curves = [_onto(curve, derivatives, cell) for curve in found]
        jets = [derivatives(curve.points) for curve in curves]
    if smooth is None:
        _refuse_polygons(jets, raw)
    values = [_curvature(*jet[1:]) for jet in jets]
    mean, std, top = _over_length(curves, values)
    edge = Boundary(raw, field, extent, level)
    return Curvature(mean, std, top, width, _estimate(raw), edge, curves, values)


Jet = tuple[Array, Array, Array, Array, Array, Array]  # φ, φ_x, φ_y, φ_xx, φ_xy, φ_yy


def _curvature(fx: Array, fy: Array, fxx: Array, fxy: Array, fyy: Array) -> Array:
    return np.abs(fxx * fy**2 - 2 * fxy * fx * fy + fyy * fx**2) / (fx**2 + fy**2) ** 1.5


def _over_length(curves: list[Curve], values: list[Array]) -> tuple[float, float, float]:
    """Mean and deviation, each point weighing half of the two steps next to it."""
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
    """(4.60), a derivative being a central difference over the number of the point."""
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
    """The points of a curve moved along ∇φ onto φ = 0, by at most a cell in each of a few steps."""
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
    """f without smoothing must bend where its boundary does."""
    flat = all(not np.any(second) for jet in jets for second in jet[3:])
    if flat and any(np.ptp(np.arctan2(jet[2], jet[1])) > 1e-6 for jet in jets):
        raise ValueError(
            "smoothing=0: f is linear in pieces, as ReLU networks are, and its boundary a polygon whose curvature is 0 "
            "but at its corners; give the scale over which to smooth them, e.g. smoothing=0.01"
        )


class _Autograd:
    """φ = f − level, with derivatives by autograd."""

    def __init__(self, score: Score, level: float) -> None:
        self.score, self.level = score, level

    def __call__(self, points: Array) -> Jet:
        parts = np.array_split(points, -(-len(points) // self.score.chunk))
        columns = zip(*(self._few(part) for part in parts), strict=True)
        a, b, c, d, e, f = (np.concatenate(column) for column in columns)
        return a, b, c, d, e, f

    def _few(self, points: Array) -> Jet:
        p = torch.tensor(points, dtype=self.score.dtype, device=self.score.device, requires_grad=True)
        with torch.enable_grad():
            value = self.score(p) - self.level
            if not value.requires_grad:
                raise ValueError("smoothing=0 differentiates f by autograd, which f breaks: give smoothing > 0 instead")
            (first,) = torch.autograd.grad(value.sum(), p, create_graph=True)
            second = [
                torch.autograd.grad(part.sum(), p, retain_graph=True, allow_unused=True)[0]
                if part.requires_grad
                else None
                for part in (first[:, 0], first[:, 1])
            ]
        xx, yy = (torch.zeros_like(p) if s is None else s for s in second)
        jet = (value, first[:, 0], first[:, 1], xx[:, 0], xx[:, 1], yy[:, 1])
        a, b, c, d, e, f = (part.detach().double().cpu().numpy() for part in jet)
        return a, b, c, d, e, f


class _Smooth:
    """φ = (f − level) ∗ Gaussian, by sums over a grid that reaches beyond the rectangle by the Gaussian's width."""

    def __init__(self, score: Score, x: Array, y: Array, width: float, level: float) -> None:
        self.width, self.step = width, (x[1] - x[0], y[1] - y[0])
        self.stride = tuple(max(1, int(width / (FINE * step))) for step in self.step)
        self.reach = tuple(
            stride * (math.ceil(REACH * width / (stride * step)) + 1)
            for step, stride in zip(self.step, self.stride, strict=True)
        )
        (rx, ry), (hx, hy) = self.reach, self.step
        self.x = x[0] + hx * np.arange(-rx, len(x) + rx)
        self.y = y[0] + hy * np.arange(-ry, len(y) + ry)
        values = score.on(self.x, self.y)
        self.inner = values[ry:-ry, rx:-rx]
        # Weights add up to 1 but for rounding: they have least to lose where the score is 0 on the boundary.
        self.values = values - level

    def field(self) -> Array:
        """φ on the grid of the rectangle."""
        inner = [axis[reach:-reach] for axis, reach in zip((self.x, self.y), self.reach, strict=True)]
        across, up = (
            self.weights(mine[:, None] - axis, step)[0]
            for mine, axis, step in zip(inner, (self.x, self.y), self.step, strict=True)
        )
        return up @ self.values @ across.T

    def weights(self, distance: Array, step: float) -> tuple[Array, Array, Array]:
        """Those of a sum over the grid for the Gaussian and its first two derivatives at a distance."""
        u, s = distance / self.width, self.width
        g = step * np.exp(-(u**2) / 2) / (s * math.sqrt(2 * math.pi))
        return g, -u / s * g, (u**2 - 1) / s**2 * g

    def __call__(self, points: Array) -> Jet:
        """φ and its derivatives at points of the plane, exactly for this sum."""
        window = math.prod(2 * reach // stride + 1 for reach, stride in zip(self.reach, self.stride, strict=True))
        parts = np.array_split(points, -(-len(points) * window // 4_000_000) or 1)
        columns = zip(*(self._few(part) for part in parts), strict=True)
        a, b, c, d, e, f = (np.concatenate(column) for column in columns)
        return a, b, c, d, e, f

    def _few(self, points: Array) -> Jet:
        weights, places = [], []
        for k, axis in enumerate((self.x, self.y)):
            step, reach, stride = self.step[k], self.reach[k], self.stride[k]
            middle = np.rint((points[:, k] - axis[0]) / step).astype(np.int64).clip(reach, len(axis) - 1 - reach)
            place = middle[:, None] + np.arange(-reach, reach + 1, stride)
            places.append(place)
            weights.append(self.weights(points[:, k, None] - axis[place], stride * step))
        window = self.values[places[1][:, :, None], places[0][:, None, :]]
        across = [np.einsum("pji,pi->pj", window, w) for w in weights[0]]
        orders = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))
        a, b, c, d, e, f = ((across[i] * weights[1][j]).sum(1) for i, j in orders)
        return a, b, c, d, e, f
