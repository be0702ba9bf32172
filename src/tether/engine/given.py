"""What the user gave, as torch param groups."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tether.engine.advice import check_params, warn
from tether.engine.blocks import Lanes
from tether.engine.values import noisy
from tether.part import Part, match
from tether.words import parse

__all__ = ["bare", "lanes_of", "named", "param_groups", "parameters_in", "stacked", "unnamed"]

UNNAMED: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[str, Any]] = weakref.WeakKeyDictionary()


WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


def bare(model: Any) -> Any:
    """A module without the wrappers of DDP and `torch.compile`, so that globs and noise know its parameters by name."""
    while isinstance(model, torch.nn.Module) and type(model).__name__ in WRAPPERS:
        model = getattr(model, WRAPPERS[type(model).__name__])
    return model


def param_groups(params: Any, parts: Sequence[Part] | None, defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """What the user gave, as torch param groups with every field filled in."""
    check_params(params)
    if isinstance(params, torch.nn.Module):
        params = params.named_parameters()
    if isinstance(params, torch.Tensor):
        raise TypeError("params is one tensor; put it in a list: Optimizer([tensor], lr=...)")
    given = list(params)
    if not given:
        raise ValueError("no parameters to move: pass model.named_parameters()")
    if isinstance(given[0], dict):
        if parts is not None:
            raise ValueError("param-group dicts are parts themselves: pass named_parameters() to use parts=[...]")
        return [
            {**row, "params": list(row["params"])} if isinstance(row.get("params"), Iterator) else row for row in given
        ]
    if parts is None:
        return [{"params": given}]
    if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, Part) for part in parts):
        raise TypeError(f"parts={parts!r} must be a list of tether.Part, e.g. [tether.Part('*')]")
    rows = [part.row(defaults) for part in parts]
    if not isinstance(given[0], tuple):
        if len(parts) > 1 or parts[0].where != "*":
            raise ValueError("parts are matched by name: pass model.named_parameters() instead of model.parameters()")
        return [{"params": given, **rows[0]}]
    return [{"params": mine, **row} for mine, row in zip(match(given, parts), rows, strict=True)]


def parameters_in(groups: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """The tensors of param groups as the user gave them, named or not."""
    rows = [row["params"] for row in groups]
    items = [x for given in rows for x in ([given] if isinstance(given, torch.Tensor) else given)]
    return [x[1] if isinstance(x, tuple) else x for x in items]


def named(group: dict[str, Any], first: int) -> list[tuple[str, torch.Tensor]]:
    """Names and parameters of a group; a parameter without a name is called by its number."""
    params = group["params"]
    return list(zip(group.get("param_names") or [str(first + i) for i in range(len(params))], params, strict=True))


def stacked(param: torch.Tensor) -> bool:
    """Does the parameter come from `tether.Replicas`, with the replica as its first axis?"""
    return bool(getattr(param, "stacked", False))


def lanes_of(name: str, param: torch.Tensor, batch_dims: int) -> Lanes:
    """Which replicas a parameter holds, and by which numbers their noise is named."""
    numbers = getattr(param, "replicas", None)
    if not batch_dims:
        return Lanes(1, numbers) if numbers is not None and len(numbers) == 1 else Lanes()
    if param.dim() == 0 or not len(param):
        raise ValueError(f"parameter {name!r} of shape {tuple(param.shape)} has no axis of replicas: use batch_dims=0")
    rows = len(param)
    return Lanes(rows, tuple(range(rows)) if numbers is None or len(numbers) != rows else tuple(numbers), True)


def unnamed(opt: torch.optim.Optimizer) -> bool:
    """Is there a single parameter without a name? Warn where another such optimizer would draw the same noise."""
    groups = opt.param_groups
    if len(groups) != 1 or len(groups[0]["params"]) != 1 or groups[0].get("param_names"):
        return False
    (param,), seed = groups[0]["params"], groups[0]["seed"]

    def others() -> bool:
        # Of equal shape it is likely meant: two dynamics compared under one noise.
        return any(group["seed"] == seed and group["params"][0].shape != param.shape for group in UNNAMED.values())

    if noisy(parse(groups[0]["word"]), {"τ": groups[0]["temperature"]}):
        if others():
            gc.collect()  # those that nobody uses any more do not count
            if others():
                warn(
                    f"another optimizer has one parameter without a name, too, and seed={seed}: both draw the same "
                    "noise. Name them, Optimizer([(name, param)], ...), or give each its own seed"
                )
        UNNAMED[opt] = groups[0]
    return True
