"""Values: the numeric fields of a row under the letters' symbols."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from tether.engine import host
from tether.engine.formulas import ENTRIES
from tether.part import ENTRYWISE, NUMERIC, RULES, entrywise, number
from tether.words import Word

__all__ = ["SYMBOLS", "entries_in", "for_entries", "noisy", "symbols", "zero"]

SYMBOLS = ("lr", "γ", "τ", "ε", "σ", "ω", "m")  # of the numeric fields, in their order


def noisy(word: Word, values: Mapping[str, Any]) -> bool:
    """Does the word, with these values of its fields, draw any noise?"""
    return "R" in word.needs and not (zero(values["τ"]) and "σ" not in word.needs)


def zero(lr: Any) -> bool:
    """Is it 0 everywhere? A tensor that the host may not read is not."""
    if isinstance(lr, torch.Tensor):
        return host.reads(lr.device) and not bool(lr.any())
    return bool(lr == 0)


def for_entries(name: str, value: Any, replicas: int) -> bool:
    """Does a field hold a number for each entry? One with as many numbers as there are replicas does not."""
    if name not in ENTRYWISE or not isinstance(value, torch.Tensor) or not value.dim():
        return False
    return value.dim() > 1 or len(value) != replicas


def entries_in(group: dict[str, Any], replicas: int) -> dict[str, torch.Tensor]:
    """The fields that hold a number for each entry, by their symbols."""
    named = zip(SYMBOLS, NUMERIC, strict=True)
    return {s: group[name] for s, name in named if for_entries(name, group[name], replicas)}


def symbols(group: dict[str, Any], known: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The fields of a row under the letters' symbols, checked anew: schedulers may have changed them.

    A tensor with one number for each replica, and one on another device, is copied once and cached in `known` until it
    is modified or replaced. One of a single number on another device is not checked: that would wait for the device.
    """
    fields = tuple([group[name] for name in NUMERIC])
    where = group["where"]
    if all(type(value) is float for value in fields):
        numbers = tuple(_checked(where, name, value) for name, value in zip(NUMERIC, fields, strict=True))
    else:
        given: list[Any] = []
        for name, value in zip(NUMERIC, fields, strict=True):
            if for_entries(name, value, replicas):
                kept = known.get(name)
                if kept is None or kept[0] is not value or kept[1] != value._version:
                    known[name] = (entrywise(f"part {where!r}", name, value), value._version)
                given.append(ENTRIES["γ" if name == "friction" else "m"])
            elif isinstance(value, torch.Tensor) and (value.dim() or not host.reads(value.device)):
                device = group["params"][0].device if group["params"] else value.device
                kept = known.get(name)
                if kept is None or kept[0] is not value or kept[1:3] != (value._version, device):
                    if value.dim() and value.device.type != "meta":
                        number(f"part {where!r}", name, value, replicas=replicas, **RULES.get(name, {}))
                    own = value.detach().to(device, host.wide(device), copy=True)
                    kept = known[name] = (value, value._version, device, own)
                given.append(kept[3])
            else:
                given.append(number(f"part {where!r}", name, value, **RULES.get(name, {})))
        numbers = tuple(given)
    values: dict[str, Any] = dict(zip(SYMBOLS, numbers, strict=True))
    values["ξ"] = group["thermostat"]
    if not isinstance(values["ξ"], torch.Tensor):
        number(f"part {where!r}", "thermostat", values["ξ"], allow_negative=True)
    return values


@lru_cache(maxsize=4096)
def _checked(where: str, name: str, value: float) -> float:
    """The value of a field; a scheduler changes one, and the others are known."""
    return float(number(f"part {where!r}", name, value, **RULES.get(name, {})))
