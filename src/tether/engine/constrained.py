"""Constrained motion: how a word's letters act on a part that lives on a surface.

A is the surface's own drift. A letter that changes momenta sees the gradient and the noise through Π, which leaves p in
the cotangent space because the letter is linear. A letter that moves the parameters without momenta (X) is taken in
the surrounding space and projected. Every word works on every surface that way; nothing here knows which it is.

Circles and spheres have a compiled path as well, which takes a whole word through memory once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether import native
from tether.engine.blocks import Kept, Lanes, decayed, still
from tether.engine.placed import Stack, replaced, stacks
from tether.engine.sums import Terms, coefficients, is_number, per_replica
from tether.letters import LETTERS, Letter, sqrt
from tether.noise import Normals
from tether.surfaces import Surface
from tether.words import Beat

__all__ = ["Constrained"]

Tensors = list[torch.Tensor]
Name = tuple[int, int, int]  # of a draw: seed, step, number of the draw


class Moving(Stack):
    """A stack on the move: its points and momenta, one tensor each, with views of them as the optimizer's state."""

    def __init__(
        self,
        params: Tensors,
        names: list[str],
        surface: Surface,
        momenta: bool,
        state: Mapping[torch.Tensor, Any],
        lanes: Lanes,
    ) -> None:
        super().__init__(params, names, surface, lanes)
        self.q = self.point(state)
        around = self.surface.embed(self.q)
        along = self.surface.tangent(self.q, torch.zeros_like(around))
        # noise for steps of the surrounding space and for momenta; on a curve one number along it will do
        whole = torch.Size((len(self.q), *self.shape))
        noise = {"θ": around.shape, "p": along.shape if self.surface.intrinsic else around.shape}
        self.shapes = noise if self.surface.slack else {"θ": whole, "p": whole}
        self.drawn: dict[tuple[str, int], Normals] = {}
        self.p: torch.Tensor | None = None
        if momenta:
            self.p = torch.zeros_like(along) if self.surface.slack else self.like_gradients()
            for owner, name, share in zip(self.owners(), names, self.shares(self.p), strict=False):
                if "momentum" in state[owner]:
                    if state[owner]["momentum"].shape != share.shape:
                        raise replaced(name, owner, "momentum", state[owner]["momentum"])
                    share.copy_(state[owner]["momentum"])
                state[owner]["momentum"] = share
        if self.surface.slack:
            self.q = self.q.contiguous()
            for owner, share in zip(self.owners(), self.shares(self.q), strict=True):
                state[owner]["point"] = share
        own = [key for key in ("momentum", "point") if key in state[self.owners()[0]]]
        self.kept = Kept(params, state, {key: [state[owner][key] for owner in self.owners()] for key in own})
        self.kernel = self.surface.kernel(self.shape, self.dtype) if native.serves(self.dtype, self.device) else None
        if isinstance(self.kernel, native.Bounded):
            self.whole = self.kernel.times(self.rows)
        if isinstance(self.kernel, native.Stiefel):
            self.out = torch.empty(whole, dtype=self.dtype, device=self.device)
            self.moved = None if self.p is None else self.like_gradients()
        self.g0: torch.Tensor | None = None

    out: torch.Tensor
    moved: torch.Tensor | None = None

    def like_gradients(self) -> torch.Tensor:
        """Zeros that lie in memory as gradients do, and as the kernel wants them."""
        zeros = torch.zeros(len(self.owners()) * self.rows, *self.shape, dtype=self.wide, device=self.device)
        return self.surface.lift(zeros)

    def begin(self, weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take points and gradients as they are now; parameters without a gradient stand still."""
        has = [param.grad is not None or not gradient for param in self.params]
        self.active = [] if self.joint and not all(has) else [i for i, yes in enumerate(has) if yes]
        self.every = len(self.active) == len(self.params)
        self.items = [i * self.rows + j for i in self.active for j in range(self.rows)]
        self.moving = [self.params[i] for i in self.active]
        self.grads: Tensors = []
        if self.active and gradient:
            self.grads = [g for g in (still(param.grad, resting) for param in self.moving) if g is not None]
            if not is_number(weight_decay, 0):
                self.grads = decayed(self.grads, self.moving, weight_decay)
        fast = self.every and native.all_plain((*self.moving, *self.grads), self.dtype)
        self.fast = self.kernel if fast else None
        self.updates: list[tuple[native.Op, int]] = []
        self.force: torch.Tensor | None = None
        self.g: Any = None
        self.ahead = False  # are points and momenta of this step in `out` and `moved`, not yet written?
        self.loose = False  # have momenta a part across Σ that the next drift will absorb?
        if self.fast is None and self.active:
            self.load()

    def notice(self) -> None:
        """Let points follow what somebody else has written to the parameters; the kernel does so by itself."""
        q = self.surface.follow(self.gather(self.params), self.q, self.eps)
        if q is not self.q:
            self.q.copy_(q)

    def load(self) -> None:
        """Points, momenta and gradients in the form that the surface's maps take."""
        if not self.surface.slack:
            self.q = self.surface.lift(self.out if self.ahead else self.gather(self.params))
        else:
            self.notice()
        p = self.moved if self.ahead else self.p
        self.x = self.q if self.every else self.q[self.items]
        self.m = p if self.every or p is None else p[self.items]
        if self.grads:
            self.g = self.surface.lift(self.gather(self.grads))

    def draw(self, target: str, name: Name, buffer: int = 0) -> torch.Tensor:
        """Normals for all owners in one piece; each buffer holds until its next draw."""
        if (target, buffer) not in self.drawn:
            self.drawn[target, buffer] = self.normals(math.prod(self.shapes[target][1:]))
        return self.drawn[target, buffer].draw(*name).view(self.shapes[target])

    def apply(self, letter: Letter, terms: Mapping[str, Terms] | None, scalars: dict[str, Any], name: Name) -> None:
        """One letter, given by its coefficients where it is linear."""
        if self.fast is not None:
            op = _op(letter, terms, scalars)
            if op is not None and len(self.updates) < native.DRAWS:
                self.updates.append((op, name[2]))
                self.name = name
                return
            self.settle()
            self.load()
            self.fast = None
        surface = self.surface
        if letter.name == "A":
            assert self.m is not None
            h = self.spread(scalars["h"], self.m)
            self.x, self.m = surface.drift(self.x, self.m, h)
            self.force, self.loose = None, self.loose and not (isinstance(h, float) and h != 0)
            return
        target = "θ" if letter.moves else "p"
        noisy = "R" in letter.needs and (terms is None or any("R" in sum_ for sum_ in terms.values()))
        R: Any = 0.0
        if noisy:
            R = self.draw(target, name)
            R = R if surface.slack else surface.lift(R)
            R = R if self.every else R[self.items]
        if letter.moves:
            vectors = {"θ": surface.embed(self.x), "p": self.m, "g": self.g, "g0": self.g0, "R": R}
            point = self.evaluate(letter, terms, vectors, scalars, "θ")
            self.x = surface.project(point, self.x)
            self.force = None
            return
        if surface.absorbs:
            self.force, self.loose = self.g, self.loose or noisy or "g" in letter.needs
        else:
            if "g" in letter.needs and self.force is None:
                self.force = surface.tangent(self.x, self.g)
            if noisy and not surface.intrinsic:
                R = surface.tangent(self.x, R)
        self.m = self.evaluate(letter, terms, {"p": self.m, "g": self.force, "R": R}, scalars, "p")

    def spread(self, c: Any, like: torch.Tensor) -> Any:
        """A number, or one for each replica so that it acts on a stack like this one."""
        if not per_replica(c):
            return float(c)
        each = c.to(like.device, like.dtype).repeat(len(like) // self.rows)
        return each.view(-1, *[1] * (like.dim() - 1))

    def evaluate(
        self,
        letter: Letter,
        terms: Mapping[str, Terms] | None,
        vectors: Mapping[str, Any],
        scalars: Mapping[str, Any],
        of: str,
    ) -> torch.Tensor:
        """What the letter makes of θ or p: by its coefficients, or as it is written."""
        like = vectors[of]
        if terms is None:
            spread = {s: self.spread(c, like) if per_replica(c) else c for s, c in scalars.items()}
            values = {**spread, **vectors}
            result = letter.map(*(values[s] for s in letter.needs))
            return result[letter.changes.index(of)] if len(letter.changes) > 1 else result
        total: torch.Tensor | None = None
        for symbol, c in terms[of].items():
            c = self.spread(c, like)
            if total is None:
                total = vectors[symbol] if isinstance(c, float) and c == 1 else c * vectors[symbol]
            elif isinstance(c, float):
                total = torch.add(total, vectors[symbol], alpha=c)
            else:
                total = total + c * vectors[symbol]
        return torch.zeros_like(like) if total is None else total

    def tighten(self) -> None:
        """Momenta along Σ."""
        if self.loose:
            assert self.m is not None
            self.m, self.loose = self.surface.tangent(self.x, self.m), False

    def settle(self) -> None:
        """Carry out what waits for the kernel."""
        if not self.updates:
            return
        seed, step, _ = self.name
        ops: list[native.Op] = []
        noise: Tensors = []
        for op, number in self.updates:
            if not is_number(op[5], 0):
                noise.append(self.draw("θ" if op[0] == 2 else "p", (seed, step, number), len(noise)))
                op = (op[0], len(noise) - 1, *op[2:])
            ops.append(op)
        self.updates = []
        if isinstance(self.fast, native.Stiefel):
            self.settle_matrices(self.fast, ops, noise)
            return
        assert self.fast is not None
        each = native.replicas_in(ops)
        packed = [native.pack(ops)] if not each else native.rows_of(native.pack_each(ops, each), each)
        kernel = self.fast if each else self.whole  # of one replica, or of all at once
        q, p = self.shares(self.q), [None] * len(self.params) if self.p is None else self.shares(self.p)
        draws = [self.shares(R) for R in noise]
        for i, param in enumerate(self.params):
            g = self.grads[i] if self.grads else None
            vectors = [param, q[i], p[i], g, *(R[i] for R in draws)]
            for j, ops_of in enumerate(packed):
                own = [x if x is None or not each else x[j] for x in vectors]
                native.bounded(kernel, own[:4], own[4:], ops_of, known=True)
        torch.autograd.graph.increment_version(self.params)

    def settle_matrices(self, kernel: native.Stiefel, ops: list[native.Op], noise: Tensors) -> None:
        """The kernel's moves, into `out` and `moved`; matrices with too long a step by the surface's own maps."""
        surface = self.surface
        θ, g = self.pieces(self.params), self.pieces(self.grads) if self.grads else []
        θ = list(self.out) if self.ahead else θ
        p = self.moved if self.ahead else self.p
        momenta = [] if p is None else list(p)
        each = native.replicas_in(ops)
        packed = native.pack_each(ops, each) if each else native.pack(ops)
        hard = native.stiefel(kernel, θ, momenta, g, noise, self.out, self.moved, packed, each)
        if hard:
            x, m = surface.lift(torch.stack([θ[i].detach() for i in hard])), None if p is None else p[hard]
            gradient = surface.lift(torch.stack([g[i] for i in hard])) if g else None
            for target, draw, *numbers in ops:
                each_of = (self.spread(c, self.out) for c in numbers)
                own, h, cg, cR = (c if isinstance(c, float) else c.flatten()[hard].view(-1, 1, 1) for c in each_of)
                if target == 1 and m is not None:
                    x, m = surface.drift(x, m, h)
                    continue
                v: torch.Tensor = own * (x if target or m is None else m)
                v = v if gradient is None else v + cg * gradient
                v = v + cR * surface.lift(noise[draw])[hard] if draw >= 0 else v
                if target:
                    x = surface.project(v, x)
                else:
                    m = v
            self.out[hard] = surface.lower(x, self.shape)
            if self.moved is not None and m is not None:
                self.moved[hard] = surface.tangent(x, m)
        self.ahead = True

    def square(self) -> torch.Tensor:
        """pᵀp."""
        self.settle()
        if self.fast is None:
            self.tighten()
        p = self.m if self.fast is None else self.moved if self.ahead else self.p
        assert p is not None
        if self.lanes.batched:
            return p.reshape(len(p) // self.rows, self.rows, -1).square().sum((0, 2)).double()
        return p.square().sum()

    def pieces(self, tensors: Tensors) -> Tensors:
        """Single matrices of all replicas."""
        return [x[j] for x in tensors for j in range(self.rows)] if self.lanes.batched else tensors

    def finish(self) -> None:
        """Write points and momenta back."""
        if self.fast is None:
            which: Any = slice(None) if self.every else self.items
            if self.surface.slack:
                self.q[which] = self.x
            if self.p is not None and self.m is not None:
                self.p[which] = self.m
            self.scatter(self.surface.lower(self.x, self.shape), self.moving)
        elif self.ahead:
            self.scatter(self.out, self.params)
            if self.p is not None and self.moved is not None:
                self.p.copy_(self.moved)


def _op(letter: Letter, terms: Mapping[str, Terms] | None, scalars: Mapping[str, Any]) -> native.Op | None:
    """A letter in the kernel's form, or None where the kernel does not know it."""
    if letter.name == "A":
        h = scalars["h"]
        return (1, -1, 1.0, h if per_replica(h) else float(h), 0.0, 0.0)
    if terms is None or len(terms) != 1:
        return None
    ((target, sum_),) = terms.items()
    numbers = (sum_.get(s, 0.0) for s in (target, "g", "R"))
    own, cg, cR = (c if per_replica(c) else float(c) for c in numbers)
    if target == "p" and sum_.keys() <= {"p", "g", "R"}:
        return (0, -1, own, 0.0, cg, cR)
    if target == "θ" and sum_.keys() <= {"θ", "g", "R"} and is_number(own, 1):
        return (2, -1, 1.0, 0.0, cg, cR)
    return None


class Constrained:
    """One part on a surface, on the move; the counterpart of `Motion`.

    `run` only computes, where a step can be too long for the surface; `finish` writes.
    """

    def __init__(
        self,
        params: Tensors,
        names: list[str],
        momenta: bool,
        state: Mapping[torch.Tensor, Any],
        surface: Surface,
        lanes: Lanes,
    ) -> None:
        self.has_momenta, self.fallible = momenta, surface.absorbs
        moves = [param.grad is not None or "momentum" in state.get(param, {}) for param in params]
        if surface.together:
            moves = [any(moves)] * len(params)
        self.waiting = [param for param, yes in zip(params, moves, strict=True) if not yes]
        chosen = [(param, name) for param, name, yes in zip(params, names, moves, strict=True) if yes]
        groups = stacks([param for param, _ in chosen], [name for _, name in chosen], surface)
        self.blocks = [Moving(mine, labels, surface, momenta, state, lanes) for mine, labels in groups]
        self.degrees = [block.surface.dimension(block.shape) for block in self.blocks]

    def stale(self, momenta: bool) -> bool:
        """Must the stacks be made anew: for a first gradient, another dtype, or a word that needs momenta now?"""
        if momenta and not self.has_momenta:
            return True
        if any(param.grad is not None for param in self.waiting):
            return True
        return not all(block.kept.still() for block in self.blocks)

    def begin(
        self, scalars: dict[str, Any], weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()
    ) -> None:
        """Take the gradients and the values of the fields."""
        for block in self.blocks:
            block.begin(weight_decay, gradient, resting)
        self.live = [block for block in self.blocks if block.active]
        self.scalars = scalars
        moving = [0 if not block.active else 1 if block.joint else len(block.active) for block in self.blocks]
        self.scalars["N"] = sum(n * degrees for n, degrees in zip(moving, self.degrees, strict=True))

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        for block in self.live:
            if block.fast is not None:
                block.load()
                block.fast = None
            block.g0 = block.g.clone()

    def run(self, beats: tuple[Beat, ...], before: float, now: float, name: Name) -> int:
        """Apply the letters in turn; returns how many draws have been named."""
        seed, step, draw = name
        if not self.live:
            return draw
        for beat in beats:
            letter = LETTERS[beat.letter]
            self.scalars["h"] = beat.before * before + beat.now * now
            if letter.name == "L":
                self.limit(self.scalars["h"], (seed, step, draw))
            else:
                self.apply(letter, (seed, step, draw))
            draw += "R" in letter.needs
        for block in self.live:  # what may fail comes before anything is written
            if block.fast is None:
                block.tighten()
            elif self.fallible:
                block.settle()
        return draw

    def finish(self) -> None:
        """Write points and momenta back."""
        for block in self.live:
            block.settle()
            block.finish()

    def apply(self, letter: Letter, name: Name) -> None:
        """One letter on all stacks."""
        if "p2" in letter.needs:
            squares = [block.square() for block in self.live]
            self.scalars["p2"] = sum(squares[1:], squares[0])
        if letter.changes == ("ξ",):
            self.scalars["ξ"] = letter.map(*(self.scalars[s] for s in letter.needs))
            return
        terms = coefficients(letter, self.scalars)
        for block in self.live:
            block.apply(letter, None if terms is None else dict(terms), self.scalars, name)

    def limit(self, h: Any, name: Name) -> None:
        """L on a surface: what it is the limit of, B A O A with root²/2 = h and γ = ∞ (2.56)."""
        root, γ = sqrt(2 * h), self.scalars["γ"]
        for letter, duration in (("B", root), ("A", root / 2), ("O", root), ("A", root / 2)):
            self.scalars |= {"h": duration, "γ": math.inf}
            self.apply(LETTERS[letter], name)
        self.scalars["γ"] = γ
