"""What must hold between the parts of a table, and of every parameter in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from tether.engine.blocks import Lanes
from tether.engine.rows import Row
from tether.part import NUMERIC
from tether.rhythms import Always

__all__ = ["check_parameter", "check_replicas", "check_together"]


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
    if hasattr(param, "to_local"):
        raise TypeError(f"parameter {name!r} is a DTensor; tether does not move sharded parameters yet: use DDP")
    if param in before:
        raise ValueError(f"{before[param]!r} and {name!r} are one tensor: name it once, as named_parameters() does")


def check_replicas(group: Mapping[str, Any], lanes: Lanes) -> None:
    """Raise for a field with one number for each replica that does not have as many as there are."""
    for field in (*NUMERIC, "thermostat"):
        value, n = group[field], lanes.rows if lanes.batched else 0
        if isinstance(value, torch.Tensor) and value.dim() and len(value) != n:
            rule = f"{n}, one for each replica" if n else "one, or batch_dims must be 1"
            raise ValueError(f"part {group['where']!r}: {field} holds {len(value)} numbers; it must hold {rule}")


def check_together(rows: Sequence[Row]) -> None:
    """Raise for parts that cannot be in one table."""
    if any(row.word.needs_closure for row in rows):
        for row in rows:
            if row.metric is not None or row.rhythm != Always():
                other = row.metric if row.metric is not None else row.rhythm
                raise ValueError(
                    f"a word that takes several gradients per step cannot go with a part on {other!r}: use words with "
                    "one gradient, such as 'OBA', for all parts"
                )
    rates = sorted({row.rhythm.every for row in rows})
    for fast, slow in pairwise(rates):
        if slow % fast:
            raise ValueError(f"every={slow} must be a multiple of every={fast} of the faster part: rates are nested")
