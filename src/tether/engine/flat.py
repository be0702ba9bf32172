"""Flat: the free tensors of a block as one tensor each for θ, p and g, taken through a word by torch's own operations.

Nothing is written before the commit, so that values are simply values: the same code runs on every device and can be
traced, and its number of operations does not grow with the number of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tether.engine import host
from tether.engine.commit import Write, write
from tether.engine.formulas import NONE, Formula
from tether.engine.sums import Scalar, Terms, per_replica
from tether.letters import Letter

__all__ = ["Flat", "Room", "gathered", "kept", "over_entries", "pieces", "restored", "unless"]

Tensors = list[torch.Tensor]


class Room:
    """Buffers in which the tensors of a block lie side by side: one fused copy takes them in, one takes them out.

    `blank` makes a buffer of zeros, `lay` its views, one for each tensor. Each is made when it is needed, and stays.
    """

    def __init__(self, blank: Callable[[], torch.Tensor], lay: Callable[[torch.Tensor], Tensors]) -> None:
        self.blank, self.lay = blank, lay
        self.flat: dict[str, torch.Tensor] = {}
        self.views: dict[str, Tensors] = {}
        self.row: dict[str, torch.Tensor] = {}

    def add(self, symbol: str, flat: torch.Tensor, views: Tensors) -> None:
        """A buffer whose tensors lie side by side already."""
        self.flat[symbol], self.views[symbol], self.row[symbol] = flat, views, flat.unsqueeze(0)

    def buffer(self, symbol: str) -> torch.Tensor:
        """The buffer of this name; the gaps between its tensors are 0."""
        if symbol not in self.flat:
            flat = self.blank()
            self.add(symbol, flat, self.lay(flat))
        return self.flat[symbol]

    def take(self, symbol: str, tensors: Tensors) -> torch.Tensor:
        """Tensors as one of shape (1, numbers)."""
        self.buffer(symbol)
        if tensors is not self.views[symbol]:
            torch._foreach_copy_(self.views[symbol], tensors)
        return self.row[symbol]


class Flat:
    """θ, p and g as tensors of shape (replicas, numbers); `noise(draw)` gives normals of that shape, `first()` g0.

    With a `room` they lie in its buffers. `bad` says where the values must stay what they were: everywhere, or for
    which replicas. `entries` are fields with a number for each entry.
    """

    def __init__(
        self,
        θ: Tensors,
        p: Tensors,
        g: Tensors,
        rows: int,
        noise: Callable[[int], torch.Tensor],
        first: Callable[[], Tensors],
        bad: torch.Tensor | None = None,
        room: Room | None = None,
        entries: Mapping[str, torch.Tensor] = NONE,
    ) -> None:
        self.home, self.momenta, self.noise, self.rows, self.first = θ, p, noise, rows, first
        self.entries = entries
        self.room, self.bad = room, bad if bad is None or not bad.dim() else bad.unsqueeze(1)
        self.values: dict[str, Any] = {}
        for symbol, tensors in (("θ", θ), ("p", p), ("g", g)):
            if len(tensors) != len(θ):
                self.values[symbol] = None
            elif room is None:
                self.values[symbol] = gathered(tensors, rows)
            else:
                self.values[symbol] = room.take(symbol, tensors)
        self.old = dict(self.values)
        self.drawn: tuple[int, torch.Tensor] | None = None

    def vector(self, symbol: str, draw: int) -> torch.Tensor:
        """What a symbol stands for now."""
        if symbol == "R":
            if self.drawn is None or self.drawn[0] != draw:  # a letter may take it for θ and for p
                self.drawn = draw, self.noise(draw)
            return self.drawn[1]
        if symbol == "g0":
            return gathered(self.first(), self.rows)
        found: torch.Tensor = self.values[symbol]
        return found

    def update(self, symbol: str, terms: Terms, draw: int) -> None:
        """θ or p ← a sum."""
        total: torch.Tensor | None = None
        like = self.values[symbol]
        for s, c in terms.items():
            v = self.vector(s, draw)
            c = self.column(c)
            if total is None:
                total = v if type(c) is float and c == 1 else c * v
            else:
                total = torch.addcmul(total, v, c) if isinstance(c, torch.Tensor) else torch.add(total, v, alpha=c)
        self.values[symbol] = torch.zeros_like(like) if total is None else total

    def column(self, c: Scalar) -> Any:
        """A number, or one for each replica or entry, in the precision of the tensors."""
        if isinstance(c, Formula):
            c = c.put(lambda step: step.view(-1, 1) if per_replica(step) else step).at(0.0, 0.0, self.entries)
            return c.to(self.values["θ"])
        if not isinstance(c, torch.Tensor):
            return float(c)
        θ: torch.Tensor = self.values["θ"]
        return c.view(-1, 1).to(θ.device, θ.dtype) if c.dim() else c.to(θ.device, θ.dtype)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], draw: int) -> None:
        """A letter as it is written: the reference for programs."""
        known = {
            s: self.column(c) if isinstance(c, Formula) else c.view(-1, 1).to(self.values["θ"]) if per_replica(c) else c
            for s, c in scalars.items()
        }
        if "Q" in letter.needs:
            known["Q"] = self.noise(draw + 1).clone()  # R may fill the same buffer
        result = letter.at(lambda s: known[s] if s in known else self.vector(s, draw))
        results = result if len(letter.changes) > 1 else (result,)
        for symbol, value in zip(letter.changes, results, strict=True):
            self.values[symbol] = value.to(self.values["θ"].dtype)

    def square(self, batched: bool) -> torch.Tensor:
        """pᵀp, accumulated in at least float32; one for each replica where there are some. Entries may have masses."""
        p: torch.Tensor = self.values["p"]
        wide = p.dtype if p.dtype is torch.float64 else torch.float32
        squares = p.to(wide).square()
        sums = (squares / self.entries["m"].to(squares) if "m" in self.entries else squares).sum(1)
        return sums.to(host.wide(sums.device)) if batched else sums[0]

    def writes(self) -> list[Write]:
        """Take the values back to where they came from."""
        if self.room is not None:
            return self.from_room(self.room)
        new = {s: kept(self.bad, self.old[s], self.values[s]) for s in ("θ", "p") if self.values[s] is not None}
        targets, values = list(self.home), pieces(new["θ"], self.home)
        if "p" in new:
            targets, values = targets + self.momenta, values + pieces(new["p"], self.momenta)
        if any(x.is_neg() for x in targets):  # which torch's fused copy does not know
            return [write(x.copy_, value) for x, value in zip(targets, values, strict=True)]
        return [write(torch._foreach_copy_, targets, values)]

    def from_room(self, room: Room) -> list[Write]:
        """The same through the buffers."""
        writes: list[Write] = []
        for symbol, home in (("θ", self.home), ("p", self.momenta)):
            old, new = self.old[symbol], self.values[symbol]
            if new is old:
                continue
            if self.bad is None:
                writes.append(write(old.copy_, new))
            else:
                writes.append(write(torch.where, self.bad.to(new.device), old, new, out=old))
            if home is not room.views[symbol]:
                writes.append(write(torch._foreach_copy_, home, room.views[symbol]))
        return writes


def kept(bad: torch.Tensor | None, old: Any, new: torch.Tensor) -> torch.Tensor:
    """The new values, but the old ones where the gradient is bad."""
    return new if bad is None else torch.where(bad.to(new.device), old, new)


def over_entries(bad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One truth, or one for each replica, in the shape that goes with the entries of a tensor."""
    return bad.view(-1, *[1] * (like.dim() - 1)) if bad.dim() else bad


def unless(bad: torch.Tensor | None, old: Tensors, new: Tensors) -> Tensors:
    """The new tensors, but with the old values of replicas, or of all, whose gradient is bad."""
    if bad is None:
        return new
    return [kept(over_entries(bad, x), x.detach(), y) for x, y in zip(old, new, strict=True)]


def restored(bad: torch.Tensor | None, old: Room, new: Room, symbol: str, to: str) -> list[Write]:
    """The writes that put the old values into the new buffer for replicas, or for all, whose gradient is bad."""
    if bad is None:
        return []
    if not bad.dim():
        return [write(torch.where, bad, old.flat[symbol], new.flat[to], out=new.flat[to])]
    pairs = zip(old.views[symbol], new.views[to], strict=True)
    return [write(torch.where, over_entries(bad, x), x, y, out=y) for x, y in pairs]


def gathered(tensors: Tensors, rows: int) -> torch.Tensor:
    """Tensors as one of shape (rows, numbers)."""
    return torch.cat([x.detach().reshape(rows, -1) for x in tensors], dim=1)


def pieces(flat: torch.Tensor, like: Tensors) -> Tensors:
    """What of it belongs to each tensor."""
    found = flat.split([x.numel() // len(flat) for x in like], dim=1)
    return [piece.reshape(x.shape) for piece, x in zip(found, like, strict=True)]
