"""Thermostats that the step cannot follow are refused before anything has moved."""

import copy
import math
import re
import warnings

import pytest
import torch
from torch import nn

import tether
from tether.engine.thermostat import ThermostatError


def wide(features=784, width=1000):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 10))


def backward(model, features=784):
    loss = model(torch.randn(32, features, generator=torch.Generator().manual_seed(1))).square().mean()
    loss.backward()


METHODS = {
    "adlala": (tether.methods.adlala, {"temperature": 1e-2}, "2h²εNτ = 35.3"),  # 2 · 0.15² · 0.1 · 784,000 · 0.01
    "adaptive": (tether.methods.adaptive_langevin, {"temperature": 0.1}, "2h²εNτ = 157"),  # 2 · 0.1³ · 785,000 · 0.1
}


@pytest.mark.parametrize("name", METHODS)
def test_a_wide_layer_is_refused_before_anything_moves(name):
    method, fields, value = METHODS[name]
    model = wide()
    opt = method(model, **fields)
    before = copy.deepcopy(model.state_dict())
    backward(model)
    with pytest.raises(ThermostatError, match=value) as caught:
        opt.step()
    for said in ("ε = coupling = 0.1", "N = 78", "h = lr = ", "normalised=True"):
        assert said in str(caught.value)
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())
    assert all(not state["momentum"].any() for state in opt.state.values())
    assert all(group["step"] == 0 for group in opt.param_groups)


@pytest.mark.parametrize("name", METHODS)
def test_the_cure_that_the_message_names_works(name):
    method, fields, _ = METHODS[name]
    for normalised in (False, True):
        model = wide(40, 1000)
        opt = method(model, coupling=50.0, **fields)
        backward(model, 40)
        with pytest.raises(ThermostatError) as caught:
            opt.step()
        unnormalised, scaled = map(float, re.findall(r"coupling=([\d.e+-]+\d)", str(caught.value)))
        coupling = scaled if normalised else unnormalised
        opt = method(model, coupling=coupling, normalised=normalised, **fields)
        for _ in range(20):
            opt.zero_grad()
            backward(model, 40)
            opt.step()
        assert max(abs(float(g["thermostat"])) * g["lr"] for g in opt.param_groups if "E" in g["word"]) < 2


def test_the_default_settings_run_on_a_wide_layer():
    model = wide()
    opt = tether.methods.adlala(model)
    for _ in range(3):
        opt.zero_grad()
        backward(model)
        opt.step()
    assert all(abs(float(group["thermostat"])) < 100 for group in opt.param_groups)


def thermostat_alone(coupling, steps, momenta):
    """ξ of 10,000 weights without a force or noise, τ = 1, h = 0.1: 2h²εNτ = 200 ε."""
    w = nn.Parameter(torch.zeros(10_000, dtype=torch.float64))
    fields = {"word": "BACDEDCAB", "temperature": 1.0, "noise": 1e-3, "thermostat": 0.0}
    opt = tether.Optimizer([("w", w)], lr=0.1, coupling=coupling, **fields)
    w.grad = torch.zeros_like(w)
    opt.step()
    generator = torch.Generator().manual_seed(0)
    opt.state[w]["momentum"].copy_(momenta * torch.randn(10_000, dtype=torch.float64, generator=generator))
    opt.param_groups[0]["thermostat"].fill_(0.0)
    seen = []
    for _ in range(steps):
        opt.step()
        seen.append(0.1 * abs(float(opt.param_groups[0]["thermostat"])))
    return max(seen)


def test_from_rest_a_thermostat_holds_within_the_bound_and_runs_away_beyond(monkeypatch):
    """With noise σ²h/τ = 1e-7."""
    assert thermostat_alone(0.9 / 200, 500, momenta=1e-3) < 88
    with pytest.raises(ThermostatError, match=r"2h²εNτ = 1\.1 must be at most 1"):
        thermostat_alone(1.1 / 200, 1, momenta=1e-3)
    monkeypatch.setattr("tether.engine.thermostat.FASTEST", math.inf)
    with pytest.warns(UserWarning, match="has run away upwards: hξ is more than 88"):
        assert thermostat_alone(2.0 / 200, 500, momenta=1e-3) > 88


def test_near_equilibrium_the_limit_is_that_of_leapfrog(monkeypatch):
    """(hω)² = 2h²εNτ < 4: just below, a small deviation stays small; just above, it grows."""
    monkeypatch.setattr("tether.engine.thermostat.FASTEST", math.inf)
    assert thermostat_alone(3.8 / 200, 300, momenta=1.0) < 0.5
    with pytest.warns(UserWarning, match="has run away upwards"):
        assert thermostat_alone(4.2 / 200, 3000, momenta=1.0) > 88


def with_thermostat(ξ):
    w = nn.Parameter(torch.ones(5))
    opt = tether.Optimizer([("w", w)], lr=0.1, word="BACDEDCAB", temperature=1e-3)
    w.grad = torch.ones(5)
    opt.param_groups[0]["thermostat"] = torch.tensor(ξ)
    return w, opt


@pytest.mark.parametrize("bad", [-1e3, -1e5, math.inf, -math.inf, math.nan])
def test_a_thermostat_that_would_blow_up_momenta_is_refused(bad):
    w, opt = with_thermostat(bad)
    with pytest.raises(ThermostatError, match="has run away"):
        opt.step()
    assert torch.equal(w, torch.ones(5))


def test_a_thermostat_that_ends_all_momenta_warns_once_and_goes_on():
    w, opt = with_thermostat(3.5e14)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            opt.step()
    assert ["has run away upwards" in str(each.message) for each in caught] == [True]
    assert w.isfinite().all()


@pytest.mark.parametrize("replicas", [0, 3])
def test_a_thermostat_of_weights_at_rest_may_fall_until_something_moves(replicas):
    """Without a force or noise ξ falls by hεNτ a step, for ever, which the study `applied_noise` does at σ = 0."""
    torch.manual_seed(0)
    model = tether.Replicas(lambda: nn.Linear(5, 1, bias=False), replicas) if replicas else nn.Linear(5, 1, bias=False)
    opt = tether.Optimizer(model, lr=0.1, word="BACDEDCAB", temperature=1e-3, noise=0.0, thermostat=-1000.0)
    w = next(model.parameters())
    start = w.detach().clone()
    w.grad = torch.zeros_like(w)
    opt.step()
    assert torch.equal(w, start)
    assert float(torch.as_tensor(opt.param_groups[0]["thermostat"]).max()) == pytest.approx(-1000 - 0.1 * 0.1 * 5e-3)
    w.grad[-1] = 1e-6  # would be multiplied by e^{100}
    with pytest.raises(ThermostatError, match="has run away: hξ = -100" if not replicas else "replica 2: .* run away"):
        opt.step()
    assert torch.equal(w, start)
    w.grad.zero_()
    opt.step()  # the refused step has left nothing behind
    assert torch.equal(w, start)


def test_a_stopped_replica_does_not_hold_up_the_others():
    ens = tether.Replicas(lambda: nn.Linear(3, 2), 3)
    τ = torch.tensor([1e-3, 1e-3, 1e9])
    opt = tether.Optimizer(ens, lr=0.1, word="BAFEFAB", temperature=τ)
    for param in ens.parameters():
        param.grad = torch.ones_like(param)
    with pytest.raises(ThermostatError, match="replica 2: the thermostat is too fast"):
        opt.step()
    opt.stop([2])
    opt.step()
    assert opt.param_groups[0]["thermostat"].isfinite().all()


def test_a_word_in_stages_divides_its_coupling_once():
    """ε/N at every stage, not ε/N² at the second."""
    runs = []
    for fields in ({"coupling": 3.0, "normalised": True}, {"coupling": 3.0 / 8}):
        w = nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64))
        opt = tether.Optimizer([w], lr=0.1, word="BACEBACEB", temperature=1e-2, noise=0.0, **fields)

        def closure(w=w, opt=opt):
            opt.zero_grad()
            loss = w.square().sum()
            loss.backward()
            return loss

        for _ in range(5):
            opt.step(closure)
        runs.append((w.detach().clone(), opt.param_groups[0]["thermostat"].clone()))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-12, atol=0)
