"""Sampling on targets known in closed form, and the diagnostics against arviz-stats on the same draws."""

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from torch import nn
from torch.nn import functional

import tether
from tether import methods
from tether.ensemble.replicas import Replicas


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.randn(2, dtype=torch.float64))


def gaussian(m):
    """Variances 1 and 4."""
    return 0.5 * (m.q[..., 0] ** 2 + m.q[..., 1] ** 2 / 4)


def banana(m):
    """q₁ ~ N(0, 1), q₂ | q₁ ~ N(q₁² − 1, ½²)."""
    x, y = m.q[..., 0], m.q[..., 1]
    return 0.5 * (x**2 + 4 * (y - x**2 + 1) ** 2)


@pytest.mark.parametrize("target", [gaussian, banana])
def test_chains_and_their_diagnostics(target):
    ens = Replicas(Point, n=64)
    opt = methods.langevin(ens, lr=0.2 if target is gaussian else 0.05, friction=1.0, temperature=1.0)
    draws = tether.sample(ens, opt, None, target, draws=200, thin=10 if target is gaussian else 40, burn_in=400)
    q = draws["q"]
    assert q.shape == (64, 200, 2)
    ess = draws.ess()["q"]
    expected = [(0, 1), (0, 4)] if target is gaussian else [(0, 1), (0, 0.25 + 2)]
    for i, (mean, variance) in enumerate(expected):
        assert abs(float(draws.mean("q")[i]) - mean) < 4 * np.sqrt(variance / float(ess[i]))
        assert float(draws.variance("q")[i]) == pytest.approx(variance, rel=0.12)
    numbers = q.numpy()
    for name, methods_ in (("rhat", ("rank", "split")), ("ess", ("bulk", "mean"))):
        for method in methods_:
            reference = getattr(array_stats, name)
            alone = [float(reference(numbers[:, :, i], chain_axis=0, draw_axis=1, method=method)) for i in range(2)]
            assert getattr(draws, name)(method)["q"].tolist() == pytest.approx(alone)
    assert float(draws.rhat()["q"].max()) < 1.05
    assert "64 chains of 200 draws" in str(draws)


def test_chains_that_do_not_mix_are_told():
    ens = Replicas(Point, n=4)
    opt = methods.langevin(ens, lr=0.01, temperature=1.0)
    draws = tether.sample(ens, opt, None, gaussian, draws=50, thin=1)
    assert float(draws.rhat()["q"].max()) > 1.5
    assert float(draws.ess()["q"].min()) < 20


def test_the_posterior_of_a_linear_model():
    # y = wx + noise of variance s², prior N(0, s₀²): w ~ N(v Σxy/s², v) with 1/v = Σx²/s² + 1/s₀² (Example 1.3.1).
    # The mean of squares/(2s²) at τ = 1/N, where weight decay 1/(N s₀²) is the prior.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    y = 1.5 * x + 0.5 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    prior = 0.01
    variance = 1 / (float(x.square().sum()) / 0.25 + 1 / prior)
    mean = variance * float((x * y).sum()) / 0.25

    def loss(out, target):
        return (out - target).square().mean() / (2 * 0.25)

    ens = Replicas(lambda: nn.Linear(1, 1, bias=False, dtype=torch.float64), n=50)
    opt = methods.langevin(ens, lr=0.3, friction=1.0, temperature=1 / 40, weight_decay=1 / (40 * prior))
    at = torch.tensor([[2.0]], dtype=torch.float64)
    draws = tether.sample(ens, opt, (x, y), loss, draws=100, thin=5, burn_in=200, inputs=at)
    error = np.sqrt(variance / float(draws.ess()["weight"]))
    assert abs(float(draws.mean("weight")) - mean) < 4 * error
    assert float(draws.variance("weight")) == pytest.approx(variance, rel=0.15)
    assert float(draws.mean("output")) == pytest.approx(2 * float(draws.mean("weight")))
    assert float(draws.variance("output")) == pytest.approx(4 * float(draws.variance("weight")))


def test_a_single_net_is_one_chain_and_quantities_are_functions():
    net = nn.Linear(2, 1)
    opt = methods.sgld(net, lr=0.1, temperature=1e-3)
    data = (torch.randn(20, 2), torch.randn(20, 1))
    draws = tether.sample(
        net, opt, data, functional.mse_loss, draws=7, thin=3, burn_in=4, quantities={"norm": lambda m: m.weight.norm()}
    )
    assert draws["norm"].shape == (1, 7)
    assert draws.record.steps[-1] == 6 + 21  # the burn-in is a multiple of thin
    with pytest.raises(ValueError, match="compares chains, and there is one"):
        draws.rhat()
    assert "1 chains of 7 draws" in str(draws)
    with pytest.raises(KeyError, match="outputs are kept with"):
        draws["output"]


def test_a_thermostat_that_minibatches_heat_or_that_has_not_warmed_up_is_told():
    # mean squared error at τ = 2s²/N: the posterior of the noise s, whose prior is flat
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(60, 1, generator=generator)
    exact = (0.09 * torch.linalg.inv(x.T @ x)).diagonal().sqrt()
    τ = 2 * 0.09 / 60

    def widths(make, draws, **fields):
        ens = Replicas(lambda: nn.Linear(4, 1, bias=False), n=8)
        opt = make(ens, temperature=τ, **fields)
        found = tether.sample(ens, opt, (x, y), functional.mse_loss, draws=draws, burn_in=500, batch=10)
        return found.variance("weight").sqrt().flatten() / exact

    with pytest.warns(UserWarning, match="too wide: take a smaller lr"):
        widths(methods.langevin, 100, lr=0.3)
    with pytest.warns(UserWarning, match="too narrow: take a longer burn_in, and a larger coupling"):
        widths(methods.adaptive_langevin, 100, lr=0.1)
    advised = {"coupling": 1 / τ, "normalised": True, "noise": (2 * τ) ** 0.5}
    assert (widths(methods.adaptive_langevin, 300, lr=0.1, **advised) - 1).abs().max() < 0.12


@pytest.mark.parametrize("field", ["draws", "thin", "burn_in"])
def test_what_is_refused(field):
    net = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=f"{field}=-1 must be"):
        tether.sample(net, methods.sgld(net), (torch.ones(2, 2), torch.ones(2, 1)), **{field: -1})


def test_an_energy_must_have_a_value_for_each_chain():
    ens = Replicas(Point, n=3)
    with pytest.raises(ValueError, match="the loss has 1 values, not one for each of 3 replicas"):
        tether.sample(ens, methods.langevin(ens, temperature=1.0), None, lambda m: gaussian(m).sum(), draws=2)
