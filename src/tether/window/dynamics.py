"""Dynamics of the window: optimizers from rows of plain values, by published name or as a table of parts.

The library's own checks decide what is valid. This file only says to which field an error belongs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tether import methods
from tether.ensemble.replicas import Replicas
from tether.layerwise import output_layer
from tether.metrics.path import Path
from tether.metrics.rms import RMS
from tether.metrics.spectral import Spectral
from tether.optimizer import Optimizer
from tether.part import DEFAULTS, NUMERIC, Part
from tether.rhythms import Every, Merge, Pace, Sleep
from tether.surfaces import Circle, Free, Orthogonal, SpectralBall, Sphere
from tether.window.setting import Field, SettingError
from tether.words import WordError, parse

__all__ = [
    "ADAM",
    "CHOICES",
    "NUMBERS",
    "STEP",
    "adjust",
    "named_methods",
    "optimizer_of",
    "parts_of",
    "same_kind",
    "used_by",
]

ADAM = "adam"
WHOLE_LOSS = ("hmc", "mala")  # these test proposals by the loss of all points, and the window trains on minibatches
NUMBERS: dict[str, Field] = {
    "lr": Field(0.1, 1e-5, 2.0, log=True),
    "friction": Field(1.0, 1e-3, 1e3, log=True),
    "temperature": Field(0.0, 1e-9, 10.0, log=True),
    "coupling": Field(0.1, 1e-4, 10.0, log=True),
    "noise": Field(0.01, 1e-5, 1.0, log=True),
    "weight_decay": Field(0.0, 1e-7, 1.0, log=True),
    "mass": Field(1.0, 0.01, 100.0, log=True),
}
CHOICES: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "on": {
        "Free": (Free, {}),
        "Circle": (Circle, {"radius": 1.0}),
        "Sphere": (Sphere, {"radius": 1.0}),
        "Orthogonal": (Orthogonal, {}),
        "SpectralBall": (SpectralBall, {"radius": 1.0}),
    },
    "metric": {
        "Path": (Path, {"p": 2.0}),
        "RMS": (RMS, {"decay": 0.99, "eps": 1e-8}),
        "Spectral": (Spectral, {"steps": 5, "decay": 0.0}),
    },
    "rhythm": {
        "Every": (Every, {"k": 5}),
        "Sleep": (Sleep, {"share": 0.5, "nap": 5}),
        "Merge": (Merge, {"k": 5}),
        "Pace": (Pace, {"forget": 1.0, "least": 0.1, "most": 10.0, "power": 0.5}),
    },
}
USED = {"γ": "friction", "τ": "temperature", "ε": "coupling", "σ": "noise", "m": "mass"}
STEP = 0.1  # of a part that gives none
STRUCTURE = ("where", "word", "on", "metric", "rhythm", "normalised")


def named_methods() -> dict[str, dict[str, Any]]:
    """Every published method: what it is, its source, and its fields with their defaults."""
    found: dict[str, dict[str, Any]] = {}
    for name in methods.__all__:
        if name == "citation" or name in WHOLE_LOSS:
            continue
        method: Any = getattr(methods, name)
        said = inspect.cleandoc(method.__doc__).partition("\n")[0]
        found[name] = {"about": said.replace("`", ""), "source": methods.citation(name), "fields": _fields(method)}
    about = "Adam as torch has it, for comparison"
    found[ADAM] = {"about": about, "source": "D. Kingma, J. Ba. Adam. ICLR 2015", "fields": {"lr": 0.005}}
    return found


def _fields(method: Any) -> dict[str, Any]:
    """Defaults of the parameters that are numbers, choices or globs, as plain values."""
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(method.__wrapped__).parameters.items():
        kind = str(parameter.annotation)
        if name == "model" or parameter.kind is parameter.VAR_KEYWORD or "Mapping" in kind:
            continue
        default = "" if parameter.default is parameter.empty or parameter.default is None else parameter.default
        if isinstance(default, tuple):
            default = ", ".join(default)
        fields[name] = default
    return fields


def optimizer_of(row: Mapping[str, Any], model: Replicas, seed: int) -> torch.optim.Optimizer:
    """The optimizer of a row. Raises `SettingError` with the place of what is wrong."""
    unknown = sorted(set(row) - {"method", "fields", "parts", "label"})
    if unknown:
        raise SettingError(unknown[:1], f"a dynamics has no {unknown[0]!r}: give method and fields, or parts")
    if "parts" in row:
        return _by_parts(row, model, seed)
    name, given = row.get("method"), row.get("fields", {})
    known = named_methods()
    if name not in known:
        raise SettingError(["method"], f"method={name!r} must be one of {', '.join(known)}")
    fields = {key: _value(key, value, known[name]["fields"]) for key, value in given.items()}
    fields = {key: value for key, value in fields.items() if value not in ("", [], None)}
    try:
        if name == ADAM:
            return torch.optim.Adam(model.parameters(), **{**known[ADAM]["fields"], **fields})
        if name == "multirate_sgd":
            fields.setdefault("fast", output_layer(model))
        method: Callable[..., Optimizer] = getattr(methods, name)
        return method(model, **fields, seed=seed)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _placed(error, ["fields"], fields) from None


def _by_parts(row: Mapping[str, Any], model: Replicas, seed: int) -> Optimizer:
    rows = row["parts"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= 12:
        raise SettingError(["parts"], "a table has 1 to 12 parts")
    parts = []
    for i, given in enumerate(rows):
        try:
            parts.append(_part(given))
            parts[-1].row({**DEFAULTS, "lr": STEP})
        except SettingError as error:
            raise error.inside("parts", i) from None
        except (ValueError, TypeError) as error:
            raise _placed(error, ["parts", i], given) from None
    try:
        return Optimizer(model, parts, lr=STEP, seed=seed)
    except (ValueError, TypeError, RuntimeError) as error:
        text = str(error)
        at = next((i for i, part in enumerate(parts) if f"part {part.where!r}" in text), None)
        raise _placed(error, ["parts"] if at is None else ["parts", at], {} if at is None else rows[at]) from None


def _part(given: Any) -> Part:
    if not isinstance(given, dict):
        raise SettingError([], "a part is a row of values by name")
    fields: dict[str, Any] = {}
    word = given.get("word", DEFAULTS["word"])
    used = used_by(word) if isinstance(word, str) else set(NUMERIC)
    for name, value in given.items():
        if name in CHOICES:
            fields[name] = _chosen(name, value)
        elif name in NUMERIC:
            number = _number(name, value)
            if name in used:
                fields[name] = number
        elif name in ("where", "word"):
            if not isinstance(value, str) or len(value) > 200:
                raise SettingError([name], f"{name} must be a text of at most 200 characters")
            fields[name] = value
        elif name == "normalised":
            fields[name] = bool(value)
        else:
            raise SettingError([name], f"a part of the window has no field {name!r}")
    return Part(**fields)


def used_by(word: str) -> set[str]:
    """The numbers of a part that its word uses."""
    return {"lr", "weight_decay", *(USED[symbol] for symbol in parse(word).needs if symbol in USED)}


def _chosen(name: str, value: Any) -> Any:
    """A surface, a metric or a rhythm, by its name and its numbers."""
    if value is None:
        return None
    kind = value.get("kind") if isinstance(value, dict) else value
    known = CHOICES[name]
    if kind in ("", "none", None):
        return None
    if kind not in known:
        raise SettingError([name], f"{name}={kind!r} must be one of {', '.join(known)}")
    make, defaults = known[kind]
    given = {key: _number(key, x) for key, x in value.items() if key != "kind"} if isinstance(value, dict) else {}
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise SettingError([name], f"{kind} has no {unknown[0]!r}; it has {', '.join(defaults) or 'no settings'}")
    whole = {key: int(x) if key in ("k", "nap", "steps") and x == int(x) else x for key, x in given.items()}
    try:
        return make(**{**defaults, **whole})
    except (ValueError, TypeError) as error:
        raise SettingError([name], str(error)) from None


def _number(name: str, value: Any) -> float:
    if value in ("inf", "∞"):
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise SettingError([name], f"{name}={value!r} is not a number; e.g. {name}=0.1")
    return float(value)


def _value(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    """A field of a method as its default's kind."""
    if name not in known:
        raise SettingError(["fields", name], f"there is no {name!r}; fields are {', '.join(known)}")
    default = known[name]
    if name == "free":
        return [glob.strip() for glob in str(value).split(",") if glob.strip()]
    if isinstance(default, bool):
        return bool(value)
    if isinstance(default, str) and isinstance(value, str) and value not in ("inf", "∞"):
        return value[:200]
    if value == "":
        return None
    try:
        number = _number(name, value)
    except SettingError as error:
        raise error.inside("fields") from None
    return int(number) if isinstance(default, int) and number == int(number) else number


def _placed(error: Exception, at: list[str | int], fields: Mapping[str, Any]) -> SettingError:
    """An error of the library with the field that its message names."""
    if isinstance(error, WordError):
        return SettingError([*at, "word"], str(error).partition("\n")[0], error.at)
    text = str(error)
    named = [name for name in fields if f"{name}=" in text or f"of {name}" in text]
    where = ["where"] if not named and "matche" in text and at[0] == "parts" and len(at) > 1 else named[:1]
    return SettingError([*at, *where], text)


def same_kind(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    """Do the two differ in numbers alone?"""
    if type(one) is not type(other) or len(one.param_groups) != len(other.param_groups):
        return False
    pairs = zip(one.param_groups, other.param_groups, strict=True)
    return all(a.get(name) == b.get(name) for a, b in pairs for name in STRUCTURE)


def adjust(opt: torch.optim.Optimizer, wanted: torch.optim.Optimizer) -> list[tuple[int, str, float]]:
    """Give an optimizer the numbers of another of the same kind; returns what has changed: part, field, value."""
    changes = []
    for i, (group, other) in enumerate(zip(opt.param_groups, wanted.param_groups, strict=True)):
        for name in NUMERIC:
            if name in group and group[name] != other[name]:
                group[name] = other[name]
                changes.append((i, name, float(other[name])))
    return changes


def parts_of(opt: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The table of an optimizer as plain values, as `optimizer_of` takes them."""
    if not isinstance(opt, Optimizer):
        return []
    table = []
    for row in opt.rows:
        group = row.group
        own: dict[str, Any] = {"where": group["where"], "word": group["word"]}
        for name in NUMERIC:
            own[name] = "inf" if group[name] == math.inf else float(group[name])
        for name, chosen in (("on", row.surface), ("metric", row.metric), ("rhythm", row.rhythm)):
            kinds = CHOICES[name]
            kind = type(chosen).__name__
            if kind in kinds:
                own[name] = {"kind": kind, **_settings(chosen, kinds[kind][1])}
        table.append(own)
    return table


def _settings(chosen: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    names = {"k": "every"} if isinstance(chosen, Every) else {}
    return {name: float(getattr(chosen, names.get(name, name))) for name in defaults}
