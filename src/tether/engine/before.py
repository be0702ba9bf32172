"""Before: parameters and state as they were before a step that writes on its way, to take a step back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from tether.engine import host
from tether.engine.commit import Write, local, write
from tether.engine.rows import Row

__all__ = ["Before"]


class Before:
    """Copies of all that a step changes."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.saved = []
        for row in rows:
            for param in row.group["params"]:
                own = {key: local(x).clone() for key, x in row.state.get(param, {}).items()}
                self.saved.append((row, param, local(param).detach().clone(), own))
        self.thermostats = [(row.group, row.group["thermostat"]) for row in rows]

    def everything(self) -> list[Write]:
        """The writes that undo the step."""
        back = self.of(lambda param: True)
        return [*back, *[write(group.__setitem__, "thermostat", ξ) for group, ξ in self.thermostats]]

    def of(self, chosen: Callable[[torch.Tensor], bool]) -> list[Write]:
        """The writes that undo the step for the parameters that this is true of."""
        return [write(x.copy_, old) for param, x, old, _ in self.pairs() if chosen(param)]

    def replicas(self, chosen: Sequence[int], rest: bool = False) -> list[Write]:
        """The writes that undo the step for some replicas, with momenta as they were or at rest."""
        writes = []
        for _, x, old, momentum in self.pairs():
            at = host.indices(chosen, x.device)
            value = torch.zeros_like(old[at]) if rest and momentum else old[at]
            writes.append(write(x.index_copy_, 0, at, value))
        return writes

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]]:
        """For each parameter the tensors that may have changed, what they were, and whether they are momenta."""
        for row, param, value, own in self.saved:
            yield param, local(param).detach(), value, False
            for key, x in row.state.get(param, {}).items():
                if key in own:
                    yield param, local(x), own[key], key == "momentum"
                elif key == "momentum":  # made by this step: at rest
                    yield param, local(x), torch.zeros_like(local(x)), True
