"""Drawn: all normals of a traced step by one call of the generator.

The generator is most of a traced step's operations, and a compiler takes its time for each of them. So the tiles of
all draws of all bodies lie in one table. What was drawn is split afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from tether.engine.blocks import Block
from tether.engine.formulas import Formula
from tether.engine.moving import Moving
from tether.noise import Normals, tiles

__all__ = ["Drawn", "Wanted"]

Place = tuple[int, int]  # of normals: in which `Drawn`, and as which of its sources


class Drawn(NamedTuple):
    """Normals of one dtype on one device."""

    tables: tuple[torch.Tensor, ...]  # for each tile its number, the two words of its key, replica and draw
    sources: list[Normals]
    counts: list[int]  # tiles of each

    def normals(self, step: torch.Tensor) -> list[torch.Tensor]:
        """Those of a step, for one source after the other."""
        tile, k0, k1, replica, draw = self.tables
        found = tiles(tile, (k0, k1), step, draw, self.sources[0].exact, replica)
        pairs = zip(self.sources, found.split(self.counts), strict=True)
        return [source.placed(x).clone() for source, x in pairs]  # one that fills a buffer of its own fills it again


class Wanted:
    """Collects, while a plan is made, which normals its steps will need."""

    def __init__(self) -> None:
        self.kinds: dict[Any, list[tuple[Normals, int, int]]] = {}

    def add(self, body: Block | Moving, seed: int, updates: Iterable[Any]) -> dict[tuple[str, int], Place]:
        """Those that the updates of a body need; returns where they will be, by target and draw."""
        body.name, places = (seed, 0), dict[tuple[str, int], Place]()
        for symbol, terms, draw in updates:
            target = symbol if isinstance(body, Moving) else ""  # a block takes the same for θ and for p
            if isinstance(terms, Formula) or "R" not in terms or (target, draw) in places:
                continue
            source = source_of(body, target, draw)
            source.inside()  # a table that cannot be made inside the graph
            kind = source.exact, source.device
            own = self.kinds.setdefault(kind, [])
            places[target, draw] = list(self.kinds).index(kind), len(own)
            own.append((source, seed, draw))
        return places

    def drawn(self) -> list[Drawn]:
        """One for each dtype and device."""
        return [together(each) for each in self.kinds.values()]


def source_of(body: Block | Moving, target: str, draw: int) -> Normals:
    """Where a body has its normals from, which is known after a draw."""
    if isinstance(body, Moving):
        body.draw(target, draw)
        return body.drawn[target, 0]
    body.normals(draw)
    assert body.drawn is not None
    return body.drawn


def together(wanted: list[tuple[Normals, int, int]]) -> Drawn:
    """Sources with their seeds and draws as one."""
    columns, counts = list[list[torch.Tensor]](), list[int]()
    for source, seed, draw in wanted:
        own = source.tables(seed)
        counts.append(len(own[0]))
        columns.append([*own, torch.full_like(own[1], draw)])
    tables = tuple(torch.cat(column) for column in zip(*columns, strict=True))
    return Drawn(tables, [source for source, _, _ in wanted], counts)
