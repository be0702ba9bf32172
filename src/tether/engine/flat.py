"""Flat: the free tensors of a block as one tensor each for θ, p and g, taken through a word by torch's own operations.

Nothing is written before the commit, so that values are simply values: the same code runs on every device and can be
traced, and its number of operations does not grow with the number of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tether.engine.commit import Write, write
from tether.engine.sums import Scalar, Terms, per_replica
from tether.letters import Letter

__all__ = ["Flat", "gathered", "pieces"]

Tensors = list[torch.Tensor]


class Flat:
    """θ, p and g as tensors of shape (replicas, numbers); `noise(draw)` gives normals of that shape, `first()` g0."""

    def __init__(
        self,
        θ: Tensors,
        p: Tensors,
        g: Tensors,
        rows: int,
        noise: Callable[[int], torch.Tensor],
        first: Callable[[], Tensors],
    ) -> None:
        self.home, self.momenta, self.noise, self.rows, self.first = θ, p, noise, rows, first
        self.values: dict[str, Any] = {"θ": gathered(θ, rows)}
        for symbol, tensors in (("p", p), ("g", g)):
            self.values[symbol] = gathered(tensors, rows) if len(tensors) == len(θ) else None

    def vector(self, symbol: str, draw: int) -> torch.Tensor:
        """What a symbol stands for now."""
        if symbol == "R":
            return self.noise(draw)
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
        """A number, or one for each replica, in the precision of the tensors."""
        if not isinstance(c, torch.Tensor):
            return float(c)
        θ: torch.Tensor = self.values["θ"]
        return c.view(-1, 1).to(θ.device, θ.dtype) if c.dim() else c.to(θ.device, θ.dtype)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], draw: int) -> None:
        """A letter as it is written: the reference for programs."""
        vectors = ("θ", "p", "g", "g0", "R")
        known = {s: c.view(-1, 1).to(self.values["θ"]) if per_replica(c) else c for s, c in scalars.items()}
        result = letter.map(*(self.vector(s, draw) if s in vectors else known[s] for s in letter.needs))
        results = result if len(letter.changes) > 1 else (result,)
        for symbol, value in zip(letter.changes, results, strict=True):
            self.values[symbol] = value.to(self.values["θ"].dtype)

    def square(self, batched: bool) -> torch.Tensor:
        """pᵀp, accumulated in at least float32; one for each replica where there are some."""
        p: torch.Tensor = self.values["p"]
        wide = p.dtype if p.dtype is torch.float64 else torch.float32
        sums = p.to(wide).square().sum(1)
        return sums.double() if batched else sums[0]

    def writes(self) -> list[Write]:
        """Take the values back to where they came from."""
        targets, values = list(self.home), pieces(self.values["θ"], self.home)
        if self.values["p"] is not None:
            targets, values = targets + self.momenta, values + pieces(self.values["p"], self.momenta)
        if any(x.is_neg() for x in targets):  # which torch's fused copy does not know
            return [write(x.copy_, value) for x, value in zip(targets, values, strict=True)]
        return [write(torch._foreach_copy_, targets, values)]


def gathered(tensors: Tensors, rows: int) -> torch.Tensor:
    """Tensors as one of shape (rows, numbers)."""
    return torch.cat([x.detach().reshape(rows, -1) for x in tensors], dim=1)


def pieces(flat: torch.Tensor, like: Tensors) -> Tensors:
    """What of it belongs to each tensor."""
    found = flat.split([x.numel() // len(flat) for x in like], dim=1)
    return [piece.reshape(x.shape) for piece, x in zip(found, like, strict=True)]
