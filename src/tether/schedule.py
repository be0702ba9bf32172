"""Schedule: change any numeric field of a part over time, as torch's schedulers change lr."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

from tether.optimizer import Optimizer
from tether.part import NUMERIC, RULES, matches, number

__all__ = ["Schedule"]


class Schedule:
    """Multiply a field of the matching parts by ``factor(t)`` after t calls of `step`.

    As in torch's LambdaLR the factor multiplies the value that the field had at the start, and it is applied once on
    construction (t = 0). `state_dict` holds plain numbers; the factor is code and is not saved.

    >>> from tether import Optimizer
    >>> opt = Optimizer([("w", torch.nn.Parameter(torch.zeros(3)))], lr=0.1, word="BAOAB", temperature=1e-3)
    >>> anneal = Schedule(opt, "temperature", lambda t: 0.5 ** t)
    >>> anneal.step()
    >>> anneal.last_values
    [0.0005]
    """

    def __init__(self, optimizer: Optimizer, field: str, factor: Callable[[int], float], *, where: str = "*") -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"a Schedule needs a tether.Optimizer, got {type(optimizer).__name__}")
        if field not in NUMERIC:
            raise ValueError(f"cannot schedule {field!r}; numeric fields of a part are {', '.join(NUMERIC)}")
        self.optimizer, self.field, self.factor = optimizer, field, factor
        labels = [group["where"] for group in optimizer.param_groups]
        self.parts = [i for i, label in enumerate(labels) if where == label or matches(label, where)]
        if not self.parts:
            raise ValueError(f"no part is called {where!r}; parts are {', '.join(map(repr, labels))}")
        self.start = [_plain(optimizer.param_groups[i][field]) for i in self.parts]
        self.t = 0
        self._apply(self.t, self.start)

    @property
    def last_values(self) -> list[Any]:
        """The current value of the field in each scheduled part; a list if every replica has its own."""
        return [_plain(self.optimizer.param_groups[i][self.field]) for i in self.parts]

    def step(self) -> None:
        """Advance by one and set the field; call it after ``opt.step()``."""
        self._apply(self.t + 1, self.start)
        self.t += 1

    def _apply(self, t: int, start: list[Any]) -> None:
        """Set the field to its value at t. If that is not valid, raise and set nothing."""
        where = f"Schedule at t={t}"
        factor = self.factor(t)
        if not isinstance(factor, Real | torch.Tensor):
            raise TypeError(f"{where}: factor={factor!r} is not a number")
        values = []
        for x in start:
            scaled = [float(factor) * y if factor else 0.0 for y in (x if isinstance(x, list) else [x])]
            values.append([number(where, self.field, y, **RULES.get(self.field, {})) for y in scaled])
        for i, value in zip(self.parts, values, strict=True):
            group = self.optimizer.param_groups[i]
            if isinstance(group[self.field], torch.Tensor):
                group[self.field].copy_(torch.tensor(value).view(group[self.field].shape))
            else:
                group[self.field] = value[0]

    def state_dict(self) -> dict[str, Any]:
        """The time and the start values, as plain numbers."""
        return {"t": self.t, "field": self.field, "parts": list(self.parts), "start": list(self.start)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the field is set to its value there."""
        if state["field"] != self.field or state["parts"] != self.parts:
            raise ValueError(
                f"this schedule sets {self.field!r} of parts {self.parts}, the saved one {state['field']!r} of parts "
                f"{state['parts']}: build it as it was saved"
            )
        self._apply(state["t"], list(state["start"]))
        self.t, self.start = state["t"], list(state["start"])


def _plain(value: Any) -> Any:
    """A number, or a list with one for each replica or entry."""
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist() if value.dim() else value.item()
    return float(value)
