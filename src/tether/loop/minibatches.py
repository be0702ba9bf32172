"""Minibatches: which points are used at which step, a function of seed, epoch and replica."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from tether import native, noise

__all__ = ["Minibatches", "permutations", "whole_number"]


def whole_number(name: str, value: Any, least: int | None = 0) -> int:
    """A count as an int; numpy's integers are accepted. Raises if it is not an integer, or too small."""
    rule = "a whole number" if least is None else f"{least} or more"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a whole number, {rule}, e.g. {name}={max(1, least or 0)}") from None
    if least is not None and number < least:
        raise ValueError(f"{name}={value!r} must be {rule}")
    return number


class Minibatches:
    """The points that each replica uses at each step. They depend on seed, epoch and replica alone.

    Without replacement every epoch is a fresh permutation and its last batch may be smaller. In the symmetric order
    every second epoch goes back through the batches of the one before: 1 2 3, 3 2 1, then three others. The errors of
    the batches' gradients then cancel to one order more over the two epochs (Paulin et al., 2025).

    >>> stream = Minibatches(6, 2, None, seed=0, order="symmetric")
    >>> torch.equal(stream(0), stream(5)), torch.equal(stream(1), stream(4)), torch.equal(stream(2), stream(3))
    (True, True, True)
    """

    def __init__(
        self,
        points: int,
        batch: int | None,
        lanes: Sequence[int] | None,
        seed: int,
        replacement: bool = False,
        order: str = "shuffled",
    ) -> None:
        if order not in ("shuffled", "symmetric"):
            raise ValueError(f"order={order!r} must be 'shuffled' or 'symmetric'")
        if order == "symmetric" and replacement:
            raise ValueError(
                "order='symmetric' goes back through the batches of an epoch, and replacement=True has no epochs: "
                "leave out one of the two"
            )
        self.points, self.batch = points, points if batch is None else batch
        self.seed, self.replacement = seed, replacement
        if not 1 <= self.batch <= points:
            raise ValueError(f"batch={batch!r} must be between 1 and the number of points, {points}")
        self.rows = 1 if lanes is None else len(lanes)
        self.lanes, device = lanes, torch.device("cpu")
        self.per_epoch = 1 if replacement else -(-points // self.batch)
        self.sweeps = 2 if order == "symmetric" else 1  # through one permutation
        self.epoch, self.chosen = -1, torch.empty(0, device=device)
        self.everything = torch.arange(points, device=device).expand(self.rows, points).contiguous()

    def __call__(self, step: int) -> torch.Tensor:
        """The points of a step: replicas × batch."""
        if self.batch == self.points and not self.replacement:
            return self.everything
        epoch, k = divmod(step, self.sweeps * self.per_epoch)
        k = min(k, 2 * self.per_epoch - 1 - k)
        if epoch != self.epoch:
            if self.replacement:
                words = noise.bits(self.batch, self.seed, epoch, "minibatches", self.rows, self.lanes)
                self.chosen = words * self.points >> 32
            else:
                self.chosen = permutations(self.points, self.seed, epoch, self.rows, self.lanes)
            self.epoch = epoch
        return self.chosen[:, k * self.batch : (k + 1) * self.batch]


def permutations(points: int, seed: int, epoch: int, rows: int = 1, lanes: Sequence[int] | None = None) -> torch.Tensor:
    """Permutations of 0 … points − 1, one for each replica: rows × points."""
    noise.checked("step", epoch)
    if native.library() is not None:
        return native.shuffle(points, noise.key(seed, "minibatches"), epoch, native.Layout([points], rows, lanes))
    return torch.stack([shuffled(words) for words in noise.bits(points, seed, epoch, "minibatches", rows, lanes)])


def shuffled(words: torch.Tensor) -> torch.Tensor:
    """What the kernel makes of 32-bit words, by Fisher and Yates: i ← swapped with ⌊u (i + 1)⌋, u word i over 2³²."""
    order = list(range(len(words)))
    for i, u in reversed(list(enumerate(words.tolist()))):
        j = u * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return torch.tensor(order, dtype=torch.int64, device="cpu")
