"""Identity: which run a checkpoint belongs to, as plain values that can be compared.

Two runs are the same if they have the same network, optimizer, data, loss and minibatches. Weights and momenta, which
training changes, do not count. Fields that a scheduler changes are compared as they were when the run began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from functools import partial
from numbers import Real
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tether.ensemble.replicas import Replicas

__all__ = ["differences", "facts_of_optimizer", "facts_of_run"]

Facts = dict[str, Any]
WHOLE = 1 << 24  # a tensor of up to so many bytes is hashed as a whole
SAMPLE = 1 << 18  # entries of a larger one that are hashed
NOT_SETTINGS = ("params", "param_names", "trained")


def facts_of_run(model: nn.Module, data: Any, loss: Any, penalty: Any = None) -> Facts:
    """The facts about network, data and loss."""
    shapes = {name: f"{tuple(x.shape)} {x.dtype}" for name, x in [*model.named_parameters(), *model.named_buffers()]}
    layers = [f"{name}: {type(module).__name__}" for name, module in model.named_modules()]
    found: Facts = {"loss": spelled(loss), "layers": layers, **{f"shape of {name!r}": x for name, x in shapes.items()}}
    if penalty is not None:
        found["penalty"] = spelled(penalty)
    if isinstance(model, Replicas):
        found |= {"replicas": list(model.replicas), "seed of the replicas": plain_value(model.seed)}
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(x, torch.Tensor) for x in data):
        return found | {"inputs": digest(data[0]), "targets": digest(data[1])}
    return found | {"data": spelled_data(data)}


def facts_of_optimizer(opt: torch.optim.Optimizer) -> Facts:
    """The class of the optimizer and the fields of its groups, as they are now."""
    found: Facts = {"optimizer": type(opt).__name__}
    for i, group in enumerate(opt.param_groups):
        part = "" if len(opt.param_groups) == 1 else f" of group {i}"
        settings = {name: value for name, value in group.items() if name not in NOT_SETTINGS}
        found |= {f"{name}{part}": plain_value(value) for name, value in settings.items()}
        found[f"number of parameters{part}"] = len(group["params"])
    return found


def differences(given: Facts, saved: Facts) -> list[str]:
    """The differences, each as ``lr=0.2 instead of 0.1``."""
    names = [name for name in {**given, **saved} if given.get(name) != saved.get(name)]
    return [f"{name}={_short(given.get(name))} instead of {_short(saved.get(name))}" for name in names]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) and value.startswith("(") else repr(value)
    return text if len(text) <= 60 else f"{text[:28]}…{text[-28:]}"


def plain_value(value: Any) -> Any:
    """A setting as numbers and strings.

    Other objects become the name of their type, since their text may hold an address.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= 1 << 12 else digest(value)
    if isinstance(value, list | tuple):
        return [plain_value(x) for x in value]
    if isinstance(value, dict):
        return {str(key): plain_value(x) for key, x in value.items()}
    return float(value) if isinstance(value, Real) else type(value).__name__


def digest(x: torch.Tensor) -> str:
    """Shape, dtype and a hash of the values; for a large tensor the hash of many entries spread over it."""
    head = f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
    if x.is_meta or x.layout is not torch.strided:
        return head
    flat = x.detach().reshape(-1)
    if x.numel() * x.element_size() > WHOLE:
        stride = (x.numel() // SAMPLE) | 1  # odd, so that rows of even length are not always hashed in the same column
        flat = flat[::stride]
    values = flat.resolve_conj().resolve_neg().cpu().contiguous().view(torch.uint8)
    return f"{head} #{hashlib.blake2b(values.numpy().data, digest_size=8).hexdigest()}"


def spelled_data(data: Any) -> Any:
    """Facts about data that come in batches: their type and number, and a digest where the points are accessible."""
    if data is None:
        return None
    found: dict[str, Any] = {"kind": type(data).__name__}
    if isinstance(data, DataLoader):
        found |= {"batch_size": data.batch_size, "drop_last": data.drop_last, "sampler": type(data.sampler).__name__}
        found["dataset"] = spelled_data(data.dataset)
        return found
    if isinstance(data, Sized):
        found["length"] = len(data)
    if isinstance(data, TensorDataset):
        found["tensors"] = [digest(x) for x in data.tensors]
    if isinstance(data, list | tuple) and data:
        seen = [x for batch in (data[0], data[-1]) if isinstance(batch, list | tuple) for x in batch]
        found["first and last"] = [digest(x) for x in seen if isinstance(x, torch.Tensor)]
    return found


def spelled(function: Any, depth: int = 2) -> str:
    """A function as its name and a hash of its code and closure; a module as its type and settings."""
    if isinstance(function, partial):
        inner = [spelled(function.func, depth), *map(repr, map(plain_value, function.args))]
        named = [f"{key}={plain_value(value)!r}" for key, value in function.keywords.items()]
        return f"partial({', '.join([*inner, *named])})"
    if isinstance(function, nn.Module):
        settings = {key: x for key, x in vars(function).items() if not key.startswith("_") and key != "training"}
        # its parameters do not count: they may be trained, or start at random
        tensors = {key: digest(x) for key, x in function.named_buffers()}
        return f"{type(function).__name__}({_listed({**settings, **tensors})})"
    name, code = getattr(function, "__qualname__", None), getattr(function, "__code__", None)
    if name is None:
        return f"{type(function).__qualname__}({_listed(getattr(function, '__dict__', {}))})"
    if not isinstance(code, CodeType):
        return name
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
    held = {key: _content(cell, depth) for key, cell in cells}
    held |= {f"default {i}": x for i, x in enumerate(getattr(function, "__defaults__", None) or ())}
    text = repr((_code(code, function.__doc__), _listed(held)))
    return f"{name} #{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _listed(values: dict[str, Any]) -> str:
    """Settings as text. What may change in training (lists, trained tensors) is given by its type only."""

    def changes(value: Any) -> bool:
        return isinstance(value, list | dict) or (isinstance(value, torch.Tensor) and value.requires_grad)

    told = {key: type(x).__name__ if changes(x) else plain_value(x) for key, x in sorted(values.items())}
    return ", ".join(f"{key}={value!r}" for key, value in told.items())


def _content(cell: Any, depth: int) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # not filled yet
        return None
    return spelled(value, depth - 1) if depth and hasattr(value, "__code__") else value


def _code(code: CodeType, documentation: str | None) -> list[str]:
    """What a function does: its instructions, the names and the constants in them."""
    parts = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            parts += _code(constant, None)
        elif isinstance(constant, frozenset):
            parts.append(repr(sorted(map(repr, constant))))
        elif constant != documentation:
            parts.append(repr(constant))
    return parts
