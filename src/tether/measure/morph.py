"""Images between two images of a generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.batches import outputs
from tether.measure.untouched import untouched

__all__ = ["Morph", "morph"]


@dataclass(frozen=True)
class Morph:
    """Images along a path of the latent space."""

    alphas: torch.Tensor
    codes: torch.Tensor  # the points of the path, each of the shape of its ends
    images: torch.Tensor  # the images of the generator

    def __str__(self) -> str:
        return f"{len(self.alphas)} images of shape {tuple(self.images.shape[1:])} on the way between two codes"

    def plot(self, ax: Any = None) -> Any:
        """The images side by side, after Figure 6.20."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(len(self.alphas), 1.4), layout="constrained")[1] if ax is None else ax
        images = self.images.detach().cpu().float()
        images = images.squeeze(1) if images.dim() == 4 and images.shape[1] == 1 else images
        if images.dim() == 4:
            images = images.movedim(1, -1)
        if images.dim() < 3:
            raise ValueError(
                f"outputs of shape {tuple(self.images.shape[1:])} are no images: (height, width) or with channels"
            )
        low, high = images.min(), images.max()
        strip = torch.cat([*((images - low) / (high - low).clamp_min(1e-12))], dim=1)
        ax.imshow(strip.numpy(), cmap="gray")
        width = images.shape[2]
        ax.set_xticks([width * (k + 0.5) for k in range(len(images))], [f"{a:.2g}" for a in self.alphas.tolist()])
        ax.set(xlabel="α", ylabel="", yticks=[])
        return ax


@torch.no_grad()
def morph(
    generator: nn.Module, start: torch.Tensor, end: torch.Tensor, points: int = 11, *, spherical: bool = False
) -> Morph:
    """Images between those of two codes: ``z_α = (1 − α) z_i + α z_j`` (6.4), α evenly in [0, 1].

    >>> found = morph(nn.Linear(3, 4), torch.zeros(3), torch.ones(3), points=3)
    >>> found.alphas.tolist(), found.codes[1].tolist(), found.images.shape
    ([0.0, 0.5, 1.0], [0.5, 0.5, 0.5], torch.Size([3, 4]))

    Args:
        generator: a model of codes, a tensor whose first axis is the batch. It is run in eval mode and left as it was.
        start: one code, without the batch axis.
        end: another.
        points: the number of images, the first and the last included.
        spherical: follow the great circle instead, since Gaussian codes of many dimensions have nearly equal length:
            ``z_α = (sin((1 − α)Ω) z_i + sin(αΩ) z_j)/sin Ω``, Ω the angle between them.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"points={points!r} must be an integer, 2 or more")
    if start.shape != end.shape:
        raise ValueError(f"codes of shapes {tuple(start.shape)} and {tuple(end.shape)}: start and end must be alike")
    alphas = torch.linspace(0, 1, points, dtype=torch.float64, device=start.device)
    a = alphas.view(-1, *[1] * start.dim())
    one, other = start.double(), end.double()
    weights = _great_circle(one, other, a) if spherical else (1 - a, a)
    codes = (weights[0] * one + weights[1] * other).to(start.dtype)
    with untouched(generator):
        images = outputs(generator(codes))
    return Morph(alphas, codes, images)


def _great_circle(start: torch.Tensor, end: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cosine = (start * end).sum() / (start.norm() * end.norm())
    angle = cosine.clamp(-1, 1).acos()
    if not bool(cosine > -1 + 1e-12):
        raise ValueError("no great circle is the shortest between opposite codes, or to 0: use spherical=False")
    if angle < 1e-6:
        return 1 - a, a
    return ((1 - a) * angle).sin() / angle.sin(), (a * angle).sin() / angle.sin()
