"""Surfaces through states, random directions, and other starts."""

import copy

import pytest
import torch
from torch import nn

import tether
from tether.measure import between, linear_path, random_directions, random_labels, start_at_barrier, surface, transplant

mse = nn.functional.mse_loss


def two_weights():
    """y = w₀ x₀ + w₁ x₁ on the two unit vectors with targets 0: the loss is (w₀² + w₁²)/2."""
    return nn.Linear(2, 1, bias=False).double(), (torch.eye(2).double(), torch.zeros(2, 1).double())


def at(*weights):
    return {"weight": torch.tensor([weights]).double()}


def test_a_surface_fans_out_from_the_start_to_the_line_between_the_ends():
    net, data = two_weights()
    found = surface(net, at(2.0, 2.0), at(0.0, 2.0), at(2.0, 0.0), data, 3, 5, loss=mse)
    assert (found.alphas.tolist(), found.betas.tolist()) == ([0, 0.5, 1], [0, 0.25, 0.5, 0.75, 1])
    for i, α in enumerate(found.alphas.tolist()):
        for j, β in enumerate(found.betas.tolist()):
            w = (2 - 2 * α * β, 2 - 2 * α * (1 - β))
            assert found.losses[i, j].item() == pytest.approx((w[0] ** 2 + w[1] ** 2) / 2)
    assert found.finite
    assert str(found) == "3 × 5 points over start and ends: losses from 1 to 4"


def chain():
    return nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4)).double()


def test_fast_and_whole_agree_and_edges_are_lines():
    torch.manual_seed(0)
    start, first, second = (copy.deepcopy(chain().state_dict()) for _ in range(3))
    first["1.running_mean"] += 1
    data = torch.randn(30, 2, 4).double(), torch.randint(4, (30,))
    net = chain()
    fast, whole = (
        surface(net, start, first, second, data, 4, [0, 0.3, 1], chunk=8, fast=fast) for fast in (True, False)
    )
    assert torch.allclose(fast.losses, whole.losses, rtol=1e-12)
    assert torch.allclose(fast.accuracies, whole.accuracies)
    for column, end in ((0, second), (2, first)):
        assert torch.allclose(fast.losses[:, column], linear_path(net, start, end, data, 4).losses, rtol=1e-12)
    anew = surface(net, start, first, second, data, 3, 2, batchnorm="recalibrate")
    for column, end in ((0, second), (1, first)):
        line = linear_path(net, start, end, data, 3, batchnorm="recalibrate")
        assert torch.allclose(anew.losses[:, column], line.losses, rtol=1e-12)
    fixed = surface(net, start, first, second, data, 2, 2, batchnorm="end")
    both = {**second, **{name: first[name] for name in first if "running" in name}}
    assert fixed.losses[1, 0].item() == pytest.approx(linear_path(net, start, both, data, 2).losses[1].item())


def test_random_directions_have_the_norms_of_the_filters_and_leave_zeros_alone():
    torch.manual_seed(0)
    state = copy.deepcopy(nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(4, 5)).state_dict())
    state["0.bias"].zero_()
    state["2.weight"][1] = 0.0
    for d in random_directions(state, seed=3):
        assert set(d) == {"0.weight", "2.weight"}
        for name, x in d.items():
            assert torch.allclose(x.flatten(1).norm(dim=1), state[name].flatten(1).norm(dim=1))
    scaled, other = random_directions(state, seed=3, vectors="scaled")
    assert set(scaled) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert scaled["0.bias"].tolist() == [0, 0, 0]  # no 0/0
    assert scaled["2.bias"].norm().item() == pytest.approx(state["2.bias"].norm().item(), rel=1e-6)
    assert not torch.equal(scaled["0.weight"], other["0.weight"])
    assert torch.equal(random_directions(state, seed=3)[0]["0.weight"], random_directions(state, seed=3)[0]["0.weight"])
    with pytest.raises(ValueError, match="vectors='all' must be one of 'fixed', 'scaled'"):
        random_directions(state, vectors="all")


def test_a_surface_along_random_directions_is_the_loss_at_start_plus_steps():
    net, data = two_weights()
    start = at(3.0, 4.0)
    found = surface(net, start, None, None, data, 5, 3, loss=mse, seed=2)
    d = [direction["weight"] for direction in random_directions(start, seed=2)]
    assert [x.norm().item() for x in d] == pytest.approx([5, 5])
    for i, α in enumerate(found.alphas.tolist()):
        for j, β in enumerate(found.betas.tolist()):
            w = start["weight"] + α * d[0] + β * d[1]
            assert found.losses[i, j].item() == pytest.approx(w.square().sum().item() / 2)
    assert found.alphas.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert found.losses[2, 1] == 12.5  # the middle is the start itself


def test_tied_tensors_take_the_same_step():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).double()
    net[1].weight = net[0].weight
    data = torch.eye(3).double(), torch.zeros(3, 3).double()
    found = surface(net, copy.deepcopy(net.state_dict()), None, None, data, [0, 0.5], [0], loss=mse, seed=4)
    w = net[0].weight + 0.5 * random_directions(net.state_dict(), seed=4)[0]["0.weight"]
    assert found.losses[1, 0].item() == pytest.approx((w @ w).square().mean().item())


def test_surfaces_of_replicas_bad_input_and_pictures():
    ens = tether.Replicas(lambda: nn.Linear(2, 1, bias=False).double(), n=2)
    start, end = ens.state_dict(), {name: x + 1 for name, x in ens.state_dict().items()}
    _, data = two_weights()
    found = surface(ens, start, end, end | {"weight": start["weight"] - 1}, data, 3, 2, loss=mse)
    assert [x.losses[0, 0].item() for x in found] == pytest.approx(
        [w.square().sum().item() / 2 for w in start["weight"]]
    )
    net, data = two_weights()
    with pytest.raises(ValueError, match="both ends or neither"):
        surface(net, at(1, 1), at(0, 1), None, data)
    with pytest.raises(ValueError, match=r"second is no state of this Linear: 'weight' is \(1, 2\) in the model"):
        surface(net, at(1, 1), at(0, 1), at(0, 1, 2), data)
    with pytest.raises(ValueError, match="betas=0 must be 1 or more"):
        surface(net, at(1, 1), at(0, 1), at(1, 0), data, betas=0)
    torn = surface(net, at(1, 1), at(torch.inf, 1), at(1, 0), data, 2, 2, loss=mse)
    assert not torn.finite
    assert str(torn) == "2 × 2 points over start and ends: 1 losses are not finite"
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    assert found[0].plot().get_xlabel() == "α"


def test_a_start_at_the_barrier_is_its_top():
    net, data = two_weights()
    start, end = at(-1.0, 1.0), at(1.0, 1.0)
    flipped = lambda out, y: 1 - mse(out, y)  # noqa: E731  a hill with its top at w₀ = 0
    path = linear_path(net, start, end, data, 21, loss=flipped)
    top = start_at_barrier(path, start, end)
    assert top["weight"].tolist() == [[pytest.approx(0.0), 1.0]]
    assert start_at_barrier(path, start, end, shift=0.1)["weight"].tolist() == [[pytest.approx(0.2), 1.0]]
    assert start_at_barrier(path, start, end, shift=-3)["weight"].tolist() == start["weight"].tolist()
    down = linear_path(net, start, at(0.0, 0.0), data, 5, loss=mse)
    with pytest.raises(
        ValueError, match=r"no barrier to start at: everything, 5 points: .*between\(start, end, alpha\)"
    ):
        start_at_barrier(down, start, end)
    copied = between(start, end, 0.0)
    copied["weight"].zero_()
    assert start["weight"].tolist() == [[-1.0, 1.0]]


def test_transplants_take_what_is_named_and_share_nothing():
    trained, initial = ({f"{k}.{n}": torch.full((2,), v) for k in "01" for n in ("weight", "bias")} for v in (1.0, 2.0))
    found = transplant(trained, initial, ["0.*", "*.bias"])
    assert {name: x[0].item() for name, x in found.items()} == {"0.weight": 2, "0.bias": 2, "1.weight": 1, "1.bias": 2}
    found["1.weight"].zero_()
    found["0.weight"].zero_()
    assert trained["1.weight"].tolist() == [1, 1]
    assert initial["0.weight"].tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"'7\.\*' matches no tensor"):
        transplant(trained, initial, "7.*")


def test_random_labels_are_uniform_and_named_by_their_seed():
    targets = torch.arange(30_000) % 3
    drawn = random_labels(targets, seed=1)
    counts = torch.bincount(drawn, minlength=3)
    assert (counts - 10_000).abs().max() < 5 * (30_000 * 2 / 9) ** 0.5  # five standard errors
    assert ((drawn == targets).double().mean() - 1 / 3).abs() < 5 * (2 / 9 / 30_000) ** 0.5
    assert torch.equal(drawn, random_labels(targets, seed=1))
    assert not torch.equal(drawn, random_labels(targets, seed=2))
    tenth = random_labels(targets, classes=10, fraction=0.1)
    assert 0 < (tenth != targets).sum() <= 3000
    assert tenth.max() == 9
    assert torch.equal(random_labels(targets, fraction=0.0), targets)
    assert targets.tolist()[:4] == [0, 1, 2, 0]
    with pytest.raises(ValueError, match="fraction=2"):
        random_labels(targets, fraction=2)
    with pytest.raises(TypeError, match="float32, no classes"):
        random_labels(targets.float())
