"""Constrained motion: how a word's letters act on a part that lives on a surface.

A is the surface's own drift. A letter that changes momenta sees the gradient and the noise through Π, which leaves p in
the cotangent space because the letter is linear. A letter that moves the parameters without momenta (X) is taken in
the surrounding space and projected. Every word works on every surface that way; nothing here knows which it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tether.letters import LETTERS, Letter
from tether.motion import coefficients
from tether.noise import Normals
from tether.surfaces import Surface
from tether.words import Beat

__all__ = ["Constrained", "Stack", "stacks"]

Tensors = list[torch.Tensor]


def stacks(params: Tensors, names: list[str], surface: Surface) -> list[tuple[Tensors, list[str]]]:
    """Parameters that can be handled as one batch: of one shape, dtype and device, or all that g takes together."""
    chosen: dict[Any, tuple[Tensors, list[str]]] = {}
    for param, name in zip(params, names, strict=True):
        kind = None if surface.together else (param.shape, param.dtype, param.device)
        mine, labels = chosen.setdefault(kind, ([], []))
        mine.append(param)
        labels.append(name)
    return list(chosen.values())


class Stack:
    """Parameters of one shape on a surface, with their points and momenta in one tensor each."""

    def __init__(self, params: Tensors, names: list[str], surface: Surface) -> None:
        self.params, self.names = params, names
        self.joint = surface.together
        shapes = [param.shape for param in params]
        self.shape = (sum(map(math.prod, shapes)),) if self.joint else tuple(shapes[0])
        self.surface = surface.bind(shapes if self.joint else shapes[:1])
        self.dtype, self.device = params[0].dtype, params[0].device
        # Points and momenta of half-precision weights are kept in float32: Σ is thinner than a rounding error there.
        self.wide = torch.float64 if self.dtype is torch.float64 else torch.float32

    def gather(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Tensors shaped like the parameters as one stack."""
        if self.joint:
            return torch.cat([x.detach().flatten() for x in tensors]).to(self.wide).unsqueeze(0)
        return torch.stack([x.detach() for x in tensors]).to(self.wide)

    def scatter(self, values: torch.Tensor, params: Tensors) -> None:
        """Write a stack back into the parameters."""
        pieces = values[0].split([p.numel() for p in params]) if self.joint else values  # type: ignore[no-untyped-call]
        for param, value in zip(params, pieces, strict=True):
            param.copy_(value.view(param.shape))

    def place(self, seed: int) -> torch.Tensor:
        """Points of Σ near the parameters; random ones are named by the seed and the parameter."""
        sizes = [self.params[0].numel()] * len(self.params)
        offsets = [i * sizes[0] for i in range(len(sizes))]
        normals = None
        if not self.joint:
            drawn = Normals([f"place/{n}" for n in self.names], sizes, offsets, sum(sizes), self.wide, self.device)
            normals = drawn.draw(seed, 0, 0).view(-1, *self.shape)
        return self.surface.place(self.gather(self.params), normals)

    def owners(self) -> Tensors:
        """The parameters that hold state: all, or the first for all that g takes together."""
        return self.params[:1] if self.joint else self.params

    def point(self, state: Mapping[torch.Tensor, Any]) -> torch.Tensor:
        """Saved points where they belong to the parameters as they are, else new ones."""
        θ = self.gather(self.params)
        if not self.surface.slack:
            return self.surface.lift(θ)
        if all("point" in state.get(owner, {}) for owner in self.owners()):
            q = torch.stack([state[owner]["point"].to(self.wide) for owner in self.owners()])
            reach = 1e-2 if self.dtype.itemsize < 4 else 1e-5
            if torch.allclose(self.surface.lower(q, self.shape), θ, rtol=reach, atol=reach):
                return q
        return self.surface.place(θ)


class Moving(Stack):
    """A stack with its state, during a run."""

    def __init__(
        self, params: Tensors, names: list[str], surface: Surface, momenta: bool, state: Mapping[torch.Tensor, Any]
    ) -> None:
        super().__init__(params, names, surface)
        self.q = self.point(state)
        ambient = self.surface.embed(self.q)
        size = ambient[0].numel()
        keys = [" ".join(names)] if self.joint else names
        offsets = [i * size for i in range(len(keys))]
        total = size * len(keys)
        self.normals = Normals(keys, [size] * len(keys), offsets, total, self.wide, self.device)
        self.normals_shape = ambient.shape
        owners = self.owners()
        self.p: torch.Tensor | None = None
        if momenta:
            self.p = torch.zeros_like(self.surface.tangent(self.q, torch.zeros_like(ambient)))
            for i, owner in enumerate(owners):
                if "momentum" in state[owner]:
                    self.p[i].copy_(state[owner]["momentum"])
                state[owner]["momentum"] = self.p[i]
        if self.surface.slack:
            for i, owner in enumerate(owners):
                state[owner]["point"] = self.q[i]
        self.versions = [param._version for param in params]
        self.g0: torch.Tensor | None = None

    def fits(self) -> bool:
        """Are the parameters still of the kind the stack was made for?"""
        return all(x.dtype is self.dtype and x.device == self.device for x in self.params)

    def begin(self, weight_decay: float, gradient: bool = True) -> None:
        """Take points and gradients as they are now; parameters without a gradient stand still."""
        touched = [param._version for param in self.params] != self.versions
        if not self.surface.slack:
            self.q = self.surface.lift(self.gather(self.params))
        elif touched:  # somebody else has written to the parameters
            self.q.copy_(self.surface.place(self.gather(self.params)))
        has = [param.grad is not None or not gradient for param in self.params]
        self.active = [] if self.joint and not all(has) else [i for i, yes in enumerate(has) if yes]
        self.every = len(self.active) == len(self.params)
        self.x = self.q if self.every else self.q[self.active]
        self.m = self.p if self.every or self.p is None else self.p[self.active]
        self.force: torch.Tensor | None = None
        if self.active and gradient:
            moving = [self.params[i] for i in self.active]
            g = self.gather([param.grad for param in moving if param.grad is not None])
            if weight_decay:
                g = g + weight_decay * self.gather(moving)
            self.g = self.surface.lift(g)

    def draw(self, name: tuple[int, int, int]) -> torch.Tensor:
        R = self.normals.draw(*name).view(self.normals_shape)
        return R if self.every else R[self.active]

    def apply(self, letter: Letter, scalars: dict[str, Any], name: tuple[int, int, int], noisy: bool) -> None:
        """One letter; without noise R is 0."""
        surface = self.surface
        if letter.name == "A":
            assert self.m is not None
            self.x, self.m = surface.drift(self.x, self.m, scalars["h"])
            self.force = None
            return
        values = dict(scalars)
        R = (
            self.draw(name)
            if "R" in letter.needs and scalars["τ"] + scalars["σ"] > 0
            else torch.zeros((), device=self.device)
        )
        if letter.moves:
            values |= {"θ": surface.embed(self.x), "p": self.m, "g": self.g, "g0": self.g0, "R": R}
            result = letter.map(*(values[s] for s in letter.needs))
            self.x = surface.project(result[0] if len(letter.changes) > 1 else result, self.x)
            self.force = None
            return
        if "g" in letter.needs and self.force is None:
            self.force = surface.tangent(self.x, self.g)
        noise = surface.tangent(self.x, R) if R.dim() else R
        values |= {"p": self.m, "g": self.force, "R": noise}
        self.m = letter.map(*(values[s] for s in letter.needs))

    def finish(self) -> None:
        """Write points and momenta back."""
        which: Any = slice(None) if self.every else self.active
        if self.surface.slack:
            self.q[which] = self.x
        if self.p is not None and self.m is not None:
            self.p[which] = self.m
        moving = [self.params[i] for i in self.active]
        self.scatter(self.surface.lower(self.x, self.shape), moving)
        self.versions = [param._version for param in self.params]


class Constrained:
    """One part on a surface, on the move; the counterpart of `Motion`."""

    def __init__(
        self, params: Tensors, names: list[str], momenta: bool, state: Mapping[torch.Tensor, Any], surface: Surface
    ) -> None:
        self.has_momenta = momenta
        moves = [param.grad is not None or "momentum" in state.get(param, {}) for param in params]
        if surface.together:
            moves = [any(moves)] * len(params)
        self.waiting = [param for param, yes in zip(params, moves, strict=True) if not yes]
        chosen = [(param, name) for param, name, yes in zip(params, names, moves, strict=True) if yes]
        groups = stacks([param for param, _ in chosen], [name for _, name in chosen], surface)
        self.blocks = [Moving(mine, labels, surface, momenta, state) for mine, labels in groups]

    def stale(self, momenta: bool) -> bool:
        """Must the stacks be made anew: for a first gradient, another dtype, or a word that needs momenta now?"""
        if momenta and not self.has_momenta:
            return True
        return any(param.grad is not None for param in self.waiting) or not all(block.fits() for block in self.blocks)

    def begin(self, scalars: dict[str, Any], weight_decay: float, gradient: bool = True) -> None:
        """Take the gradients and the values of the fields."""
        for block in self.blocks:
            block.begin(weight_decay, gradient)
        self.live = [block for block in self.blocks if block.active]
        self.scalars = scalars
        counts = [len(b.active) if not b.joint else 1 for b in self.live]
        self.scalars["N"] = sum(n * b.surface.dimension(b.shape) for n, b in zip(counts, self.live, strict=True))

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        for block in self.live:
            block.g0 = block.g.clone()

    def run(self, beats: tuple[Beat, ...], before: float, now: float, name: tuple[int, int, int]) -> int:
        """Apply the letters in turn; returns how many draws have been named."""
        seed, step, draw = name
        for beat in beats:
            letter = LETTERS[beat.letter]
            self.scalars["h"] = beat.before * before + beat.now * now
            if letter.name == "L":
                self.limit(self.scalars["h"], (seed, step, draw))
            else:
                self.apply(letter, (seed, step, draw))
            draw += "R" in letter.needs
        for block in self.live:
            block.finish()
        return draw

    def apply(self, letter: Letter, name: tuple[int, int, int]) -> None:
        if letter.changes == ("ξ",):
            squares = [block.m.square().sum() for block in self.live if block.m is not None]
            self.scalars["p2"] = sum(squares[1:], squares[0])
            self.scalars["ξ"] = letter.map(*(self.scalars[s] for s in letter.needs))
            return
        terms = coefficients(letter, self.scalars)
        noisy = "R" in letter.needs and (terms is None or any("R" in sum_ for _, sum_ in terms))
        for block in self.live:
            block.apply(letter, self.scalars, name, noisy)

    def limit(self, h: float, name: tuple[int, int, int]) -> None:
        """L on a surface: what it is the limit of, B A O A with root²/2 = h and γ = ∞ (2.56)."""
        root, γ = math.sqrt(2 * h), self.scalars["γ"]
        for letter, duration in (("B", root), ("A", root / 2), ("O", root), ("A", root / 2)):
            self.scalars |= {"h": duration, "γ": math.inf}
            self.apply(LETTERS[letter], name)
        self.scalars["γ"] = γ
