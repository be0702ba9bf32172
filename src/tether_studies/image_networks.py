"""Networks for 28 × 28 images as in §6.2.6.1: perceptrons, convolutional ones, vision transformers, and a DCGAN."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

__all__ = ["CODE", "dcgan", "network"]

CODE = 100  # numbers that stand for an image
BLOCKS, HEADS, MIDDLE = 6, 8, 128  # of the transformers; the nodes in the middle of a block


class Transformer(nn.Module):
    """A small vision transformer: patches, six blocks of eight heads and a perceptron of 128 nodes, and their mean."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn((28 // patch) ** 2, width))
        block = partial(nn.TransformerEncoderLayer, width, HEADS, MIDDLE, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.Sequential(*(block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).mT + self.place
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def network(kind: str, hidden: int = 500, channels: int = 32, patch: int = 4, width: int = 64) -> nn.Module:
    """A perceptron of two hidden layers, four convolutions and three linear layers, or a vision transformer."""
    if kind == "MLP":
        wide = (nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        return nn.Sequential(nn.Flatten(), *wide, nn.Linear(hidden, 10))
    if kind == "ViT":
        return Transformer(patch, width)
    layers: list[nn.Module] = []
    for a, b in ((1, channels), (channels, channels), (channels, 2 * channels), (2 * channels, 2 * channels)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    layers.insert(6, nn.MaxPool2d(2))
    full = (nn.Linear(49 * 2 * channels, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.4))
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), *full, nn.Linear(64, 10))


def generator(features: int) -> nn.Sequential:
    """Five transposed convolutions, from a code to an image of 28 × 28 numbers from −1 to 1."""
    f = features
    shapes = ((CODE, 8 * f, 4, 1, 0), (8 * f, 4 * f, 3, 2, 1), (4 * f, 2 * f, 4, 2, 1), (2 * f, f, 4, 2, 1))
    layers: list[nn.Module] = [nn.Unflatten(1, (CODE, 1, 1))]
    for a, b, size, stride, padding in shapes:
        layers += [nn.ConvTranspose2d(a, b, size, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(f, 1, 3, 1, 1), nn.Tanh())


def discriminator(features: int) -> nn.Sequential:
    """Five convolutions, from an image to the logit of its being real."""
    f = features
    shapes = ((f, 2 * f, 4, 2, 1), (2 * f, 4 * f, 3, 2, 1), (4 * f, 8 * f, 3, 1, 1))
    layers: list[nn.Module] = [nn.Conv2d(1, f, 4, 2, 1), nn.LeakyReLU(0.2)]
    for a, b, size, stride, padding in shapes:
        layers += [nn.Conv2d(a, b, size, stride, padding, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(8 * f, 1, 4), nn.Flatten(0))


def dcgan(x: torch.Tensor, features: int, steps: int, batch: int = 64) -> nn.Sequential:
    """A generator, from codes to images like x in [−1, 1], from its game with a network that tells them from those.

    Weights from N(0, 0.02), Adam with step size 2e-4 and β₁ = 0.5 (§6.2.6.1).
    """
    make, judge = generator(features), discriminator(features)
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
