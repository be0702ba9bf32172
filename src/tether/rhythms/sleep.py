"""Sleep: random subsets of the weights are 0 for some steps and then catch up (section 5.5.1 of the thesis)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakTensorKeyDictionary

from tether.engine.commit import commit
from tether.rhythms.bed import Bed, beds
from tether.rhythms.rhythm import Rhythm, RhythmError, one_gradient, whole_steps
from tether.surfaces import Surface

if TYPE_CHECKING:
    import torch

    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Sleep"]

BEDS = WeakTensorKeyDictionary()  # for each parameter a weak reference to the row that sets its weights to 0


class Sleep(Rhythm):
    """A random share of the weights is 0 for `nap` steps while the others move with h.

    Then the sleeping weights get their values back and all weights make one step, those that slept with h·nap. After
    that another share sleeps. The choice depends on (seed, cycle, parameter) alone, as noise does.

    >>> import torch, tether
    >>> weight = torch.nn.Parameter(torch.ones(1000))
    >>> opt = tether.Optimizer([("weight", weight)], lr=0.1, rhythm=Sleep(0.3, nap=5))
    >>> weight.grad = torch.zeros(1000)
    >>> opt.step()
    >>> 250 < int((weight == 0).sum()) < 350
    True

    Args:
        share: the share of weights that sleep, at least 0 and below 1.
        nap: the number of steps that they sleep.
    """

    def __init__(self, share: float, nap: int = 5) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise RhythmError(f"asleep={share!r} must be a share of the weights, at least 0 and below 1")
        self.share, self.nap = float(share), whole_steps("", "nap", nap)
        self._beds: weakref.WeakKeyDictionary[Row, list[Bed]] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Sleep({self.share:g}, nap={self.nap})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Sleep, (self.share, self.nap)

    def fields(self) -> dict[str, Any]:
        return {"asleep": self.share, "nap": self.nap}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        one_gradient(self, part, row, same_step=True)
        if isinstance(row["on"], Surface) or row["metric"] is not None:
            other = row["on"] if isinstance(row["on"], Surface) else row["metric"]
            raise RhythmError(
                f"{part}: asleep={self.share} sets weights to 0, which {other!r} does not allow: choose one"
            )

    def when(self, row: Row) -> tuple[int, int]:
        """The current cycle, and the step within it."""
        cycle, phase = divmod(row.group["step"], self.nap + 1)
        return cycle, phase

    def beds(self, row: Row) -> list[Bed]:
        """The weights of a row; made anew where parameters or state are others."""
        found = self._beds.get(row)
        if found is None or not all(bed.still(row) for bed in found):
            found = self._beds[row] = beds(row)
        return found

    def masked(self, row: Row, cycle: int) -> list[tuple[Bed, torch.Tensor]]:
        """The weights, with a mask of those that sleep in a cycle."""
        seed = row.group["seed"]
        return [(bed, bed.mask(seed, cycle, self.share)) for bed in self.beds(row)]

    def start(self, row: Row) -> list[Write]:
        """If another optimizer has set some of these weights to 0, it restores them first."""
        for param in row.group["params"]:
            before = BEDS.get(param)
            other = None if before is None else before()
            if other is not None and other is not row:
                commit(other.rhythm.rise(other))
            BEDS[param] = weakref.ref(row)
        return self.lie_down(row)

    def lie_down(self, row: Row) -> list[Write]:
        """Set the sleeping weights to 0, unless all weights move at this step."""
        cycle, phase = self.when(row)
        return self.to_bed(row, cycle) if phase < self.nap else []

    def to_bed(self, row: Row, cycle: int) -> list[Write]:
        """Keep the values of the weights that sleep in a cycle, and set them to 0."""
        return [one for bed, mask in self.masked(row, cycle) for one in bed.lie_down(mask)]

    def rise(self, row: Row) -> list[Write]:
        """Restore the values of sleeping weights."""
        return [one for bed in self.beds(row) for one in bed.rise()]

    def notice(self, row: Row) -> list[Write]:
        """Nobody sleeps in weights that have been replaced: the values kept for them are of the old ones."""
        return [one for bed in self.beds(row) for one in bed.replaced()]

    def unload(self, row: Row) -> list[Write]:
        """Restore sleeping weights that have not been replaced."""
        return [*self.notice(row), *self.rise(row)]

    def plan(self, row: Row) -> list[Write]:
        cycle, phase = self.when(row)
        return self.catch_up(row, cycle) if phase == self.nap else self.doze(row, cycle, phase)

    def doze(self, row: Row, cycle: int, phase: int) -> list[Write]:
        """A step of all weights that do not sleep; after the last one of a cycle the others are restored."""
        kept: list[Write] = []
        for bed, mask in self.masked(row, cycle):
            owners, momenta = bed.momenta()
            kept += bed.instead("θ", mask, bed.home, bed.params, bed.params)
            if momenta:
                kept += bed.instead("p", mask, owners, momenta, momenta)
        row.play(row.word.program)
        return [*row.writes(), *kept, *(self.rise(row) if phase == self.nap - 1 else [])]

    def catch_up(self, row: Row, cycle: int) -> list[Write]:
        """A step of all weights, with h·nap for those that slept; then another share sleeps."""
        row.play(row.word.program)
        longer = row.twin()
        row.play(row.word.program, times=self.nap, bodies=[body for body, _ in longer])
        for body, _ in longer:
            commit(body.writes())
        masked = self.masked(row, cycle)
        slept: list[Write] = []
        for body, of in longer:
            owners = of.pick(of.home)
            bed, mask = next(pair for pair in masked if pair[0].holds(owners[0]))
            slept += bed.instead("θ", mask, owners, of.pick(of.params), body.θ)
            if of.p:
                slept += bed.instead("p", mask, owners, of.p, body.p)
        return [*row.writes(), *slept, *self.to_bed(row, cycle + 1)]
