"""Blocks: the free tensors of a part that share device and dtype, and three engines for what they are to do.

The compiled kernel takes a whole word in one pass over memory, in place, when the commit comes. Elsewhere the values
are computed first, by torch's operations on one flat tensor. Letters as they are written, one by one, are the reference
that the tests compare the two with.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from tether import native
from tether.engine import host
from tether.engine.commit import NOTED, Write, write
from tether.engine.flat import Flat, Room, gathered
from tether.engine.formulas import NONE
from tether.engine.interpreter import in_pieces
from tether.engine.pieces import WHOLE, Whole
from tether.engine.programs import Program
from tether.engine.sums import Scalar, per_replica
from tether.letters import Letter
from tether.noise import Normals, naming

__all__ = ["Block", "Lanes", "Owned", "decayed", "still"]

Tensors = list[torch.Tensor]
T = TypeVar("T")
ALIGN = 32  # elements; every tensor starts on a cache line of the flat buffer, and with a tile of `noise`


class Lanes(NamedTuple):
    """Which replicas the tensors of a part hold: `rows` along their first axis if they are batched."""

    rows: int = 1
    numbers: tuple[int, ...] | None = None  # their own, which name their noise
    batched: bool = False


class Owned:
    """Parameters and their state as a body took them over, to notice when somebody replaces one."""

    def __init__(self, params: Tensors, state: Mapping[torch.Tensor, Any], kept: dict[str, Tensors]) -> None:
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
    part: Sequence[int] | None = None  # which thermostat each tensor has, where there are several
    fields: Mapping[str, torch.Tensor] = NONE  # those with a number for each entry, by their symbols
    astray: torch.Tensor | None = None  # free tensors can always go back
    step = 0  # how many there have been
    surface: Any = None  # along which a metric leads

    def __init__(
        self,
        owners: Tensors,
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        cut: Whole = WHOLE,
        keeps: Sequence[str] = (),
    ) -> None:
        self.home, self.cut, self.share = owners, cut, cut.share
        self.params = params = cut.tensors(owners)
        self.names, self.lanes, self.rows = names, lanes, lanes.rows
        self.everything = list(range(len(params)))
        self.sizes, self.counts = [p.numel() for p in params], cut.counts(owners)
        self.offsets, self.total = [], 0
        for size in self.sizes:
            self.offsets.append(self.total)
            self.total += -(-size // ALIGN) * ALIGN
        self.dtype, self.device = params[0].dtype, params[0].device
        self.kernel = native.serves(self.dtype, self.device) and cut.contiguous
        self.kept = Owned(owners, state, {})
        self.momenta: Tensors = []
        self.flat: torch.Tensor | None = None
        wide = torch.promote_types(self.dtype, torch.float32)  # averages over many steps need its digits
        self.notes = self.more_room(wide)  # what is kept of each entry: momenta, and what a metric needs
        if momenta:
            self.flat, self.momenta = self.memory("momentum", self.dtype)
            self.notes.add("p", self.flat, self.momenta)
        for key in keeps:
            self.notes.add(key, *self.memory(key, wide))
        self.held = native.Held(params, self.dtype, self.sizes)
        self.drawn: Normals | None = None
        self.first: dict[int, torch.Tensor] = {}
        self.layout = self.places(self.everything) if self.kernel else None
        self.room = None if host.reads(self.device) or self.rows > 1 else self.more_room()
        self.second: Room | None = None  # for a twin
        if self.room is not None:
            self.room.buffer("θ")
            self.room.buffer("g")
            if self.flat is not None:
                self.room.add("p", self.flat, self.momenta)

    def memory(self, key: str, dtype: torch.dtype) -> tuple[torch.Tensor, Tensors]:
        """State of this name for each entry, zeros at first: one flat buffer, and what of it belongs to each tensor."""
        flat = torch.zeros(self.total, dtype=dtype, device=self.device)
        views, state = self.views(flat), self.kept.state
        for i, (owner, view) in enumerate(zip(self.home, views, strict=True)):
            if key in state[owner]:
                view.copy_(self.cut.read(i, state[owner][key], view))
            state[owner][key] = self.cut.keep(i, view)
        self.kept.kept[key] = [state[owner][key] for owner in self.home]
        return flat, views

    def share_out(self, part: Sequence[int]) -> None:
        """Know which thermostat each tensor has."""
        self.part = part
        self.layout = self.places(self.everything) if self.kernel else None

    def more_room(self, dtype: torch.dtype | None = None) -> Room:
        """Buffers in which the tensors lie as in the flat momenta."""
        return Room(partial(torch.zeros, self.total, dtype=dtype or self.dtype, device=self.device), self.views)

    def near(self) -> Room:
        """Buffers for tensors that move in the place of these."""
        self.second = self.more_room() if self.second is None else self.second
        return self.second

    def views(self, flat: torch.Tensor) -> Tensors:
        return [
            flat[start : start + size].view(p.shape)
            for start, size, p in zip(self.offsets, self.sizes, self.params, strict=True)
        ]

    def begin(self, weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        """Take the gradients as they are now; tensors without one stand still, unless none is needed."""
        grads = self.cut.gradients(self.home) if self.cut.sharded else [param.grad for param in self.home]
        if resting:
            grads = [still(grad, resting) for grad in grads]
        self.g = [g if g.dtype is self.dtype else g.to(self.dtype) for g in grads if g is not None]
        self.live = bool(self.g) or not gradient
        self.complete = len(self.g) == len(grads) or not gradient
        self.θ, self.p, self.degrees = self.params, self.momenta, sum(self.counts) // self.rows
        self.active = self.everything
        if not self.complete:
            self.active = [i for i, g in enumerate(grads) if g is not None]
            self.θ, self.p = self.pick(self.params), self.pick(self.momenta)
            self.degrees = sum(self.pick(self.counts)) // self.rows
        if (type(weight_decay) is not float or weight_decay) and self.g and gradient:
            self.g = decayed(self.g, self.θ, weight_decay)
        self.waiting: list[Program] = []
        self.values: Flat | None = None
        self.bad: torch.Tensor | None = None  # must all stay what it was, for a gradient that is not finite?
        self.own, self.ξ = self.p, None
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
        twin.θ, twin.p, twin.values, twin.waiting, twin.after = θ, p, None, [], []
        twin.room = None if self.room is None else self.near()
        return twin

    def twin(self) -> Block:
        """A block that moves copies of the tensors by the same gradients."""
        if self.room is None or not self.complete:
            return self.beside([x.detach().clone() for x in self.θ], [p.clone() for p in self.p])
        found = self.beside([], [])
        room = found.room
        assert room is not None
        room.take("θ", self.θ)
        found.θ = room.views["θ"]
        if self.p:
            room.take("p", self.p)
            found.p = room.views["p"]
        return found

    def take(self, program: Program, name: tuple[int, int], ξ: torch.Tensor | None = None) -> None:
        """Let a program wait for the commit; one with a thermostat changes ξ then."""
        self.name, self.ξ = name, self.ξ if ξ is None else ξ
        self.waiting.append(program)

    def by_values(self) -> Flat:
        """Carry out what waits, and go on, without the kernel."""
        if self.values is None:
            room = self.room if self.complete else None
            rest = self.bad, room, self.entries(room)
            self.values = Flat(self.θ, self.p, self.g, self.rows, self.normals, lambda: self.g0, *rest)
        waiting, self.waiting = self.waiting, []
        for program in waiting:
            for update in program.linear:
                self.values.update(*update)
        return self.values

    def entries(self, room: Room | None) -> dict[str, torch.Tensor]:
        """The fields with a number for each entry, laid out as the tensors are."""
        found = {}
        for symbol, value in self.fields.items():
            value = value.to(self.device, host.wide(self.device))
            each = [value.expand(x.shape) for x in self.params]
            if room is None:
                found[symbol] = gathered(self.pick(each), self.rows)
            else:
                flat = torch.ones(self.total, dtype=value.dtype, device=self.device)
                torch._foreach_copy_(self.views(flat), each)
                found[symbol] = flat.unsqueeze(0)
        return found

    def apply(self, letter: Letter, scalars: Mapping[str, Scalar], name: tuple[int, int], draw: int) -> None:
        """Any letter as it is written."""
        self.name = name
        self.by_values().apply(letter, scalars, draw)

    def watch(self) -> None:
        """Nothing to watch: what moves freely can go back."""

    def square(self) -> torch.Tensor:
        """pᵀp."""
        return self.by_values().square(self.lanes.batched)

    def writes(self) -> list[Write]:
        """What the commit must do."""
        writes = self.emit() if self.waiting and self.values is None else None
        if writes is None:
            writes = self.by_values().writes() if self.waiting or self.values is not None else []
        return [*writes, *self.after]

    def emit(self) -> list[Write] | None:
        """What waits, as writes in place; None where its values must be computed first."""
        waiting = self.waiting
        program = waiting[0] if len(waiting) == 1 else Program([u for p in waiting for u in p.updates])
        found = self.by_kernel(program) if program.suits_kernel and self.kernel else None
        if found is None and program.thermostat:
            ξ, self.waiting = self.ξ, []
            assert ξ is not None
            found_ξ = in_pieces([self], [program], ξ if ξ.dim() else ξ.item(), self.name)
            ξ.copy_(torch.as_tensor(found_ξ, dtype=ξ.dtype))
        elif found is None and program.step is not None and self.bad is None:  # one pass, as torch's SGD has it
            found = [write(torch._foreach_add_, self.θ, self.g, alpha=program.step)] if self.g else []
        return found

    def places(self, which: list[int]) -> tuple[native.Layout, Any, tuple[str, ...]]:
        """Layout, addresses of the momenta, names: what the kernel needs and does not change."""
        counts = [self.sizes[i] // self.rows for i in which]
        part = None if self.part is None else [self.part[i] for i in which]
        layout = native.Layout(counts, self.rows, self.lanes.numbers, self.cut.first(which), part)
        momenta = native.addresses([self.momenta[i] for i in which], self.dtype, layout.whole) if self.momenta else None
        return layout, momenta, tuple([self.names[i] for i in which])

    def by_kernel(self, program: Program) -> list[Write] | None:
        """All updates in one pass over memory; None where a tensor is not as the kernel needs it."""
        places = self.layout if self.complete else self.places(self.active)
        assert places is not None
        layout, p, names = places
        if self.complete and self.θ is self.params:  # where parameters lie that have not moved is known
            θ = self.held.at if self.held.still() else None
        else:
            θ = native.addresses(self.θ, self.dtype, layout.whole)
        if p is not None and self.p is not self.own:
            p = native.addresses(self.p, self.dtype, layout.whole)
        given = len(self.g) == len(self.θ)  # before the first kick some may have none, and none is read
        g = native.addresses(self.g, self.dtype, layout.whole) if given else None
        if θ is None or (given and g is None):
            return None
        seed, step = self.name
        noise = naming(seed, step, program.draws, names) if program.draws else native.SILENCE
        more: dict[str, Any] = {"formulas": program.formulas, "ξ": self.ξ} if program.thermostat else {}
        run = native.prepared(self.dtype, layout, program.ops, noise, each=program.each, θ=θ, p=p, g=g, **more)
        return [run, write(NOTED, self.θ)]

    def normals(self, draw: int) -> torch.Tensor:
        """Normals for the tensors that move, a row for each replica."""
        if self.drawn is None:
            sizes = (self.sizes, self.offsets, self.total)
            rest = self.dtype, self.device, self.rows, self.lanes.numbers
            self.drawn = self.cut.normals(self.names, [x.shape for x in self.params], sizes, rest)
        found = self.drawn.draw(*self.name, draw)
        if self.values is not None and self.values.room is not None:
            return found.unsqueeze(0)
        return gathered(self.pick(self.views(found)), self.rows)


def still(gradient: torch.Tensor | None, resting: Sequence[int]) -> torch.Tensor | None:
    """A gradient that is 0 for the replicas that rest."""
    if gradient is None or not resting:
        return gradient
    return gradient.index_fill(0, host.indices(resting, gradient.device), 0.0)


def decayed(grads: Tensors, params: Tensors, weight_decay: Scalar) -> Tensors:
    """g + ωθ."""
    if not per_replica(weight_decay):
        return list(torch._foreach_add(grads, params, alpha=float(weight_decay)))
    pairs = zip(grads, params, strict=True)
    return [g + weight_decay.view(-1, *[1] * (g.dim() - 1)).to(g) * x for g, x in pairs]
