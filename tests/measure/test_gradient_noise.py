"""The noise of minibatches against all minibatches that there are."""

from itertools import combinations, product

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import tether
from tether.measure import gradient_noise

POINTS = 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data():
    g = torch.Generator().manual_seed(1)
    return torch.randn(POINTS, 3, generator=g).double(), torch.tensor([0, 1, 1, 0, 1, 0])


def gradients(net, x, y):
    return torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))


def literal(net, picks):
    """Mean ‖G̃ − G‖² of the first layer and the second, over all minibatches."""
    (x, y), found = data(), []
    whole = gradients(net, x, y)
    for pick in map(list, picks):
        apart = [(a - b).square().sum().item() for a, b in zip(gradients(net, x[pick], y[pick]), whole, strict=True)]
        found.append([apart[0] + apart[1], apart[2] + apart[3]])
    return torch.tensor(found, dtype=torch.float64).mean(0).tolist(), [
        sum(g.square().sum().item() for g in whole[i : i + 2]) for i in (0, 2)
    ]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("replacement", [False, True])
def test_it_is_the_mean_over_all_minibatches(replacement, one_by_one):
    net = network()
    picks = product(range(POINTS), repeat=3) if replacement else combinations(range(POINTS), 3)
    noise, signal = literal(net, picks)
    found = gradient_noise(net, data(), 3, replacement=replacement, one_by_one=one_by_one)
    assert list(found.noise) == ["0", "2"]
    assert list(found.noise.values()) == pytest.approx(noise, rel=1e-12)
    assert list(found.signal.values()) == pytest.approx(signal, rel=1e-12)
    assert found.sizes == {"0": 16, "2": 10}


def test_batches_and_tensors_add_up_to_the_same():
    net, (x, y) = network(), data()
    whole = gradient_noise(net, (x, y), 2)
    parts = gradient_noise(net, [(x[:1], y[:1]), (x[1:], y[1:])], 2)
    assert list(parts.noise.values()) == pytest.approx(list(whole.noise.values()), rel=1e-12)
    tensors = gradient_noise(net, (x, y), 2, per="tensor").noise
    assert tensors["0.weight"] + tensors["0.bias"] == pytest.approx(whole.noise["0"], rel=1e-12)


def test_all_points_at_once_have_no_noise_and_equal_points_neither():
    net, (x, y) = network(), data()
    assert gradient_noise(net, (x, y), POINTS).noise == {"0": 0.0, "2": 0.0}
    same = gradient_noise(net, (x[:1].repeat(5, 1), y[:1].repeat(5)), 1)
    assert max(same.noise.values()) < 1e-30
    assert min(same.signal.values()) > 0


def test_the_temperature_is_that_of_sgld_with_noise_as_strong():
    """√(2τh) R and h Σ R have the same variance per parameter."""
    found = gradient_noise(network(), data(), 2)
    for name, τ in found.temperature(0.1).items():
        assert 2 * τ * 0.1 * found.sizes[name] == pytest.approx(0.1**2 * found.noise[name])


def test_langevin_dynamics_with_minibatches_is_as_hot_as_it_says():
    """½(w − y)² on points y: ⟨p²⟩ = τ + h σ²/(2γ) to first order in h, and exactly in discrete time below."""
    torch.manual_seed(0)
    y = torch.randn(50, 1, dtype=torch.float64) * 3
    half = lambda f, y: (f - y).square().mean() / 2  # noqa: E731
    net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    x, h, γ, τ = torch.ones_like(y), 0.1, 1.0, 0.05
    σ2 = gradient_noise(net, (x, y), 5, half, replacement=True).noise[""]
    ens = tether.Replicas(lambda: nn.Linear(1, 1, bias=False).double(), 500)
    opt = tether.Optimizer(ens, lr=h, word="BAOAB", friction=γ, temperature=τ)
    tether.train(ens, opt, (x, y), half, 150, 5, replacement=True, progress=False)
    a, A = torch.exp(torch.tensor(-γ * h, dtype=torch.float64)), torch.eye(2, dtype=torch.float64)
    for step in ([[1, 0], [-h, 1]], [[1, h / 2], [0, 1]], [[1, 0], [0, a]], [[1, h / 2], [0, 1]]):
        A = torch.tensor(step, dtype=torch.float64) @ A
    drift = torch.tensor([[1, h / 2], [0, 1]], dtype=torch.float64)
    kick = drift @ torch.diag(torch.tensor([1, a])) @ drift @ torch.tensor([[0.0], [h * σ2**0.5]]).double()
    noise = drift @ torch.tensor([[0.0], [(τ * (1 - a**2)) ** 0.5]]).double()
    C = kick @ kick.T + noise @ noise.T
    vec = torch.linalg.solve(torch.eye(4).double() - torch.kron(A, A), C.flatten()).view(2, 2)
    found = tether.measure.kinetic_temperature(opt)
    mean = torch.tensor([one.mean for one in found]).double()
    assert vec[1, 1] > 1.5 * τ  # minibatches matter here
    assert abs(mean.mean() - vec[1, 1]) < 4 * vec[1, 1] * (2 / 500) ** 0.5


def test_replicas_frozen_layers_and_dictionaries():
    net, (x, y) = network(), data()
    ens = tether.Replicas(network, 2)
    assert [list(one.noise) for one in gradient_noise(ens, (x, y), 2)] == [["0", "2"]] * 2
    net[0].requires_grad_(False)
    assert list(gradient_noise(net, (x, y), 2).noise) == ["2"]

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, inputs, labels, scale=1.0):
            out = self.net(inputs) * scale
            return {"logits": out, "loss": cross_entropy(out, labels)}

    named = gradient_noise(Named(), [{"inputs": x, "labels": y, "scale": 1.0}], 2)
    assert list(named.noise.values()) == pytest.approx(list(gradient_noise(network(), (x, y), 2).noise.values()))


def test_bad_input_is_named():
    net, (x, y) = network(), data()
    with pytest.raises(ValueError, match="batch=7 must be from 1 to the number of points, 6"):
        gradient_noise(net, (x, y), 7)
    with pytest.raises(ValueError, match="per='unit' must be"):
        gradient_noise(net, (x, y), 2, per="unit")
    with pytest.raises(ValueError, match="unfreeze some"):
        gradient_noise(net.requires_grad_(False), (x, y), 2)

    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if x.sum() > 0 else 1)  # vmap cannot ask for a number

    odd = Odd(3, 1).double()
    with pytest.raises(RuntimeError, match="vmap cannot take Odd: pass one_by_one=True"):
        gradient_noise(odd, (x, x[:, :1]), 2, mse_loss)
    assert gradient_noise(odd, (x, x[:, :1]), 2, mse_loss, one_by_one=True).noise[""] > 0


def test_it_prints_as_one_line_and_draws_itself():
    found = gradient_noise(network(), data(), 2)
    assert "\n" not in str(found)
    axis = found.plot()
    assert [line.get_ydata().tolist() for line in axis.lines] == [
        list(found.signal.values()),
        list(found.noise.values()),
    ]
