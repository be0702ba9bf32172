"""Augmentation and the network of fig-4.6."""

import math

import pytest
import torch

from tether_studies.residual import METHODS, Orthogonal, Residual, Shifted


def test_images_are_shifted_and_mirrored_and_nothing_else():
    x = torch.arange(1.0, 65.0).view(1, 1, 8, 8).repeat(40, 2, 1, 1)
    x[:, 1] *= 100
    y = torch.arange(40)
    (images, labels), *rest = Shifted(x, y, 30, seed=0)
    assert [len(images), *(len(batch) for batch, _ in rest)] == [30, 10]
    assert sorted([*labels.tolist(), *rest[0][1].tolist()]) == list(range(40))
    padded = torch.nn.functional.pad(x[0], [1, 1, 1, 1])
    crops = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    known = [*crops, *(crop.flip(2) for crop in crops)]
    seen = [next(k for k, crop in enumerate(known) if torch.equal(crop, image)) for image in images]
    assert len(set(seen)) > 8  # of 18


def test_the_full_network_is_resnet_34():
    with torch.device("meta"):
        net = Residual(64, (3, 4, 6, 3))
    weights = [p for name, p in net.named_parameters() if p.dim() > 1]
    shortcuts = [p for p in weights if p.dim() == 4 and p.shape[-1] == 1]
    assert len(weights) - len(shortcuts) == 34
    assert sum(p.numel() for p in net.parameters()) == 21_282_122  # the usual count for CIFAR-10


@pytest.mark.parametrize("method", METHODS)
def test_the_authors_keep_the_momentum_when_the_step_size_falls(method):
    """As their program: three epochs in which h rises, a tenth of it after each third, γ = −ln 0.9/h."""
    net, config = Residual(4, (1, 1)), Orthogonal(epochs=12, authors=True)
    opt = METHODS[method][0](["body.0.*"])(net, 0)
    seen = []
    for epoch in range(12):
        config.pace(opt, method, epoch)
        for group in opt.param_groups:
            if method == "o-CoLA-ud":
                assert math.exp(-group["friction"] * group["lr"]) == pytest.approx(0.9)
        h = opt.param_groups[0]["lr"]
        seen.append(h * h if method == "o-CoLA-ud" else h)
    falls = [0.1, 0.1] if METHODS[method][1] == 1.0 else [0.01, 0.001]
    assert seen == pytest.approx([0.025, 0.05, 0.075, 0.1, *[falls[0]] * 4, *[falls[1]] * 4])


def test_every_weight_is_orthogonal_but_those_of_the_first_convolution():
    net = Residual(4, (1, 1))
    opt = METHODS["o-CoLA-ud"][0](["body.0.*"])(net, 0)
    bound = {id(p) for group in opt.param_groups if "Orthogonal" in str(group["on"]) for p in group["params"]}
    assert {name for name, p in net.named_parameters() if p.dim() > 1 and id(p) not in bound} == {"body.0.weight"}


def test_only_the_network_computes_in_bfloat16():
    x = torch.randn(4, 3, 16, 16)
    torch.manual_seed(0)
    exact = Residual(8, (1, 1))
    torch.manual_seed(0)
    short = Residual(8, (1, 1), "bfloat16")
    a, b = exact(x), short(x)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert (a - b).abs().max() < 0.05 * a.abs().max()
    b.sum().backward()
    assert {(p.dtype, p.grad.dtype) for p in short.parameters()} == {(torch.float32, torch.float32)}
