"""Lines between states, against the literal loop, closed forms, and every kind of model and data."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tether
from tether.measure import along, between, distance, layer_paths, linear_path
from tether.measure.shape import classify

mse = nn.functional.mse_loss


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 5), nn.Tanh()), nn.Linear(5, 3))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 2, bias=False), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip


class Branch(nn.Module):
    """No chain: a sum of two ways, with a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, x):
        return self.one(x).tanh() + self.other(x)[:, self.order]


class InPlace(nn.Module):
    """Overwrites what it is given."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x.mul_(self.scale)


NETS = {
    "perceptron": (perceptron, (6,)),
    "convolutional": (convolutional, (2, 4, 4)),
    "branch": (Branch, (6,)),
    "in place": (lambda: nn.Sequential(InPlace(), nn.Linear(6, 3), InPlace()), (6,)),
    "shared": (
        lambda: (lambda a: nn.Sequential(nn.Linear(6, 6), a, nn.Linear(6, 6), a, nn.Linear(6, 3)))(nn.ReLU()),
        (6,),
    ),
}


def problem(name, rows=40, dtype=torch.float64):
    """A network, two states of it with statistics of their own, and data."""
    build, shape = NETS[name]
    torch.manual_seed(1)
    states = []
    for _ in range(2):
        net = build().to(dtype)
        for p in net.parameters():
            nn.init.normal_(p, std=0.7)
        net.train()
        net(3 * torch.rand(16, *shape, dtype=dtype))
        states.append(copy.deepcopy(net.state_dict()))
    return build().to(dtype), *states, (torch.randn(rows, *shape, dtype=dtype), torch.randint(3, (rows,)))


def literal(net, start, end, data, alphas, moving=None):
    """Load every state, run the whole network on all rows at once."""
    net = copy.deepcopy(net).eval()
    losses = []
    for a in alphas:
        state = {}
        for name, x in end.items():
            goes = x.is_floating_point() and (moving is None or name in moving)
            state[name] = (1 - a) * start[name] + a * x if goes else x
        net.load_state_dict(state)
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(net(data[0].clone()), data[1]).item())
    return losses


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_a_line_is_what_the_literal_loop_finds(monkeypatch, name, fast, kept):
    """Whether the states of all points are kept for the next batch, or one is made in the memory of another."""
    if not kept:
        monkeypatch.setattr(along, "ROOM", 0)
    net, start, end, data = problem(name)
    path = linear_path(net, start, end, data, points=7, chunk=16, fast=fast)
    assert path.alphas.tolist() == pytest.approx([k / 6 for k in range(7)])
    assert path.losses.tolist() == pytest.approx(literal(net, start, end, data, path.alphas.tolist()), rel=1e-12)
    for state, loss, accuracy in (
        (start, path.losses[0], path.accuracies[0]),
        (end, path.losses[-1], path.accuracies[-1]),
    ):
        net.load_state_dict(state)
        out = net.eval()(data[0].clone())
        assert loss.item() == pytest.approx(nn.functional.cross_entropy(out, data[1]).item(), rel=1e-12)
        assert accuracy.item() == pytest.approx((out.argmax(1) == data[1]).double().mean().item(), abs=1e-12)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_layers_go_one_at_a_time_with_the_others_at_their_end(name, fast):
    net, start, end, data = problem(name)
    paths = layer_paths(net, start, end, data, points=5, chunk=16, fast=fast)
    layers = {key.rpartition(".")[0] or key for key in end}
    assert set(paths) == layers
    for layer, path in paths.items():
        moving = {key for key in end if key.startswith(layer)}
        alphas = path.alphas.tolist()
        assert path.losses.tolist() == pytest.approx(literal(net, start, end, data, alphas, moving), rel=1e-12)
        assert path.moving == layer


def test_hooks_are_run():
    net, start, end, data = problem("perceptron")
    net[0].register_forward_hook(lambda module, args, out: 2 * out)
    path = linear_path(net, start, end, data, points=3)
    net.load_state_dict(end)
    assert path.losses[-1].item() == pytest.approx(nn.functional.cross_entropy(net(data[0]), data[1]).item(), rel=1e-12)
    net[0]._forward_hooks.clear()
    assert linear_path(net, start, end, data, points=3).losses[-1] != path.losses[-1]


def test_single_precision_is_as_good_as_the_literal_loop_and_half_works():
    net, start, end, data = problem("convolutional", dtype=torch.float32)
    path = linear_path(net, start, end, data, points=11)
    assert path.losses.tolist() == pytest.approx(literal(net, start, end, data, path.alphas.tolist()), abs=1e-6)
    net, start, end, data = problem("perceptron", dtype=torch.bfloat16)
    rough, exact = (
        linear_path(net.to(t), start, end, (data[0].to(t), data[1]), points=5) for t in (torch.bfloat16, torch.float64)
    )
    assert rough.losses.tolist() == pytest.approx(exact.losses.tolist(), rel=0.03)


def test_groups_are_layers_blocks_tensors_or_globs():
    net, start, end, data = problem("convolutional")

    def names(groups):
        return list(layer_paths(net, start, end, data, 3, groups))

    assert names("layers") == ["0", "1", "4", "8"]
    assert names("tensors") == list(end)
    net, start, end, data = problem("perceptron")
    assert names("layers") == ["0", "2.0", "3"]
    assert names("blocks") == ["0", "2", "3"]
    assert names({"biases": "*bias", "ends": ["0.*", "3.*"]}) == ["biases", "ends"]
    with pytest.raises(ValueError, match=r"'5\.\*' matches no tensor.*'0\.weight'"):
        names({"x": "5.*"})
    with pytest.raises(ValueError, match="groups='layer'"):
        names("layer")
    with pytest.raises(ValueError, match="no running statistics"):
        names("statistics")


def test_tied_tensors_move_together():
    net, start, end, data = problem("perceptron")
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    net[2].weight = net[0].weight
    end = copy.deepcopy(net.state_dict())
    start = {name: torch.randn_like(x) for name, x in end.items()}
    start["2.weight"] = start["0.weight"]
    paths = layer_paths(net, start, end, data, 5, "tensors")
    assert list(paths) == ["0.weight", "0.bias", "2.bias", "3.weight", "3.bias"]
    both = literal(net, start, end, data, [0, 0.25, 0.5, 0.75, 1], {"0.weight", "2.weight"})
    assert paths["0.weight"].losses.tolist() == pytest.approx(both, rel=1e-12)


def test_batchnorm_on_the_line_at_its_end_alone_or_gathered_anew():
    # y = (x − μ)/√(v + ε) with no other parameters: the losses say what the statistics were.
    net = nn.Sequential(nn.BatchNorm1d(1, affine=False, eps=1e-30)).double()
    names = ("0.running_mean", "0.running_var", "0.num_batches_tracked")
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    start = dict(zip(names, (zero, one, torch.tensor(0)), strict=True))
    end = dict(zip(names, (4 * one, 3 * one, torch.tensor(8)), strict=True))
    data = torch.tensor([[1.0], [3.0]]).double(), torch.zeros(2, 1).double()

    def losses(**options):
        return linear_path(net, start, end, data, points=3, loss=mse, **options).losses.tolist()

    def square(m, v):
        return ((1 - m) ** 2 + (3 - m) ** 2) / 2 / v

    assert losses() == pytest.approx([square(0, 1), square(2, 2), square(4, 3)])
    assert losses(batchnorm="end") == pytest.approx([square(4, 3)] * 3)
    assert losses(batchnorm="recalibrate") == pytest.approx([square(2, 2)] * 3)  # variance over n − 1
    other = torch.tensor([[0.0], [2.0], [4.0]]).double(), torch.zeros(3, 1).double()
    assert losses(batchnorm="recalibrate", calibration=other) == pytest.approx([square(2, 4)] * 3)
    twice = [other, (other[0] + 2, other[1])]  # means 2 and 4, both of variance 4: the mean of each over batches
    assert losses(batchnorm="recalibrate", calibration=iter(twice)) == pytest.approx([square(3, 4)] * 3)
    (alone,) = layer_paths(net, start, end, data, 3, "statistics", loss=mse).values()
    assert alone.losses.tolist() == pytest.approx(losses())
    with pytest.raises(ValueError, match="batchnorm='mean' must be one of 'lerp', 'end', 'recalibrate'"):
        losses(batchnorm="mean")


def test_recalibrated_statistics_are_those_of_the_network_at_each_point():
    net, start, end, data = problem("convolutional")
    path = linear_path(net, start, end, data, points=3, batchnorm="recalibrate", chunk=10)
    for alpha, loss in zip(path.alphas.tolist(), path.losses.tolist(), strict=True):
        net.load_state_dict(between(start, end, alpha))
        net.eval()[1].train()
        net[1].momentum = 1.0
        net(data[0])
        assert loss == pytest.approx(nn.functional.cross_entropy(net.eval()(data[0]), data[1]).item(), rel=1e-12)


def test_loaders_iterators_and_binary_targets_give_the_same():
    net, start, end, (x, y) = problem("perceptron")
    whole = linear_path(net, start, end, (x, y), points=4)
    for data in (DataLoader(TensorDataset(x, y), 7, shuffle=True), iter([(x[:9], y[:9]), (x[9:], y[9:])])):
        path = linear_path(net, start, end, data, points=4)
        assert torch.allclose(path.losses, whole.losses, rtol=1e-12)
        assert torch.allclose(path.accuracies, whole.accuracies)
    once = iter([(x, y)])
    assert len(layer_paths(net, start, end, once, points=3)) == 3
    bce = nn.functional.binary_cross_entropy_with_logits
    target = (y == 0).double().unsqueeze(1).expand(-1, 3)
    path = linear_path(net, start, end, (x, target), points=3, loss=bce)
    net.load_state_dict(end)
    assert path.accuracies[-1].item() == pytest.approx(((net(x) > 0) == (target > 0.5)).double().mean().item())
    assert linear_path(net, start, end, (x, target), points=3, loss=mse).accuracies is None


def test_dictionary_batches_and_the_models_own_loss():
    class Hugging(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3).double()

        def forward(self, inputs, labels=None):
            logits = self.linear(inputs)
            loss = 2 * nn.functional.cross_entropy(logits, labels)
            return type("Output", (), {"logits": logits, "loss": loss})()

    torch.manual_seed(0)
    start, end = copy.deepcopy(Hugging().state_dict()), copy.deepcopy(Hugging().state_dict())
    x, y = torch.randn(12, 6).double(), torch.randint(3, (12,))
    path = linear_path(
        Hugging(), start, end, [{"inputs": x[:5], "labels": y[:5]}, {"inputs": x[5:], "labels": y[5:]}], 3
    )
    plain = nn.Linear(6, 3).double()
    one, two = ({key.removeprefix("linear."): v for key, v in s.items()} for s in (start, end))
    assert path.losses.tolist() == pytest.approx([2 * l for l in literal(plain, one, two, (x, y), [0, 0.5, 1])])
    assert path.accuracies is not None


def test_replicas_give_a_list_and_every_one_is_as_if_alone():
    ens = tether.Replicas(lambda: perceptron().double(), n=3)
    start = copy.deepcopy(ens.state_dict())
    data = torch.randn(20, 6).double(), torch.randint(3, (20,))
    with torch.no_grad():
        for p in ens.parameters():
            p.add_(torch.randn_like(p))
    paths = linear_path(ens, start, ens.state_dict(), data, points=4)
    for i, path in enumerate(paths):
        mine = {name: x[i] for name, x in start.items()}
        assert path.losses.tolist() == pytest.approx(
            literal(ens[i], mine, ens[i].state_dict(), data, path.alphas.tolist()), rel=1e-12
        )
    assert [list(paths) for paths in layer_paths(ens, start, ens.state_dict(), data, 3)] == [["0", "2.0", "3"]] * 3
    moved = distance(start, ens.state_dict(), batch_dims=1)
    assert moved[1].item() == pytest.approx(distance({n: x[1] for n, x in start.items()}, ens[1].state_dict()))


def test_places_of_ones_own_may_lie_beyond_the_ends():
    net = nn.Linear(1, 1, bias=False)
    ends = {"weight": torch.tensor([[-1.0]])}, {"weight": torch.tensor([[1.0]])}
    data = torch.ones(1, 1), torch.zeros(1, 1)
    path = linear_path(net, *ends, data, [-0.5, 0, 0.5, 1.5], loss=mse)
    assert path.losses.tolist() == [4, 1, 0, 4]
    assert (path.shape, path.barrier.height, path.barrier.alpha) == ("barrier", 4, 1.5)
    for points in (1, [0.5], [0, 0], [[0, 1]]):
        with pytest.raises(ValueError, match="points="):
            linear_path(net, *ends, data, points, loss=mse)


def test_losses_that_are_no_numbers_are_flagged_and_ends_stay_exact():
    net = nn.Linear(1, 1, bias=False)
    start, end = {"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[math.inf]])}
    data = torch.ones(1, 1), torch.zeros(1, 1)
    path = linear_path(net, start, end, data, 5, loss=mse)
    assert not path.finite
    assert path.shape == "not finite"
    assert math.isnan(path.barrier)
    assert path.losses[0] == 1  # not 0 · ∞
    assert str(path) == "everything, 5 points: loss 1 → inf, not finite at 4 of them, the first at α = 0.25"


def test_states_of_another_model_are_named():
    net, start, end, data = problem("perceptron")
    other = copy.deepcopy(end)
    other["0.weight"] = torch.zeros(8, 7)
    other["9.bias"] = other.pop("3.bias")
    with pytest.raises(ValueError) as caught:
        linear_path(net, other, end, data)
    assert str(caught.value) == (
        "start is no state of this Sequential: '0.weight' is (8, 6) in the model and (8, 7) in start; "
        "'3.bias' is (3,) in the model and absent in start; '9.bias' is absent in the model and (3,) in start"
    )
    with pytest.raises(ValueError, match=r"states of different models: '0\.weight' is \(8, 7\) in start"):
        distance(other, end)
    with pytest.raises(TypeError, match=r"end must be a state dict, got Sequential; e\.g\. end=net\.state_dict\(\)"):
        linear_path(net, start, net, data)
    with pytest.raises(ValueError, match=r"very same tensors.*deepcopy"):
        linear_path(net, net.state_dict(), net.state_dict(), data)
    with pytest.raises(ValueError, match=r"tolerance=-1"):
        linear_path(net, start, end, data, tolerance=-1)


def test_distance_is_relative_to_the_start_and_leaves_statistics_out():
    start = {"a.weight": torch.tensor([[3.0, 0.0]]), "b.bias": torch.tensor([4.0]), "n.running_mean": torch.ones(1)}
    end = {"a.weight": torch.tensor([[3.0, 12.0]]), "b.bias": torch.tensor([9.0]), "n.running_mean": torch.zeros(1)}
    assert distance(start, end) == pytest.approx(13 / 5)
    assert distance(start, end, "b.*") == pytest.approx(5 / 4)
    assert distance(start, end, ["a.*", "b.*"]) == pytest.approx(13 / 5)
    assert distance(start, start) == 0
    tied = {"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    tied["again"] = tied["w"]
    assert distance(tied, {"w": torch.tensor([6.0]), "b": torch.tensor([8.0]), "again": torch.tensor([6.0])}) == 1
    assert distance(tied, {"w": torch.tensor([6.0]), "b": tied["b"], "again": torch.tensor([6.0])}) == 0.6
    big = {name: x * 1e30 for name, x in start.items()}
    assert distance(big, {name: 2 * x for name, x in big.items()}) == pytest.approx(1)  # squares overflow single
    with pytest.raises(ValueError, match="‖θ_i‖ = 0"):
        distance({"w": torch.zeros(2)}, {"w": torch.ones(2)})


def curve(*losses, tolerance=0.02):
    losses = torch.tensor(losses, dtype=torch.float64)
    return classify(torch.linspace(0, 1, len(losses), dtype=torch.float64), losses, tolerance)


def test_barriers_by_hand():
    shape, barrier, plateau = curve(2.0, 1.0, 1.5, 0.2, 0.0)
    assert (shape, barrier.height, barrier.alpha, plateau) == ("barrier", 0.5, 0.5, 0)
    # two humps: the largest rise, 0.3 → 1.1 over a dip that is no descent below where it began
    shape, barrier, _ = curve(1.0, 0.3, 0.9, 0.8, 1.1, 0.0)
    assert (shape, barrier.height, barrier.alpha) == ("barrier", pytest.approx(0.8), 0.8)
    shape, barrier, _ = curve(0.0, 1.0)  # the end higher than the start
    assert (shape, barrier.height, barrier.alpha) == ("barrier", 1.0, 1.0)
    assert curve(2.0, 0.5, 0.54, 0.0)[0] == "monotone"  # 0.04 = 2 % of 2
    assert curve(2.0, 0.5, 0.541, 0.0)[0] == "barrier"
    assert curve(2.0, 0.5, 0.541, 0.0, tolerance=0.05)[0] == "monotone"
    assert curve(2.0, 0.5, 0.5 + 1e-7, 0.0, tolerance=0.0)[0] == "monotone"  # rounding is no barrier
    kept = pickle.loads(pickle.dumps(barrier))
    assert (kept, kept.alpha) == (1.0, 1.0)


def test_plateaus_by_hand():
    assert curve(2, 2, 2, 2, 0) == ("plateau", 0.0, 0.75)
    assert curve(2, 1.5, 1.5, 1.5, 0) == ("plateau", 0.0, 0.5)
    assert curve(2, 0, 0, 0, 0) == ("monotone", 0.0, 0)  # flat where it is low: that is an end, no plateau
    assert curve(4, 3, 2, 1, 0) == ("monotone", 0.0, 0)
    assert curve(3, 3, 2, 1, 0) == ("plateau", 0.0, 0.25)
    assert curve(5, 5, 4, 3, 2, 0) == ("monotone", 0.0, pytest.approx(0.2))
    assert curve(1, 1, 1) == ("plateau", 0.0, 1)  # all of it
    assert curve(0, 0, 0) == ("plateau", 0.0, 1)
    assert curve(2.30, 2.31, 2.32, 2.30) == ("plateau", 0.0, 1)  # two random states: nothing happens in between
    sloping = [2 - 0.01 * k for k in range(5)] + [0.0]  # falls by 0.04 of 2.0
    assert curve(*sloping) == ("plateau", 0.0, pytest.approx(0.8))


def test_a_path_says_what_it_is_and_draws_itself():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    net, start, end, data = problem("perceptron")
    path = linear_path(net, start, end, data, points=5)
    assert str(path).startswith("everything, 5 points: loss ")
    ax = path.plot()
    assert ax.lines[0].get_xydata()[:, 1].tolist() == path.losses.tolist()
    assert (ax.get_ylabel(), path.plot(ax)) == ("loss", ax)
