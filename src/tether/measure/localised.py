"""Chains that stay near the point where they start, and what is read from them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tether.ensemble.losses import mean_losses
from tether.ensemble.replicas import Replicas
from tether.loop.minibatches import Minibatches

__all__ = ["Chains", "Excess", "Near"]

Pair = tuple[torch.Tensor, torch.Tensor]


class Near:
    """The penalty ω/2 |w − w*|², one for each replica."""

    def __init__(self, ens: Replicas, strength: float) -> None:
        self.strength = strength
        self.start = {name: x.detach().clone() for name, x in ens.named_parameters() if x.requires_grad}
        self.where = torch.cat([x[0].reshape(-1) for x in self.start.values()])  # tells checkpoints apart

    def away(self, ens: nn.Module) -> dict[str, torch.Tensor]:
        """w − w* by name."""
        return {name: x - self.start[name] for name, x in ens.named_parameters() if name in self.start}

    def __call__(self, ens: nn.Module) -> torch.Tensor:
        squares = [x.square().flatten(1).sum(1) for x in self.away(ens).values()]
        return self.strength / 2 * torch.stack(squares).sum(0)


class Chains(Replicas):
    """Replicas that stay in eval mode: the loss whose volume is measured has no dropout and fixed statistics."""

    def train(self, mode: bool = True) -> Chains:
        super().train(False)
        return self


class Excess:
    """A callback for `train`: at each draw L(w) − L(w*) and the virials (w − w*)·∇U of the chains, by a backward pass.

    Both losses are of one minibatch, of which most of the noise cancels in their difference.
    """

    def __init__(self, ens: Replicas, data: Pair, loss: Any, stream: Minibatches, near: Near) -> None:
        self.data, self.loss, self.stream, self.near = data, loss, stream, near
        self.home = ens.subset(range(len(ens)))
        self.start = self.whole()

    def whole(self) -> float:
        """L(w*) of all points, some at a time."""
        first, total = self.home.subset([0]).eval(), 0.0
        with torch.no_grad():
            for x, y in zip(*[part.split(self.stream.batch) for part in self.data], strict=True):
                total += mean_losses(self.loss, first(x, each=False), y, False).double().item() * len(x)
        start = total / len(self.data[0])
        if not math.isfinite(start):
            raise ValueError(f"the loss at the parameters of the model is {start}: train it first")
        return start

    def __call__(self, step: int, ens: nn.Module, _: Any) -> dict[str, torch.Tensor]:
        x, y = self.data
        each = self.stream.batch < len(x)
        if each:
            chosen = self.stream(step)
            x, y = x[chosen.to(x.device)], y[chosen.to(y.device)]
        away = {name: one.detach() for name, one in self.near.away(ens).items()}
        moving = dict(ens.named_parameters())
        with torch.enable_grad():
            losses = mean_losses(self.loss, ens(x, each=each), y, each)
            slopes = torch.autograd.grad(losses.sum(), [moving[name] for name in away], allow_unused=True)
        with torch.no_grad():
            virials = 2 * self.near(ens).double()
            start = mean_losses(self.loss, self.home(x, each=True), y, True).double() if each else self.start
        for one, slope in zip(away.values(), slopes, strict=True):
            if slope is not None:
                virials += (one * slope).flatten(1).double().sum(1)
        return {"excess": losses.detach().double() - start, "virials": virials}
