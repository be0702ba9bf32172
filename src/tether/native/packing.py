"""Packing: programs in the form of the kernel's structs."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = [
    "NO_FORMULAS",
    "OP",
    "OPS",
    "STEP",
    "THERMOSTAT",
    "Formulas",
    "Op",
    "pack",
    "pack_each",
    "pack_formulas",
    "replicas_in",
    "rows_of",
]

OPS = 48  # updates of a program
THERMOSTAT = 2  # the target of an op that sets ξ
Op = tuple[int, int, float, float, float, float]  # target, draw, and the coefficients own, p, g, R
OP = struct.Struct("=qqdddd")
ROW = np.dtype("=i8,=i8,=f8,=f8,=f8,=f8")  # the same, for tables of ops


def pack_each(ops: Sequence[tuple[Any, ...]], rows: int) -> bytes:
    """Ops with numbers that may be one for each replica, as a row of ops for each."""
    each = [(i, j) for i, op in enumerate(ops) for j in range(2, 6) if isinstance(op[j], torch.Tensor) and op[j].dim()]
    plain: list[Any] = [tuple(0.0 if (i, j) in each else op[j] for j in range(6)) for i, op in enumerate(ops)]
    shared = pack(plain)
    table = np.frombuffer(shared * rows, dtype=ROW).reshape(rows, len(ops)).copy()
    for i, j in each:
        table[f"f{j}"][:, i] = ops[i][j]
    return table.tobytes()


def replicas_in(ops: Iterable[tuple[Any, ...]]) -> int:
    """How many numbers an op holds where it holds one for each replica; 0 where none does."""
    # plain numbers first: to ask torch about each of them would take longer than all the rest
    others = [c for op in ops for c in op if type(c) is not float and type(c) is not int]
    return max([len(c) for c in others if isinstance(c, torch.Tensor) and c.dim()], default=0) if others else 0


def rows_of(table: bytes, rows: int) -> list[bytes]:
    """The rows of such a table."""
    length = len(table) // rows
    return [table[i * length : (i + 1) * length] for i in range(rows)]


def pack(ops: Iterable[Op]) -> bytes:
    """Ops in the form of the kernel's struct."""
    return b"".join([OP.pack(*op) for op in ops])


class Formulas(NamedTuple):
    """Coefficients that the kernel works out as it goes: which they are, and their steps."""

    number: int
    table: bytes
    steps: int
    stride: int
    tape: bytes


NO_FORMULAS = Formulas(0, b"", 0, 0, b"")
STEP = np.dtype("=i8,=f8")
CODES = {code: i for i, code in enumerate(("number", "ξ", "p2", "+", "*", "/", "-", "exp", "expm1", "sqrt", "shrink"))}


def pack_formulas(found: Sequence[tuple[int, int, Sequence[Any]]]) -> Formulas:
    """Formulas in the kernel's form, from the op and the coefficient that each is, and its steps."""
    everything = [step for _, _, steps in found for step in steps]
    rows = max([len(x) for x in everything if isinstance(x, torch.Tensor) and x.dim()], default=1)
    tape = np.zeros((rows, len(everything)), dtype=STEP)
    for i, step in enumerate(everything):
        tape["f0"][:, i] = CODES[step if isinstance(step, str) else "number"]
        tape["f1"][:, i] = 0.0 if isinstance(step, str) else step
    table, at = array("q"), 0
    for op, field, steps in found:
        table.extend((op, field, at, at + len(steps)))
        at += len(steps)
    return Formulas(len(found), table.tobytes(), at, at if rows > 1 else 0, tape.tobytes())
