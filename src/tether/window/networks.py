"""What many small networks say at many points, computed for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from tether.window.problems import Problem

__all__ = ["IN_PLACE", "Grid", "answers", "losses", "reshaped", "scores"]

CACHE = 200_000  # numbers of a layer that are computed at a time, so that they stay in the processor's cache
JUDGED = 500  # points of each set that the scores are taken from
SCORES = ("train loss", "test loss", "train accuracy", "test accuracy")
IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "leaky relu": functional.leaky_relu_,
    "none": lambda x: x,
}
Shapes = Sequence[tuple[int, ...]]
Activation = Callable[[torch.Tensor], torch.Tensor]


def reshaped(weights: torch.Tensor, shapes: Shapes) -> list[torch.Tensor]:
    """Rows of weights, one network in each, as stacked parameters of these shapes."""
    pieces = weights.split([math.prod(shape) for shape in shapes], dim=1)
    return [piece.reshape(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def answers(tensors: Sequence[torch.Tensor], activation: Activation, x: torch.Tensor) -> torch.Tensor:
    """Outputs of all networks at the points x: (networks, points, outputs)."""
    out = x.expand(len(tensors[0]), *x.shape)
    for k in range(0, len(tensors), 2):
        out = torch.baddbmm(tensors[k + 1].unsqueeze(1), out if k == 0 else activation(out), tensors[k].mT)
    return out


class Grid:
    """A grid of the plane, and memory that is used again: new memory took a quarter of the time of a frame."""

    def __init__(self, across: torch.Tensor, upwards: torch.Tensor) -> None:
        y, x = torch.meshgrid(upwards, across, indexing="ij")
        self.points = torch.stack((x, y, torch.ones_like(x))).view(3, -1)
        self._room = self._found = torch.empty(0)

    def answers(self, tensors: Sequence[torch.Tensor], activation: Activation) -> torch.Tensor:
        """Outputs of all networks: (networks, outputs, rows × columns), rows along `upwards`; until the next call.

        The first layer is one product for all networks, (W b) times (x y 1). It is made for a few points at a time.
        """
        W, b = tensors[0], tensors[1]
        first = torch.cat((W, b.unsqueeze(-1)), -1).flatten(0, 1)
        if len(self._room) < CACHE + len(first):
            self._room = torch.empty(CACHE + len(first))
        found = []
        for some in self.points.split(max(1, CACHE // len(first)), 1):
            kept = self._room[: len(first) * some.shape[1]].view(len(first), -1)
            out = torch.mm(first, some, out=kept).view(len(W), W.shape[1], -1)
            for k in range(2, len(tensors), 2):
                out = torch.baddbmm(tensors[k + 1].unsqueeze(-1), tensors[k], activation(out))
            found.append(out if len(tensors) > 2 else out.clone())
        self._found = self._found.resize_(*found[0].shape[:2], self.points.shape[1])
        return torch.cat(found, 2, out=self._found)


def losses(out: torch.Tensor, y: torch.Tensor, classes: int) -> torch.Tensor:
    """The loss of each network over the points."""
    if classes == 0:
        return (out - y).square().mean((1, 2))
    if classes == 2:
        return (functional.softplus(out) - y * out).mean((1, 2))
    return functional.cross_entropy(out.mT, y.expand(len(out), -1), reduction="none").mean(1)


def scores(tensors: Sequence[torch.Tensor], activation: Activation, problem: Problem, rows: int) -> list[list[float]]:
    """For each of so many groups of networks the mean and the standard deviation of `SCORES`, one after another."""
    found: dict[str, torch.Tensor] = {}
    for name, pair in (("train", problem.train), ("test", problem.test)):
        assert pair is not None
        x, y = pair[0][:JUDGED], pair[1][:JUDGED]
        out = answers(tensors, activation, x)
        found[f"{name} loss"] = losses(out, y, problem.classes)
        if problem.classes == 0:
            right = out[..., 0] * math.nan
        else:
            right = ((out > 0) == (y > 0.5))[..., 0] if problem.classes == 2 else out.argmax(-1) == y
        found[f"{name} accuracy"] = 100 * right.float().mean(1)
    values: list[list[float]] = [[] for _ in range(rows)]
    for name in SCORES:
        for i, each in enumerate(found[name].view(rows, -1)):
            kept = each[each.isfinite()]
            values[i] += [float(kept.mean()) if len(kept) else math.nan]
            values[i] += [float(kept.std()) if len(kept) > 1 else 0.0]
    return values
