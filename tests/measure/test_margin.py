"""Margins of networks, their flow, and homogeneity."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import tether
from tether.measure import hard_margin, homogeneity, margin


def relu_net(bias=False, outputs=3, dtype=torch.float64):
    torch.manual_seed(0)
    widths = (4, 8, 6, outputs)
    layers = [nn.Linear(a, b, bias=bias, dtype=dtype) for a, b in pairwise(widths)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.LeakyReLU(), layers[2])


def points(outputs=3, n=20):
    torch.manual_seed(1)
    return torch.randn(n, 4, dtype=torch.float64), torch.arange(n) % max(outputs, 2)


def literal(net, x, layer):
    """Σ W ∂f/∂W point by point and output by output."""
    rows = []
    for row in x:
        f = net(row[None])[0]
        rows.append(
            [(torch.autograd.grad(out, layer.weight, retain_graph=True)[0] * layer.weight).sum().item() for out in f]
        )
    return torch.tensor(rows, dtype=x.dtype)


def test_every_layer_of_a_relu_net_is_homogeneous():
    net, (x, y) = relu_net(), points()
    result = homogeneity(net, (x, y))
    assert list(result.errors) == ["0", "2", "4"]
    assert result.error < 1e-14
    assert all(degree == pytest.approx(1) for degree in result.degrees.values())
    assert result.holds
    for name in result.errors:
        torch.testing.assert_close(literal(net, x, net.get_submodule(name)), net(x).detach())
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2, bias=False)
    )
    images = torch.randn(5, 1, 6, 6)
    assert homogeneity(conv, (images, torch.zeros(5))).error < 1e-6
    assert homogeneity(conv.bfloat16(), (images.bfloat16(), torch.zeros(5))).error < 1e-6


def test_biases_show_as_errors_of_the_layers_before_them():
    net, (x, y) = relu_net(bias=True), points()
    result = homogeneity(net, [(x[:12], y[:12]), (x[12:], y[12:])])
    f = net(x).detach()
    for name, error in result.errors.items():
        off = (literal(net, x, net.get_submodule(name)) - f).abs().max() / f.abs().max()
        assert error == pytest.approx(off.item())
        assert error > 1e-2
    assert result.errors["4"] == pytest.approx((net[4].bias.abs().max() / f.abs().max()).item())
    assert not result.holds
    squared = homogeneity(nn.Sequential(*[nn.Linear(4, 4, bias=False)] * 2), (x.float(), y))
    assert squared.degrees == {"0": pytest.approx(2)}  # one layer, used twice


def test_margins_of_several_classes_are_to_the_next_best():
    net = nn.Linear(3, 3, bias=False)
    net.weight.data = 2 * torch.eye(3)
    x = torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 4.0], [5.0, 5.0, 1.0], [-3.0, -5.0, -4.0]])
    result = margin(net, (x, torch.tensor([0, 1, 0, 0])))
    assert result.margins.tolist() == [4, -6, 0, 2]
    assert result.margin == -6
    assert result.errors == 2
    assert result.norms == {"weight": pytest.approx(2 * math.sqrt(3))}
    assert result.normalised == pytest.approx(-6 / (2 * math.sqrt(3)))
    torch.testing.assert_close(result.directions["weight"], torch.eye(3).double() / math.sqrt(3))
    assert "2 of 4 points wrong" in str(result)


def test_stretched_layers_have_the_same_normalised_margin():
    net, data = relu_net(), points()
    before = margin(net, data)
    with torch.no_grad():
        net[0].weight.mul_(3)
        net[4].weight.div_(7)
    after = margin(net, data)
    assert after.normalised == pytest.approx(before.normalised)
    assert after.margin == pytest.approx(before.margin * 3 / 7)
    assert after.product == pytest.approx(before.product * 3 / 7)
    assert "not homogeneous" not in str(after)
    assert "not homogeneous" in str(margin(relu_net(bias=True), data))


def test_of_a_linear_model_the_best_normalised_margin_is_the_hard_margin():
    torch.manual_seed(0)
    x = torch.randn(20, 4, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    best = hard_margin(x, y)
    net = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    net.weight.data = 5 * best.weight[None]
    assert margin(net, (x, y)).normalised == pytest.approx(best.margin)
    assert margin(net, (x, 2 * y - 1)).normalised == pytest.approx(best.margin)


def test_the_flow_splits_into_norms_and_directions():
    """Against a small step of gradient descent; and ρ_k dρ_k/dt is the same for all layers of a homogeneous net."""
    net, data = relu_net(outputs=1), points(outputs=1)
    y = 2.0 * data[1] - 1

    def exponential(f, target):
        return torch.exp(-(2.0 * target - 1) * f[:, 0]).mean()

    result = margin(net, data, exponential)
    f = net(data[0])[:, 0].detach()
    common = (y * f * torch.exp(-y * f)).mean().item()
    for name in result.norms:
        assert result.norms[name] * result.growth[name] == pytest.approx(common)
    h = 1e-6
    exponential(net(data[0]), data[1]).backward()
    with torch.no_grad():
        for w in net.parameters():
            w -= h * w.grad
    after = margin(net, data, exponential)
    for name in result.norms:
        assert (after.norms[name] - result.norms[name]) / h == pytest.approx(result.growth[name], rel=1e-3)
        turned = (after.directions[name] - result.directions[name]).norm().item() / h
        assert turned == pytest.approx(result.turning[name], rel=1e-3)


def test_the_default_loss_of_one_output_is_logistic():
    net, data = relu_net(outputs=1), points(outputs=1)
    logistic = margin(net, data)
    other = margin(net, data, lambda f, t: nn.functional.binary_cross_entropy_with_logits(f[:, 0], t.double()))
    assert logistic.growth == pytest.approx(other.growth)


def test_frozen_layers_batches_dictionaries_and_replicas():
    net, (x, y) = relu_net(), points()
    net[2].weight.requires_grad_(False)
    whole = margin(net, (x, y))
    assert whole.growth["2"] == whole.turning["2"] == 0
    assert whole.norms["2"] > 0
    parts = margin(net, iter([(x[:7], y[:7]), (x[7:], y[7:])]))
    torch.testing.assert_close(parts.margins, whole.margins)
    assert parts.growth == pytest.approx(whole.growth)
    asked = margin(net, [({"input": x}, y)])
    torch.testing.assert_close(asked.margins, whole.margins)
    ens = tether.Replicas(lambda: nn.Linear(4, 3, dtype=torch.float64), n=3)
    assert [r.margin for r in margin(ens, (x, y))] == [margin(ens[i], (x, y)).margin for i in range(3)]
    assert len(homogeneity(ens, (x, y))) == 3


def test_bad_input_is_named():
    net, (x, y) = relu_net(), points()
    with pytest.raises(ValueError, match="loss is nan"):
        margin(net, (x * math.nan, y))
    with pytest.raises(ValueError, match="not finite"):
        homogeneity(net, (x * math.nan, y))
    with pytest.raises(ValueError, match="one whole number for each point"):
        margin(net, (x, y.double()))
    with pytest.raises(ValueError, match=r"labels \[0, 1, 2\]"):
        margin(relu_net(outputs=1), (x, torch.arange(20) % 3))
    with torch.no_grad():
        net[2].weight.zero_()
    with pytest.raises(ValueError, match="layer '2' is zero"):
        margin(net, (x, y))
    with pytest.raises(ValueError, match="no layer"):
        homogeneity(nn.BatchNorm1d(4), (x, y))


def test_plots_show_the_numbers():
    pytest.importorskip("matplotlib").use("Agg")
    result = margin(relu_net(), points())
    line = result.plot().lines[0]
    assert line.get_ydata()[0] == pytest.approx(result.normalised)
    bars = homogeneity(relu_net(bias=True), points())
    assert [bar.get_height() for bar in bars.plot().patches] == pytest.approx(list(bars.errors.values()))
