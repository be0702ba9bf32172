"""Moving: the tensors of a part of one shape on a surface, with two engines for what they are to do.

Circles, spheres and matrices have compiled kernels, which take a whole word at once. Everything else, and whatever a
kernel does not know, is carried by the surface's own maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether import native
from tether.engine import host
from tether.engine.blocks import Lanes, Owned, decayed, still
from tether.engine.carried import Carried, spread
from tether.engine.commit import NOTED, Write, write
from tether.engine.flat import kept
from tether.engine.formulas import NONE
from tether.engine.pieces import WHOLE, Whole
from tether.engine.placed import Stack, replaced
from tether.engine.programs import Moves, Program
from tether.letters import Letter
from tether.noise import Normals
from tether.surfaces import Surface

__all__ = ["Moving"]

Tensors = list[torch.Tensor]
Name = tuple[int, int]  # of the draws of a step: seed and step


class Moving(Stack):
    """A stack on the move: its points and momenta, one tensor each, with views of them as the optimizer's state."""

    out: torch.Tensor
    moved: torch.Tensor | None = None
    carried: Carried | None = None
    fields: Mapping[str, torch.Tensor] = NONE  # those with a number for each entry, by their symbols

    def __init__(
        self,
        owners: Tensors,
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        surface: Surface,
        cut: Whole = WHOLE,
    ) -> None:
        super().__init__(owners, names, surface, lanes, cut)
        params = self.params
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
            for i, (owner, share) in enumerate(zip(self.owners(), self.shares(self.q), strict=True)):
                state[owner]["point"] = cut.keep(i, share)
        own = [key for key in ("momentum", "point") if key in state[self.owners()[0]]]
        self.kept = Owned(owners, state, {key: [state[owner][key] for owner in self.owners()] for key in own})
        self.kernel = self.surface.kernel(self.shape, self.dtype) if native.serves(self.dtype, self.device) else None
        if isinstance(self.kernel, native.Bounded):
            self.all_rows = self.kernel.times(self.rows)
            self.own = self.shares_of(self.q, self.p)
        if isinstance(self.kernel, native.Stiefel):
            self.out = torch.empty(whole, dtype=self.dtype, device=self.device)
            self.moved = None if self.p is None else self.like_gradients()
            self.results = [self.scattered(self.out, params)]
            if self.p is not None and self.moved is not None:
                self.results.append(write(self.p.copy_, self.moved))
        self.each = (1 if self.joint else len(params)) * self.surface.dimension(cut.shape(self.shape))
        self.g0: torch.Tensor | None = None

    def momenta(self, along: torch.Tensor, names: list[str], state: Mapping[torch.Tensor, Any]) -> torch.Tensor:
        """Momenta at rest, or those of the state, which become views of them."""
        p = torch.zeros_like(along) if self.surface.slack else self.like_gradients()
        for i, (owner, name, share) in enumerate(zip(self.owners(), names, self.shares(p), strict=False)):
            if "momentum" in state[owner]:
                saved = state[owner]["momentum"]
                if tuple(saved.shape) != self.cut.kept_shape(share.shape):
                    raise replaced(name, owner, "momentum", saved)
                share.copy_(self.cut.read(i, saved, share))
            state[owner]["momentum"] = self.cut.keep(i, share)
        return p

    def like_gradients(self) -> torch.Tensor:
        """Zeros that lie in memory as gradients do, and as the kernel wants them."""
        zeros = torch.zeros(len(self.owners()) * self.rows, *self.shape, dtype=self.wide, device=self.device)
        return self.surface.lift(zeros)

    def shares_of(self, q: torch.Tensor, p: torch.Tensor | None) -> tuple[Tensors, list[Any]]:
        """Points and momenta, parameter by parameter."""
        return self.shares(q), [None] * len(self.params) if p is None else self.shares(p)

    def begin(
        self,
        weight_decay: Any,
        gradient: bool = True,
        resting: Sequence[int] = (),
        given: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        """Take points and gradients, or what is `given` for them, as they are now; those without one stand still."""
        grads: list[torch.Tensor | None]
        if given is not None:
            grads = list(given)
        else:
            grads = self.cut.gradients(self.home) if self.cut.sharded else [param.grad for param in self.home]
        if resting:
            grads = [still(grad, resting) for grad in grads]
        self.grads: Tensors = [g for g in grads if g is not None] if gradient else []
        self.every = not gradient or len(self.grads) == len(grads)
        self.live = self.every or bool(self.grads and not self.joint)
        self.active, self.moving, self.degrees = range(len(grads)), self.params, self.each
        if not self.every:
            self.active = [i for i, g in enumerate(grads) if g is not None] if self.live else []  # type: ignore[assignment]
            self.moving = [self.params[i] for i in self.active]
            self.degrees = self.each // len(grads) * len(self.active) if self.live else 0
        if (type(weight_decay) is not float or weight_decay) and self.grads and self.live:
            self.grads = decayed(self.grads, self.moving, weight_decay)
        fast = self.every and native.all_plain((*self.moving, *self.grads), self.dtype)
        self.fast = self.kernel if fast else None
        self.waiting: list[Program] = []
        self.bad: torch.Tensor | None = None  # must all stay what it was, for a gradient that is not finite?
        self.at = self.params, self.q, self.p  # where the kernel acts: on these, or on copies of them
        self.ahead = False  # are points and momenta of this step in `out` and `moved`?
        self.watched = False
        if self.fast is None and self.live:
            self.load()

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        self.g0 = self.by_maps().g.clone()

    def by_maps(self) -> Carried:
        """Carry out what waits and go on by the surface's own maps."""
        if self.fast is not None:
            self.settle()
            self.fast = None
            self.load()
        assert self.carried is not None
        return self.carried

    def load(self) -> None:
        """Points, momenta and gradients in the form that the surface's maps take."""
        params, q, p = self.at
        if not self.surface.slack:
            q = self.surface.lift(self.out if self.ahead else self.gather(params))
            p = self.moved if self.ahead else p
        else:  # what somebody else has written to the parameters; the kernel sees to that by itself
            q = self.surface.follow(self.gather(params), q, self.eps)
        if not self.every:
            items = self.items
            q, p = q[items], None if p is None else p[items]
        g = self.surface.lift(self.gather(self.grads)) if self.grads else None
        self.carried = Carried(self.surface, q, p, g, self.g0, self.rows, self.seen, self.entries())

    def entries(self) -> dict[str, torch.Tensor]:
        """The fields with a number for each entry, as a stack."""
        found = {}
        for symbol, value in self.fields.items():
            value = value.to(self.device, host.wide(self.device))
            each = self.gather([value.expand(x.shape) for x in self.params])
            found[symbol] = each if self.every else each[self.items]
        return found

    @property
    def items(self) -> list[int]:
        """Where the tensors that move lie in the stack."""
        return [i * self.rows + j for i in self.active for j in range(self.rows)]

    def draw(self, target: str, draw: int, slot: int = 0) -> torch.Tensor:
        """Normals for all owners in one piece; each slot holds until its next draw."""
        if (target, slot) not in self.drawn:
            self.drawn[target, slot] = self.normals(self.shapes[target][1:])
        return self.drawn[target, slot].draw(*self.name, draw).view(self.shapes[target])

    def seen(self, target: str, draw: int) -> torch.Tensor:
        """Noise in the surrounding space, of the tensors that move."""
        R = self.draw(target, draw)
        R = R if self.surface.slack else self.surface.lift(R)
        return R if self.every else R[self.items]

    def take(self, program: Program, name: Name, ξ: torch.Tensor | None = None) -> None:
        """Let a program wait for the kernel, or carry it out by the surface's maps."""
        self.name = name
        moves = program.moves if self.fast is not None else None
        # after a step of the surrounding space momenta must be turned, which the kernels do not do
        if moves is not None and (self.p is None or self.surface.intrinsic or not moves.around):
            self.waiting.append(program)
            return
        carried = self.by_maps()
        for update in program.linear:
            carried.update(*update)

    def apply(self, letter: Letter, scalars: Mapping[str, Any], name: Name, draw: int) -> None:
        """A letter as it is written, where it is not linear."""
        self.name = name
        self.by_maps().apply(letter, scalars, draw)

    def watch(self) -> None:
        """Run every drift of this step back, too, and note which tensors do not return; geodesics always do."""
        if self.live and not self.surface.reversible:
            self.by_maps().watch(torch.finfo(self.params[0].dtype).eps)
            self.watched = True

    @property
    def astray(self) -> torch.Tensor | None:
        """Which tensors of the stack would not come back; None where nobody watched."""
        return self.carried.astray if self.watched and self.carried is not None else None

    def square(self) -> torch.Tensor:
        """pᵀp."""
        self.settle()
        p = self.moved if self.ahead else self.at[2]
        if self.fast is None:
            assert self.carried is not None
            self.carried.tighten()
            p = self.carried.m
        assert p is not None
        squares = p.square() / self.entries()["m"].to(p) if "m" in self.fields else p.square()
        if self.lanes.batched:
            return squares.reshape(len(p) // self.rows, self.rows, -1).sum((0, 2)).double()
        return squares.sum()

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

    def prepared(self) -> tuple[Moves, Tensors]:
        """What waits, as moves with their noise."""
        several = len(self.waiting) > 1
        program = Program([u for one in self.waiting for u in one.updates]) if several else self.waiting[0]
        self.waiting = []
        moves = program.moves
        assert moves is not None
        return moves, [self.draw(target, draw, slot) for slot, (target, draw) in enumerate(moves.noise)]

    def bounded(self) -> list[Write]:
        """Circles and spheres: what waits, as writes."""
        moves, noise = self.prepared()
        params, points, momenta = self.at
        assert isinstance(self.fast, native.Bounded)
        q, p = self.own if points is self.q else self.shares_of(points, momenta)
        kernel = self.fast if moves.each else self.all_rows  # of one replica, or of all at once
        writes: list[Write] = []
        for i, param in enumerate(params):
            lone = [R[i * self.rows : (i + 1) * self.rows] if self.lanes.batched else R[i] for R in noise]
            vectors = [param, q[i], p[i], self.grads[i] if self.grads else None, *lone]
            for j, ops in enumerate(moves.rows):
                own = [x if x is None or not moves.each else x[j] for x in vectors]
                writes.append(native.bounded_call(kernel, own[:4], own[4:], ops, known=True))
        return [*writes, write(NOTED, params)]

    def matrices(self, kernel: native.Stiefel) -> None:
        """The kernel's moves, into `out` and `moved`; matrices with too long a step by the surface's own maps."""
        moves, noise = self.prepared()
        θ = [self.out] if self.ahead else self.params
        p = self.moved if self.ahead else self.p
        momenta = [] if p is None else [p]
        hard = native.stiefel(kernel, θ, momenta, self.grads, noise, self.out, self.moved, moves.packed, moves.each)
        if hard:
            self.hard_ones(hard, θ, p, moves, noise)
        self.ahead = True

    def hard_ones(self, hard: list[int], θ: Tensors, p: torch.Tensor | None, moves: Moves, noise: Tensors) -> None:
        """The same moves for some of the matrices, by the maps of the surface."""
        lift = self.surface.lift
        x = lift((self.out if self.ahead else self.gather(θ))[hard])
        gradient = lift(self.gather(self.grads)[hard]) if self.grads else None
        other = Carried(self.surface, x, None if p is None else p[hard], gradient, None, 1, self.seen)
        for target, draw, *numbers in moves.ops:
            each = (spread(c, self.out, self.rows) for c in numbers)
            own, time, cg, cR = (c if isinstance(c, float) else c.flatten()[hard].view(-1, 1, 1) for c in each)
            if target == 1:
                other.drift(time)
                continue
            v: torch.Tensor = own * (other.x if target or other.m is None else other.m)
            v = v if gradient is None else v + cg * gradient
            v = v + cR * lift(noise[draw])[hard] if draw >= 0 else v
            if target:
                other.arrive(v)
            else:
                other.m = v
        self.out[hard] = self.surface.lower(other.x, self.shape)
        if self.moved is not None and other.m is not None:
            self.moved[hard] = self.surface.tangent(other.x, other.m)

    def writes(self) -> list[Write]:
        """What the commit must do; all that can fail is computed here."""
        if isinstance(self.fast, native.Bounded) and self.waiting and self.at[0] is self.params:
            return self.bounded()
        self.settle()
        if self.fast is None:
            return self.written()
        if self.ahead:
            return self.results
        params, q, p = self.at
        if params is self.params:
            return []
        targets = [*self.params, self.q, *([] if self.p is None else [self.p])]
        return [write(torch._foreach_copy_, targets, [*params, q, *([] if p is None else [p])])]

    def written(self) -> list[Write]:
        """Points and momenta as the surface's maps have left them, as writes."""
        carried = self.carried
        assert carried is not None
        carried.tighten()
        writes: list[Write] = []
        pairs = [(self.q, carried.x)] if self.surface.slack else []
        pairs += [(self.p, carried.m)] if self.p is not None and carried.m is not None else []
        index = None if self.every else host.indices(self.items, self.device)
        for target, value in pairs:
            value = self.held(target if index is None else target[index], value)
            whole = write(target.copy_, value) if index is None else write(target.index_copy_, 0, index, value)
            writes.append(whole)
        lowered = self.surface.lower(carried.x, self.shape)
        if self.bad is not None:
            lowered = self.held(self.gather(self.moving), lowered)
        writes.append(self.scattered(lowered, self.moving))
        return writes

    def held(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """The new values of a stack, but the old ones where the gradient is bad."""
        bad = self.bad
        if bad is not None and bad.dim():
            bad = bad.repeat(len(new) // self.rows).view(-1, *[1] * (new.dim() - 1))
        return kept(bad, old, new)
