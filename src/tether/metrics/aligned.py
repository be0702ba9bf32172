"""Aligned: the tangent direction of bounded spectral norm at an orthogonal matrix along which a matrix points most."""

from __future__ import annotations

import torch

from tether.engine import host

__all__ = ["aligned"]

SIGNS = 10  # matrix signs at most
ENOUGH = 1e-6  # of |WᵀA + AᵀW|: less is not asked for
SMOOTH = 0.03  # the width, in mean singular values, of the step of the smoothed sign
AHEAD = 0.6  # how far an iterate goes on in the direction of the last two


def aligned(
    w: torch.Tensor, g: torch.Tensor, dual: torch.Tensor, signs: int = SIGNS
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The A that maximises ⟨G, A⟩ with ‖A‖₂ ≤ 1 and WᵀA + AᵀW = 0, nearly; where the next one begins; and the count.

    For every symmetric Λ, ⟨G, A⟩ ≤ ‖G + 2WΛ‖_*, with equality where A = msign(G + 2WΛ) is tangent (Bernstein, 2025).
    Λ enters by M, the symmetric part of Wᵀ(G + 2WΛ). Plain ascent along WᵀA + AᵀW needs hundreds of signs. Here every
    iteration minimises the quadratic function that touches the nuclear norm from above (Mohan and Fazel, 2012): with
    Z = G + 2WΛ, P = (ZᵀZ)^½ and K the skew part of WᵀG, it is MP⁻¹ + P⁻¹M = P⁻¹K − KP⁻¹, entry by entry in the basis
    of P. For square W the first sign is the solution. At the end the rest across Σ is taken off.

    Args:
        w: orthonormal columns, number × rows × columns, rows ≥ columns.
        g: as w.
        dual: M of the last step, number × columns × columns, divided by the norm of its G; zeros to begin with.
        signs: how many matrix signs, (ZᵀZ)^−½ each, at most.
    """
    kind = g.dtype
    w, g = w.double(), g.double()
    size = torch.linalg.matrix_norm(g, keepdim=True).clamp_min(torch.finfo(kind).tiny)
    g = g / size
    inner = w.mT @ g
    skew, rest = (inner - inner.mT) / 2, g - w @ inner
    m = before = dual.double()
    used = 0
    for used in range(1, signs + 1):  # noqa: B007
        z = w @ (skew + m) + rest
        squares, basis = torch.linalg.eigh(z.mT @ z)
        squares = squares.clamp_min(0.0)
        blur = SMOOTH * squares.sqrt().mean(-1, keepdim=True)
        p = (squares + blur.square()).sqrt().clamp_min(torch.finfo(kind).tiny)
        a = z @ (basis / p.unsqueeze(-2)) @ basis.mT
        across = w.mT @ a
        across = across + across.mT
        here = basis.mT @ skew @ basis
        new = basis @ (here * (p.unsqueeze(-2) - p.unsqueeze(-1)) / (p.unsqueeze(-2) + p.unsqueeze(-1))) @ basis.mT
        if host.reads(w.device) and bool(across.abs().amax() <= ENOUGH):
            break
        m, before = new + AHEAD * (new - before), new
    return (a - 0.5 * w @ across).to(kind), new.to(dual.dtype), used
