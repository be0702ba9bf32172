"""Frames: what the page draws, computed from snapshots while training goes on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tether.window.problems import Problem, energy
from tether.window.runner import Snapshot
from tether.window.setting import Setting

__all__ = ["Painter", "arrays_of", "finite_values", "message", "packed"]

FIELD, COARSE = 100, 40  # points along a side of the field, at best and at worst
BUDGET = 6e7  # products for the field of one dynamics in a frame; a larger network gets a coarser one
SLICE_BUDGET = 3e8
CURVE = 300  # points of a curve, at most
SHOWN = 1000  # points of a trail in a frame
SCORES = ("train loss", "test loss", "train accuracy", "test accuracy")
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky relu": functional.leaky_relu,
    "none": lambda x: x,
}


class Painter:
    """Makes the frames of one run; remembers its curves."""

    def __init__(self, setting: Setting, problem: Problem) -> None:
        self.setting, self.problem = setting, problem
        self.activation = FUNCTIONS[setting.activation]
        self.curves: list[list[list[float]]] = []
        self.slices: dict[int, tuple[float, Any, np.ndarray, list[float]]] = {}
        self.density: dict[int, torch.Tensor] = {}
        self.grid = _grid(problem.frame, FIELD)

    def frame(self, shots: Sequence[Snapshot], view: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A header and the arrays of a frame."""
        arrays: dict[str, np.ndarray] = {}
        rows = [self._row(i, shot, view, arrays) for i, shot in enumerate(shots)]
        self._curve(shots, rows, arrays)
        places, body = packed(arrays)
        head = {"type": "frame", "rows": rows, "step": max(shot.step for shot in shots), "arrays": places}
        return head | {"frame": list(self.problem.frame), "classes": self.problem.classes}, body

    def _row(self, i: int, shot: Snapshot, view: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        replica = min(view["replica"], len(shot.tensors[0]) - 1)
        if self.problem.train is None:
            scores = [float("nan")] * 8
            self._visited(i, shot, arrays)
        else:
            scores = self._scores(shot)
            arrays[f"field{i}"] = self._field(shot, replica)
        self._slice(i, shot, view, arrays)
        arrays[f"trail{i}"] = shot.trail[-SHOWN:].numpy().astype(np.float32)
        weights = torch.cat([x[max(0, replica)].reshape(-1) for x in shot.tensors])
        if len(weights) <= 4000:
            arrays[f"weights{i}"] = weights.numpy().astype(np.float32)
        parts = [_part(group, heat) for group, heat in zip(shot.groups, shot.temperatures, strict=False)]
        tensors = [self._histogram(i, k, shot, arrays) for k in range(len(shot.tensors))]
        row = {"step": shot.step, "scores": scores, "parts": parts, "tensors": tensors, "stopped": shot.stopped}
        return row | {"violation": shot.violation, "word": shot.word}

    # networks

    def _outputs(self, tensors: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Outputs of all replicas, (replicas, points, outputs)."""
        out = x.expand(len(tensors[0]), *x.shape)
        for k in range(0, len(tensors), 2):
            out = torch.baddbmm(tensors[k + 1].unsqueeze(1), out, tensors[k].mT)
            if k + 2 < len(tensors):
                out = self.activation(out)
        return out

    def _scores(self, shot: Snapshot) -> list[float]:
        """Mean and standard deviation over the replicas of `SCORES`."""
        found: dict[str, torch.Tensor] = {}
        for name, pair in (("train", self.problem.train), ("test", self.problem.test)):
            assert pair is not None
            x, y = pair[0][:500], pair[1][:500]
            out = self._outputs(shot.tensors, x)
            if self.problem.classes == 0:
                found[f"{name} loss"] = (out - y).square().mean((1, 2))
                found[f"{name} accuracy"] = found[f"{name} loss"] * math.nan
            elif self.problem.classes == 2:
                loss = functional.softplus(out) - y * out
                found[f"{name} loss"] = loss.mean((1, 2))
                found[f"{name} accuracy"] = 100 * ((out > 0) == (y > 0.5)).float().mean((1, 2))
            else:
                each = functional.cross_entropy(out.mT, y.expand(len(out), -1), reduction="none")
                found[f"{name} loss"] = each.mean(1)
                found[f"{name} accuracy"] = 100 * (out.argmax(-1) == y).float().mean(1)
        values = []
        for name in SCORES:
            kept = found[name][found[name].isfinite()]
            values += [float(kept.mean()) if len(kept) else math.nan]
            values += [float(kept.std()) if len(kept) > 1 else 0.0]
        return values

    def _field(self, shot: Snapshot, replica: int) -> np.ndarray:
        """What the networks say on a grid: of one replica, or the mean of all."""
        tensors = shot.tensors if replica < 0 else [x[replica : replica + 1] for x in shot.tensors]
        products = sum(x.numel() for x in tensors)
        if products * FIELD**2 > BUDGET * 4:  # too much for all: the first replica stands for them
            tensors = [x[:1] for x in tensors]
            products = sum(x.numel() for x in tensors)
        if self.problem.classes == 0:
            x = torch.linspace(*self.problem.frame[:2], 200).unsqueeze(1)
            out = self._outputs(tensors, x)[..., 0]
            return torch.stack((out.mean(0), out.std(0) if len(out) > 1 else 0 * out[0])).numpy()
        side = FIELD if products * FIELD**2 <= BUDGET else max(COARSE, int(math.sqrt(BUDGET / products)))
        grid = self.grid if side == FIELD else _grid(self.problem.frame, side)
        out = self._outputs(tensors, grid)
        if self.problem.classes == 2:
            return (255 * out.sigmoid().mean(0)).to(torch.uint8).view(1, side, side).numpy()
        chances = out.softmax(-1).mean(0)
        sure, which = chances.max(-1)
        return torch.stack((which.to(torch.uint8), (255 * sure).to(torch.uint8))).view(2, side, side).numpy()

    def _visited(self, i: int, shot: Snapshot, arrays: dict[str, np.ndarray]) -> None:
        """Where the particles have been along q₁, as a density, and the one that the temperature asks for."""
        left, right = self.problem.frame[:2]
        bins = 60
        counts = self.density.setdefault(i, torch.zeros(bins))
        if shot.visits is not None:
            counts += torch.histc(shot.visits[:, 0].float(), bins, left, right)
        width = (right - left) / bins
        q = torch.linspace(left + width / 2, right - width / 2, bins)
        τ = float(shot.groups[0].get("temperature", 0.0))
        U = energy(torch.stack((q, 0 * q), 1), self.setting.problem["barrier"])
        exact = torch.exp(-U / τ) if τ > 0 else 0 * q
        total = float(counts.sum())
        shown = counts / (total * width) if total else counts
        arrays[f"density{i}"] = torch.stack((shown, exact / (exact.sum() * width).clamp(min=1e-30), U)).numpy()

    # instruments

    def _histogram(self, i: int, k: int, shot: Snapshot, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """The entries of a parameter in all replicas, with the surface they lie on."""
        x = shot.tensors[k].float()
        kept = x[x.isfinite()]
        most = float(kept.abs().max()) if kept.numel() else 1.0
        surface, radius = _surface(shot, k)
        most = max(most, 1.05 * radius if radius else 0.0, 1e-9)
        arrays[f"histogram{i}.{k}"] = torch.histc(kept, 41, -most, most).numpy()
        return {"name": shot.names[k], "most": most, "surface": surface, "radius": radius}

    def _slice(self, i: int, shot: Snapshot, view: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """The loss over the chosen pair of weights, the others as they are; made anew about every second."""
        replica = min(max(0, view["replica"]), len(shot.tensors[0]) - 1)
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
        sizes = [x[0].numel() for x in shot.tensors]
        flat = torch.cat([x[replica].reshape(-1) for x in shot.tensors]).float()
        if len(set(pair)) < 2 or max(pair) >= len(flat) or not bool(flat.isfinite().all()):
            return None
        a, b = pair
        trail = shot.trail[-SHOWN:] if len(shot.trail) else flat[[a, b]].unsqueeze(0)
        middle = (trail.amin(0) + trail.amax(0)) / 2
        reach = ((trail.amax(0) - trail.amin(0)).max() * 0.7).clamp(min=0.25)
        extent = [
            float(middle[0] - reach),
            float(middle[0] + reach),
            float(middle[1] - reach),
            float(middle[1] + reach),
        ]
        if self.problem.train is None:
            extent = list(self.problem.frame)
            return energy(_grid(self.problem.frame, 48), self.setting.problem["barrier"]).view(48, 48).numpy(), extent
        x, y = self.problem.train
        points = min(128, len(x))
        side = int(min(32, max(10, math.sqrt(SLICE_BUDGET / (points * len(flat))))))
        many = flat.expand(side * side, -1).clone()
        many[:, [a, b]] = _grid((extent[0], extent[1], extent[2], extent[3]), side)
        tensors, offset = [], 0
        for tensor, size in zip(shot.tensors, sizes, strict=True):
            tensors.append(many[:, offset : offset + size].reshape(-1, *tensor.shape[1:]))
            offset += size
        out = self._outputs(tensors, x[:points])
        return self._loss(out, y[:points]).view(side, side).numpy(), extent

    def _loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.problem.classes == 0:
            return (out - y).square().mean((1, 2))
        if self.problem.classes == 2:
            return (functional.softplus(out) - y * out).mean((1, 2))
        return functional.cross_entropy(out.mT, y.expand(len(out), -1), reduction="none").mean(1)

    def _curve(self, shots: Sequence[Snapshot], rows: list[dict[str, Any]], arrays: dict[str, np.ndarray]) -> None:
        """Add a point to the curves; every second one is dropped when there are too many."""
        while len(self.curves) < len(shots):
            self.curves.append([])
        del self.curves[len(shots) :]
        for i, (shot, row) in enumerate(zip(shots, rows, strict=True)):
            curve = self.curves[i]
            if not curve or curve[-1][0] < shot.step:
                heat = [value for part in row["parts"] for value in (part["measured"], part["thermostat"])]
                curve.append([shot.step, *row["scores"], shot.violation, *(math.nan if v is None else v for v in heat)])
            if len(curve) > CURVE:
                del curve[1:-1:2]
            width = len(curve[-1]) if curve else 0
            kept = [point for point in curve if len(point) == width]
            arrays[f"curve{i}"] = np.array(kept, dtype=np.float32).reshape(len(kept), -1)


def _part(group: Mapping[str, Any], heat: float) -> dict[str, Any]:
    """Kinetic temperature, target and thermostat of a part; None where it has none."""
    ξ = group.get("thermostat")
    has = isinstance(ξ, torch.Tensor) and any(letter in group.get("word", "") for letter in "CEF")
    return {
        "where": group.get("where", "*"),
        "word": group.get("word", ""),
        "measured": heat if math.isfinite(heat) else None,
        "target": float(group.get("temperature", 0.0)),
        "thermostat": float(ξ.float().mean()) if has and isinstance(ξ, torch.Tensor) else None,
    }


def _surface(shot: Snapshot, k: int) -> tuple[str, float | None]:
    """The surface of a parameter, and the bound that it puts on single weights if there is one."""
    name = shot.names[k]
    for group in shot.groups:
        if name in group.get("param_names", ()):
            text = str(group.get("on", "Free()"))
            kind, _, rest = text.partition("(")
            number = rest.rstrip(")").split(",")[0]
            bounded = kind in ("Circle", "Sphere") and number.replace(".", "", 1).isdigit()
            return ("" if kind == "Free" else text), (
                float(number) if bounded else 1.0 if kind == "Orthogonal" else None
            )
    return "", None


def _grid(frame: Sequence[float], side: int) -> torch.Tensor:
    """Points of a square grid over the frame, rows from below."""
    left, right, low, high = frame
    y, x = torch.meshgrid(torch.linspace(low, high, side), torch.linspace(left, right, side), indexing="ij")
    return torch.stack((x, y), -1).view(-1, 2)


def packed(arrays: Mapping[str, np.ndarray]) -> tuple[list[list[Any]], bytes]:
    """Arrays as one string of bytes, each at a multiple of four, and a list of name, kind, shape and place."""
    places: list[list[Any]] = []
    pieces: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        kind = "u1" if array.dtype == np.uint8 else "f4"
        raw = np.ascontiguousarray(array, dtype=np.uint8 if kind == "u1" else np.float32).tobytes()
        places.append([name, kind, list(array.shape), offset])
        raw += b"\0" * (-len(raw) % 4)
        pieces.append(raw)
        offset += len(raw)
    return places, b"".join(pieces)


def arrays_of(header: Mapping[str, Any], body: bytes) -> dict[str, np.ndarray]:
    """The arrays of a frame, for those who look at it from Python."""
    kinds = {"u1": np.uint8, "f4": np.float32}
    found = {}
    for name, kind, shape, offset in header["arrays"]:
        count = int(np.prod(shape))
        found[name] = np.frombuffer(body, kinds[kind], count, offset).reshape(shape)
    return found


def finite_values(value: Any) -> Any:
    """The same values with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite_values(one) for name, one in value.items()}
    return [finite_values(one) for one in value] if isinstance(value, list | tuple) else value


def message(header: Mapping[str, Any], body: bytes) -> bytes:
    """Header and arrays in one binary message: the header's length in four bytes, the header, the arrays."""
    text = json.dumps(finite_values(header), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return len(text).to_bytes(4, "little") + text + body
