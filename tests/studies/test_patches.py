"""Composite networks whose slow copy steps at every batch, and the network of Figure 5.1."""

import pytest
import torch
from torch import nn

from tether_studies.patches import FAST, SLOW, Twins, loss_of_both, twins, wide_resnet


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
