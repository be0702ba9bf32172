"""Minima with weight decay of networks with softened units."""

import torch

from tether_studies.degenerate_minima import newton, softened, split_unit


def test_newton_leaves_a_saddle_for_the_minimum():
    def loss(w):  # minima at (0, ±1), a saddle at 0
        return w[0] ** 2 + (w[1] ** 2 - 1) ** 2

    w, slope, values = newton(torch.zeros(2).double(), loss, 0.1, 50)
    torch.testing.assert_close(w.abs(), torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(values, torch.tensor([2.0, 8.0]).double())
    assert slope < 1e-7


def test_a_unit_in_two_of_one_direction_has_the_loss_of_one():
    torch.manual_seed(0)
    w, data = torch.randn(4 * 3 + 4).double(), (torch.randn(6, 3).double(), torch.randn(6, 1).double())
    w[3:6], w[13] = 0.0, 0.0  # an idle unit
    hidden = w[:12].view(4, 3)
    by_hand = ((data[0] @ hidden.mT).relu() @ w[12:] - data[1][:, 0]).square().mean() + 0.05 * w.square().sum()
    torch.testing.assert_close(softened(w, data, 0.1, 1e9), by_hand)
    assert torch.equal(split_unit(w, 4, 0.0), w)
    torch.testing.assert_close(softened(split_unit(w, 4, 0.6), data, 0.1, 1e9), by_hand)
    assert (softened(split_unit(w, 4, 0.6), data, 0.1, 3.0) - softened(w, data, 0.1, 3.0)).abs() > 1e-3
