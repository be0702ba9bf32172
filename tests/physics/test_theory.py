"""Theory that can be computed: rates of decay, the underlying equation, the limit of Verlet, DHSGD."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ive
from torch import nn

import tether
from tether.surfaces import Circle, Orthogonal, Sphere
from tether_studies.theory import (
    COUPLED,
    curvature,
    diffused,
    drift_of_a_step,
    flow_rate,
    partitioned,
    projector,
    sphere_rate,
    stiefel_rate,
    verlet,
)


def contraction(n, s):
    """E(q₁·q₀)/r² of one projected step with noise s = √(2τh)/r, exactly: E of cos of the angle to e₁ of e₁ + sR."""

    def density(x, ρ):  # of the first component x and the length ρ of the others
        return math.exp(-((x - 1) ** 2 + ρ * ρ) / (2 * s * s)) * ρ ** (n - 2)

    def over(f):
        outer = lambda ρ: quad(lambda x: f(x, ρ) * density(x, ρ), 1 - 9 * s, 1 + 9 * s, epsabs=0, epsrel=1e-11)[0]  # noqa: E731
        return quad(outer, 0, s * (9 + math.sqrt(n)), epsabs=0, epsrel=1e-10)[0]

    return over(lambda x, ρ: x / math.hypot(x, ρ)) / over(lambda x, ρ: 1.0)


def errors(values, expected):
    return (values.mean().item() - expected) / (values.std().item() / math.sqrt(len(values)))


def test_a_step_on_the_sphere_contracts_the_mean_as_it_must_and_at_the_rate_of_the_theory():
    n, r, τ, h = 4, 2.0, 0.3, 0.2
    c = contraction(n, math.sqrt(2 * τ * h) / r)
    start = torch.zeros(40_000, n)
    start[:, 0] = r
    *_, q = diffused(Sphere(r, slack=False), start, h, τ, 3, seed=1)
    assert abs(errors(q[:, 0] / r, c**3)) < 4
    λ = sphere_rate(n, r, τ)
    assert -math.log(contraction(n, math.sqrt(2 * τ * 0.01) / r)) / 0.01 == pytest.approx(λ, rel=0.005)


@pytest.mark.parametrize(("r", "s"), [(3, 3), (5, 2)])
def test_orthogonal_matrices_decay_at_the_length_of_their_mean_curvature(r, s):
    λ, h = stiefel_rate(r, s, 1.0), 0.003
    start = torch.eye(r, s).expand(20_000, r, s)
    *_, q = diffused(Orthogonal(), start, h, 1.0, 10, seed=2, batch_dims=1)
    found = q.diagonal(dim1=1, dim2=2).mean(1)
    assert -math.log(found.mean().item()) / (10 * h) == pytest.approx(λ, rel=0.04)  # the standard error is 0.5 %
    assert stiefel_rate(2, 2, 1.0) == 1 / 2  # O(2): a circle of radius √2 in R⁴
    assert stiefel_rate(7, 1, 1.0) == sphere_rate(7, 1.0, 1.0)


def test_circles_of_which_the_theorem_says_nothing_relax_at_a_rate():
    # a projected step turns by φ, and E cos φ is that of a Gaussian around a vector: √(πk/2) e^{−k}(I₀(k) + I₁(k))
    r, τ, h = 0.5, 0.1, 0.01
    k = r * r / (8 * τ * h)  # |q|²/4 over the variance 2τh
    c = math.sqrt(math.pi * k / 2) * (ive(0, k) + ive(1, k))
    q = nn.Parameter(torch.zeros(40_000))
    opt = tether.Optimizer([("q", q)], lr=h, temperature=τ, on=Circle(r))
    q.grad = torch.zeros_like(q)
    opt.step()
    assert abs(errors(torch.cos(opt.state[q]["point"]), c)) < 4
    assert -math.log(c) / h == pytest.approx(τ / r**2, rel=0.02)


def test_the_variance_of_averages_attains_the_bound_of_the_corollary():
    n, τ, h, steps = 3, 1.0, 0.05, 200
    c = contraction(n, math.sqrt(2 * τ * h))
    start = nn.functional.normalize(torch.randn(4000, n, generator=torch.Generator().manual_seed(0)), dim=1)
    total = sum(q[:, 0].clone() for q in diffused(Sphere(1.0, slack=False), start, h, τ, steps - 1, seed=3))
    squares = (total / steps).square()
    k = np.arange(1, steps)
    exact = (steps + 2 * ((steps - k) * c**k).sum()) / steps**2 / n  # of a chain with correlation c^k
    assert abs(errors(squares, exact)) < 4
    bound = 2 / n / sphere_rate(n, 1.0, τ)  # β/L times the variance 1/n
    long = (1 + c) / (1 - c) * h / n
    assert long == pytest.approx(bound, rel=0.06)  # as h → 0


@pytest.mark.parametrize("along", ["start", "end"])
def test_a_projected_step_has_the_drift_of_the_underlying_equation(along):
    q = torch.tensor([2 + math.cos(0.7), 0.0, math.sin(0.7)], dtype=torch.float64)
    force, τ = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64), 0.5
    exact = -projector(q) @ force + τ * curvature(q)
    # 𝓗 of a torus by hand: outwards −(1/1 + cos φ/(2 + cos φ))
    normal = torch.tensor([math.cos(0.7), 0.0, math.sin(0.7)], dtype=torch.float64)
    torch.testing.assert_close(curvature(q), -normal * (1 + math.cos(0.7) / (2 + math.cos(0.7))))
    off = [float((drift_of_a_step(along, h, τ, q, force) - exact).norm()) for h in (0.004, 0.002)]
    assert off[1] < 2e-3
    assert off[0] / off[1] == pytest.approx(2, rel=0.05)


def test_verlet_is_stable_up_to_two():
    assert [round(verlet(x), 9) for x in (0.3, 1.0, 1.99)] == [1.0, 1.0, 1.0]
    x = 2.1  # (1.30): λ = 1 − x²/2 ± √((1 − x²/2)² − 1)
    a = 1 - x * x / 2
    assert verlet(x) == pytest.approx(abs(a - math.sqrt(a * a - 1)), rel=1e-9)


def test_dhsgd_does_not_dissipate_for_small_steps_and_its_contractive_variant_does():
    rate = {(name, h): -math.log(abs(partitioned(name, h)).max()) / h for name in METHODS for h in (0.02, 0.01)}
    assert rate["dhsgd", 0.02] / rate["dhsgd", 0.01] == pytest.approx(2, rel=0.02)
    assert rate["dhsgd_contractive", 0.01] == pytest.approx(flow_rate(), rel=0.02)


METHODS = ("dhsgd", "dhsgd_contractive")


@pytest.mark.parametrize("name", METHODS)
def test_a_stationary_point_is_a_fixed_point_and_the_energy_falls(name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    first, second = net.parameters()
    opt = getattr(tether.methods, name)(net, lr=0.05)
    for start in (0.0, 1.0):
        first.data.fill_(start)
        second.data.fill_(-start)
        energies = []
        for _ in range(400):
            g = COUPLED @ torch.stack((first.detach().flatten(), second.detach().flatten()))
            first.grad, second.grad = g[0].view(1, 1).clone(), g[1].view(1, 1).clone()
            θ = torch.cat((first.detach().flatten(), second.detach().flatten()))
            opt.step()
            p = opt.state[first]["momentum"].item()
            energies.append(float(θ @ COUPLED @ θ) / 2 + p * p / 2)
        if start == 0:
            assert energies == [0.0] * 400  # G = 0 and p = 0: nothing moves
        else:
            assert energies[-1] < (0.2 if name == "dhsgd_contractive" else 1.0) * energies[0]
