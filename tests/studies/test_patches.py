"""Composite networks whose slow copy steps at every batch, and the network of Figure 5.1."""

import numpy as np
import pytest
import torch
from torch import nn

from tether_studies import find
from tether_studies.patches import FAST, METHODS, READING, SETS, SLOW, Twins, loss_of_both, patched, twins, wide_resnet


def test_both_copies_step_at_every_batch_and_are_merged_after_k():
    line = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(line.weight)
    net = Twins(line)
    opt = twins(net, 0, momentum=0.0)
    for step in range(1, 26):
        opt.zero_grad()
        net(torch.ones(4, 1)).mean(1).sum().backward()  # the gradient of each is 1
        opt.step()
        if step == 24:
            assert net.fast.weight.item() == pytest.approx(-24 * FAST)
            assert net.slow.weight.item() == pytest.approx(-24 * SLOW)
    assert net.fast.weight.item() == net.slow.weight.item() == pytest.approx(-25 * (FAST + SLOW) / 2)
    assert torch.equal(net.eval()(torch.ones(2, 1)), net.fast(torch.ones(2, 1)))


def test_each_copy_has_the_gradient_of_its_own_loss():
    torch.manual_seed(0)
    net, x, y = Twins(nn.Linear(3, 4)), torch.randn(5, 3), torch.randint(4, (5,))
    loss_of_both(net(x), y).backward()
    alone = nn.functional.cross_entropy(net.slow(x), y)
    (expected,) = torch.autograd.grad(alone, net.slow.weight)
    torch.testing.assert_close(net.slow.weight.grad, expected)


def test_the_network_is_wrn_16_1():
    net = wide_resnet(16)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == 14  # with two shortcuts of 1 × 1 it has 16 layers
    assert sum(p.numel() for p in net.parameters()) == 175_066
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("size", [16, 32])
def test_patches_lie_in_the_middle_and_tell_the_class(size):
    x, y, draw = torch.ones(6, 3, size, size), torch.tensor([0, 0, 0, 1, 1, 1]), torch.Generator().manual_seed(1)
    seen = patched(x.clone(), y, torch.zeros(6, dtype=torch.bool), 3, draw) - x
    at = (size - 7) // 2
    inside = seen[:, :, at : at + 7, at : at + 7]
    assert seen.abs().sum().item() == pytest.approx(inside.abs().sum().item())
    z = 1.25 * torch.randn(3, 7, 7, generator=torch.Generator().manual_seed(3))
    own = (inside - z).flatten(1)  # ±ζ of the class, each entry within 0.1
    assert own.abs().max() <= 0.1 + 1e-6
    for i, j in ((0, 1), (0, 2), (3, 4), (3, 5)):
        assert torch.allclose(own[i], own[j], atol=1e-6) or torch.allclose(own[i], -own[j], atol=1e-6)
    assert not torch.allclose(own[0].abs(), own[3].abs(), atol=1e-2)


def test_nothing_is_said_about_patches_that_nobody_reads():
    config = find("fig-5.1").at("default")

    def claims(**read):
        """Judged for accuracies of patches by method, 10 % if nothing is said; of clean images all have 50 %."""
        ends = {name: read.get(name.split()[0], 10.0) + np.arange(4) / 10 for name in METHODS}
        results = {x: dict.fromkeys(SETS, np.array([[50.0, 51, 52, 53]])) | {SETS[2]: ends[x][None]} for x in METHODS}
        return [one.verdict for _, one in config.claims(results)][1:3]

    assert READING.startswith("patches")
    assert claims(patches=15.0, small=60.0) == ["not decided"] * 2  # not even those of nothing but patches
    assert claims(patches=90.0) == ["not decided"] * 2
    assert claims(patches=90.0, small=60.0) == ["held", "not decided"]
    assert claims(patches=90.0, small=60.0, large=61.0) == ["not held", "not held"]


def test_claims_about_methods_that_were_not_run_are_not_decided():
    study = find("fig-5.1")
    config = study.at("default", methods=("small step",), runs=2)
    claims = list(study.claims({"small step": {kind: np.ones((3, 2)) for kind in SETS}}, config))
    assert {(one.measured, one.verdict) for one in claims} == {("not run", "not decided")}
