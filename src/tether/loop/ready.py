"""Batches from a DataLoader or any iterable, pass after pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from tether.loop.generators import found_in, restore, states

__all__ = ["ReadyMade"]

EXPECTED = "pass a pair (inputs, targets) of tensors, or an iterable of such pairs as batches, e.g. a DataLoader"
Pair = tuple[Any, Any]


class ReadyMade:
    """Batches as the data give them, resumable in the middle of a pass.

    A shuffled DataLoader draws its order when a pass begins. So for a run that may be resumed the states of the
    generators at the beginning of the pass are kept; restoring them gives the same batches again.
    """

    def __init__(self, data: Any, resumable: bool) -> None:
        _check(data)
        self.data, self.resumable = data, resumable
        self.once = isinstance(data, Iterator)
        if resumable and getattr(data, "persistent_workers", False):
            raise ValueError(
                "persistent workers cannot be resumed in the middle of an epoch: use "
                "DataLoader(..., persistent_workers=False), or no checkpoint"
            )
        self.own = found_in(data)
        self.began: dict[str, Any] | None = None  # the current pass: its first step, and the generators then

    def state(self) -> dict[str, Any]:
        """What is needed to resume from here."""
        return {"pass": self.began, "now": states(self.own)}

    def batches(self, first: int, steps: int, saved: dict[str, Any] | None = None) -> Iterator[tuple[int, Pair]]:
        """The batches of the remaining steps."""
        step = first
        if saved is not None and first >= steps:
            restore(saved["now"], self.own)
        elif saved is not None:
            yield from self._rest_of_the_pass(first, steps, saved)
            step = self.reached
        while step < steps:
            if self.resumable:
                self.began = {"step": step, "generators": states(self.own)}
            before = step
            yield from self._until(steps, step, iter(self.data))
            step = self.reached
            if step < steps and (step == before or self.once):
                raise self._ran_out(step, steps)

    def _rest_of_the_pass(self, first: int, steps: int, saved: dict[str, Any]) -> Iterator[tuple[int, Pair]]:
        self.began = saved["pass"]
        restore(saved["pass"]["generators"], self.own)
        batches = iter(self.data)
        for step in range(saved["pass"]["step"], first):
            if next(batches, None) is None:
                raise self._ran_out(step, steps)
        restore(saved["now"], self.own)
        yield from self._until(steps, first, batches)

    def _until(self, steps: int, step: int, batches: Iterator[Any]) -> Iterator[tuple[int, Pair]]:
        """The rest of a pass. No batch is drawn that is not needed, since drawing changes the generators."""
        self.reached = step
        while self.reached < steps:
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield self.reached, _pair(batch)
            self.reached += 1

    def _ran_out(self, step: int, steps: int) -> ValueError:
        if not self.once:
            return ValueError(f"the data hold no batch at step {step} of {steps}: {EXPECTED}")
        return ValueError(
            f"the data are used up after {step} batches, and steps={steps}: a generator can be used once; "
            f"pass a list of batches or a DataLoader, or an iterator without end"
        )


def _check(data: Any) -> None:
    """Raise for data that are not an iterable of batches."""
    if isinstance(data, torch.Tensor):
        raise TypeError(f"data is one tensor of shape {tuple(data.shape)}, without targets: {EXPECTED}")
    if isinstance(data, dict):
        raise TypeError(f"data is a dict with the keys {', '.join(map(repr, data))}: {EXPECTED}")
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise TypeError(
            f"data is a {type(data).__name__}, which holds points and no batches: "
            "pass DataLoader(data, batch_size=..., shuffle=True)"
        )
    if isinstance(data, tuple | list) and data:
        kinds = [type(part).__name__ for part in data]
        if len(data) <= 2 and not all(isinstance(part, tuple | list) for part in data):
            raise TypeError(f"data is a {type(data).__name__} of {' and '.join(kinds)}: {EXPECTED}")
    if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        raise TypeError(f"data={data!r} is not iterable: {EXPECTED}")


def _pair(batch: Any) -> Pair:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = type(batch).__name__
    if isinstance(batch, dict):
        kind = f"dict with the keys {', '.join(map(repr, batch))}"
    elif isinstance(batch, torch.Tensor):
        kind = f"tensor of shape {tuple(batch.shape)}"
    elif isinstance(batch, tuple | list):
        kind = f"{kind} of {len(batch)}"
    raise TypeError(f"a batch is a {kind}: it must be a pair (inputs, targets), so pass an iterable of such pairs")
