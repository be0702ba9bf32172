"""The path metric as a column of the table: Path-SGD by hand, its invariance, what it samples."""

import copy
import math

import pytest
import torch
from torch import nn

import tether
from tether import measure, methods
from tether.ensemble.replicas import Replicas


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()


X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.stack((X[:, 0].abs(), X[:, 1] * X[:, 2]), 1)


def train(model, opt, steps):
    for _ in range(steps):
        opt.zero_grad()
        (model(X) - Y).square().mean().backward()
        opt.step()


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_a_step_by_hand(p):
    model = network()
    opt = methods.path_sgd(model, lr=0.3, p=p)
    (model(X) - Y).square().mean().backward()
    γ = tether.Path(p).scales(model)
    expected = {name: w.detach() - 0.3 * w.grad / γ[name] for name, w in model.named_parameters()}
    opt.step()
    for name, w in model.named_parameters():
        torch.testing.assert_close(w.detach(), expected[name], rtol=1e-12, atol=1e-14)


FIELDS = {
    "path_sgd": {"word": "X"},
    "momentum": {"word": "MS", "friction": -math.log(0.9)},
    "langevin": {"word": "BAOAB", "friction": 1.0, "temperature": 1e-5},
    "sgld": {"word": "X", "temperature": 1e-6},
    "adaptive": {"word": "BACDEDCAB", "temperature": 1e-6, "noise": 1e-3},
}


@pytest.mark.parametrize("name", FIELDS)
def test_rescaled_networks_stay_equivalent(name):
    # in the coordinates √γ θ nothing changes under a rescaling, noise and momenta included
    model = network()
    twin = measure.rescale(model, seed=3, spread=1e3)
    assert (model[0].weight / twin[0].weight).abs().max().item() > 10
    lr = 0.02
    for net in (model, twin):
        train(net, tether.Optimizer(net, lr=lr, metric=tether.Path(), **FIELDS[name]), 100)
    assert (model(X) - Y).square().mean() < 0.9 * (network()(X) - Y).square().mean()
    torch.testing.assert_close(model(X), twin(X), rtol=1e-5, atol=1e-5)


def test_sgd_does_not_care_for_the_function():
    model = network()
    twin = measure.rescale(model, seed=3, spread=10)
    for net in (model, twin):
        train(net, methods.sgd(net, lr=0.02), 20)
    assert not torch.allclose(model(X), twin(X), rtol=1e-2, atol=1e-2)


def test_with_noise_it_still_samples_the_posterior():
    # two weights in a row, y = v·|u|: the marginals of exp(−L/τ) by quadrature, against chains in the path metric
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.u = nn.Linear(1, 1, bias=False, dtype=torch.float64)
            self.v = nn.Linear(1, 1, bias=False, dtype=torch.float64)
            nn.init.constant_(self.u.weight, 1.0)
            nn.init.constant_(self.v.weight, 1.0)

        def forward(self, x):
            return self.v(torch.relu(self.u(x)))

    τ, ens = 0.05, Replicas(Product, n=400)
    opt = tether.Optimizer(ens, lr=2e-3, temperature=τ, metric=tether.Path())

    def energy(m):
        u, v = m.get_parameter("u.weight")[:, 0, 0], m.get_parameter("v.weight")[:, 0, 0]
        return 0.5 * (u * v - 1).square() + 0.5 * (u - 1).square() + 0.5 * (v - 1).square()

    draws = tether.sample(ens, opt, None, energy, draws=100, thin=20, burn_in=2000)
    grid = torch.linspace(-0.5, 2.5, 601, dtype=torch.float64)
    u, v = torch.meshgrid(grid, grid, indexing="ij")
    weight = torch.exp(-(0.5 * (u * v - 1) ** 2 + 0.5 * (u - 1) ** 2 + 0.5 * (v - 1) ** 2) / τ)
    mean = float((weight * u).sum() / weight.sum())
    variance = float((weight * (u - mean) ** 2).sum() / weight.sum())
    found = draws["u.weight"].flatten()
    error = math.sqrt(variance / float(draws.ess()["u.weight"]))
    assert abs(float(found.mean()) - mean) < 4 * error + 0.01
    assert float(found.var()) == pytest.approx(variance, rel=0.06)


def test_replicas_in_the_path_metric():
    def factory():
        return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()

    ens = Replicas(factory, n=3)
    opt = methods.path_sgd(ens, lr=0.1)
    tether.train(ens, opt, (X, Y), nn.functional.mse_loss, 10)
    for i in range(3):
        net = tether.replicas.build(factory, 0, i)
        tether.train(net, methods.path_sgd(net, lr=0.1), (X, Y), nn.functional.mse_loss, 10)
        for a, b in zip(ens[i].parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_checkpoints_and_copies():
    model = network()
    opt = methods.path_sgd(model, lr=0.05, momentum=0.9)
    train(model, opt, 3)
    twin = network(1)
    twin.load_state_dict(model.state_dict())
    other = methods.path_sgd(twin, lr=0.05, momentum=0.9)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    train(model, opt, 3)
    train(twin, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"has the metric None, but the checkpoint was saved with Path\(2\)"):
        tether.Optimizer(network(), lr=0.1, word="MS").load_state_dict(opt.state_dict())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"metric": 2}, r"metric=2 must be a metric, e\.g\. metric=tether\.Path\(\)"),
        ({"metric": tether.Path(), "on": tether.Circle()}, "cannot be combined: choose one"),
        ({"metric": tether.Path(), "word": "BABAB"}, "needs a word with one gradient per step"),
    ],
)
def test_what_is_refused(fields, match):
    with pytest.raises((TypeError, ValueError), match=match):
        tether.Optimizer(network(), lr=0.1, **fields)


def test_a_metric_needs_the_model():
    with pytest.raises(ValueError, match=r"pass the module itself, Optimizer\(model"):
        tether.Optimizer(network().named_parameters(), lr=0.1, metric=tether.Path())
    gelu = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    opt = methods.path_sgd(gelu)
    gelu(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ValueError, match="GELU"):
        opt.step()
