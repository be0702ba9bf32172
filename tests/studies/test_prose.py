"""What the studies of chapter 3's text and chapter 5's theorems compute, on answers known by hand or by autograd."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies import bounds, find, prose
from tether_studies.planar import Task


def test_pushes_are_the_norms_of_the_gradients_of_single_points():
    task = Task("spiral", {"turns": 2.0}, nodes=5, train=4, test=4)
    nets, (_, _, x, y) = tether.Replicas(task.network, 2, seed=1), task.sets(2, seed=3)
    found = prose.pushes(nets, x, y)
    for i, net in enumerate(nets):
        for j in range(4):
            grads = torch.autograd.grad(bce(net(x[i, j : j + 1]), y[i, j : j + 1]), list(net.parameters()))
            assert found[i, j].item() == pytest.approx(math.sqrt(sum(g.square().sum() for g in grads)), rel=1e-5)


def test_inside_and_outside_by_the_radius():
    x = torch.tensor([[[0.9, 0.0], [1.2, 0.0], [0.0, -1.6], [2.0, 0.0]]])
    inner, outer = prose.parts(x)
    assert inner.tolist() == [[True, False, False, False]]
    assert outer.tolist() == [[False, False, True, True]]
    assert prose.masked(torch.tensor([[1.0, 2.0, 3.0, 5.0]]), outer).tolist() == [4.0]


def test_ratios_of_pushes_are_geometric_means_over_the_steps_asked_for():
    found = {
        "steps": np.array([10, 20, 30]),
        "outer push": np.array([[2.0], [8.0], [5.0]]),
        "inner push": np.ones((3, 1)),
    }
    assert prose.pulled(found, 0, 20) == pytest.approx([4.0])
    assert prose.pulled(found, 20, 30) == pytest.approx([5.0])


def test_slope_and_constants_of_the_smooth_problem():
    z = torch.linspace(-6, 6, 20_001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(bounds.bump(z).sum(), z, create_graph=True)
    assert torch.allclose(first, bounds.slope(z))
    (second,) = torch.autograd.grad(first.sum(), z)
    assert first.square().max().item() == pytest.approx(bounds.STEEPEST, rel=1e-6)
    assert second.abs().max().item() == pytest.approx(1.0, rel=1e-6)


def test_the_bounds_by_hand():
    """f⁰ − f* = 1, h = 0.5, T = 8, L = 2, M = 3, two layers, k = 3."""
    assert bounds.bound(1.0, 0.5, 8, 2.0, 3.0, 2, 3) == pytest.approx(2 / 4 + 0.5 * 2 * 3 * 2 * (0.5 * 2 * 9 / 3 + 1))
    assert bounds.plain_bound(1.0, 0.5, 8, 2.0, 3.0) == pytest.approx(2 / 4 + 0.5 * 2 * 3 / 2)
    assert bounds.plain_bound(1.0, 0.5, 8, 2.0, 3.0, 1.0) == pytest.approx(1 / 4 + 0.5 * 2 * 3 / 2)


def test_the_constants_hold_between_any_two_points():
    """(5.3) and (5.4) of the study's own problem, and the quadratic bound of Lemma 5.9.3."""
    study = find("theorem-5").at("quick")
    A, b = (x.double() for x in study.problem(1))
    known = study.constants(1)
    g = torch.Generator().manual_seed(0)
    θ, φ = (3 * torch.randn(500, study.size, generator=g, dtype=torch.float64) for _ in range(2))
    φ[:250] = θ[:250] + 0.01 * φ[:250]
    f = lambda θ: bounds.bump(θ @ A.T - b.T).mean(1)  # noqa: E731
    slope = lambda θ: bounds.slope(θ @ A.T - b.T) @ A / study.points  # noqa: E731
    step = φ - θ
    assert ((slope(φ) - slope(θ)).norm(dim=1) <= known["L"] * step.norm(dim=1)).all()
    assert (bounds.slope(θ @ A.T - b.T).square() * A.square().sum(1) <= known["M"]).all()
    off = (f(φ) - f(θ) - (slope(θ) * step).sum(1)).abs()
    assert (off <= known["L"] / 2 * step.square().sum(1) + 1e-12).all()
    assert float(known["lowest"]) <= f(torch.zeros(1, study.size).double()).item()


def test_layers_of_many_copies_are_the_product_of_each():
    net = bounds.Layers(4, 6, 3)
    x = torch.randn(4, 6)
    θ = torch.cat([p.detach() for p in net.parameters()], 1)
    assert [tuple(p.shape) for p in net.parameters()] == [(4, 2)] * 3
    assert torch.allclose(net(x), torch.stack([a @ b for a, b in zip(x, θ, strict=True)]))


def test_multirate_descent_of_the_study_is_algorithm_5_1_by_hand():
    """Two layers, k = 5: the slow half moves by h along the gradient of the point at the start of its cycle."""
    study = find("theorem-5").at("quick", runs=2, steps=10, rates=(0.1, 0.4))
    found = study.descend(2, 5, 7)
    A, b = study.problem(7)
    torch.manual_seed(7)
    bounds.Layers(4, study.size, 2)  # drawn first
    θ = torch.cat([p.detach() for p in bounds.Layers(2, study.size, 2).parameters()], 1).repeat(2, 1)
    g, h, half = torch.Generator().manual_seed(7), torch.tensor([[0.1], [0.1], [0.4], [0.4]]), study.size // 2
    squares, slow = [], None
    for t in range(10):
        squares.append((bounds.slope(θ @ A.T - b.T) @ A / study.points).square().sum(1))
        i = torch.randint(study.points, (2,), generator=g).repeat(2)
        gradient = bounds.slope((θ * A[i]).sum(1, keepdim=True) - b[i]) * A[i]
        slow = gradient[:, :half] if t % 5 == 0 else slow
        θ = θ - h * torch.cat((slow, gradient[:, half:]), 1)
    torch.testing.assert_close(found["mean"], torch.stack(squares).mean(0).view(2, 2), rtol=1e-4, atol=1e-6)


def test_trends_are_judged_between_all_neighbours():
    """‖∇f‖² rises from the first h to the last, and from the first k to the last, but not from 2 to 5."""
    study = find("theorem-5").at("default", runs=4, layers=(2,), ks=(1, 2, 5))
    level, runs = {1: 1.0, 2: 3.0, 5: 2.0}, torch.tensor([0.0, 0.01, 0.02, 0.03])
    late = {k: torch.stack([level[k] + 0.1 * i + (1 + i) * (1 + k) * runs for i in range(4)]).numpy() for k in level}
    (steps, first), (rare, second) = study.trends({("layers", 2, k): {"late": late[k]} for k in level})
    assert (first.verdict, second.verdict) == ("held", "not held")
    assert steps.endswith("9 of 9 neighbouring pairs held")
    assert rare.endswith("4 of 8 neighbouring pairs held")
    assert second.evidence.count("k = 2 and 5") == 4
