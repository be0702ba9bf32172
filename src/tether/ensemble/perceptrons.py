"""Compiled gradients of many small perceptrons at once. `tether.train` uses them where it can.

They serve replicas of Linear layers with ReLU, LeakyReLU, Tanh or Sigmoid between them, and three losses. There both
passes are a few small matrix products for each replica, so small that the overhead of Python and torch would dominate.
Autograd is the reference; the numbers agree to rounding.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tether import native
from tether.ensemble.losses import LOSSES, Loss, as_function
from tether.ensemble.replicas import Replicas, layers_of

__all__ = ["Perceptrons"]

ACTIVATIONS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.ReLU: 1, nn.LeakyReLU: 2, nn.Tanh: 3, nn.Sigmoid: 4}


class Perceptrons:
    """Replicas bound to a data set and a loss, for the compiled gradients.

    `make` returns None for networks, data or losses that the compiled code does not support.
    """

    def __init__(self, ens: Replicas, stages: list[Any], x: torch.Tensor, y: torch.Tensor, loss: int) -> None:
        named = dict(ens.named_parameters())
        self.ens, self.x, self.y, self.loss, self.dtype = ens, x, y, loss, x.dtype
        self.weights = [named[s.weight] for s in stages if s.kind == "linear"]
        self.biases = [named[s.bias] if s.bias else None for s in stages if s.kind == "linear"]
        kinds: list[int] = []
        slopes: list[float] = []
        for stage in stages:
            if stage.kind == "linear":
                kinds.append(0)
                slopes.append(0.0)
            elif stage.kind == "elementwise":
                kinds[-1] = ACTIVATIONS[type(stage.module)]
                slopes[-1] = _slope(stage.module)
        widths = [self.weights[0].shape[2], *(w.shape[1] for w in self.weights)]
        self.widths, self.kinds, self.slopes = array("q", widths), array("q", kinds), array("d", slopes)
        each, points = x.dim() == 3, x.shape[-2]
        self.points = [points, points if each else 0, points if each else 0]  # and from one replica's to the next's
        native.where("data", [x], x.dtype, x.numel())
        native.where("targets", [y], y.dtype, y.numel())
        self.room = sum(self.widths) + 2 * max(self.widths)
        self.tensors = [*self.weights, *(b for b in self.biases if b is not None)]
        self.counts = [x.numel() for x in self.tensors]
        self.held = native.Held(self.tensors, x.dtype, self.counts)

    @staticmethod
    def make(ens: Any, x: torch.Tensor, y: torch.Tensor, loss: Loss, each: bool) -> Perceptrons | None:
        kind = LOSSES.get(as_function(loss))
        stages = layers_of(ens) if isinstance(ens, Replicas) else None
        if stages is None or kind is None or not native.serves(x.dtype, x.device) or native.product(x.dtype) is None:
            return None
        while stages and stages[0].kind == "flatten":
            x, stages = x.flatten(1 + each), stages[1:]
        known = all(
            stage.kind == "linear"
            or (stage.kind == "elementwise" and type(stage.module) in ACTIVATIONS and _slope(stage.module) >= 0)
            for stage in stages
        )
        pairs = pairwise(stages)
        single = all(a.kind == "linear" or b.kind == "linear" for a, b in pairs)  # one activation after each layer
        if not known or not single or not stages or stages[0].kind != "linear" or len(stages) > 60:
            return None
        params = list(ens.parameters())
        if not all(native.plain(p, x.dtype) and p.requires_grad for p in params):
            return None
        named = dict(ens.named_parameters())
        linear = [named[s.weight] for s in stages if s.kind == "linear"]
        biases = [(named[s.bias], named[s.weight]) for s in stages if s.kind == "linear" and s.bias]
        if len({id(p) for p in params}) != len(linear) + len(biases):
            return None  # tied parameters, or parameters outside the stages
        chained = all(a.shape[1] == b.shape[2] for a, b in pairwise(linear)) and (not each or len(x) == len(ens))
        if not chained or not all(b.shape == w.shape[:2] for b, w in biases):
            return None  # autograd raises an error that says what is wrong
        if x.dim() != 2 + each or x.shape[-1] != linear[0].shape[2] or y.shape[: 1 + each] != x.shape[:-1]:
            return None
        out, x, y = linear[-1].shape[1], x.detach().resolve_neg(), y.detach().resolve_neg()
        if type(x) is not torch.Tensor or type(y) is not torch.Tensor or not (y.is_cpu and x.numel()):
            return None
        if kind == 2:
            if y.is_floating_point() or y.dim() != 1 + each or not bool(((y >= 0) & (y < out)).all()):
                return None
            return Perceptrons(ens, stages, x.contiguous(), y.long().contiguous(), kind)
        if y.dtype is not x.dtype or y.shape != (*x.shape[:-1], out):
            return None
        return Perceptrons(ens, stages, x.contiguous(), y.contiguous(), kind)

    def __call__(self, index: torch.Tensor, gradient: bool = True) -> torch.Tensor:
        """The losses of all replicas on the points of `index` (n, batch), with their gradients written to ``.grad``."""
        n, dtype = len(self.ens), self.dtype
        if not self.held.still() or self.held.at is None:
            kinds = ", ".join(sorted({f"{x.dtype} on {x.device}" for x in self.tensors}))
            raise TypeError(
                f"the replicas have changed ({kinds} now; data of {dtype}): call tether.train again, with data to match"
            )
        if index.dim() != 2 or len(index) != n or not index.shape[1] or index.dtype is not torch.int64:
            raise ValueError(
                f"index of shape {tuple(index.shape)} and {index.dtype}: it must hold a batch of points for each of "
                f"{n} replicas, torch.int64 of shape ({n}, batch)"
            )
        index = index if index.stride(1) == 1 else index.contiguous()  # the rows may lie apart
        batch = index.shape[1]
        if type(index) is not torch.Tensor or not index.is_cpu:
            raise ValueError(
                f"index is a {type(index).__name__} on {index.device}: it must be a plain tensor on the CPU"
            )
        grads = self.rows(self.gradients()) if gradient else (None, None)
        losses = torch.empty(n, dtype=torch.float64, device="cpu")
        data = [self.x, self.y, self.points, index, self.loss, losses, batch * self.room]
        sizes = [n, batch, len(self.weights)]
        tables = [self.widths, self.kinds, self.slopes, *self.rows(self.held.at), *grads]
        self.finite = not native.gradients(dtype, sizes, tables, data)
        return losses

    def gradients(self) -> array[int]:
        """The addresses of the gradients. A gradient that the kernel cannot write to is replaced."""
        found = [x.grad for x in self.tensors]
        whole = [g for g in found if g is not None]
        at = native.addresses(whole, self.dtype, self.counts) if len(whole) == len(found) else None
        if at is not None:
            return at
        for x, g in zip(self.tensors, found, strict=True):
            if g is None or g.shape != x.shape or not native.plain(g, self.dtype):
                x.grad = torch.empty_like(x, memory_format=torch.contiguous_format)
        fresh = [x.grad for x in self.tensors if x.grad is not None]
        return native.where("gradients", fresh, self.dtype, *self.counts)

    def rows(self, at: array[int]) -> tuple[array[int], array[int]]:
        """The addresses of `tensors` split into weights and biases, with 0 for a layer without bias."""
        biases = iter(at[len(self.weights) :])
        return at[: len(self.weights)], array("q", [0 if b is None else next(biases) for b in self.biases])


def _slope(module: nn.Module) -> float:
    """The slope of a leaky activation. A negative one hides the sign of the input, which the kernel needs."""
    return float(getattr(module, "negative_slope", 0.0))
