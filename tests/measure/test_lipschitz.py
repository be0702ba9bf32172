"""Bounds of the Lipschitz constant: closed forms of linear maps, sums, joints, slopes, and what has none."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tether
from tether import measure


@pytest.fixture(autouse=True)
def own_numbers():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def norm(w):
    return torch.linalg.matrix_norm(w.detach(), 2).item()


def matrix_of(net, *shape):
    """The linear part of a map of one input, column by column."""
    eye = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    zero = net(torch.zeros(1, *shape, dtype=torch.float64))
    return (net(eye) - zero).flatten(1).T


class Sum(nn.Module):
    """x + branch(x), as it is written."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        return x + self.branch(x)


def test_a_linear_network_has_the_product_of_norms_above_and_the_norm_of_the_product_below():
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double()
    found = measure.lipschitz(net, torch.randn(4, 5, dtype=torch.float64))
    assert found.upper == pytest.approx(norm(net[0].weight) * norm(net[1].weight), rel=1e-12)
    assert found.lower == pytest.approx(norm(net[1].weight @ net[0].weight), rel=1e-9)
    assert list(found.layers) == ["0", "1"]
    assert found.layers["0"] == pytest.approx(norm(net[0].weight), rel=1e-12)


def test_orthogonal_layers_stretch_nothing_and_both_bounds_are_one():
    net = nn.Sequential(*[nn.Linear(6, 6, dtype=torch.float64) for _ in range(5)])
    for layer in net:
        nn.init.orthogonal_(layer.weight)
    found = measure.lipschitz(net, torch.randn(2, 6, dtype=torch.float64))
    assert (found.lower, found.upper) == pytest.approx((1.0, 1.0), abs=1e-8)


@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
def test_a_circular_convolution_has_the_largest_norm_of_its_transforms(size):
    """The map is block diagonal in waves, with the matrices K̂(ω) of out × in channels (Sedghi et al., 2019)."""
    conv = nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular", dtype=torch.float64)
    waves = torch.fft.fft2(conv.weight.detach(), s=size).permute(2, 3, 0, 1)
    expected = torch.linalg.matrix_norm(waves, 2).max().item()
    found = measure.lipschitz(conv, torch.randn(1, 3, *size, dtype=torch.float64))
    assert found.upper == pytest.approx(expected, rel=1e-6)
    assert found.lower == pytest.approx(expected, rel=1e-5)
    assert abs(expected - norm(conv.weight.flatten(1))) > 0.1  # which the flattened weight does not tell


MAPS = {
    "zeros around": (nn.Conv2d(2, 4, 3, padding=1), (2, 5, 6)),
    "strides": (nn.Conv2d(2, 4, 3, stride=2), (2, 7, 6)),
    "groups and dilation": (nn.Conv2d(4, 4, 3, groups=2, dilation=2), (4, 7, 6)),
    "one axis": (nn.Conv1d(2, 3, 4), (2, 9)),
    "transposed": (nn.ConvTranspose2d(3, 2, 3, stride=2), (3, 3, 4)),
    "mean pooling": (nn.AvgPool2d(3, stride=2), (2, 7, 7)),
    "adaptive": (nn.AdaptiveAvgPool2d(3), (1, 7, 5)),
    "upsampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 4, 5)),
    "reflection": (nn.ReflectionPad1d(2), (2, 6)),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_linear_layer_of_any_kind_has_the_norm_of_its_matrix(name):
    layer, shape = MAPS[name]
    layer = layer.double()
    found = measure.lipschitz(layer, torch.randn(2, *shape, dtype=torch.float64))
    assert found.upper == pytest.approx(norm(matrix_of(layer, *shape)), rel=1e-6)


def test_a_residual_block_is_one_plus_its_branch():
    branch = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 4)).double()
    net = nn.Sequential(Sum(branch), Sum(branch))
    inner = norm(branch[0].weight) * norm(branch[2].weight)
    assert measure.lipschitz(net, torch.randn(3, 4).double()).upper == pytest.approx((1 + inner) ** 2, rel=1e-12)


def test_functions_and_methods_have_the_rules_of_their_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.scale = nn.Parameter(torch.tensor([0.5, -3.0, 1.0, 0.0, 2.0, 1.0]))

        def forward(self, x, flag=True):
            a, b = torch.relu(self.a(x)), self.b(x).tanh()
            joined = torch.cat([a, b], dim=1).view(-1, 2, 6).mean(1)
            return self.scale * joined - 0.25 * x / 2

    net = Net().double()
    mean = math.sqrt(0.5)  # of two rows: its matrix is (I I)/2
    expected = 3 * mean * math.hypot(norm(net.a.weight), norm(net.b.weight)) + 0.125
    assert measure.lipschitz(net, torch.randn(2, 6).double()).upper == pytest.approx(expected, rel=1e-6)


def test_what_is_repeated_counts_as_often_as_it_is():
    class Outer(nn.Module):
        def forward(self, x):
            first, second = x.unsqueeze(1).chunk(2, dim=2)
            return torch.maximum(first[:, :, ::2] * torch.ones(4, 1), second[..., :1]) + x[:, None, :1]

    x = torch.randn(3, 4, dtype=torch.float64)
    found = measure.lipschitz(Outer(), x)
    assert found.upper == pytest.approx(math.sqrt(4 + 4) + 2)  # each number appears four times, in two terms
    assert found.lower <= found.upper


SLOPES = [nn.ReLU(), nn.LeakyReLU(1.7), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ELU(1.3),
          nn.SELU(), nn.Softplus(beta=3), nn.Hardswish(), nn.Softsign(), nn.PReLU(init=1.4),
          nn.LogSigmoid(), nn.CELU(0.3), nn.Tanhshrink(), nn.Hardtanh(-2, 3), nn.ReLU6()]  # fmt: skip


@pytest.mark.parametrize("activation", SLOPES, ids=repr)
def test_the_slope_of_an_activation_is_its_steepest(activation):
    x = torch.linspace(-12, 12, 480_001, dtype=torch.float64, requires_grad=True)
    activation = activation.double()
    (slope,) = torch.autograd.grad(activation(x).sum(), x)
    found = measure.lipschitz(nn.Sequential(activation), torch.randn(1, 3).double()).upper
    assert slope.abs().max().item() * (1 - 1e-9) <= found <= slope.abs().max().item() * (1 + 1e-4)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_windows_that_overlap_count_an_entry_several_times(stride):
    pool = nn.MaxPool1d(3, stride=stride)
    found = measure.lipschitz(nn.Sequential(pool), torch.randn(1, 1, 40)).upper
    assert found == pytest.approx(math.sqrt(math.ceil(3 / stride)))
    ratios = [pool(F.one_hot(torch.tensor([[i]]), 40).double()).norm().item() for i in range(40)]
    assert max(ratios) == pytest.approx(found)  # a single peak is in so many windows


def test_batchnorm_is_that_of_eval_mode():
    net = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3)).double()
    net[1].running_var.copy_(torch.tensor([4.0, 0.25, 1.0]))
    net[1].weight.data = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    steepest = max(abs(w) / math.sqrt(v + 1e-5) for w, v in ((1, 4), (2, 0.25), (3, 1)))
    expected = steepest * norm(net[0].weight.flatten(1))
    assert measure.lipschitz(net, torch.randn(2, 2, 4, 4).double()).upper == pytest.approx(expected, rel=1e-6)


def test_no_pair_of_inputs_is_stretched_by_more_and_the_jacobian_is_below():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(3, stride=2), Sum(nn.Conv2d(4, 4, 3, padding=1)),
        nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 9, 5), nn.SiLU(),
    )  # fmt: skip
    x = torch.randn(16, 1, 8, 8)
    found = measure.lipschitz(net, x)
    assert net.training
    net.eval()
    y = x + 1e-2 * torch.randn_like(x)
    stretched = ((net(x) - net(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).max().item()
    assert stretched < found.lower < found.upper
    assert str(found).startswith(f"Lipschitz constant between {found.lower:.4g} and {found.upper:.4g}")
    assert len(found.plot().patches) == len(found.layers)


def test_weights_in_spectral_balls_bound_the_network():
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))
    opt = tether.Optimizer(net, [tether.Part("*.weight", on=tether.SpectralBall(0.9)), tether.Part("*")], lr=0.2)
    for _ in range(50):
        opt.zero_grad()
        (-net(torch.randn(8, 6)).square().mean()).backward()
        opt.step()
    assert 0.5 < measure.lipschitz(net, torch.randn(4, 6)).upper <= 0.9**3 * (1 + 1e-5)


def test_replicas_have_one_each():
    ens = tether.Replicas(lambda: nn.Linear(3, 2), n=3)
    found = measure.lipschitz(ens, torch.randn(2, 3))
    assert [one.upper for one in found] == pytest.approx([norm(ens[i].weight) for i in range(3)], rel=1e-5)


class Squared(nn.Module):
    def forward(self, x):
        return x * x


class Picking(nn.Module):
    def forward(self, x):
        return x[:, [0, 0]]


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), r"'1' \(LayerNorm\) has no Lipschitz constant"),
        (nn.Sequential(nn.Linear(3, 3), Squared()), r"'1' \(mul\) multiplies two values that depend on the input"),
        (Picking(), r"'forward' \(getitem\) picks entries by a list"),
        (Branching(), "Branching cannot be traced"),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), r"'0' \(BatchNorm1d\) keeps no running stat"),
    ],
)
def test_what_has_no_bound_is_named(net, match):
    with pytest.raises(ValueError, match=match):
        measure.lipschitz(net, torch.randn(2, 3))


def test_words_have_no_derivative():
    with pytest.raises(TypeError, match="a derivative by words or labels does not exist"):
        measure.lipschitz(nn.Linear(3, 2), torch.ones(2, 3, dtype=torch.long))
