"""What a rhythm is: what a part does over several steps, beside moving by its word at each of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Always", "Rhythm", "RhythmError", "one_gradient", "whole"]


class RhythmError(ValueError):
    """A rhythm that cannot be, or a word, surface or metric that it does not go with."""


class Rhythm:
    """Plays the word at every step. A rhythm of one's own overrides what it does otherwise.

    What it must remember between steps it keeps in ``row.state``, in plain tensors, so that checkpoints hold it.
    """

    every = 1  # steps of the optimizer from one kick of the part to the next

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def fields(self) -> dict[str, Any]:
        """Its short forms as fields of a `Part`, for the table."""
        return {}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        """Raise unless the rhythm goes with the row's word, surface, metric and temperature."""

    def due(self, step: int) -> bool:
        """Must the backward pass reach the part at this step?"""
        return True

    def start(self, row: Row) -> list[Write]:
        """The part has been made: what to write."""
        return []

    def plan(self, row: Row) -> list[Write]:
        """The writes of a step."""
        row.play(row.word.program)
        return row.writes()

    def rise(self, row: Row) -> list[Write]:
        """Show the part as a whole, for an evaluation, a checkpoint or the end of a run: what to write."""
        return []

    def lie_down(self, row: Row) -> list[Write]:
        """Undo that."""
        return []

    def unload(self, row: Row) -> list[Write]:
        """A checkpoint is about to replace the state: what to write before that."""
        return []


class Always(Rhythm):
    """Every part at every step: the rhythm of all usual methods."""


def whole(where: str, name: str, value: Any) -> int:
    """A number of steps as an int, numpy's included; else an error that names it, the rule and a fix."""
    try:
        steps = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        steps = 0
    if steps < 1:
        raise RhythmError(f"{where}{name}={value!r} must be a whole number of steps, 1 or more, e.g. {name}=5")
    return steps


def one_gradient(rhythm: Rhythm, part: str, row: Mapping[str, Any], same_step: bool = False) -> None:
    """Refuse words that take several gradients; and, where a step must stand by itself, those that share a kick."""
    word = parse(row["word"])
    if word.needs_closure:
        raise RhythmError(
            f"{part}: the word {row['word']!r} takes several gradients per step: with {rhythm!r} use a word with one, "
            "such as 'OBA' or 'X'"
        )
    if same_step and ("ξ" in word.needs or any(beat.before for beat in word.program)):
        why = "has a thermostat" if "ξ" in word.needs else "ends a step with the next one's gradient"
        raise RhythmError(
            f"{part}: the word {row['word']!r} {why}, and {rhythm!r} moves weights by steps of two lengths: use 'OBA', "
            "'MS' or 'X'"
        )
