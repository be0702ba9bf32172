"""The problems of the window: data, network and loss from a setting."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tether import data
from tether.ensemble.replicas import Replicas
from tether.window.setting import ACTIVATIONS, MOST_POINTS, Setting, SettingError

__all__ = ["Problem", "Well", "energy", "problem_of"]

Pair = tuple[torch.Tensor, torch.Tensor]
Frame = tuple[float, float, float, float]


@dataclass(frozen=True)
class Problem:
    """What is learnt: `classes` is 0 for regression, `train` is None for a potential without data."""

    train: Pair | None
    test: Pair | None
    loss: Callable[..., torch.Tensor]
    classes: int
    frame: Frame  # left, right, low, high of what is drawn
    factory: Callable[[], nn.Module]

    def replicas(self, setting: Setting) -> Replicas:
        """The networks at their start: the same for every dynamics."""
        return Replicas(self.factory, setting.replicas, seed=setting.seed)


class Well(nn.Module):
    """A particle in the plane; the loss is its potential energy."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor([start, 0.0]))


def energy(q: torch.Tensor, barrier: float) -> torch.Tensor:
    """A double well (q₁² − 1)² times the barrier's height between its minima, and a harmonic one in q₂."""
    return barrier * (q[..., 0] ** 2 - 1) ** 2 + q[..., 1] ** 2 / 2


def problem_of(setting: Setting) -> Problem:
    """Data, network and loss of a setting."""
    given = setting.problem
    kind = given["kind"]
    if kind == "well":
        barrier, start = given["barrier"], given["start"]
        return Problem(None, None, lambda model: energy(model.q, barrier), 0, (-2, 2, -2, 2), lambda: Well(start))
    if kind == "csv":
        train = test = _read(given["text"])
    else:
        options = {name: value for name, value in given.items() if name not in ("kind", "points")}
        make: Any = getattr(data, kind)
        train = make(given["points"], **options, seed=setting.seed)
        test = make(max(200, given["points"]), **options, seed=setting.seed + 1)
    if kind == "line":
        low, high = (float(bound) for bound in train[1].aminmax())
        margin = 0.2 * (high - low) + 1e-6
        return Problem(
            train, test, functional.mse_loss, 0, (-1.2, 1.2, low - margin, high + margin), _factory(setting, 1, 1)
        )
    classes = int(train[1].max()) + 1
    if setting.batch is not None and setting.batch > len(train[0]):
        raise SettingError(["batch"], f"batch={setting.batch} must be at most the number of points, {len(train[0])}")
    if classes == 2:
        train, test = (_column(pair) for pair in (train, test))
    loss: Any = functional.binary_cross_entropy_with_logits if classes == 2 else functional.cross_entropy
    return Problem(train, test, loss, classes, _window(train[0]), _factory(setting, 2, 1 if classes == 2 else classes))


def _column(pair: Pair) -> Pair:
    return pair[0], pair[1].float().unsqueeze(-1)


def _factory(setting: Setting, inputs: int, outputs: int) -> Callable[[], nn.Module]:
    activation = getattr(nn, ACTIVATIONS[setting.activation])

    def network() -> nn.Module:
        widths = [inputs, *setting.hidden]
        layers: list[nn.Module] = []
        for wide, next_wide in pairwise(widths):
            layers += [nn.Linear(wide, next_wide), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    return network


def _window(x: torch.Tensor) -> Frame:
    """A square window around the points."""
    low, high = x.amin(0), x.amax(0)
    middle, side = (low + high) / 2, float((high - low).max()) * 0.55 + 1e-6
    a, b = float(middle[0]), float(middle[1])
    return (a - side, a + side, b - side, b + side)


def _read(text: str) -> Pair:
    """Points and classes from lines of x, y, class; a first line of names is left out."""
    rows = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    if rows and not _numbers(rows[0]):
        rows = rows[1:]
    place = ["problem", "text"]
    if not 4 <= len(rows) <= MOST_POINTS:
        raise SettingError(
            place, f"{len(rows)} lines of numbers: from 4 to {MOST_POINTS} points, one line x, y, class each"
        )
    for i, row in enumerate(rows, 1):
        if len(row) != 3 or not _numbers(row):
            raise SettingError(place, f"line {i} is {','.join(row)[:60]!r}: expected x, y, class, e.g. 0.5,-1.2,1")
    names = sorted({row[2].strip() for row in rows}, key=lambda name: float(name))
    if not 2 <= len(names) <= 6:
        raise SettingError(place, f"{len(names)} classes ({', '.join(names[:8])}): from 2 to 6 can be shown")
    x = torch.tensor([[float(row[0]), float(row[1])] for row in rows])
    return x, torch.tensor([names.index(row[2].strip()) for row in rows])


def _numbers(row: list[str]) -> bool:
    try:
        return all(math.isfinite(float(cell)) for cell in row)
    except ValueError:
        return False
