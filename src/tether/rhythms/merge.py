"""Merge: two copies of a part on two time scales, both replaced by their mean (section 5.9.3 of the thesis)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import local, write
from tether.rhythms.rhythm import Rhythm, RhythmError, one_gradient, whole_steps
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.engine.blocks import Block
    from tether.engine.commit import Write
    from tether.engine.rows import Row

__all__ = ["Merge"]


class Merge(Rhythm):
    """A slow copy makes one step of h·k while the part makes k steps of h. Then both are set to their mean.

    Both start from the same point, so the slow copy uses the first gradient of the cycle and needs no other. It has its
    own momenta.

    >>> import tether
    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> opt = tether.Optimizer([("weight", weight)], lr=1.0, rhythm=Merge(2))
    >>> for gradient in (1.0, 3.0):
    ...     weight.grad = torch.full((1,), gradient)
    ...     opt.step()
    >>> weight.item()  # the part has moved by −1 − 3, its slow copy by −2 · 1
    -3.0

    Args:
        k: the number of steps of the part for one step of the slow copy.
    """

    def __init__(self, k: int) -> None:
        self.k = whole_steps("", "merge", k)

    def __repr__(self) -> str:
        return f"Merge({self.k})"

    def fields(self) -> dict[str, Any]:
        return {"merge": self.k}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        one_gradient(self, part, row, same_step=True)
        if isinstance(row["on"], Surface) or row["metric"] is not None:
            other = row["on"] if isinstance(row["on"], Surface) else row["metric"]
            raise RhythmError(f"{part}: merge={self.k} takes a mean, which {other!r} does not support: choose one")

    def start(self, row: Row) -> list[Write]:
        for param in row.group["params"]:
            if param.requires_grad:
                self.copies(row, param)
        return []

    def copies(self, row: Row, param: torch.Tensor) -> dict[str, torch.Tensor]:
        """The slow copy of a parameter, and its momenta if the word has any."""
        own: dict[str, torch.Tensor] = row.state[param]
        if "slow copy" not in own:
            own["slow copy"] = param.detach().clone()
        if "p" in row.word.needs and "slow momentum" not in own:
            own["slow momentum"] = torch.zeros_like(param, requires_grad=False)
        for key in own.keys() & {"slow copy", "slow momentum"}:
            own[key] = own[key].to(param)  # the same tensor, unless the model has changed its precision
        return own

    def plan(self, row: Row) -> list[Write]:
        phase = row.group["step"] % self.k
        draws = row.play(row.word.program)
        writes = row.writes()
        if phase == 0:
            writes = [*self.slow_step(row, draws), *writes]
        if phase == self.k - 1:
            for body in row.bodies:
                params = body.pick(body.params)
                slow = [local(self.copies(row, owner)["slow copy"]) for owner in body.pick(body.home)]
                if params:
                    writes += mean(body, params, slow)
        return writes

    def slow_step(self, row: Row, draws: int) -> list[Write]:
        """The step of the slow copy, from the current parameters."""
        twins = []
        for body in row.bodies:
            own = [self.copies(row, owner) for owner in body.pick(body.home)]
            slow = [local(state["slow copy"]) for state in own]
            twins.append(body.beside(slow, [local(state["slow momentum"]) for state in own] if body.p else []))
            torch._foreach_copy_(slow, body.pick(body.params))  # somebody may have written to them since the last mean
        row.play(row.word.program, times=self.k, bodies=twins, draw=draws)
        return [one for twin in twins for one in twin.writes()]


def mean(body: Block, params: list[torch.Tensor], slow: list[torch.Tensor]) -> list[Write]:
    """The writes that set both copies to their mean; if the step turns out to be a bad one, they stay apart."""
    if body.bad is None:
        return [write(torch._foreach_lerp_, params, slow, 0.5), write(torch._foreach_copy_, slow, params)]
    half = torch.where(body.bad, 0.0, 0.5).to(params[0].dtype)
    if body.room is None:
        away = [torch.empty_like(x) for x in params]
    else:
        body.room.buffer("away")
        away = body.pick(body.room.views["away"])
    return [
        write(torch._foreach_copy_, away, slow),
        write(torch._foreach_sub_, away, params),
        write(torch._foreach_mul_, away, half),
        write(torch._foreach_add_, params, away),
    ]  # the next step of the slow copy begins from the parameters
