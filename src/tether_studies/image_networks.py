"""Networks for 28 × 28 images: perceptrons, convolutional ones, vision transformers, and a DCGAN that makes images."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

__all__ = ["CODE", "dcgan", "network"]

CODE = 100  # numbers that stand for an image


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
    """A perceptron, a convolutional network or a vision transformer."""
    if kind == "MLP":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if kind == "ViT":
        return Transformer(patch, layers)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def dcgan(x: torch.Tensor, features: int, steps: int, batch: int = 64) -> nn.Sequential:
    """A generator, from codes to images like x in [−1, 1], from its game with a network that tells them from those.

    Weights from N(0, 0.02), Adam with step size 2e-4 and β₁ = 0.5 (§6.2.6.1).
    """
    wide, narrow = 4 * features, 2 * features
    make = nn.Sequential(
        nn.Unflatten(1, (CODE, 1, 1)),
        *(nn.ConvTranspose2d(CODE, wide, 7, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
        *(nn.ConvTranspose2d(wide, narrow, 4, 2, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
        *(nn.ConvTranspose2d(narrow, 1, 4, 2, 1), nn.Tanh()),
    )
    judge = nn.Sequential(
        *(nn.Conv2d(1, features, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(features, narrow, 4, 2, 1, bias=False), nn.BatchNorm2d(narrow), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(narrow, 1, 7), nn.Flatten(0)),
    )
    for layer in (*make, *judge):
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
    opts = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (make, judge)]
    real, fake = torch.ones(batch), torch.zeros(batch)
    for _ in range(steps):
        shown, made = x[torch.randint(len(x), (batch,))], make(torch.randn(batch, CODE))
        opts[1].zero_grad()
        (bce(judge(shown), real) + bce(judge(made.detach()), fake)).backward()
        opts[1].step()
        opts[0].zero_grad()
        bce(judge(made), real).backward()
        opts[0].step()
    return make.eval()
