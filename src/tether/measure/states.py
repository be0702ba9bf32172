"""States of one model: check, mix and compare them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import torch
from torch import nn

__all__ = ["State", "between", "chosen", "distance", "fitting", "mix", "owners", "statistics"]

State = Mapping[str, torch.Tensor]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def between(start: State, end: State, alpha: float) -> dict[str, torch.Tensor]:
    """The state θ_α = (1 − α) θ_i + α θ_f (6.1), in new tensors.

    Buffers are mixed too. Integers, such as BatchNorm's count of batches, are taken from the nearer end.

    >>> between({"w": torch.tensor([0.0, 4.0])}, {"w": torch.tensor([1.0, 0.0])}, 0.25)
    {'w': tensor([0.2500, 3.0000])}
    """
    check_states(start, end)
    return {name: mix([x, end[name]], [1 - alpha, alpha]).clone() for name, x in start.items()}


def distance(start: State, end: State, where: str | Sequence[str] = "*", *, batch_dims: int = 0) -> Any:
    """d(θ_f, θ_i) = ‖θ_f − θ_i‖ / ‖θ_i‖, how far training went relative to where it began (6.3).

    >>> distance({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}, {"w": torch.tensor([3.0]), "b": torch.zeros(1)})
    0.8

    Args:
        start: a state dict; BatchNorm's running statistics do not count.
        end: another.
        where: a glob, or several, on the names that count; e.g. ``"0.*"`` for a layer.
        batch_dims: 1 for states of `tether.Replicas`: a tensor with the distance of each.
    """
    check_states(start, end)
    names = [name for name in chosen(start, where) if not name.endswith(STATISTICS)]
    names = list({start[name].data_ptr(): name for name in names}.values())  # a tied tensor counts once
    square: Any = [0.0, 0.0]
    for name in names:
        x, y = start[name].detach().double(), end[name].detach().double().to(start[name].device)
        for k, part in enumerate((y - x, x)):
            square[k] = square[k] + part.square().reshape(*part.shape[:batch_dims], -1).sum(-1)
    moved, size = (torch.as_tensor(s, dtype=torch.float64).sqrt() for s in square)
    if not bool((size > 0).all()):
        raise ValueError(
            f"‖θ_i‖ = 0 over {where!r}: a distance relative to it is not defined; choose names that start elsewhere"
        )
    return moved / size if batch_dims else (moved / size).item()


def mix(tensors: Sequence[torch.Tensor], weights: Sequence[float], room: torch.Tensor | None = None) -> torch.Tensor:
    """Σ_j w_j T_j. The result may be one of the tensors itself, or `room`, an earlier result that nobody needs.

    Terms of weight 0 are left out, since 0 · ∞ is nan. Half precision is summed in single precision.
    """
    first = tensors[0]
    if not (first.is_floating_point() or first.is_complex()):
        return tensors[max(range(len(weights)), key=lambda j: weights[j])]
    terms = [(w, x) for w, x in zip(weights, tensors, strict=True) if w]
    if not terms:
        return torch.zeros_like(first)
    if len(terms) == 1 and terms[0][0] == 1:
        return terms[0][1]
    narrow = first.dtype in (torch.bfloat16, torch.float16)
    wide = [(w, x.float() if narrow else x) for w, x in terms]
    if len(wide) == 2 and math.isclose(wide[0][0] + wide[1][0], 1, rel_tol=1e-15):
        total = torch.lerp(wide[0][1], wide[1][1], wide[1][0], out=None if narrow else room)  # one pass over memory
    else:
        total = wide[0][1] * wide[0][0]
        for w, x in wide[1:]:
            total.add_(x, alpha=w)
    return total.to(first.dtype) if narrow else total


def check_states(start: State, end: State) -> None:
    """Raise unless both are states of one model."""
    faults = _faults(start, end, "start", "end")
    if faults:
        raise ValueError(f"start and end are states of different models: {faults}")


def fitting(model: nn.Module, **states: State) -> list[dict[str, torch.Tensor]]:
    """The tensors of each state, on the model's device and in its precision. Raises if they do not fit the model."""
    own = {name: x for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)}
    found = []
    for which, state in states.items():
        if not isinstance(state, Mapping):
            raise TypeError(f"{which} must be a state dict, got {type(state).__name__}; e.g. {which}=net.state_dict()")
        tensors = {name: x.detach() for name, x in state.items() if isinstance(x, torch.Tensor)}
        faults = _faults(own, tensors, "the model", which)
        if faults:
            raise ValueError(f"{which} is no state of this {type(model).__name__}: {faults}")
        found.append({name: tensors[name].to(x.device, x.dtype) for name, x in own.items()})
    for first, second in pairwise(found):
        if own and all(x.numel() == 0 or x.data_ptr() == second[name].data_ptr() for name, x in first.items()):
            raise ValueError(
                f"{' and '.join(states)} are the very same tensors: state_dict() shows the tensors that training "
                "changes; keep a copy, e.g. start = copy.deepcopy(net.state_dict())"
            )
    return found


def _faults(one: State, other: State, first: str, second: str) -> str:
    def shape(state: State, name: str) -> str:
        return str(tuple(state[name].shape)) if name in state else "absent"

    wrong = [name for name in dict.fromkeys([*one, *other]) if shape(one, name) != shape(other, name)]
    told = [f"{name!r} is {shape(one, name)} in {first} and {shape(other, name)} in {second}" for name in wrong[:5]]
    return "; ".join(told) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")


def chosen(names: Mapping[str, Any], where: str | Sequence[str]) -> list[str]:
    """The names that match one of the globs. Raises if a glob matches none."""
    globs = [where] if isinstance(where, str) else list(where)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ValueError(f"{glob!r} matches no tensor; the names are {', '.join(map(repr, names))}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def owners(model: nn.Module) -> dict[str, str]:
    """For every name of the state the first name of the same tensor; they differ if it is tied."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True).items()
    return {name: first.setdefault(id(x), name) for name, x in state if isinstance(x, torch.Tensor)}


def statistics(model: nn.Module) -> list[str]:
    """Names of the running statistics that the model's normalisations keep."""
    return [
        f"{place}.{name}".lstrip(".")
        for place, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for name, buffer in module.named_buffers(recurse=False)
        if name in STATISTICS and buffer is not None
    ]
