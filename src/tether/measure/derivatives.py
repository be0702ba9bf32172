"""A score of the plane and its first two derivatives, as it is or smoothed by a Gaussian."""

from __future__ import annotations

import math

import numpy as np
import torch

from tether.measure.contour import Array
from tether.measure.score import Score

__all__ = ["ByAutograd", "Jet", "Smooth"]

Jet = tuple[Array, Array, Array, Array, Array, Array]  # φ, φ_x, φ_y, φ_xx, φ_xy, φ_yy
REACH = 6.5  # a Gaussian is cut at so many widths from its centre, at 7e-10 of its height
FINE = 6  # so many grid points per width of a Gaussian are enough for its sums


class ByAutograd:
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
                raise ValueError(
                    "smoothing=0 differentiates f by autograd, but f is not differentiable: use smoothing>0"
                )
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


class Smooth:
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
        # The weights add up to 1 up to rounding, so the error is smallest if the score is 0 on the boundary.
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
        """The weights of a sum over the grid for the Gaussian and its first two derivatives."""
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
