"""Data in every form, and models left as they were."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tether.measure.batches import batches, loss_of, mean_loss
from tether.measure.untouched import untouched


def problem(n=10):
    torch.manual_seed(0)
    return nn.Linear(3, 2), torch.randn(n, 3), torch.randint(2, (n,))


class Hugging(nn.Module):
    """Takes keywords and answers with an object, as Hugging Face's models do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs, labels=None):
        logits = self.linear(inputs)
        loss = None if labels is None else 2 * nn.functional.cross_entropy(logits, labels)
        return type("Output", (), {"logits": logits, "loss": loss})()


def test_mean_loss_is_that_of_all_points_whatever_the_batches():
    net, x, y = problem()
    exact = nn.functional.cross_entropy(net(x), y).item()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)  # 4, 4, 2
    for data in (
        (x, y),
        [(x[:7], y[:7]), (x[7:], y[7:])],
        loader,
        iter([(x, y)]),
        ((x[i : i + 1], y[i : i + 1]) for i in range(10)),
    ):
        found = batches(data)
        assert [mean_loss(net, found) for _ in range(2)] == pytest.approx([exact] * 2, rel=1e-6)
    assert [batch.rows for batch in batches((x, y), chunk=4)] == [4, 4, 2]


def test_dictionaries_are_keywords_and_the_model_may_bring_its_loss():
    _, x, y = problem()
    net = Hugging()
    exact = nn.functional.cross_entropy(net.linear(x), y).item()
    (batch,) = batches({"inputs": x, "labels": y})
    assert loss_of(net, batch).item() == pytest.approx(2 * exact)
    assert loss_of(net, batch, nn.functional.cross_entropy).item() == pytest.approx(exact)
    (pair,) = batches([({"inputs": x}, y)])
    assert loss_of(net, pair).item() == pytest.approx(exact)
    with pytest.raises(ValueError, match="'labels'"):
        loss_of(net, next(iter(batches([{"inputs": x}]))))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (torch.zeros(3), "pair"),
        (7, "got int"),
        ([], "no batch"),
        ([3], "neither a pair"),
        ((torch.zeros(3, 2), torch.zeros(2)), "3 inputs but 2"),
    ],
)
def test_bad_data_are_named(data, says):
    with pytest.raises((TypeError, ValueError), match=says):
        list(batches(data))


def test_untouched_puts_everything_back_even_after_an_error():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))
    net[2].eval()
    net[0].weight.requires_grad_(False)
    net(torch.randn(5, 3)).sum().backward()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    grads = {name: None if x.grad is None else (id(x.grad), x.grad.clone()) for name, x in net.named_parameters()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with pytest.raises(KeyError), untouched(net, train=True):  # noqa: PT012
        assert net[2].training
        for x in net.parameters():
            x.requires_grad_(True)
        net(torch.randn(5, 3)).square().sum().backward()
        torch.optim.SGD(net.parameters(), lr=1.0).step()
        np.random.rand()
        random.random()
        raise KeyError
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    for name, x in net.named_parameters():
        assert x.requires_grad == (name != "0.weight")
        assert (x.grad is None) == (grads[name] is None)
        if x.grad is not None:
            assert id(x.grad) == grads[name][0]
            assert torch.equal(x.grad, grads[name][1])
    assert [module.training for module in net] == [True, True, False, True]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
