"""The interpreter: a word's letters become programs that bodies carry out.

A letter is linear in θ, p, g and R for all dynamics of the papers. Run on formal sums it yields its coefficients, e.g.
O gives ``p ← 0.9 p + 0.3 R``, and the letters of a word become one program that a body carries out at once. Where the
thermostat enters, a coefficient is a formula in ξ. Only a letter that is not linear breaks a program.

A body is what moves: the free tensors of a part that share dtype and device, or its tensors of one shape on a surface.
It takes programs, applies any letter to its tensors, and knows its pᵀp. It writes nothing before the commit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, Protocol

import torch

from tether.engine.commit import Write
from tether.engine.formulas import ENTRIES, P2, XI, Formula
from tether.engine.programs import Program, Update
from tether.engine.sums import coefficients, steady_coefficients
from tether.letters import LETTERS, Letter, sqrt
from tether.words import Beat

__all__ = ["FIELDS", "Body", "Composed", "Name", "compose", "in_pieces", "in_turn"]

Name = tuple[int, int]  # of all draws of a step: seed and step
FIELDS = ("γ", "τ", "m", "ε", "σ", "N")  # the scalars that stay as they are during a step


class Body(Protocol):
    """What the interpreter needs of the tensors it moves."""

    share: float

    def take(self, program: Program, name: Name, ξ: torch.Tensor | None = None) -> None: ...
    def apply(self, letter: Letter, scalars: dict[str, Any], name: Name, draw: int) -> None: ...
    def square(self) -> torch.Tensor: ...
    def writes(self) -> list[Write]: ...


class Alone(NamedTuple):
    """A letter that is no part of a program, with its scalars but for ξ."""

    letter: Letter
    scalars: dict[str, Any]
    draw: int


class Composed(NamedTuple):
    """What a word became: programs and letters between them, and the next free draw."""

    pieces: list[Program | Alone]
    whole: Program | None  # the one program that it is, if it is one
    draw: int
    thermostat: bool


def compose(
    beats: tuple[Beat, ...],
    times: tuple[Any, Any],
    scalars: dict[str, Any],
    draw: int,
    constrained: bool,
    reference: bool,
) -> Composed:
    """The beats as programs, and as letters that cannot be part of one; `times` are the steps before and now."""
    pieces: list[Program | Alone] = []
    updates: list[Update] = []
    for beat in beats:
        letter, h = LETTERS[beat.letter], beat.before * times[0] + beat.now * times[1]
        for one, time, fields in spelling(letter, h, constrained):
            known = {**scalars, **fields, "h": time}
            if "p2" in one.needs and known["m"] is ENTRIES["m"]:
                known["m"] = 1.0  # the bodies' pᵀp has the masses in it
            terms = None if reference and not constrained else terms_of(one, known)
            if terms is not None:
                updates += one_draw_each(terms, draw)
                continue
            if updates:
                pieces.append(Program(updates))
                updates = []
            pieces.append(Alone(one, known, draw))
        draw += letter.draws
    if updates:
        pieces.append(Program(updates))
    whole = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Program) else None
    return Composed(pieces, whole, draw, any("ξ" in LETTERS[beat.letter].needs for beat in beats))


def one_draw_each(terms: Any, draw: int) -> list[Update]:
    """Updates that take the normals of one draw: what a letter does with Q, the next draw, is an update of its own."""
    found: list[Update] = []
    later: list[Update] = []
    for symbol, sum_ in terms:
        if isinstance(sum_, Formula) or "Q" not in sum_:
            found.append((symbol, sum_, draw))
            continue
        found.append((symbol, {s: c for s, c in sum_.items() if s != "Q"}, draw))
        later.append((symbol, {symbol: 1.0, "R": sum_["Q"]}, draw + 1))
    return found + later


def terms_of(letter: Letter, known: dict[str, Any]) -> Any:
    """What the letter does, as sums and formulas; None where it is not linear."""
    if "ξ" in letter.needs or "p2" in letter.needs:
        return coefficients(letter, {**known, "ξ": XI, "p2": P2})
    if any(isinstance(known[s], torch.Tensor | Formula) for s in letter.scalars):
        return coefficients(letter, known)
    return steady_coefficients(letter.name, tuple([known[s] for s in letter.scalars]))


def spelling(letter: Letter, h: Any, constrained: bool) -> list[tuple[Letter, Any, dict[str, Any]]]:
    """The letter itself; on a surface, one that is a limit is spelling by the word it is the limit of (2.56)."""
    if not (constrained and letter.limit):
        return [(letter, h, {})]
    root = sqrt(2 * h)  # the limit γ = ∞ of a step with root²/2 = h
    count = {name: letter.limit.count(name) for name in letter.limit}
    return [(LETTERS[name], root / count[name], {"γ": inf, "m": 1.0}) for name in letter.limit]


def in_pieces(bodies: Sequence[Body], pieces: Sequence[Program | Alone], ξ: Any, name: Name) -> Any:
    """Let bodies plan a word piece by piece, with pᵀp of all of them where the thermostat needs it; returns ξ."""
    turn = in_turn(bodies, pieces, ξ, name)
    try:
        p2 = next(turn)
        while True:
            p2 = turn.send(p2)
    except StopIteration as end:
        return end.value


def in_turn(
    bodies: Sequence[Body], pieces: Sequence[Program | Alone], ξ: Any, name: Name
) -> Generator[torch.Tensor, torch.Tensor, Any]:
    """The same, which stops wherever it needs pᵀp: it yields that of its bodies and takes that of all processes.

    ξ is a plain number, which is faster, or a tensor that nobody looks at.
    """
    for piece in pieces:
        if isinstance(piece, Alone):
            p2 = (yield square_of(bodies)) if "p2" in piece.letter.needs else None
            ξ = alone(piece, bodies, ξ, name, p2)
            continue
        for changes, updates in groupby(piece.updates, key=lambda update: isinstance(update[1], Formula)):
            if not changes:
                program = Program(list(updates)).at(ξ) if piece.thermostat else piece
                for body in bodies:
                    body.take(program, name)
                continue
            for _, formula, _ in updates:
                assert isinstance(formula, Formula)
                ξ = formula.at(ξ, like(ξ, (yield square_of(bodies))) if "p2" in formula.steps else 0.0)
    return ξ


def alone(piece: Alone, bodies: Sequence[Body], ξ: Any, name: Name, p2: torch.Tensor | None) -> Any:
    """A letter that is no part of a program; returns ξ."""
    letter, known = piece.letter, {**piece.scalars, "ξ": ξ}
    if p2 is not None:
        known["p2"] = like(ξ, p2)
    if letter.changes == ("ξ",):
        return letter.at(known.__getitem__)
    for body in bodies:
        body.apply(letter, known, name, piece.draw)
    return ξ


def square_of(bodies: Sequence[Body]) -> torch.Tensor:
    """pᵀp of all bodies; of numbers that several processes hold, this one's share.

    Where entries have masses of their own, each square is divided by its mass.
    """
    found = [body.square() if body.share == 1 else body.square() * body.share for body in bodies]
    return sum([x.to(found[0].device) for x in found[1:]], found[0])


def like(ξ: Any, p2: torch.Tensor) -> Any:
    """pᵀp, as a number where ξ is one."""
    return p2.item() if isinstance(ξ, float) else p2.to(ξ.device, ξ.dtype)
