"""The real step as numbers: its coefficients, what it leaves invariant, and chains of it.

A step takes one gradient, so it is linear in (q, p, g, R): position, momentum, gradient, normals. Its
coefficients are read off the real optimizer by giving many chains known values of all four, and what the step
leaves invariant follows from them without sampling.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import solve_discrete_lyapunov

import tether
from fitting import used


def coefficients(word: str, h: float, friction: float = 1.0, temperature: float = 1.0) -> np.ndarray:
    """(q, p) after a step of the optimizer, as a 2 × 4 matrix on (q, p, g, R) before it; with U, also on Q.

    The normals are not injected: they must be the ones that `noise.reference` names, or nothing fits.
    """
    q = torch.nn.Parameter(torch.zeros(32, dtype=torch.float64))
    opt = tether.Optimizer([("q", q)], lr=h, word=word, **used(word, friction=friction, temperature=temperature))
    q.grad = torch.zeros_like(q)
    opt.step()  # makes the momenta, and a step before of the same size

    start, p, g = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    normals = [
        tether.noise.reference(32, seed=0, step=1, draw=draw, name="q", dtype=torch.float64)
        for draw in range(2 if "U" in word else 1)
    ]
    momentum = opt.state[q].get("momentum", torch.zeros_like(q))
    q.data.copy_(start)
    q.grad.copy_(g)
    momentum.copy_(p)
    opt.step()
    if "momentum" not in opt.state[q]:
        momentum.zero_()

    given = torch.stack((start, p, g, *normals), dim=1).numpy()
    found = torch.stack((q.detach(), momentum), dim=1).numpy()
    return linear_fit(given, found)


def linear_fit(given: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The matrix that turns each row of `given` into that of `found`, exactly."""
    solution = np.linalg.lstsq(given, found, rcond=None)[0]
    np.testing.assert_allclose(given @ solution, found, atol=1e-12, err_msg="not linear in what was given")
    return solution.T


def covariance(step: np.ndarray, gradient_noise: float = 0.0) -> np.ndarray:
    """The covariance of (q, p) invariant under a step with the gradient g = q + `gradient_noise` · normal."""
    transition = step[:, :2] + np.outer(step[:, 2], [1.0, 0.0])
    noise = step[:, 3:] @ step[:, 3:].T + gradient_noise**2 * np.outer(step[:, 2], step[:, 2])
    return solve_discrete_lyapunov(transition, noise)


def by_hand(program, h, friction=1.0, temperature=1.0, *, ξ=0.0, noise=0.0, gradient_noise=0.0) -> np.ndarray:
    """The same from the letters' 2 × 2 matrices alone; `program` holds letters with durations in units of h."""
    transition, added = np.eye(2), np.zeros((2, 2))
    for letter, share in program:
        t = h * share
        c = math.exp(-friction * t)
        matrix, heat = {
            "A": ([[1, t], [0, 1]], 0.0),
            "B": ([[1, 0], [-t, 1]], t**2 * gradient_noise**2),
            "O": ([[1, 0], [0, c]], temperature * (1 - c**2)),
            "C": ([[1, 0], [0, math.exp(-ξ * t)]], 0.0),
            "D": ([[1, 0], [0, 1]], noise**2 * t),
        }[letter]
        transition = np.array(matrix) @ transition
        added = np.array(matrix) @ added @ np.array(matrix).T + np.diag([0.0, heat])
    return solve_discrete_lyapunov(transition, added)


# The double well U = (q² − 1)²/4 at τ = 1


def double_well_force(q):
    """U′, the gradient."""
    return q**3 - q


def double_well_density(q: np.ndarray) -> np.ndarray:
    """exp(−U), not normalised."""
    return np.exp(-((q**2 - 1) ** 2) / 4)


def double_well_moment(step: np.ndarray, back: float = 0.0, degree: int = 24, of_p: int = 12) -> float:
    """⟨(q − back·p)²⟩ in the law of (q, p) that a step leaves invariant on the double well, to about six digits.

    The law is sought as ρ = exp(−U(q) − p²/2) Σ c_a φ_a with φ_a products of orthonormal polynomials, `degree`
    of them in q and `of_p` in p. It is invariant if E φ_b(q′, p′) = E φ_b(q, p) for all b; both sides are Gauss
    sums over q, p and the normals, R alone or R and Q.
    """
    nodes_q, weights_q, basis_q = polynomials(double_well_density, degree, 2 * degree)
    nodes_p, weights_p, basis_p = polynomials(lambda p: np.exp(-(p**2) / 2), of_p, 2 * of_p)
    draws = step.shape[1] - 3
    nodes_r, weights_r = hermegauss(24 // draws)
    weights_r /= weights_r.sum()
    normals = np.stack(np.meshgrid(*[nodes_r] * draws, indexing="ij")).reshape(draws, -1)
    weights_r = weights_r if draws == 1 else np.outer(weights_r, weights_r).ravel()

    q, p, k = np.meshgrid(nodes_q, nodes_p, np.arange(normals.shape[1]), indexing="ij")
    q1, p1 = np.tensordot(step, np.stack((q, p, double_well_force(q), *normals[:, k])), 1)
    after = np.einsum("ijka,ijkb,k->ijab", basis_q(q1), basis_p(p1), weights_r, optimize=True)
    before = np.einsum("ia,jb->ijab", basis_q(nodes_q), basis_p(nodes_p))
    # The law is even in (q, p), so only products of even total degree take part.
    even = np.add.outer(np.arange(degree), np.arange(of_p)) % 2 == 0
    after, before = after[:, :, even], before[:, :, even]
    weights = np.outer(weights_q, weights_p)
    balance = np.einsum("ijb,ij,ija->ba", after - before, weights, before, optimize=True)
    c = np.concatenate(([1.0], np.linalg.solve(balance[1:, 1:], -balance[1:, 0])))
    return float(np.einsum("ij,ij,ija,a", (q - back * p)[:, :, 0] ** 2, weights, before, c, optimize=True))


def polynomials(density, degree: int, nodes: int):
    """Gauss nodes and weights for an even density on [−12, 12], and its first orthonormal polynomials.

    By Stieltjes' recurrence q φ_n = b_{n+1} φ_{n+1} + b_n φ_{n−1}.
    """
    q = np.linspace(-12, 12, 6001)
    w = density(q) / density(q).sum()
    b = np.zeros(nodes + 1)
    before, now = np.zeros_like(q), np.ones_like(q)
    for n in range(nodes):
        after = q * now - b[n] * before
        b[n + 1] = np.sqrt(w @ after**2)
        before, now = now, after / b[n + 1]
    points, vectors = np.linalg.eigh(np.diag(b[1:nodes], 1) + np.diag(b[1:nodes], -1))

    def basis(x: np.ndarray) -> np.ndarray:
        values = [np.zeros_like(x), np.ones_like(x)]
        for n in range(degree - 1):
            values.append((x * values[-1] - b[n] * values[-2]) / b[n + 1])
        return np.stack(values[1:], axis=-1)

    return points, vectors[0] ** 2, basis


# Sampling: every element of one tensor is a chain of its own


def chains(word: str, h: float, count: int, start: torch.Tensor | None = None, **fields):
    """A tensor of `count` independent chains, all at 0 unless `start` is given, and the optimizer that moves it."""
    q = torch.nn.Parameter(torch.zeros(count) if start is None else start.clone())
    q.grad = torch.zeros_like(q)
    return q, tether.Optimizer([("q", q)], lr=h, word=word, **fields)


def run(q: torch.nn.Parameter, opt: tether.Optimizer, steps: int, force=None) -> None:
    """Steps on the harmonic well, or with another gradient."""
    for _ in range(steps):
        q.grad.copy_(q.detach() if force is None else force(q.detach()))
        opt.step()


def draw_double_well(count: int, seed: int = 0) -> torch.Tensor:
    """Exact samples of exp(−U), by the inverse of its distribution function."""
    q = np.linspace(-5, 5, 100_001)
    distribution = np.cumsum(double_well_density(q))
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    return torch.from_numpy(np.interp(uniform, distribution / distribution[-1], q)).float()
