"""Motion: how a word's letters reach the tensors of one part, in as few passes as they allow.

A letter is linear in θ, p, g and R for all dynamics of the papers. Run on formal sums it yields its
coefficients, e.g. O gives ``p ← 0.9 p + 0.3 R``, and a whole word of those is carried out at once: by the
compiled kernel in one pass over memory, or by a few fused calls of torch. A letter that is not linear is
applied tensor by tensor, which is also the reference that the tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import torch

from tether import native
from tether.letters import LETTERS, VECTORS, Letter
from tether.noise import Normals
from tether.noise import keys as noise_keys
from tether.words import Beat

__all__ = ["Block", "Lanes", "Motion", "Program", "Sum", "decayed", "is_number", "per_replica", "still"]

Scalar = Any  # a float, a 0-dimensional tensor where the thermostat enters, or one number for each replica
Tensors = list[torch.Tensor]
Terms = dict[str, Scalar]  # symbol → coefficient
Update = tuple[str, Terms, int]  # what changes, into which sum, with the normals of which draw
T = TypeVar("T")

FIELDS = ("γ", "τ", "ε", "σ", "N")  # the scalars that stay as they are during a step
ALIGN = 16  # elements; every tensor starts on a cache line of the flat buffer


class Sum:
    """A formal sum of symbols with scalar coefficients: ``Sum({"p": 0.9, "R": 0.3})`` is 0.9 p + 0.3 R."""

    __array_priority__ = 1000
    __slots__ = ("terms",)

    def __init__(self, terms: dict[str, Scalar]) -> None:
        self.terms = terms

    def __add__(self, other: Sum) -> Sum:
        if not isinstance(other, Sum):
            return NotImplemented
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            terms[symbol] = terms[symbol] + coefficient if symbol in terms else coefficient
        return Sum(terms)

    def __mul__(self, factor: Scalar) -> Sum:
        if isinstance(factor, Sum):
            return NotImplemented
        return Sum({symbol: factor * coefficient for symbol, coefficient in self.terms.items()})

    __rmul__ = __mul__

    def __truediv__(self, divisor: Scalar) -> Sum:
        return Sum({symbol: coefficient / divisor for symbol, coefficient in self.terms.items()})

    def __neg__(self) -> Sum:
        return self * -1.0

    def __sub__(self, other: Sum) -> Sum:
        return self + -other


class Lanes(NamedTuple):
    """Which replicas the tensors of a part hold: `rows` along their first axis if they are batched."""

    rows: int = 1
    numbers: tuple[int, ...] | None = None  # their own, which name their noise
    batched: bool = False


UNITS = {symbol: Sum({symbol: 1.0}) for symbol in VECTORS}


def coefficients(letter: Letter, scalars: Mapping[str, Scalar]) -> tuple[tuple[str, Terms], ...] | None:
    """What the letter does to each symbol it changes, as terms; None where it is not linear."""
    try:
        result = letter.map(*(UNITS[s] if s in UNITS else scalars[s] for s in letter.needs))
        results = result if len(letter.changes) > 1 else (result,)
        terms = {
            symbol: {s: c for s, c in value.terms.items() if isinstance(c, torch.Tensor) or c != 0}
            for symbol, value in zip(letter.changes, results, strict=True)
        }
    except (TypeError, AttributeError):
        return None
    if "θ" in terms and "θ" in terms.get("p", {}):
        return None  # p needs the old θ: no order of the two updates would do
    return tuple(sorted(terms.items(), reverse=True))  # θ before p, which may overwrite what θ needs


@lru_cache(maxsize=1024)
def steady_coefficients(name: str, values: tuple[float, ...]) -> tuple[tuple[str, Terms], ...] | None:
    """The same for a letter without the thermostat, kept: they change only when a field does."""
    letter = LETTERS[name]
    return coefficients(letter, dict(zip(letter.scalars, values, strict=True)))


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
        self.g: Tensors = []
        self.first: dict[int, torch.Tensor] = {}
        self.layout = self.places(self.everything) if self.kernel else None

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
        """Are the parameters still of the kind the block was made for?"""
        kinds = zip(self.params, self.sizes, strict=True)
        return all(x.dtype is self.dtype and x.numel() == size and x.device == self.device for x, size in kinds)

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
        suits = program.suits_kernel and self.kernel
        if suits and all(x.is_contiguous() for x in self.params) and all(x.is_contiguous() for x in self.g):
            self.run_by_kernel(program, seed, step)
        else:
            self.run_by_foreach(program, seed, step)

    def places(self, which: list[int]) -> tuple[native.Layout, Any, list[str]]:
        """Layout, addresses of the momenta, names: what the kernel needs and does not change."""
        layout = native.Layout([self.sizes[i] // self.rows for i in which], self.rows, self.lanes.numbers)
        momenta = native.addresses([self.momenta[i] for i in which]) if self.momenta else None
        return layout, momenta, [self.names[i] for i in which]

    def run_by_kernel(self, program: Program, seed: int, step: int) -> None:
        """All updates in one pass over memory."""
        places = self.layout if self.complete else self.places(self.active)
        assert places is not None
        layout, p, names = places
        keys = b"".join([noise_keys(seed, step, draw, names, layout.counts) for draw in program.draws])
        θ, g = self.pick(self.params), native.addresses(self.g) if self.g else None
        native.run(self.dtype, layout, program.ops, keys, each=program.each, θ=native.addresses(θ), p=p, g=g)
        torch.autograd.graph.increment_version(θ)  # so that autograd knows they were written to

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


class Motion:
    """One part on the move: its blocks, and the values of its fields for this step."""

    def __init__(
        self,
        params: Tensors,
        names: list[str],
        momenta: bool,
        state: Mapping[torch.Tensor, Any],
        reference: bool,
        lanes: Lanes,
    ) -> None:
        self.reference, self.has_momenta = reference, momenta
        self.stretched: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.composed: tuple[Any, Program, int] | None = None
        chosen: dict[tuple[torch.dtype, torch.device], tuple[Tensors, list[str]]] = {}
        self.waiting: Tensors = []
        for param, name in zip(params, names, strict=True):
            if param.grad is None and "momentum" not in state.get(param, {}):
                self.waiting.append(param)
                continue
            mine, labels = chosen.setdefault((param.dtype, param.device), ([], []))
            mine.append(param)
            labels.append(name)
        self.blocks = [Block(mine, labels, state, momenta, lanes) for mine, labels in chosen.values()]

    def stale(self, momenta: bool) -> bool:
        """Must the blocks be made anew: for a first gradient, another dtype, or a word that needs momenta now?"""
        if momenta and not self.has_momenta:
            return True
        return any(param.grad is not None for param in self.waiting) or not all(block.fits() for block in self.blocks)

    def begin(
        self, scalars: dict[str, Scalar], weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()
    ) -> None:
        """Take the gradients and the values of the fields; for letters before the first kick, no gradient.

        The gradients of resting replicas, which may be nan, count as 0.
        """
        for block in self.blocks:
            block.begin(weight_decay, gradient, resting)
        self.live = [block for block in self.blocks if block.g or not gradient]
        self.scalars = scalars
        self.scalars["N"] = sum([block.count for block in self.live])

    fallible = False

    def measured(self, metric: Any, factors: Mapping[str, Any], whole: bool) -> None:
        """Take this step in the metric γ: with g/γ for g, or, if `whole`, in the coordinates √γ θ.

        Those make noise and momenta what they are in the metric: dθ = −γ⁻¹∇L dt + √(2τ/γ) dW for X. No weight enters
        its own γ unless it is shared, so that the divergence of γ⁻¹ vanishes and exp(−L/τ) is still what is sampled.
        """
        for block in self.live:
            mine = [factors[name] for name in block.pick(block.names)]
            block.g = [metric.divide(g, f, power=0.5 if whole else 1.0) for g, f in zip(block.g, mine, strict=True)]
            if whole:
                for param, f in zip(block.pick(block.params), mine, strict=True):
                    root = metric.divide(torch.ones_like(param), f, power=-0.5)
                    root[root == 0] = 1.0  # no path leads there: as it is
                    param.mul_(root)
                    self.stretched.append((param, root))

    def finish(self) -> None:
        """Back to the parameters, where the step was taken in other coordinates; a free motion cannot fail."""
        for param, root in self.stretched:
            param.div_(root)
        self.stretched = []

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        for block in self.blocks:
            block.first = {i: g.clone() for i, g in zip(block.active, block.g, strict=True)}

    def run(self, beats: tuple[Beat, ...], before: float, now: float, name: tuple[int, int, int]) -> int:
        """Apply the letters in turn; returns how many draws have been named."""
        seed, step, draw = name
        if not self.live:
            return draw
        scalars = self.scalars
        values = (before, now, draw, *(scalars[s] for s in FIELDS))
        if self.composed and self.composed[0][0] is beats and same(self.composed[0][1], values):
            _, program, draw = self.composed
            for block in self.live:
                block.run(program, seed, step)
            return draw

        thermostat = scalars["ξ"]
        if per_replica(thermostat):
            scalars["ξ"] = thermostat.cpu()
        elif isinstance(thermostat, torch.Tensor) and thermostat.device.type == "cpu":
            scalars["ξ"] = thermostat.item()  # plain numbers are faster, and there is no device to wait for
        updates: list[Update] = []
        whole = not self.reference  # does one program hold the whole word, whatever the thermostat?

        def settle() -> None:
            if updates:
                program = Program(list(updates))
                updates.clear()
                for block in self.live:
                    block.run(program, seed, step)

        for beat in beats:
            letter = LETTERS[beat.letter]
            scalars["h"] = beat.before * before + beat.now * now
            whole = whole and not {"ξ", "p2"} & set(letter.needs)
            if "p2" in letter.needs:
                settle()
                squares = [block.square() for block in self.live]
                scalars["p2"] = sum(squares[1:], squares[0])
                if isinstance(scalars["ξ"], float):
                    scalars["p2"] = scalars["p2"].item()
                elif per_replica(scalars["ξ"]):
                    scalars["p2"] = scalars["p2"].cpu()
            if letter.changes == ("ξ",):
                scalars["ξ"] = letter.map(*(scalars[s] for s in letter.needs))
                continue
            if self.reference:
                terms = None
            elif any(isinstance(scalars[s], torch.Tensor) for s in letter.scalars) or "ξ" in letter.needs:
                terms = coefficients(letter, scalars)
            else:
                terms = steady_coefficients(letter.name, tuple([scalars[s] for s in letter.scalars]))
            if terms is None:
                whole = False
                settle()
                for block in self.live:
                    block.run_by_tensor(letter, scalars, seed, step, draw)
            else:
                updates += [(symbol, sum_, draw) for symbol, sum_ in terms]
            draw += "R" in letter.needs
        if whole and updates:
            self.composed = ((beats, values), Program(list(updates)), draw)
        settle()
        if isinstance(thermostat, torch.Tensor):
            scalars["ξ"] = torch.as_tensor(scalars["ξ"], dtype=thermostat.dtype, device=thermostat.device)
        return draw


def is_number(x: Scalar, value: float) -> bool:
    return not isinstance(x, torch.Tensor) and x == value


def per_replica(x: Scalar) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() == 1


def same(xs: tuple[Scalar, ...], ys: tuple[Scalar, ...]) -> bool:
    """Equal numbers, or the very same tensors."""
    try:
        return xs == ys  # tuples compare by identity first
    except RuntimeError:  # two tensors of many numbers that are not the same one
        return False


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
