"""The setting of the window: problem, network and dynamics as plain values, checked before anything is built.

A setting comes from a page, so it is never trusted. Every value is looked up or converted; nothing is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ACTIVATIONS",
    "MOST_REPLICAS",
    "MOST_ROWS",
    "PROBLEMS",
    "Field",
    "Setting",
    "SettingError",
    "as_values",
    "read_setting",
]

MOST_REPLICAS, MOST_ROWS, MOST_POINTS, WIDEST, DEEPEST = 50, 4, 5000, 256, 8
ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid", "leaky relu": "LeakyReLU", "none": "Identity"}


class SettingError(ValueError):
    """A value that cannot be used. `at` is its place in the setting, `caret` a position in a word."""

    def __init__(self, at: Sequence[str | int], message: str, caret: int | None = None) -> None:
        super().__init__(message)
        self.at, self.caret = list(at), caret

    def inside(self, *above: str | int) -> SettingError:
        """The same error, seen from further outside."""
        return SettingError([*above, *self.at], str(self), self.caret)


@dataclass(frozen=True)
class Field:
    """A number that the page shows by a slider: default, range, and whether the slider is logarithmic."""

    default: float
    least: float
    most: float
    whole: bool = False
    log: bool = False

    def checked(self, name: str, value: Any) -> float:
        """The value as a number in range. Raises if it is none."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SettingError([name], f"{name}={value!r} must be a number from {self.least:g} to {self.most:g}")
        if not self.least <= value <= self.most or (self.whole and value != int(value)):
            kind = "a whole number" if self.whole else "a number"
            raise SettingError([name], f"{name}={value!r} must be {kind} from {self.least:g} to {self.most:g}")
        return int(value) if self.whole else float(value)


POINTS = Field(500, 10, MOST_POINTS, whole=True, log=True)
PROBLEMS: dict[str, dict[str, Field]] = {
    "spiral": {"points": POINTS, "turns": Field(2.0, 0.25, 6.0), "noise": Field(0.02, 0.0, 0.5)},
    "trig": {
        "points": POINTS,
        "frequency": Field(6.0, 0.5, 20.0),
        "scale": Field(3.0, 1, 10),
        "noise": Field(0.02, 0, 0.5),
    },
    "blobs": {"points": POINTS, "classes": Field(3, 2, 6, whole=True), "noise": Field(0.35, 0.0, 1.5)},
    "circles": {"points": POINTS, "noise": Field(0.1, 0.0, 0.5)},
    "line": {
        "points": Field(60, 5, MOST_POINTS, whole=True, log=True),
        "frequency": Field(1.5, 0, 5),
        "noise": Field(0.1, 0, 1),
    },
    "well": {"barrier": Field(1.0, 0.1, 10.0, log=True), "start": Field(-1.0, -2, 2)},
    "csv": {},
}


@dataclass(frozen=True)
class Setting:
    """What the window trains: see `read_setting` for where it comes from."""

    problem: dict[str, Any]
    hidden: tuple[int, ...]
    activation: str
    batch: int | None
    replicas: int
    seed: int
    dynamics: tuple[dict[str, Any], ...]

    @property
    def network(self) -> tuple[Any, ...]:
        """Everything but the dynamics. If this changes, training begins anew."""
        return (repr(self.problem), self.hidden, self.activation, self.batch, self.replicas, self.seed)


def read_setting(given: Any) -> Setting:
    """A setting from the values of a page. Raises `SettingError` for the first that cannot be used."""
    given = _mapping([], given)
    problem = _problem(given.get("problem", {"kind": "spiral"}))
    hidden = given.get("hidden", [20])
    if not isinstance(hidden, list) or len(hidden) > DEEPEST:
        raise SettingError(["hidden"], f"hidden={hidden!r} must be a list of at most {DEEPEST} widths, e.g. [20, 20]")
    widths = [Field(20, 1, WIDEST, whole=True).checked("hidden", width) for width in hidden]
    activation = given.get("activation", "relu")
    if activation not in ACTIVATIONS:
        raise SettingError(["activation"], f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
    batch = given.get("batch", 25)
    if batch is not None:
        batch = int(Field(25, 1, MOST_POINTS, whole=True).checked("batch", batch))
    rows = given.get("dynamics", [{"method": "sgd"}])
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        raise SettingError(["dynamics"], f"dynamics must be a list of 1 to {MOST_ROWS} rows")
    return Setting(
        problem,
        tuple(int(width) for width in widths),
        activation,
        batch,
        int(Field(10, 1, MOST_REPLICAS, whole=True).checked("replicas", given.get("replicas", 10))),
        int(Field(0, 0, 2**31 - 1, whole=True).checked("seed", given.get("seed", 0))),
        tuple(_at(["dynamics", i], _mapping, [], row) for i, row in enumerate(rows)),
    )


def as_values(setting: Setting) -> dict[str, Any]:
    """The setting as the page writes it."""
    return {
        "problem": setting.problem,
        "hidden": list(setting.hidden),
        "activation": setting.activation,
        "batch": setting.batch,
        "replicas": setting.replicas,
        "seed": setting.seed,
        "dynamics": [dict(row) for row in setting.dynamics],
    }


def _problem(given: Any) -> dict[str, Any]:
    given = _mapping(["problem"], given)
    kind = given.get("kind")
    if kind not in PROBLEMS:
        raise SettingError(["problem", "kind"], f"data {kind!r} must be one of {', '.join(PROBLEMS)}")
    fields = PROBLEMS[kind]
    unknown = sorted(set(given) - set(fields) - {"kind", "text"})
    if unknown:
        raise SettingError(
            ["problem", unknown[0]], f"{kind} has no {unknown[0]!r}; it has {', '.join(fields) or 'none'}"
        )
    values = {
        name: _at(["problem"], field.checked, name, given.get(name, field.default)) for name, field in fields.items()
    }
    if kind != "csv":
        return {"kind": kind, **values}
    text = given.get("text", "")
    if not isinstance(text, str) or len(text) > 400_000:
        raise SettingError(["problem", "text"], "the file must be text of at most 400 kB with lines x, y, class")
    return {"kind": kind, "text": text}


def _mapping(at: Sequence[str | int], given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise SettingError(at, f"expected values by name, got {type(given).__name__}")
    return dict(given)


def _at(place: Sequence[str | int], check: Callable[..., Any], *args: Any) -> Any:
    try:
        return check(*args)
    except SettingError as error:
        raise error.inside(*place) from None
