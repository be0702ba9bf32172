"""Row: one part of the table at work, from the fields of its param group to the writes of a step."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from tether.engine import host
from tether.engine.blocks import Block, Lanes
from tether.engine.commit import Write, commit, write
from tether.engine.flat import kept
from tether.engine.gradients import check_shape
from tether.engine.interpreter import FIELDS, Composed, compose, in_pieces, in_turn
from tether.engine.moving import Moving
from tether.engine.pieces import Ranks
from tether.engine.placed import replaced, stacks
from tether.engine.thermostat import check_thermostat
from tether.engine.values import entries_in, noisy, symbols, zero
from tether.metrics.metric import Metric
from tether.part import NUMERIC, check_kinds, check_word, number
from tether.rhythms import SHORT, Rhythm, rhythm_of
from tether.rhythms.waiting import give_back
from tether.surfaces import Free, Surface
from tether.words import Beat, parse

__all__ = ["Row"]

CHOICES = ("word", "on", "metric", "rhythm", *SHORT)  # fields that say how, not how much
read_in = itemgetter(*CHOICES, *NUMERIC, "normalised", "seed", "where")


class Row:
    """A part: its param group, what it is made of, and the bodies that move."""

    members: Sequence[Row] = ()  # the rows whose parameters it holds,
    apart = False  # and is it to give way to them?

    def __init__(
        self,
        group: dict[str, Any],
        names: Sequence[str],
        surface: Surface | Free,
        metric: Metric | None,
        rhythm: Rhythm,
        lanes: Lanes,
        state: Any,
        reference: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks  # that share the parameters; None where this process has them all
        self.group, self.names, self.lanes, self.state = group, list(names), lanes, state
        self.surface, self.metric, self.rhythm, self.reference = surface, metric, rhythm, reference
        self.trained = [param.requires_grad for param in group["params"]]
        self.numbers: dict[str, Any] = {}
        self.leader: Row | None = None  # that moves these parameters and those of other parts with equal settings
        self.word = parse(group["word"])
        self.chosen = self.choices()
        self.know()
        self.forget()

    def know(self) -> None:
        """Remember which parameters these are: others may be put in their place."""
        self.given = self.group["params"]
        self.first = list(self.given)  # no weak references: torch refuses to move a module whose parameters have any

    def forget(self) -> None:
        """Make bodies and programs anew at the next step: state or parameters are others."""
        self.known: dict[Any, tuple[Any, Any, Composed]] = {}
        self.made: list[Any] | None = None
        self.without: list[torch.Tensor] = []  # parameters that never had a gradient
        self.momenta = False
        self.fields: tuple[Any, ...] = ()
        self.varies = True  # are there tensors among the fields? They are looked at in every step

    # reading the table

    def choices(self) -> tuple[Any, ...]:
        group = self.group
        return tuple([group[name] for name in CHOICES])

    def read(self) -> None:
        """Take the fields as they are now: schedulers and users may have changed them."""
        group = self.group
        fields = read_in(group)
        if self.varies or not equal(fields, self.fields):
            self.look(fields)
        ξ = group["thermostat"]
        if ξ is self.values["ξ"]:
            return
        if not (isinstance(ξ, torch.Tensor) and ξ.dim() == self.lanes.batched):
            replicas = self.lanes.rows if self.lanes.batched else 0
            number(f"part {group['where']!r}", "thermostat", ξ, allow_negative=True, replicas=replicas)
        self.values["ξ"] = ξ

    def look(self, fields: tuple[Any, ...]) -> None:
        """Check fields that are not what they were, and obey them; tensors may be others at every step."""
        check_kinds(self.group)
        if self.choices() != self.chosen:
            self.change()
            fields = read_in(self.group)
        if self.metric is not None:  # a temperature may be one that it refuses
            self.metric.check(f"part {self.group['where']!r}", {**self.group, "on": self.surface})
        replicas = self.lanes.rows if self.lanes.batched else 0
        self.values = symbols(self.group, self.numbers, replicas)
        self.entries = entries_in(self.group, replicas)
        self.still = zero(self.values["lr"])  # a step of no length moves nothing
        self.varies = any(isinstance(value, torch.Tensor) for value in fields)
        self.fields = fields

    def change(self) -> None:
        """Obey a choice that somebody has changed, or refuse it; nothing has moved."""
        group, where = self.group, f"part {self.group['where']!r}"
        for name, own in (("on", self.surface), ("metric", self.metric)):
            if group[name] != (None if own is None else repr(own)):
                raise ValueError(
                    f"{where}: {name}={group[name]!r} was changed from {own!r}, which is chosen when the optimizer is "
                    f"built: build a new one with {name}=..."
                )
        row = {**group, "on": self.surface, "metric": self.metric}
        if isinstance(group["rhythm"], str) and group["rhythm"] != repr(self.rhythm):
            raise TypeError(
                f"{where}: rhythm={group['rhythm']!r} must be a rhythm, not its name, e.g. "
                f"group['rhythm'] = tether.Every(5); it was {self.rhythm!r}"
            )
        if group["rhythm"] == repr(self.rhythm):  # then the short forms speak
            fields = {**SHORT, **self.rhythm.fields()}
            changed = any(group[name] != value for name, value in fields.items())
            row["rhythm"] = None if changed else self.rhythm
        rhythm = rhythm_of(where, row)
        word = check_word(where, row)
        rhythm.check(where, row)
        if rhythm != self.rhythm:
            commit(self.rhythm.rise(self))
            self.rhythm = rhythm
            group.update({**SHORT, **rhythm.fields(), "rhythm": repr(rhythm)})
            commit(rhythm.start(self))
        if word is not self.word:
            self.word = word
            self.seed_thermostat()
        self.chosen = self.choices()

    def seed_thermostat(self) -> None:
        """A thermostat is a tensor where the word has one: for each replica, or for the part."""
        group, params = self.group, self.group["params"]
        if "ξ" not in self.word.needs and not (self.lanes.batched and isinstance(group["thermostat"], torch.Tensor)):
            return
        device = params[0].device if params else torch.device("cpu")
        ξ = torch.as_tensor(group["thermostat"], dtype=host.wide(device), device=device)
        group["thermostat"] = ξ.expand(self.lanes.rows).clone() if self.lanes.batched else ξ.clone()

    # a step

    def begin(self, gradient: bool = True, resting: Sequence[int] = (), bad: torch.Tensor | None = None) -> None:
        """Gather what a step needs, changing nothing but making momenta at rest.

        `bad` is known to the device alone: where it is true, nothing may move in this step.
        """
        momenta, self.resting, self.bad = "p" in self.word.needs or self.rhythm.tested, resting, bad
        stale = self.made is None or (momenta and not self.momenta)
        stale = stale or any(param.grad is not None for param in self.without)
        if stale or not all(body.kept.still() for body in self.made or ()):
            self.make(momenta)
        assert self.made is not None
        gradient = gradient and self.rhythm.due(self.group["step"])
        for body in self.made:
            body.begin(self.values["ω"], gradient, resting)
            body.bad, body.fields, body.step = bad, self.entries, self.group["step"]
        self.bodies: list[Any] = [body for body in self.made if body.live]
        self.scalars = dict(self.values)
        self.scalars["N"] = count = sum([body.degrees for body in self.bodies])
        if self.group["normalised"] and count:
            self.scalars["ε"] = self.scalars["ε"] / count
        if "ξ" in self.word.needs and self.bodies and not self.still:
            self.follow()

    def follow(self) -> None:
        """Raise unless the letters can follow the thermostat with this step size."""
        check_thermostat(self.group, self.scalars, self.state, self.resting, self.readable, self.ranks)

    def make_state(self) -> None:
        """Make momenta and points of all that is trained now, not at the first step."""
        self.make("p" in self.word.needs, early=True)
        self.made = None

    def make(self, momenta: bool, early: bool = False) -> None:
        """The bodies: free tensors by dtype and device, constrained ones by shape."""
        self.made = None  # until all of it is there: an interrupt must not leave half of it
        named = list(zip(self.group["params"], self.names, strict=True))
        moves = [param.grad is not None or "momentum" in self.state.get(param, {}) for param, _ in named]
        if early:
            moves = self.trained
        if isinstance(self.surface, Surface) and self.surface.together:
            moves = [any(moves)] * len(moves)
        self.without = [param for (param, _), yes in zip(named, moves, strict=True) if not yes]
        chosen = [pair for pair, yes in zip(named, moves, strict=True) if yes]
        for param, name in chosen:
            check_shape(name, param)
        made: list[Any]
        if self.ranks is None and self.bound and isinstance(self.surface, Surface):
            found = stacks([param for param, _ in chosen], [name for _, name in chosen], self.surface)
            made = [Moving(mine, own, self.state, momenta, self.lanes, self.surface) for mine, own in found]
        else:
            made = self.blocks(chosen, momenta)
        self.momenta = momenta
        self.readable = all(host.reads(body.device) for body in made)
        self.made = made

    def blocks(self, chosen: Sequence[tuple[torch.Tensor, str]], momenta: bool) -> list[Any]:
        """Parameters and their names as bodies: those that are alike together."""
        if self.ranks is not None:
            return self.ranks.bodies(self, chosen, momenta)
        alike: dict[Any, tuple[list[torch.Tensor], list[str]]] = {}
        for param, name in chosen:
            momentum = self.state.get(param, {}).get("momentum")
            if momentum is not None and momentum.shape != param.shape:
                raise replaced(name, param, "momentum", momentum)
            mine, own = alike.setdefault((param.dtype, param.device), ([], []))
            mine.append(param)
            own.append(name)
        rest = self.state, momenta, self.lanes
        found = [Block(mine, own, *rest, keeps=self.keeps) for mine, own in alike.values()]
        for block in found:
            block.surface = self.surface
        return found

    @property
    def bound(self) -> bool:
        """Does the surface move the bodies? Not where a metric leads along it."""
        return isinstance(self.surface, Surface) and not (self.metric is not None and self.metric.guides)

    @property
    def keeps(self) -> Sequence[str]:
        """The state that the metric keeps for each entry."""
        return () if self.metric is None else self.metric.keeps

    def enter(self, measured: Mapping[str, Any]) -> None:
        """Take this step in the row's metric."""
        assert self.metric is not None
        whole = "p" in self.word.needs or noisy(self.word, self.values)
        self.bodies = [self.metric.enter(body, measured, whole) or body for body in self.bodies]

    def play(self, beats: tuple[Beat, ...], times: Any = 1.0, bodies: Any = None, draw: int = 0) -> int:
        """Let bodies plan these beats with a step `times` as long; returns the next free draw."""
        bodies = self.bodies if bodies is None else bodies
        if not beats or not bodies:
            return draw
        composed, name = self.composed(beats, times, draw), (self.group["seed"], self.group["step"])
        whole = composed.whole
        if composed.thermostat:
            self.with_thermostat(composed, bodies, name)
        elif whole is not None:
            for body in bodies:
                body.take(whole, name)
        else:
            in_pieces(bodies, composed.pieces, 0.0, name)
        return composed.draw

    def in_turn(self, beats: tuple[Beat, ...]) -> Generator[torch.Tensor, torch.Tensor, None]:
        """Let the bodies plan these beats; wherever pᵀp is needed, yield that of this process and take that of all."""
        ξ = self.thermostat()
        start = ξ.item() if self.readable and not ξ.dim() else ξ
        name = self.group["seed"], self.group["step"]
        found = yield from in_turn(self.bodies, self.composed(beats).pieces, start, name)
        self.scalars["ξ"] = torch.as_tensor(found, dtype=ξ.dtype, device=ξ.device)

    def composed(self, beats: tuple[Beat, ...], times: Any = 1.0, draw: int = 0) -> Composed:
        """The beats as programs, kept as long as the fields are what they were."""
        group, scalars = self.group, self.scalars
        before, now = group["previous_lr"], self.values["lr"]
        if isinstance(times, torch.Tensor) or times != 1:
            before, now = before * times, now * times
        values = (before, now, draw, *[scalars[s] for s in FIELDS])
        known = self.known.get(id(beats))  # of the beats themselves, which their word keeps
        if known is None or known[0] is not beats or not same(known[1], values):
            how = self.bound, self.reference
            known = self.known[id(beats)] = (beats, values, compose(beats, (before, now), scalars, draw, *how))
        return known[2]

    def thermostat(self) -> torch.Tensor:
        """ξ as the step has found it."""
        ξ = self.scalars["ξ"]
        if not isinstance(ξ, torch.Tensor) or ξ.device != self.group["params"][0].device:  # the model was moved
            self.seed_thermostat()
            self.scalars["ξ"] = self.group["thermostat"]
        found: torch.Tensor = self.scalars["ξ"]
        return found

    def with_thermostat(self, composed: Composed, bodies: Sequence[Any], name: tuple[int, int]) -> None:
        """The same where ξ takes part: a body that can take all of it does, else all go piece by piece."""
        ξ, whole = self.thermostat(), composed.whole
        if whole is not None and len(bodies) == 1 and bodies[0].kernel is True:
            self.scalars["ξ"] = new = ξ.clone() if ξ.dtype is torch.float64 else ξ.double()
            bodies[0].take(whole, name, new)
        else:
            found = in_pieces(bodies, composed.pieces, ξ.item() if self.readable and not ξ.dim() else ξ, name)
            self.scalars["ξ"] = torch.as_tensor(found, dtype=ξ.dtype, device=ξ.device)

    def twin(self) -> list[tuple[Any, Any]]:
        """Bodies that move copies of the tensors by the same gradients, each with the one it is a copy of."""
        return [(body.twin(), body) for body in self.bodies]

    def writes(self) -> list[Write]:
        """What the bodies have planned, and the thermostat."""
        if self.metric is not None and self.metric.leaves:
            writes = [one for body in self.bodies for one in self.metric.leave(body, self.values["lr"])]
        else:
            writes = [one for body in self.bodies for one in body.writes()]
        if "ξ" in self.word.needs and self.bodies:
            writes += self.thermostat_after()
        return writes

    def thermostat_after(self) -> list[Write]:
        """What the commit must do with ξ, which the bodies have changed by then."""
        ξ, before, writes = self.scalars["ξ"], self.group["thermostat"], list[Write]()
        if self.resting and ξ.dim():
            rest = host.indices(self.resting, ξ.device)
            writes.append(write(ξ.index_copy_, 0, rest, before[rest]))
        ξ = ξ if self.bad is None else kept(self.bad, before, ξ)
        return [*writes, write(self.group.__setitem__, "thermostat", ξ)]

    # what a step may change, for those who must put it back

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and their state."""
        params = self.group["params"]
        return [*params, *(x for param in params for x in self.state.get(param, {}).values() if x.dim())]

    @torch.no_grad()
    def let_go(self) -> None:
        """Give back what the rhythm holds between steps."""
        give_back(self.slow())
        commit(self.rhythm.rise(self))

    def dismiss(self) -> None:
        """The same, when the optimizer is garbage: the collector may come inside a functorch transform.

        There torch refuses to write to tensors from outside. A transform belongs to its thread: another one may write.
        """
        try:
            self.let_go()
        except RuntimeError:
            helper = threading.Thread(target=self.let_go)
            helper.start()
            helper.join()

    def slow(self) -> list[torch.Tensor]:
        """The trained parameters, where some steps need no gradient of them."""
        if self.rhythm.every == 1:
            return []
        return [param for param, yes in zip(self.group["params"], self.trained, strict=True) if yes]


def equal(fields: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Are no fields others than before, when none was a tensor?"""
    try:
        return fields == before
    except (RuntimeError, ValueError, TypeError):  # one is a tensor now, of several numbers or of none
        return False


def same(xs: tuple[Any, ...], ys: tuple[Any, ...]) -> bool:
    """Equal numbers, or the very same tensors: to compare two would be to look at their numbers."""
    for x, y in zip(xs, ys, strict=True):
        if x is not y and (isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor) or x != y):
            return False
    return True
