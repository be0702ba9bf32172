"""Small problems that can be drawn: the planar ones of section 3.4 of the thesis, and a few more, generated."""

from __future__ import annotations

import math

import torch

from tether.part import number

__all__ = ["blobs", "circles", "line", "spiral", "trig"]


def spiral(
    n: int = 500, turns: float = 2.0, scale: float = 2.0, noise: float = 0.02, power: float = 0.5, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two interleaved spirals (3.32): n points of the plane and their classes, alternately 0 and 1.

    ``x = a tᵖ (cos φ, sin φ) + c N(0, 1)``, ``φ = 2 b tᵖ π`` (+ π for class 1), ``t ~ U(0, 1)``, with
    a = `scale`, b = `turns`, c = `noise`, p = `power`.

    >>> x, y = spiral(5, noise=0.0)
    >>> x.shape, y.tolist()
    (torch.Size([5, 2]), [0, 1, 0, 1, 0])
    """
    t, label, normals = _draw(n, noise, seed)
    radius = t**power
    angle = 2 * math.pi * turns * radius + math.pi * label
    x = scale * radius[:, None] * torch.stack((angle.cos(), angle.sin()), dim=1)
    return (x + noise * normals).float(), label


def trig(
    n: int = 1000, scale: float = 6.0, frequency: float = 1.0, noise: float = 0.02, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine against sine (3.33): n points of the plane and their classes, alternately 0 and 1.

    ``x = (a t, cos(b t π) + c N(0, 1))``, sine for class 1, with a = `scale`, b = `frequency`, c = `noise`.

    >>> x, y = trig(6)
    >>> x.shape, sorted(set(y.tolist()))
    (torch.Size([6, 2]), [0, 1])
    """
    t, label, normals = _draw(n, noise, seed)
    angle = frequency * math.pi * t
    height = torch.where(label == 0, angle.cos(), angle.sin()) + noise * normals[:, 0]
    return torch.stack((scale * t, height), dim=1).float(), label


def blobs(n: int = 500, classes: int = 3, noise: float = 0.35, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clouds around points of a circle of radius 1.5, one for each class: n points of the plane and their classes.

    ``x = 1.5 (cos φ, sin φ) + c N(0, 1)``, ``φ = 2π k/K`` for class k of K = `classes`, with c = `noise`.

    >>> blobs(4, classes=2, noise=0.0)[0].round(decimals=3).abs().tolist()
    [[1.5, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0]]
    """
    if not isinstance(classes, int) or classes < 2:
        raise ValueError(f"classes={classes!r} must be a number of classes, 2 or more")
    _, _, normals = _draw(n, noise, seed)
    label = torch.arange(n) % classes
    angle = 2 * math.pi * label.double() / classes
    return (1.5 * torch.stack((angle.cos(), angle.sin()), dim=1) + noise * normals).float(), label


def circles(
    n: int = 500, inner: float = 0.8, outer: float = 1.6, noise: float = 0.1, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rings around the origin: n points of the plane and their classes, 0 on the inner ring and 1 on the outer.

    >>> [round(r, 3) for r in circles(2, noise=0.0)[0].norm(dim=1).tolist()]
    [0.8, 1.6]
    """
    t, label, normals = _draw(n, noise, seed)
    number("data", "inner", inner)
    number("data", "outer", outer)
    angle = 2 * math.pi * t
    radius = torch.where(label == 0, inner, outer)[:, None]
    return (radius * torch.stack((angle.cos(), angle.sin()), dim=1) + noise * normals).float(), label


def line(n: int = 60, frequency: float = 1.5, noise: float = 0.1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy values of a sine, for regression: n inputs of shape (n, 1), uniform in (−1, 1), and targets (n, 1).

    ``y = sin(π b x) + c N(0, 1)`` with b = `frequency`, c = `noise`.

    >>> x, y = line(5)
    >>> x.shape, y.shape
    (torch.Size([5, 1]), torch.Size([5, 1]))
    """
    t, _, normals = _draw(n, noise, seed)
    x = (2 * t - 1)[:, None]
    return x.float(), ((math.pi * frequency * x).sin() + noise * normals[:, :1]).float()


def _draw(n: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r} must be a number of points, 1 or more")
    number("data", "noise", noise)
    generator = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=generator, dtype=torch.float64)
    normals = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return t, torch.arange(n) % 2, normals
