"""Empty: parameters on a surface of which this process holds nothing. They have state and degrees of freedom alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether.engine.blocks import Lanes, Owned
from tether.engine.commit import Write
from tether.engine.pieces import Whole
from tether.engine.placed import Stack
from tether.surfaces import Surface

__all__ = ["Empty"]


class Empty(Stack):
    """A body that moves nothing."""

    kernel = None
    bad: torch.Tensor | None = None

    def __init__(
        self,
        owners: list[torch.Tensor],
        names: list[str],
        state: Mapping[torch.Tensor, Any],
        momenta: bool,
        lanes: Lanes,
        surface: Surface,
        cut: Whole,
    ) -> None:
        super().__init__(owners, names, surface, lanes, cut)
        kept: dict[str, list[torch.Tensor]] = {}
        for key, needed in (("momentum", momenta), ("point", surface.slack)):
            if needed:
                shape = self.coordinates
                kept[key] = [cut.keep(i, torch.empty(shape, dtype=self.wide)) for i in range(len(owners))]
                for owner, x in zip(owners, kept[key], strict=True):
                    state[owner][key] = x
        self.kept = Owned(owners, state, kept)

    def begin(self, weight_decay: Any, gradient: bool = True, resting: Sequence[int] = ()) -> None:
        count = sum(param.grad is not None for param in self.home) if gradient else len(self.home)
        self.live, self.degrees = count > 0, count * self.surface.dimension(self.cut.shape(self.shape))

    def take(self, *_: Any) -> None: ...
    def apply(self, *_: Any) -> None: ...
    def remember_gradient(self) -> None: ...

    def square(self) -> torch.Tensor:
        return torch.zeros((), dtype=self.wide, device=self.device)

    def writes(self) -> list[Write]:
        return []
