"""The record of a run: its losses and what its callbacks returned, row by row."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Log", "Record"]


@dataclass
class Record:
    """The record of a run. With replicas every row has one number for each."""

    steps: list[int] = field(default_factory=list)  # the steps after which the rows below were taken
    losses: torch.Tensor = field(
        default_factory=lambda: torch.empty(0, device="cpu")
    )  # minibatch losses: rows, or rows × replicas
    # what the callbacks returned, by name: rows × its shape, or a list of rows if the shape changed during the run
    metrics: dict[str, Any] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)  # replica → the step at which it diverged

    def __str__(self) -> str:
        if not self.steps:
            return "nothing recorded"
        last = self.losses[-1].flatten()
        spread = f" ± {float(last.std()):.2g}" if len(last) > 1 else ""
        text = f"{self.steps[-1]:,} steps, loss {float(last.mean()):.4g}{spread}"
        return text + (f", stopped: replica {', '.join(map(str, self.stopped))}" if self.stopped else "")


class Log:
    """A record that is being written."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.stopped = record.stopped
        self.losses: list[torch.Tensor] = list(record.losses)
        self.metrics: dict[str, list[torch.Tensor]] = {name: list(rows) for name, rows in record.metrics.items()}

    def add(self, step: int, losses: torch.Tensor) -> None:
        """Add the losses of a step."""
        self._record.steps.append(step)
        self.losses.append(losses.detach().clone())

    def note(self, step: int, found: Any) -> None:
        """Add what a callback returned. A change of its shape is allowed, with one warning."""
        if found is None:
            return
        if not isinstance(found, Mapping):
            raise TypeError(f"a callback returned {found!r}: return None or values by name, e.g. {{'accuracy': 0.9}}")
        for name, value in found.items():
            try:
                row = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
            except (TypeError, ValueError, RuntimeError) as error:
                raise TypeError(f"a callback returned {name!r}: {value!r}, which is no number or tensor") from error
            rows = self.metrics.setdefault(name, [])
            if rows and row.shape != rows[-1].shape and _alike(rows):
                warnings.warn(
                    f"a callback returned {name!r} of shape {tuple(row.shape)} at step {step}, and of shape "
                    f"{tuple(rows[-1].shape)} before: record.metrics[{name!r}] is a list of rows",
                    stacklevel=3,
                )
            rows.append(row.detach().clone())

    def record(self) -> Record:
        """The record so far."""
        self._record.losses = torch.stack(self.losses) if self.losses else torch.empty(0, device="cpu")
        self._record.metrics = {
            name: torch.stack(rows) if _alike(rows) else list(rows) for name, rows in self.metrics.items()
        }
        return self._record


def _alike(rows: list[torch.Tensor]) -> bool:
    return len({row.shape for row in rows}) == 1
