"""MNIST and CIFAR-10 as the studies take them, and small networks for them."""

from functools import lru_cache
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.files import note

__all__ = ["Convolutional", "Pair", "digits", "errors", "first_digits", "perceptron", "pictures", "read", "tested"]

Pair = tuple[torch.Tensor, torch.Tensor]


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLUs between."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Convolutional(nn.Module):
    """Three convolutions of stride 2 with BatchNorm, and a linear layer on their mean."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


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


@lru_cache(2)
def read(train: bool) -> Pair:
    """All of CIFAR-10 as bytes, read once."""
    return tether.data.cifar10(train=train)


@lru_cache(2)
def pictures(train: bool, count: int) -> Pair:
    """CIFAR-10's first so many, with mean about 0 and deviation about 1, and labels; a note if there are fewer."""
    x, y = read(train)
    if len(x) < count:
        note(f"CIFAR-10 has {len(x):,} {'training' if train else 'test'} images here, {count:,} were asked for")
    return (x[:count].float() / 255 - 0.5) / 0.25, y[:count]


@torch.no_grad()
def tested(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Mean loss, and per cent right, in eval mode; the mode is put back. Bytes are scaled to between 0 and 1."""
    training = net.training
    net.eval()
    logits = torch.cat([net(part.float() / 255 if part.dtype == torch.uint8 else part) for part in x.split(500)])
    net.train(training)
    return float(cross_entropy(logits, y)), 100 * float((logits.argmax(1) == y).double().mean())


@torch.no_grad()
def errors(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Per cent of wrong answers of each replica in eval mode, on images that all share or on its own."""
    training = nets.training
    nets.eval()
    wrong = 100 * (nets(x, each=y.dim() == 2).argmax(-1) != y).double().mean(1)
    nets.train(training)
    return wrong
