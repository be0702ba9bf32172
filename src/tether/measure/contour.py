"""Level curves of a function known on a grid, by marching squares."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Curve", "contour"]

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Curve(NamedTuple):
    """Points along a level curve, in order. A closed curve continues from its last point to its first."""

    points: Array
    closed: bool

    @property
    def steps(self) -> Array:
        """Lengths from each point to the next; an open curve has one less than points."""
        ahead = np.roll(self.points, -1, axis=0) if self.closed else self.points[1:]
        return np.hypot(*(ahead - self.points[: len(ahead)]).T)

    @property
    def length(self) -> float:
        return float(self.steps.sum())


def contour(x: Array, y: Array, z: Array, level: float = 0.0) -> list[Curve]:
    """The curves z = level, with points on the edges of the grid, along which z is interpolated linearly.

    ``z[j, i]`` belongs to ``(x[i], y[j])``. In a cell with alternating high and low corners the mean of the corners
    decides how it is cut.
    """
    above = z > level
    rows, columns = z.shape
    flat = np.nonzero(above[:, 1:] != above[:, :-1])  # edges from (i, j) to (i + 1, j), numbered first
    upright = np.nonzero(above[1:] != above[:-1])  # edges from (i, j) to (i, j + 1), numbered after them
    first = rows * (columns - 1)
    numbers = np.concatenate([flat[0] * (columns - 1) + flat[1], first + upright[0] * columns + upright[1]])
    if not len(numbers):
        return []
    points = np.concatenate([_crossings(x, y, z, level, flat, 0), _crossings(x, y, z, level, upright, 1)])
    pieces = np.searchsorted(numbers, _pieces(above, z, level))
    return [curve for curve in _chains(points, pieces) if len(curve.points) > 1]


def _crossings(x: Array, y: Array, z: Array, level: float, starts: tuple[Any, ...], up: int) -> Array:
    """The points with z = level on edges, given by the row and column of their first corner."""
    j, i = starts
    low, high = z[j, i], z[j + up, i + 1 - up]
    share = (level - low) / (high - low)
    if up:
        return np.stack([x[i], y[j] + share * (y[j + 1] - y[j])], axis=1)
    return np.stack([x[i] + share * (x[i + 1] - x[i]), y[j]], axis=1)


def _pieces(above: npt.NDArray[np.bool_], z: Array, level: float) -> Integers:
    """The numbers of the two edges that each piece of a curve joins, cell by cell."""
    rows, columns = above.shape
    cut = above[:, 1:] != above[:, :-1], above[1:] != above[:-1]
    crossed = cut[0][:-1] | cut[0][1:] | cut[1][:, :-1] | cut[1][:, 1:]
    j, i = np.nonzero(crossed)
    first = rows * (columns - 1)
    bottom, left = j * (columns - 1) + i, first + j * columns + i
    edges = np.stack([bottom, left + 1, bottom + columns - 1, left], axis=1)  # bottom, right, top, left
    hit = np.stack([cut[0][j, i], cut[1][j, i + 1], cut[0][j + 1, i], cut[1][j, i]], axis=1)
    simple = hit.sum(1) == 2
    pairs = edges[simple][hit[simple]].reshape(-1, 2)
    j, i, edges = j[~simple], i[~simple], edges[~simple]
    centre = (z[j, i] + z[j, i + 1] + z[j + 1, i] + z[j + 1, i + 1]) / 4 > level
    # The corner (i, j) is joined to the opposite one through the centre, or cut off.
    joined = centre == above[j, i]
    saddles = [edges[joined][:, [0, 1, 2, 3]].reshape(-1, 2), edges[~joined][:, [0, 3, 1, 2]].reshape(-1, 2)]
    return np.concatenate([pairs, *saddles])


def _chains(points: Array, pieces: Integers) -> list[Curve]:
    """The pieces joined to curves. A point belongs to two pieces, or to one at the rim of the grid."""
    neighbours: list[list[int]] = [[] for _ in points]
    for a, b in pieces.tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    ends = [k for k, near in enumerate(neighbours) if len(near) == 1]
    seen = [False] * len(points)
    curves = []
    for start in [*ends, *range(len(points))]:
        if seen[start]:
            continue
        closed, chain, k = len(neighbours[start]) == 2, [start], start
        seen[start] = True
        while (k := next((n for n in neighbours[k] if not seen[n]), -1)) >= 0:
            seen[k] = True
            chain.append(k)
        curves.append(_distinct(points[chain], closed))
    return curves


def _distinct(points: Array, closed: bool) -> Curve:
    """The curve without repeated points, which occur if z = level at a corner of the grid."""
    fresh = (points != np.roll(points, 1, axis=0)).any(1)
    return Curve(points[fresh], closed)
