"""A score of points, computed in chunks, that leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure.batches import outputs
from tether.measure.contour import Array
from tether.measure.untouched import untouched

__all__ = ["Extent", "Score", "axes", "rectangle", "whole"]

Extent = Sequence[float]
HALF = (torch.bfloat16, torch.float16)


class Score:
    """A score of points of the plane in double precision.

    Inside its block the model is in eval mode; then it is as before.
    """

    def __init__(self, f: Callable[..., Any], chunk: int = 4096) -> None:
        if not callable(f):
            raise TypeError(f"f must be a model or a function of points of shape (n, 2), got {type(f).__name__}")
        self.chunk = whole("chunk", chunk, 1)
        self.module = f if isinstance(f, nn.Module) else nn.Module()
        self.guard = untouched(self.module)
        dtypes = {x.dtype for x in self.module.parameters() if x.is_floating_point()}
        self.f = copy.deepcopy(f).float() if isinstance(f, nn.Module) and dtypes & {*HALF} else f
        self.device = next((x.device for x in self.module.parameters()), torch.device("cpu"))
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        self.given, self.columns = bool(dtypes), 1

    def __enter__(self) -> Score:
        self.guard.__enter__()
        if self.f is not self.module and isinstance(self.f, nn.Module):
            self.f.eval()
        if not self.given:
            self.dtype = self._widest()
        return self

    def __exit__(self, *error: Any) -> None:
        self.guard.__exit__(*error)

    def _widest(self) -> torch.dtype:
        """The points in double precision, or in another one if the function contains a network that needs it."""
        try:
            self(torch.zeros(1, 2, dtype=torch.float64))
        except RuntimeError:
            return torch.get_default_dtype()
        return torch.float64

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """One number for each point, of shape (n,): the only score, or the second minus the first."""
        answer = self.f(points)
        out = torch.as_tensor(answer) if isinstance(answer, np.ndarray) else outputs(answer)
        out = out.reshape(len(points), -1) if out.numel() and out.numel() % len(points) == 0 else out
        if out.dim() != 2 or out.shape[1] not in (1, 2):
            raise ValueError(
                f"f answers {len(points)} points with a tensor of shape {tuple(out.shape)}: it must give one score, or "
                "two logits, for each point of shape (2,); pick the two classes, e.g. lambda p: model(p)[:, [3, 5]]"
            )
        self.columns = out.shape[1]
        return out[:, 0] if self.columns == 1 else out[:, 1] - out[:, 0]

    @torch.no_grad()
    def at(self, points: Any) -> Array:
        """The score at many points, one chunk at a time."""
        given = torch.as_tensor(np.asarray(points)).to(self.device, self.dtype)
        parts = [self(part).double().cpu().numpy() for part in torch.split(given, self.chunk)]
        values: Array = np.concatenate(parts)
        if not np.isfinite(values).all():
            where = np.asarray(points)[~np.isfinite(values)][0]
            raise ValueError(f"f is not finite at {where.tolist()}: leave such points out")
        return values

    def on(self, x: Array, y: Array) -> Array:
        """The score on a grid: [j, i] at (x[i], y[j])."""
        points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        return self.at(points).reshape(len(y), len(x))


def rectangle(extent: Extent) -> tuple[float, float, float, float]:
    """The four numbers of a rectangle. Raises unless they are finite and in order."""
    given = tuple(float(side) for side in extent)
    if len(given) != 4 or not np.isfinite(given).all() or given[0] >= given[1] or given[2] >= given[3]:
        raise ValueError(
            f"extent={tuple(extent)} must be (x0, x1, y0, y1) with x0 < x1 and y0 < y1; e.g. (-2, 2, -2, 2)"
        )
    return given[0], given[1], given[2], given[3]


def axes(extent: tuple[float, float, float, float], grid: int) -> tuple[Array, Array]:
    """The grid's lines."""
    x0, x1, y0, y1 = extent
    return np.linspace(x0, x1, grid), np.linspace(y0, y1, grid)


def whole(name: str, value: Any, least: int) -> int:
    """The count. Raises unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be an integer, {least} or more")
    return value
