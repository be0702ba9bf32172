"""Pace: steps that are short where the gradient is large, and averages that allow for it (SamAdams)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import write
from tether.letters import exp
from tether.rhythms.rhythm import Rhythm, RhythmError, one_gradient
from tether.surfaces import Free
from tether.words import Beat, parse

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Pace", "monitor", "stretch"]

UNSET = -1.0  # of ζ, before there was a gradient


def monitor(ζ: Any, G: Any, h: Any, α: float) -> Any:
    """Z: ζ ← e^{−αh} ζ + (1 − e^{−αh}) G/α, the exact solution of dζ = (G − αζ) dτ at fixed G.

    >>> monitor(0.0, 6.0, h=1e3, α=2.0)
    3.0
    """
    decay = exp(-α * h)
    return decay * ζ + (1 - decay) * G / α


def stretch(ζ: Any, least: float, most: float, power: float) -> Any:
    """ψ(ζ) = m (ζ^r + M)/(ζ^r + m): M where ζ is 0, and m where it is ∞.

    >>> stretch(0.0, 0.1, 10.0, 0.5), stretch(1.0, 0.1, 10.0, 0.5)
    (10.0, 1.0)
    """
    s = ζ**power
    return least * (s + most) / (s + least)


class Pace(Rhythm):
    """The step is ψ(ζ) h, with ζ a running mean of the squared gradient (Leimkuhler, Lohmann, Whalley, 2025).

    dζ = (|g|²/Ω − αζ) dτ and dt = ψ(ζ) dτ, ψ(ζ) = m (ζ^r + M)/(ζ^r + m) between m and M. The word is that of the part:
    with BAOAB a step is ZBAOABZ, where Z solves ζ for half a step, at the cost of one gradient. Every letter of the
    word lasts ψ(ζ) as long as by itself.

    States are visited as time goes by in steps: averages over exp(−L/τ) weigh each state by ``opt.pace()``, the ψ of
    its place. `tether.sample` does so. With `tether.Replicas` every replica has its own ζ. All parameters must be in
    one part: parts with clocks of their own would have no common weight.

    >>> import tether
    >>> x = torch.nn.Parameter(torch.zeros(1))
    >>> opt = tether.Optimizer([("x", x)], lr=0.5, rhythm=Pace(forget=1.0, least=0.1, most=10.0))
    >>> x.grad = torch.ones(1)
    >>> opt.step()  # ζ starts at |g|²/α = 1, where ψ = 1: θ ← −0.5
    >>> x.item(), round(opt.pace(), 9)
    (-0.5, 1.0)

    Args:
        forget: α, the rate at which ζ forgets; 1/α in units of h·steps.
        least: m, the smallest factor of the step.
        most: M, the largest.
        power: r.
        scale: Ω; None takes the number of parameters.
    """

    alone = True
    paced = True

    def __init__(
        self,
        forget: float = 1.0,
        least: float = 0.1,
        most: float = 10.0,
        power: float = 0.5,
        scale: float | None = None,
    ) -> None:
        given = {"forget": forget, "least": least, "most": most, "power": power}
        for name, value in given.items() if scale is None else [*given.items(), ("scale", scale)]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise RhythmError(f"Pace: {name}={value!r} must be a finite number above 0, e.g. {name}=1.0")
        if least > most:
            raise RhythmError(f"Pace: least={least!r} must be at most most={most!r}: exchange the two")
        self.forget, self.least, self.most, self.power, self.scale = forget, least, most, power, scale

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        one_gradient(self, part, row)
        if "ξ" in parse(row["word"]).needs:
            raise RhythmError(f"{part}: {self!r} and a thermostat, in {row['word']!r}: use a word without, as 'BAOAB'")
        if not isinstance(row["on"], Free) or row["metric"] is not None:
            other = row["metric"] if row["metric"] is not None else row["on"]
            raise RhythmError(f"{part}: {self!r} is for free parameters, without {other!r}: leave out one of the two")

    def start(self, row: Row) -> list[Write]:
        """No gradient yet."""
        ζ = torch.full([row.lanes.rows] * row.lanes.batched, UNSET, dtype=torch.float64, device="cpu")
        return [write(row.group.setdefault, "pace", torch.stack([ζ, torch.ones_like(ζ)]))]

    def plan(self, row: Row) -> list[Write]:
        """What of the word belongs to the step before, then Z, then the rest."""
        if row.ranks is not None:
            raise RhythmError(f"{self!r} does not support sharded parameters: use whole ones")
        α, held = self.forget, row.group["pace"]
        h, before = row.values["lr"], row.group["previous_lr"]
        G = self.squared(row)
        ζ = torch.where(held[0] < 0, G / α, held[0])
        first, rest = parted(row.word.text)
        draw = row.play(first, self.factor(ζ))
        ζ = monitor(ζ, G, on_host((h + before) / 2), α)
        row.play(rest, self.factor(ζ), draw=draw)
        ahead = monitor(ζ, G, on_host(h / 2), α)  # of the place that the step leads to, but for the change of G
        new = torch.stack([ζ, self.psi(ahead)])
        if row.resting:
            new[:, list(row.resting)] = held[:, list(row.resting)]
        if row.bad is not None:
            new = torch.where(row.bad.cpu(), held, new)
        return [*row.writes(), write(row.group.__setitem__, "pace", new)]

    def squared(self, row: Row) -> torch.Tensor:
        """|g|²/Ω, one for each replica where there are some."""
        found = torch.zeros(row.lanes.rows, dtype=torch.float64, device="cpu")
        for body in row.bodies:
            for g in body.g:
                found += g.reshape(row.lanes.rows, -1).double().square().sum(1).cpu()
        found /= sum(body.degrees for body in row.bodies) if self.scale is None else self.scale
        return found if row.lanes.batched else found[0]

    def psi(self, ζ: torch.Tensor) -> torch.Tensor:
        """ψ(ζ)."""
        found: torch.Tensor = stretch(ζ, self.least, self.most, self.power)
        return found

    def factor(self, ζ: torch.Tensor) -> Any:
        """ψ(ζ) as `Row.play` takes it: a number, or one for each replica."""
        found = self.psi(ζ)
        return found if found.dim() else found.item()

    def weight(self, row: Row) -> Any:
        """ψ at the place where the last step has led."""
        found = row.group["pace"][1]
        return found.clone() if found.dim() else found.item()


def on_host(h: Any) -> Any:
    """A step size for numbers of the host."""
    return h.double().cpu() if isinstance(h, torch.Tensor) else h


@lru_cache
def parted(text: str) -> tuple[tuple[Beat, ...], tuple[Beat, ...]]:
    """The beats that end the step before, and those of this step; equal arguments give the same objects."""
    program = parse(text).program
    ends = tuple([Beat(beat.letter, beat.before, 0.0) for beat in program if beat.before])
    return ends, tuple([Beat(beat.letter, 0.0, beat.now) for beat in program if beat.now])
