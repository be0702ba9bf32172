"""Readings: what an optimizer tells of its momenta and of its surfaces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tether.engine.blocks import Lanes
from tether.engine.commit import local
from tether.engine.pieces import Ranks
from tether.engine.placed import Stack, degrees, stacks
from tether.engine.rows import Row
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["Squares", "acceptance", "furthest", "largest_violation", "squares", "temperatures"]


class Squares(NamedTuple):
    """pᵀM⁻¹p of one tensor, or of all that a surface holds together, for each replica."""

    name: str
    sums: torch.Tensor
    degrees: int


def squares(opt: Optimizer, row: Row) -> Iterator[Squares]:
    """pᵀM⁻¹p of the tensors of a part that have momenta; nothing for a part that is overdamped."""
    if not (row.word.kinetic or isinstance(row.surface, Surface)):
        return
    lanes, params = opt.lanes, row.group["params"]
    named = [(name, x) for name, x in zip(row.names, params, strict=True) if "momentum" in opt.state.get(x, {})]
    sums = []
    for _, x in named:
        state = {key: local(value).detach() for key, value in opt.state[x].items()}
        squared, own = state["momentum"].double().square(), 1.0 if row.metric is None else row.metric.mass(state)
        sums.append((squared / (masses(row, squared) * own)).reshape(lanes.rows, -1).sum(1).cpu())
    if row.ranks is not None and named:
        each = [row.ranks.share(x) * one for (_, x), one in zip(named, sums, strict=True)]
        sums = list(row.ranks.total(torch.stack(each)))
    if named and getattr(row.surface, "together", False):
        yield Squares("", torch.stack(sums).sum(0), degrees(row.surface, params, lanes))
        return
    for (name, x), found in zip(named, sums, strict=True):
        yield Squares(name, found, degrees(row.surface, [x], lanes))


def masses(row: Row, like: torch.Tensor) -> Any:
    """The mass of a part, so that momenta like these can be divided by it."""
    m, lanes = row.group["mass"], row.lanes
    if not isinstance(m, torch.Tensor):
        return m
    m = m.detach().to(like)
    per_replica = m.dim() == 1 and lanes.batched and len(m) == lanes.rows
    return m.view(-1, *[1] * (like.dim() - 1)) if per_replica else m


def temperatures(opt: Optimizer) -> dict[str, Any]:
    """pᵀM⁻¹p/N of each part; nan where it has no momenta."""
    result: dict[str, Any] = {}
    for label, row in zip(opt.labels(), opt.rows, strict=True):
        total, count = torch.zeros(opt.lanes.rows, dtype=torch.float64, device="cpu"), 0
        for one in squares(opt, row):
            total, count = total + one.sums, count + one.degrees
        each = total / count if count else total + math.nan
        result[label] = each if opt.replicas else float(each)
    return result


def acceptance(opt: Optimizer) -> Any:
    """Accepted proposals over all of them; nan where there was none."""
    none = torch.zeros(2, *[opt.lanes.rows] * opt.replicas, dtype=torch.int64, device="cpu")
    proposed, accepted = opt.rows[0].group.get("tested", none).double()
    return accepted / proposed if opt.replicas else float(accepted / proposed)


def largest_violation(opt: Optimizer) -> Any:
    """|g| where it is largest; with replicas one for each."""
    worst = torch.zeros(opt.lanes.rows, dtype=torch.float64, device="cpu")
    for row in opt.rows:
        if not isinstance(row.surface, Surface):
            continue
        # a part between its steps asks for no gradient, and is on its surface all the same
        trained = row.trained if row.slow() else [param.requires_grad for param in row.group["params"]]
        rows = zip(row.names, row.group["params"], trained, strict=True)
        moving = [(name, x) for name, x, yes in rows if yes]
        worst = torch.maximum(worst, furthest(moving, row.surface, opt.lanes, opt.state, opt.ranks))  # nan stays nan
    return worst if opt.replicas else float(worst)


def furthest(
    moving: Sequence[tuple[str, Any]], surface: Surface, lanes: Lanes, state: Any, ranks: Ranks | None
) -> torch.Tensor:
    """|g| where it is largest among parameters on one surface, for each replica."""
    if ranks is not None:
        return ranks.violation(moving, surface, lanes, state).cpu()
    worst = torch.zeros(lanes.rows, dtype=torch.float64, device="cpu")
    for mine, labels in stacks([x for _, x in moving], [name for name, _ in moving], surface):
        stack = Stack(mine, labels, surface, lanes)
        point = stack.surface.embed(stack.point(state), stack.gather(mine))
        each = point.view(-1, lanes.rows, *point.shape[1:]).transpose(0, 1)
        found = torch.stack([stack.surface.violation(replica) for replica in each])
        worst = torch.maximum(worst, found.double().cpu())
    return worst
