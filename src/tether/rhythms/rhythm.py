"""The interface of a rhythm: what a part does over several steps."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row
    from tether.words import Beat, Word

__all__ = ["Always", "Rhythm", "RhythmError", "one_gradient", "whole_steps"]


class RhythmError(ValueError):
    """A rhythm with invalid settings, or a word, surface or metric that it does not support."""


class Rhythm:
    """Base class of rhythms: it runs the word of the part at every step.

    A subclass overrides what it does differently. It keeps what it must remember between steps in ``row.state``, as
    plain tensors, so that checkpoints hold it.
    """

    every = 1  # steps of the optimizer from one kick of the part to the next
    tested = False  # is a step a proposal, which the energies accept or reject?
    paced = False  # do steps last longer or shorter, so that averages need the weights of `Optimizer.pace`?
    alone = False  # must all parameters be in one part?

    def __repr__(self) -> str:
        """Name and settings. Two of equal text are the same."""
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def fields(self) -> dict[str, Any]:
        """Its short forms as fields of a `Part`, for the table."""
        return {}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        """Raise unless the rhythm supports the row's word, surface, metric and temperature."""

    def due(self, step: int) -> bool:
        """Must the backward pass reach the part at this step?"""
        return True

    def start(self, row: Row) -> list[Write]:
        """The writes when the part is created."""
        return []

    def beats(self, row: Row) -> tuple[Beat, ...]:
        """What of its word a part runs in this step."""
        return row.word.program

    def plan(self, row: Row) -> list[Write]:
        """The writes of a step."""
        row.play(self.beats(row))
        return row.writes()

    def legs(self, word: Word) -> tuple[tuple[Beat, ...], ...]:
        """The beats of a proposal, cut where gradients are taken; the first redraw the momenta. Only if `tested`."""
        return ()

    def times(self, word: Word, h: Any) -> Any:
        """How long a proposal is, in units of h."""
        return 1.0

    def weight(self, row: Row) -> Any:
        """What the present state counts in an average; with replicas it may be one for each."""
        return 1.0

    def rise(self, row: Row) -> list[Write]:
        """The writes that restore all weights, for an evaluation, a checkpoint or the end of a run."""
        return []

    def lie_down(self, row: Row) -> list[Write]:
        """The writes that undo `rise`."""
        return []

    def notice(self, row: Row) -> list[Write]:
        """The writes before a checkpoint is made, which forget what was kept of weights that somebody has replaced."""
        return []

    def unload(self, row: Row) -> list[Write]:
        """The writes before a checkpoint replaces the state."""
        return []


class Always(Rhythm):
    """The part moves at every step: the default."""


def whole_steps(where: str, name: str, value: Any) -> int:
    """A number of steps as an int; numpy's integers are accepted. Raises unless it is 1 or more."""
    try:
        steps = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        steps = 0
    if steps < 1:
        raise RhythmError(f"{where}{name}={value!r} must be a whole number of steps, 1 or more, e.g. {name}=5")
    return steps


def one_gradient(rhythm: Rhythm, part: str, row: Mapping[str, Any], same_step: bool = False) -> None:
    """Refuse words that take several gradients; with `same_step` also words whose kick spans two steps."""
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
