"""Replica i of n is replica i alone: every method, field and path of the optimizer with batch_dims=1."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tether
from fitting import used
from tether import methods, native
from tether.ensemble.replicas import Replicas

sys.path.insert(0, str(Path(__file__).parent / "contract"))
from rows import ROWS, every_method, every_noisy_method

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True).sin()


def factory(activation=nn.Tanh):
    return nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 1))


def losses(model, x=X, y=Y):
    """One loss for a net, one for each replica."""
    return (model(x) - y).square().flatten(1 if isinstance(model, Replicas) else 0).mean(-1)


def train(model, opt, steps):
    def closure():
        opt.zero_grad()
        loss = losses(model)
        loss.sum().backward()
        return loss.detach()

    for _ in range(steps):
        opt.step(closure)


def assert_replica(ens, opt, i, net, alone, tol=2e-5):
    for (name, x), y in zip(ens.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(x[i], y, rtol=tol, atol=tol, msg=lambda m, name=name: f"{name}: {m}")
        for key in ("momentum", "point"):
            if key in alone.state[y]:
                torch.testing.assert_close(opt.state[x][key][i], alone.state[y][key], rtol=tol, atol=tol)


@every_method
@pytest.mark.filterwarnings("ignore:.* is slow but runs after")
@pytest.mark.parametrize("path", ["kernel", "no compiler", "tensor by tensor"])
def test_every_method_on_every_path(name, path, monkeypatch):
    if path == "no compiler":
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    steps = 60 if path == "kernel" else 10
    options = {"foreach": path != "tensor by tensor"}

    def train(model, opt, steps):
        def closure():
            opt.zero_grad()
            loss = losses(model, X.double(), Y.double())
            loss.sum().backward()
            return loss.detach()

        for _ in range(steps):
            opt.step(closure)

    def double():
        return factory(ROWS[name].activation).double()

    with torch.random.fork_rng():
        ens = Replicas(double, n=4, seed=3)
        opt = ROWS[name].build(ens, **options)
        train(ens, opt, steps)
        assert not torch.allclose(ens.get_parameter("0.weight")[0], ens.get_parameter("0.weight")[1])
        for i in (0, 3):
            net = tether.replicas.build(double, 3, i)
            alone = ROWS[name].build(net, **options)
            train(net, alone, steps)
            # in double precision, so that nothing but rounding can hide below the tolerance
            assert_replica(ens, opt, i, net, alone, tol=1e-10)


@every_noisy_method
def test_the_noise_of_a_replica_does_not_depend_on_how_many_there_are(name):
    few, many = Replicas(factory, n=2), Replicas(factory, n=5)
    pair = [ROWS[name].build(ens) for ens in (few, many)]
    for ens, opt in zip((few, many), pair, strict=True):
        train(ens, opt, 5)
    part = Replicas(factory, n=5).subset([1, 4])
    third = ROWS[name].build(part)
    train(part, third, 5)
    for x, y, z in zip(few.parameters(), many.parameters(), part.parameters(), strict=True):
        torch.testing.assert_close(x[1], y[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(z, y[[1, 4]], rtol=1e-5, atol=1e-5)


def test_replicas_have_independent_noise():
    ens = Replicas(lambda: nn.Linear(100, 100, bias=False), n=3)
    before = ens.weight.detach().clone()
    opt = methods.sgld(ens, lr=1.0, temperature=0.5)
    ens.weight.grad = torch.zeros_like(ens.weight)
    opt.step()
    moved = (ens.weight.detach() - before).view(3, -1)
    assert (moved.std(1) - 1).abs().max() < 4 / math.sqrt(2e4)
    correlation = torch.corrcoef(moved)
    assert (correlation - torch.eye(3)).abs().max() < 4 / 100


FIELDS = {
    "lr": torch.tensor([0.02, 0.05, 0.1]),
    "friction": torch.tensor([0.0, 1.0, math.inf]),
    "temperature": torch.tensor([0.0, 1e-4, 1e-2]),
    "coupling": torch.tensor([0.01, 0.1, 1.0]),
    "noise": torch.tensor([0.0, 0.01, 0.1]),
    "weight_decay": torch.tensor([0.0, 0.1, 0.5]),
}


@pytest.mark.parametrize("word", ["X", "L", "OBA", "BAOAB", "BACDEDCAB", "BAFEFAB"])
@pytest.mark.parametrize("on", [None, tether.Circle(0.8), tether.Sphere(1.2), tether.Orthogonal()], ids=str)
@pytest.mark.parametrize("path", ["kernel", "no compiler"])
def test_a_number_for_each_replica(word, on, path, monkeypatch):
    if path == "no compiler":
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    fields = FIELDS if on is None else {**FIELDS, "friction": torch.tensor([0.1, 1.0, math.inf])}

    def build(model, **numbers):
        parts = None if on is None else [tether.Part("*.weight", on=on), tether.Part("*")]
        return tether.Optimizer(model, parts, word=word, **used(word, **numbers))

    ens = Replicas(factory, n=3)
    opt = build(ens, **fields)
    train(ens, opt, 8)
    for i in range(3):
        net = tether.replicas.build(factory, 0, i)
        alone = build(net, **{name: float(values[i]) for name, values in fields.items()})
        train(net, alone, 8)
        assert_replica(ens, opt, i, net, alone, tol=1e-4)
        for label, value in alone.temperature().items():
            assert float(opt.temperature()[label][i]) == pytest.approx(value, rel=1e-2, nan_ok=True)
        if on is not None:
            assert opt.violation().shape == (3,)
            assert opt.violation().max() <= 1e-6


def test_a_thermostat_for_each_replica():
    ens = Replicas(factory, n=3)
    opt = methods.adaptive_langevin(ens, lr=0.1, temperature=1e-3)
    train(ens, opt, 10)
    for group in opt.param_groups:
        assert group["thermostat"].shape == (3,)
        assert len(set(group["thermostat"].tolist())) == 3


def test_a_stopped_replica_stands_still_and_the_others_do_not_notice():
    ens, twin = Replicas(factory, n=3), Replicas(factory, n=3)
    opt, other = (methods.adlala(e, lr=0.1) for e in (ens, twin))
    train(ens, opt, 3)
    train(twin, other, 3)
    opt.stop([1])
    before = [x.detach()[1].clone() for x in ens.parameters()]
    for net, optimizer in ((ens, opt), (twin, other)):
        for _ in range(3):
            optimizer.zero_grad()
            losses(net).sum().backward()
            if net is ens:
                for x in ens.parameters():
                    x.grad[1] = math.nan
            optimizer.step()
    for x, y, z in zip(ens.parameters(), twin.parameters(), before, strict=True):
        assert torch.equal(x[1], z)
        assert torch.equal(x[[0, 2]], y[[0, 2]])
    assert "1 of them stopped (1)" in opt.describe()
    fresh = methods.adlala(Replicas(factory, n=3), lr=0.1)
    fresh.load_state_dict(opt.state_dict())
    assert fresh.param_groups[0]["stopped"] == (1,)
    with pytest.raises(ValueError, match=r"cannot stop \[3\]: this optimizer moves 3 replica"):
        opt.stop([3])


@pytest.mark.parametrize("method", [methods.sgld, methods.adlala, methods.orthogonal_cola_ud, methods.circle_cola_od])
def test_a_gradient_that_is_not_finite_in_one_replica(method):
    ens = Replicas(factory, n=3)
    opt = method(ens, lr=0.1, on_nonfinite="skip")
    losses(ens).sum().backward()
    before = [x.detach().clone() for x in ens.parameters()]
    next(iter(ens.parameters())).grad[2, 0, 0] = math.inf
    opt.step()
    for x, y in zip(ens.parameters(), before, strict=True):
        assert torch.equal(x[2], y[2])
        assert x.isfinite().all()
        assert not torch.equal(x[0], y[0])
    assert opt.skipped == 1
    strict = method(ens, lr=0.1)
    before = [x.detach().clone() for x in ens.parameters()]
    with pytest.raises(tether.NonFiniteGradient, match="replica 2"):
        strict.step()
    assert all(torch.equal(x, y) for x, y in zip(ens.parameters(), before, strict=True))


def test_saved_and_loaded():
    ens = Replicas(factory, n=3)
    opt = methods.adlala(ens, lr=torch.tensor([0.05, 0.1, 0.2]))
    train(ens, opt, 5)
    weights, state = {k: v.clone() for k, v in ens.state_dict().items()}, opt.state_dict()
    twin = Replicas(factory, n=3, seed=9)
    twin.load_state_dict(weights)
    other = methods.adlala(twin, lr=torch.tensor([0.05, 0.1, 0.2]))
    other.load_state_dict(state)
    train(ens, opt, 5)
    train(twin, other, 5)
    assert all(torch.equal(x, y) for x, y in zip(ens.parameters(), twin.parameters(), strict=True))
    with pytest.raises(ValueError, match="checkpoint of another model"):
        methods.adlala(Replicas(factory, n=4), lr=0.1).load_state_dict(state)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"temperature": torch.ones(4)}, r"temperature holds 4 numbers; it must hold 3, one for each replica"),
        ({"temperature": torch.tensor([1.0, -1.0, 0.0])}, r"an entry of temperature=-1\.0 is out of range"),
        ({"lr": torch.tensor([0.1, math.nan, 0.1])}, r"an entry of lr=nan is out of range"),
        ({"batch_dims": 2}, "batch_dims=2 must be 0, or 1"),
        ({"batch_dims": 0, "temperature": torch.ones(3)}, "holds 3 numbers; it must hold one, or batch_dims must be 1"),
    ],
)
def test_what_is_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        tether.Optimizer(Replicas(factory, n=3), **{"lr": 0.1, **fields})


def test_parameters_that_hold_no_replicas():
    named = [("a", nn.Parameter(torch.zeros(3, 2))), ("b", nn.Parameter(torch.zeros(2)))]
    with pytest.raises(ValueError, match=r"'b' of shape \(2,\) does not hold 3 replicas along its first axis"):
        tether.Optimizer(named, lr=0.1, batch_dims=1)


def test_a_schedule_of_a_field_with_a_number_for_each_replica():
    ens = Replicas(factory, n=3)
    opt = methods.langevin(ens, lr=0.1, temperature=torch.tensor([1e-4, 1e-3, 1e-2]))
    anneal = tether.Schedule(opt, "temperature", lambda t: 0.5**t)
    anneal.step()
    assert anneal.last_values[0] == pytest.approx([5e-5, 5e-4, 5e-3])
    train(ens, opt, 2)
    twin = tether.Schedule(
        methods.langevin(Replicas(factory, n=3), temperature=torch.ones(3)), "temperature", lambda t: 0.5**t
    )
    twin.load_state_dict(anneal.state_dict())
    assert twin.last_values == anneal.last_values
