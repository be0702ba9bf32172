"""Part: one row of the table. Rows find their parameters by globs on names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

import torch

from tether.engine.advice import TRANSLATIONS
from tether.letters import LETTERS
from tether.metrics.metric import Metric
from tether.rhythms import SHORT, Rhythm, rhythm_of
from tether.surfaces import Free, Surface
from tether.words import Word, parse

__all__ = ["Part"]

Named = list[tuple[str, torch.Tensor]]

NUMERIC = ("lr", "friction", "temperature", "coupling", "noise", "weight_decay", "mass")
ENTRYWISE = ("friction", "mass")  # may hold a number for each entry of a parameter
RULES: dict[str, dict[str, Any]] = {"friction": {"allow_infinite": True}, "mass": {"allow_zero": False}}

DEFAULTS: dict[str, Any] = {
    "word": "X",
    "on": Free(),
    "friction": 1.0,
    "temperature": 0.0,
    "coupling": 0.1,
    "noise": 0.01,
    "weight_decay": 0.0,
    "mass": 1.0,
    "thermostat": 0.1,
    "normalised": False,
    "metric": None,
    "rhythm": None,
    **SHORT,
}


@dataclass(frozen=True)
class Part:
    """One row: which parameters move (`where`, a glob on their names) and by which dynamics.

    A field left at None takes the optimizer's value.

    Args:
        where: glob on parameter names, e.g. ``"0.*"`` or ``"*.weight"``, or several joined by ``|``; the first part
            that matches wins.
        word: the dynamics, e.g. ``"X"`` (SGD, SGLD), ``"BAOAB"`` (Langevin), ``"BACDEDCAB"`` (adaptive).
        on: the surface the parameters stay on, e.g. ``tether.Orthogonal()``; `Free` is none.
        lr: step size h.
        friction: γ of the letter O; 0 is Hamiltonian, ``inf`` redraws the momenta. A tensor that broadcasts to the
            parameter is a friction for each entry.
        temperature: τ; the dynamics samples exp(−L/τ), and 0 is noiseless.
        coupling: ε of the thermostat letter E.
        noise: σ_A, the strength of the applied noise of the letters D and F.
        weight_decay: ω; the gradient becomes g + ωθ.
        thermostat: the value at which the thermostat ξ starts.
        normalised: divide ε by the number of parameters, so that one ε, of the order of 1/τ, fits every layer.
        every: the part makes one step for so many steps of the optimizer; between them its gradient is not computed.
        rhythm: what the part does over several steps, e.g. ``tether.Every(5)``; the fields below are its short forms.
        metric: how distance is measured, e.g. ``tether.Path()`` (Path-SGD); None is the Euclidean distance.
        drift: spread the drift of a word that ends in one (OBA, MS) over those steps; False makes it in one step.
        asleep: share of the weights, chosen at random in each cycle, that is 0 for `nap` steps and then moves once by
            h·nap.
        nap: the number of steps that they sleep.
        merge: after so many steps, take the mean with a slow copy that has made one step of the same total length.
        mass: m of the kinetic energy pᵀM⁻¹p/2. A heavy entry moves slowly, averages are the same. A tensor that
            broadcasts to the parameter is a mass for each entry.
    """

    where: str = "*"
    word: str | None = None
    on: Surface | Free | None = None
    lr: float | torch.Tensor | None = None
    friction: float | torch.Tensor | None = None
    temperature: float | torch.Tensor | None = None
    coupling: float | torch.Tensor | None = None
    noise: float | torch.Tensor | None = None
    weight_decay: float | torch.Tensor | None = None
    thermostat: float | None = None
    normalised: bool | None = None
    every: int | None = None
    drift: bool | None = None
    metric: Metric | None = None
    rhythm: Rhythm | None = None
    asleep: float | None = None
    nap: int | None = None
    merge: int | None = None
    mass: float | torch.Tensor | None = None

    def __new__(cls, *_: Any, **given: Any) -> Part:
        """Refuse unknown fields, and suggest the nearest known one."""
        known_fields(given, "Part")
        return super().__new__(cls)

    def row(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The part as a torch param group without its parameters: every field filled in and checked."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        row = {**defaults, **{name: value for name, value in given.items() if value is not None}, "where": self.where}
        check(row)
        return row


FIELDS = tuple(field.name for field in fields(Part))


def check(row: Mapping[str, Any]) -> None:
    """Raise unless every value of a row is valid and its choices can be combined."""
    check_kinds(row)
    where = f"part {row['where']!r}"
    for name in NUMERIC:
        if name in ENTRYWISE and isinstance(row[name], torch.Tensor) and row[name].dim() > 1:
            entrywise(where, name, row[name])
        else:
            number(where, name, row[name], replicas=None, **RULES.get(name, {}))
    number(where, "thermostat", row["thermostat"], allow_negative=True, replicas=None)
    if not isinstance(row["on"], Surface | Free):
        raise TypeError(f"{where}: on={row['on']!r} must be a surface, e.g. on=tether.Orthogonal()")
    check_word(where, row)
    if not isinstance(row["metric"], Metric | None):
        raise TypeError(f"{where}: metric={row['metric']!r} must be a metric, e.g. metric=tether.Path(), or None")
    if isinstance(row["rhythm"], str):
        raise TypeError(f"{where}: rhythm={row['rhythm']!r} must be a rhythm, e.g. rhythm=tether.Every(5), or None")
    if row["metric"] is not None:
        row["metric"].check(where, row)
    rhythm_of(where, row).check(where, row)


def check_word(where: str, row: Mapping[str, Any]) -> Word:
    """The word of a row; raises for a letter that has no map on its surface."""
    word, surface = parse(row["word"]), row["on"]
    flat = [] if isinstance(surface, Free) else [name for name in word.text if not LETTERS[name].curved]
    if flat:
        raise ValueError(
            f"{where}: the word {word.text!r} on {surface!r}: {flat[0]} has no exact map on "
            "a surface; split it into letters that have one, e.g. word='BAOAB', or leave out on=..."
        )
    return word


def check_kinds(row: Mapping[str, Any]) -> None:
    """Raise for fields that are no numbers and not of their kind; those of a group that runs may be names."""
    if not isinstance(row["where"], str):
        raise TypeError(f"where={row['where']!r} must be a glob on parameter names, e.g. where='0.*'")
    where = f"part {row['where']!r}"
    if not isinstance(row["normalised"], bool):
        raise TypeError(f"{where}: normalised={row['normalised']!r} must be True or False")
    if not isinstance(row["rhythm"], Rhythm | str | None):
        raise TypeError(f"{where}: rhythm={row['rhythm']!r} must be a rhythm, e.g. rhythm=tether.Every(5), or None")
    seed = row.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"{where}: seed={seed!r} must be an int, e.g. seed=0")


def for_checkpoints(row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row with values that a checkpoint can hold, and with tensors that no other row shares."""
    own = dict(row)
    for name in (*NUMERIC, "thermostat"):
        value = own[name]
        if not isinstance(value, torch.Tensor):
            own[name] = float(value)
        elif any(other[name] is value for other in others):
            own[name] = value.detach().clone()
    return own


def number(
    where: str,
    name: str,
    value: Any,
    *,
    allow_infinite: bool = False,
    allow_negative: bool = False,
    allow_zero: bool = True,
    replicas: int | None = 0,
) -> Any:
    """The value as a float, or as a tensor with one entry for each replica. Raises if it is not in range.

    `replicas` is their number; None if that is not known yet.
    """
    rule = "a finite number" if allow_negative else ("0 or more (inf included)" if allow_infinite else "finite and ≥ 0")
    rule = rule if allow_zero else "finite and > 0"
    rules = {"allow_infinite": allow_infinite, "allow_negative": allow_negative, "allow_zero": allow_zero}
    vector = isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) > 0 and not value.is_complex()
    if vector and (replicas is None or len(value) == replicas):
        bounds = [float(value.min()), float(value.max())]  # if there is a nan, both are nan
        for x in bounds:
            number(where, f"an entry of {name}", x, **rules)
        return value
    if not (
        isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex())
    ):
        raise TypeError(f"{where}: {name}={value!r} is not a number; {name} must be {rule}, e.g. {name}=0.1")
    x = float(value)
    low = (x < 0 and not allow_negative) or (x == 0 and not allow_zero)
    if math.isnan(x) or low or (math.isinf(x) and not (allow_infinite and x > 0)):
        raise ValueError(f"{where}: {name}={value!r} is out of range; {name} must be {rule}, e.g. {name}=0.1")
    return x


def entrywise(where: str, name: str, value: torch.Tensor) -> torch.Tensor:
    """A tensor with a number for each entry of a parameter. Raises if one of them is not in range."""
    if not value.is_floating_point() or not value.numel():
        raise TypeError(
            f"{where}: {name} of shape {tuple(value.shape)} and {value.dtype} must hold real numbers, one for each "
            "entry of the parameter"
        )
    number(where, name, value.detach().flatten(), replicas=None, **RULES.get(name, {}))
    return value


def known_fields(names: Iterable[str], caller: str) -> None:
    """Raise for a name that is no field of a part, suggesting the nearest one."""
    for name in names:
        if name in TRANSLATIONS:
            raise TypeError(f"{caller}: {name!r} is a keyword of torch's optimizers; here {TRANSLATIONS[name]}")
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; fields are {', '.join(FIELDS)}"
            raise TypeError(f"{caller}: unknown field {name!r}{hint}")


def matches(name: str, where: str) -> bool:
    """Does one of the globs in `where`, joined by ``|``, match the name?"""
    return any(fnmatchcase(name, glob) for glob in where.split("|"))


def known_names(names: Sequence[str], where: str = "") -> str:
    """Says how parameters are named, for an error on a glob that matches none."""
    inside = f"{where}.*"
    hint = f"did you mean {inside!r}? " if where and any(matches(name, inside) for name in names) else ""
    return f"{hint}parameters are named {', '.join(map(repr, names[:6]))}" + (", …" if len(names) > 6 else "")


def match(named: Named, parts: Sequence[Part]) -> list[Named]:
    """Give each parameter to the first part whose glob matches its name.

    Frozen parameters that no part matches are left out. Any other unmatched parameter is an error, and so is a part
    without parameters.
    """
    taken: list[Named] = [[] for _ in parts]
    for name, parameter in named:
        for part, mine in zip(parts, taken, strict=True):
            if matches(name, part.where):
                mine.append((name, parameter))
                break
        else:
            if parameter.requires_grad:
                globs = ", ".join(repr(part.where) for part in parts)
                raise ValueError(
                    f"parameter {name!r} is matched by no part (globs: {globs}); add a last Part('*') for the rest"
                )
    for part, mine in zip(parts, taken, strict=True):
        if not mine:
            hit = [name for name, _ in named if matches(name, part.where)]
            why = (
                f"an earlier part takes all it matches ({', '.join(hit[:3])}): put the narrower part first"
                if hit
                else known_names([name for name, _ in named], part.where)
            )
            raise ValueError(f"part {part.where!r} matches no parameter; {why}")
    return taken
