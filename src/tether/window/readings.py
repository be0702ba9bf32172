"""What the instruments of an optimizer say, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tether.optimizer import Optimizer

__all__ = ["Bound", "Readings", "read"]


@dataclass(frozen=True)
class Bound:
    """The surface of a parameter, as text, and the bound that it puts on single weights if there is one."""

    surface: str
    radius: float | None


@dataclass(frozen=True)
class Readings:
    """Temperatures and thermostats of the parts, bounds of the parameters, and the largest violation of a constraint.

    They cost more than a step, so they are taken a few times a second.
    """

    parts: list[dict[str, Any]]
    bounds: list[Bound]
    violation: float


def read(opt: torch.optim.Optimizer, names: Sequence[str]) -> Readings:
    """The readings of an optimizer whose parameters have these names."""
    if not isinstance(opt, Optimizer):
        return Readings([], [Bound("", None) for _ in names], 0.0)
    heat = [float(x.nanmean()) for x in opt.temperature().values()]
    parts = [_part(group, one) for group, one in zip(opt.param_groups, heat, strict=True)]
    return Readings(parts, [_bound(opt.param_groups, name) for name in names], float(opt.violation().max()))


def _part(group: Mapping[str, Any], heat: float) -> dict[str, Any]:
    """Kinetic temperature, target and thermostat of a part; None where it has none."""
    ξ = group.get("thermostat")
    has = isinstance(ξ, torch.Tensor) and any(letter in group["word"] for letter in "CEF")
    return {
        "where": group["where"],
        "word": group["word"],
        "measured": heat if math.isfinite(heat) else None,
        "target": float(group["temperature"]),
        "thermostat": float(ξ.float().mean()) if has and isinstance(ξ, torch.Tensor) else None,
    }


def _bound(groups: Sequence[Mapping[str, Any]], name: str) -> Bound:
    for group in groups:
        if name in group["param_names"]:
            text = str(group.get("on", "Free()"))
            kind, _, rest = text.partition("(")
            number = rest.rstrip(")").split(",")[0]
            if kind in ("Circle", "Sphere") and number.replace(".", "", 1).isdigit():
                return Bound(text, float(number))
            return Bound("" if kind == "Free" else text, 1.0 if kind == "Orthogonal" else None)
    return Bound("", None)
