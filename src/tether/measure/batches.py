"""The data of a measure: a pair, a loader or any iterable of batches, each a pair or a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

__all__ = ["Batch", "Loss", "batches", "loss_in", "loss_of", "mean_loss", "outputs"]

Loss = Callable[[Any, Any], torch.Tensor]
TARGETS = ("labels", "label")


class Batch(NamedTuple):
    """The arguments of one call of the model, and the targets."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any

    @property
    def rows(self) -> int:
        """The number of points, which is its weight in a mean."""
        for x in (self.targets, *self.args, *self.kwargs.values()):
            if isinstance(x, torch.Tensor) and x.dim():
                return len(x)
        return 1


def batches(data: Any, chunk: int | None = None) -> list[Batch] | Iterable[Batch]:
    """The data as batches that can be iterated several times.

    Args:
        data: a pair of tensors (inputs, targets); or an iterable of batches, each such a pair or a dictionary of
            keyword arguments as Hugging Face's models take them. An iterator is read once and kept.
        chunk: split a pair of tensors into batches of so many rows.
    """
    if isinstance(data, Mapping) or _is_pair(data):
        whole = _batch(data)
        if chunk is None or isinstance(data, Mapping):
            return [whole]
        parts = zip(whole.args[0].split(chunk), whole.targets.split(chunk), strict=True)
        return [Batch((x,), {}, y) for x, y in parts]
    if not isinstance(data, Iterable) or isinstance(data, torch.Tensor | str):
        raise TypeError(
            f"data must be a pair (inputs, targets), a DataLoader or a list of batches, got {type(data).__name__}"
        )
    if isinstance(data, Iterator):
        data = list(data)
    return _Batches(data)


class _Batches:
    """Batches created at every pass, so that a loader need not fit in memory."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Batch]:
        empty = True
        for item in self.data:
            empty = False
            yield _batch(item)
        if empty:
            raise ValueError("the data hold no batch: pass a pair (inputs, targets), a DataLoader or a list of batches")


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(x, torch.Tensor) for x in data)


def _batch(item: Any) -> Batch:
    if isinstance(item, Mapping):
        given = dict(item)
        targets = next((given[name] for name in TARGETS if name in given), None)
        return Batch((), given, targets)
    if isinstance(item, tuple | list) and len(item) == 2:
        inputs, targets = item
        if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor) and len(inputs) != len(targets):
            raise ValueError(f"a batch has {len(inputs)} inputs but {len(targets)} targets: they must go together")
        if isinstance(inputs, Mapping):
            return Batch((), dict(inputs), targets)
        return Batch((inputs,), {}, targets)
    raise TypeError(
        f"a batch of type {type(item).__name__} is neither a pair (inputs, targets) nor a dictionary of the model's "
        "keyword arguments"
    )


def outputs(answer: Any) -> torch.Tensor:
    """The tensor in a model's output: itself, or the logits of a Hugging Face output."""
    if isinstance(answer, torch.Tensor):
        return answer
    logits = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"the model answers with {type(answer).__name__}, not a tensor or an output with .logits")
    return logits


def loss_of(call: Callable[..., Any], batch: Batch, loss: Loss | None = None) -> torch.Tensor:
    """Mean loss of a batch: by `loss`, else by the model's own (``.loss`` of its output), else cross-entropy."""
    return loss_in(call(*batch.args, **batch.kwargs), batch, loss)


def loss_in(answer: Any, batch: Batch, loss: Loss | None = None) -> torch.Tensor:
    """As `loss_of`, from an output that is known already."""
    if loss is None:
        own = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", None)
        if isinstance(own, torch.Tensor):
            return own
    if batch.targets is None:
        raise ValueError("a batch without 'labels' has no loss: add them, or pass pairs (inputs, targets)")
    return (loss or functional.cross_entropy)(outputs(answer), batch.targets)


@torch.no_grad()
def mean_loss(call: Callable[..., Any], data: Iterable[Batch], loss: Loss | None = None) -> float:
    """Mean over all points: every batch has its number of rows as weight."""
    total, count = 0.0, 0
    for batch in data:
        total += float(loss_of(call, batch, loss)) * batch.rows
        count += batch.rows
    return total / count
