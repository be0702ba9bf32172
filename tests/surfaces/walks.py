"""Parameters on surfaces with gradients set by hand, and what the tests measure on them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

import tether
from fitting import used
from tether.surfaces import Circle, Level, Orthogonal, SpectralBall, Sphere, Surface

WORDS = ("X", "L", "OBA", "ABO", "BAOAB", "BACDEDCAB")
LIMIT = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2}
LONG = int(os.environ.get("TETHER_LONG", "1"))  # TETHER_LONG=5 runs five times as many steps


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normals that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def walk(
    surface: Surface, starts: Sequence[torch.Tensor], word: str, h: float, **fields
) -> tuple[list[nn.Parameter], tether.Optimizer]:
    """Parameters q0, q1, … on a surface, at rest, with zero gradients, and the optimizer that moves them."""
    params = [nn.Parameter(start.clone()) for start in starts]
    named = [(f"q{i}", q) for i, q in enumerate(params)]
    opt = tether.Optimizer(named, lr=h, word=word, on=surface, **used(word, **fields))
    for q in params:
        q.grad = torch.zeros_like(q)
    return params, opt


def run(opt: tether.Optimizer, steps: int, before: Callable[[], None] | None = None) -> None:
    for _ in range(steps):
        if before is not None:
            before()
        opt.step()


def stiefel(q: torch.Tensor) -> torch.Tensor:
    """The upper triangle of QᵀQ − I."""
    s = q.shape[-1]
    i, j = torch.triu_indices(s, s)
    return (q.mT @ q - torch.eye(s, dtype=q.dtype))[i, j]


def tall(w: torch.Tensor) -> torch.Tensor:
    m = w.flatten(1)
    return m if m.shape[0] >= m.shape[1] else m.mT


def point(surface: Surface, param: torch.Tensor, state: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The constraint g and ∇g·p of one parameter with its slack and momentum, from their equations."""
    θ, p = param.detach().to(state_dtype(param)), state.get("momentum")
    if isinstance(surface, Circle):
        r, q = surface.r(θ), state["point"]
        g = θ.square() + (r * torch.cos(q)).square() - r * r  # p is the speed along the circle: no radial part
        return g, torch.zeros(()) if p is None else 2 * p * (torch.cos(q) * θ - torch.sin(q) * r * torch.cos(q))
    if isinstance(surface, Sphere) and (surface.keeps or surface.per == "tensor"):
        w, r = θ.flatten(int(surface.per == "row")), state["point"][..., -1] if surface.keeps else surface.radius
        across = torch.zeros(()) if p is None else 2 * (w * p[..., : w.shape[-1]]).sum(-1)
        return w.square().sum(-1) - r * r, across
    if isinstance(surface, Sphere):
        r = surface.r(θ)
        q = torch.cat((θ.flatten(1), state["point"][..., -1:]), dim=-1) if surface.slack else θ.flatten(1)
        r = r if isinstance(r, float) else r.squeeze(-1)
        return q.square().sum(-1) - r * r, torch.zeros(()) if p is None else 2 * (q * p).sum(-1)
    if isinstance(surface, Orthogonal):
        q, c = tall(θ), surface.scale
        g = q.mT @ q / c**2 - torch.eye(q.shape[1], dtype=q.dtype)
        return g, torch.zeros(()) if p is None else (p.mT @ q + q.mT @ p) / c**2
    if isinstance(surface, SpectralBall):
        w, r = tall(θ), surface.radius
        q = torch.cat((w, state["point"][len(w) :]))
        g = q.mT @ q / r**2 - torch.eye(q.shape[1], dtype=q.dtype)
        return g, torch.zeros(()) if p is None else (p.mT @ q + q.mT @ p) / r**2
    assert isinstance(surface, Level)
    g = surface.g(θ)
    if p is None:
        return g, torch.zeros(())
    return torch.func.jvp(surface.g, (θ,), (p.view(θ.shape),))


def state_dtype(param: torch.Tensor) -> torch.dtype:
    return torch.float64 if param.dtype is torch.float64 else torch.float32


def faults(opt: tether.Optimizer, surface: Surface) -> tuple[float, float]:
    """The largest |g| and |∇g·p| over all parameters of the first part."""
    pairs = [point(surface, param, opt.state[param]) for param in opt.param_groups[0]["params"]]
    return max(float(g.abs().max()) for g, _ in pairs), max(float(c.abs().max()) for _, c in pairs)


# Statistics


def errors_of(samples: torch.Tensor | np.ndarray, expected: float | np.ndarray) -> np.ndarray:
    """How many standard errors the mean over the first axis, of independent samples, is off what is expected."""
    x = np.asarray(samples, dtype=np.float64)
    return (x.mean(0) - expected) / (x.std(0, ddof=1) / math.sqrt(len(x)) + 1e-300)


def haar(count: int, r: int, s: int, seed: int = 0) -> np.ndarray:
    """Uniform matrices with orthonormal columns, by Gram–Schmidt."""
    q = np.random.default_rng(seed).standard_normal((count, r, s))
    for j in range(s):
        for i in range(j):
            q[:, :, j] -= (q[:, :, i] * q[:, :, j]).sum(1, keepdims=True) * q[:, :, i]
        q[:, :, j] /= np.linalg.norm(q[:, :, j], axis=1, keepdims=True)
    return q


def matrix_langevin_mean(F: np.ndarray, nodes: int = 24) -> np.ndarray:
    """E Q of the density exp(tr FᵀQ) on 3 × 2 matrices with orthonormal columns, by quadrature.

    Q is the first two columns of a rotation by Euler angles, whose uniform measure is dα sin β dβ dγ.
    """
    α = 2 * np.pi * np.arange(nodes) / nodes
    z, weight = np.polynomial.legendre.leggauss(nodes)
    α, β, γ = np.meshgrid(α, np.arccos(z), α, indexing="ij")
    weight = np.broadcast_to(weight[None, :, None], α.shape)
    ca, sa, cb, sb, cg, sg = np.cos(α), np.sin(α), np.cos(β), np.sin(β), np.cos(γ), np.sin(γ)
    columns = [[ca * cb * cg - sa * sg, -ca * cb * sg - sa * cg], [sa * cb * cg + ca * sg, -sa * cb * sg + ca * cg]]
    Q = np.stack([np.stack(row, -1) for row in (*columns, [-sb * cg, sb * sg])], -2)
    density = weight * np.exp((Q * F).sum((-1, -2)))
    return (Q * density[..., None, None]).sum((0, 1, 2)) / density.sum()
