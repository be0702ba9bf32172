"""Networks of three kinds for 28 × 28 images."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

__all__ = ["network"]


class Transformer(nn.Module):
    """A small vision transformer: patches, some layers of four heads, and their mean."""

    def __init__(self, patch: int, layers: int, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn((28 // patch) ** 2, width))
        layer = partial(nn.TransformerEncoderLayer, width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.Sequential(*(layer() for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).mT + self.place
        return self.head(self.layers(tokens).mean(1))


def network(kind: str, hidden: int = 100, patch: int = 7, layers: int = 1) -> nn.Module:
    """A perceptron, a convolutional network or a vision transformer for 28 × 28 images."""
    if kind == "MLP":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if kind == "ViT":
        return Transformer(patch, layers)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
