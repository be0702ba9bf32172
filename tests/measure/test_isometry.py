"""Jacobians and gradients layer by layer, against whole matrices and products by hand."""

import math

import pytest
import torch
from torch import nn

import tether
from tether import measure


def deep(depth, width=6, gain=1.0, nonlinear=nn.Identity, seed=0):
    torch.manual_seed(seed)
    layers = []
    for _ in range(depth):
        linear = nn.Linear(width, width, bias=False, dtype=torch.float64)
        nn.init.orthogonal_(linear.weight, gain)
        layers += [linear, nonlinear()]
    return nn.Sequential(*layers)


@pytest.fixture(autouse=True)
def own_numbers():
    with torch.random.fork_rng():
        yield


def test_a_product_of_orthogonal_layers_is_an_isometry_and_others_grow_by_a_power():
    x = torch.randn(3, 6, dtype=torch.float64)
    for gain in (1.0, 0.5, 2.0):
        found = measure.jacobian_spectrum(deep(5, gain=gain), x)
        torch.testing.assert_close(found.values, torch.full((3, 6), gain**5, dtype=torch.float64), rtol=1e-12, atol=0)
        assert found.condition == pytest.approx(1)
        assert found.mean_square == pytest.approx(gain**10)


def test_singular_values_of_masks_and_weights_multiplied_by_hand():
    net = deep(3, nonlinear=nn.ReLU)
    x = torch.randn(4, 6, dtype=torch.float64)
    found = measure.jacobian_spectrum(net, x)
    for row, point in zip(found.values, x, strict=True):  # F W F W F W
        J, y = torch.eye(6, dtype=torch.float64), point
        for linear in (net[0], net[2], net[4]):
            y = linear.weight.detach() @ y
            J = torch.diag((y > 0).double()) @ linear.weight.detach() @ J
            y = y.relu()
        torch.testing.assert_close(row, torch.linalg.svdvals(J), rtol=0, atol=1e-12)
    assert found.condition > 1e10  # ReLU loses directions


@pytest.mark.parametrize(("inputs", "out"), [(9, 4), (4, 9)])
def test_lanczos_finds_the_largest_of_the_whole_matrix(inputs, out):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(inputs, 20), nn.Tanh(), nn.BatchNorm1d(20), nn.Linear(20, out)).double()
    x = torch.randn(3, inputs, dtype=torch.float64)
    exact, few = measure.jacobian_spectrum(net, x), measure.jacobian_spectrum(net, x, top=2)
    torch.testing.assert_close(few.values, exact.values[:, :2], rtol=1e-6, atol=0)
    assert exact.exact
    assert not few.exact
    assert math.isnan(few.condition)
    assert exact.shape == (out, inputs)
    assert "the 2 largest singular values" in str(few)


def test_convolutions_and_a_degenerate_largest_value():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    x = torch.randn(2, 1, 4, 4)
    exact = measure.jacobian_spectrum(net, x)
    torch.testing.assert_close(measure.jacobian_spectrum(net, x, top=1).values, exact.values[:, :1], rtol=1e-4, atol=0)
    few = measure.jacobian_spectrum(deep(2), torch.randn(1, 6, dtype=torch.float64), top=3)  # all are 1
    torch.testing.assert_close(few.values, torch.ones(1, 3, dtype=torch.float64), rtol=1e-6, atol=0)


def test_gradients_by_hand_vanish_and_explode():
    x, t = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    net = deep(4)
    found = measure.gradient_norms(net, (x, t), nn.functional.mse_loss)
    for linear, name in zip(net[::2], ("0", "2", "4", "6"), strict=True):
        net.zero_grad()
        nn.functional.mse_loss(net(x), t).backward()
        assert found[name] == pytest.approx(float(linear.weight.grad.norm()), rel=1e-12)
    batches = [(x[:3], t[:3]), (x[3:], t[3:])]
    again = measure.gradient_norms(net, batches, nn.functional.mse_loss)
    assert list(again.norms.values()) == pytest.approx(list(found.norms.values()), rel=1e-12)
    assert found.total == pytest.approx(math.sqrt(sum(x * x for x in found.norms.values())))
    # with y = W_d … W_1 x and W = c·orthogonal, ‖∂(aᵀy)/∂W_ℓ‖ = c^{d−1} |a||x|: it does not depend on ℓ
    one = measure.gradient_norms(deep(4, gain=0.5), (x[:1], t[:1]), lambda y, t: y[0, 0])
    assert one.per_layer == pytest.approx(1)
    assert list(one.norms.values()) == pytest.approx([0.5**3 * float(x[0].norm())] * 4, rel=1e-12)


def test_layers_and_tensors_and_what_matches():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    data = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    layers, tensors = (measure.gradient_norms(net, data, per=per) for per in ("layer", "tensor"))
    assert list(layers.norms) == ["0", "2"]
    assert list(tensors.norms) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert layers["2"] == pytest.approx(math.hypot(tensors["2.weight"], tensors["2.bias"]))
    assert list(measure.gradient_norms(net, data, where="2.*").norms) == ["2"]
    with pytest.raises(ValueError, match="per='net' must be"):
        measure.gradient_norms(net, data, per="net")
    many = tether.Replicas(lambda: nn.Linear(3, 2), 2)
    assert len(measure.gradient_norms(many, data)) == len(measure.jacobian_spectrum(many, data[0])) == 2


def test_what_has_no_jacobian():
    with pytest.raises(TypeError, match="must be a batch of real numbers"):
        measure.jacobian_spectrum(nn.Embedding(3, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="ask for the largest singular values"):
        measure.jacobian_spectrum(nn.Identity(), torch.zeros(1, 9000))
