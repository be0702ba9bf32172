"""Samplers with a Metropolis test against closed forms: Gaussians, and densities on spheres and rotations."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import iv
from scipy.stats import norm
from torch import nn

from tether import Circle, Level, Metropolis, Optimizer, Orthogonal, Part, Sphere, methods


def harmonic(q, opt):
    def closure():
        opt.zero_grad()
        found = q.square().sum(1) / 2
        found.sum().backward()
        return found.detach()

    return closure


def chains(n, dims=1, τ=1.0, seed=0):
    """Draws of N(0, τ): n chains that begin where they should stay."""
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(τ**0.5 * torch.randn(n, dims, generator=generator, dtype=torch.float64))


def second_moment(q, opt, steps, closure):
    """⟨q²⟩ over steps and chains, and its standard error by the chains."""
    found = []
    for _ in range(steps):
        opt.step(closure)
        found.append(q.detach().square().mean(1))
    each = torch.stack(found).mean(0)
    return each.mean().item(), each.std().item() / math.sqrt(len(each))


# a step size at which the word alone is off by 1/(1 − h²/4) or 1/(1 − h/2), so by more than 10 %
WORDS = {"hmc": ("OBAB", 0.9, {"steps": 2}), "mala": ("X", 0.4, {})}


@pytest.mark.parametrize("τ", [1.0, 0.25, 1e-2])
@pytest.mark.parametrize("method", WORDS)
def test_a_harmonic_well_is_sampled_exactly_where_the_word_alone_is_not(method, τ):
    word, h, more = WORDS[method]
    q = chains(4000, τ=τ)
    friction = {"friction": math.inf} if word == "OBAB" else {}
    alone = Optimizer([("q", q)], lr=h, word=word, temperature=τ, batch_dims=1, **friction)
    biased, _ = second_moment(q, alone, 15, harmonic(q, alone))
    assert biased > 1.1 * τ
    q = chains(4000, τ=τ)
    opt = getattr(methods, method)([("q", q)], lr=h, temperature=τ, batch_dims=1, **more)
    mean, error = second_moment(q, opt, 15, harmonic(q, opt))
    assert abs(mean - τ) < 3 * error
    assert error < 0.02 * τ


def verlet(h, steps):
    """The matrix of Verlet steps on the harmonic well."""
    kick, drift = np.array([[1, 0], [-h / 2, 1]]), np.array([[1, h], [0, 1]])
    return np.linalg.matrix_power(kick @ drift @ kick, steps)


@pytest.mark.parametrize(("h", "steps"), [(1.6, 3), (1.0, 2), (0.5, 1), (0.1, 7)])
def test_the_acceptance_in_one_dimension(h, steps):
    # Reversible maps that preserve volume have E min(1, e^{−Δ}) = 2 P(Δ < 0). With s the larger singular value of the
    # map, Δ = ((s² − 1)x² + (1/s² − 1)y²)/2 is negative where |x| < |y|/s.
    s = np.linalg.svd(verlet(h, steps), compute_uv=False)[0]
    want = 4 / math.pi * math.atan(1 / s)
    n, times = 4000, 5
    q = chains(n)
    opt = methods.hmc([("q", q)], lr=h, steps=steps, batch_dims=1)
    for _ in range(times):
        opt.step(harmonic(q, opt))
    assert abs(opt.acceptance.mean().item() - want) < 4 * math.sqrt(want * (1 - want) / (n * times)) + 1e-12
    assert h > 0.1 or want > 0.998


@pytest.mark.parametrize(("h", "steps"), [(0.5, 2), (0.35, 1)])
def test_the_acceptance_in_many_dimensions(h, steps):
    # ΔH/τ of many equal coordinates is normal with mean μ and variance 2μ, so that E min(1, e^{−Δ}) = 2Φ(−√(μ/2))
    dims, n = 400, 2000
    μ = dims * (np.square(verlet(h, steps)).sum() / 2 - 1)
    want = 2 * norm.cdf(-math.sqrt(μ / 2))
    assert 0.2 < want < 0.95
    q = chains(n, dims, τ=0.25)
    opt = methods.hmc([("q", q)], lr=h, steps=steps, temperature=0.25, batch_dims=1)
    opt.step(harmonic(q, opt))
    assert abs(opt.acceptance.mean().item() - want) < 4 * math.sqrt(want * (1 - want) / n) + 2 / dims


def test_mala_accepts_as_the_cube_of_h_asks():
    # μ = d h⁶′/32 with h′ = √(2h): the rate d^{1/3} of Roberts and Rosenthal
    for h in (0.1, 0.2):
        μ = np.square(verlet(math.sqrt(2 * h), 1)).sum() / 2 - 1
        assert μ == pytest.approx((2 * h) ** 3 / 32, rel=0.15)


# On surfaces: κ·cos of an angle, whose mean is known


def parts(on):
    return [Part("weight", on=on)]


def mean_on(surface, start, energy, of, *, h, steps, burn, keep, method="OBAB", seed=0):
    """The mean of a function over the last proposals and all chains, and its standard error."""
    net = nn.Module()
    net.weight = nn.Parameter(start.clone())
    fields = {"word": "OBAB", "friction": math.inf} if method == "OBAB" else {"word": "X"}
    rhythm = Metropolis(steps)
    opt = Optimizer(net, parts(surface), lr=h, temperature=1.0, rhythm=rhythm, batch_dims=1, seed=seed, **fields)

    def closure():
        opt.zero_grad()
        found = energy(net.weight)
        found.sum().backward()
        return found.detach()

    found = []
    for i in range(burn + keep):
        opt.step(closure)
        if i >= burn:
            found.append(of(net.weight.detach()))
    assert float(opt.violation().max()) < 1e-10
    each = torch.stack(found).mean(0)
    return each.mean().item(), each.std().item() / math.sqrt(len(each)), opt.acceptance.mean().item()


def north(n, *shape):
    start = torch.zeros(n, *shape, dtype=torch.float64)
    start[..., 0, 0] = 1.0
    return start


SPHERES = {
    "sphere": (Sphere(1.0, slack=False), (1, 3), 2000, 0.9),
    "with slack": (Sphere(1.0), (1, 2), 2000, 0.6),
    "level": (Level(lambda w: w.square().sum() - 1), (1, 3), 100, 0.45),
    "stiefel": (Orthogonal(), (3, 1), 600, 0.45),
}


@pytest.mark.parametrize("kind", SPHERES)
@pytest.mark.parametrize("method", ["OBAB", "X"])
def test_von_mises_fisher_on_the_sphere(kind, method):
    # exp(κ cos) on S²: ⟨cos⟩ = coth κ − 1/κ
    if (kind, method) == ("level", "X"):
        pytest.skip("one step of OBAB, at the price of many")
    surface, shape, n, h = SPHERES[kind]
    κ, want = 2.0, 1 / math.tanh(2) - 1 / 2
    steps, h = (3, h) if method == "OBAB" else (1, h * h / 2)
    how = {"h": h, "steps": steps, "burn": 12 if method == "OBAB" else 25, "keep": 8, "method": method}
    mean, error, share = mean_on(
        surface, north(n, *shape) * 0.999, lambda w: -κ * w[:, 0, 0], lambda w: w[:, 0, 0], **how
    )
    assert abs(mean - want) < 3.5 * error
    assert error < 0.05
    assert 0.3 < share < 0.995


def test_von_mises_on_the_circle():
    # the angle of θ = sin q has the density exp(κ sin q): ⟨θ⟩ = I₁(κ)/I₀(κ)
    want = iv(1, 2.0) / iv(0, 2.0)
    start = torch.zeros(2000, 1, dtype=torch.float64)
    how = {"h": 0.6, "steps": 2, "burn": 10, "keep": 8}
    mean, error, share = mean_on(Circle(1.0), start, lambda w: -2 * w[:, 0], lambda w: w[:, 0], **how)
    assert abs(mean - want) < 3.5 * error
    assert error < 0.02
    assert share < 0.99


def trace(w):
    return w.diagonal(dim1=1, dim2=2).sum(1)


def test_matrix_langevin_on_rotations_of_the_plane_at_a_long_step():
    # exp(κ tr(Q)/2): ⟨cos⟩ = I₁(κ)/I₀(κ). At h = 0.7 many steps have no projection or return by another root: without
    # the test of momenta the mean is off by 0.05.
    κ, n = 1.4, 3000
    angle = torch.from_numpy(np.random.default_rng(0).vonmises(0, κ, n))
    rows = [torch.stack((angle.cos(), -angle.sin()), -1), torch.stack((angle.sin(), angle.cos()), -1)]
    how = {"h": 0.7, "steps": 3, "burn": 4, "keep": 4}
    mean, error, share = mean_on(
        Orthogonal(), torch.stack(rows, -2), lambda w: -κ / 2 * trace(w), lambda w: trace(w) / 2, **how
    )
    assert abs(mean - iv(1, κ) / iv(0, κ)) < 3 * error
    assert error < 0.012
    assert share < 0.95


def test_matrix_langevin_on_rotations_of_space():
    # exp(κ tr Q) on SO(3): the angle of rotation has the density (1 − cos φ) e^{2κ cos φ}, and tr Q = 1 + 2 cos φ
    κ = 0.5
    weight = [
        quad(lambda φ, k=k: math.cos(φ) ** k * (1 - math.cos(φ)) * math.exp(2 * κ * math.cos(φ)), 0, math.pi)[0]
        for k in (0, 1)
    ]
    start = torch.eye(3, dtype=torch.float64).expand(600, 3, 3)
    how = {"h": 0.45, "steps": 4, "burn": 12, "keep": 6}
    mean, error, share = mean_on(Orthogonal(), start, lambda w: -κ * trace(w), trace, **how)
    assert abs(mean - (1 + 2 * weight[1] / weight[0])) < 3.5 * error
    assert error < 0.08
    assert share < 0.999
