"""Metropolis: a step is a proposal, which the energies accept or reject (section 1.3.2 of the thesis)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import write
from tether.rhythms.rhythm import Rhythm, RhythmError, whole_steps
from tether.words import Beat, Word, parse

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Metropolis"]


class Metropolis(Rhythm):
    """A step of the optimizer is a proposal of so many steps of the word, accepted or rejected as a whole.

    Momenta are redrawn from N(0, τ), the word runs `steps` times, and the result is accepted with probability
    min(1, e^{−ΔH/τ}) (1.65), where H = U + pᵀp/2 and U is what the closure returns. Then exp(−U/τ) is sampled exactly,
    at any step size. All parts of a table are tested together.

    The word is ``"O"`` with ``friction=inf``, followed by a palindrome of B and A: ``"OBAB"`` is Hamiltonian Monte
    Carlo by Verlet, or by RATTLE on a surface. ``"X"`` is MALA: a step of X from θ is a step of Verlet of length √(2h)
    from redrawn momenta, which gives both densities of (1.60).

    >>> import torch, tether
    >>> x = torch.nn.Parameter(torch.zeros(5))
    >>> fields = {"word": "OBAB", "friction": torch.inf, "temperature": 1.0}
    >>> opt = tether.Optimizer([("x", x)], lr=0.5, rhythm=Metropolis(3), **fields)
    >>> def closure():
    ...     opt.zero_grad()
    ...     energy = x.square().sum() / 2
    ...     energy.backward()
    ...     return energy
    >>> for _ in range(20):
    ...     _ = opt.step(closure)
    >>> 0 < opt.acceptance <= 1
    True

    Args:
        steps: how often the word runs in a proposal.
    """

    tested = True

    def __init__(self, steps: int = 1) -> None:
        self.steps = whole_steps("", "steps", steps)

    def __repr__(self) -> str:
        return f"Metropolis({self.steps})"

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        text = row["word"]
        moves = "BAB" if text == "X" else text[1:]
        if text != "X" and not (text[0] == "O" and {*moves} == {*"AB"} and moves == moves[::-1] and moves[0] == "B"):
            raise RhythmError(
                f"{part}: {self!r} accepts or rejects by the energies, which needs a reversible word: 'X' (MALA), or "
                f"'O' and a palindrome of B and A, such as 'OBAB' (HMC), not {text!r}"
            )
        if text != "X" and not redraws(row["friction"]):
            raise RhythmError(
                f"{part}: {self!r} redraws the momenta, so the letter O needs friction=inf, not {row['friction']!r}"
            )
        if row["metric"] is not None:
            raise RhythmError(
                f"{part}: {self!r} needs momenta whose energy is pᵀp/2: leave out metric={row['metric']!r}"
            )

    def start(self, row: Row) -> list[Write]:
        """No proposal yet, and none accepted."""
        zeros = torch.zeros(2, *[row.lanes.rows] * row.lanes.batched, dtype=torch.int64, device="cpu")
        return [write(row.group.setdefault, "tested", zeros)]

    def legs(self, word: Word) -> tuple[tuple[Beat, ...], ...]:
        """The proposal: momenta redrawn, then the beats up to each place where a new gradient is needed."""
        return legs(word.text, self.steps)

    def times(self, word: Word, h: Any) -> Any:
        """How long the proposal is, in units of h."""
        if word.text != "X":
            return float(self.steps)
        if isinstance(h, torch.Tensor):
            return self.steps * torch.where(h > 0, (2 / h).sqrt(), 0.0)
        return self.steps * math.sqrt(2 / h) if h else 0.0


def redraws(friction: Any) -> bool:
    """Is the friction infinite, for every replica?"""
    return bool(torch.as_tensor(friction).isinf().all())


@lru_cache
def legs(text: str, steps: int) -> tuple[tuple[Beat, ...], ...]:
    """The legs of a word; equal arguments give the same object, by which programs are kept."""
    moves = parse(("BAB" if text == "X" else text[1:]) * steps)
    return ((Beat("O", 0.0, 1.0),), *moves.stages[1:])
