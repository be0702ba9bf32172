"""Real networks as one vector θ, so that a test can write the papers' equations as they are printed."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether


class Network:
    """A model, its minibatches and its vectors: parameters, gradients, momenta, normals."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
        self.model, self.x, self.y, self.batch = model, x, y, batch
        self.named = list(model.named_parameters())

    def minibatch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(n * self.batch, (n + 1) * self.batch) % len(self.x)
        return self.x[rows], self.y[rows]

    def loss(self, n: int) -> torch.Tensor:
        x, y = self.minibatch(n)
        return cross_entropy(self.model(x), y)

    def θ(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for _, p in self.named])

    def G(self, θ: torch.Tensor, n: int) -> torch.Tensor:
        """The negative gradient on minibatch n at θ; the model itself is not touched."""
        sizes = [p.numel() for _, p in self.named]
        values = {
            name: piece.view(p.shape).requires_grad_()
            for (name, p), piece in zip(self.named, θ.clone().split(sizes), strict=True)
        }
        x, y = self.minibatch(n)
        loss = cross_entropy(torch.func.functional_call(self.model, values, (x,)), y)
        return -torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(values.values()))])

    def R(self, step: int, draw: int = 0, seed: int = 0) -> torch.Tensor:
        """The normals that the optimizer uses for that draw of that step."""
        pieces = [tether.noise.reference(p.numel(), seed, step, draw, name, p.dtype) for name, p in self.named]
        return torch.cat(pieces)

    def p(self, opt: tether.Optimizer) -> torch.Tensor:
        """The optimizer's momenta, zero where a parameter has none."""
        momenta = [opt.state[p].get("momentum", torch.zeros_like(p)) for _, p in self.named]
        return torch.cat([p.detach().flatten() for p in momenta])

    def where(self, glob: str) -> torch.Tensor:
        """Which elements of θ belong to parameters of that name."""
        return torch.cat([torch.full((p.numel(),), fnmatchcase(name, glob)) for name, p in self.named])

    def step(self, opt: torch.optim.Optimizer, n: int) -> None:
        opt.zero_grad()
        self.loss(n).backward()
        opt.step()


def perceptron(dtype: torch.dtype = torch.float64, activation: type[nn.Module] = nn.ReLU, batch: int = 25) -> Network:
    """A multilayer perceptron on the spirals."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), activation(), nn.Linear(20, 10), activation(), nn.Linear(10, 2))
    x, y = tether.data.spiral(200, seed=1)
    return Network(model.to(dtype), x.to(dtype), y, batch)


def convolutional(dtype: torch.dtype = torch.float64) -> Network:
    """A small convolutional network on made-up pictures."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    x, y = torch.randn(60, 1, 9, 9), torch.arange(60) % 3
    return Network(model.to(dtype), x.to(dtype), y, batch=20)
