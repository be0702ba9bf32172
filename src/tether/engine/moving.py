"""Moving: the tensors of a part of one shape on a surface, taken through a word.

A letter that moves the parameters along momenta is the surface's own drift. A letter that changes momenta sees the
gradient and the noise through Π, which leaves p in the cotangent space because the letter is linear. Any other step of
the parameters is taken in the surrounding space and projected, and momenta are turned into the new tangent space.
Every word works on every surface that way; nothing here knows which it is.

Circles, spheres and matrices have compiled kernels as well, which take a whole word at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether import native
from tether.engine.blocks import Kept, Lanes, decayed, still
from tether.engine.commit import Write, noted, write
from tether.engine.placed import Stack, replaced
from tether.engine.programs import Program
from tether.engine.sums import Terms, is_number, per_replica
from tether.letters import Letter
from tether.noise import Normals
from tether.surfaces import Surface

__all__ = ["Moving"]

Tensors = list[torch.Tensor]
Name = tuple[int, int]  # of the draws of a step: seed and step


class Moving(Stack):
    """A stack on the move: its points and momenta, one tensor each, with views of them as the optimizer's state."""

    def __init__(
        self,
        params: Tensors,
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        surface: Surface,
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
        self.p = self.momenta(along, names, state) if momenta else None
        if self.surface.slack:
            self.q = self.q.contiguous()
            for owner, share in zip(self.owners(), self.shares(self.q), strict=True):
                state[owner]["point"] = share
        own = [key for key in ("momentum", "point") if key in state[self.owners()[0]]]
        self.kept = Kept(params, state, {key: [state[owner][key] for owner in self.owners()] for key in own})
        self.kernel = self.surface.kernel(self.shape, self.dtype) if native.serves(self.dtype, self.device) else None
        if isinstance(self.kernel, native.Bounded):
            self.all_rows = self.kernel.times(self.rows)
        if isinstance(self.kernel, native.Stiefel):
            self.out = torch.empty(whole, dtype=self.dtype, device=self.device)
            self.moved = None if self.p is None else self.like_gradients()
        self.g0: torch.Tensor | None = None

    out: torch.Tensor
    moved: torch.Tensor | None = None

    def momenta(self, along: torch.Tensor, names: list[str], state: Mapping[torch.Tensor, Any]) -> torch.Tensor:
        """Momenta at rest, or those of the state, which become views of them."""
        p = torch.zeros_like(along) if self.surface.slack else self.like_gradients()
        for owner, name, share in zip(self.owners(), names, self.shares(p), strict=False):
            if "momentum" in state[owner]:
                if state[owner]["momentum"].shape != share.shape:
                    raise replaced(name, owner, "momentum", state[owner]["momentum"])
                share.copy_(state[owner]["momentum"])
            state[owner]["momentum"] = share
        return p

    def like_gradients(self) -> torch.Tensor:
        """Zeros that lie in memory as gradients do, and as the kernel wants them."""
        zeros = torch.zeros(len(self.owners()) * self.rows, *self.shape, dtype=self.wide, device=self.device)
        return self.surface.lift(zeros)

    def fits(self) -> bool:
        """Are parameters, points and momenta still those the stack was made for?"""
        return self.kept.still()

    def begin(self, weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take points and gradients as they are now; parameters without a gradient stand still."""
        has = [param.grad is not None or not gradient for param in self.params]
        self.active = [] if self.joint and not all(has) else [i for i, yes in enumerate(has) if yes]
        self.live, self.every = bool(self.active), len(self.active) == len(self.params)
        self.items = [i * self.rows + j for i in self.active for j in range(self.rows)]
        self.moving = [self.params[i] for i in self.active]
        self.grads: Tensors = []
        if self.active and gradient:
            self.grads = [g for g in (still(param.grad, resting) for param in self.moving) if g is not None]
            if not is_number(weight_decay, 0):
                self.grads = decayed(self.grads, self.moving, weight_decay)
        fast = self.every and native.all_plain((*self.moving, *self.grads), self.dtype)
        self.fast = self.kernel if fast else None
        self.waiting: list[tuple[native.Op, int]] = []
        self.at = self.params, self.q, self.p  # where the kernel acts: on these, or on copies of them
        self.force: torch.Tensor | None = None
        self.g: Any = None
        self.ahead = False  # are points and momenta of this step in `out` and `moved`?
        self.loose = False  # have momenta a part across Σ that the next drift will absorb?
        if self.fast is None and self.active:
            self.load()

    @property
    def degrees(self) -> int:
        """Degrees of freedom of what moves."""
        count = 0 if not self.active else 1 if self.joint else len(self.active)
        return count * self.surface.dimension(self.shape)

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        self.leave_kernel()
        self.g0 = self.g.clone()

    def leave_kernel(self) -> None:
        """Carry out what waits and go on by the surface's own maps."""
        if self.fast is not None:
            self.settle()
            self.fast = None
            self.load()

    def load(self) -> None:
        """Points, momenta and gradients in the form that the surface's maps take."""
        params, q, p = self.at
        if not self.surface.slack:
            q = self.surface.lift(self.out if self.ahead else self.gather(params))
            p = self.moved if self.ahead else p
        else:  # what somebody else has written to the parameters; the kernel sees to that by itself
            q = self.surface.follow(self.gather(params), q, self.eps)
        self.x = q if self.every else q[self.items]
        self.m = p if self.every or p is None else p[self.items]
        if self.grads:
            self.g = self.surface.lift(self.gather(self.grads))

    def draw(self, target: str, name: Name, draw: int, slot: int = 0) -> torch.Tensor:
        """Normals for all owners in one piece; each slot holds until its next draw."""
        if (target, slot) not in self.drawn:
            self.drawn[target, slot] = self.normals(math.prod(self.shapes[target][1:]))
        return self.drawn[target, slot].draw(*name, draw).view(self.shapes[target])

    def take(self, program: Program, name: Name) -> None:
        """Let a program wait for the kernel, or carry it out by the surface's maps."""
        self.name = name
        if self.fast is not None:
            moves = program.moves
            # after a step of the surrounding space momenta must be turned, which the kernels do not do
            turns = self.p is not None and not self.surface.intrinsic and any(op[0] == 2 for op, _ in moves or ())
            if moves is not None and not turns and len(self.waiting) + len(moves) <= native.DRAWS:
                self.waiting += moves
                return
            self.leave_kernel()
        for symbol, terms, draw in program.updates:
            if symbol == "θ":
                self.step(terms, draw)
            else:
                self.kick(terms, draw)

    def step(self, terms: Terms, draw: int) -> None:
        """θ ← a sum: along momenta by the surface's drift, else in the surrounding space and projected."""
        if terms.keys() == {"θ", "p"} and is_number(terms["θ"], 1):
            assert self.m is not None
            h = self.spread(terms["p"], self.m)
            self.x, self.m = self.surface.drift(self.x, self.m, h)
            self.force, self.loose = None, self.loose and not (isinstance(h, float) and h != 0)
            return
        R = self.seen("θ", draw) if "R" in terms else 0.0
        vectors = {"θ": self.surface.embed(self.x), "p": self.m, "g": self.g, "g0": self.g0, "R": R}
        self.arrive(self.total(terms, vectors, "θ"))

    def arrive(self, point: torch.Tensor) -> None:
        """The step led to a point near Σ."""
        self.x, self.force = self.surface.project(point, self.x), None
        if self.m is not None:
            self.m, self.loose = self.surface.turn(self.x, self.m), False

    def kick(self, terms: Terms, draw: int) -> None:
        """p ← a sum, with gradient and noise seen along Σ."""
        R: Any = self.seen("p", draw) if "R" in terms else 0.0
        if self.surface.absorbs:
            self.force, self.loose = self.g, self.loose or bool({"g", "R"} & terms.keys())
        else:
            self.find_force("g" in terms)
            if "R" in terms and not self.surface.intrinsic:
                R = self.surface.tangent(self.x, R)
        assert self.m is not None
        self.m = self.total(terms, {"p": self.m, "g": self.force, "R": R}, "p")

    def find_force(self, needed: bool) -> None:
        if needed and self.force is None:
            self.force = self.surface.tangent(self.x, self.g)

    def seen(self, target: str, draw: int) -> torch.Tensor:
        """Noise in the surrounding space, of the tensors that move."""
        R = self.draw(target, self.name, draw)
        R = R if self.surface.slack else self.surface.lift(R)
        return R if self.every else R[self.items]

    def apply(self, letter: Letter, scalars: Mapping[str, Any], name: Name, draw: int) -> None:
        """A letter as it is written, where it is not linear."""
        self.name = name
        self.leave_kernel()
        target = "θ" if letter.moves else "p"
        R: Any = self.seen(target, draw) if "R" in letter.needs else 0.0
        g = self.g
        if not letter.moves:
            self.find_force("g" in letter.needs)
            g = self.force
            if "R" in letter.needs and not self.surface.intrinsic:
                R = self.surface.tangent(self.x, R)
        θ = self.surface.embed(self.x)
        like = θ if letter.moves else self.m
        assert like is not None
        spread = {s: self.spread(c, like) if per_replica(c) else c for s, c in scalars.items()}
        values = {**spread, "θ": θ, "p": self.m, "g": g, "g0": self.g0, "R": R}
        result = letter.map(*(values[s] for s in letter.needs))
        results = dict(zip(letter.changes, result if len(letter.changes) > 1 else (result,), strict=True))
        if "p" in results:
            self.m = results["p"]
        if "θ" in results:
            self.arrive(results["θ"])

    def spread(self, c: Any, like: torch.Tensor) -> Any:
        """A number, or one for each replica so that it acts on a stack like this one."""
        if not per_replica(c):
            return float(c)
        each = c.to(like.device, like.dtype).repeat(len(like) // self.rows)
        return each.view(-1, *[1] * (like.dim() - 1))

    def total(self, terms: Terms, vectors: Mapping[str, Any], of: str) -> torch.Tensor:
        """The sum of these terms."""
        like, total = vectors[of], None
        for symbol, c in terms.items():
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
        if self.loose and self.m is not None:
            self.m, self.loose = self.surface.tangent(self.x, self.m), False

    def square(self) -> torch.Tensor:
        """pᵀp."""
        self.settle()
        if self.fast is None:
            self.tighten()
        p = self.m if self.fast is None else self.moved if self.ahead else self.at[2]
        assert p is not None
        if self.lanes.batched:
            return p.reshape(len(p) // self.rows, self.rows, -1).square().sum((0, 2)).double()
        return p.square().sum()

    def settle(self) -> None:
        """Carry out what waits for the kernel, on copies."""
        if not self.waiting:
            return
        if isinstance(self.fast, native.Stiefel):
            self.matrices(self.fast)
            return
        if self.at[0] is self.params:
            params, q, p = self.at
            self.at = [x.detach().clone() for x in params], q.clone(), None if p is None else p.clone()
        for one in self.bounded():
            one()

    def prepared(self) -> tuple[list[native.Op], Tensors]:
        """What waits, with its noise."""
        ops: list[native.Op] = []
        noise: Tensors = []
        for op, number in self.waiting:
            if not is_number(op[5], 0):
                noise.append(self.draw("θ" if op[0] == 2 else "p", self.name, number, len(noise)))
                op = (op[0], len(noise) - 1, *op[2:])
            ops.append(op)
        self.waiting = []
        return ops, noise

    def bounded(self) -> list[Write]:
        """Circles and spheres: what waits, as writes."""
        ops, noise = self.prepared()
        params, points, momenta = self.at
        assert isinstance(self.fast, native.Bounded)
        each = native.replicas_in(ops)
        packed = [native.pack(ops)] if not each else native.rows_of(native.pack_each(ops, each), each)
        kernel = self.fast if each else self.all_rows  # of one replica, or of all at once
        q, p = self.shares(points), [None] * len(params) if momenta is None else self.shares(momenta)
        draws = [self.shares(R) for R in noise]
        writes: list[Write] = []
        for i, param in enumerate(params):
            g = self.grads[i] if self.grads else None
            vectors = [param, q[i], p[i], g, *(R[i] for R in draws)]
            for j, ops_of in enumerate(packed):
                own = [x if x is None or not each else x[j] for x in vectors]
                writes.append(native.bounded_call(kernel, own[:4], own[4:], ops_of, known=True))
        return [*writes, noted(params)]

    def matrices(self, kernel: native.Stiefel) -> None:
        """The kernel's moves, into `out` and `moved`; matrices with too long a step by the surface's own maps."""
        ops, noise = self.prepared()
        θ, g = self.pieces(self.params), self.pieces(self.grads) if self.grads else []
        θ = list(self.out) if self.ahead else θ
        p = self.moved if self.ahead else self.p
        each = native.replicas_in(ops)
        packed = native.pack_each(ops, each) if each else native.pack(ops)
        momenta = [] if p is None else list(p)
        hard = native.stiefel(kernel, θ, momenta, g, noise, self.out, self.moved, packed, each)
        if hard:
            self.by_maps(hard, θ, p, g, ops, noise)
        self.ahead = True

    def by_maps(
        self, hard: list[int], θ: Tensors, p: torch.Tensor | None, g: Tensors, ops: list[native.Op], noise: Tensors
    ) -> None:
        """The same moves for some of the matrices, by the maps of the surface."""
        lift = self.surface.lift
        other = Moving.__new__(Moving)
        other.surface, other.rows, other.every, other.force, other.loose = self.surface, 1, True, None, False
        other.x, other.g0 = lift(torch.stack([θ[i].detach() for i in hard])), None
        other.m = None if p is None else p[hard]
        other.g = lift(torch.stack([g[i] for i in hard])) if g else None
        for target, draw, *numbers in ops:
            spread = (self.spread(c, self.out) for c in numbers)
            own, time, cg, cR = (c if isinstance(c, float) else c.flatten()[hard].view(-1, 1, 1) for c in spread)
            if target == 1:
                assert other.m is not None
                other.x, other.m = self.surface.drift(other.x, other.m, time)
                continue
            v: torch.Tensor = own * (other.x if target or other.m is None else other.m)
            v = v if other.g is None else v + cg * other.g
            v = v + cR * lift(noise[draw])[hard] if draw >= 0 else v
            if target:
                other.arrive(v)
            else:
                other.m = v
        self.out[hard] = self.surface.lower(other.x, self.shape)
        if self.moved is not None and other.m is not None:
            self.moved[hard] = self.surface.tangent(other.x, other.m)

    def pieces(self, tensors: Tensors) -> Tensors:
        """Single matrices of all replicas."""
        return [x[j] for x in tensors for j in range(self.rows)] if self.lanes.batched else tensors

    def writes(self) -> list[Write]:
        """What the commit must do; all that can fail is computed here."""
        if isinstance(self.fast, native.Bounded) and self.waiting and self.at[0] is self.params:
            return self.bounded()
        self.settle()
        if self.fast is None:
            return self.written()
        if self.ahead:
            pair = [] if self.p is None or self.moved is None else [write(self.p.copy_, self.moved)]
            return [self.scattered(self.out, self.params), *pair]
        params, q, p = self.at
        if params is self.params:
            return []
        targets = [*self.params, self.q, *([] if self.p is None else [self.p])]
        return [write(torch._foreach_copy_, targets, [*params, q, *([] if p is None else [p])])]

    def written(self) -> list[Write]:
        """Points and momenta as the surface's maps have left them, as writes."""
        self.tighten()
        writes: list[Write] = []
        pairs = [(self.q, self.x)] if self.surface.slack else []
        pairs += [(self.p, self.m)] if self.p is not None and self.m is not None else []
        index = None if self.every else torch.tensor(self.items, device=self.device)
        for target, value in pairs:
            whole = write(target.copy_, value) if index is None else write(target.index_copy_, 0, index, value)
            writes.append(whole)
        writes.append(self.scattered(self.surface.lower(self.x, self.shape), self.moving))
        return writes
