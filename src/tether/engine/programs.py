"""Programs: linear updates in a row, in the forms in which an engine can carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tether import native
from tether.engine.sums import Terms, is_number, per_replica

__all__ = ["Program", "Update"]

Update = tuple[str, Terms, int]  # what changes, into which sum, with the normals of which draw


class Program:
    """Linear updates in a row, to be carried out together."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.updates = tuple(updates)

    @cached_property
    def draws(self) -> list[int]:
        """The numbers of the draws it takes, each once."""
        return list(dict.fromkeys([draw for _, terms, draw in self.updates if "R" in terms]))

    @cached_property
    def each(self) -> int:
        """How many numbers a coefficient holds where it holds one for each replica; 0 where none does."""
        return native.replicas_in([tuple(terms.values()) for _, terms, _ in self.updates])

    @cached_property
    def suits_kernel(self) -> bool:
        """A single pass gains nothing in the kernel, and X at τ = 0 is to equal SGD to the last bit."""
        passes = 0
        for symbol, terms, _ in self.updates:
            if not terms.keys() <= {symbol, "p", "g", "R"}:
                return False
            own = terms.get(symbol)
            passes += len(terms) - (type(own) is float and own == 1)
        return (passes > 1 or self.each > 0) and len(self.draws) <= native.DRAWS

    @cached_property
    def ops(self) -> bytes:
        """The updates in the kernel's form: one row of them, or one for each replica."""
        rows = []
        for symbol, terms, draw in self.updates:
            numbers = [terms.get(s, 0.0) for s in (symbol, "p", "g", "R")]
            own, p, g, R = [c if per_replica(c) else float(c) for c in numbers] if self.each else map(float, numbers)
            number = self.draws.index(draw) if "R" in terms else -1
            rows.append((int(symbol == "θ"), number, own, p if symbol == "θ" else 0.0, g, R))
        return native.pack_each(rows, self.each) if self.each else native.pack(rows)

    @cached_property
    def moves(self) -> list[tuple[native.Op, int]] | None:
        """The updates as moves on a surface, with their draws; None where the kernel does not know one of them."""
        found = [_move(*update) for update in self.updates]
        return None if None in found else [move for move in found if move is not None]


def _move(symbol: str, terms: Terms, draw: int) -> tuple[native.Op, int] | None:
    """Target 0 changes momenta, 1 drifts along them, 2 steps in the surrounding space and projects."""
    own, p, g, R = (c if per_replica(c) else float(c) for c in (terms.get(s, 0.0) for s in (symbol, "p", "g", "R")))
    if symbol == "p" and terms.keys() <= {"p", "g", "R"}:
        return (0, -1, own, 0.0, g, R), draw
    if symbol == "θ" and is_number(own, 1):
        if terms.keys() == {"θ", "p"}:
            return (1, -1, 1.0, p, 0.0, 0.0), draw
        if terms.keys() <= {"θ", "g", "R"}:
            return (2, -1, 1.0, 0.0, g, R), draw
    return None
