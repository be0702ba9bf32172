"""The interpreter: a word's letters, in turn, on the bodies of one part.

A letter is linear in θ, p, g and R for all dynamics of the papers. Run on formal sums it yields its coefficients, e.g.
O gives ``p ← 0.9 p + 0.3 R``, and neighbouring letters become one program that a body carries out at once. Only three
things break a program: the thermostat's own letter, which needs pᵀp in the middle of a word; a letter whose
coefficients depend on the thermostat, which change at every step; and a letter that is not linear.

A body is what moves: the free tensors of a part that share dtype and device, or its tensors of one shape on a surface.
It takes programs, applies any letter to its tensors, and knows its pᵀp. It writes nothing before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from tether.engine.commit import Write
from tether.engine.programs import Program, Update
from tether.engine.sums import Scalar, coefficients, per_replica, steady_coefficients
from tether.letters import LETTERS, Letter, sqrt
from tether.words import Beat

__all__ = ["Body", "Interpreter", "Name"]

Name = tuple[int, int]  # of all draws of a step: seed and step
FIELDS = ("γ", "τ", "ε", "σ", "N")  # the scalars that stay as they are during a step


class Body(Protocol):
    """What the interpreter needs of the tensors it moves."""

    def take(self, program: Program, name: Name) -> None: ...
    def apply(self, letter: Letter, scalars: dict[str, Scalar], name: Name, draw: int) -> None: ...
    def square(self) -> torch.Tensor: ...
    def writes(self) -> list[Write]: ...


class Segment(NamedTuple):
    """A program, or a letter that runs for h by itself."""

    program: Program | None
    letter: Letter | None = None
    h: Scalar = 0.0
    draw: int = 0
    fields: Mapping[str, Scalar] = MappingProxyType({})


class Interpreter:
    """Runs words on the bodies of a part, and keeps what it composed as long as word and fields stay."""

    def __init__(self, constrained: bool, reference: bool) -> None:
        self.constrained, self.reference = constrained, reference and not constrained
        self.known: dict[int, Any] = {}  # by the beats' identity: they are kept by their word

    def run(
        self,
        bodies: Sequence[Body],
        beats: tuple[Beat, ...],
        times: tuple[Any, Any],
        scalars: dict[str, Any],
        name: Name,
        draw: int = 0,
    ) -> int:
        """Let the bodies plan these beats; `times` are the step sizes before and now. Returns the next free draw."""
        values = (*times, draw, *[scalars[s] for s in FIELDS])
        known = self.known.get(id(beats))
        if known is None or known[0] is not beats or not same(known[1], values):
            known = self.known[id(beats)] = (beats, values, *self.compose(beats, times, scalars, draw))
        for segment in known[2]:
            if segment.program is not None:
                for body in bodies:
                    body.take(segment.program, name)
            else:
                self.alone(segment, bodies, scalars, name)
        return known[3]

    def compose(
        self, beats: tuple[Beat, ...], times: tuple[Any, Any], scalars: dict[str, Any], draw: int
    ) -> tuple[list[Segment], int]:
        """The beats as programs, and as letters that cannot be part of one."""
        segments: list[Segment] = []
        updates: list[Update] = []
        for beat in beats:
            letter, h = LETTERS[beat.letter], beat.before * times[0] + beat.now * times[1]
            for one, time, fields in self.spelled(letter, h):
                known = {**scalars, **fields, "h": time}
                if "ξ" in one.changes or {"ξ", "p2"} & set(one.needs) or self.reference:
                    terms = None
                elif any(isinstance(known[s], torch.Tensor) for s in one.scalars):
                    terms = coefficients(one, known)
                else:
                    terms = steady_coefficients(one.name, tuple([known[s] for s in one.scalars]))
                if terms is not None:
                    updates += [(symbol, sum_, draw) for symbol, sum_ in terms]
                    continue
                if updates:
                    segments.append(Segment(Program(updates)))
                    updates = []
                segments.append(Segment(None, one, time, draw, fields))
            draw += "R" in letter.needs
        if updates:
            segments.append(Segment(Program(updates)))
        return segments, draw

    def spelled(self, letter: Letter, h: Any) -> list[tuple[Letter, Any, dict[str, Any]]]:
        """The letter itself; on a surface, one that is a limit is spelled by the word it is the limit of (2.56)."""
        if not (self.constrained and letter.limit):
            return [(letter, h, {})]
        root = sqrt(2 * h)  # the limit γ = ∞ of a step with root²/2 = h
        count = {name: letter.limit.count(name) for name in letter.limit}
        return [(LETTERS[name], root / count[name], {"γ": inf}) for name in letter.limit]

    def alone(self, segment: Segment, bodies: Sequence[Body], scalars: dict[str, Any], name: Name) -> None:
        """A letter that is no part of a program."""
        letter = segment.letter
        assert letter is not None
        known = {**scalars, **segment.fields, "h": segment.h}
        if "p2" in letter.needs:
            squares = [body.square() for body in bodies]
            p2 = sum(squares[1:], squares[0])
            ξ = known["ξ"]
            known["p2"] = p2.item() if isinstance(ξ, float) else p2.cpu() if per_replica(ξ) else p2
        if letter.changes == ("ξ",):
            scalars["ξ"] = letter.map(*[known[s] for s in letter.needs])
            return
        terms = None if self.reference else coefficients(letter, known)
        if terms is None:
            for body in bodies:
                body.apply(letter, known, name, segment.draw)
            return
        program = Program([(symbol, sum_, segment.draw) for symbol, sum_ in terms])
        for body in bodies:
            body.take(program, name)


def same(xs: tuple[Scalar, ...], ys: tuple[Scalar, ...]) -> bool:
    """Equal numbers, or the very same tensors."""
    try:
        return xs == ys  # tuples compare by identity first
    except RuntimeError:  # two tensors of many numbers that are not the same one
        return False
