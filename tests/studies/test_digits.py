"""What path-sgd, hidden-units and fig-5.7 compute, on a few images of MNIST."""

import math
import os
from functools import partial

import pytest
import torch

import tether
from tether_studies import hidden_units, path_sgd, random_subsets
from tether_studies.images import digits, errors


@pytest.fixture
def mnist(monkeypatch):
    """The first 600 training and 200 test images."""
    if "TETHER_DATA" not in os.environ:
        pytest.skip("the real sets lie elsewhere")
    few = {train: [x[:n] for x in tether.data.mnist(train=train)] for train, n in ((True, 600), (False, 200))}
    monkeypatch.setattr(tether.data, "mnist", lambda train=True: few[train])
    path_sgd.PathSGD.sets.cache_clear()
    yield few
    path_sgd.PathSGD.sets.cache_clear()


def test_every_replica_has_images_of_its_own(mnist):
    (x, y), test = digits(3, 200, 150)
    pixels, labels = mnist[True]
    assert torch.equal(x[1], pixels[200:400].flatten(1) / 255)
    assert torch.equal(y.flatten(), labels)
    assert len(test[0]) == 150
    with pytest.raises(ValueError, match="there are 600, enough for 2 runs"):
        digits(3, 250)


def test_errors_of_nets_that_always_say_three():
    nets = tether.Replicas(lambda: torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Dropout(0.9)), 2)
    with torch.no_grad():
        for name, p in nets.named_parameters():
            p.zero_()
            if name.endswith("bias"):
                p[:, 3] = 1.0
    x = torch.zeros(4, 2)
    assert errors(nets, x, torch.tensor([3, 3, 3, 0])).tolist() == [25.0, 25.0]
    own = torch.tensor([[3, 3, 3, 3], [0, 1, 2, 3]])
    assert errors(nets, x.expand(2, 4, 2), own).tolist() == [0.0, 75.0]
    assert nets.training


def test_path_sgd_goes_the_same_way_from_both_starts_and_sgd_does_not(mnist):
    study = path_sgd.PathSGD(nodes=16, images=300, tests=200, epochs=2, short=1)
    for dropout in path_sgd.DROPOUTS:
        found = {
            (method, start): study.piece((dropout, start, method), seed=1)
            for method in ("SGD", "Path-SGD")
            for start in path_sgd.STARTS
        }
        losses = {key: [row[0] for row in one["curve"]] for key, one in found.items()}
        assert losses["SGD", "balanced"][0] == pytest.approx(losses["SGD", "unbalanced"][0], abs=2e-5)  # one function
        assert losses["Path-SGD", "balanced"] == pytest.approx(losses["Path-SGD", "unbalanced"], rel=1e-2)
        sizes = {key: one["step size"] for key, one in found.items()}
        assert sizes["Path-SGD", "balanced"] == sizes["Path-SGD", "unbalanced"]
        assert sizes["SGD", "balanced"] > 10 * sizes["SGD", "unbalanced"]


def test_the_search_finds_the_step_size_it_should():
    asked = []

    def trained(h, length):
        """Lowest at 0.03; what is larger than 0.5 ends early, at a loss of 0."""
        asked.append((h, length))
        loss = abs(math.log(h / 0.03))
        return [[0.0]] * length + ([[loss]] if h < 0.5 else [])

    h, curve = path_sgd.search(trained, short=1, epochs=4)
    assert h == pytest.approx(10**-1.5)
    assert len(curve) == 5
    assert [length for _, length in asked] == [1] * 6 + [4] * 3
    assert [h for h, _ in asked[6:]] == pytest.approx([10**-2.5, 0.01, 10**-1.5])


def test_hidden_units_fit_their_images(mnist):
    study = hidden_units.HiddenUnits(runs=2, images=200, tests=200, epochs=60)
    for H in (16, 32):
        found = study.piece(H, seed=0)
        assert found["training"].max() <= 0.5  # one of 200
        assert all(10 < best <= end < 60 for best, end in zip(found["best"], found["test"], strict=True))


def test_without_the_clock_sleepers_stay_where_they_were():
    net = random_subsets.perceptron(50, None)
    start = {name: param.detach().clone() for name, param in net.named_parameters()}
    opt, forgetful = tether.methods.sgd(net, lr=0.1), random_subsets.Forgetful(net)
    forgetful.sleep()
    asleep = {name: param.detach() == 0 for name, param in net.named_parameters()}
    for name, share in random_subsets.SHARES.items():
        spread = (share * (1 - share) / asleep[name].numel()) ** 0.5
        assert abs(float(asleep[name].double().mean()) - share) < 4 * spread
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    opt.step()
    forgetful.wake()
    for name, param in net.named_parameters():
        assert torch.equal(param, torch.where(asleep[name], start[name], start[name] - 0.1))


def test_random_subsets_are_tested_when_all_are_awake(mnist, monkeypatch):
    seen = []

    def watched(nets, *data):
        seen.append(min(float((param != 0).double().mean()) for param in nets.parameters()))
        return errors(nets, *data)

    monkeypatch.setattr(random_subsets, "errors", watched)
    study = random_subsets.RandomSubsets(runs=2, nodes=10, images=200, tests=200, epochs=10)
    piece = partial(study.piece, seed=0)
    assert piece("random subset, k = 3", 3)["steps"] == list(range(3, 40, 4))
    piece(random_subsets.FORGETFUL, 0)
    assert len(seen) > 10
    assert min(seen) == 1
