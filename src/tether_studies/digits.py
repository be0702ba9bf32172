"""Perceptrons, and MNIST for them: a training set for each replica, or one for all."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

import tether

__all__ = ["Pair", "digits", "errors", "first_digits", "perceptron"]

Pair = tuple[torch.Tensor, torch.Tensor]


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLUs between."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def first_digits(train: bool, count: int) -> Pair:
    """MNIST's first so many as vectors between 0 and 1."""
    x, y = tether.data.mnist(train=train)
    return x[:count].flatten(1).float() / 255, y[:count]


def digits(runs: int, count: int, tests: int = 10_000) -> tuple[Pair, Pair]:
    """So many images for each run, which no other run sees, and the test set."""
    x, y = first_digits(True, runs * count)
    if runs * count > len(x):
        raise ValueError(f"{runs} runs of {count:,} images: there are {len(x):,}, enough for {len(x) // count} runs")
    own = [values.unflatten(0, (runs, count)) for values in (x, y)]
    return (own[0], own[1]), first_digits(False, tests)


@torch.no_grad()
def errors(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Per cent of wrong answers of each replica in eval mode, on images that all share or on its own."""
    training = nets.training
    nets.eval()
    wrong = 100 * (nets(x, each=y.dim() == 2).argmax(-1) != y).double().mean(1)
    nets.train(training)
    return wrong
