"""Closest: the point of g = 0 nearest to a given one, by steps along the surface and across it."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["closest"]

Map = Callable[[torch.Tensor], torch.Tensor]


def closest(
    point: torch.Tensor,
    value: Map,
    jacobian: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    met: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool],
    iterations: int,
) -> tuple[torch.Tensor, float | None]:
    """(4.42): q = q̄ − J(q)ᵀλ with g(q) = 0 for a stack of points q̄; also what is missing, if the iterations end first.

    A step is d = αΠ(q̄ − q) − J⁺g: the gradient of the distance along the surface, with α by Barzilai and Borwein, and
    Newton's step across it. It is halved for each point until ½|q − q̄|² + μ|g| decreases, μ > |λ|.
    """
    q, eps = point, torch.finfo(point.dtype).eps
    α = torch.ones(len(point), 1, dtype=point.dtype, device=point.device)
    before: tuple[torch.Tensor, torch.Tensor] | None = None
    for _ in range(iterations):
        values, J = jacobian(q)
        gram = torch.linalg.pinv((J @ J.mT).double()).to(J)
        λ, back = (gram @ x for x in (J @ (point - q).unsqueeze(-1), values.unsqueeze(-1)))
        along = point - q - (J.mT @ λ).squeeze(-1)
        rest = along.norm(dim=-1) / (1 + point.norm(dim=-1))
        if met(q, values, J) and bool((rest <= 32 * eps).all()):
            return q, None
        if before is not None:
            s, y = q - before[0], before[1] - along
            found = (s * y).sum(-1, keepdim=True) / y.square().sum(-1, keepdim=True)
            clear = rest.unsqueeze(-1) > 1e3 * eps  # nearer than that, differences are rounding errors
            α = torch.where(clear & (found > 0) & found.isfinite(), found.clamp(1e-4, 10), α)
        before = q, along
        d = α * along - (J.mT @ back).squeeze(-1)
        q = descend(value, q, point, d, 2 * (λ + back).norm(dim=-2))
    near = met(q, *jacobian(q)) and bool((rest <= 1e4 * eps).all())
    return q, None if near else rest.amax().item()


def descend(value: Map, q: torch.Tensor, point: torch.Tensor, d: torch.Tensor, μ: torch.Tensor) -> torch.Tensor:
    """q + t·d, with t halved for each point of the stack until ½|q − q̄|² + μ|g| decreases, up to rounding."""

    def size(q: torch.Tensor) -> torch.Tensor:
        values = torch.func.vmap(value)(q)
        return (q - point).square().sum(-1, keepdim=True) / 2 + μ * values.norm(dim=-1, keepdim=True)

    before, t = size(q), torch.ones(len(q), 1, dtype=q.dtype, device=q.device)
    for _ in range(12):
        trial = q + t * d
        worse = ~(size(trial) <= before * (1 + 8 * torch.finfo(q.dtype).eps))
        if not bool(worse.any()):
            break
        t = torch.where(worse, t / 2, t)
    return trial
