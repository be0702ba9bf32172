"""Every: a slow part, whose gradient is computed once in k steps (chapter 5 of the thesis)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tether.rhythms.rhythm import Rhythm, RhythmError, one_gradient, whole_steps

if TYPE_CHECKING:
    from tether.engine.rows import Row
    from tether.words import Beat

__all__ = ["Every"]


class Every(Rhythm):
    """The part makes one step for k steps of the optimizer. Between them its gradient is not computed.

    >>> import torch, tether
    >>> body, head = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    >>> parts = [tether.Part("body", rhythm=Every(3)), tether.Part("head")]
    >>> opt = tether.Optimizer([("body", body), ("head", head)], parts, lr=1.0)
    >>> for _ in range(6):
    ...     body.grad, head.grad = torch.ones(1), torch.ones(1)
    ...     opt.step()
    >>> body.item(), head.item()
    (-2.0, -6.0)

    Args:
        k: the number of steps of the optimizer for one step of the part.
        drift: spread the drift of a word that ends in one (OBA, MS) over those steps (Algorithm 5.1); False makes it in
            one step (5.2).
    """

    def __init__(self, k: int, drift: bool = True) -> None:
        self.every, self.drift = whole_steps("", "every", k), drift

    def __repr__(self) -> str:
        return f"Every({self.every}{'' if self.drift else ', drift=False'})"

    def fields(self) -> dict[str, Any]:
        return {"every": self.every, "drift": self.drift}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        one_gradient(self, part, row)
        if row["metric"] is not None:
            raise RhythmError(
                f"{part}: {row['metric']!r} changes at every step and cannot go with every={self.every!r}"
            )

    def due(self, step: int) -> bool:
        return step % self.every == 0

    def beats(self, row: Row) -> tuple[Beat, ...]:
        return row.word.on_clock(self.every, self.due(row.group["step"]), self.drift)
