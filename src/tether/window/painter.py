"""Frames: what the page draws, computed from snapshots while training goes on.

A frame brings what has changed, and the page keeps the rest. Every frame has the fields and what moves in the chosen
instrument. A full frame, a few times a second, has scores, curves and readings too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tether.window.networks import IN_PLACE, Grid, answers, losses, reshaped, scores
from tether.window.packing import packed
from tether.window.problems import Problem, energy
from tether.window.readings import Readings
from tether.window.runner import Snapshot
from tether.window.setting import Setting

__all__ = ["Painter"]

FIELD, COARSE = 100, 40  # points along a side of the field, at best and at worst
BUDGET = 6e7  # products for the field of one dynamics in a frame; a larger network gets a coarser one
SLICE_BUDGET = 3e8
CURVE = 300  # points of a curve, at most
SCORED = 10  # the first columns of a curve: the step, the scores, the violation
BINS = 41  # of a histogram
DRAWN = 4000  # weights of a network that is drawn as a graph


class Painter:
    """Makes the frames of one run; remembers its curves."""

    def __init__(self, setting: Setting, problem: Problem) -> None:
        self.setting, self.problem = setting, problem
        self.activation = IN_PLACE[setting.activation]
        with torch.device("meta"):
            network = problem.factory()
        self.names = [name for name, _ in network.named_parameters()]
        self.shapes = [tuple(x.shape) for x in network.parameters()]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.curves: list[np.ndarray] = []
        self.slices: dict[int, tuple[float, Any, np.ndarray, list[float]]] = {}
        self.grids: dict[int, Grid] = {}  # by their side
        self.density: dict[int, torch.Tensor] = {}
        self.reach = np.zeros((0, 0), np.float32)  # of each dynamics and parameter: how far its histogram must go
        self.readings: list[Readings] = []  # the last of each dynamics
        self.begun = False

    @torch.no_grad()
    def frame(self, shots: Sequence[Snapshot], view: Mapping[str, Any], full: bool = True) -> tuple[Any, bytes]:
        """A header and the arrays of a frame."""
        arrays: dict[str, np.ndarray] = {}
        head: dict[str, Any] = {"type": "frame", "step": max(shot.step for shot in shots)}
        full = full or not self.begun
        if shots[0].readings is not None:
            self.readings = [shot.readings for shot in shots if shot.readings is not None]
        if not self.begun:
            head |= {"first": True, "frame": list(self.problem.frame), "classes": self.problem.classes}
            self.begun = True
        weights = torch.from_numpy(np.stack([shot.weights for shot in shots]))
        replica = min(view["replica"], weights.shape[1] - 1)
        if full:
            head["rows"] = self._rows(shots, weights)
            self._curves(shots, head["rows"], arrays)
        if full or view["shows"] == "network":
            self._graphs(weights[:, max(0, replica)], arrays)
        if self.problem.train is not None:
            arrays["fields"] = self._fields(weights if replica < 0 else weights[:, replica : replica + 1])
        else:
            for i, shot in enumerate(shots):
                arrays[f"density{i}"] = self._visited(i, shot)
        if view["shows"] == "weights":
            arrays["histograms"], arrays["most"] = self._histograms(weights.numpy())
        elif view["shows"] == "trail":
            for i, shot in enumerate(shots):
                arrays[f"trail{i}"] = shot.trail
                self._slice(i, shot, view, arrays)
        head["arrays"], body = packed(arrays)
        return head, body

    def _rows(self, shots: Sequence[Snapshot], weights: torch.Tensor) -> list[dict[str, Any]]:
        """What is said in words and numbers of each dynamics."""
        found = [[math.nan] * 8 for _ in shots]
        if self.problem.train is not None:
            networks = reshaped(weights.flatten(0, 1), self.shapes)
            found = scores(networks, self.activation, self.problem, len(shots))
        rows, reach = [], []
        for shot, read, mine in zip(shots, self.readings, found, strict=True):
            named = zip(self.names, read.bounds, strict=True)
            tensors = [{"name": name, "surface": bound.surface, "radius": bound.radius} for name, bound in named]
            row = {"step": shot.step, "scores": mine, "parts": read.parts, "violation": read.violation}
            rows.append(row | {"tensors": tensors, "stopped": shot.stopped, "word": shot.word})
            reach.append([1.05 * (bound.radius or 1e-9) for bound in read.bounds])
        self.reach = np.array(reach, np.float32)
        return rows

    def _graphs(self, weights: torch.Tensor, arrays: dict[str, np.ndarray]) -> None:
        if weights.shape[1] <= DRAWN:
            for i, one in enumerate(weights):
                arrays[f"weights{i}"] = one.numpy()

    # what the networks say

    def _fields(self, weights: torch.Tensor) -> np.ndarray:
        """What the networks of each dynamics say on a grid, the mean over the replicas that are given."""
        if weights[0].numel() * FIELD**2 > BUDGET * 4:  # too much for all: the first replica stands for them
            weights = weights[:, :1]
        rows, products = len(weights), weights[0].numel()
        tensors = reshaped(weights.flatten(0, 1), self.shapes)
        left, right, low, high = self.problem.frame
        if self.problem.classes == 0:
            out = answers(tensors, self.activation, torch.linspace(left, right, 200).unsqueeze(1))
            out = out.view(rows, -1, 200)
            spread = out.std(1) if out.shape[1] > 1 else 0 * out[:, 0]
            return torch.stack((out.mean(1), spread), 1).numpy()
        side = FIELD if products * FIELD**2 <= BUDGET else max(COARSE, int(math.sqrt(BUDGET / products)))
        if side not in self.grids:
            self.grids[side] = Grid(torch.linspace(left, right, side), torch.linspace(low, high, side))
        out = self.grids[side].answers(tensors, self.activation)
        if self.problem.classes == 2:
            return out.sigmoid_().view(rows, -1, side, side).mean(1).mul_(255).to(torch.uint8).numpy()
        chances = out.softmax(1).view(rows, -1, *out.shape[1:]).mean(1)
        sure, which = chances.max(1)
        return torch.stack((which.to(torch.uint8), (255 * sure).to(torch.uint8)), 1).view(rows, 2, side, side).numpy()

    def _visited(self, i: int, shot: Snapshot) -> np.ndarray:
        """Where the particles have been along q₁, as a density, the one that the temperature asks for, and U."""
        left, right = self.problem.frame[:2]
        bins = 60
        counts = self.density.setdefault(i, torch.zeros(bins))
        if shot.visits is not None:
            counts += torch.histc(torch.from_numpy(shot.visits[:, 0]), bins, left, right)
        width = (right - left) / bins
        q = torch.linspace(left + width / 2, right - width / 2, bins)
        parts = self.readings[i].parts
        τ = parts[0]["target"] if parts else 0.0
        U = energy(torch.stack((q, 0 * q), 1), self.setting.problem["barrier"])
        exact = torch.exp(-U / τ) if τ > 0 else 0 * q
        total = float(counts.sum())
        shown = counts / (total * width) if total else counts
        return torch.stack((shown, exact / (exact.sum() * width).clamp(min=1e-30), U)).numpy()

    # instruments

    def _histograms(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of each parameter in all replicas: counts (dynamics, parameters, bins), and their ranges."""
        finite = np.isfinite(weights)
        kept = np.where(finite, weights, 0.0)
        starts = np.cumsum([0, *self.sizes[:-1]])
        most = np.maximum.reduceat(np.abs(kept).max(1), starts, axis=1)
        most = np.maximum(most, self.reach)
        which = np.repeat(np.arange(len(starts)), self.sizes)
        bins = np.minimum((kept / most[:, None, which] + 1) * (BINS / 2), BINS - 1).astype(np.int64)
        rows = (np.arange(len(weights))[:, None] * len(starts) + which)[:, None] * BINS
        counts = np.bincount((bins + rows)[finite], minlength=len(weights) * len(starts) * BINS)
        return counts.reshape(len(weights), len(starts), BINS).astype(np.float32), most

    def _slice(self, i: int, shot: Snapshot, view: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """The loss over the chosen pair of weights, the others as they are; made anew about every second."""
        replica = min(max(0, view["replica"]), len(shot.weights) - 1)
        pair = tuple(view["pair"])
        now = time.monotonic()
        known = self.slices.get(i)
        if known is None or known[1] != (replica, pair) or now - known[0] > 1.0 + 0.25 * i or self._left(known, shot):
            found = self._surface(shot, replica, pair)
            if found is None:
                return
            known = self.slices[i] = (now, (replica, pair), *found)
        arrays[f"slice{i}"] = known[2]
        arrays[f"extent{i}"] = np.array(known[3], dtype=np.float32)

    @staticmethod
    def _left(known: tuple[float, Any, np.ndarray, list[float]], shot: Snapshot) -> bool:
        """Has the trail left the slice?"""
        if not len(shot.trail) or time.monotonic() - known[0] < 0.3:
            return False
        left, right, low, high = known[3]
        a, b = shot.trail[-1].tolist()
        return not (left <= a <= right and low <= b <= high)

    def _surface(self, shot: Snapshot, replica: int, pair: tuple[int, ...]) -> tuple[np.ndarray, list[float]] | None:
        if self.problem.train is None:
            frame = self.problem.frame
            return energy(_grid(frame, 48), self.setting.problem["barrier"]).view(48, 48).numpy(), list(frame)
        flat = torch.from_numpy(shot.weights[replica])
        if len(set(pair)) < 2 or max(pair) >= len(flat) or not bool(flat.isfinite().all()):
            return None
        a, b = pair
        trail = shot.trail if len(shot.trail) else flat[[a, b]].unsqueeze(0).numpy()
        low, high = trail.min(0), trail.max(0)
        middle, reach = (low + high) / 2, max(0.25, 0.7 * float((high - low).max()))
        extent = [float(bound) for k in (0, 1) for bound in (middle[k] - reach, middle[k] + reach)]
        x, y = self.problem.train
        points = min(128, len(x))
        side = int(min(32, max(10, math.sqrt(SLICE_BUDGET / (points * len(flat))))))
        many = flat.expand(side * side, -1).clone()
        many[:, [a, b]] = _grid(extent, side)
        out = answers(reshaped(many, self.shapes), self.activation, x[:points])
        return losses(out, y[:points], self.problem.classes).view(side, side).numpy(), extent

    def _curves(self, shots: Sequence[Snapshot], rows: list[dict[str, Any]], arrays: dict[str, np.ndarray]) -> None:
        """Add a point to the curves; every second one is dropped when there are too many."""
        del self.curves[len(shots) :]
        for i, (shot, row) in enumerate(zip(shots, rows, strict=True)):
            heat = [value for part in row["parts"] for value in (part["measured"], part["thermostat"])]
            point = [shot.step, *row["scores"], row["violation"], *(math.nan if v is None else v for v in heat)]
            if len(self.curves) == i:
                self.curves.append(np.empty((0, len(point)), np.float32))
            arrays[f"curve{i}"] = self.curves[i] = _extended(self.curves[i], np.array([point], np.float32))


def _extended(curve: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The curve and one point more, unless it is of no later step. Readings of other parts than before begin anew."""
    if curve.shape[1] != point.shape[1]:
        before, curve = curve, np.full((len(curve), point.shape[1]), np.nan, np.float32)
        curve[:, :SCORED] = before[:, :SCORED]
    if len(curve) and curve[-1, 0] >= point[0, 0]:
        return curve
    longer = np.concatenate((curve, point))
    return longer if len(longer) <= CURVE else np.delete(longer, np.s_[1:-1:2], axis=0)


def _grid(frame: Sequence[float], side: int) -> torch.Tensor:
    """Points of a square grid over the frame, rows from below."""
    left, right, low, high = frame
    y, x = torch.meshgrid(torch.linspace(low, high, side), torch.linspace(left, right, side), indexing="ij")
    return torch.stack((x, y), -1).view(-1, 2)
