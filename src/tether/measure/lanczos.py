"""Eigenvalues of a symmetric operator from its products with vectors: Lanczos with full reorthogonalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

__all__ = ["Extremes", "Unconverged", "extremes", "quadrature"]

Product = Callable[[torch.Tensor, torch.Tensor], object]  # writes H v, of the first, into the second


class Unconverged(RuntimeError):
    """The requested eigenvalues have not converged to the requested tolerance."""


class Extremes(NamedTuple):
    """The smallest and the largest eigenvalues, ascending; each is within its residual of an eigenvalue."""

    values: torch.Tensor
    residuals: torch.Tensor
    scale: float  # the largest |λ| seen
    weights: torch.Tensor  # of the vectors of the basis in the Ritz vectors
    basis: torch.Tensor

    @property
    def vectors(self) -> torch.Tensor:
        """The Ritz vectors, as rows."""
        return self.weights @ self.basis


def normal(n: int, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    return torch.randn(n, generator=generator).to(like)


def expand(product: Product, Q: torch.Tensor, T: torch.Tensor, j: int) -> float:
    """Compute column j of T = QHQᵀ. Row j + 1 of Q becomes the part of H q_j orthogonal to the others; its norm."""
    w = Q[j + 1]
    product(Q[j], w)
    size = w.norm().item()
    for _ in range(4):
        h = Q[: j + 1] @ w
        w.addmv_(Q[: j + 1].mT, h, alpha=-1)
        T[: j + 1, j] += h.to(T)
        β = w.norm().item()
        if β > 0.7 * size:  # otherwise rounding errors along the others have grown, and would grow from row to row
            break
        size = β
    T[j, :j] = T[:j, j]
    return β


def fresh(Q: torch.Tensor, j: int, generator: torch.Generator) -> torch.Tensor:
    """A random unit vector orthogonal to the first j rows of Q."""
    q = normal(Q.shape[1], generator, Q)
    for _ in range(2 if j else 1):
        if j:
            q.addmv_(Q[:j].mT, Q[:j] @ q, alpha=-1)
        q /= q.norm()
    return q


def extremes(
    product: Product,
    like: torch.Tensor,
    top: int,
    bottom: int,
    *,
    tolerance: float,
    iterations: int,
    generator: torch.Generator,
    memory: float = 2e9,
) -> Extremes:
    """The `top` largest and `bottom` smallest eigenvalues, with their multiplicities.

    The Ritz value θ of the vector x = Qᵀs has the residual |Hx − θx| = |β s_j|, and an eigenvalue is at most that far
    away. The iteration stops when all residuals are at most tolerance·max|λ|. The basis is restarted with its extreme
    Ritz vectors when it is full (thick restart). A Krylov space contains one vector of each eigenspace. So if several
    eigenvalues of one end are requested, the iteration is restarted from a random vector orthogonal to those found,
    until nothing new is found.

    Args:
        product: ``product(v, out)`` writes H v into `out`.
        like: a vector of the space: its length, precision and device.
        top: how many of the largest.
        bottom: how many of the smallest.
        tolerance: of the residuals, relative to max|λ|.
        iterations: the largest number of products.
        generator: draws the first vector.
        memory: bytes for the basis; at least what a restart needs is used.
    """
    n, wanted = len(like), top + bottom
    basis = min(n, max(2 * wanted + 20, min(300, int(memory / (n * like.element_size())))))
    Q = like.new_empty(basis + 1, n)
    T = torch.zeros(basis, basis, dtype=torch.float64, device=like.device)
    Q[0] = fresh(Q, 0, generator)
    eps = torch.finfo(like.dtype).eps
    j, carried, before = 0, 0.0, None
    for used in range(1, iterations + 1):
        β = expand(product, Q, T, j)
        j += 1
        full = j == basis
        closed = β <= 10 * eps * T.abs().max().item()  # the space is invariant: there is no new direction
        if not (full or closed or used == iterations or j % (1 + j // 20) == 0):
            Q[j] /= β
            continue
        θ, S = torch.linalg.eigh(T[:j, :j])
        scale = θ.abs().max().item()
        β = 0.0 if closed or j == n else β
        # after a restart one more eigenvalue of each end shows that none was missed
        more = before is not None
        low, high = (min(j, x + (more and x > 1)) for x in (bottom, top))
        residuals = β * S[-1].abs()
        ends = [*range(low), *range(max(low, j - high), j)]
        if j >= min(n, low + high) and bool((residuals[ends] <= tolerance * scale).all()):
            mine = [*range(min(bottom, j)), *range(max(bottom, j - top), j)]
            values = θ[mine]
            known = before is not None and len(before) == len(values)
            same = known and bool(((values - before).abs() <= 2 * tolerance * scale).all())
            if same or j == n or (top <= 1 and bottom <= 1):
                bounds = torch.hypot(residuals[mine], torch.tensor(carried)) + 10 * eps * scale
                return Extremes(values, bounds, scale, S[:, mine].mT.to(like), Q[:j])
            before, carried = values, max(carried, residuals[mine].max().item())
            j = restart(Q, T, θ, S, mine)
            Q[j] = fresh(Q, j, generator)
            continue
        rest = j  # the row of what is left of the last product
        if full:
            extra = (basis - wanted) // 3
            keep = [*range(bottom + extra if bottom else 0), *range(j - (top + extra if top else 0), j)]
            j = restart(Q, T, θ, S, keep)
        if closed:
            Q[j] = fresh(Q, j, generator)
        else:
            torch.div(Q[rest], β, out=Q[j])
    worst = residuals[ends].max().item() / (scale or 1.0)
    state = f"have relative residuals up to {worst:.1e}, more than tolerance={tolerance:g}"
    if before is not None:
        state = "are found, but not whether there are others beside them"
    raise Unconverged(
        f"after {iterations} products the {bottom} smallest and {top} largest eigenvalues {state}: allow more by "
        f"iterations={4 * iterations}, ask for fewer by top= and bottom=, or accept less by tolerance="
    )


def restart(Q: torch.Tensor, T: torch.Tensor, θ: torch.Tensor, S: torch.Tensor, keep: list[int]) -> int:
    """Replace the basis by the Ritz vectors `keep`; returns their number."""
    Q[: len(keep)] = S[:, keep].mT.to(Q) @ Q[: len(θ)]
    T.zero_()
    T.diagonal()[: len(keep)] = θ[keep]
    return len(keep)


def quadrature(product: Product, start: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights of Gauss quadrature for the spectral measure of a vector: vᵀf(H)v = |v|² Σ τ f(θ)."""
    steps = min(steps, len(start))
    Q = start.new_empty(steps + 1, len(start))
    T = torch.zeros(steps, steps, dtype=torch.float64, device=start.device)
    Q[0] = start / start.norm()
    j = 0
    for j in range(steps):
        β = expand(product, Q, T, j)
        if j + 1 == steps or β <= 10 * torch.finfo(start.dtype).eps * T.abs().max().item():
            break
        Q[j + 1] /= β
    θ, S = torch.linalg.eigh(T[: j + 1, : j + 1])
    return θ, S[0].square()
