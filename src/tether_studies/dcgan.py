"""A small DCGAN: a network that makes 28 × 28 images, and one that tells them from those of the data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

__all__ = ["CODE", "dcgan"]

CODE = 100  # numbers that stand for an image


def generator(features: int) -> nn.Sequential:
    """Codes of 100 numbers to images in [−1, 1]."""
    wide, narrow = 4 * features, 2 * features
    return nn.Sequential(
        nn.Unflatten(1, (CODE, 1, 1)),
        *(nn.ConvTranspose2d(CODE, wide, 7, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
        *(nn.ConvTranspose2d(wide, narrow, 4, 2, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
        *(nn.ConvTranspose2d(narrow, 1, 4, 2, 1), nn.Tanh()),
    )


def discriminator(features: int) -> nn.Sequential:
    """One logit: is this image of the data?"""
    return nn.Sequential(
        *(nn.Conv2d(1, features, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(features, 2 * features, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * features), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(2 * features, 1, 7), nn.Flatten(0)),
    )


def dcgan(x: torch.Tensor, features: int, steps: int, batch: int = 64) -> nn.Sequential:
    """A generator of images like x, from the game of the two.

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
