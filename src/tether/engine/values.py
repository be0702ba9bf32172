"""Values: the numeric fields of a row under the letters' symbols."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from tether.part import NUMERIC, number
from tether.words import Word

__all__ = ["noisy", "symbols", "zero"]


def noisy(word: Word, values: Mapping[str, Any]) -> bool:
    """Does the word, with these values of its fields, draw any noise?"""
    return "R" in word.needs and not (zero(values["τ"]) and "σ" not in word.needs)


def zero(lr: Any) -> bool:
    return not bool(lr.any()) if isinstance(lr, torch.Tensor) else lr == 0


def symbols(group: dict[str, Any], known: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The fields of a row under the letters' symbols, checked anew: schedulers may have changed them.

    A per-replica tensor is converted to float64 once and cached in `known` until it is modified or replaced.
    """
    fields = tuple([group[name] for name in NUMERIC])
    where = group["where"]
    if all(type(value) is float for value in fields):
        numbers = _checked(where, fields)
    else:
        given: list[Any] = []
        for name, value in zip(NUMERIC, fields, strict=True):
            if isinstance(value, torch.Tensor) and value.dim():
                kept = known.get(name)
                if kept is None or kept[0] is not value or kept[1] != value._version:
                    number(f"part {where!r}", name, value, allow_infinite=name == "friction", replicas=replicas)
                    kept = known[name] = (value, value._version, value.detach().double().cpu().clone())
                given.append(kept[2])
            else:
                given.append(number(f"part {where!r}", name, value, allow_infinite=name == "friction"))
        numbers = tuple(given)
    values: dict[str, Any] = dict(zip(("lr", "γ", "τ", "ε", "σ", "ω"), numbers, strict=True))
    values["ξ"] = group["thermostat"]
    if not isinstance(values["ξ"], torch.Tensor):
        number(f"part {where!r}", "thermostat", values["ξ"], allow_negative=True)
    return values


@lru_cache(maxsize=1024)
def _checked(where: str, fields: tuple[Any, ...]) -> tuple[float, ...]:
    part = f"part {where!r}"
    named = zip(NUMERIC, fields, strict=True)
    return tuple(number(part, name, value, allow_infinite=name == "friction") for name, value in named)
