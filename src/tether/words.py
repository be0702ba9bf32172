"""Words: which letters, in which order, for how long, and where the gradient is taken.

A letter that occurs m times in a word runs for h/m each time. A step of torch has one gradient, at the current θ, so a
word is rotated cyclically to start at its kick: ``BAOAB`` becomes ``B A O A``. The kick then joins the second half kick
of the previous step and the first half kick of this one. Its duration is ½h′ + ½h with h′ the previous step size. At
the first step h′ = 0 gives a half kick. So a changing learning rate is treated exactly.

A word whose kicks fall on more than one position is run as written, in stages, one gradient each;
it needs ``step(closure)``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

from tether.letters import LETTERS

__all__ = ["Beat", "Word", "WordError", "parse"]


class WordError(ValueError):
    """A word that cannot be run; the message shows it with a caret under the error."""

    def __init__(self, word: str, at: int, problem: str) -> None:
        super().__init__(f"{problem}\n    {word!r}\n    {' ' * (at + 1)}^")
        self.word, self.at = word, at


@dataclass(frozen=True)
class Beat:
    """A letter and its duration ``before·h′ + now·h``, with h′ the previous step size."""

    letter: str
    before: float
    now: float

    def __str__(self) -> str:
        terms = [_times(self.before, "h′"), _times(self.now, "h")]
        return f"{self.letter}({' + '.join(term for term in terms if term)})"


@dataclass(frozen=True)
class Word:
    """A parsed word. `program` needs one gradient; `stages` need one gradient each."""

    text: str
    program: tuple[Beat, ...]
    stages: tuple[tuple[Beat, ...], ...]
    needs: frozenset[str]

    @cached_property
    def needs_closure(self) -> bool:
        """Does one step take more than one gradient?"""
        return not self.program

    @cached_property
    def uses(self) -> frozenset[str]:
        """What it needs, and what it can do without."""
        return self.needs.union(symbol for name in self.text for symbol in LETTERS[name].options)

    @cached_property
    def kinetic(self) -> bool:
        """Does a kick act on momenta, so that there is a kinetic temperature?"""
        return any(LETTERS[name].kicks and not LETTERS[name].moves for name in self.text)

    def on_clock(self, every: int, due: bool, drift: bool) -> tuple[Beat, ...]:
        """The beats of one step for a part that moves every so many steps.

        A word that ends in a drift along momenta, such as OBA or MS, may spread it over all steps between two kicks
        (Algorithm 5.1). Otherwise the whole word is run when the part is due (5.2).
        """
        return _on_clock(self, every, due, drift)

    def __str__(self) -> str:
        if self.needs_closure:
            stages = " | ".join(" ".join(map(str, stage)) for stage in self.stages if stage)
            return f"{self.text}: {stages}; {len(self.stages) - 1} gradients per step, needs step(closure)"
        return f"{self.text}: {' '.join(map(str, self.program))}; one gradient per step"


def parse(word: str) -> Word:
    """Say what a word is and whether it needs a closure.

    >>> print(parse("BAOAB"))
    BAOAB: B(½h′ + ½h) A(½h) O(h) A(½h); one gradient per step
    >>> print(parse("OBA"))
    OBA: B(h) A(h) O(h); one gradient per step
    >>> print(parse("BABAB"))
    BABAB: B(⅓h) A(½h) | B(⅓h) A(½h) | B(⅓h); 3 gradients per step, needs step(closure)
    """
    if not isinstance(word, str):
        raise TypeError(f"a word is a string of letters such as 'BAOAB', got {word!r}")
    return _parse(word)


@lru_cache
def _parse(word: str) -> Word:
    _check(word)
    count = Counter(word)
    duration = [1 / count[name] for name in word]
    starts = _fresh_gradients(word)
    stages = _stages(word, duration)
    needs = frozenset(symbol for name in word for symbol in LETTERS[name].needs)
    if len(starts) > 1:
        return Word(word, (), stages, needs)

    start = starts[0]
    if "g0" in needs:
        at = next(i for i, name in enumerate(word) if "g0" in LETTERS[name].needs)
        raise WordError(
            word, at, f"{word[at]} compares two gradients, but this word takes one: put a step before it, as in 'XH'"
        )
    # Letters from `start` on finish the previous step, but only if this step has another kick.
    finishes = any(LETTERS[name].kicks for name in word[:start])
    last = [Beat(word[i], *((duration[i], 0.0) if finishes else (0.0, duration[i]))) for i in range(start, len(word))]
    this = [Beat(word[i], 0.0, duration[i]) for i in range(start)]
    return Word(word, _merge(last + this), stages, needs)


@lru_cache
def _on_clock(word: Word, every: int, due: bool, drift: bool) -> tuple[Beat, ...]:
    written = [beat for stage in word.stages for beat in stage]
    head = list(written)
    while head and set(LETTERS[head[-1].letter].needs) == {"θ", "p", "h"}:
        head.pop()
    tail = written[len(head) :]
    if not drift or not tail or any(LETTERS[beat.letter].moves for beat in head):
        return word.program if due else ()
    spread = [Beat(beat.letter, 0.0, beat.now / every) for beat in tail]
    return (*(head if due else ()), *spread)


TORCH_HAS = {name.lower(): name for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Muon")}


def _check(word: str) -> None:
    alphabet = "".join(sorted(LETTERS))
    if not word:
        raise WordError(word, 0, f"an empty word moves nothing: write letters of {alphabet}, e.g. 'BAOAB' or 'X'")
    for at, name in enumerate(word):
        if name not in LETTERS:
            if word.lower() in TORCH_HAS:
                raise WordError(
                    word,
                    at,
                    f"{word!r} is an optimizer of torch and no word: keep it, on surfaces, by tether.constrain("
                    f"torch.optim.{TORCH_HAS[word.lower()]}(model.named_parameters(), lr=...), ...), or write letters "
                    f"of {alphabet}, e.g. 'X' for SGD, 'MS' for SGD with momentum",
                )
            hint = f": did you mean {name.upper()!r}?" if name.upper() in LETTERS else f": letters are {alphabet}"
            raise WordError(word, at, f"unknown letter {name!r} in the word {word!r}{hint}")
    if not any(LETTERS[name].kicks for name in word):
        raise WordError(word, len(word), f"the word {word!r} has no kick, so it never sees the loss: add B (or use X)")
    if not any(LETTERS[name].moves for name in word):
        raise WordError(word, len(word), f"the word {word!r} has no drift, so it never moves the parameters: add A")


def _fresh_gradients(word: str) -> list[int]:
    """The kicks that need a new gradient: those that follow a move, cyclically."""
    starts = []
    for i, name in enumerate(word):
        if LETTERS[name].kicks:
            past = (LETTERS[word[j % len(word)]] for j in range(i + len(word) - 1, i - 1, -1))
            if next(letter for letter in past if letter.kicks or letter.moves).moves:
                starts.append(i)
    return starts


def _stages(word: str, duration: list[float]) -> tuple[tuple[Beat, ...], ...]:
    """The word as written, cut before each kick whose gradient is stale; stage 0 needs no gradient."""
    stages: list[list[Beat]] = [[]]
    fresh = False
    for name, time in zip(word, duration, strict=True):
        if LETTERS[name].kicks and not fresh:
            stages.append([])
            fresh = True
        stages[-1].append(Beat(name, 0.0, time))
        fresh = fresh and not LETTERS[name].moves
    return tuple(_merge(stage) for stage in stages)


def _merge(beats: list[Beat]) -> tuple[Beat, ...]:
    merged: list[Beat] = []
    for name, run in groupby(beats, key=lambda beat: beat.letter):
        same = list(run)
        if LETTERS[name].flow:
            same = [Beat(name, sum(b.before for b in same), sum(b.now for b in same))]
        merged += same
    return tuple(merged)


def _times(factor: float, h: str) -> str:
    if not factor:
        return ""
    fractions = {1.0: "", 1 / 2: "½", 1 / 3: "⅓", 2 / 3: "⅔", 1 / 4: "¼", 3 / 4: "¾"}
    return fractions.get(factor, f"{factor:.4g} ") + h
