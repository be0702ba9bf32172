"""Parts made from the layers of a model."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tether.ensemble.replicas import Replicas
from tether.part import Part, matches, number
from tether.surfaces import Surface

__all__ = ["Radius", "constrained", "glob_of", "layers", "narrow_first", "output_layer", "per_layer", "thermostats"]

Radius = float | torch.Tensor | Sequence[float]


def constrained(
    model: torch.nn.Module, surface: Callable[..., Surface], radius: Radius | None, free: Sequence[str], **fields: Any
) -> list[Part]:
    """A part for all weights, or one for each if there are several radii, and a part for the other parameters."""
    if isinstance(free, str):
        raise TypeError(f"free={free!r} must be a list of globs, e.g. free=[{free!r}]")
    replicas = isinstance(model, Replicas)  # the first axis of replicas is no dimension of a weight
    named = [(name, param.dim() - replicas if param.numel() else 0) for name, param in model.named_parameters()]
    for where in free:
        if not any(matches(name, where) for name, _ in named):
            raise ValueError(f"free={where!r} matches no parameter")
    weights = [name for name, dim in named if dim > 1 and not any(matches(name, where) for where in free)]
    if not weights:
        raise ValueError("no weights to constrain: no parameter with two or more dimensions is left by free=")
    literal = [glob.escape(name) for name in weights]
    if isinstance(radius, Sequence):
        if len(radius) != len(weights):
            raise ValueError(f"radius has {len(radius)} values for the {len(weights)} weights {', '.join(weights)}")
        parts = [Part(where, on=surface(r, **fields)) for where, r in zip(literal, radius, strict=True)]
    else:
        on = surface(**fields) if radius is None else surface(radius, **fields)
        parts = [Part("|".join(literal), on=on)]
    return [*parts, Part("*")] if len(weights) < len(named) else parts


def layers(model: torch.nn.Module) -> list[str]:
    """Modules that hold parameters of their own, in order of first use."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))


def glob_of(layer: str) -> str:
    """The glob of a layer's parameters. Special characters in its name are escaped."""
    return f"{glob.escape(layer)}.*" if layer else "*"


def narrow_first(parts: list[Part]) -> list[Part]:
    """The parts with a layer inside another one moved before it, since the first match wins."""
    order = {part.where: i for i, part in enumerate(parts)}
    inside = {part.where: [q for q in order if q != part.where and matches(q, part.where)] for part in parts}
    return sorted(parts, key=lambda part: max([order[part.where], *(order[q] + 0.5 for q in inside[part.where])]))


def output_layer(model: torch.nn.Module) -> str:
    """The glob of the last layer's parameters."""
    names = layers(model)
    if len(names) < 2:
        raise ValueError(
            f"a partitioned method needs two layers or more, this model has {names}: use tether.methods.langevin, "
            "or name the parameters of the output part by output='...'"
        )
    return glob_of(names[-1])


def per_layer(name: str, value: Any, names: list[str]) -> list[float]:
    """One value for each layer, given as a list or as one value for all."""
    one = isinstance(value, str) or not isinstance(value, Sequence | torch.Tensor | np.ndarray) or np.ndim(value) == 0
    given = [value] * len(names) if one else list(value)
    values = [number("langevin_in_layers", name, x, allow_infinite=name == "friction") for x in given]
    if len(values) != len(names):
        raise ValueError(f"{name} has {len(values)} values for the {len(names)} layers {', '.join(names)}")
    return values


def thermostats(model: torch.nn.Module, per: str, taken: Part | None = None, **fields: Any) -> list[Part]:
    """One part, and so one thermostat, for each tensor, layer or the whole model, without the parameters of `taken`."""
    names = [name for name, _ in model.named_parameters() if not (taken and matches(name, taken.where))]
    wheres = {
        "tensor": [glob.escape(name) for name in names],
        "layer": list(dict.fromkeys(glob_of(name.rpartition(".")[0]) for name in names)),
        "model": ["*"],
    }
    if per not in wheres:
        raise ValueError(f"per={per!r} must be 'tensor', 'layer' or 'model'")
    if not names:
        where = taken.where if taken else "*"
        raise ValueError(f"the inner part matches no parameter: output={where!r} takes them all; name the output alone")
    return narrow_first([Part(where, **fields) for where in wheres[per]])
