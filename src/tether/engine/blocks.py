"""Blocks: the free tensors of a part that share device and dtype, and three engines for what they are to do.

The compiled kernel takes a whole word in one pass over memory; torch takes a few fused calls; any letter can run tensor
by tensor, which is the reference that the tests compare the two with. Programs wait until the commit and then run in
place. What must be known earlier (pᵀp, a letter that is not linear) is computed on copies.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from tether import native
from tether.engine.commit import Write, noted, write
from tether.engine.programs import Program
from tether.engine.sums import Scalar, is_number, per_replica
from tether.letters import Letter
from tether.noise import Normals, named

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
        self.kinds = self._kinds()

    def _kinds(self) -> list[Any]:
        return [(x.shape, x.dtype, x.device) for x in self.params]

    def still(self) -> bool:
        """Are shapes, dtypes, devices and the state's tensors what they were?"""
        if self._kinds() != self.kinds:
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

    together = False

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

    def fits(self) -> bool:
        """Are parameters and momenta still those the block was made for?"""
        return self.kept.still()

    def begin(self, weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take the gradients as they are now; tensors without one stand still, unless none is needed."""
        grads = [param.grad for param in self.params]
        if resting:
            grads = [still(grad, resting) for grad in grads]
        self.g = [g if g.dtype is self.dtype else g.to(self.dtype) for g in grads if g is not None]
        self.complete = len(self.g) == len(grads) or not gradient
        self.active = self.everything if self.complete else [i for i, g in enumerate(grads) if g is not None]
        self.live = bool(self.g) or not gradient
        self.θ, self.p, self.whole = self.pick(self.params), self.pick(self.momenta), self.flat
        if not self.complete:
            self.whole = None
        if not is_number(weight_decay, 0) and self.g and gradient:
            self.g = decayed(self.g, self.θ, weight_decay)
        self.count = sum(self.pick(self.sizes)) // self.rows
        self.waiting: list[Program] = []
        self.x, self.m = self.θ, self.p  # where the updates act: on θ and p, or on copies of them
        self.after: list[Write] = []  # writes that follow those of the step

    @property
    def degrees(self) -> int:
        """Degrees of freedom of what moves."""
        return self.count

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

    def take(self, program: Program, name: tuple[int, int]) -> None:
        """Let a program wait for the commit."""
        self.waiting.append(program)
        self.name = name

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
        if self.x is self.θ:
            return [*self.emit(), *self.after] if self.waiting else self.after
        if self.waiting:
            self.settle()
        return [write(torch._foreach_copy_, [*self.θ, *self.p], [*self.x, *self.m]), *self.after]

    def emit(self) -> list[Write]:
        """What waits, as writes."""
        program = self.waiting[0] if len(self.waiting) == 1 else Program([u for p in self.waiting for u in p.updates])
        self.waiting = []
        found = self.by_kernel(program) if program.suits_kernel and self.kernel else None
        return self.by_foreach(program) if found is None else found

    def places(self, which: list[int]) -> tuple[native.Layout, Any, tuple[str, ...]]:
        """Layout, addresses of the momenta, names: what the kernel needs and does not change."""
        layout = native.Layout([self.sizes[i] // self.rows for i in which], self.rows, self.lanes.numbers)
        momenta = native.addresses([self.momenta[i] for i in which], self.dtype, layout.whole) if self.momenta else None
        return layout, momenta, tuple([self.names[i] for i in which])

    def by_kernel(self, program: Program) -> list[Write] | None:
        """All updates in one pass over memory; None where a tensor is not as the kernel needs it."""
        places = self.layout if self.complete else self.places(self.active)
        assert places is not None
        layout, p, names = places
        θ = self.addresses(layout)
        if p is not None and self.m is not self.pick(self.momenta):
            p = native.addresses(self.m, self.dtype, layout.whole)
        given = len(self.g) == len(self.x)  # before the first kick some may have none, and none is read
        g = native.addresses(self.g, self.dtype, layout.whole) if given else None
        if θ is None or (given and g is None):
            return None
        seed, step = self.name
        noise = named(seed, step, program.draws, names) if program.draws else native.SILENCE
        run = native.prepared(self.dtype, layout, program.ops, noise, each=program.each, θ=θ, p=p, g=g)
        return [run, noted(self.x)]

    def addresses(self, layout: native.Layout) -> array[int] | None:
        """Where θ lies; of parameters that stay where they were that is known."""
        if self.complete and self.x is self.params:
            return self.held.at if self.held.still() else None
        return native.addresses(self.x, self.dtype, layout.whole)

    def by_rows(self, tensors: Tensors) -> Tensors:
        """Tensors with a row for each replica, so that a number each can act on them."""
        return [x.view(self.rows, x.numel() // self.rows) for x in tensors] if self.lanes.batched else tensors

    def by_foreach(self, program: Program) -> list[Write]:
        """All updates as fused calls of torch, put off where two can become one.

        The tensors stand for θ + drift·p and scale·p: a scaling of p and a drift along p wait until p changes
        otherwise, so that A O A without noise is one pass over θ and not two.
        """
        tensors = {"θ": self.x, "p": self.m, "g": self.g}
        if any("g0" in terms for _, terms, _ in program.updates):
            tensors["g0"] = self.g0
        tensors = {symbol: self.by_rows(values) for symbol, values in tensors.items()}
        whole = tensors["p"] if self.lanes.batched or self.whole is None else [self.whole]
        writes: list[Write] = []
        drift: Scalar = 0.0
        scale: Scalar = 1.0
        for symbol, terms, draw in program.updates:
            own = terms.get(symbol, 0.0)
            others = [(s, c) for s, c in terms.items() if s != symbol]
            if "R" in terms:
                tensors["R"], noise = self.normals(draw, program.draws.index(draw), whole)
            if symbol == "θ":
                if not is_number(own, 1):
                    add(writes, tensors["θ"], tensors["p"], drift)
                    drift = 0.0
                    multiply(writes, tensors["θ"], own)
                for s, c in others:
                    if s == "p":
                        drift = drift + scale * c
                    else:
                        add(writes, tensors["θ"], tensors[s], c)
            else:
                scale = scale * own
                if others:
                    add(writes, tensors["θ"], tensors["p"], drift)
                    multiply(writes, whole, scale)
                    drift, scale = 0.0, 1.0
                for s, c in others:
                    if s == "R":
                        add(writes, whole, noise, c)
                    else:
                        add(writes, tensors["p"], tensors[s], c)
        add(writes, tensors["θ"], tensors["p"], drift)
        multiply(writes, whole, scale)
        return writes

    def apply(self, letter: Letter, scalars: Mapping[str, Scalar], name: tuple[int, int], draw: int) -> None:
        """Any letter, one tensor at a time: the reference for the two above."""
        self.name = name
        self.settle()
        tensors = {"θ": self.x, "p": self.m, "g": self.g}
        tensors["g0"] = self.g0 if "g0" in letter.needs else []
        tensors["R"] = self.normals(draw, 0, [])[0] if "R" in letter.needs else []
        tensors = {symbol: self.by_rows(values) for symbol, values in tensors.items()}
        columns = {s: c.view(-1, 1).to(self.device, self.dtype) for s, c in scalars.items() if per_replica(c)}
        scalars = {**scalars, **columns}
        for i in range(len(tensors["θ"])):
            result = letter.map(*(tensors[s][i] if s in tensors else scalars[s] for s in letter.needs))
            results = result if len(letter.changes) > 1 else (result,)
            for symbol, value in zip(letter.changes, results, strict=True):
                tensors[symbol][i].copy_(value)

    def normals(self, draw: int, slot: int, whole: Tensors) -> tuple[Tensors, Tensors]:
        """Normals in the shape of the tensors, and the same numbers in the shape of `whole`; a slot holds one draw."""
        while len(self.drawn) <= slot:
            sizes = (self.sizes, self.offsets, self.total)
            self.drawn.append(Normals(self.names, *sizes, self.dtype, self.device, self.rows, self.lanes.numbers))
        flat = self.drawn[slot].draw(*self.name, draw)
        views = self.by_rows(self.pick(self.views(flat)))
        return views, [flat] if len(whole) == 1 and whole[0] is self.whole else views

    def square(self) -> torch.Tensor:
        """pᵀp, accumulated in at least float32."""
        self.settle()
        wide = self.dtype if self.dtype is torch.float64 else torch.float32
        if self.lanes.batched:
            return torch.stack([x.to(wide).square().sum(1).double() for x in self.by_rows(self.m)]).sum(0)
        momenta = self.m if self.whole is None else [self.whole]
        parts = [torch.dot(x, x) for x in (p.flatten().to(wide) for p in momenta)]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def add(writes: list[Write], xs: Tensors, ys: Tensors, factor: Scalar) -> None:
    """xs ← xs + factor·ys."""
    if is_number(factor, 0):
        return
    if isinstance(factor, torch.Tensor):
        if per_replica(factor):
            writes.append(write(torch._foreach_addcmul_, xs, ys, [column(factor, xs[0])] * len(xs)))
            return
        if factor.device.type != "cpu":  # no synchronisation with the device
            writes.append(write(torch._foreach_addcmul_, xs, ys, [factor] * len(xs)))
            return
        factor = factor.item()
    if len(xs) == 1:
        writes.append(write(xs[0].add_, ys[0], alpha=factor))
    else:
        writes.append(write(torch._foreach_add_, xs, ys, alpha=factor))


def multiply(writes: list[Write], xs: Tensors, factor: Scalar) -> None:
    """xs ← factor·xs."""
    if is_number(factor, 1):
        return
    if per_replica(factor):
        writes.append(write(torch._foreach_mul_, xs, [column(factor, xs[0])] * len(xs)))
    elif len(xs) == 1:
        writes.append(write(xs[0].mul_, factor))
    else:
        writes.append(write(torch._foreach_mul_, xs, factor))


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


def column(factor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A number for each replica, to act on rows."""
    return factor.view(-1, 1).to(like.device, like.dtype)
