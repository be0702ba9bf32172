"""The gradients of many small perceptrons at once, compiled: what `tether.train` uses where it can.

For replicas of Linear layers with ReLU, LeakyReLU, Tanh or Sigmoid between them, and three losses, the whole of
forward and backward is a handful of small matrix products for each replica, too small for anything but a loop in C.
Autograd is the reference; the numbers agree to rounding.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tether import native
from tether.losses import LOSSES, Loss, plain
from tether.replicas import Replicas, layers

__all__ = ["Perceptrons"]

ACTIVATIONS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.ReLU: 1, nn.LeakyReLU: 2, nn.Tanh: 3, nn.Sigmoid: 4}


class Perceptrons:
    """Replicas bound to a data set and a loss, for the compiled gradients.

    `make` returns None where the compiled path does not serve.
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
                slopes[-1] = getattr(stage.module, "negative_slope", 0.0)
        widths = [self.weights[0].shape[2], *(w.shape[1] for w in self.weights)]
        self.widths, self.kinds, self.slopes = array("q", widths), array("q", kinds), array("d", slopes)
        self.points = [x.shape[1] if x.dim() == 3 else 0, y.shape[1] if y.dim() == 3 - (loss == 2) else 0]

    @staticmethod
    def make(ens: Any, x: torch.Tensor, y: torch.Tensor, loss: Loss, each: bool) -> Perceptrons | None:
        kind = LOSSES.get(plain(loss))
        stages = layers(ens) if isinstance(ens, Replicas) else None
        if stages is None or kind is None or not native.serves(x.dtype, x.device) or native.product(x.dtype) is None:
            return None
        while stages and stages[0].kind == "flatten":
            x, stages = x.flatten(1 + each), stages[1:]
        known = all(
            stage.kind == "linear" or (stage.kind == "elementwise" and type(stage.module) in ACTIVATIONS)
            for stage in stages
        )
        pairs = pairwise(stages)
        single = all(a.kind == "linear" or b.kind == "linear" for a, b in pairs)  # one activation after each layer
        if not known or not single or not stages or stages[0].kind != "linear" or len(stages) > 60:
            return None
        params = list(ens.parameters())
        if not all(p.dtype is x.dtype and p.requires_grad and p.is_contiguous() for p in params):
            return None
        linear = [dict(ens.named_parameters())[s.weight] for s in stages if s.kind == "linear"]
        if len({id(p) for p in params}) != sum(1 + bool(s.bias) for s in stages if s.kind == "linear"):
            return None  # tied, or parameters that no stage holds
        if x.dim() != 2 + each or x.shape[-1] != linear[0].shape[2]:
            return None
        out = linear[-1].shape[1]
        if kind == 2:
            if y.is_floating_point() or y.dim() != 1 + each or not bool(((y >= 0) & (y < out)).all()):
                return None
            return Perceptrons(ens, stages, x.contiguous(), y.long().contiguous(), kind)
        if y.dtype is not x.dtype or y.shape != (*x.shape[:-1], out):
            return None
        return Perceptrons(ens, stages, x.contiguous(), y.contiguous(), kind)

    def __call__(self, index: torch.Tensor, gradient: bool = True) -> torch.Tensor:
        """The losses of all replicas on the points of `index` (n, batch), and into ``.grad`` their gradients."""
        tensors = [x for x in (*self.weights, *self.biases) if x is not None]
        if gradient:
            for x in tensors:
                if x.grad is None or not x.grad.is_contiguous():
                    x.grad = torch.empty_like(x)
        n, batch = index.shape
        losses, faulty = torch.empty(n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
        at = [array("q", [0 if x is None else x.data_ptr() for x in row]) for row in (self.weights, self.biases)]
        grads: list[Any] = [None, None]
        if gradient:
            held = [[None if x is None else x.grad for x in row] for row in (self.weights, self.biases)]
            grads = [array("q", [0 if g is None else g.data_ptr() for g in row]) for row in held]
        room = batch * (sum(self.widths) + 2 * max(self.widths))
        data = [self.x, self.y, self.points, index.contiguous(), self.loss, losses, faulty, room]
        sizes = [n, batch, len(self.weights)]
        native.gradients(self.dtype, sizes, [self.widths, self.kinds, self.slopes, *at, *grads], data)
        self.finite = not bool(faulty.any())
        return losses
