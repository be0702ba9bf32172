"""Words at their limits are known methods, and published methods are their printed equations.

The equations are evaluated as printed (thesis, numbers in brackets) on a real network with minibatches. A word
is rotated to start at its kick, so p is compared at the place where the optimizer leaves it.
"""

import math
from copy import deepcopy

import pytest
import torch
from networks import convolutional, perceptron
from torch import nn
from torch.testing import assert_close

import tether
from fitting import used

h = 0.1
STEPS = 20
networks = pytest.mark.parametrize("network", [perceptron, convolutional])


def same(found, expected):
    assert_close(found, expected, rtol=0, atol=1e-12)


# Limits


@networks
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_oba_at_zero_temperature_is_sgd_with_momentum(network, weight_decay, dtype):
    h, γ = 0.3, 0.5
    ours, theirs = network(dtype), network(dtype)
    opt = tether.Optimizer(ours.model, lr=h, word="OBA", friction=γ, weight_decay=weight_decay)
    sgd = torch.optim.SGD(theirs.model.parameters(), lr=h**2, momentum=math.exp(-γ * h), weight_decay=weight_decay)
    start, single = ours.θ(), dtype is torch.float32
    # In float32 a rounding error soon decides on which side of a kink a unit lies, and either run may be the one off.
    for n in range(20 if single else 100):
        ours.step(opt, n)
        theirs.step(sgd, n)
    assert (ours.θ() - start).norm() > (0.1 if single else 1)  # it went somewhere
    assert_close(ours.θ(), theirs.θ(), rtol=0, atol=1e-6 if single else 1e-12)


@networks
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("build", [tether.methods.sgd, tether.Optimizer])
def test_x_at_zero_temperature_is_sgd_bit_for_bit(network, weight_decay, build):
    ours, theirs = network(torch.float32), network(torch.float32)
    opt = build(ours.model, lr=0.1, weight_decay=weight_decay)
    sgd = torch.optim.SGD(theirs.model.parameters(), lr=0.1, weight_decay=weight_decay)
    for n in range(100):
        ours.step(opt, n)
        theirs.step(sgd, n)
        assert torch.equal(ours.θ(), theirs.θ())


@networks
@pytest.mark.parametrize("word", ["BAOAB", "BAB"])
def test_zero_friction_is_velocity_verlet_and_p_lacks_its_last_half_kick(network, word):
    net = network()
    opt = tether.Optimizer(net.model, lr=h, word=word, **used(word, friction=0.0, temperature=1.0))
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        # The last half kick of one step and the first of the next share a gradient, on the same minibatch.
        p = p + h / 2 * net.G(θ, n)
        θ = θ + h * p
        net.step(opt, n)
        same(net.θ(), θ)
        same(net.p(opt), p)
        p = p + h / 2 * net.G(θ, n + 1)


@pytest.mark.parametrize("τ", [0.0, 0.01])
def test_baoab_at_infinite_friction_is_the_baoab_limit(τ):
    """(2.56), first form; the first step starts at p = 0 and so is a half kick without a normal before it."""
    net = perceptron()
    opt = tether.Optimizer(net.model, lr=h, word="BAOAB", friction=math.inf, temperature=τ)
    q = net.θ()
    for n in range(STEPS):
        net.step(opt, n)
        if n == 0:
            q = q + h**2 / 4 * net.G(q, 0) + h / 2 * math.sqrt(τ) * net.R(0)
        else:
            q = q + h**2 / 2 * net.G(q, n) + h / 2 * math.sqrt(τ) * (net.R(n) + net.R(n - 1))
        same(net.θ(), q)
        same(net.p(opt), math.sqrt(τ) * net.R(n))


def test_l_is_the_baoab_limit_in_the_time_of_overdamped_dynamics():
    """(2.56), second form, with h²/2 as its step size and without a normal before the first step."""
    net, τ, lr = perceptron(), 0.01, h**2 / 2
    opt = tether.Optimizer(net.model, lr=lr, word="L", temperature=τ)
    q, before = net.θ(), 0.0
    for n in range(STEPS):
        net.step(opt, n)
        q = q + lr * net.G(q, n) + math.sqrt(2 * τ * lr) * (net.R(n) + before) / 2
        before = net.R(n)
        same(net.θ(), q)


# Printed equations of the dynamics


@networks
def test_sgld(network):
    """(2.66)."""
    net, σ = network(), 0.05
    opt = tether.methods.sgld(net.model, lr=h, noise=σ)
    θ = net.θ()
    for n in range(STEPS):
        net.step(opt, n)
        θ = θ + h * net.G(θ, n) + σ * math.sqrt(h) * net.R(n)
        same(net.θ(), θ)


@networks
def test_oba(network):
    """Algorithm 2.1, from after its first O, which rotation leaves out: the O that ends a step is the next step's."""
    net, γ, τ = network(), 0.5, 0.01
    opt = tether.methods.langevin(net.model, lr=h, word="OBA", friction=γ, temperature=τ, weight_decay=0.1)
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        if n > 0:
            p = math.exp(-γ * h) * p + math.sqrt(τ * (1 - math.exp(-2 * γ * h))) * net.R(n - 1)
            same(net.p(opt), p)
        p = p + h * (net.G(θ, n) - 0.1 * θ)
        θ = θ + h * p
        net.step(opt, n)
        same(net.θ(), θ)


def test_oba_at_infinite_friction_is_sgld_at_half_the_temperature():
    """Algorithm 2.3: with δt = h² it is SGLD with σ² = τ, and SGLD samples at the temperature σ²/2."""
    net, τ, lr = perceptron(), 0.01, h**2
    opt = tether.Optimizer(net.model, lr=h, word="OBA", friction=math.inf, temperature=τ)
    θ, before = net.θ(), 0.0  # the O that ends a step is the next step's
    for n in range(STEPS):
        net.step(opt, n)
        θ = θ + lr * net.G(θ, n) + math.sqrt(τ * lr) * before
        before = net.R(n)
        same(net.θ(), θ)
    sgld = tether.methods.sgld(net.model, lr=lr, noise=math.sqrt(τ))
    assert sgld.param_groups[0]["temperature"] == pytest.approx(τ / 2)


def test_baoab():
    """(2.55)."""
    net, γ, τ = perceptron(), 0.5, 0.01
    opt = tether.methods.langevin(net.model, lr=h, friction=γ, temperature=τ, seed=7)
    α = math.exp(-γ * h)
    q = net.θ()
    p = torch.zeros_like(q)
    for n in range(STEPS):
        p = p + h / 2 * net.G(q, n)
        q = q + h / 2 * p
        p = α * p + math.sqrt(τ * (1 - α**2)) * net.R(n, seed=7)
        q = q + h / 2 * p
        net.step(opt, n)
        same(net.θ(), q)
        same(net.p(opt), p)
        p = p + h / 2 * net.G(q, n + 1)


def adaptive_langevin(net, word, where, ξ, θ, p, n, τ, ε, σ):
    """(2.59)–(2.61) for the elements `where`, from the first A to the last: returns θ, p, ξ."""
    θ, p, N = θ[where], p[where], int(where.sum())
    R = [net.R(n, draw)[where] for draw in range(2)]
    θ = θ + h / 2 * p
    if word == "BACDEDCAB":
        p = math.exp(-h / 2 * ξ) * p
        p = p + σ * math.sqrt(h / 2) * R[0]
        ξ = ξ + h * ε * (float(p @ p) - N * τ)
        p = p + σ * math.sqrt(h / 2) * R[1]
        p = math.exp(-h / 2 * ξ) * p
    else:  # F over h/2: mean e^{−ξh/2} p, variance σ² ∫ e^{−2ξs} ds over the same time
        p = math.exp(-h / 2 * ξ) * p + σ * math.sqrt((1 - math.exp(-h * ξ)) / (2 * ξ)) * R[0]
        ξ = ξ + h * ε * (float(p @ p) - N * τ)
        p = math.exp(-h / 2 * ξ) * p + σ * math.sqrt((1 - math.exp(-h * ξ)) / (2 * ξ)) * R[1]
    return θ + h / 2 * p, p, ξ


@networks
@pytest.mark.parametrize("word", ["BACDEDCAB", "BAFEFAB"])
def test_adaptive_langevin_with_a_thermostat_per_layer_that_starts_at_one_tenth(network, word):
    net, τ, ε, σ = network(), 1e-3, 0.1, 0.05
    opt = tether.methods.adaptive_langevin(net.model, lr=h, temperature=τ, coupling=ε, noise=σ, word=word)
    layers = list(dict.fromkeys(name.rpartition(".")[0] + ".*" for name, _ in net.named))
    masks = [net.where(layer) for layer in layers]
    ξ = [0.1] * len(layers)
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        p = p + (h / 2 if n == 0 else h) * net.G(θ, n)
        moved = [adaptive_langevin(net, word, mask, x, θ, p, n, τ, ε, σ) for mask, x in zip(masks, ξ, strict=True)]
        for mask, (θ_i, p_i, _) in zip(masks, moved, strict=True):
            θ[mask], p[mask] = θ_i, p_i
        ξ = [x for _, _, x in moved]
        net.step(opt, n)
        same(net.θ(), θ)
        same(net.p(opt), p)
        assert [float(group["thermostat"]) for group in opt.param_groups] == pytest.approx(ξ, abs=1e-12)
    assert max(ξ) != pytest.approx(0.1, abs=1e-3)  # it adapted


# Printed equations of the partitioned methods; part (2) is the output layer


@networks
def test_langevin_in_layers(network):
    """(3.25) by BAOAB (2.55), with a friction and a temperature of each element's own layer."""
    net = network()
    frictions, temperatures = [0.1, 1.0, 10.0], [1e-2, 0.0, 1e-4]
    opt = tether.methods.langevin_in_layers(net.model, lr=h, friction=frictions, temperature=temperatures)
    layers = list(dict.fromkeys(name.rpartition(".")[0] + ".*" for name, _ in net.named))
    γ, τ = torch.zeros_like(net.θ()), torch.zeros_like(net.θ())
    for layer, friction, temperature in zip(layers, frictions, temperatures, strict=True):
        γ[net.where(layer)], τ[net.where(layer)] = friction, temperature
    α = torch.exp(-γ * h)
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        p = p + h / 2 * net.G(θ, n)
        θ = θ + h / 2 * p
        p = α * p + (τ * (1 - α**2)).sqrt() * net.R(n)
        θ = θ + h / 2 * p
        net.step(opt, n)
        same(net.θ(), θ)
        p = p + h / 2 * net.G(θ, n + 1)


@networks
def test_lol(network):
    """(3.26)."""
    net, γ1, τ1, τ2 = network(), 0.5, 1e-2, 1e-3
    opt = tether.methods.lol(net.model, lr=h, friction=γ1, temperature=τ1, output_temperature=τ2)
    α = math.exp(-γ1 * h)
    two = net.where(net.named[-1][0].rpartition(".")[0] + ".*")
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        p = p + h / 2 * net.G(θ, n)
        θ = θ + h / 2 * p
        p = torch.where(two, math.sqrt(τ2) * net.R(n), α * p + math.sqrt(τ1 * (1 - α**2)) * net.R(n))
        θ = θ + h / 2 * p
        net.step(opt, n)
        same(net.θ(), θ)
        same(net.p(opt), p)
        p = p + h / 2 * net.G(θ, n + 1)


@networks
@pytest.mark.parametrize(("method", "factor"), [("dhsgd", h**2 / 2), ("dhsgd_contractive", h)])
def test_dhsgd(network, method, factor):
    """(3.27)–(3.30); the contractive variant has h in place of h²/2."""
    net = network()
    opt = getattr(tether.methods, method)(net.model, lr=h)
    two = net.where(net.named[-1][0].rpartition(".")[0] + ".*")
    one = ~two
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        G = net.G(θ, n)
        p = p + h / 2 * G * one  # (3.27)
        θ = θ + h * p * one + factor * G * two  # (3.28), (3.29)
        net.step(opt, n)
        same(net.θ(), θ)
        same(net.p(opt) * one, p)
        p = p + h / 2 * net.G(θ, n + 1) * one  # (3.30)


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("heun", 2)])
def test_order_of_contractive_dhsgd(scheme, order):
    """Halving h divides the error at time 1 by 2^order: θ̇₁ = p, ṗ = G₁, θ̇₂ = G₂, solved by Runge–Kutta."""
    start = perceptron(activation=nn.Tanh, batch=200)
    two = start.where("4.*")

    def flow(z):
        θ, p = z
        G = start.G(θ, 0)
        return torch.stack((torch.where(two, G, p), torch.where(two, 0.0, G)))

    z, dt = torch.stack((start.θ(), torch.zeros_like(start.θ()))), 1 / 50
    for _ in range(50):
        k1 = flow(z)
        k2 = flow(z + dt / 2 * k1)
        k3 = flow(z + dt / 2 * k2)
        z = z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + flow(z + dt * k3))

    errors = []
    for steps in (20, 40):
        net = deepcopy(start)
        opt = tether.methods.dhsgd_contractive(net.model, lr=1 / steps, scheme=scheme)

        def closure(net=net, opt=opt):
            opt.zero_grad()
            loss = net.loss(0)
            loss.backward()
            return loss

        for _ in range(steps):
            opt.step(closure)
        errors.append(float((net.θ() - z[0]).norm()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


@networks
def test_adlala(network):
    """(3.31) with the friction of (3.21): adaptive Langevin per tensor inside, Langevin on the output layer."""
    net, τ, γ, σ, ε = network(), 1e-3, 0.5, 0.05, 0.1
    opt = tether.methods.adlala(net.model, lr=h, temperature=τ, friction=γ, noise=σ, coupling=ε)
    output = net.named[-1][0].rpartition(".")[0] + ".*"
    two, α = net.where(output), math.exp(-γ * h)
    inner = [name for name, _ in net.named if not net.where(name)[two].any()]
    ξ = dict.fromkeys(inner, 0.1)
    θ = net.θ()
    p = torch.zeros_like(θ)
    for n in range(STEPS):
        p = p + (h / 2 if n == 0 else h) * net.G(θ, n)
        for name in inner:
            mask = net.where(name)
            θ[mask], p[mask], ξ[name] = adaptive_langevin(net, "BACDEDCAB", mask, ξ[name], θ, p, n, τ, ε, σ)
        θ[two] = θ[two] + h / 2 * p[two]
        p[two] = α * p[two] + math.sqrt(τ * (1 - α**2)) * net.R(n)[two]
        θ[two] = θ[two] + h / 2 * p[two]
        net.step(opt, n)
        same(net.θ(), θ)
        same(net.p(opt), p)
