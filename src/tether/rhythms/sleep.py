"""Sleep: random subsets of the weights are 0 for some steps and then catch up (section 5.5.1 of the thesis)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tether.engine.commit import commit, local, write
from tether.noise import bits
from tether.rhythms.rhythm import Rhythm, RhythmError, one_gradient, whole_steps
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Sleep"]

BEDS = WeakTensorKeyDictionary()  # for each parameter a weak reference to the row that sets its weights to 0


class Sleep(Rhythm):
    """A random share of the weights is 0 for `nap` steps while the others move with h.

    Then the sleeping weights get their values back and all weights make one step, those that slept with h·nap. After
    that another share sleeps. The choice depends on (seed, cycle, parameter) alone, as noise does.

    Args:
        share: the share of weights that sleep, at least 0 and below 1.
        nap: the number of steps that they sleep.
    """

    def __init__(self, share: float, nap: int = 5) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise RhythmError(f"asleep={share!r} must be a share of the weights, at least 0 and below 1")
        self.share, self.nap = float(share), whole_steps("", "nap", nap)
        self._known: dict[Any, list[torch.Tensor]] = {}

    def __repr__(self) -> str:
        return f"Sleep({self.share:g}, nap={self.nap})"

    def __getstate__(self) -> dict[str, Any]:
        return {"share": self.share, "nap": self.nap, "_known": {}}

    def fields(self) -> dict[str, Any]:
        return {"asleep": self.share, "nap": self.nap}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        one_gradient(self, part, row, same_step=True)
        if isinstance(row["on"], Surface) or row["metric"] is not None:
            other = row["on"] if isinstance(row["on"], Surface) else row["metric"]
            raise RhythmError(
                f"{part}: asleep={self.share} sets weights to 0, which {other!r} does not allow: choose one"
            )

    def masks(self, row: Row, cycle: int) -> list[torch.Tensor]:
        """A mask for each parameter: True where a weight sleeps in this cycle."""
        key = (row.group["seed"], cycle, tuple(row.names), tuple([param.device for param in row.group["params"]]))
        if key not in self._known:
            masks = []
            for name, param in zip(row.names, row.group["params"], strict=True):
                rows, numbers, _ = row.lanes
                named = row.group["seed"], cycle, f"sleep/{name}", rows, numbers
                words = bits(param.numel() // rows, *named, device=param.device)
                mask = (words < self.share * 2**32).view(param.shape)
                masks.append(mask if row.ranks is None else mask[row.ranks.block(param)])
            self._known = {key: masks}
        return self._known[key]

    def when(self, row: Row) -> tuple[int, int]:
        """The current cycle, and the step within it."""
        cycle, phase = divmod(row.group["step"], self.nap + 1)
        return cycle, phase

    def sleepers(self, row: Row, cycle: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The trained parameters, each with its mask of sleeping weights."""
        for param, mask, trained in zip(row.group["params"], self.masks(row, cycle), row.trained, strict=True):
            if trained:
                yield param, mask

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
        writes: list[Write] = []
        for (param, mask), own in zip(self.sleepers(row, cycle), self.states(row), strict=True):
            writes += [
                write(local(own["held"]).copy_, local(param)),
                write(local(own["asleep"]).copy_, mask),
                write(local(param).masked_fill_, mask, 0.0),
            ]
        return writes

    def states(self, row: Row) -> list[dict[str, torch.Tensor]]:
        """For each trained parameter the kept values, and the mask of weights that sleep now."""
        found = []
        for param, trained in zip(row.group["params"], row.trained, strict=True):
            if trained:
                own = row.state[param]
                for key in ("held", "asleep"):
                    if key not in own or own[key].shape != param.shape:
                        own[key] = torch.zeros_like(param, requires_grad=False)
                    own[key] = own[key].to(param.device)  # the same tensor, unless the model was moved
                found.append(own)
        return found

    def rise(self, row: Row) -> list[Write]:
        """Restore the values of sleeping weights."""
        writes: list[Write] = []
        params = [param for param, yes in zip(row.group["params"], row.trained, strict=True) if yes]
        for param, own in zip(params, self.states(row), strict=True):
            # the mask is computed during the commit, since earlier writes may change who sleeps
            here, held, asleep = local(param), local(own["held"]), local(own["asleep"])
            awake = torch.empty_like(here, dtype=torch.bool)
            writes += [
                write(torch.eq, asleep, 0, out=awake),
                write(torch.where, awake, here, held, out=here),
                write(asleep.zero_),
            ]
        return writes

    def replaced(self, row: Row) -> list[bool]:
        """For each trained parameter: are some of its sleeping weights not 0? Then new weights have been loaded."""
        params = [param for param, yes in zip(row.group["params"], row.trained, strict=True) if yes]
        pairs = zip(params, self.states(row), strict=True)
        return [bool((local(own["asleep"]) * local(param)).any()) for param, own in pairs]

    def notice(self, row: Row) -> list[Write]:
        """Nobody sleeps in weights that have been replaced: the values kept for them are of the old ones."""
        pairs = zip(self.replaced(row), self.states(row), strict=True)
        return [write(local(own["asleep"]).zero_) for new, own in pairs if new]

    def unload(self, row: Row) -> list[Write]:
        """Restore sleeping weights that have not been replaced."""
        writes, replaced = self.rise(row), self.replaced(row)
        each = len(writes) // max(len(replaced), 1)
        return [one for i, new in enumerate(replaced) if not new for one in writes[i * each : (i + 1) * each]]

    def plan(self, row: Row) -> list[Write]:
        cycle, phase = divmod(row.group["step"], self.nap + 1)
        return self.catch_up(row, cycle) if phase == self.nap else self.doze(row, cycle, phase)

    def doze(self, row: Row, cycle: int, phase: int) -> list[Write]:
        """A step of all weights that do not sleep; after the last one of a cycle the others are restored."""
        kept: list[Write] = []
        for param, mask in self.sleepers(row, cycle):
            for x in (param, row.state[param].get("momentum")):
                if x is not None:
                    here = local(x).detach()
                    kept.append(write(torch.where, mask, here.clone(), here, out=here))
        row.play(row.word.program)
        return [*row.writes(), *kept, *(self.rise(row) if phase == self.nap - 1 else [])]

    def catch_up(self, row: Row, cycle: int) -> list[Write]:
        """A step of all weights, with h·nap for those that slept; then another share sleeps."""
        row.play(row.word.program)
        longer = row.twin()
        row.play(row.word.program, times=self.nap, bodies=[body for body, _ in longer])
        for body, _ in longer:
            commit(body.writes())
        masks = {id(param): mask for param, mask in zip(row.group["params"], self.masks(row, cycle), strict=True)}
        slept: list[Write] = []
        for body, of in longer:
            for i, (param, owner) in enumerate(zip(of.pick(of.params), of.pick(of.home), strict=True)):
                slept.append(write(torch.where, masks[id(owner)], body.θ[i], param, out=param))
                if of.p:
                    slept.append(write(torch.where, masks[id(owner)], body.p[i], of.p[i], out=of.p[i]))
        return [*row.writes(), *slept, *self.to_bed(row, cycle + 1)]
