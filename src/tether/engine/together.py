"""What must hold between the parts of a table, and of every parameter in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.blocks import Lanes
from tether.engine.given import lanes_of, named, stacked
from tether.engine.rows import Row
from tether.engine.values import for_entries
from tether.part import ENTRYWISE, NUMERIC
from tether.rhythms import Always
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["admitted", "check_parameter", "check_replicas", "check_together", "one_temperature"]


def admitted(opt: Optimizer, group: dict[str, Any], surface: Any) -> tuple[dict[torch.Tensor, str], Lanes]:
    """The parameters of a new group and their names, checked one by one, and the replicas they hold."""
    names: dict[torch.Tensor, str] = {}
    lanes = opt.lanes
    for name, param in named(group, sum(len(other["params"]) for other in opt.param_groups)):
        check_parameter(name, param, names)
        if opt.known_by_parameters and stacked(param) != opt.replicas:
            this, rest = ("one of", "no replicas") if stacked(param) else ("not of", "replicas")
            raise ValueError(
                f"parameter {name!r} is {this} tether.Replicas, and the parameters before it are {rest}: give each "
                "an optimizer of its own"
            )
        if not names and not opt.param_groups:
            lanes = lanes_of(name, param, opt.replicas)
        if opt.replicas and (param.dim() == 0 or len(param) != lanes.rows or not param.is_contiguous()):
            raise ValueError(
                f"parameter {name!r} of shape {tuple(param.shape)} does not hold {lanes.rows} replicas along "
                "its first axis, contiguous in memory: use tether.Replicas, or batch_dims=0"
            )
        if isinstance(surface, Surface):
            surface.check(name, param.shape[opt.replicas :])
        names[param] = name
    return names, lanes


def check_parameter(name: str, param: torch.Tensor, before: Mapping[torch.Tensor, str]) -> None:
    """Raise for a parameter that cannot be moved."""
    if not param.is_floating_point():
        raise TypeError(
            f"parameter {name!r} is {param.dtype}; tether moves real floating-point parameters: "
            "hold integers by register_buffer(...), and a complex one as torch.view_as_real(z)"
        )
    if param.is_meta:
        raise TypeError(
            f"parameter {name!r} is on the meta device and has no values; materialise the model first, "
            "model.to_empty(device='cpu'), and initialise or load it"
        )
    if param in before:
        raise ValueError(f"{before[param]!r} and {name!r} are one tensor: name it once, as named_parameters() does")


def check_replicas(group: Mapping[str, Any], lanes: Lanes) -> None:
    """Raise for a field with one number for each replica that does not have as many as there are."""
    n = lanes.rows if lanes.batched else 0
    for field in (*NUMERIC, "thermostat"):
        value = group[field]
        if field in ENTRYWISE and isinstance(value, torch.Tensor) and value.dim():
            check_entries(f"part {group['where']!r}: {field}", group, field, n)
        elif isinstance(value, torch.Tensor) and value.dim() and len(value) != n:
            rule = f"{n}, one for each replica" if n else "one, or batch_dims must be 1"
            raise ValueError(f"part {group['where']!r}: {field} holds {len(value)} numbers; it must hold {rule}")


def check_entries(what: str, group: Mapping[str, Any], field: str, n: int) -> None:
    """Raise for a number for each entry that does not fit a parameter, or may be meant for each replica."""
    value, params = group[field], group["params"]

    def fits(param: torch.Tensor) -> bool:
        try:
            return torch.broadcast_shapes(value.shape, param.shape) == param.shape
        except RuntimeError:
            return False

    if not for_entries(field, value, n):
        if n > 1 and params and all(param.dim() > 1 and param.shape[-1] == n for param in params):
            ones = ", ".join(["1"] * (params[0].dim() - 1))
            raise ValueError(
                f"{what} holds {n} numbers, and there are {n} replicas and {n} entries along the last axis of the "
                f"parameter: write {field}=x.view({n}, {ones}) for one number for each replica, or "
                f"{field}=x.view(1, {n}) for one for each entry"
            )
        return
    for param in params:
        if not fits(param):
            rule = f"; or hold {n} numbers, one for each replica" if n else ""
            raise ValueError(
                f"{what} has shape {tuple(value.shape)} and a parameter {tuple(param.shape)}: it must be a number, or "
                f"broadcast to every parameter of the part{rule}. Give the parameter a part of its own"
            )


def check_entrywise(row: Row) -> None:
    """Raise for a number for each entry where the entries do not move by themselves."""
    n = row.lanes.rows if row.lanes.batched else 0
    for field in (name for name in ENTRYWISE if for_entries(name, row.group[name], n)):
        where = f"part {row.group['where']!r}: {field} holds a number for each entry"
        if isinstance(row.surface, Surface) and not row.surface.separate:
            raise ValueError(
                f"{where}, and on {row.surface!r} entries do not move by themselves: the surface would need another "
                f"metric. Give {field} one number, or use Circle"
            )
        if row.metric is not None:
            raise ValueError(f"{where}, and so does the metric {row.metric!r}: choose one of them")
        if row.ranks is not None:
            raise ValueError(f"{where}, which sharded parameters do not have yet: give {field} one number")


def check_tested(rows: Sequence[Row]) -> None:
    """Raise unless all parts can be accepted or rejected together."""
    rhythm = next(row.rhythm for row in rows if row.rhythm.tested)
    for row in rows:
        where = f"part {row.group['where']!r}"
        if row.rhythm != rhythm:
            raise ValueError(
                f"{where}: the energy is that of all parts, so they are accepted or rejected together: give it "
                f"rhythm={rhythm!r} like the others, not {row.rhythm!r}"
            )
        if row.rhythm.legs(row.word) != rhythm.legs(rows[0].word):
            raise ValueError(
                f"{where}: the word {row.word.text!r} and {rows[0].word.text!r} take gradients at other moments: a "
                "proposal of both could not be taken back: use one of them for all parts"
            )
        if row.ranks is not None:
            raise ValueError(f"{where}: {rhythm!r} does not support sharded parameters: use whole ones")
    one_temperature(rows)


def one_temperature(rows: Sequence[Row]) -> None:
    """Raise where parts that are tested together have several temperatures: their density would not be known."""
    first, *others = (row.group["temperature"] for row in rows)
    for row, τ in zip(rows[1:], others, strict=True):
        if τ is not first and not torch.equal(*(torch.as_tensor(x).double().cpu() for x in (first, τ))):
            raise ValueError(
                f"part {row.group['where']!r}: temperature={τ!r} and {first!r} of another part: the energy of the "
                "whole loss has one temperature; give all parts the same"
            )


def check_together(rows: Sequence[Row]) -> None:
    """Raise for parts that cannot be in one table."""
    for row in rows:
        check_entrywise(row)
    if any(row.rhythm.tested for row in rows):
        check_tested(rows)
    elif any(row.word.needs_closure for row in rows):
        for row in rows:
            if row.metric is not None or row.rhythm != Always():
                other = row.metric if row.metric is not None else row.rhythm
                raise ValueError(
                    f"a word that takes several gradients per step cannot go with a part on {other!r}: use words with "
                    "one gradient, such as 'OBA', for all parts"
                )
    for row in rows:
        if row.rhythm.alone and len(rows) > 1:
            raise ValueError(
                f"part {row.group['where']!r}: {row.rhythm!r} is the clock of all parameters: let one Part('*') have "
                f"them all, not {len(rows)} parts"
            )
    rates = sorted({row.rhythm.every for row in rows})
    for fast, slow in pairwise(rates):
        if slow % fast:
            raise ValueError(f"every={slow} must be a multiple of every={fast} of the faster part: rates are nested")
