"""Normals: the rows of the Jacobian of g at a stack of points, as a linear map that need not be stored whole."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["Apart", "Dense", "Normals", "linearised", "owner_of"]

Map = Callable[[torch.Tensor], torch.Tensor]


class Dense:
    """J as a tensor of shape (points, constraints, coordinates)."""

    def __init__(self, J: torch.Tensor) -> None:
        self.J = J

    def across(self, v: torch.Tensor) -> torch.Tensor:
        """J v."""
        return (self.J @ v.unsqueeze(-1)).squeeze(-1)

    def back(self, λ: torch.Tensor) -> torch.Tensor:
        """Jᵀ λ."""
        return (self.J.mT @ λ.unsqueeze(-1)).squeeze(-1)

    def solver(self) -> Map:
        """The map r ↦ (J Jᵀ)⁻¹ r."""
        factor, info = torch.linalg.cholesky_ex(self.J @ self.J.mT)
        if bool(info.any()):  # rank-deficient up to rounding
            inverse = torch.linalg.pinv((self.J @ self.J.mT).double())
            return lambda r: (inverse @ r.double().unsqueeze(-1)).squeeze(-1).to(r)
        return lambda r: torch.cholesky_solve(r.unsqueeze(-1), factor).squeeze(-1)

    def whole(self) -> torch.Tensor:
        """J, stored whole."""
        return self.J

    def sizes(self) -> torch.Tensor:
        """The norms of the rows of J."""
        return torch.linalg.vector_norm(self.J, dim=-1)

    def finite(self) -> torch.Tensor:
        """Are all entries finite?"""
        return self.J.isfinite().all()


class Apart:
    """J of constraints that share no coordinate: one number for each coordinate, and the constraint it belongs to."""

    def __init__(self, slopes: torch.Tensor, owner: torch.Tensor, count: int) -> None:
        self.slopes, self.owner, self.count = slopes, owner, count

    def across(self, v: torch.Tensor) -> torch.Tensor:
        """J v."""
        return self._sums(self.slopes * v)

    def back(self, λ: torch.Tensor) -> torch.Tensor:
        """Jᵀ λ."""
        return self.slopes * (λ if self.count == 1 else λ[:, self.owner])

    def solver(self) -> Map:
        """The map r ↦ (J Jᵀ)⁻¹ r."""
        squares = self._sums(self.slopes.square())
        return lambda r: torch.where(squares > 0, r / squares, 0.0)

    def whole(self) -> torch.Tensor:
        """J, stored whole."""
        if self.count == 1:
            return self.slopes.unsqueeze(1)
        J = self.slopes.new_zeros(len(self.slopes), self.count, self.slopes.shape[1])
        return J.scatter_(1, self.owner.expand(len(J), 1, -1), self.slopes.unsqueeze(1))

    def sizes(self) -> torch.Tensor:
        """The norms of the rows of J."""
        return self._sums(self.slopes.square()).sqrt()

    def finite(self) -> torch.Tensor:
        """Are all entries finite?"""
        return self.slopes.isfinite().all()

    def _sums(self, x: torch.Tensor) -> torch.Tensor:
        """For each constraint, the sum over its coordinates."""
        if self.count == 1:
            return x.sum(-1, keepdim=True)
        return x.new_zeros(len(x), self.count).index_add_(1, self.owner, x)


Normals = Dense | Apart


def linearised(value: Map, q: torch.Tensor, owner: torch.Tensor | None) -> tuple[torch.Tensor, Normals]:
    """g and its normals at a stack of points.

    With the owners of all coordinates the normals are `Apart`: one backward pass is for all constraints, and a second
    one checks that they share nothing. If they do after all, and without owners, J is made whole.
    """
    with torch.enable_grad():
        x = q.detach().requires_grad_()
        values = values_of(value, x)
        count = values.shape[1]
        if not values.requires_grad:  # g does not depend on the point
            return values, Dense(q.new_zeros(len(q), count, q.shape[1]))
        ones = torch.ones_like(values)
        if count == 1:
            (slopes,) = torch.autograd.grad(values, x, ones)
            return values.detach(), Apart(slopes, x.new_zeros(0, dtype=torch.long), 1)
        if owner is not None:
            weights = torch.linspace(1, 2, count, dtype=values.dtype, device=values.device).expand_as(values)
            slopes, seen = (torch.autograd.grad(values, x, one, retain_graph=True)[0] for one in (ones, weights))
            off = (seen - slopes * weights[0, owner]).abs().amax(-1)
            if bool((off <= 64 * torch.finfo(q.dtype).eps * slopes.abs().amax(-1)).all()):
                return values.detach(), Apart(slopes, owner, count)
        each = torch.eye(count, dtype=values.dtype, device=values.device).unsqueeze(1).expand(-1, len(q), -1)
        (J,) = torch.autograd.grad(values, x, each, is_grads_batched=True)
    return values.detach(), Dense(J.movedim(0, 1))


def values_of(value: Map, q: torch.Tensor) -> torch.Tensor:
    """g at a stack of points."""
    return value(q[0]).unsqueeze(0) if len(q) == 1 else torch.func.vmap(value)(q)


def owner_of(J: torch.Tensor) -> torch.Tensor | None:
    """The constraint that each coordinate belongs to (0 if to none); None if two constraints share one."""
    touched = (J != 0).any(0)  # constraints × coordinates
    return touched.to(torch.uint8).argmax(0) if bool((touched.sum(0) <= 1).all()) else None
