"""MNIST for replicas: a training set for each, one test set for all."""

from __future__ import annotations

import torch

import tether

__all__ = ["digits", "errors"]

Pair = tuple[torch.Tensor, torch.Tensor]


def digits(runs: int, count: int, tests: int = 10_000) -> tuple[Pair, Pair]:
    """Images as vectors between 0 and 1: so many for each run, which no other run sees, and the test set."""
    (x, y), (x_test, y_test) = (tether.data.mnist(train=train) for train in (True, False))
    if runs * count > len(x):
        raise ValueError(f"{runs} runs of {count:,} images: there are {len(x):,}, enough for {len(x) // count} runs")
    own = [values[: runs * count].unflatten(0, (runs, count)) for values in (x.flatten(1).float() / 255, y)]
    return (own[0], own[1]), (x_test[:tests].flatten(1).float() / 255, y_test[:tests])


@torch.no_grad()
def errors(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Per cent of wrong answers of each replica in eval mode, on images that all share or on its own."""
    training = nets.training
    nets.eval()
    wrong = 100 * (nets(x, each=y.dim() == 2).argmax(-1) != y).double().mean(1)
    nets.train(training)
    return wrong
