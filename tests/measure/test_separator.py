"""The hard-margin separator, against closed forms and scipy, and descent that turns to it."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import nn

import tether
from tether.measure import NotSeparable, hard_margin
from tether.measure.separator import nonnegative


def separable(points=40, features=5, seed=0, gap=0.3):
    torch.manual_seed(seed)
    X = torch.randn(points, features, dtype=torch.float64)
    w = torch.randn(features, dtype=torch.float64)
    y = (X @ w).sign()
    return X + gap * y[:, None] * w / w.norm(), y


def test_two_points_have_the_bisector():
    X = torch.tensor([[2.0, 0.0], [0.0, -3.0]])
    result = hard_margin(X, torch.tensor([1, -1]))
    # both constraints tight: w = (1/2, 1/3)
    assert result.weight.tolist() == pytest.approx([1 / 2, 1 / 3])
    assert result.margin == pytest.approx(1 / math.hypot(1 / 2, 1 / 3))
    assert result.growth == pytest.approx(math.hypot(1 / 2, 1 / 3))
    assert result.multipliers.tolist() == pytest.approx([1 / 4, 1 / 9])
    assert result.support.tolist() == [0, 1]


def test_points_beyond_the_margin_do_not_count():
    X = torch.tensor([[1.0, 0.0], [5.0, 7.0], [-1.0, 0.0], [-4.0, 1.0]])
    result = hard_margin(X, torch.tensor([1, 1, 0, 0]))
    assert result.weight.tolist() == pytest.approx([1, 0], abs=1e-12)
    assert set(result.support.tolist()) <= {0, 2}
    assert result.margin == pytest.approx(1)


def test_a_bias_moves_the_hyperplane_off_zero():
    X = torch.tensor([[3.0], [1.0]])
    with pytest.raises(NotSeparable, match="bias=True"):
        hard_margin(X, torch.tensor([1, -1]))
    result = hard_margin(X, torch.tensor([1, -1]), bias=True)
    # 3w + b = 1 and w + b = −1
    assert (result.weight.item(), result.bias.item()) == pytest.approx((1, -2))


@pytest.mark.parametrize(("points", "features"), [(40, 5), (15, 30), (200, 12)])
def test_the_separator_is_the_one_of_a_general_solver(points, features):
    X, y = separable(points, features)
    result = hard_margin(X, y)
    Z = (y[:, None] * X).numpy()
    found = minimize(
        lambda w: 0.5 * w @ w,
        result.weight.numpy() + 0.01,
        jac=lambda w: w,
        constraints={"type": "ineq", "fun": lambda w: Z @ w - 1, "jac": lambda w: Z},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(result.weight.numpy(), found.x, atol=1e-6)
    # the conditions of Karush, Kuhn and Tucker
    tight = torch.from_numpy(Z) @ result.weight
    assert tight.min() > 1 - 1e-9
    torch.testing.assert_close(tight[result.support], torch.ones(len(result.support), dtype=torch.float64))
    assert (result.multipliers > 0).all()
    sums = (result.multipliers * y[result.support]) @ X[result.support]
    torch.testing.assert_close(result.weight, sums)


@pytest.mark.parametrize(("rows", "columns"), [(8, 3), (8, 30), (30, 30), (60, 20)])
def test_nonnegative_least_squares_is_scipys(rows, columns):
    torch.manual_seed(0)
    E, f = torch.randn(rows, columns, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)
    u = nonnegative(E, f)
    best, residual = nnls(E.numpy(), f.numpy())
    assert (u >= 0).all()
    assert (E @ u - f).norm().item() == pytest.approx(residual, abs=1e-10)
    if columns <= rows:
        np.testing.assert_allclose(u.numpy(), best, atol=1e-10)


def test_overlapping_classes_are_refused_with_the_evidence():
    torch.manual_seed(0)
    X, y = torch.randn(50, 3, dtype=torch.float64), torch.randint(2, (50,))
    for bias in (False, True):
        with pytest.raises(NotSeparable, match="no hyperplane") as caught:
            hard_margin(X, y, bias=bias)
        points, weights = caught.value.points, caught.value.weights
        inputs = torch.cat([X, torch.ones(50, 1)], dim=1) if bias else X
        mean = (weights * (2.0 * y[points] - 1)) @ inputs[points]
        assert weights.sum().item() == pytest.approx(1)
        assert (weights > 0).all()
        assert mean.norm() < 1e-7
    with pytest.raises(NotSeparable):
        hard_margin(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([1, -1]))
    touching = torch.tensor([[1.0, 0.0], [-1.0, 1e-9]], dtype=torch.float64)  # by 5e-10, too little to be told from 0
    with pytest.raises(NotSeparable, match="to 5e-10 of the largest"):
        hard_margin(touching, torch.tensor([1, 1]))


def test_the_angle_of_a_model():
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    y = torch.tensor([1, -1])
    for degrees in (1e-6, 30, 91, 135):
        w = torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))], dtype=torch.float64)
        result = hard_margin(X, y, 7 * w)
        assert math.degrees(result.angle) == pytest.approx(degrees, rel=1e-9)
        assert result.norm == pytest.approx(7)
        assert result.separates is (degrees < 89)
    ens = tether.Replicas(lambda: nn.Linear(2, 1, bias=False), n=3)
    assert [x.angle for x in hard_margin(X, y, ens)] == [hard_margin(X, y, net).angle for net in ens]


def test_descent_on_the_exponential_loss_turns_to_the_separator_like_one_over_log_t():
    """w(t) = ŵ log t + o(log t): the angle falls like 1/log t and |w| grows by |ŵ| for each factor e of time."""
    X, y = separable(30, 4, gap=0.2)
    Z = y[:, None] * X
    svm = hard_margin(X, y)
    w = torch.tensor([1.0, -1.0, 1.0, 0.0], dtype=torch.float64)
    results, t = [], 0.0
    for k in range(6):
        while t < 10 ** (k + 1):
            gradient = torch.exp(-Z @ w) @ Z
            # as long a step as the flow allows: its speed falls like 1/t
            h = min(0.02 / (gradient.norm().item() + 1e-300), 10 ** (k + 1) - t)
            w, t = w + h * gradient, t + h
        results.append((t, hard_margin(X, y, w)))
    angles = [x.angle for _, x in results]
    assert all(b < a for a, b in pairwise(angles))
    (t0, first), (t1, last) = results[-3], results[-1]
    slope = (last.norm - first.norm) / math.log(t1 / t0)
    assert slope == pytest.approx(svm.growth, rel=0.02)
    assert angles[-1] * math.log(t1) == pytest.approx(angles[-3] * math.log(t0), rel=0.15)
    assert last.separates


def test_bad_input_is_named():
    X, y = separable()
    with pytest.raises(ValueError, match=r"labels \[0, 1, 2\]"):
        hard_margin(X, torch.arange(40) % 3)
    with pytest.raises(ValueError, match="4 outputs"):
        hard_margin(X, y, torch.zeros(4, 5))
    with pytest.raises(ValueError, match="finite"):
        hard_margin(X * math.nan, y)


def test_the_plot_has_a_bar_for_each_support_vector():
    pytest.importorskip("matplotlib").use("Agg")
    X, y = separable()
    result = hard_margin(X, y)
    heights = [bar.get_height() for bar in result.plot().patches]
    assert heights == sorted(result.multipliers.tolist(), reverse=True)
