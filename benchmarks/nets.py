"""The networks that the benchmarks train and measure."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Language(nn.Module):
    """A small language model, 4.5 million parameters."""

    def __init__(self, vocabulary: int = 2000, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens))).flatten(0, 1)


class Encoder(nn.Module):
    """A classifier of sentences, by default of the shape of MiniLM-L6."""

    def __init__(
        self, vocabulary: int = 30522, width: int = 384, heads: int = 12, layers: int = 6, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens)).mean(1))


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


class ResNet(nn.Module):
    """A residual network for images of 32 × 32: ``stages`` are widths and numbers of blocks."""

    def __init__(self, *stages: tuple[int, int]) -> None:
        super().__init__()
        width = stages[0][0]
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        for stage, (outputs, count) in enumerate(stages):
            for i in range(count):
                layers.append(Block(width, outputs, 2 if i == 0 and stage else 1))
                width = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def resnet20() -> ResNet:
    """270,000 parameters: He et al. 2015, for CIFAR-10."""
    return ResNet((16, 3), (32, 3), (64, 3))


def resnet34() -> ResNet:
    """21 million parameters."""
    return ResNet((64, 3), (128, 4), (256, 6), (512, 3))
