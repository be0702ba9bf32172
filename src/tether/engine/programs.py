"""Programs: linear updates in a row, in the forms in which an engine can carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from tether import native
from tether.engine.formulas import Formula, worked_out
from tether.engine.sums import Scalar, Terms, is_number, per_replica

__all__ = ["Moves", "Program", "Update"]

Update = tuple[str, "Terms | Formula", int]  # what changes, into which sum or formula, with the normals of which draw


class Moves(NamedTuple):
    """Updates as moves on a surface, for its kernels."""

    ops: list[native.Op]
    packed: bytes
    rows: list[bytes]  # the same: one for all replicas, or one for each
    each: int
    noise: list[tuple[str, int]]  # of which kind, and which draw
    around: bool  # is there a step in the surrounding space?


class Program:
    """Linear updates in a row, to be carried out together."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.updates = tuple(updates)

    @cached_property
    def linear(self) -> list[tuple[str, Terms, int]]:
        """The updates of vectors."""
        return [(symbol, terms, draw) for symbol, terms, draw in self.updates if not isinstance(terms, Formula)]

    @cached_property
    def thermostat(self) -> bool:
        """Does it read or change ξ?"""
        return len(self.linear) < len(self.updates) or any(
            isinstance(c, Formula) and c.thermal for _, terms, _ in self.linear for c in terms.values()
        )

    @cached_property
    def entrywise(self) -> bool:
        """Has it a coefficient for each entry?"""
        return any(isinstance(c, Formula) and c.entrywise for _, terms, _ in self.linear for c in terms.values())

    @cached_property
    def draws(self) -> list[int]:
        """The numbers of the draws it takes, each once."""
        return list(dict.fromkeys([draw for _, terms, draw in self.linear if "R" in terms]))

    @cached_property
    def each(self) -> int:
        """How many numbers a coefficient holds where it holds one for each replica; 0 where none does."""
        return native.replicas_in([tuple(terms.values()) for _, terms, _ in self.linear])

    @cached_property
    def suits_kernel(self) -> bool:
        """A step along g gains nothing in the kernel, and X at τ = 0 is to equal SGD to the last bit."""
        known = all(terms.keys() <= {symbol, "p", "g", "R"} for symbol, terms, _ in self.linear)
        fits = len(self.draws) <= native.DRAWS and len(self.updates) <= native.OPS
        return known and fits and self.step is None and not self.entrywise

    @cached_property
    def ops(self) -> bytes:
        """The updates in the kernel's form: one row of them, or one for each replica. A formula is 0 here."""
        rows: list[native.Op] = []
        for symbol, terms, draw in self.updates:
            if isinstance(terms, Formula):
                rows.append((native.THERMOSTAT, -1, 0.0, 0.0, 0.0, 0.0))
                continue
            found = [terms.get(s, 0.0) for s in (symbol, "p", "g", "R")]
            own, p, g, R = [0.0 if isinstance(c, Formula) else c if per_replica(c) else float(c) for c in found]
            number = self.draws.index(draw) if "R" in terms else -1
            rows.append((int(symbol == "θ"), number, own, p if symbol == "θ" else 0.0, g, R))
        return native.pack_each(rows, self.each) if self.each else native.pack(rows)

    @cached_property
    def formulas(self) -> native.Formulas:
        """The formulas among the coefficients, in the kernel's form."""
        found = []
        for i, (symbol, terms, _) in enumerate(self.updates):
            if isinstance(terms, Formula):
                found.append((i, 0, terms.steps))
                continue
            for j, s in enumerate((symbol, "p", "g", "R")):
                if isinstance(terms.get(s), Formula) and not (j == 1 and symbol == "p"):
                    found.append((i, j, terms[s].steps))
        return native.pack_formulas(found)

    @cached_property
    def step(self) -> float | None:
        """The factor of g, where the program is θ ← θ + factor·g and no more."""
        symbol, terms, _ = self.linear[0]
        if len(self.updates) > 1 or symbol != "θ" or terms.keys() != {"θ", "g"} or not is_number(terms["θ"], 1):
            return None
        return terms["g"] if type(terms["g"]) is float else None

    @cached_property
    def moves(self) -> Moves | None:
        """The updates as moves on a surface; None where the kernels do not know one of them."""
        found: list[native.Op] = []
        noise: list[tuple[str, int]] = []
        for symbol, terms, draw in self.linear:
            move = None if len(self.linear) < len(self.updates) else _move(symbol, terms)
            if move is None:
                return None
            if not is_number(move[5], 0):
                move = (move[0], len(noise), *move[2:])
                noise.append(("θ" if move[0] == 2 else "p", draw))
            found.append(move)
        each = native.replicas_in(found)
        packed = native.pack_each(found, each) if each else native.pack(found)
        rows = native.rows_of(packed, each) if each else [packed]
        around = any(op[0] == 2 for op in found)
        return Moves(found, packed, rows, each, noise, around) if len(noise) <= native.DRAWS else None

    def at(self, ξ: Scalar) -> Program:
        """The same program with its formulas worked out for this ξ, up to what holds a number for each entry."""
        if not self.thermostat:
            return self

        def known(c: Scalar) -> Scalar:
            if isinstance(c, Formula) and c.entrywise:
                return c.put(lambda step: ξ if isinstance(step, str) and step == "ξ" else step)
            return worked_out(c, ξ)

        return Program([(s, {t: known(c) for t, c in terms.items()}, draw) for s, terms, draw in self.linear])


def _move(symbol: str, terms: Terms) -> native.Op | None:
    """Target 0 changes momenta, 1 drifts along them, 2 steps in the surrounding space and projects."""
    if any(isinstance(c, Formula) for c in terms.values()):
        return None
    own, p, g, R = (c if per_replica(c) else float(c) for c in (terms.get(s, 0.0) for s in (symbol, "p", "g", "R")))
    if symbol == "p" and terms.keys() <= {"p", "g", "R"}:
        return (0, -1, own, 0.0, g, R)
    if symbol == "θ" and is_number(own, 1):
        if terms.keys() == {"θ", "p"}:
            return (1, -1, 1.0, p, 0.0, 0.0)
        if terms.keys() <= {"θ", "g", "R"}:
            return (2, -1, 1.0, 0.0, g, R)
    return None
