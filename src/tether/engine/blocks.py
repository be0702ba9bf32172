"""Blocks: the tensors of a part that share device and dtype, and three ways to carry out linear updates on them.

The compiled kernel takes a whole word in one pass over memory; torch takes a few fused calls; any letter can run tensor
by tensor, which is the reference that the tests compare the two with.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch

from tether import native
from tether.engine.sums import Scalar, Terms, is_number, per_replica
from tether.letters import Letter
from tether.noise import Normals
from tether.noise import keys as noise_keys

__all__ = ["Block", "Kept", "Lanes", "Program", "Update", "decayed", "still"]

Tensors = list[torch.Tensor]
Update = tuple[str, Terms, int]  # what changes, into which sum, with the normals of which draw
T = TypeVar("T")
ALIGN = 16  # elements; every tensor starts on a cache line of the flat buffer


class Lanes(NamedTuple):
    """Which replicas the tensors of a part hold: `rows` along their first axis if they are batched."""

    rows: int = 1
    numbers: tuple[int, ...] | None = None  # their own, which name their noise
    batched: bool = False


class Kept:
    """Parameters and their state as a block or a stack took them over, to notice when somebody replaces one."""

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


class Program:
    """Linear updates in a row, to be carried out together."""

    def __init__(self, updates: list[Update]) -> None:
        self.updates = updates
        self.draws = list(dict.fromkeys(draw for _, terms, draw in updates if "R" in terms))
        # A single pass gains nothing in the kernel, and X at τ = 0 is to equal SGD to the last bit.
        passes = sum(len(terms) - is_number(terms.get(symbol), 1) for symbol, terms, _ in updates)
        known = all(terms.keys() <= {symbol, "p", "g", "R"} for symbol, terms, _ in updates)
        self.each = native.replicas_in(tuple(terms.values()) for _, terms, _ in updates)
        self.suits_kernel = known and (passes > 1 or self.each > 0) and len(self.draws) <= native.DRAWS

    @cached_property
    def ops(self) -> bytes:
        """The updates in the kernel's form: one row of them, or one for each replica."""
        rows = []
        for symbol, terms, draw in self.updates:
            numbers = (terms.get(s, 0.0) for s in (symbol, "p", "g", "R"))
            own, p, g, R = (c if per_replica(c) else float(c) for c in numbers)
            number = self.draws.index(draw) if "R" in terms else -1
            rows.append((int(symbol == "θ"), number, own, p if symbol == "θ" else 0.0, g, R))
        return native.pack_each(rows, self.each) if self.each else native.pack(rows)


class Block:
    """The tensors of a part that share device and dtype; their momenta lie in one flat buffer.

    With replicas, every tensor holds `rows` of them along its first axis.
    """

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
        self.normals: Normals | None = None
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
        self.g: Tensors = []
        self.first: dict[int, torch.Tensor] = {}
        self.layout = self.places(self.everything) if self.kernel else None
        self.held = native.Held(params, self.dtype, self.sizes)
        self.at: array[int] | None = None

    @property
    def g0(self) -> Tensors:
        """The first gradient of this step; where there was none, the one at hand."""
        return [self.first.get(i, g) for i, g in zip(self.active, self.g, strict=True)]

    def views(self, flat: torch.Tensor) -> Tensors:
        return [
            flat[start : start + size].view(p.shape)
            for start, size, p in zip(self.offsets, self.sizes, self.params, strict=True)
        ]

    def fits(self) -> bool:
        """Are parameters and momenta still those the block was made for? Then take their addresses for this step."""
        if not self.kept.still():
            return False
        self.at = self.held.at if self.kernel and self.held.still() else None
        return True

    def begin(self, weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take the gradients as they are now; tensors without one stand still, unless none is needed."""
        grads = [param.grad for param in self.params]
        if resting:
            grads = [still(grad, resting) for grad in grads]
        self.g = [g if g.dtype is self.dtype else g.to(self.dtype) for g in grads if g is not None]
        self.complete = len(self.g) == len(grads) or not gradient
        self.active = self.everything if self.complete else [i for i, g in enumerate(grads) if g is not None]
        if not is_number(weight_decay, 0) and self.g and gradient:
            self.g = decayed(self.g, self.pick(self.params), weight_decay)

    def pick(self, values: list[T]) -> list[T]:
        """Those of the tensors that have a gradient."""
        return values if self.complete or not values else [values[i] for i in self.active]

    @property
    def count(self) -> int:
        """The number of parameters that move, of one replica."""
        return sum(self.pick(self.sizes)) // self.rows

    @property
    def whole(self) -> Tensors:
        """The momenta that move, in one piece where they all do."""
        if self.lanes.batched:
            return self.by_rows(self.pick(self.momenta))
        return [self.flat] if self.complete and self.flat is not None else self.pick(self.momenta)

    def by_rows(self, tensors: Tensors) -> Tensors:
        """Tensors with a row for each replica, so that a number each can act on them."""
        return [x.view(self.rows, x.numel() // self.rows) for x in tensors] if self.lanes.batched else tensors

    def run(self, program: Program, seed: int, step: int) -> None:
        """Carry out a program."""
        if not (program.suits_kernel and self.kernel and self.run_by_kernel(program, seed, step)):
            self.run_by_foreach(program, seed, step)

    def places(self, which: list[int]) -> tuple[native.Layout, Any, list[str]]:
        """Layout, addresses of the momenta, names: what the kernel needs and does not change."""
        layout = native.Layout([self.sizes[i] // self.rows for i in which], self.rows, self.lanes.numbers)
        momenta = native.addresses([self.momenta[i] for i in which], self.dtype, layout.whole) if self.momenta else None
        return layout, momenta, [self.names[i] for i in which]

    def run_by_kernel(self, program: Program, seed: int, step: int) -> bool:
        """All updates in one pass over memory; False, and nothing done, where the kernel cannot take a tensor."""
        places = self.layout if self.complete else self.places(self.active)
        assert places is not None
        layout, p, names = places
        params = self.pick(self.params)
        given = len(self.g) == len(params)  # before the first kick some may have none, and none is read
        whole, self.at = self.at if self.complete else None, None  # taken for this step, used once
        θ = native.addresses(params, self.dtype, layout.whole) if whole is None else whole
        g = native.addresses(self.g, self.dtype, layout.whole) if given else None
        if θ is None or (given and g is None):
            return False
        keys = b"".join([noise_keys(seed, step, draw, names, layout.counts) for draw in program.draws])
        native.run(self.dtype, layout, program.ops, keys, each=program.each, θ=θ, p=p, g=g)
        torch.autograd.graph.increment_version(params)  # so that autograd knows they were written to
        return True

    def run_by_foreach(self, program: Program, seed: int, step: int) -> None:
        """All updates by fused calls of torch, put off where two can become one.

        The tensors stand for θ + drift·p and scale·p: a scaling of p and a drift along p wait until p changes
        otherwise, so that A O A without noise is one pass over θ and not two.
        """
        tensors = {"θ": self.pick(self.params), "p": self.pick(self.momenta), "g": self.g}
        if any("g0" in terms for _, terms, _ in program.updates):
            tensors["g0"] = self.g0
        tensors = {symbol: self.by_rows(values) for symbol, values in tensors.items()}
        whole = self.whole
        drift: Scalar = 0.0
        scale: Scalar = 1.0
        held = -1
        for symbol, terms, draw in program.updates:
            own = terms.get(symbol, 0.0)
            others = [(s, c) for s, c in terms.items() if s != symbol]
            if "R" in terms and draw != held:
                tensors["R"], noise = self.draw(seed, step, draw)
                held = draw
            if symbol == "θ":
                if not is_number(own, 1):
                    add(tensors["θ"], tensors["p"], drift)
                    drift = 0.0
                    multiply(tensors["θ"], own)
                for s, c in others:
                    if s == "p":
                        drift = drift + scale * c
                    else:
                        add(tensors["θ"], tensors[s], c)
            else:
                scale = scale * own
                if others:
                    add(tensors["θ"], tensors["p"], drift)
                    multiply(whole, scale)
                    drift, scale = 0.0, 1.0
                for s, c in others:
                    if s == "R":
                        add(whole, noise, c)
                    else:
                        add(tensors["p"], tensors[s], c)
        add(tensors["θ"], tensors["p"], drift)
        multiply(whole, scale)

    def run_by_tensor(self, letter: Letter, scalars: Mapping[str, Scalar], seed: int, step: int, draw: int) -> None:
        """Any letter, one tensor at a time: the reference for the two above."""
        tensors = {"θ": self.pick(self.params), "p": self.pick(self.momenta), "g": self.g}
        tensors["g0"] = self.g0 if "g0" in letter.needs else []
        tensors["R"] = self.draw(seed, step, draw)[0] if "R" in letter.needs else []
        tensors = {symbol: self.by_rows(values) for symbol, values in tensors.items()}
        columns = {s: c.view(-1, 1).to(self.device, self.dtype) for s, c in scalars.items() if per_replica(c)}
        scalars = {**scalars, **columns}
        for i in range(len(tensors["θ"])):
            result = letter.map(*(tensors[s][i] if s in tensors else scalars[s] for s in letter.needs))
            results = result if len(letter.changes) > 1 else (result,)
            for symbol, value in zip(letter.changes, results, strict=True):
                tensors[symbol][i].copy_(value)

    def draw(self, seed: int, step: int, draw: int) -> tuple[Tensors, Tensors]:
        """Normals in the shape of the tensors, and the same numbers in the shape of `whole`."""
        if self.normals is None:
            sizes = (self.sizes, self.offsets, self.total)
            self.normals = Normals(self.names, *sizes, self.dtype, self.device, self.rows, self.lanes.numbers)
            self.noise = self.by_rows(self.views(self.normals.flat))
        flat = self.normals.draw(seed, step, draw)
        views = self.pick(self.noise)
        return views, [flat] if self.complete and not self.lanes.batched else views

    def square(self) -> torch.Tensor:
        """pᵀp, accumulated in at least float32."""
        wide = self.dtype if self.dtype is torch.float64 else torch.float32
        if self.lanes.batched:
            return torch.stack([x.to(wide).square().sum(1).double() for x in self.whole]).sum(0)
        parts = [torch.dot(x, x) for x in (p.flatten().to(wide) for p in self.whole)]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def add(xs: Tensors, ys: Tensors, factor: Scalar) -> None:
    """xs ← xs + factor·ys."""
    if is_number(factor, 0):
        return
    if isinstance(factor, torch.Tensor):
        if per_replica(factor):
            torch._foreach_addcmul_(xs, ys, [column(factor, xs[0])] * len(xs))
            return
        if factor.device.type != "cpu":  # no synchronisation with the device
            torch._foreach_addcmul_(xs, ys, [factor] * len(xs))
            return
        factor = factor.item()
    if len(xs) == 1:
        xs[0].add_(ys[0], alpha=factor)
    else:
        torch._foreach_add_(xs, ys, alpha=factor)


def multiply(xs: Tensors, factor: Scalar) -> None:
    """xs ← factor·xs."""
    if is_number(factor, 1):
        return
    if per_replica(factor):
        torch._foreach_mul_(xs, [column(factor, xs[0])] * len(xs))
    elif len(xs) == 1:
        xs[0].mul_(factor)
    else:
        torch._foreach_mul_(xs, factor)


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
