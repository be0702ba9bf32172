"""Which solution gradient descent finds: the slides' claims on linear models, held to closed forms."""

import pytest
import torch
from torch import nn

import tether
from tether.measure import minimum_norm


def problem(outputs=1, points=4, features=10):
    torch.manual_seed(0)
    X = torch.randn(points, features, dtype=torch.float64)
    return X, torch.randn(points, outputs, dtype=torch.float64)


def descend(net, X, y, steps=400, decay=0.0, kick=None):
    """Gradient descent on ½|Xw − y|² + ½λ|w|², pushed halfway if asked."""
    opt = tether.Optimizer(net, lr=1 / (torch.linalg.matrix_norm(X, 2).item() ** 2 + len(X)), weight_decay=decay)
    for i in range(steps):
        if kick is not None and i == steps // 2:
            with torch.no_grad():
                net.weight.add_(kick)
        opt.zero_grad()
        (0.5 * (net(X) - y).square().sum()).backward()
        opt.step()
    return net


def linear(X, y, scale=0.0, seed=1):
    net = nn.Linear(X.shape[1], y.shape[1], bias=False, dtype=X.dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        net.weight.copy_(scale * torch.randn(net.weight.shape))
    return net


def test_descent_from_zero_ends_in_the_pseudoinverse():
    X, y = problem(outputs=2)
    result = minimum_norm(X, y, descend(linear(X, y), X, y))
    torch.testing.assert_close(result.weight, (torch.linalg.pinv(X) @ y).mT)
    assert result.distance < 1e-6
    assert result.in_null < 1e-12
    assert (result.rank, result.null) == (4, 6)
    assert result.error < 1e-12
    assert result.norm == pytest.approx(torch.linalg.pinv(X).matmul(y).norm().item())


def test_descent_keeps_the_null_space_part_of_its_start():
    X, y = problem()
    start = linear(X, y, scale=2.0)
    first = start.weight.detach().clone()
    result = minimum_norm(X, y, descend(linear(X, y, scale=2.0), X, y), start=start)
    P = torch.eye(10, dtype=X.dtype) - torch.linalg.pinv(X) @ X
    assert result.in_null == pytest.approx((first @ P).norm().item())
    assert result.distance == pytest.approx(result.in_null, rel=1e-6)  # all that is left
    assert result.in_null > 1
    assert result.drift < 1e-12
    assert result.from_limit < 1e-6
    for given in (start.state_dict(), first):
        assert minimum_norm(X, y, start, start=given).drift == 0
    moved = minimum_norm(X, y, first + torch.ones(1, 10, dtype=X.dtype) @ P, start=first)
    assert moved.drift == pytest.approx(P.sum(0).norm().item())


def test_ridge_is_independent_of_the_start():
    X, y = problem()
    λ = 3.0
    exact = torch.linalg.solve(X.mT @ X + λ * torch.eye(10, dtype=X.dtype), X.mT @ y).mT
    for scale in (0.0, 2.0):
        result = minimum_norm(X, y, descend(linear(X, y, scale), X, y, decay=λ), regularization=λ)
        torch.testing.assert_close(result.weight, exact)
        assert result.distance < 1e-9
    # λ → 0 is the minimum norm
    small = minimum_norm(X, y, regularization=1e-9)
    assert (small.weight - minimum_norm(X, y).weight).norm() < 1e-8


def test_a_perturbation_persists_without_decay_and_dies_with_it():
    X, y = problem()
    kick = torch.ones(1, 10, dtype=X.dtype)
    P = torch.eye(10, dtype=X.dtype) - torch.linalg.pinv(X) @ X
    kept = minimum_norm(X, y, descend(linear(X, y), X, y, kick=kick))
    assert kept.distance == pytest.approx((kick @ P).norm().item(), rel=1e-6)
    assert kept.distance > 0.5
    λ = 3.0
    gone = minimum_norm(X, y, descend(linear(X, y), X, y, decay=λ, kick=kick), regularization=λ)
    assert gone.distance < 1e-9


def test_a_bias_is_one_more_feature():
    X, y = problem()
    net = nn.Linear(10, 1, dtype=X.dtype)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    ones = torch.cat([X, torch.ones(4, 1, dtype=X.dtype)], dim=1)
    result = minimum_norm(X, y[:, 0], descend(net, ones[:, :10], y))
    exact = torch.linalg.pinv(ones) @ y[:, 0]
    torch.testing.assert_close(result.weight, exact[:10])
    assert result.bias.item() == pytest.approx(exact[10].item())
    assert result.distance < 1e-6
    assert minimum_norm(X, y[:, 0], bias=False).bias is None


def test_deep_linear_nets_are_linear_and_others_are_refused():
    X, y = problem()
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(10, 7, bias=False), nn.Linear(7, 1, bias=False)).double()
    product = deep[1].weight @ deep[0].weight
    exact = (product.detach() - minimum_norm(X, y).weight).norm().item()
    assert minimum_norm(X, y, deep).distance == pytest.approx(exact)
    with pytest.raises(ValueError, match="Sequential is not linear"):
        minimum_norm(X, y, nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 1)).double())


def test_replicas_are_measured_one_by_one():
    X, y = problem()
    ens = tether.Replicas(lambda: nn.Linear(10, 1, bias=False, dtype=torch.float64), n=3)
    other = tether.Replicas(lambda: nn.Linear(10, 1, bias=False, dtype=torch.float64), n=3, seed=1)
    for start in (other, other.state_dict()):
        found = minimum_norm(X, y, ens, start=start)
        alone = [minimum_norm(X, y, ens[i], start=other[i]) for i in range(3)]
        assert [x.drift for x in found] == [x.drift for x in alone]
        assert [x.distance for x in found] == [x.distance for x in alone]


def test_more_points_than_features_and_single_precision():
    X, y = problem(points=30, features=4)
    result = minimum_norm(X.float(), y.float(), nn.Linear(4, 1, bias=False))
    torch.testing.assert_close(result.weight, torch.linalg.lstsq(X, y).solution.mT, atol=1e-5, rtol=1e-5)
    assert result.null == 0
    assert result.in_null < 1e-12
    assert result.error == pytest.approx((X @ torch.linalg.lstsq(X, y).solution - y).norm().item(), rel=1e-5)


def test_bad_input_is_named():
    X, y = problem()
    with pytest.raises(ValueError, match=r"X has shape \(4, 10\) and y \(3, 1\)"):
        minimum_norm(X, y[:3])
    with pytest.raises(ValueError, match="must be finite"):
        minimum_norm(X * float("nan"), y)
    with pytest.raises(ValueError, match="regularization=-1"):
        minimum_norm(X, y, regularization=-1)
    with pytest.raises(ValueError, match="3 outputs"):
        minimum_norm(X, y, torch.zeros(3, 10))
    with pytest.raises(ValueError, match="9 features"):
        minimum_norm(X, y, torch.zeros(9))
    with pytest.raises(ValueError, match="no model"):
        minimum_norm(X, y).plot()


def test_the_plot_shows_every_direction():
    pytest.importorskip("matplotlib").use("Agg")
    X, y = problem()
    result = minimum_norm(X, y, linear(X, y, scale=1.0))
    points, null = result.plot().lines
    assert len(points.get_xdata()) == 4
    assert null.get_ydata()[0] == pytest.approx(result.in_null)
