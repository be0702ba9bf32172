"""Densities and traces from random probes, against all eigenvalues."""

import math

import pytest
import torch
from landscapes import NOTHING, Quadratic, rotated, small, value

import tether
from tether.measure import hessian_spectrum, hessian_trace, spectral_density
from tether.measure.lanczos import quadrature


def test_quadrature_is_exact_for_polynomials():
    """m nodes integrate degree 2m − 1: vᵀHᵏv/|v|² for k < 2m."""
    A = rotated(torch.linspace(-1, 2, 30))
    v = torch.arange(30.0, dtype=torch.float64) - 11
    θ, τ = quadrature(lambda x, out: torch.mv(A, x, out=out), v, steps=4)
    assert τ.sum().item() == pytest.approx(1)
    for k in range(8):
        assert (τ @ θ**k).item() == pytest.approx((v @ torch.linalg.matrix_power(A, k) @ v / (v @ v)).item(), rel=1e-10)
    with pytest.raises(AssertionError):
        assert (τ @ θ**8).item() == pytest.approx((v @ torch.linalg.matrix_power(A, 8) @ v / (v @ v)).item(), rel=1e-10)


def test_the_exact_density_is_a_sum_of_bells():
    values = [-1.0, 0.0, 0.0, 2.0]
    net = Quadratic(rotated(values))
    result = spectral_density(net, NOTHING, value, width=0.1)
    assert (result.negative, result.zero, result.positive) == (0.25, 0.5, 0.25)
    bells = [torch.exp(-((result.grid - x) ** 2) / 0.02) / (0.1 * math.sqrt(2 * math.pi)) for x in values]
    torch.testing.assert_close(result.density, sum(bells) / 4, atol=1e-9, rtol=1e-9)
    assert torch.trapezoid(result.density, result.grid).item() == pytest.approx(1, abs=1e-4)
    assert str(result) == "Hessian of 4 parameters: 25 % negative, 50 % zero, 25 % positive (exact; zero is ±2e-08)"


def test_the_estimated_density_agrees_within_its_errors():
    """Fractions of a known spectrum of 300: 20 % negative, 50 % zero, 30 % positive."""
    torch.manual_seed(0)
    values = torch.cat([-1 - torch.rand(60), torch.zeros(150), 1 + torch.rand(90)])
    net = Quadratic(rotated(values))
    result = spectral_density(net, NOTHING, value, dense=0, probes=20, steps=60)
    assert not result.exact
    fractions = result.negative, result.zero, result.positive
    for found, want, error in zip(fractions, (0.2, 0.5, 0.3), result.errors, strict=True):
        # a fraction p is a mean of 300 squares with variance about 2p(1 − p)/300, over 20 probes
        assert error == pytest.approx(math.sqrt(2 * want * (1 - want) / 300 / 20), rel=0.5)
        assert abs(found - want) < 4 * error
    exact = spectral_density(net, NOTHING, value, width=result.width)
    same = torch.nn.functional.interpolate(exact.density[None, None], 400, mode="linear", align_corners=True)[0, 0]
    assert (result.density - same).abs().max() < 5 * result.standard_error.max()
    assert "± " in str(result)
    assert torch.trapezoid(result.density, result.grid).item() == pytest.approx(1, abs=1e-3)


def test_the_trace_of_a_diagonal_needs_one_probe():
    diagonal = torch.diag(torch.arange(1.0, 8.0, dtype=torch.float64))
    result = hessian_trace(Quadratic(diagonal), NOTHING, value, dense=0, probes=2)
    assert (result.value, result.standard_error) == (28, 0)  # signs square to 1


def test_the_trace_of_others_comes_with_its_standard_error():
    torch.manual_seed(0)
    A = rotated(torch.rand(50) * 3 - 1)
    spread = math.sqrt(2 * (A.square().sum() - A.diagonal().square().sum()).item())
    result = hessian_trace(Quadratic(A), NOTHING, value, dense=0, probes=400)
    assert result.standard_error == pytest.approx(spread / 20, rel=0.1)
    assert abs(result.value - A.trace().item()) < 3 * result.standard_error
    exact = hessian_trace(Quadratic(A), NOTHING, value)
    assert exact.value == pytest.approx(A.trace().item())
    assert exact.exact
    assert exact.standard_error == 0


def test_networks_replicas_and_seeds():
    net, data = small()
    all_of_them = hessian_spectrum(net, data)
    assert hessian_trace(net, data).value == pytest.approx(all_of_them.trace)
    density = spectral_density(net, data)
    assert density.zero * all_of_them.parameters == pytest.approx(all_of_them.zero)
    torch.manual_seed(5)
    first = hessian_trace(net, data, dense=0, seed=2)
    torch.manual_seed(6)
    assert hessian_trace(net, data, dense=0, seed=2).value == first.value != hessian_trace(net, data, dense=0).value
    ens = tether.Replicas(lambda: small(seed=torch.initial_seed() % 1000)[0], n=2)
    found = hessian_trace(ens, data)
    assert [x.value for x in found] == [hessian_trace(ens[i], data).value for i in range(2)]
    assert len({round(x.value, 6) for x in found}) == 2


def test_bad_settings_and_plots():
    net, data = small()
    with pytest.raises(ValueError, match="probes=1"):
        hessian_trace(net, data, dense=0, probes=1)
    with pytest.raises(ValueError, match="probes=1"):
        spectral_density(net, data, dense=0, probes=1)
    with pytest.raises(ValueError, match="width=0"):
        spectral_density(net, data, width=0)
    pytest.importorskip("matplotlib").use("Agg")
    estimate = spectral_density(net, data, dense=0, steps=20)
    ax = estimate.plot()
    assert "8 probes" in ax.get_ylabel()
    peak = ax.lines[0].get_xydata()[ax.lines[0].get_ydata().argmax()]
    assert peak[1] == pytest.approx(estimate.density.max().item())
    ax = hessian_trace(net, data, dense=0).plot()
    assert ax.lines[0].get_ydata()[0] == pytest.approx(hessian_trace(net, data, dense=0).value)
