"""Words on Hamiltonian systems with several time scales (section 1.2.3 of the thesis).

A nested word says which force acts how often. Letters outside the brackets run once in a step h, those inside k times
in sub-steps of h/k; a letter that occurs m times in its bracket runs for 1/m of the sub-step each time. Kicks outside
take the slow force, kicks inside the fast one:

=====================  ==============================================
``"B(BAB)5B"``         r-RESPA (Algorithm 1.1) with k = 5
``"B(BAOAB)5B"``       Langevin r-RESPA (Algorithm 1.2)
``"B(B(BAB)3B)5B"``    three time scales
``"BA(BAB)5AB"``       reversible averaging, type 0 (Algorithm 1.3)
``"B(BAB)5B"``         reversible averaging, type 1 (Algorithm 1.4)
=====================  ==============================================

The last two are for slow and fast *variables*, (Q, q), rather than slow and fast forces: outer letters move Q, inner
ones q, and Q drifts along with q where the word has no outer A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tether.letters import LETTERS
from tether.noise import Normals
from tether.words import WordError

__all__ = ["TimeScale", "parse", "trajectory"]

Potential = Callable[..., torch.Tensor]
Tensors = list[torch.Tensor]
ALPHABET = "ABO"


@dataclass(frozen=True)
class TimeScale:
    """The letters of one time scale, with their fractions of its step; a faster one among them runs `times` times."""

    beats: tuple[tuple[str, float] | TimeScale, ...]
    times: int = 1
    depth: int = 0

    @property
    def inner(self) -> TimeScale | None:
        """The next faster time scale."""
        return next((beat for beat in self.beats if isinstance(beat, TimeScale)), None)

    def __contains__(self, letter: str) -> bool:
        return any(beat[0] == letter for beat in self.beats if not isinstance(beat, TimeScale))

    def __str__(self) -> str:
        texts = [
            f"{beat.times}×[{beat}]" if isinstance(beat, TimeScale) else f"{beat[0]}({beat[1]:.4g} h{'′' * self.depth})"
            for beat in self.beats
        ]
        return " ".join(texts)


def parse(word: str) -> TimeScale:
    """Read a nested word.

    >>> print(parse("B(BAB)5B"))
    B(0.5 h) 5×[B(0.5 h′) A(1 h′) B(0.5 h′)] B(0.5 h)
    """
    if not isinstance(word, str):
        raise TypeError(f"a word is a string of letters such as 'B(BAB)5B', got {word!r}")
    level, end = _level(word, 0, 0)
    if end < len(word):
        raise WordError(word, end, f"a bracket closes here that never opened in {word!r}")
    _check(word, level)
    return level


def _level(word: str, at: int, depth: int) -> tuple[TimeScale, int]:
    """The time scale that starts at a place of the word, and the place where it ends."""
    found: list[str | TimeScale] = []
    while at < len(word) and word[at] != ")":
        if word[at] == "(":
            if any(isinstance(one, TimeScale) for one in found):
                raise WordError(
                    word, at, f"{word!r} has two brackets side by side: a time scale can contain only one faster one"
                )
            inner, close = _level(word, at + 1, depth + 1)
            end = close + 1
            while end < len(word) and word[end].isdigit():
                end += 1
            if close >= len(word) or end == close + 1 or int(word[close + 1 : end]) < 1:
                raise WordError(word, at, f"a bracket of {word!r} needs its end and how often it runs, e.g. '(BAB)5'")
            found.append(TimeScale(inner.beats, int(word[close + 1 : end]), depth + 1))
            at = end
        elif word[at] in ALPHABET:
            found.append(word[at])
            at += 1
        else:
            raise WordError(word, at, f"nested words are made of A, B, O and brackets, not {word[at]!r}")
    count = Counter(one for one in found if isinstance(one, str))
    return TimeScale(tuple(one if isinstance(one, TimeScale) else (one, 1 / count[one]) for one in found), 1, depth), at


def _check(word: str, level: TimeScale) -> None:
    levels = [level]
    while (inner := levels[-1].inner) is not None:
        levels.append(inner)
    if not all("B" in one for one in levels):
        raise WordError(word, len(word), f"every time scale of {word!r} needs a kick: write B inside and outside")
    if "A" not in levels[-1]:
        raise WordError(word, len(word), f"the fastest time scale of {word!r} moves nothing: write A in the brackets")


def trajectory(
    word: str,
    potential: Potential | Sequence[Potential],
    q: torch.Tensor | Sequence[torch.Tensor],
    p: torch.Tensor | Sequence[torch.Tensor],
    h: float | torch.Tensor,
    *,
    mass: float | torch.Tensor | Sequence[Any] = 1.0,
    friction: float | torch.Tensor = 0.0,
    temperature: float | torch.Tensor = 0.0,
    average: bool = False,
    seed: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """An endless iterator of the positions and momenta after each step.

    >>> slow, fast = lambda q: q**2 / 2, lambda q: 9 * q**2 / 2
    >>> run = trajectory("B(BAB)5B", [slow, fast], torch.ones(1), torch.zeros(1), h=0.1)
    >>> q, p = next(run)
    >>> round(float(q), 6), round(float(torch.cos(torch.tensor(10**0.5 / 10))), 6)
    (0.950395, 0.950415)

    Args:
        word: e.g. ``"B(BAB)5B"``, r-RESPA.
        potential: energies, the slowest first, one for each time scale, of the same q; or one energy of all the
            variables ``(Q, …, q)``, each with a time scale of its own. Its values are summed, whatever their shape.
        q: positions; several variables with the slowest first. Elements that do not interact are independent systems:
            h, friction and temperature may then be tensors of the same shape.
        p: momenta.
        h: step size of the slowest time scale.
        mass: the mass of each variable.
        friction: γ of O, per unit time.
        temperature: τ of O.
        average: let a kick of slow variables take the mean force along the fast ones' motion, forward before it and
            backward after it (Av± in Algorithms 1.3 and 1.4).
        seed: the seed of the noise.
    """
    level = parse(word)
    system = _System(level, potential, q, p, mass, friction, temperature, average, seed)
    return system.run(h)


class _System:
    """Variables, their forces and the letters that move them."""

    def __init__(
        self,
        level: TimeScale,
        potential: Any,
        q: Any,
        p: Any,
        mass: Any,
        friction: Any,
        temperature: Any,
        average: bool,
        seed: int,
    ) -> None:
        self.level, self.friction, self.temperature, self.average, self.seed = (
            level,
            friction,
            temperature,
            average,
            seed,
        )
        self.single = isinstance(q, torch.Tensor)
        self.q = [x.detach().clone() for x in ([q] if self.single else q)]
        self.p = [x.detach().clone() for x in ([p] if isinstance(p, torch.Tensor) else p)]
        self.mass = list(mass) if isinstance(mass, list | tuple) else [mass] * len(self.q)
        self.levels = [level]
        while (inner := self.levels[-1].inner) is not None:
            self.levels.append(inner)
        self.by_variable = callable(potential) and len(self.q) > 1
        self.potentials: list[Potential] = [potential] if callable(potential) else list(potential)
        self._check()
        self.names = [f"q{i}" for i in range(len(self.q))]
        self.forces: dict[int, Tensors] = {}
        self.step = self.draws = 0
        self.held = False  # do slow variables stand still?

    def _check(self) -> None:
        depth, n = len(self.levels), len(self.q)
        if (
            len(self.p) != n
            or len(self.mass) != n
            or any(a.shape != b.shape for a, b in zip(self.q, self.p, strict=True))
        ):
            raise ValueError("q, p and mass must go together: one momentum of the same shape for each position")
        if self.by_variable and n != depth:
            raise ValueError(f"{n} variables need a word with {n} time scales; this one has {depth}")
        if not self.by_variable and (len(self.potentials) != depth or n > 1):
            raise ValueError(
                f"the word has {depth} time scale(s): pass {depth} potentials of one tensor q, or one potential of "
                f"{depth} tensors (got {len(self.potentials)} potential(s) and {n} tensor(s))"
            )
        if self.average and not (self.by_variable and depth == 2):
            raise ValueError("average=True is for two variables (Q, q) with one potential, a slow one and a fast one")

    def run(self, h: Any) -> Iterator[tuple[Any, Any]]:
        while True:
            self.step, self.draws = self.step + 1, 0
            self._play(self.level, h)
            yield (
                (self.q[0].clone(), self.p[0].clone())
                if self.single
                else (
                    tuple(x.clone() for x in self.q),
                    tuple(x.clone() for x in self.p),
                )
            )

    def _play(self, level: TimeScale, h: Any) -> None:
        inside = False
        for beat in level.beats:
            if isinstance(beat, TimeScale):
                for _ in range(beat.times):
                    self._play(beat, h / beat.times)
                inside = True
            elif beat[0] == "A":
                self._drift(level, beat[1] * h)
            elif beat[0] == "B":
                self._kick(level, beat[1] * h, -h if inside else h)
            else:
                self._noise(level, beat[1] * h)

    def _moved_by(self, level: TimeScale, letter: str) -> list[int]:
        """The variables that a letter acts on: that of its time scale; a drift also moves slower ones without drift."""
        if not self.by_variable:
            return [0]
        if letter != "A" or self.held:
            return [level.depth]
        return [*(i for i in range(level.depth) if "A" not in self.levels[i]), level.depth]

    def _drift(self, level: TimeScale, h: Any) -> None:
        for i in self._moved_by(level, "A"):
            self.q[i] = LETTERS["A"](self.q[i], self.p[i] / self.mass[i], h)
        self.forces.clear()

    def _kick(self, level: TimeScale, h: Any, ahead: Any) -> None:
        averaged = self.average and level.inner is not None
        found = self._mean_force(level, ahead) if averaged else self._force(level)
        for i, g in zip(self._moved_by(level, "B"), found, strict=True):
            self.p[i] = LETTERS["B"](self.p[i], g, h)

    def _noise(self, level: TimeScale, h: Any) -> None:
        for i in self._moved_by(level, "O"):
            x = self.q[i]
            normals = Normals([self.names[i]], [x.numel()], [0], x.numel(), x.dtype, x.device)
            R = normals.draw(self.seed, self.step, self.draws).view(x.shape) * torch.as_tensor(self.mass[i]).sqrt()
            self.p[i] = LETTERS["O"](self.p[i], R, h, self.friction, self.temperature)
        self.draws += 1

    def _force(self, level: TimeScale) -> Tensors:
        """∇U of the time scale's variables, cached until something moves: slow forces are computed once per step."""
        if level.depth not in self.forces:
            wanted = self._moved_by(level, "B")
            given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(self.q)]
            energy = self.potentials[0 if self.by_variable else level.depth]
            with torch.enable_grad():
                self.forces[level.depth] = list(torch.autograd.grad(energy(*given).sum(), [given[i] for i in wanted]))
        return self.forces[level.depth]

    def _mean_force(self, level: TimeScale, h: Any) -> Tensors:
        """Av±: the slow force averaged by the trapezoidal rule over the fast motion from here, with Q fixed."""
        inner = level.inner
        assert inner is not None
        q, p, draws, self.held = list(self.q), list(self.p), self.draws, True
        total = [x / 2 for x in self._force(level)]
        for i in range(inner.times):
            self._play(inner, h / inner.times)
            weight = 1.0 if i < inner.times - 1 else 0.5
            total = [a + weight * b for a, b in zip(total, self._force(level), strict=True)]
        self.q, self.p, self.draws, self.held = q, p, draws, False
        self.forces.clear()
        return [x / inner.times for x in total]
