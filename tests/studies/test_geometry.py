"""What the studies of both slides compute, against closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tether.measure import rescale
from tether_studies import find, geometry, local_rates, normalised
from tether_studies.path_adagrad import PathAdaGrad


def problem():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(3, 4, 9))
    return X, geometry.apply(X, np.abs(draw.normal(size=(3, 9))))


def test_the_least_norm_of_a_metric_solves_and_is_orthogonal_to_the_null_space():
    X, y = problem()
    D = np.stack([np.diag(np.linspace(1, 3, 9))] * 3)
    w = geometry.least(X, y, D)
    assert np.allclose(geometry.apply(X, w), y)
    for x, one in zip(X, w, strict=True):
        assert np.allclose(np.linalg.svd(x)[2][4:] @ D[0] @ one, 0)
    assert np.allclose(geometry.least(X, y)[0], np.linalg.pinv(X[0]) @ y[0])


def test_the_least_l1_norm_is_a_vertex_that_no_other_solution_beats():
    X, y = problem()
    w = geometry.least_l1(X, y, 3000)
    assert np.allclose(geometry.apply(X, w), y)
    for x, one in zip(X, w, strict=True):
        support = np.abs(one) > 1e-6
        assert support.sum() <= 4
        ν = np.linalg.lstsq(x[:, support].T, np.sign(one[support]), rcond=None)[0]
        assert np.abs(x.T @ ν).max() < 1 + 1e-6  # a certificate: ‖v‖₁ ≥ νᵀXv = νᵀy = ‖w‖₁ for every solution v


def test_the_least_divergence_has_the_form_of_its_dual():
    X, y = problem()
    w = geometry.least_divergence(X, y, 0.1)
    assert np.allclose(geometry.apply(X, w), y)
    for x, one in zip(X, w, strict=True):
        assert np.allclose(np.linalg.svd(x)[2][4:] @ np.log(one / 0.1), 0, atol=1e-8)  # log w/w₀ lies in the rows of X


def test_the_truncated_loss_has_no_gradient_where_points_are_sure():
    out = torch.tensor([[9.0, 0.0], [0.1, 0.0]], requires_grad=True)
    y = torch.tensor([0, 0])
    loss = geometry.truncated_cross_entropy(out, y, 0.05)
    assert loss.item() == pytest.approx((cross_entropy(out[1:], y[1:]).item() - 0.05) / 2)
    loss.backward()
    assert out.grad[0].tolist() == [0.0, 0.0]
    assert out.grad[1, 0] < 0


def test_path_adagrad_by_hand_and_under_rescaling():
    """One step from S = 0: w moves by h/√γ against the sign of its gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    twin = rescale(net, seed=1, spread=5.0)
    x = torch.randn(20, 2, dtype=torch.float64)
    opts = [PathAdaGrad(one, lr=0.1) for one in (net, twin)]
    scales = opts[0].path.scales(net)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(5):
        for one, opt in zip((net, twin), opts, strict=True):
            opt.zero_grad()
            (one(x) - x.sum(1, keepdim=True)).square().mean().backward()
            opt.step()
        if step == 0:
            for name, p in net.named_parameters():
                expected = torch.where(p.grad == 0, 0.0, -0.1 * p.grad.sign() / scales[name].sqrt())
                assert torch.allclose(p.detach() - before[name], expected, atol=1e-8)
    assert torch.allclose(net(x), twin(x))
    assert opts[0].step(lambda: 3.0) == 3.0


def test_multiplier_and_eigenvalue_on_the_sphere():
    """Two points (1, ±a) with ρ e₁: Σ e^{−w·x}x = 2e^{−ρ} e₁, so μ = 2e^{−ρ}/ρ, and across 2e^{−ρ}a² + μ."""
    a, ρ = 0.5, 2.0
    Z = torch.tensor([[[1.0, a], [1.0, -a]]]).double()
    w = torch.tensor([[[ρ, 0.0]]]).double()
    μ = 2 * math.exp(-ρ) / ρ
    assert normalised.multiplier(Z, w).item() == pytest.approx(μ)
    assert normalised.tangent_eigenvalue(Z, w).item() == pytest.approx(2 * math.exp(-ρ) * a**2 + μ)
    found = normalised.regularised(Z, torch.tensor([[μ]]).double())
    assert torch.allclose(found, w)


def test_the_opposite_pole_stands_still_with_a_negative_multiplier():
    """−ρ e₁ is stationary too, with μ = −2e^{ρ}/ρ < 0; with a² > 1/ρ its Hessian is positive: a local minimum."""
    for a, sign in ((2.0, 1), (0.1, -1)):
        Z = torch.tensor([[[1.0, a], [1.0, -a]]]).double()
        w = torch.tensor([[[-2.0, 0.0]]]).double()
        assert normalised.multiplier(Z, w).item() == pytest.approx(-math.exp(2.0))
        value = normalised.tangent_eigenvalue(Z, w).item()
        assert value == pytest.approx(2 * math.exp(2.0) * a**2 - math.exp(2.0))
        assert math.copysign(1, value) == sign


def test_with_falling_steps_x_is_the_product_of_what_they_leave():
    """The discrete solution is x Π (1 − γ(t))."""
    study = find("local-rates").at("quick")
    for a in (1.0, 2.0):
        found = study.descend(lambda t, a=a: (1.0 + t) ** -a, 0.0)
        expected = math.prod(1 - 0.5 * (1.0 + t) ** -a for t in range(study.long))
        assert found[1].tolist() == pytest.approx([expected] * study.entries)


def test_a_minimum_is_settled_and_returns_at_the_rates_of_a_quadratic():
    A = torch.diag(torch.tensor([1.0, 3.0, 10.0])).double()
    energy = lambda θ: 0.5 * θ @ A @ θ - θ.sum()  # noqa: E731
    θ = local_rates.settle(energy, torch.ones(3).double(), 50)
    assert torch.allclose(θ, 1 / A.diagonal())
    net = local_rates.perceptron(2, nn.Tanh())
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    for name, p in local_rates.unfolded(net, flat).items():
        assert torch.equal(p, net.get_parameter(name))
    z = torch.linspace(-1, 1, 21).double()
    assert (local_rates.Smooth(1e4)(z) - z.relu()).abs().max() < 1e-4


def test_units_that_switch_at_points_are_counted_if_they_have_weights():
    """Inputs x, x − 1 and 0 of three units at 0, 1 and 2: two switches, and a unit without weights."""
    state = {"0.weight": torch.tensor([[1.0], [1.0], [1e-5]]), "0.bias": torch.tensor([0.0, -1.0, 0.0])}
    state["2.weight"] = torch.tensor([[1.0, -0.5, 1e-4]])
    assert local_rates.on_kinks(torch.tensor([[0.0], [1.0], [2.0]]), state, 1e-3) == 2
