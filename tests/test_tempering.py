"""Replica exchange and simulated tempering on the uneven double well of Figure 1.16."""

import copy
import math

import pytest
import torch
from scipy.integrate import quad
from torch import nn

import tether
from tether import methods

TARGET = 0.15  # the barrier of 3.5 is 23 τ high
LADDER = [0.15, 0.3, 0.6, 1.2]


def well(x):
    """U = 3.5(x² − 1)² + 0.5(x + 1): its minima are near −1, with U = 0, and near 1, with U = 1."""
    return 3.5 * (x * x - 1) ** 2 + 0.5 * (x + 1)


def share(τ):
    """The probability of x < 0."""
    left, right = (quad(lambda x: math.exp(-well(x) / τ), *ends)[0] for ends in ((-3, 0), (0, 3)))
    return left / (left + right)


def chains(n, τ, **fields):
    """n chains, all in the upper well, that take HMC steps."""
    x = nn.Parameter(torch.ones(n, 1, dtype=torch.float64))
    opt = methods.hmc([("x", x)], lr=0.15, steps=6, temperature=τ, batch_dims=1, **fields)

    def closure():
        opt.zero_grad()
        found = well(x).sum(1)
        found.sum().backward()
        return found.detach()

    return x, opt, closure


def test_hmc_alone_does_not_cross_the_barrier():
    x, opt, closure = chains(200, TARGET)
    for _ in range(100):
        opt.step(closure)
    assert share(TARGET) > 0.99
    assert (x > 0).all()


def test_exchange_crosses_and_every_temperature_has_its_density():
    ladders = 40
    τ = torch.tensor((LADDER + LADDER[::-1]) * (ladders // 2), dtype=torch.float64)
    x, opt, closure = chains(len(τ), τ)
    found = []
    for step in range(240):
        opt.step(closure)
        source = tether.exchange(opt, well(x.detach()).sum(1))
        assert sorted(source.tolist()) == list(range(len(τ)))
        if step >= 120:
            found.append((x.detach().flatten() < 0).double())
    each = torch.stack(found).mean(0)
    for temperature in LADDER:
        mine = each[(τ - temperature).abs() < 1e-9]
        error = max(mine.std().item() / math.sqrt(len(mine)), 0.005)
        assert abs(mine.mean().item() - share(temperature)) < 4 * error


def moment(τ, k):
    """∫ U^k e^{−U/τ}."""
    return quad(lambda x: well(x) ** k * math.exp(-well(x) / τ), -3, 3)[0]


def test_the_weights_are_those_of_the_partition_functions():
    fine = [0.15 * 8 ** (i / 40) for i in range(41)]
    weights = tether.tempering_weights(fine, [moment(τ, 1) / moment(τ, 0) for τ in fine])
    exact = [math.log(moment(fine[0], 0) / moment(τ, 0)) for τ in fine]
    assert weights.tolist() == pytest.approx(exact, abs=2e-3)


def test_tempering_crosses_and_visits_every_temperature():
    weights = [-math.log(moment(τ, 0)) for τ in LADDER]
    n = 300
    x, opt, closure = chains(n, torch.full((n,), TARGET, dtype=torch.float64))
    found, places = [], []
    for step in range(300):
        opt.step(closure)
        place = tether.temper(opt, well(x.detach()).sum(1), LADDER, weights)
        if step >= 180:
            places.append(place)
            found.append((x.detach().flatten() < 0).double())
    at, left = torch.stack(places), torch.stack(found)
    for k, τ in enumerate(LADDER):
        assert 0.5 < (at == k).double().mean().item() * len(LADDER) < 2
        assert abs(left[at == k].mean().item() - share(τ)) < 0.05
    assert torch.equal(opt.param_groups[0]["temperature"], torch.tensor(LADDER, dtype=torch.float64)[place])


def test_exact_resume():
    τ = torch.tensor(LADDER, dtype=torch.float64)

    def go(x, opt, closure, steps):
        for _ in range(steps):
            opt.step(closure)
            tether.exchange(opt, well(x.detach()).sum(1))

    first, second = chains(4, τ), chains(4, τ)
    go(*first, 20)
    second[0].data.copy_(first[0].data)
    second[1].load_state_dict(copy.deepcopy(first[1].state_dict()))
    go(*first, 20)
    go(*second, 20)
    assert torch.equal(first[0], second[0])


def test_an_exchange_moves_the_whole_state_and_scales_momenta():
    ens = tether.Replicas(lambda: nn.Linear(3, 2), 2)
    parts = [tether.Part("weight", on=tether.Sphere(2.0)), tether.Part("*")]
    opt = tether.Optimizer(ens, parts, lr=0.1, word="BAOAB", temperature=torch.tensor([1.0, 4.0]))
    for _ in range(20):
        opt.zero_grad()
        ens(torch.ones(4, 3)).square().sum().backward()
        opt.step()
        before = [(x.detach().clone(), {k: v.clone() for k, v in opt.state[x].items()}) for x in ens.parameters()]
        source = tether.exchange(opt, torch.tensor([1.0, 0.0]))  # always worth it: the hot one has the lower energy
        if source.tolist() == [1, 0]:
            break
    assert source.tolist() == [1, 0]
    for x, (old, state) in zip(ens.parameters(), before, strict=True):
        assert torch.equal(x, old.flip(0))
        size = torch.tensor([0.5, 2.0]).view(2, *[1] * (state["momentum"].dim() - 1))
        torch.testing.assert_close(opt.state[x]["momentum"], state["momentum"].flip(0) * size)
        if "point" in state:
            assert torch.equal(opt.state[x]["point"], state["point"].flip(0))


def test_what_is_refused():
    x, opt, _ = chains(2, 1.0)
    with pytest.raises(ValueError, match=r"must be 2 finite number"):
        tether.exchange(opt, torch.zeros(3))
    with pytest.raises(ValueError, match="exchange is for replicas"):
        tether.exchange(methods.hmc(nn.Linear(2, 2), lr=0.1), 0.0)
    for energies in (None, "two", [1.0, float("inf")], torch.zeros(2) + 1j):
        with pytest.raises(ValueError, match=r"must be 2 finite number"):
            tether.exchange(opt, energies)
    for ladder in ([1.0], [1.0, 1.0], [1.0, float("inf")], [1.0, -2.0], "ab"):
        with pytest.raises(ValueError, match="two or more different positive numbers"):
            tether.temper(opt, torch.zeros(2), ladder, [0.0] * len(ladder))
    for weights in ([0.0], [0.0, float("nan")], None):
        with pytest.raises(ValueError, match=r"weights=.* must be 2 finite numbers, one for each temperature"):
            tether.temper(opt, torch.zeros(2), [1.0, 2.0], weights)
    with pytest.raises(ValueError, match=r"energies=.* must be 3 finite numbers"):
        tether.tempering_weights([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="temperature=1 is not one of the ladder"):
        tether.temper(opt, torch.zeros(2), [0.5, 2.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="must be positive"):
        tether.exchange(chains(2, 0.0)[1], torch.zeros(2))
    assert torch.equal(x, torch.ones(2, 1, dtype=torch.float64))


def test_a_single_replica_has_nobody_to_exchange_with():
    _, opt, closure = chains(1, 1.0)
    for _ in range(4):  # pairs begin at the first or at the second one, by chance
        opt.step(closure)
        assert tether.exchange(opt, closure()).tolist() == [0]
