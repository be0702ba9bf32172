"""Blocks: the free tensors of a part that share device and dtype, and three engines for what they are to do.

The compiled kernel takes a whole word in one pass over memory; torch takes a few fused calls; any letter can run tensor
by tensor, which is the reference that the tests compare the two with. Programs wait until the commit and then run in
place. What must be known earlier (pᵀp, a letter that is not linear) is computed on copies.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from tether import native
from tether.engine.commit import NOTED, Write, write
from tether.engine.interpreter import in_pieces
from tether.engine.programs import Program
from tether.engine.sums import Scalar, per_replica
from tether.letters import Letter
from tether.noise import Normals
from tether.noise import keys as noise_keys

__all__ = ["Block", "Kept", "Lanes", "decayed", "still"]

Tensors = list[torch.Tensor]
T = TypeVar("T")
ALIGN = 16  # elements; every tensor starts on a cache line of the flat buffer


class Lanes(NamedTuple):
    """Which replicas the tensors of a part hold: `rows` along their first axis if they are batched."""

    rows: int = 1
    numbers: tuple[int, ...] | None = None  # their own, which name their noise
    batched: bool = False


class Kept:
    """Parameters and their state as a body took them over, to notice when somebody replaces one."""

    def __init__(self, params: Tensors, state: Mapping[torch.Tensor, Any], kept: Mapping[str, Tensors]) -> None:
        self.params, self.state, self.kept = params, state, kept
        self.kinds = [(x.shape, x.dtype, x.device) for x in params]

    def still(self) -> bool:
        """Are shapes, dtypes, devices and the state's tensors what they were?"""
        if [(x.shape, x.dtype, x.device) for x in self.params] != self.kinds:
            return False
        state = self.state
        for key, tensors in self.kept.items():
            if [state[x].get(key) is y for x, y in zip(self.params, tensors, strict=False)].count(False):
                return False
        return True


class Block:
    """The tensors of a part that share device and dtype; their momenta lie in one flat buffer.

    With replicas, every tensor holds `rows` of them along its first axis. `θ` and `p` are what a step moves and where
    it begins: the parameters and their momenta, unless a metric or a rhythm has put others in their place.
    """

    ξ: torch.Tensor | None = None

    def __init__(
        self, params: Tensors, names: list[str], state: Mapping[torch.Tensor, Any], momenta: bool, lanes: Lanes
    ) -> None:
        self.params, self.names, self.lanes, self.rows = params, names, lanes, lanes.rows
        self.everything = list(range(len(params)))
        self.sizes = [p.numel() for p in params]
        self.offsets, self.total = [], 0
        for size in self.sizes:
            self.offsets.append(self.total)
            self.total += -(-size // ALIGN) * ALIGN
        self.dtype, self.device = params[0].dtype, params[0].device
        self.kernel = native.serves(self.dtype, self.device)
        self.flat: torch.Tensor | None = None
        self.momenta: Tensors = []
        if momenta:
            self.flat = torch.zeros(self.total, dtype=self.dtype, device=self.device)
            self.momenta = self.views(self.flat)
            for param, view in zip(params, self.momenta, strict=True):
                if "momentum" in state[param]:
                    view.copy_(state[param]["momentum"])
                state[param]["momentum"] = view
        self.kept = Kept(params, state, {"momentum": self.momenta} if momenta else {})
        self.held = native.Held(params, self.dtype, self.sizes)
        self.drawn: list[Normals] = []
        self.copies: tuple[Tensors, torch.Tensor] | None = None
        self.first: dict[int, torch.Tensor] = {}
        self.layout = self.places(self.everything) if self.kernel else None

    def views(self, flat: torch.Tensor) -> Tensors:
        return [
            flat[start : start + size].view(p.shape)
            for start, size, p in zip(self.offsets, self.sizes, self.params, strict=True)
        ]

    def begin(self, weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take the gradients as they are now; tensors without one stand still, unless none is needed."""
        grads = [param.grad for param in self.params]
        if resting:
            grads = [still(grad, resting) for grad in grads]
        self.g = [g if g.dtype is self.dtype else g.to(self.dtype) for g in grads if g is not None]
        self.live = bool(self.g) or not gradient
        self.complete = len(self.g) == len(grads) or not gradient
        self.θ, self.p, self.whole, self.degrees = self.params, self.momenta, self.flat, sum(self.sizes) // self.rows
        self.active = self.everything
        if not self.complete:
            self.active = [i for i, g in enumerate(grads) if g is not None]
            self.θ, self.p, self.whole = self.pick(self.params), self.pick(self.momenta), None
            self.degrees = sum(self.pick(self.sizes)) // self.rows
        if (type(weight_decay) is not float or weight_decay) and self.g and gradient:
            self.g = decayed(self.g, self.θ, weight_decay)
        self.waiting: list[Program] = []
        self.own, self.ξ = self.p, None
        self.x, self.m = self.θ, self.p  # where the updates act: on θ and p, or on copies of them
        self.after: list[Write] = []  # writes that follow those of the step

    def pick(self, values: list[T]) -> list[T]:
        """Those of the tensors that have a gradient."""
        return values if self.complete or not values else [values[i] for i in self.active]

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        self.first = {i: g.clone() for i, g in zip(self.active, self.g, strict=True)}

    @property
    def g0(self) -> Tensors:
        """The first gradient of this step; where there was none, the one at hand."""
        return [self.first.get(i, g) for i, g in zip(self.active, self.g, strict=True)]

    def beside(self, θ: Tensors, p: Tensors) -> Block:
        """A block like this one that moves other tensors by the same gradients."""
        twin = copy.copy(self)
        twin.θ, twin.p, twin.whole, twin.waiting, twin.after = θ, p, None, [], []
        twin.x, twin.m, twin.drawn, twin.copies = θ, p, [], None
        return twin

    def take(self, program: Program, name: tuple[int, int], ξ: torch.Tensor | None = None) -> None:
        """Let a program wait for the commit; one with a thermostat changes ξ then."""
        self.waiting.append(program)
        self.name, self.ξ = name, self.ξ if ξ is None else ξ

    def settle(self) -> None:
        """Carry out what waits, on copies."""
        if self.x is self.θ:
            self.copy()
        if self.waiting:
            for one in self.emit():
                one()

    def copy(self) -> None:
        """Let the updates act on copies; those of all parameters are kept from step to step."""
        if self.whole is None or self.θ is not self.params:
            self.x, self.m = [x.detach().clone() for x in self.θ], [p.clone() for p in self.p]
            self.whole = None
            return
        if self.copies is None:
            self.copies = [torch.empty_like(x, requires_grad=False) for x in self.θ], torch.empty_like(self.whole)
        self.x, flat = self.copies
        torch._foreach_copy_([*self.x, flat], [*self.θ, self.whole])
        self.whole, self.m = flat, self.views(flat)

    def writes(self) -> list[Write]:
        """What the commit must do."""
        writes = self.emit() if self.waiting and self.x is self.θ else []
        if self.x is not self.θ:
            self.settle()
            writes = [write(torch._foreach_copy_, [*self.θ, *self.p], [*self.x, *self.m])]
        return [*writes, *self.after]

    def emit(self) -> list[Write]:
        """What waits, as writes."""
        program = self.waiting[0] if len(self.waiting) == 1 else Program([u for p in self.waiting for u in p.updates])
        self.waiting = []
        found = self.by_kernel(program) if program.suits_kernel and self.kernel else None
        if found is not None:
            return found
        if program.thermostat:
            ξ = self.ξ
            assert ξ is not None
            ξ.copy_(torch.as_tensor(in_pieces([self], [program], ξ, self.name)))
            self.settle()
            return []
        return self.by_foreach(program)

    def places(self, which: list[int]) -> tuple[native.Layout, Any, list[str]]:
        """Layout, addresses of the momenta, names: what the kernel needs and does not change."""
        layout = native.Layout([self.sizes[i] // self.rows for i in which], self.rows, self.lanes.numbers)
        momenta = native.addresses([self.momenta[i] for i in which], self.dtype, layout.whole) if self.momenta else None
        return layout, momenta, [self.names[i] for i in which]

    def by_kernel(self, program: Program) -> list[Write] | None:
        """All updates in one pass over memory; None where a tensor is not as the kernel needs it."""
        places = self.layout if self.complete else self.places(self.active)
        assert places is not None
        layout, p, names = places
        if self.complete and self.x is self.params:  # where parameters lie that have not moved is known
            θ = self.held.at if self.held.still() else None
        else:
            θ = native.addresses(self.x, self.dtype, layout.whole)
        if p is not None and self.m is not self.own:
            p = native.addresses(self.m, self.dtype, layout.whole)
        given = len(self.g) == len(self.x)  # before the first kick some may have none, and none is read
        g = native.addresses(self.g, self.dtype, layout.whole) if given else None
        if θ is None or (given and g is None):
            return None
        seed, step = self.name
        keys = b"".join([noise_keys(seed, step, draw, names, layout.counts) for draw in program.draws])
        more: dict[str, Any] = {"formulas": program.formulas, "ξ": self.ξ} if program.thermostat else {}
        run = native.prepared(self.dtype, layout, program.ops, keys, each=program.each, θ=θ, p=p, g=g, **more)
        return [run, write(NOTED, self.x)]

    def by_rows(self, tensors: Tensors) -> Tensors:
        """Tensors with a row for each replica, so that a number each can act on them."""
        return [x.view(self.rows, x.numel() // self.rows) for x in tensors] if self.lanes.batched else tensors

    def by_foreach(self, program: Program) -> list[Write]:
        """All updates as fused calls of torch."""
        vectors = {"θ": self.x, "p": self.m, "g": self.g}
        flat = [] if self.whole is None or program.each else [self.whole]  # all momenta as one tensor, if that will do
        writes: list[Write] = []
        for target, source, factor, draw in program.passes:
            xs = vectors[target]
            if source == "g0":
                vectors["g0"] = self.g0
            elif source == "R":
                drawn = self.normals(draw, program.draws.index(draw))
                vectors["R"] = [drawn] if flat and target == "p" else self.pick(self.views(drawn))
            if flat and target == "p" and source in ("R", None):
                xs = flat
            writes.append(scaled(xs, factor) if source is None else added(xs, vectors[source], factor))
        return writes

    def apply(self, letter: Letter, scalars: Mapping[str, Scalar], name: tuple[int, int], draw: int) -> None:
        """Any letter, one tensor at a time: the reference for the two above."""
        self.name = name
        self.settle()
        tensors = {"θ": self.x, "p": self.m, "g": self.g}
        tensors["g0"] = self.g0 if "g0" in letter.needs else []
        tensors["R"] = self.pick(self.views(self.normals(draw, 0))) if "R" in letter.needs else []
        tensors = {symbol: self.by_rows(values) for symbol, values in tensors.items()}
        columns = {s: c.view(-1, 1).to(self.device, self.dtype) for s, c in scalars.items() if per_replica(c)}
        scalars = {**scalars, **columns}
        for i in range(len(tensors["θ"])):
            result = letter.map(*(tensors[s][i] if s in tensors else scalars[s] for s in letter.needs))
            results = result if len(letter.changes) > 1 else (result,)
            for symbol, value in zip(letter.changes, results, strict=True):
                tensors[symbol][i].copy_(value)

    def normals(self, draw: int, slot: int) -> torch.Tensor:
        """Normals for all tensors, flat as their momenta; a slot holds one draw."""
        while len(self.drawn) <= slot:
            sizes = (self.sizes, self.offsets, self.total)
            self.drawn.append(Normals(self.names, *sizes, self.dtype, self.device, self.rows, self.lanes.numbers))
        return self.drawn[slot].draw(*self.name, draw)

    def square(self) -> torch.Tensor:
        """pᵀp, accumulated in at least float32."""
        self.settle()
        wide = self.dtype if self.dtype is torch.float64 else torch.float32
        if self.lanes.batched:
            return torch.stack([x.to(wide).square().sum(1).double() for x in self.by_rows(self.m)]).sum(0)
        momenta = self.m if self.whole is None else [self.whole]
        parts = [torch.dot(x, x) for x in (p.flatten().to(wide) for p in momenta)]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def added(xs: Tensors, ys: Tensors, factor: Scalar) -> Write:
    """xs ← xs + factor·ys."""
    if isinstance(factor, torch.Tensor):
        if per_replica(factor) or factor.device.type != "cpu":  # no synchronisation with the device
            return write(torch._foreach_addcmul_, xs, ys, columns(factor, xs))
        factor = factor.item()
    if len(xs) == 1:
        return write(xs[0].add_, ys[0], alpha=factor)
    return write(torch._foreach_add_, xs, ys, alpha=factor)


def scaled(xs: Tensors, factor: Scalar) -> Write:
    """xs ← factor·xs."""
    if per_replica(factor):
        return write(torch._foreach_mul_, xs, columns(factor, xs))
    return write(xs[0].mul_, factor) if len(xs) == 1 else write(torch._foreach_mul_, xs, factor)


def columns(factor: torch.Tensor, like: Tensors) -> Tensors:
    """A number for each replica, to act on tensors that hold a replica in each row; or one for all."""
    if not factor.dim():
        return [factor] * len(like)
    each = factor.to(like[0].device, like[0].dtype)
    return [each.view(-1, *[1] * (x.dim() - 1)) for x in like]


def still(gradient: torch.Tensor | None, resting: Sequence[int]) -> torch.Tensor | None:
    """A gradient that is 0 for the replicas that rest."""
    if gradient is None or not resting:
        return gradient
    return gradient.index_fill(0, torch.tensor(resting, device=gradient.device), 0.0)


def decayed(grads: Tensors, params: Tensors, weight_decay: Scalar) -> Tensors:
    """g + ωθ."""
    if not per_replica(weight_decay):
        return list(torch._foreach_add(grads, params, alpha=float(weight_decay)))
    pairs = zip(grads, params, strict=True)
    return [g + weight_decay.view(-1, *[1] * (g.dim() - 1)).to(g) * x for g, x in pairs]
