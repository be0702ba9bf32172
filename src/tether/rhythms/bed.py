"""Bed: the trained weights of a part side by side, to set some of them aside by a few operations for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tether.engine.blocks import Block, Owned
from tether.engine.commit import local, write

if TYPE_CHECKING:
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Bed", "beds"]


def beds(row: Row) -> list[Bed]:
    """The trained weights of a row, those that are alike together."""
    chosen = [
        (param, name)
        for param, name, trained in zip(row.group["params"], row.names, row.trained, strict=True)
        if trained
    ]
    return [Bed(body, row) for body in row.blocks(chosen, momenta=False)]


class Bed:
    """Tensors that share device and dtype. The state keeps the values of sleeping weights, and who sleeps."""

    def __init__(self, body: Block, row: Row) -> None:
        self.params, self.home, self.state = body.params, body.home, row.state
        self.room = room = body.more_room()
        labels, shapes = [f"sleep/{name}" for name in body.names], [x.shape for x in body.params]
        places = body.sizes, body.offsets, body.total
        rest = body.dtype, body.device, body.rows, body.lanes.numbers
        self.words = body.cut.normals(labels, shapes, places, rest)
        self.zero = torch.zeros((), dtype=body.dtype, device=body.device)
        self.awake = torch.empty(body.total, dtype=torch.bool, device=body.device)
        self.place = {id(param): i for i, param in enumerate(body.home)}
        kept = {}
        for key in ("held", "asleep"):
            room.buffer(key)
            for i, (param, view) in enumerate(zip(body.home, room.views[key], strict=True)):
                own = row.state[param]
                if key in own and own[key].shape == param.shape:
                    view.copy_(body.cut.read(i, own[key], view))
                own[key] = body.cut.keep(i, view)
            kept[key] = [row.state[param][key] for param in body.home]
        self.kept = Owned(body.home, row.state, kept)
        self.known: tuple[tuple[int, int, float], torch.Tensor] | None = None

    def still(self, row: Row) -> bool:
        """Are parameters and state what they were?"""
        return self.state is row.state and self.kept.still()

    def mask(self, seed: int, cycle: int, share: float) -> torch.Tensor:
        """True where a weight sleeps in a cycle, in the order of the buffers."""
        key = seed, cycle, share
        if self.known is None or self.known[0] != key:
            self.known = key, self.words.below(seed, cycle, share * 2**32)
        return self.known[1]

    def lie_down(self, mask: torch.Tensor) -> list[Write]:
        """Keep the values of these weights, and set them to 0."""
        room, now = self.room, self.room.buffer("now")
        return [
            write(torch._foreach_copy_, room.views["held"], self.params),
            write(room.flat["asleep"].copy_, mask),
            write(torch.where, mask, self.zero, room.flat["held"], out=now),
            write(torch._foreach_copy_, self.params, room.views["now"]),
        ]

    def rise(self) -> list[Write]:
        """Restore the values of sleeping weights. Earlier writes of the commit may change who sleeps."""
        room, now = self.room, self.room.buffer("now")
        asleep = room.flat["asleep"]
        return [
            write(torch._foreach_copy_, room.views["now"], self.params),
            write(torch.eq, asleep, 0, out=self.awake),
            write(torch.where, self.awake, now, room.flat["held"], out=now),
            write(torch._foreach_copy_, self.params, room.views["now"]),
            write(asleep.zero_),
        ]

    def replaced(self) -> list[Write]:
        """Nobody sleeps in tensors where a sleeping weight is not 0: new weights have been loaded."""
        pairs = zip(self.room.views["asleep"], self.params, strict=True)
        return [write(asleep.zero_) for asleep, param in pairs if bool((asleep * param).any())]

    def instead(
        self,
        symbol: str,
        mask: torch.Tensor,
        owners: Sequence[torch.Tensor],
        tensors: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> list[Write]:
        """The writes that put these values into tensors of some owners where the mask is true. They are read now."""
        before, now, room = f"{symbol} before", "now", self.room
        old, new = room.buffer(before), room.buffer(now)
        which = [self.place[id(owner)] for owner in owners]
        views = [room.views[now][i] for i in which]
        torch._foreach_copy_([room.views[before][i] for i in which], values)
        return [
            write(torch._foreach_copy_, views, tensors),
            write(torch.where, mask, old, new, out=new),
            write(torch._foreach_copy_, tensors, views),
        ]

    def holds(self, param: torch.Tensor) -> bool:
        """Is it one of these?"""
        return id(param) in self.place

    def momenta(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The parameters that have momenta, and those."""
        owners = [param for param in self.home if "momentum" in self.state[param]]
        return owners, [local(self.state[param]["momentum"]) for param in owners]
