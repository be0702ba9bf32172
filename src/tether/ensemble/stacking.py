"""Stacking: equal networks of a factory become one whose tensors have the replica as their first axis."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tether.ensemble.private import private_stream

__all__ = ["Factory", "build_one", "check_alike", "facts", "mark", "tensors", "with_tensors"]

Factory = Callable[[], nn.Module]


def build_one(factory: Factory, seed: int, i: int) -> nn.Module:
    """The network that the factory builds with the seed of replica i."""
    if not callable(factory):
        raise TypeError(
            f"factory is a {type(factory).__name__}; it must be a function that builds a module: "
            "Replicas(lambda: nn.Linear(2, 1), n)"
        )
    if isinstance(factory, nn.Module):
        raise TypeError(
            f"factory is a module ({type(factory).__name__}), not what builds one: for n networks that start equal "
            "write Replicas(lambda: copy.deepcopy(module), n)"
        )
    if not isinstance(seed, int):
        raise TypeError(f"seed={seed!r} must be an int, e.g. seed=0")
    name = hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=8).digest()
    with ExitStack() as stack:
        stack.enter_context(private_stream(int.from_bytes(name, "little") >> 1))
        if torch.cuda.is_initialized():  # torch.manual_seed inside the factory seeds those too
            stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        module = factory()
    if not isinstance(module, nn.Module):
        raise TypeError(f"the factory returned a {type(module).__name__}; it must return a torch.nn.Module")
    lazy = [name for name, x in tensors(module).items() if is_lazy(x)]
    if lazy:
        raise ValueError(
            f"{lazy[0]!r} is lazy, it has no shape yet: call the module once on an example inside the factory"
        )
    if not any(True for _ in module.parameters()):
        raise ValueError(f"the factory returned a {type(module).__name__} without parameters: nothing to stack")
    return module


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name. A tensor that two modules share has two names; a module used twice gives one."""
    found = {}
    for path, owner in module.named_modules():
        for name, x in [*owner._parameters.items(), *owner._buffers.items()]:
            if x is not None:
                found[f"{path}.{name}" if path else name] = x
    return found


def facts(module: nn.Module) -> dict[str, Any]:
    """What must be equal between replicas: all but the values of parameters and buffers."""
    known: dict[str, Any] = {}
    for path, owner in module.named_modules():
        known[path or "the module"] = type(owner).__name__
        for name, value in vars(owner).items():
            if isinstance(value, (bool, int, float, torch.Tensor)):
                known[f"{path}.{name}" if path else name] = value
    first: dict[int, str] = {}
    for name, x in tensors(module).items():
        tied = first.setdefault(id(x), name)
        kind = ("trained" if x.requires_grad else "frozen") + ("" if tied == name else f", tied to {tied}")
        known[name] = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}, {kind}"
    return known


def check_alike(want: dict[str, Any], got: dict[str, Any], i: int) -> None:
    for name in [*want, *got]:
        x, y = want.get(name), got.get(name)
        tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        if not (torch.equal(x, y) if tensors else repr(x) == repr(y)):  # type: ignore[arg-type]
            raise ValueError(
                f"{name!r} is {x} in replica 0 and {y} in replica {i}: the factory must build the same network each "
                "time, and only parameters and buffers may differ in value"
            )


def with_tensors(module: nn.Module, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> nn.Module:
    """A copy of a module with new tensors in the places of the old ones; tied ones stay tied."""
    memo: dict[int, Any] = {}
    for name, x in old.items():
        parameter = isinstance(x, nn.Parameter)
        memo.setdefault(id(x), nn.Parameter(new[name], requires_grad=x.requires_grad) if parameter else new[name])
    return copy.deepcopy(module, memo)


def mark(module: nn.Module, replicas: tuple[int, ...], stacked: bool = False) -> None:
    """Set on every parameter which replicas it holds, and whether they are stacked along its first axis."""
    for parameter in module.parameters():
        parameter.replicas, parameter.stacked = replicas, stacked  # type: ignore[attr-defined]
