"""The path geometry: γ and norms are those of all paths, listed one by one."""

import copy
import gc
import itertools
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tether import Replicas, native
from tether.measure import balance, group_norm, path_norm, path_vector, rescale
from tether.metrics.path import NotHomogeneous, Path
from tether.metrics.tracing import traced_graph

POWERS = [1, 2, 3.5]
ROUNDING = 1e-10

# --- every path of a network, as (product of its weights, its derivative by each weight on it) ------------------------
# A unit is the list of the paths that end in it; a layer's units are an array of such lists.


def array(shape, unit):
    units = np.empty(shape, dtype=object)
    for at in np.ndindex(*shape):
        units[at] = unit(at)
    return units


def inputs(*shape):
    return array(shape, lambda at: [(1.0, {})])


def along(paths, weight, entry=None):
    """Paths extended by an edge; `entry` names the weight, None is a constant."""
    return [
        (value * weight, {e: d * weight for e, d in slopes.items()} | ({} if entry is None else {entry: value}))
        for value, slopes in paths
    ]


def edge(net, name, at):
    return net.get_parameter(name)[at].item(), (name, at)


def bias(net, name, o):
    if net.get_submodule(name).bias is None:
        return []
    weight, entry = edge(net, f"{name}.bias", (o,))
    return [(weight, {entry: 1.0})]


def linear(net, name, units):
    units, n = units.reshape(-1), len(net.get_submodule(name).weight)
    weight = f"{name}.weight"
    return array(
        (n,),
        lambda o: (
            [path for i, u in enumerate(units) for path in along(u, *edge(net, weight, (*o, i)))] + bias(net, name, *o)
        ),
    )


def windows(shape, size, stride, padding, dilation):
    """For every window of a convolution or pooling its place and, inside the image, (place in the window, place)."""
    counts = [
        (n + 2 * q - e * (k - 1) - 1) // s + 1
        for n, k, s, q, e in zip(shape, size, stride, padding, dilation, strict=True)
    ]
    for out in itertools.product(*map(range, counts)):
        inside = []
        for at in itertools.product(*map(range, size)):
            place = tuple(o * s - q + a * e for o, s, q, a, e in zip(out, stride, padding, at, dilation, strict=True))
            if all(0 <= x < n for x, n in zip(place, shape, strict=True)):
                inside.append((at, place))
        yield out, counts, inside


def convolution(net, name, units):
    layer = net.get_submodule(name)
    shape, (n, each) = units.shape[1:], layer.weight.shape[:2]
    found = list(windows(shape, layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    result = array((n, *found[0][1]), lambda at: bias(net, name, at[0]))
    for (out, _, inside), o, i in itertools.product(found, range(n), range(each)):
        source = o // (n // layer.groups) * each + i
        for at, place in inside:
            result[(o, *out)] = result[(o, *out)] + along(
                units[(source, *place)], *edge(net, f"{name}.weight", (o, i, *at))
            )
    return result


def pool(units, size, stride, padding, factor, dilation=None):
    """factor(edges in the window) is the weight of each of them."""
    found = list(windows(units.shape[1:], size, stride, padding, dilation or (1,) * len(size)))
    result = array((len(units), *found[0][1]), lambda at: [])
    for (out, _, inside), c in itertools.product(found, range(len(units))):
        for _, place in inside:
            result[(c, *out)] = result[(c, *out)] + along(units[(c, *place)], factor(len(inside)))
    return result


def normalise(net, name, units, before=None):
    """Folded into the layer `before`, whose units come without bias."""
    layer = net.get_submodule(name)
    result = array(units.shape, lambda at: [])
    for at in np.ndindex(*units.shape):
        c = at[0]
        g, β, m = layer.weight[c].item(), layer.bias[c].item(), layer.running_mean[c].item()
        σ = math.sqrt(layer.running_var[c].item() + layer.eps)
        b = 0.0 if before is None else net.get_parameter(f"{before}.bias")[c].item()
        slopes = {(f"{name}.weight", (c,)): (b - m) / σ, (f"{name}.bias", (c,)): 1.0}
        if before is not None:
            slopes[f"{before}.bias", (c,)] = g / σ
        paths = along(along(units[at], 1 / σ), g, (f"{name}.weight", (c,)))
        result[at] = [*paths, (g * (b - m) / σ + β, slopes)]
    return result


def without_bias(net, name):
    plain = copy.deepcopy(net)
    plain.get_submodule(name).bias = None
    return plain


def plus(a, b, factor=1.0):
    return array(a.shape, lambda at: a[at] + along(b[at], factor))


# --- networks, each beside its paths ----------------------------------------------------------------------------------


class Net(nn.Module):
    """A network, the shape of its input and its paths."""

    shape: tuple[int, ...] = (3,)

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        generator = torch.Generator().manual_seed(0)
        self.double()
        for x in itertools.chain(self.parameters(), self.buffers()):
            if x.is_floating_point():
                x.data.copy_(torch.randn(x.shape, generator=generator, dtype=torch.float64))
        for name, x in self.named_buffers():
            if name.endswith("running_var"):
                x.square_().add_(0.1)

    def paths(self):
        raise NotImplementedError


class Plain(Net):
    def __init__(self):
        super().__init__(a=nn.Linear(3, 4, bias=False), b=nn.Linear(4, 2, bias=False))

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

    def paths(self):
        return linear(self, "b", linear(self, "a", inputs(3)))


class Biased(Net):
    def __init__(self):
        body = nn.Sequential(
            nn.Linear(3, 3), nn.LeakyReLU(0.1), nn.Dropout(0.5), nn.Linear(3, 2), nn.ReLU(inplace=True)
        )
        super().__init__(body=body, head=nn.Linear(2, 2))

    def forward(self, x):
        return self.head(F.dropout(self.body(x), 0.3, self.training))

    def paths(self):
        return linear(self, "head", linear(self, "body.3", linear(self, "body.0", inputs(3))))


class Convolutional(Net):
    shape = (2, 4, 5)

    def __init__(self):
        a = nn.Conv2d(2, 4, (2, 3), padding=(1, 0), stride=(2, 1), groups=2)
        super().__init__(a=a, b=nn.Conv2d(4, 2, 2, dilation=2, padding=1, bias=False), c=nn.Linear(8, 2))

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.a(x)), 2, stride=1)
        return self.c(self.b(x).view(x.size(0), -1))

    def paths(self):
        x = pool(convolution(self, "a", inputs(2, 4, 5)), (2, 2), (1, 1), (0, 0), lambda n: 1.0)
        return linear(self, "c", convolution(self, "b", x))


class Series(Net):
    shape = (2, 7)

    def __init__(self):
        super().__init__(a=nn.Conv1d(2, 2, 3, padding=1), pool=nn.MaxPool1d(3, 2, padding=1), b=nn.Linear(8, 1))

    def forward(self, x):
        return self.b(torch.flatten(self.pool(self.a(x)), 1))

    def paths(self):
        return linear(self, "b", pool(convolution(self, "a", inputs(2, 7)), (3,), (2,), (1,), lambda n: 1.0))


class Volume(Net):
    shape = (1, 3, 3, 3)

    def __init__(self):
        dilated = nn.MaxPool3d(2, stride=1, dilation=(2, 1, 1))
        super().__init__(a=nn.Conv3d(1, 2, 2, padding=1), pool=dilated, b=nn.Conv3d(2, 1, (2, 3, 3)))

    def forward(self, x):
        return self.b(self.pool(self.a(x)))

    def paths(self):
        x = pool(convolution(self, "a", inputs(1, 3, 3, 3)), (2, 2, 2), (1, 1, 1), (0, 0, 0), lambda n: 1.0, (2, 1, 1))
        return convolution(self, "b", x)


class Skip(Net):
    def __init__(self):
        super().__init__(a=nn.Linear(3, 3), b=nn.Linear(3, 3), c=nn.Linear(3, 3, bias=False))
        self.gate = nn.Parameter(torch.tensor([0.5, -2.0, 0.7], dtype=torch.float64))

    def forward(self, x):
        x = x + F.relu(self.a(x))
        x = x - self.b(x)
        y = torch.neg(x) * -0.5
        y += torch.sub(self.c(x), x, alpha=3) / 4
        return self.gate * y

    def paths(self):
        x = plus(inputs(3), linear(self, "a", inputs(3)))
        x = plus(x, linear(self, "b", x), -1.0)
        y = array((3,), lambda at: along(x[at], 0.5))
        y = plus(plus(y, linear(self, "c", x), 0.25), x, -0.75)
        return array((3,), lambda at: along(y[at], *edge(self, "gate", at)))


class Concatenated(Net):
    def __init__(self):
        super().__init__(a=nn.Linear(3, 2), b=nn.Linear(5, 2), c=nn.Linear(3, 1))

    def forward(self, x):
        y = self.b(torch.cat([x, self.a(x).relu()], dim=1))
        return self.c(torch.cat((y[:, :1], x[:, 1:]), -1)), y

    def paths(self):
        y = linear(self, "b", np.concatenate([inputs(3), linear(self, "a", inputs(3))]))
        return np.concatenate([linear(self, "c", np.concatenate([y[:1], inputs(3)[1:]])), y])


class Averaged(Net):
    shape = (2, 5, 5)

    def __init__(self):
        layers = {
            "pool": nn.AvgPool2d(2, stride=2, padding=1, count_include_pad=False),
            "bins": nn.AdaptiveAvgPool2d(2),
        }
        super().__init__(a=nn.Conv2d(2, 2, 2, bias=False), b=nn.Linear(2, 2), **layers)

    def forward(self, x):
        x = self.bins(self.pool(self.a(x)))
        x = F.avg_pool2d(x, (1, 2))
        return self.b(x.mean((2, 3)))

    def paths(self):
        x = pool(convolution(self, "a", inputs(2, 5, 5)), (2, 2), (2, 2), (1, 1), lambda n: 1 / n)
        # 3 into 2 bins: of 2 each, the middle in both
        x = pool(x, (2, 2), (1, 1), (0, 0), lambda n: 1 / 4)
        x = pool(x, (1, 2), (1, 2), (0, 0), lambda n: 1 / 2)
        return linear(self, "b", pool(x, (2, 1), (2, 1), (0, 0), lambda n: 1 / 2))


class Normalised(Net):
    shape = (2, 3, 3)

    def __init__(self):
        norms = {"first": nn.BatchNorm2d(2), "n": nn.BatchNorm2d(3), "m": nn.BatchNorm1d(2), "apart": nn.BatchNorm1d(2)}
        super().__init__(a=nn.Conv2d(2, 3, 2, bias=False), b=nn.Linear(12, 2), c=nn.Linear(2, 2), **norms)

    def forward(self, x):
        x = F.relu(self.n(self.a(self.first(x))))
        x = self.m(self.b(x.flatten(1)))
        y = self.c(x)
        return self.apart(y) + y

    def paths(self):
        x = normalise(self, "first", inputs(2, 3, 3))
        x = normalise(self, "n", convolution(self, "a", x))
        x = normalise(self, "m", linear(without_bias(self, "b"), "b", x), before="b")
        y = linear(self, "c", x)
        return plus(normalise(self, "apart", y), y)


NETS = [Plain, Biased, Convolutional, Series, Volume, Skip, Concatenated, Averaged, Normalised]


def close(a, b):
    return math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-300)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("kind", NETS)
def test_all_paths_one_by_one(kind, p):
    net = kind()
    paths = [path for unit in net.paths().reshape(-1) for path in unit]
    assert close(path_norm(net, p, net.shape), sum(abs(value) ** p for value, _ in paths) ** (1 / p))
    want = {name: torch.zeros_like(w) for name, w in net.named_parameters()}
    for _, slopes in paths:
        for (name, at), slope in slopes.items():
            want[name][at] += abs(slope) ** p
    got = Path(p).scales(net, net.shape)
    assert list(got) == list(want)
    for name, γ in got.items():
        torch.testing.assert_close(γ, want[name].detach() ** (2 / p), rtol=ROUNDING, atol=0)
        assert not γ.requires_grad


@pytest.mark.parametrize("p", [1, 2])
def test_the_kernel_and_torch_agree(p, monkeypatch):
    net = nn.Sequential(nn.Linear(301, 257), nn.ReLU(), nn.Linear(257, 130, bias=False), nn.ReLU(), nn.Linear(130, 7))
    fast, norm = Path(p).scales(net), path_norm(net, p)
    taken = Path(p).factors(net)
    assert [len(taken[name]) for name in ("0.weight", "0.bias", "2.weight")] == [2, 1, 2] or native.library() is None
    g = torch.randn(257, 301)
    quotient = Path(p).divide(g, taken["0.weight"])
    monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    slow = Path(p).factors(net)
    assert all(len(γ) == 1 for γ in slow.values())
    for name, (γ,) in slow.items():
        torch.testing.assert_close(fast[name], γ, rtol=1e-6, atol=0)
    assert norm == pytest.approx(path_norm(net, p), rel=1e-12)
    torch.testing.assert_close(quotient, g / fast["0.weight"], rtol=1e-5, atol=0)
    torch.testing.assert_close(Path(p).divide(g, taken["0.weight"]), quotient, rtol=1e-5, atol=0)


@pytest.mark.parametrize("p", [1, 2])
def test_the_way_down_a_chain_and_autograd_agree(p, monkeypatch):
    def build():
        return nn.Sequential(nn.Flatten(), relu_net(6, 5, 7, 2), nn.LeakyReLU(0.2), relu_net(2, 3, bias=False))

    net, ens = build(), Replicas(build, 3)
    assert len(traced_graph(net)[0].chain) == len(traced_graph(ens)[0].chain) == 4
    fast = [Path(p).scales(each, (2, 3)) for each in (net, ens, ens[2])]
    assert all(torch.equal(γ[2], fast[2][name]) for name, γ in fast[1].items())
    monkeypatch.setattr("tether.metrics.path._down_a_chain", lambda *_: None)
    for each, found in zip((net, ens), fast, strict=False):
        for name, γ in Path(p).scales(each, (2, 3)).items():
            torch.testing.assert_close(found[name], γ, rtol=1e-13, atol=0)
    for other in (nn.Sequential(net, nn.LeakyReLU(3.0)), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Skip()):
        assert traced_graph(other)[0].chain == ()


def test_division_is_zero_where_no_path_leads_and_takes_powers():
    path, γ = Path(), (torch.tensor([[4.0], [0.0]]), torch.tensor([[1.0, 9.0, 0.0]]))
    g, w = torch.ones(2, 3), torch.full((2, 3), 10.0)
    assert path.divide(g, γ).tolist() == [[0.25, pytest.approx(1 / 36), 0.0], [0.0] * 3]
    assert path.divide(g, γ, power=0.5).tolist() == [[0.5, pytest.approx(1 / 6), 0.0], [0.0] * 3]
    assert path.divide(g, γ, w, times=-4.0, keep=1.0) is w
    assert w.tolist() == [[9.0, pytest.approx(10 - 1 / 9), 10.0], [10.0] * 3]
    assert path.divide(g[:, 0], (torch.tensor([2.0, 0.0]),)).tolist() == [0.5, 0.0]


# --- the slides -------------------------------------------------------------------------------------------------------


def slides():
    """2-2-2 with π(w) = [6, 6, 1, 2, 1, 1, 4, 8] by input, hidden unit and output.

    The slides' text gives the numbers, not the picture; up to rescaling this is the only net that has them.
    """
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    net[0].weight.data, net[2].weight.data = torch.tensor([[6.0, 1], [1, 4]]), torch.tensor([[1.0, 1], [1, 2]])
    return net


def test_the_slides_numbers():
    net = slides()
    into, out = net[0].weight.tolist(), net[2].weight.tolist()
    assert [into[h][i] * out[o][h] for i in (0, 1) for h in (0, 1) for o in (0, 1)] == [6, 6, 1, 2, 1, 1, 4, 8]
    assert path_vector(net).tolist() == [6, 6, 1, 2, 1, 1, 4, 8]
    assert path_norm(net, 1) == 29
    other = rescale(net, {"0": [10.0, 1.0]})
    assert group_norm(net, 1) == 7
    assert group_norm(other, 1) == 70
    assert path_norm(other, 1) == pytest.approx(29, rel=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(3, 1), (3, 4, 2), (2, 3, 3, 2)])
def test_the_norm_of_the_path_vector_is_the_path_norm(widths, bias):
    net = relu_net(*widths, bias=bias)
    π = path_vector(net)
    biased = sum(math.prod(widths[i:]) for i in range(1, len(widths))) if bias else 0
    assert len(π) == math.prod(widths) + biased
    for p in POWERS:
        assert torch.linalg.vector_norm(π, p).item() == pytest.approx(path_norm(net, p), rel=1e-10)
    if len(widths) > 2:
        assert torch.allclose(path_vector(rescale(net, seed=1, spread=3.0)), π)
    # without ReLUs the network is Σ over paths of their product times their input
    if not bias:
        linear = nn.Sequential(*(layer for layer in net if isinstance(layer, nn.Linear)))
        x = torch.randn(1, widths[0], dtype=torch.float64)
        assert torch.allclose((π.view(widths[0], -1, widths[-1]).sum(1).T @ x[0]), linear(x)[0])


def test_path_vectors_that_are_refused():
    with pytest.raises(ValueError, match=r"'0' \(Conv2d\) is no Linear layer: use path_norm"):
        path_vector(images())
    with pytest.raises(ValueError, match=r"has 24 paths, more than most=10: use path_norm"):
        path_vector(relu_net(3, 4, 2, bias=False), most=10)


def test_group_norms():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    for w, value in zip(net.parameters(), ([[3.0, -4], [0, 0]], [0.0, -2], [[1.0, -1]]), strict=True):
        w.data = torch.tensor(value, dtype=torch.float64)
    assert group_norm(net, 2) == 5
    assert group_norm(net, 1) == 7
    assert group_norm(net, 1, 1) == 7 + 2 + 2
    assert group_norm(net, 2, 2) == pytest.approx(math.sqrt(25 + 4 + 2))
    with pytest.raises(ValueError, match="'1' \\(BatchNorm1d\\) has parameters but no units"):
        group_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match=r"q=0.5 must be 1 or more"):
        group_norm(net, 1, 0.5)


def relu_net(*widths, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).double()
    for w in net.parameters():
        w.data.copy_(torch.randn(w.shape, generator=generator, dtype=torch.float64))
    return net


def images():
    torch.manual_seed(1)
    body = [nn.Conv2d(2, 4, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(4, 6, 2, groups=2), nn.ReLU(), nn.MaxPool2d(2)]
    return (
        nn.Sequential(*body, nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3)).double().eval()
    )


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("widths", [(3, 5, 1), (4, 3, 6, 2, 1)])
def test_lemma_the_path_norm_is_the_least_max_norm(widths, p):
    net, depth = relu_net(*widths, bias=False), len(widths) - 1
    even = balance(net, p)
    assert group_norm(even, p) ** depth == pytest.approx(path_norm(net, p), rel=1e-10)
    assert path_norm(even, p) == pytest.approx(path_norm(net, p), rel=1e-12)
    for seed in range(20):
        assert group_norm(rescale(net, seed=seed, spread=2), p) > group_norm(even, p)


def test_balance_with_several_outputs_reaches_the_largest_of_them():
    net = slides()
    assert group_norm(balance(net, 1), 1) ** 2 == pytest.approx(6 + 2 + 1 + 8, rel=1e-6)  # of 12 and 17


def test_balance_with_biases_cannot_be_improved():
    net = relu_net(3, 4, 5, 2)
    even = balance(net)
    x = torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(even(x), net(x), rtol=ROUNDING, atol=1e-10)
    norms = [torch.cat([even[i].weight, even[i].bias[:, None]], 1).norm(dim=1) for i in (0, 2, 4)]
    top = group_norm(even, 2)
    torch.testing.assert_close(torch.cat(norms[:2]), torch.full((9,), top, dtype=torch.float64))
    assert norms[2].max().item() == pytest.approx(top, rel=1e-10)
    for seed in range(20):
        assert group_norm(rescale(even, seed=seed, spread=1.5), 2) > top


def test_balance_of_units_without_input_and_of_one_layer():
    net = relu_net(3, 4, 1, bias=False)
    with torch.no_grad():
        net[0].weight[1] = 0
    assert group_norm(balance(net), 2) ** 2 == pytest.approx(path_norm(net), rel=1e-8)
    assert group_norm(balance(relu_net(3, 1, bias=False)), 2) == path_norm(relu_net(3, 1, bias=False))


@pytest.mark.parametrize("build", [lambda: relu_net(3, 6, 5, 2), images])
@pytest.mark.parametrize("p", POWERS)
def test_rescaling_leaves_function_and_path_norm(build, p):
    net = build()
    shape = (2, 5, 5) if isinstance(net[0], nn.Conv2d) else (3,)
    x = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    before = copy.deepcopy(net.state_dict())
    other = rescale(net, seed=5, spread=1e3)
    assert max(w.abs().max().item() for w in other.parameters()) > 50
    torch.testing.assert_close(other(x), net(x), rtol=ROUNDING, atol=1e-10)
    assert path_norm(other, p, shape) == pytest.approx(path_norm(net, p, shape), rel=1e-10)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert rescale(net, seed=5, inplace=True) is net
    torch.testing.assert_close(net.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("build", [lambda: relu_net(3, 6, 5, 2), images])
def test_a_step_of_path_sgd_commutes_with_rescaling(build, p):
    a = build()
    shape = (2, 5, 5) if isinstance(a[0], nn.Conv2d) else (3,)
    hidden = {name: m.weight.shape[0] for name, m in a.named_modules() if hasattr(m, "weight")}
    hidden.pop([*hidden][-1])
    generator = torch.Generator().manual_seed(11)
    factors = {name: 10 ** (6 * torch.rand(n, generator=generator).double() - 3) for name, n in hidden.items()}
    b = rescale(a, factors)
    x = torch.randn(8, *shape, dtype=torch.float64, generator=generator)
    gradients = {}
    for net in (a, b):
        net(x).square().sum().backward()
        gradients[net] = {name: w.grad for name, w in net.named_parameters()}
    for η, metric in ((1e-3, Path(p)), (1e-9, None)):
        moved = []
        for net in (copy.deepcopy(a), copy.deepcopy(b)):
            source = a if not moved else b
            γ = None if metric is None else metric.factors(net, shape)
            for name, w in net.named_parameters():
                g = gradients[source][name]
                if γ is None:
                    w.data -= η * g
                else:
                    Path().divide(g, γ[name], w.data, times=-η, keep=1.0)
            moved.append(net)
        want = rescale(moved[0], factors)
        gaps = [
            ((u - v).abs() / v.abs().clamp_min(1e-300)).max().item()
            for u, v in zip(moved[1].parameters(), want.parameters(), strict=True)
        ]
        assert max(gaps) < ROUNDING if metric else max(gaps) > 1e-6


# --- conventions ------------------------------------------------------------------------------------------------------


def test_a_weight_used_twice_has_its_derivatives_summed():
    """y = w·w·x has the one path w²: ∂|w|^{2p}/∂|w|^p = 2|w|^p."""
    layer = nn.Linear(1, 1, bias=False).double()
    layer.weight.data.fill_(-3.0)
    for net in (nn.Sequential(layer, nn.ReLU(), layer), nn.Sequential(layer, copy.deepcopy(layer))):
        if net[-1] is not layer:
            net[1].weight = layer.weight
        for p in POWERS:
            assert path_norm(net, p) == pytest.approx(9)
            assert [*Path(p).scales(net)] == ["0.weight"]
            assert Path(p).scales(net)["0.weight"].item() == pytest.approx((2 * 3**p) ** (2 / p))


def test_parameters_without_paths_have_no_scale():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    net.extra = nn.Parameter(torch.ones(3))
    net.forward = lambda x: nn.Sequential.forward(nn.Sequential(*list(net)[:3]), x)
    net[2].weight.data.zero_()
    γ = Path().scales(net)
    assert γ["extra"].tolist() == [0, 0, 0]
    assert not γ["0.weight"].any()
    assert γ["2.weight"].all()


def test_slopes_above_one_are_factors():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.LeakyReLU(3.0))
    net[0].weight.data.fill_(2.0)
    assert path_norm(net) == 6


def test_constants_and_shapes_in_forward():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 2, bias=False)
            self.register_buffer("mask", torch.tensor([1.0, -2.0]))

        def forward(self, x, mask=None, scale=True):
            if mask is not None or not scale:
                raise AssertionError
            b, n = x.shape[0], x.shape[1] // 2
            y = self.a(x.reshape(b, n, 2).permute(0, 2, 1).flatten(1)) * self.mask * torch.tensor(0.5)
            y.add_(1.0)
            return {"y": y, "none": None}

    net = Odd()
    net.a.weight.data.fill_(1.0)
    kept = set(net.__dict__)
    assert path_norm(net, 1) == 4 * 0.5 + 4 * 1.0 + 2
    assert set(net.__dict__) == kept
    assert [*net.state_dict()] == ["mask", "a.weight"]


@pytest.mark.parametrize("shape", [(7,), (6, 7), (5, 6, 7)])
@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"padding": 1}, {"padding": 1, "ceil_mode": True}, {}])
@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_pooling_counts_every_edge(kind, options, shape):
    """Of a layer's Jacobian the p-norm: for an average as it is, for a maximum with a 1 wherever an input can win."""
    layer = getattr(nn, f"{kind}Pool{len(shape)}d")(3, 2, **options)
    n = math.prod(shape)
    x = torch.eye(n, dtype=torch.float64).view(n, 1, *shape)
    for p in POWERS:
        assert path_norm(layer, p, (1, *shape)) == pytest.approx(layer(x).norm(p).item(), rel=1e-12)


def test_adaptive_pooling_with_uneven_bins():
    x = torch.ones(1, 2, 7, 5)
    assert path_norm(nn.AdaptiveAvgPool2d((3, None)), 1, (2, 7, 5)) == pytest.approx(2 * 3 * 5)
    assert path_norm(nn.AdaptiveAvgPool2d((3, 2)), 2, (2, 7, 5)) ** 2 == pytest.approx(2 * 6 / 9)  # bins of 3 × 3
    assert path_norm(nn.AdaptiveMaxPool2d((3, 2)), 2, (2, 7, 5)) ** 2 == pytest.approx(2 * 6 * 9)
    assert nn.AdaptiveAvgPool2d((3, 2))(x).shape == (1, 2, 3, 2)


def test_deep_float32_nets_stay_in_range():
    """|w|² over 40 layers passes 1e38, and comes back."""
    net = relu_net(*[8] * 41).float()
    for i, layer in enumerate(m for m in net if isinstance(m, nn.Linear)):
        layer.weight.data.mul_((30.0 if i < 20 else 1 / 30) / math.sqrt(8))
        layer.bias.data.zero_()
    assert path_norm(net[:40]) > 1e25  # squared, what flows past the 20th layer
    assert path_norm(net) < 1e3
    exact = Path().scales(copy.deepcopy(net).double())
    for name, γ in Path().scales(net).items():
        if name.endswith("weight"):
            assert γ.dtype is torch.float32
            torch.testing.assert_close(γ.double(), exact[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_float32_convolutions_are_those_of_float64(p):
    """Also where what flows leaves the range of float32, on the way there or back."""
    layers = [m for _ in range(12) for m in (nn.Conv1d(3, 3, 3, padding=1), nn.ReLU())]
    net = nn.Sequential(*layers, nn.ConvTranspose1d(3, 2, 2))
    torch.manual_seed(0)
    for i, m in enumerate(net[::2]):
        nn.init.normal_(m.weight, std=0.3 * (1e5 if i < 6 else 1e-5))
        nn.init.normal_(m.bias, std=1e-3)
    double = copy.deepcopy(net).double()
    assert path_norm(net[:12], p, (3, 4)) ** p > 1e26
    assert path_norm(net, p, (3, 4)) == pytest.approx(path_norm(double, p, (3, 4)), rel=1e-5)
    exact, got = Path(p).factors(double, (3, 4)), Path(p).factors(net, (3, 4))
    for name in [name for name in exact if name.endswith("weight")]:  # those of the biases are below float32
        torch.testing.assert_close(got[name][0].double(), exact[name][0], rtol=1e-4, atol=0)


def test_scales_that_float32_cannot_hold():
    net = relu_net(*[8] * 31).float()
    for w in net.parameters():
        w.data.mul_(30.0)
    assert math.isfinite(path_norm(net))
    with pytest.raises(OverflowError, match=r"γ of '0.weight' reaches .*tether.measure.balance"):
        Path().scales(net)
    assert all(γ.isfinite().all() for γ in Path().scales(net.double()).values())
    with pytest.raises(OverflowError, match="exceeds float64"):
        path_norm(net, 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_scales_in_float32(dtype):
    net = relu_net(3, 4, 2).to(dtype)
    exact = Path().scales(copy.deepcopy(net).double())
    for name, γ in Path().scales(net).items():
        torch.testing.assert_close(γ, exact[name].float())


def test_replicas_have_scales_of_their_own():
    def build():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    ens = Replicas(build, 3)
    γ = Path(1).scales(ens)
    for i in range(3):
        for name, want in Path(1).scales(ens[i]).items():
            torch.testing.assert_close(γ[name][i], want, rtol=1e-6, atol=0)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    *(nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.ReLU6(), nn.Hardtanh(), nn.Softmax(1)),
    *(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.LogSoftmax(1), nn.Hardswish(), nn.Mish(), nn.CELU(), nn.SELU()),
    *(nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2), nn.LSTM(4, 4), nn.PReLU(), nn.Threshold(1.0, 0.0)),
    *(nn.InstanceNorm1d(4), nn.LocalResponseNorm(2), nn.Bilinear(4, 4, 4), nn.Embedding(4, 4)),
    nn.BatchNorm1d(4, track_running_stats=False),
    nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
]


@pytest.mark.parametrize("layer", REFUSED, ids=lambda layer: type(layer).__name__)
def test_refused_by_name(layer):
    net = nn.Sequential()
    net.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), layer)
    with pytest.raises(NotHomogeneous, match=rf"'body.3' \({type(layer).__name__}\) ") as caught:
        path_norm(net)
    assert (caught.value.name, caught.value.kind) == ("body.3", type(layer).__name__)
    assert isinstance(caught.value, ValueError)


def test_the_message():
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    with pytest.raises(NotHomogeneous) as caught:
        Path().scales(net)
    assert str(caught.value) == "'1' (GELU) is not positively homogeneous: path norms need ReLU-like networks"


FORWARDS = {
    "tanh": lambda self, x: torch.tanh(self.a(x)),
    "gelu": lambda self, x: F.gelu(self.a(x)),
    "softmax": lambda self, x: self.a(x).softmax(1),
    "relu6": lambda self, x: F.relu6(self.a(x)),
    "pow": lambda self, x: self.a(x) ** 2,
    "mul": lambda self, x: x * self.a(x),
    "matmul": lambda self, x: self.a(x) @ x.transpose(0, 1),
    "truediv": lambda self, x: x / self.a.weight[0],
    "linear": lambda self, x: F.linear(x, self.a(x)),
    "exp": lambda self, x: F.linear(x, self.a.weight.exp()),
    "clamp": lambda self, x: self.a(x).clamp(0, 1),
    "div": lambda self, x: torch.div(x, self.a(x)),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_refused_functions(name):
    inner = type("Inner", (nn.Module,), {"forward": FORWARDS[name]})()
    inner.a = nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), inner)
    with pytest.raises(NotHomogeneous, match=rf"'2' \({name}\)"):
        path_norm(net)


def test_refused_control_flow():
    class Switch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(NotHomogeneous, match="'forward' \\(Switch\\) cannot be traced"):
        path_norm(Switch(), 2, (3,))


def test_other_mistakes():
    for p in (0.5, math.inf, math.nan, "2", True, None):
        with pytest.raises(ValueError, match=r"must be a finite number, 1 or more; e.g. p=2"):
            Path(p)
    net = images()
    with pytest.raises(
        ValueError, match=r"'0' \(Conv2d\), does not tell the shape of an input.*input_shape=\(3, 32, 32"
    ):
        path_norm(net)
    with pytest.raises(ValueError, match="'0' \\(Conv2d\\) cannot follow paths from an input of shape \\(3, 5, 5\\)"):
        path_norm(net, 2, (3, 5, 5))
    with pytest.raises(ValueError, match="input_shape=5 must be a sequence of positive ints"):
        path_norm(net, 2, 5)
    with pytest.raises(ValueError, match="'1' \\(BatchNorm1d\\) is no link of a chain: rescale and balance take"):
        rescale(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)), seed=0)
    for net in (Skip(), Concatenated()):
        with pytest.raises(ValueError, match="is no link of a chain"):
            balance(net)
    net = relu_net(2, 3, 1)
    with pytest.raises(ValueError, match="'2' is no hidden layer; those are '0'"):
        rescale(net, {"2": 2.0})
    with pytest.raises(ValueError, match="factors\\['0'\\] must be finite and > 0"):
        rescale(net, {"0": [1.0, -1.0, 1.0]})
    with pytest.raises(ValueError, match="give either factors or a seed"):
        rescale(net)
    with pytest.raises(ValueError, match=r"spread=0.5 must be"):
        rescale(net, seed=0, spread=0.5)


# --- nothing changes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("kind", [Biased, Normalised])
def test_the_model_stays_as_it_was(kind, mode):
    net = kind().train()
    net(torch.randn(4, *net.shape, dtype=torch.float64))[0].sum().backward()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(0))
    for module in net.modules():
        module.register_forward_pre_hook(lambda *_: calls.append(1))
    before = pickle.dumps([net.state_dict(), [w.grad for w in net.parameters()]])
    kept, random = {name: set(m.__dict__) for name, m in net.named_modules()}, torch.get_rng_state()
    with mode():
        Path().scales(net, net.shape)
        path_norm(net, 2, net.shape)
    assert pickle.dumps([net.state_dict(), [w.grad for w in net.parameters()]]) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(m.training for m in net.modules())
    assert {name: set(m.__dict__) for name, m in net.named_modules()} == kept
    assert not calls


def test_traced_once_and_again_when_a_module_was_exchanged():
    net = relu_net(3, 4, 2)
    first = traced_graph(net)[0]
    γ = Path().scales(net)
    with torch.no_grad():
        net[0].weight.mul_(2)
    net[2].weight = nn.Parameter(3 * net[2].weight.detach())
    assert traced_graph(net)[0] is first
    assert not torch.equal(Path().scales(net)["2.weight"], γ["2.weight"])
    net[2] = nn.Linear(4, 1).double()
    assert path_norm(net) == path_norm(copy.deepcopy(net))
    assert traced_graph(net)[0] is not first
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_path_is_a_value():
    assert repr(Path()) == "Path(2)"
    assert repr(Path(3.5)) == "Path(3.5)"
    assert Path(2) == Path(2.0) != Path(1)
    assert pickle.loads(pickle.dumps(Path(1))) == copy.deepcopy(Path(1)) == Path(1)
    assert len({Path(), Path(2)}) == 1


def test_compiled_and_wrapped_models_keep_their_names():
    net = relu_net(3, 4, 2)
    γ = Path().scales(net)
    wrapped = torch.compile(net)
    for name, want in γ.items():
        assert torch.equal(Path().scales(wrapped)[f"_orig_mod.{name}"], want)
    assert path_norm(nn.DataParallel(net)) == path_norm(net)
