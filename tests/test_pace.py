"""Steps whose length follows the gradient: against the equations, on Neal's funnel, with replicas, resumed."""

import math
import warnings

import pytest
import torch
from torch import nn

import tether
from tether import Optimizer, Pace, Part, methods


class Funnel(nn.Module):
    """Neal's funnel: y ~ N(0, 9) and x ~ N(0, e^y)."""

    def __init__(self):
        super().__init__()
        self.y, self.x = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(1))


def funnel(m):
    return m.y.square() / 18 + (m.x.square().sum(-1) * torch.exp(-m.y) + m.y) / 2


def quartic(m):
    return m.weight.pow(4).flatten(1).sum(1) / 4


def literal(x, steps, h, γ, α, least, most, r):
    """ZBAOABZ at τ = 0 of U = Σ x⁴/4, with Ω the number of entries, as it is written in the paper."""
    p, ζ, found = torch.zeros_like(x), (x**6).mean() / α, []
    for _ in range(steps):
        ζ = math.exp(-α * h / 2) * ζ + (1 - math.exp(-α * h / 2)) / α * (x**6).mean()
        dt = h * least * (ζ**r + most) / (ζ**r + least)
        p = p - dt / 2 * x**3
        x = x + dt / 2 * p
        p = torch.exp(-γ * dt) * p
        x = x + dt / 2 * p
        p = p - dt / 2 * x**3
        ζ = math.exp(-α * h / 2) * ζ + (1 - math.exp(-α * h / 2)) / α * (x**6).mean()
        found.append((x, least * (ζ**r + most) / (ζ**r + least)))
    return found


@pytest.mark.parametrize("foreach", [True, False])
def test_a_step_is_zbaoabz(foreach):
    start = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    x = nn.Parameter(start.clone())
    opt = methods.samadams(
        [("x", x)], lr=0.05, friction=0.7, temperature=0.0, forget=2.0, least=0.2, most=5.0, power=0.3, foreach=foreach
    )
    for there, ψ in literal(start, 40, 0.05, 0.7, 2.0, 0.2, 5.0, 0.3):
        x.grad = x.detach() ** 3
        opt.step()
        torch.testing.assert_close(x.detach(), there, rtol=1e-12, atol=0)
        assert opt.pace() == pytest.approx(ψ.item(), rel=0.02)  # one gradient early


def test_with_noise_the_kernel_is_the_reference():
    ends = []
    for foreach in (True, False):
        torch.manual_seed(0)
        net = nn.Linear(3, 2).double()
        opt = methods.samadams(net, lr=0.1, temperature=0.5, foreach=foreach)
        for _ in range(20):
            opt.zero_grad()
            net(torch.ones(1, 3).double()).pow(4).sum().backward()
            opt.step()
        ends.append((net.weight.detach(), opt.pace()))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-11, atol=0)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-11)


def test_the_words_halves_are_the_word():
    """With ψ = 1 throughout, the step is that of the word alone."""
    ends = []
    for rhythm in (None, Pace(least=1.0, most=1.0)):
        x = nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
        opt = Optimizer([("x", x)], lr=0.1, word="ABOBA", friction=0.5, rhythm=rhythm)
        for _ in range(10):
            x.grad = x.detach() ** 3
            opt.step()
        ends.append(x.detach())
    torch.testing.assert_close(*ends, rtol=1e-13, atol=0)


def test_averages_are_right_with_the_weights_and_wrong_without():
    ens = tether.Replicas(lambda: nn.Linear(1, 1, bias=False), n=100)
    opt = methods.samadams(ens, lr=0.1, temperature=1.0, forget=2.0, least=0.1, most=4.0)
    draws = tether.sample(ens, opt, None, quartic, draws=400, thin=5, burn_in=100)
    squares, weights = draws["weight"].flatten(2).squeeze(2).double().square(), draws.weights
    mean, error = average(squares, weights)
    exact = 2 * math.gamma(0.75) / math.gamma(0.25)
    assert abs(mean - exact) < 3 * error
    assert squares.mean().item() - exact > 8 * error  # steep places take more steps
    assert draws.variance("weight").item() == pytest.approx(mean - draws.mean("weight").item() ** 2, rel=1e-5)
    assert (weights >= 0.1).all()
    assert (weights <= 4.0).all()


def average(x, weights):
    """The weighted mean over all chains, and its standard error by how far the chains are from it."""
    mean = ((weights * x).sum() / weights.sum()).item()
    apart = (weights * (x - mean)).sum(1) / weights.sum(1).mean()
    return mean, (apart.std() / math.sqrt(len(x))).item()


@pytest.mark.filterwarnings("ignore")
def test_the_funnel_is_sampled_where_baoab_fails():
    found = {}
    for name, method in (("BAOAB", methods.langevin), ("SamAdams", methods.samadams)):
        ens = tether.Replicas(Funnel, n=60)
        draws = tether.sample(ens, method(ens, lr=0.1, temperature=1.0), None, funnel, draws=350, thin=10, burn_in=300)
        y = draws["y"].double()
        w = torch.ones_like(y) if draws.weights is None else draws.weights
        found[name] = [average(y, w), average(y.square(), w)]
        print(found)
        assert name == "BAOAB" or not draws.record.stopped
    mean, error = found["BAOAB"][0]
    assert not abs(mean) < 6 * error  # it is thrown out of the neck, or diverges
    for (value, error), exact in zip(found["SamAdams"], (0.0, 9.0), strict=True):
        assert abs(value - exact) < 3 * error
        assert error < 1


def test_every_replica_has_its_own_pace():
    ens = tether.Replicas(lambda: nn.Linear(2, 1), n=3, seed=4)
    alone = ens[1]
    opts = [methods.samadams(net, lr=0.2, temperature=0.1, seed=7) for net in (ens, alone)]
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    for _ in range(10):
        for net, opt in zip((ens, alone), opts, strict=True):
            opt.zero_grad()
            net(x).pow(4).sum().backward()
            opt.step()
    assert opts[0].pace().shape == (3,)
    assert opts[0].pace()[1].item() == pytest.approx(opts[1].pace(), rel=1e-6)
    assert len(set(opts[0].pace().tolist())) == 3
    torch.testing.assert_close(ens[1].weight, alone.weight, rtol=1e-5, atol=1e-6)


def test_a_stopped_replica_keeps_its_pace():
    ens = tether.Replicas(lambda: nn.Linear(2, 1), n=2)
    opt = methods.samadams(ens, lr=0.2, temperature=0.1)
    seen = []
    for i in range(4):
        opt.zero_grad()
        ens(torch.ones(1, 2)).pow(4).sum().backward()
        opt.step()
        seen.append(opt.pace())
        if i == 1:
            opt.stop([0])
    assert seen[1][0] == seen[3][0]
    assert seen[1][1] != seen[3][1]


def test_a_resumed_run_has_the_same_bits(tmp_path):
    def draws(path, count):
        ens = tether.Replicas(lambda: nn.Linear(1, 1, bias=False), n=3)
        opt = methods.samadams(ens, lr=0.1, temperature=1.0)
        found = tether.sample(ens, opt, None, quartic, draws=count, thin=5, burn_in=10, checkpoint=path)
        return found["weight"], found.weights

    whole = draws(None, 20)
    draws(tmp_path / "run.pt", 8)
    resumed = draws(tmp_path / "run.pt", 20)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_other_optimizers_have_the_pace_one():
    assert methods.sgd(nn.Linear(2, 1), lr=0.1).pace() == 1.0
    ens = tether.Replicas(lambda: nn.Linear(1, 1, bias=False), n=2)
    assert tether.sample(ens, methods.langevin(ens, lr=0.1, temperature=1.0), None, quartic, draws=3).weights is None


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"forget": 0.0}, "forget=0.0 must be a finite number above 0"),
        ({"least": -1.0}, "least=-1.0 must be"),
        ({"most": math.inf}, "most=inf must be"),
        ({"power": True}, "power=True must be"),
        ({"scale": 0.0}, "scale=0.0 must be"),
        ({"least": 2.0, "most": 1.0}, "least=2.0 must be at most most=1.0"),
    ],
)
def test_settings_that_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Pace(**settings)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"word": "BACDEDCAB"}, "and a thermostat"),
        ({"word": "BABAB"}, "several gradients per step"),
        ({"on": tether.Circle(1.0)}, "is for free parameters"),
        ({"metric": tether.Path()}, "is for free parameters"),
        ({"every": 2}, "do not go together"),
    ],
)
def test_what_it_does_not_go_with(fields, match):
    with pytest.raises(ValueError, match=match):
        Optimizer(nn.Linear(2, 1), lr=0.1, rhythm=Pace(), **fields)


def test_two_parts_have_no_common_clock():
    with pytest.raises(ValueError, match=r"the clock of all parameters: let one Part\('\*'\) have them all, not 2"):
        Optimizer(nn.Linear(2, 1), [Part("weight", rhythm=Pace()), Part("*")], lr=0.1)
    ens = tether.Replicas(lambda: nn.Linear(1, 1, bias=False), n=2)
    opt = methods.samadams(ens, lr=0.1, temperature=1.0)
    with pytest.raises(ValueError, match="a quantity named 'pace'"), warnings.catch_warnings():
        tether.sample(ens, opt, None, quartic, draws=2, quantities={"pace": lambda m: m.weight})
