"""Undo: what a step must not have changed, kept while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["hold_back", "put_back", "restore", "snapshot"]

Groups = list[dict[str, Any]]
Held = tuple[list[int], list[tuple[torch.Tensor, torch.Tensor]], list[Any]]


def hold_back(groups: Groups, state: Any, resting: Sequence[int]) -> Held | None:
    """What belongs to replicas that rest, to be put back after the step."""
    if not resting:
        return None
    rows = list(resting)
    tensors = [x for group in groups for x in group["params"]]
    tensors += [y for x in tensors for y in state.get(x, {}).values() if y.dim()]
    return rows, [(x, x.detach()[rows].clone()) for x in tensors], [g["thermostat"] for g in groups]


def put_back(groups: Groups, held: Held | None) -> None:
    """Let the replicas that rest be what they were."""
    if held is None:
        return
    rows, tensors, thermostats = held
    for x, values in tensors:
        x[rows] = values
    for group, before in zip(groups, thermostats, strict=True):
        if isinstance(group["thermostat"], torch.Tensor) and group["thermostat"].dim():
            group["thermostat"][rows] = before[rows]


def snapshot(groups: Groups, state: Any) -> list[Any]:
    """Copies of all that a step changes."""

    def held(param: torch.Tensor) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in state.get(param, {}).items()}

    return [(group["thermostat"], [(x, x.detach().clone(), held(x)) for x in group["params"]]) for group in groups]


def restore(groups: Groups, state: Any, saved: list[Any], unless: set[torch.Tensor] | None = None) -> None:
    """Undo a step, or what it did to all but some parameters; momenta that it made go back to rest."""
    for group, (thermostat, tensors) in zip(groups, saved, strict=True):
        if unless is None:
            group["thermostat"] = thermostat
        for param, value, before in tensors:
            if unless is not None and param in unless:
                continue
            param.copy_(value)
            for key, tensor in state.get(param, {}).items():
                if key in before:
                    tensor.copy_(before[key])
                elif key == "momentum":
                    tensor.zero_()
