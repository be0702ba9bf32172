"""CIFAR-10 as the studies take it, and a small network for it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

import tether

__all__ = ["Convolutional", "accuracy", "pictures", "read"]


@lru_cache(2)
def read(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """All of them as bytes, read once."""
    return tether.data.cifar10(train=train)


@lru_cache(2)
def pictures(train: bool, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first so many, with mean about 0 and deviation about 1, and their labels."""
    x, y = read(train)
    return (x[:count].float() / 255 - 0.5) / 0.25, y[:count]


@torch.no_grad()
def accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Per cent right, in eval mode; the mode is put back."""
    training = net.training
    net.eval()
    right = torch.cat([net(part).argmax(1) for part in x.split(500)]) == y
    net.train(training)
    return 100 * float(right.float().mean())


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
