"""Sphere(per="tensor") and radius=None: whole weights of fixed norm, and norms that are kept as they were."""

import copy
import math

import pytest
import torch
from torch import nn
from walks import errors_of, normal, run, walk

import tether
from tether.surfaces import Sphere

WORDS = ["X", "L", "OBA", "BAOAB"]


@pytest.mark.parametrize("word", WORDS)
def test_the_sphere_of_a_weight_is_that_of_its_one_row(word):
    """So the orders and measures of rows are those of whole weights. Noise is that of the parameter's entries."""
    start, runs = normal(1, 6), []
    for surface in (Sphere(0.8, slack=False), Sphere(0.8, per="tensor")):
        (q,), opt = walk(surface, [start], word, 0.1, temperature=0.3)
        q.grad.copy_(torch.linspace(-1, 1, 6))
        run(opt, 20)
        runs.append(q.detach())
    torch.testing.assert_close(*runs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("per", ["row", "tensor"])
def test_a_norm_that_is_kept_is_a_radius(word, per):
    """Without noise: the kept norm is a coordinate of its own, so that normals have another index."""
    start, runs = normal(3, 2, 4), []
    norms = start.flatten(1).norm(dim=1) if per == "row" else start.norm().item()
    for surface in (Sphere(norms, slack=False, per=per), Sphere(None, per=per)):
        (q,), opt = walk(surface, [start], word, 0.1)
        target = normal(3, 2, 4, seed=1)
        run(opt, 20, lambda q=q, target=target: q.grad.copy_(q.detach() - target))
        runs.append(q.detach())
    assert (runs[0] - start).abs().max() > 0.1
    torch.testing.assert_close(*runs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("word", "h", "steps"), [("X", 0.02, 250), ("BAOAB", 0.25, 80)])
@pytest.mark.parametrize("radius", [0.8, None])
def test_uniform_without_a_force_and_von_mises_fisher_with_one(word, h, steps, radius):
    """3000 replicas of a weight of three numbers, half of them with the force: S² of norm 0.8, each in 4 errors."""
    start = torch.nn.functional.normalize(normal(3000, 1, 3, dtype=torch.float32), dim=-1) * 0.8
    κ, τ, surface = 1.5, 0.64, Sphere(radius, per="tensor")
    (q,), opt = walk(surface, [start], word, h, temperature=τ, batch_dims=1)
    q.grad[1500:, 0, 1] = -κ * τ / 0.8
    run(opt, steps)
    free, forced = (q.detach()[:, 0] / 0.8).split(1500)
    mean = 1 / math.tanh(κ) - 1 / κ
    assert abs(errors_of(free, 0.0)).max() < 4
    assert abs(errors_of(free**2, 1 / 3)).max() < 4
    assert abs(errors_of(forced[:, 1], mean)) < 4
    assert abs(errors_of(forced[:, 1] ** 2, 1 - 2 * mean / κ)) < 4
    assert opt.violation().max() <= 1e-6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))


def learn(net, opt, steps):
    for i in range(steps):
        opt.zero_grad()
        net(normal(8, 2, 4, 4, seed=i, dtype=torch.float32)).square().mean().backward()
        opt.step()


OPTIMIZERS = {
    "tether": lambda net: tether.Optimizer(net, on=Sphere(None, per="tensor"), lr=0.05, word="OBA", temperature=1e-3),
    "AdamW": lambda net: tether.constrain(
        torch.optim.AdamW(net.named_parameters(), lr=0.01), {"*": Sphere(None, per="tensor")}
    ),
    "SGD": lambda net: tether.constrain(
        torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9), {"*": Sphere(None, per="tensor")}
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_weight_keeps_its_norm_also_through_a_checkpoint(kind):
    net = network()
    before = [w.detach().clone() for w in net.parameters()]
    opt = OPTIMIZERS[kind](net)
    assert all(torch.equal(w, x) for w, x in zip(net.parameters(), before, strict=True))
    learn(net, opt, 5)
    other = copy.deepcopy(net)
    resumed = OPTIMIZERS[kind](other)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    learn(net, opt, 10)
    learn(other, resumed, 10)
    for w, x, start in zip(net.parameters(), other.parameters(), before, strict=True):
        assert torch.equal(w, x)
        assert w.norm().item() == pytest.approx(start.norm().item(), rel=3e-7)
        assert (w - start).abs().max() > 1e-3


@pytest.mark.parametrize("radius", [0.5, None])
def test_weights_that_somebody_wrote_are_brought_back(radius):
    (q,), opt = walk(Sphere(radius, per="tensor"), [normal(3, 4)], "OBA", 0.1)
    norm = q.detach().norm().item()
    opt.step()
    with torch.no_grad():
        q.mul_(3.0)
    opt.step()
    assert q.detach().norm().item() == pytest.approx(norm, rel=1e-14)


def test_momenta_of_sgd_lie_along_the_sphere():
    net = network()
    opt = tether.constrain(torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9), {"*": Sphere(per="tensor")})
    learn(net, opt, 5)
    for w in net.parameters():
        m = opt.state[w]["momentum_buffer"]
        assert abs((w * m).sum()) <= 1e-6 * m.norm()
        assert w.norm().item() == pytest.approx(1, abs=3e-7)
