"""Joint: parts with equal settings and a thermostat each, which the kernel moves in one call.

Every tensor has the ξ of its own part there, and pᵀp and N are those of the part. So the parts move as each alone, to
the bit. Where the kernel cannot take the step, each plans its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import torch

from tether.engine import host
from tether.engine.commit import Write, write
from tether.engine.interpreter import Composed
from tether.engine.rows import Row
from tether.engine.thermostat import FASTEST, STRONGEST, check_thermostat, furthest_from_zero

__all__ = ["Joint"]


class Joint(Row):
    """A row with the parameters of several rows, its members; ξ is that of each member, one after the other."""

    def __init__(self, members: Sequence[Row], *rest: Any) -> None:
        self.members, self.held, self.ξ = members, list[torch.Tensor](), torch.empty(0, device="cpu")
        self.part = {name: k for k, row in enumerate(members) for name in row.names}
        self.counts, self.N = list[int](), self.ξ
        self.shared: tuple[Any, ...] = ()
        super().__init__(*rest)

    def blocks(self, chosen: Sequence[tuple[torch.Tensor, str]], momenta: bool) -> list[Any]:
        found = super().blocks(chosen, momenta)
        for block in found:
            block.share_out([self.part[name] for name in block.names])
        return found

    def read(self) -> None:
        """The fields of all, and ξ of each: what the last step left, unless somebody has set one."""
        super().read()
        given = [row.group["thermostat"] for row in self.members]
        if len(given) != len(self.held) or any(map(is_not, given, self.held)):
            for row in self.members:
                row.read()
                row.scalars = dict(row.values)
            held = [row.thermostat() for row in self.members]
            self.ξ = torch.stack(held).flatten()
            self.held = held  # last: after an interrupt before this line all are read again
        self.values["ξ"] = self.ξ

    def follow(self) -> None:
        self.count()
        self.check()

    def count(self) -> None:
        """N of each member, and ε/N; ξ of a member that does not move is to stay what it was."""
        found = [0] * len(self.members)
        for body in self.bodies:
            for i in body.active:
                found[body.part[i]] += body.counts[i] // body.rows
        if found != self.counts:
            self.N = torch.tensor(found, dtype=torch.float64, device="cpu").repeat_interleave(self.lanes.rows)
            self.counts = found
        self.scalars["N"] = self.N  # the same tensor as long as these are the same numbers, and so is ε/N
        if self.group["normalised"]:
            if not self.shared or self.shared[0] != self.values["ε"] or self.shared[1] is not self.N:
                self.shared = self.values["ε"], self.N, self.values["ε"] / self.N.clamp_min(1)
            self.scalars["ε"] = self.shared[2]

    def check(self) -> None:
        """Look at all members at once; where there is a doubt, each looks at its own."""
        h, ε, τ = (self.values[name] for name in ("lr", "ε", "τ"))
        most = 1 if self.group["normalised"] else max(self.counts)
        if 2 * h * h * ε * most * τ <= 0.999 * FASTEST and abs(h) * furthest_from_zero(self.ξ) <= STRONGEST:
            return
        for row, count, ξ in zip(self.members, self.counts, self.held, strict=True):
            if count:
                share = ε / count if self.group["normalised"] else ε
                size = {**self.values, "ε": share, "N": count, "ξ": ξ}
                check_thermostat(row.group, size, self.state, self.resting)

    def with_thermostat(self, composed: Composed, bodies: Sequence[Any], name: tuple[int, int]) -> None:
        whole, planned = composed.whole, None
        self.scalars["ξ"] = new = self.ξ.clone()
        if whole is not None and len(bodies) == 1 and bodies[0].kernel is True and whole.suits_kernel:
            bodies[0].name, bodies[0].ξ = name, new
            planned = bodies[0].by_kernel(whole)
        self.apart = planned is None
        if planned is not None:
            bodies[0].after += planned

    def writes(self) -> list[Write]:
        """What the kernel is to do, or what the members have planned in its place."""
        if not self.apart:
            return super().writes()
        found: list[Write] = []
        for row in self.members:
            row.read()
            row.begin(True, self.resting, self.bad)
            found += row.rhythm.plan(row) if row.bodies else []
        return found

    def thermostat_after(self) -> list[Write]:
        new, writes = self.scalars["ξ"], list[Write]()
        each, before = new.view(len(self.members), -1), self.ξ.view(len(self.members), -1)
        if self.resting:
            rest = host.indices(self.resting, new.device)
            writes.append(write(each.index_copy_, 1, rest, before[:, rest]))
        self.ξ, self.held = new, list((each if self.lanes.batched else new).unbind())
        pairs = zip(self.members, self.held, strict=True)
        return [*writes, *[write(row.group.__setitem__, "thermostat", ξ) for row, ξ in pairs]]
