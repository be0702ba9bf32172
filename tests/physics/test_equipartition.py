"""Equipartition (3.38): ⟨p_i²⟩ = τ in every part, and what the thermostat does about noisy gradients."""

import math

import numpy as np
import pytest
import torch
from chains import by_hand, chains, coefficients, covariance
from networks import convolutional, perceptron
from scipy.optimize import brentq
from torch import nn
from torch.testing import assert_close

import tether
from fitting import used


def mean_and_error(values, blocks=20):
    """The mean of a time series and its standard error, from the means of blocks."""
    means = np.array(values).reshape(blocks, -1, *np.shape(values[0])).mean(1)
    return means.mean(0), means.std(0, ddof=1) / math.sqrt(blocks)


# Kinetic temperature per part


@pytest.mark.parametrize("word", ["BAOAB", "BAOA"])
def test_unequal_temperatures_are_held_part_by_part(word):
    """Uncoupled harmonic wells, where ⟨p²⟩ after O is τ exactly at any h; 3 standard errors, about 1 % in all."""
    temperatures = {"a": 1.0, "b": 1e-2, "c": 1e-6, "d": 0.0}
    wells = {name: nn.Parameter(torch.zeros(500)) for name in temperatures}
    parts = [
        tether.Part(name, temperature=τ, friction=γ)
        for (name, τ), γ in zip(temperatures.items(), (0.5, 1.0, math.inf, 1.0), strict=True)
    ]
    opt = tether.Optimizer(wells.items(), parts, lr=0.5, word=word, seed=1)
    series = []
    for step in range(2100):
        for q in wells.values():
            q.grad = q.detach().clone()
        opt.step()
        if step >= 100:
            series.append(list(opt.temperature().values()))
    assert list(opt.temperature()) == list(temperatures)
    mean, error = mean_and_error(series)
    for τ, found, standard_error in zip(temperatures.values(), mean, error, strict=True):
        assert standard_error <= 0.004 * τ
        assert abs(found - τ) <= 3 * standard_error


def test_a_network_has_the_same_temperature_in_every_layer_whatever_their_frictions():
    """Full gradients; 3 standard errors."""
    net, τ = perceptron(torch.float32, nn.Tanh, batch=200), 1e-3
    opt = tether.methods.langevin_in_layers(
        net.model, lr=0.1, friction=[0.5, 2.0, 10.0], temperature=τ, weight_decay=0.1, seed=3
    )
    series = []
    for step in range(4400):
        net.step(opt, 0)
        if step >= 400:
            series.append(list(opt.temperature().values()))
    mean, error = mean_and_error(series)
    assert len(mean) == 3
    assert np.all(error < 0.03 * τ)
    assert np.all(np.abs(mean - τ) < 3 * error)


def test_overdamped_parts_have_no_kinetic_temperature():
    net = perceptron()
    opt = tether.Optimizer(net.model, [tether.Part("0.*", word="X"), tether.Part("*", word="L")], lr=0.1)
    net.step(opt, 0)
    assert all(math.isnan(temperature) for temperature in opt.temperature().values())


# A partition with equal settings is no partition


@pytest.mark.parametrize("network", [perceptron, convolutional])
@pytest.mark.parametrize("word", ["X", "L", "OBA", "ABO", "BAOAB", "ABOBA", "OBABO"])
def test_equal_settings_reproduce_the_unpartitioned_run(network, word):
    fields = {"lr": 0.1, "word": word, **used(word, friction=0.5, temperature=1e-2), "weight_decay": 0.01, "seed": 4}
    whole, split, reversed_ = network(), network(), network()
    parts = [tether.Part("*.weight"), tether.Part("0.bias"), tether.Part("*")]
    layers = [tether.Part(f"{name.partition('.')[0]}.*") for name, _ in reversed(whole.named[::2])]
    runs = [
        (whole, tether.Optimizer(whole.model, **fields)),
        (split, tether.Optimizer(split.model, parts, **fields)),
        (reversed_, tether.Optimizer(reversed_.model, layers, **fields)),
    ]
    for n in range(20):
        for net, opt in runs:
            net.step(opt, n)
    for net, opt in runs[1:]:
        assert_close(net.θ(), whole.θ(), rtol=0, atol=1e-13)
        assert_close(net.p(opt), whole.p(runs[0][1]), rtol=0, atol=1e-13)


def test_normalised_coupling_is_the_coupling_over_the_number_of_parameters():
    one, two = perceptron(), perceptron()
    fields = {"lr": 0.1, "word": "BACDEDCAB", "temperature": 1e-2, "noise": 0.1}
    N = len(one.θ())
    opt = tether.Optimizer(one.model, coupling=30.0, normalised=True, **fields)
    same = tether.Optimizer(two.model, coupling=30.0 / N, **fields)
    for n in range(20):
        one.step(opt, n)
        two.step(same, n)
    assert torch.equal(one.θ(), two.θ())
    assert float(opt.param_groups[0]["thermostat"]) != pytest.approx(0.1, abs=1e-3)


# Gradient noise of standard deviation 2 per component on the harmonic well, γ = τ = 1, h = 0.1

H, SIGMA = 0.1, 2.0


def sample(word, count=20_000, steps=6000, **fields):
    """⟨q²⟩ with its standard error, and the thermostat over time."""
    q, opt = chains(word, H, count, temperature=1.0, seed=6, **fields)
    generator = torch.Generator().manual_seed(7)
    total, ξ = torch.zeros(count, dtype=torch.float64), []
    kinetic = []
    for step in range(-400, steps):
        torch.randn(count, generator=generator, out=q.grad)
        q.grad.mul_(SIGMA).add_(q.detach())
        opt.step()
        if step >= 0 and step % 5 == 0:
            total += q.detach() ** 2
            ξ.append(float(opt.param_groups[0]["thermostat"]))
            kinetic.append(opt.temperature()["*"])
    means = total / len(ξ)
    return float(means.mean()), float(means.std()) / math.sqrt(count), ξ, kinetic


def test_langevin_overheats_by_what_the_covariance_says():
    """⟨q²⟩ = 1.2007, that is 1 + hσ²/(2γτ) to first order in h."""
    program = [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)]
    expected = by_hand(program, H, gradient_noise=SIGMA)
    found = covariance(coefficients("BAOAB", H), gradient_noise=SIGMA)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert expected[0, 0] == pytest.approx(1.2007, abs=5e-5)

    mean, standard_error, _, kinetic = sample("BAOAB")
    assert standard_error < 1e-3
    assert abs(mean - expected[0, 0]) < 3 * standard_error
    kinetic_mean, kinetic_error = mean_and_error(kinetic)
    assert abs(kinetic_mean - expected[1, 1]) < 3 * kinetic_error


def test_adaptive_langevin_holds_its_temperature():
    """With many coordinates ξ settles where ⟨p²⟩ = τ at the letter E; all else follows from the matrices."""
    program = [(letter, 1.0 if letter == "B" else 0.5) for letter in "BACDDCA"]
    at_E = [*program[4:], *program[:4]]
    fields = {"noise": math.sqrt(2.0), "gradient_noise": SIGMA}
    settled = brentq(lambda ξ: by_hand(at_E, H, ξ=ξ, **fields)[1, 1] - 1, 0.5, 2.0)
    expected = by_hand(program, H, ξ=settled, **fields)
    assert settled == pytest.approx(1 + H * SIGMA**2 / 2, abs=0.005)
    assert expected[0, 0] == pytest.approx(0.995, abs=5e-4)

    mean, standard_error, ξ, kinetic = sample("BACDEDCAB", noise=math.sqrt(2.0), coupling=1.0, normalised=True)
    assert standard_error < 1e-3
    assert abs(mean - expected[0, 0]) < 3 * standard_error
    for series, value in ((ξ, settled), (kinetic, expected[1, 1])):
        series_mean, series_error = mean_and_error(series)
        assert series_error < 1e-3
        assert abs(series_mean - value) < 3 * series_error
