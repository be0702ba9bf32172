"""Parts with equal settings move as one, so that a table with a part for each weight costs about as much as one part.

Their free tensors share a block and their matrices of one shape a stack, as those of one part do. They share nothing
else: noise depends on the name of a parameter, its momenta and its point are its own, and every part keeps its counts
and its thermostat.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from tether import native
from tether.engine.joint import Joint
from tether.engine.rows import Row
from tether.part import NUMERIC
from tether.rhythms import Always
from tether.surfaces import Free

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["Gathering", "as_one"]

FOLLOWED = (*NUMERIC, "step", "previous_lr")


class Gathering:
    """The rows of a step: those with equal settings led by one."""

    def __init__(self) -> None:
        self.fields: Sequence[Any] = ()
        self.kinds: list[tuple[Hashable, list[Row]]] = []
        self.rows: list[Row] = []
        self.led: list[tuple[Row, Row]] = []  # a row that moves the parameters of several, and the first of those

    def holds(self, fields: Sequence[Any]) -> bool:
        """Has no field of any part been changed since?"""
        return len(fields) == len(self.fields) and all(map(is_, fields, self.fields))

    def gather(self, rows: Sequence[Row], fields: Sequence[Any]) -> None:
        """Look again at who is equal to whom. A scheduler changes numbers at every step: then leaders stay."""
        alike: dict[tuple[Hashable, ...], list[Row]] = {}
        for i, row in enumerate(rows):
            common = settings(row)
            some = i // native.THERMOSTATS if "ξ" in row.word.needs else 0
            alike.setdefault((*common, some), []).append(row)
        kinds = [(key[0], members) for key, members in alike.items()]
        if kinds != self.kinds:
            self.rows = [members[0] if len(members) == 1 else led(members) for _, members in kinds]
            pairs = list(zip(self.rows, [members for _, members in kinds], strict=True))
            self.led = [(leader, members[0]) for leader, members in pairs if len(members) > 1]
            for leader, members in pairs:
                for row in members:
                    row.leader = leader if len(members) > 1 else None
            self.kinds = kinds
        self.fields = fields  # last: after an interrupt before this line all is done again

    def give_way(self) -> None:
        """Let the members of a leader that cannot move them go alone from now on."""
        for leader in [leader for leader, _ in self.led if leader.apart]:
            for row in leader.members:
                row.leader = None
        self.rows = [one for row in self.rows for one in (row.members if row.apart else [row])]
        self.led = [pair for pair in self.led if not pair[0].apart]


def as_one(opt: Optimizer) -> Sequence[Row]:
    """The rows that a step plans: in the place of several with equal settings one with the parameters of all."""
    if len(opt.rows) < 2 or opt.reference or opt.ranks is not None:
        return opt.rows
    fields = [None if row.varies else row.fields for row in opt.rows]
    if opt.gathering is None:
        opt.gathering = Gathering()
    if not opt.gathering.holds(fields):
        opt.gathering.gather(opt.rows, fields)
    if any(leader.apart for leader, _ in opt.gathering.led):
        opt.gathering.give_way()
    for leader, first in opt.gathering.led:
        for name in FOLLOWED:
            leader.group[name] = first.group[name]
        leader.read()
    return opt.gathering.rows


def settings(row: Row) -> tuple[Hashable, ...]:
    """What parts that move as one have in common: their kind, and numbers, which a leader follows.

    A part moves alone whose parameters are tied to each other, unless the kernel knows by what.
    """
    group, surface = row.group, row.surface
    tied = getattr(surface, "together", False) or ("ξ" in row.word.needs and not joinable(row))
    if tied or row.varies or row.metric is not None or type(row.rhythm) is not Always:
        return (id(row),)
    public = [value for name, value in vars(surface).items() if not name.startswith("_")]
    known = all(isinstance(value, int | float | str | None) for value in public)  # others may differ under one name
    kind = (
        group["word"],
        group["normalised"],
        group["seed"],
        type(surface),
        repr(surface) if known else id(surface),
        id(row.state),
    )
    return (kind, *(group[name] for name in NUMERIC), group["previous_lr"])


def joinable(row: Row) -> bool:
    """Can the kernel move the part, with a thermostat of its own, beside others?"""
    kinds = {(param.dtype, param.device) for param in row.group["params"]}
    return isinstance(row.surface, Free) and all(native.serves(*kind) for kind in kinds)


def led(members: Sequence[Row]) -> Row:
    """A row with the parameters of several."""
    first = members[0]
    group = {**first.group, "params": [param for row in members for param in row.group["params"]]}
    names = [name for row in members for name in row.names]
    rest = first.lanes, first.state, first.reference
    made = (group, names, first.surface, None, first.rhythm, *rest)
    leader = Joint(members, *made) if "ξ" in first.word.needs else Row(*made)
    leader.trained = [trained for row in members for trained in row.trained]
    return leader
