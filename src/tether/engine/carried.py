"""Carried: points and momenta on a surface, taken through a word by the surface's own maps.

A letter that moves the parameters along momenta is the surface's own drift. A letter that changes momenta sees the
gradient and the noise through Π, which leaves p in the cotangent space because the letter is linear. Any other step of
the parameters is taken in the surrounding space and projected, and momenta are turned into the new tangent space.
Every word works on every surface that way; nothing here knows which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tether.engine.formulas import NONE, Formula
from tether.engine.sums import Terms, is_number, per_replica
from tether.letters import Letter
from tether.surfaces import Surface

__all__ = ["Carried", "spread"]


class Carried:
    """Points x, momenta m and gradients g as the surface's maps take them; `rows` replicas of each parameter.

    `noise(target, draw)` gives normals of the surrounding space for steps of θ, or for momenta. `entries` are fields
    with a number for each entry.
    """

    def __init__(
        self,
        surface: Surface,
        x: torch.Tensor,
        m: torch.Tensor | None,
        g: Any,
        g0: torch.Tensor | None,
        rows: int,
        noise: Callable[[str, int], torch.Tensor],
        entries: Mapping[str, torch.Tensor] = NONE,
    ) -> None:
        self.entries = entries
        self.surface, self.x, self.m, self.g, self.g0, self.rows, self.noise = surface, x, m, g, g0, rows, noise
        self.force: torch.Tensor | None = None  # the gradient along Σ, while it holds
        self.loose = False  # have momenta a part across Σ that the next drift will absorb?
        self.astray: torch.Tensor | None = None  # which tensors would not come back, if that is watched
        self.near = 0.0  # how close to its start a tensor must come back, over its size

    def update(self, symbol: str, terms: Terms, draw: int) -> None:
        """θ or p ← a sum."""
        if symbol != "θ":
            self.kick(terms, draw)
        elif terms.keys() == {"θ", "p"} and is_number(terms["θ"], 1):
            self.drift(terms["p"])
        else:
            R = self.noise("θ", draw) if "R" in terms else 0.0
            vectors = {"θ": self.surface.embed(self.x), "p": self.vector(), "g": self.g, "g0": self.g0, "R": R}
            self.arrive(self.total(terms, vectors, "θ"))

    def vector(self) -> torch.Tensor | None:
        """Momenta as vectors of the surrounding space, if there are any."""
        return None if self.m is None else self.surface.vector(self.x, self.m)

    def drift(self, h: Any) -> None:
        """Along momenta, by the surface's own drift."""
        assert self.m is not None
        if self.astray is not None:
            self.tighten()  # what the drift absorbs would be missing on the way back
        h, x, m = self.number(h, self.m), self.x, self.m
        self.x, self.m = self.flow(x, m, h)
        if self.astray is not None:
            self.astray |= self.strays(x, m, h)
        self.force, self.loose = None, self.loose and not (isinstance(h, float) and h != 0)

    def flow(self, x: torch.Tensor, m: torch.Tensor, h: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The surface's drift; where it is watched, with momenta along Σ at its end."""
        x, m = self.surface.drift(x, m, h)
        return x, m if self.astray is None or not self.surface.absorbs else self.surface.tangent(x, m)

    def watch(self, rounding: float) -> None:
        """Run every drift back, too; parameters are rounded by this much."""
        self.astray = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        self.near = rounding**0.5

    def strays(self, x: torch.Tensor, m: torch.Tensor, h: Any) -> torch.Tensor:
        """Which tensors does the drift with −p not take back to the point and to the momenta they came from?

        The point alone is not enough: a projection by another root may return to it with other momenta. Both are
        compared as lengths, hp and q, up to the square root of the parameters' rounding error: in bfloat16 the start
        itself is off Σ by that error.
        """
        assert self.m is not None
        surface = self.surface
        back, turned = self.flow(self.x, -self.m, h)
        path = h * surface.vector(x, m)
        off = [surface.embed(back) - surface.embed(x), h * surface.vector(back, turned) + path]
        size = surface.embed(x).flatten(1).abs().amax(1) + path.flatten(1).abs().amax(1)
        worst = torch.stack([d.flatten(1).abs().amax(1) for d in off]).amax(0)
        return ~(worst <= self.near * size)

    def arrive(self, point: torch.Tensor) -> None:
        """The step led to a point near Σ."""
        self.x, self.force = self.surface.project(point, self.x), None
        if self.m is not None:
            self.m, self.loose = self.surface.turn(self.x, self.m), False

    def kick(self, terms: Terms, draw: int) -> None:
        """p ← a sum, with gradient and noise seen along Σ."""
        R: Any = self.noise("p", draw) if "R" in terms else 0.0
        if self.surface.absorbs or self.surface.prompt:
            self.force, self.loose = self.g, self.loose or bool({"g", "R"} & terms.keys())
        else:
            self.find_force("g" in terms)
            if "R" in terms and not self.surface.intrinsic:
                R = self.surface.tangent(self.x, R)
        assert self.m is not None
        self.m = self.total(terms, {"p": self.m, "g": self.force, "R": R}, "p")
        if self.surface.prompt:
            self.tighten()

    def find_force(self, needed: bool) -> None:
        if needed and self.force is None:
            self.force = self.surface.tangent(self.x, self.g)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], draw: int) -> None:
        """A letter as it is written, where it is not linear."""
        R: Any = self.noise("θ" if letter.moves else "p", draw) if "R" in letter.needs else 0.0
        g = self.g
        if not letter.moves:
            self.find_force("g" in letter.needs)
            g = self.force
            if "R" in letter.needs and not self.surface.intrinsic:
                R = self.surface.tangent(self.x, R)
        θ = self.surface.embed(self.x)
        like = θ if letter.moves else self.m
        assert like is not None
        each = {s: self.number(c, like) if per_replica(c) or isinstance(c, Formula) else c for s, c in scalars.items()}
        p = self.vector() if letter.moves else self.m  # on a curve momenta are numbers along it
        values = {**each, "θ": θ, "p": p, "g": g, "g0": self.g0, "R": R}
        result = letter.at(values.__getitem__)
        results = dict(zip(letter.changes, result if len(letter.changes) > 1 else (result,), strict=True))
        if "p" in results:
            self.m = self.surface.tangent(self.x, results["p"]) if letter.moves else results["p"]
        if "θ" in results:
            self.arrive(results["θ"])

    def total(self, terms: Terms, vectors: Mapping[str, Any], of: str) -> torch.Tensor:
        """The sum of these terms."""
        like, total = vectors[of], None
        for symbol, c in terms.items():
            c = self.number(c, like)
            if total is None:
                total = vectors[symbol] if isinstance(c, float) and c == 1 else c * vectors[symbol]
            elif isinstance(c, float):
                total = torch.add(total, vectors[symbol], alpha=c)
            else:
                total = total + c * vectors[symbol]
        return torch.zeros_like(like) if total is None else total

    def number(self, c: Any, like: torch.Tensor) -> Any:
        """A coefficient so that it acts on a stack like this one."""
        if isinstance(c, Formula):
            known = c.put(lambda step: spread(step, like, self.rows) if per_replica(step) else step)
            return known.at(0.0, 0.0, self.entries).to(like)
        return spread(c, like, self.rows)

    def tighten(self) -> None:
        """Momenta along Σ."""
        if self.loose and self.m is not None:
            self.m, self.loose = self.surface.tangent(self.x, self.m), False


def spread(c: Any, like: torch.Tensor, rows: int) -> Any:
    """A number, or one for each replica so that it acts on a stack like this one."""
    if not per_replica(c):
        return c if isinstance(c, torch.Tensor) else float(c)
    each = c.to(like.device, like.dtype).repeat(len(like) // rows)
    return each.view(-1, *[1] * (like.dim() - 1))
