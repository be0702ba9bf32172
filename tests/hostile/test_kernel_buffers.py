"""What is handed to the compiled kernel: tables that agree with the C, buffers that are refused or taken by torch."""

import copy
import math
import re
from array import array
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import tether
from tether import native
from tether.ensemble.perceptrons import Perceptrons
from tether.metrics import edges
from tether.native import build

F = nn.functional

SOURCE = Path(native.__file__).parent
needs_kernel = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def letter(parameter):
    if "*" in parameter or "[" in parameter:
        return "a"
    return "d" if "double" in parameter else "u" if "uint64_t" in parameter else "n"


def test_the_table_of_kernels_is_that_of_the_c_files():
    text = "".join((SOURCE / name).read_text(encoding="utf-8") for name in build.SOURCES)
    found = {}
    for name, arguments in re.findall(r"^int64_t (?:NAME\()?(\w+)\)?\(([^)]*)\) \{", text, flags=re.M):
        found[name] = "".join(letter(parameter) for parameter in arguments.split(","))
    declared = {**native.KERNELS, **native.INTEGER}
    assert found == {name: types.replace(" ", "") for name, types in declared.items()}


@needs_kernel
def test_what_python_and_c_share_is_compared_at_load(monkeypatch):
    monkeypatch.setattr(native, "CHUNK", 4096)
    with pytest.warns(UserWarning, match=r"the library says .*2048.*native.py .*4096"):
        assert "4096" in native._build_once.__wrapped__()


# what users hand over


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as quantisation and sharding libraries have them."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def bare(x):
            return x.inner if isinstance(x, cls) else x

        if func is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        args, kwargs = tree_map(bare, (args, kwargs or {}))
        return func(*args, **kwargs)


class Tagged(torch.Tensor):
    """A subclass with memory."""


SURFACES = [tether.Free(), tether.Circle(1.0), tether.Sphere(1.0), tether.Orthogonal(), tether.SpectralBall(1.0)]


def moved(gradient, on, word="BAOAB", steps=2, rows=4, columns=3):
    """Where a weight ends whose gradient is given as `gradient` makes it."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(columns, rows, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(rows, columns, generator=generator) / 3)
    opt = tether.Optimizer(layer, lr=0.1, word=word, temperature=0.01, on=on)
    for _ in range(steps):
        g = torch.randn(rows, columns, generator=generator)
        layer.weight.grad = gradient(g)
        opt.step()
    return layer.weight.detach().clone()


GRADIENTS = {
    "negative bit": lambda g: torch._neg_view(-g),
    "imaginary part of a conjugate": lambda g: torch.complex(torch.zeros(()), -g).conj().imag,
    "transposed": lambda g: g.t().contiguous().t(),
    "subclass": lambda g: g.as_subclass(Tagged),
    "strided": lambda g: torch.stack((g, g), -1)[..., 0],
}


@pytest.mark.parametrize("on", SURFACES, ids=repr)
@pytest.mark.parametrize("kind", GRADIENTS)
def test_a_gradient_of_any_kind_moves_as_a_plain_one(kind, on):
    torch.testing.assert_close(moved(GRADIENTS[kind], on), moved(lambda g: g, on), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("on", SURFACES, ids=repr)
def test_a_gradient_without_memory_is_no_crash(on):
    plain = moved(lambda g: g, on)
    torch.testing.assert_close(moved(Wrapper, on), plain, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_memory_is_no_crash():
    inner = torch.ones(3)
    weight = nn.Parameter(Wrapper(inner))
    opt = tether.Optimizer([("w", weight)], lr=0.1, word="BAOA", friction=0.0)
    weight.grad = Wrapper(torch.ones(3))
    opt.step()
    torch.testing.assert_close(inner, torch.full((3,), 1 - 0.1**2))  # p = −h, θ = 1 + h p


def test_a_parameter_with_the_negative_bit():
    layer = nn.Linear(3, 2, bias=False)
    start = layer.weight.detach().clone()
    layer.weight.data = torch._neg_view(-layer.weight.data)
    assert layer.weight.is_neg()
    opt = tether.Optimizer(layer, lr=0.1, word="BAOA")
    layer.weight.grad = torch.ones(2, 3)
    opt.step()
    other = nn.Linear(3, 2, bias=False)
    other.weight.data = start.clone()
    opt = tether.Optimizer(other, lr=0.1, word="BAOA")
    other.weight.grad = torch.ones(2, 3)
    opt.step()
    torch.testing.assert_close(layer.weight.resolve_neg(), other.weight)


@needs_kernel
def test_addresses_are_given_for_plain_tensors_only():
    x = torch.ones(4)
    given = native.addresses([x, x[:2]], torch.float32, [4, 2])
    assert list(given) == [x.data_ptr(), x.data_ptr()]
    bad = [
        x.double(),
        x.to("meta"),
        x[::2],
        x[:3],
        torch.ones(5),
        torch._neg_view(x),
        torch._efficientzerotensor((4,)),
        Wrapper(x),
        x.as_subclass(Tagged),
        torch.ones(4, dtype=torch.complex64).conj(),
    ]
    for y in bad:
        assert native.addresses([x, y], torch.float32, [4, 4]) is None, y
        with pytest.raises(
            native.KernelError, match=r"cannot go to the kernel, which needs .* 4 elements of torch.float32"
        ):
            native.where("a test", [x, y], torch.float32, 4)
    assert list(native.addresses([torch.empty(0)], torch.float32, [0])) == [0]


@needs_kernel
def test_what_stays_is_examined_again_when_it_moves():
    x = nn.Parameter(torch.ones(2, 2))
    held = native.Held([x], torch.float32, [4])
    assert held.still()
    first = held.at
    assert held.still()
    assert held.at is first
    x.data = torch.arange(4.0).view(2, 2).t()
    assert not held.still()
    x.data = torch.ones(2, 2)
    assert held.still()
    x.data = x.data.double()
    assert not held.still()
    x.data = torch.ones(3, 3)
    assert not held.still()


def bounded(columns=0, rows=6, dtype=torch.float32, ops=((1, -1, 1.0, 0.1, 0.0, 0.0),), noise=(), **other):
    """One call of the kernel for circles or spheres, on good buffers but for those that are given."""
    width = columns + 1 if columns else 1
    good = {"θ": rows * max(columns, 1), "q": rows * width, "p": rows * width, "g": rows * max(columns, 1)}
    vectors = [other.get(name, torch.full((n,), 0.5, dtype=dtype)) for name, n in good.items()]
    kind = native.Bounded(rows, columns, 1, array("d", [1.0] * (rows if columns else 1)))
    native.bounded(other.get("kind", kind), vectors, noise, native.pack(ops))
    return vectors


@needs_kernel
@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("name", ["θ", "q", "p", "g"])
def test_circles_and_spheres_refuse_buffers_that_do_not_fit(name, columns):
    bounded(columns)
    for wrong in (torch.ones(5), torch.ones(100, dtype=torch.float64), torch.ones(60)[::2]):
        with pytest.raises(native.KernelError, match="cannot go to the kernel"):
            bounded(columns, **{name: wrong})


@needs_kernel
def test_circles_and_spheres_refuse_ops_without_their_buffers():
    kick, drift, step = (0, -1, 1.0, 0.0, 0.1, 0.0), (1, -1, 1.0, 0.1, 0.0, 0.0), (2, -1, 1.0, 0.0, 0.1, 0.0)
    for columns in (0, 3):
        for ops, missing in (([kick], "g"), ([step], "g"), ([drift], "p"), ([kick], "p")):
            with pytest.raises(native.KernelError, match="a buffer is missing"):
                bounded(columns, ops=ops, **{missing: None})
        for op in ((3, -1, 1.0, 0.0, 0.0, 0.0), (-1, -1, 1.0, 0.0, 0.0, 0.0), (0, 0, 1.0, 0.0, 0.0, 1.0)):
            with pytest.raises(native.KernelError, match="does not exist"):
                bounded(columns, ops=[op])
        short = torch.ones(2)
        with pytest.raises(native.KernelError, match="size is out of range"):
            bounded(columns, ops=[(0, 0, 1.0, 0.0, 0.0, 1.0)], noise=[short])
    with pytest.raises(native.KernelError, match="size is out of range"):  # around a circle noise has two numbers
        bounded(0, ops=[(2, 0, 1.0, 0.0, 0.0, 1.0)], noise=[torch.ones(6)])
    with pytest.raises(native.KernelError, match="1 radii for 6 rows"):
        bounded(3, kind=native.Bounded(6, 3, 1, array("d", [1.0])))


@needs_kernel
def test_a_word_refuses_ops_without_their_buffers():
    layout, x = native.Layout([4]), torch.ones(4)
    at = native.addresses([x], torch.float32, [4])
    noise = native.Noise(bytes(8), 0, [0])
    for op, named in (
        ((0, 0, 1.0, 0.0, 0.0, 1.0), native.SILENCE),
        ((0, 1, 1.0, 0.0, 0.0, 1.0), noise),
        ((0, 8, 1.0, 0.0, 0.0, 1.0), native.Noise(bytes(8), 0, range(9))),
        ((0, -1, 1.0, 0.0, 0.0, 1.0), noise),
    ):
        with pytest.raises(native.KernelError, match="does not exist"):
            native.run(torch.float32, layout, native.pack([op]), named, p=at)
    for op in ((0, -1, 1.0, 0.0, 1.0, 0.0), (1, -1, 1.0, 1.0, 0.0, 0.0)):
        with pytest.raises(native.KernelError):
            native.run(torch.float32, layout, native.pack([op]), noise, θ=at)
    with pytest.raises(native.KernelError, match="size"):
        native.run(torch.float32, layout, native.pack([(0, -1, 1.0, 0.0, 0.0, 0.0)] * 2), noise, each=2, p=at)
    with pytest.raises(native.KernelError, match="2 keys for 1 tensors"):
        native.run(
            torch.float32, layout, native.pack([(0, 0, 1.0, 0.0, 0.0, 1.0)]), native.Noise(bytes(16), 0, [0]), p=at
        )
    pair = torch.ones(8)
    both = native.addresses([pair], torch.float32, [8])
    table = native.pack(
        [(0, 0, 1.0, 0.0, 0.0, 1.0), (0, 1, 1.0, 0.0, 0.0, 1.0)]
    )  # a row's draw differs from the other's
    with pytest.raises(native.KernelError, match="does not exist"):
        native.run(torch.float32, native.Layout([4], 2), table, native.Noise(bytes(8), 0, [0, 1]), each=2, p=both)
    assert torch.equal(pair, torch.ones(8))
    assert torch.equal(x, torch.ones(4))
    with pytest.raises(ValueError, match="1 lanes for 3 replicas"):
        native.Layout([4], 3, [0])
    with pytest.raises(ValueError, match="1 first entries for 2 tensors"):
        native.Layout([4, 4], first=[0])


@needs_kernel
def test_matrices_refuse_buffers_that_do_not_fit():
    kind = native.Stiefel(4, 2, True, 3e-7, 1.0, 60)
    q, out = torch.eye(4)[:, :2].contiguous(), torch.empty(1, 4, 2)
    drift = native.pack([(1, -1, 1.0, 0.1, 0.0, 0.0)])
    assert native.stiefel(kind, [q], [torch.zeros(4, 2)], [], [], out, torch.empty(1, 4, 2), drift) == []
    torch.testing.assert_close(out[0], q)
    for θ, p, g, to in (
        ([q[:3]], [q], [], out),
        ([q], [q.double()], [], out),
        ([q], [q], [q.t()], out),
        ([q], [q], [], torch.empty(4, 1)),
    ):
        with pytest.raises(native.KernelError):
            native.stiefel(kind, θ, p, g, [], to, torch.empty(1, 4, 2), drift)
    with pytest.raises(native.KernelError, match="a buffer is missing"):
        native.stiefel(kind, [q], [], [], [], out, None, drift)


# 38: an angle that a letter of one's own has moved


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_circles_turn_from_where_they_are(dtype):
    n, r = 1500, 1.5
    q = torch.linspace(-3, 3, n, dtype=dtype)
    p, g = torch.linspace(-2, 2, n, dtype=dtype), torch.linspace(1, -1, n, dtype=dtype)
    ops = [(1, -1, 1.0, 0.3, 0.0, 0.0), (2, -1, 1.0, 0.0, -0.2, 0.0), (0, -1, 0.9, 0.0, -0.1, 0.0)]
    θ, angle, momentum = r * q.sin(), q.clone(), p.clone()
    native.bounded(native.Bounded(n, 0, 1, array("d", [r])), [θ, angle, momentum, g], [], native.pack(ops))
    a = q + 0.3 / r * p
    a = torch.atan2(r * a.sin() - 0.2 * g, r * a.cos())
    close = {"rtol": 0, "atol": 2e-6 if dtype is torch.float32 else 1e-14}
    torch.testing.assert_close(θ, r * a.sin(), **close)
    torch.testing.assert_close(momentum, 0.9 * p - 0.1 * a.cos() * g, **close)


@needs_kernel
def test_a_step_around_a_circle_needs_no_gradient():
    q = torch.linspace(-1, 1, 700)
    noise, θ, angle = torch.randn(1400, generator=torch.Generator().manual_seed(0)), q.sin(), q.clone()
    ops = native.pack([(2, 0, 1.0, 0.0, 0.0, 0.1)])
    native.bounded(native.Bounded(700, 0, 1, array("d", [1.0])), [θ, angle, None, None], [noise], ops)
    pairs = noise.view(-1, 2)
    want = torch.atan2(q.sin() + 0.1 * pairs[:, 0], q.cos() + 0.1 * pairs[:, 1])
    torch.testing.assert_close(angle, want, rtol=0, atol=1e-6)


# 21: a default device


@pytest.mark.parametrize("on", SURFACES, ids=repr)
def test_another_default_device_changes_nothing(on):
    want = moved(lambda g: g, on)
    torch.set_default_device("meta")
    try:
        with torch.device("cpu"):
            layer = nn.Linear(3, 4, bias=False)
        generator = torch.Generator("cpu").manual_seed(0)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(4, 3, generator=generator, device="cpu") / 3)
        opt = tether.Optimizer(layer, lr=0.1, word="BAOAB", temperature=0.01, on=on)
        for _ in range(2):
            layer.weight.grad = torch.randn(4, 3, generator=generator, device="cpu")
            opt.step()
    finally:
        torch.set_default_device("cpu")
    assert torch.equal(layer.weight.detach(), want)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("compiled", [True, False])
def test_training_under_another_default_device(compiled, replacement):
    def run():
        with torch.device("cpu"):
            ens = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)), 3)
            x, y = torch.linspace(-1, 1, 40).view(20, 2), torch.linspace(0, 1, 20).view(20, 1)
        opt = tether.methods.adlala(ens, lr=0.1)
        settings = {"steps": 5, "batch": 4, "compiled": compiled, "replacement": replacement}
        tether.train(ens, opt, (x, y), F.mse_loss, **settings)
        return [p.detach().clone() for p in ens.parameters()]

    want = run()
    torch.set_default_device("meta")
    try:
        got = run()
    finally:
        torch.set_default_device("cpu")
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


# 40: Path


@pytest.mark.parametrize(
    "bias", [torch.full((4,), 2.0, dtype=torch.float64), torch.full((1,), 2.0)], ids=["dtype", "length"]
)
def test_a_path_with_a_bias_of_another_kind(bias):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    net[0].bias = nn.Parameter(bias)
    plain = copy.deepcopy(net)
    plain[0].bias = nn.Parameter(torch.full((4,), 2.0))
    want, got = tether.Path().scales(plain), tether.Path().scales(net)
    torch.testing.assert_close(got["2.weight"], want["2.weight"])
    assert got["0.bias"].shape == bias.shape


@needs_kernel
def test_products_with_edges_refuse_vectors_that_do_not_fit():
    w = torch.ones(4, 3)
    ones = torch.ones(1, 3, dtype=torch.float64)
    assert edges.product(ones, w, None, 2, None, {}).tolist() == [[3.0] * 4]
    for x, b in ((ones[:, :2], None), (ones.float(), None), (ones, torch.ones(2)), (ones, torch.ones(4).double())):
        with pytest.raises(native.KernelError):
            edges.product(x, w, b, 2, None, {})
    with pytest.raises(native.KernelError):
        edges.back(torch.ones(3, dtype=torch.float64), w, 2)
    g = torch.ones(4, 3)
    with pytest.raises(RuntimeError, match="size of tensor"):  # torch says what does not fit
        edges.divide(g, (torch.ones(5, 1), torch.ones(1, 3)), torch.empty_like(g))
    assert edges.divide(g, (torch.full((4, 1), 2.0), torch.ones(1, 1)), torch.empty_like(g)).tolist() == [[0.5] * 3] * 4


# 41 and 37: perceptrons


def perceptrons(activation=nn.ReLU, dtype=torch.float32, n=3, loss=F.mse_loss):
    def net():
        return nn.Sequential(nn.Linear(2, 6), activation(), nn.Linear(6, 2)).to(dtype)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 2, generator=generator, dtype=dtype)
    y = torch.randint(2, (10,), generator=generator) if loss is F.cross_entropy else x.flip(0).contiguous()
    ens = tether.Replicas(net, n)
    return ens, Perceptrons.make(ens, x, y, loss, False), x, y


@needs_kernel
def test_minibatches_are_checked_before_anything_is_written():
    ens, run, _, _ = perceptrons()
    run(torch.zeros(3, 4, dtype=torch.int64))
    before = [p.grad.clone() for p in ens.parameters()]
    for index in ([10], [-1], [2**40]):
        with pytest.raises(native.KernelError, match=r"index of a minibatch.*out of range"):
            run(torch.tensor(index).expand(3, 4).contiguous())
    for index in (
        torch.zeros(3, 4),
        torch.zeros(3, 4, dtype=torch.int32),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(3, 0, dtype=torch.int64),
    ):
        with pytest.raises(ValueError, match=r"torch.int64 of shape \(3, batch\)"):
            run(index)
    assert all(torch.equal(p.grad, g) for p, g in zip(ens.parameters(), before, strict=True))


@needs_kernel
def test_labels_that_changed_are_refused():
    _, run, _, _ = perceptrons(loss=F.cross_entropy)
    run(torch.zeros(3, 4, dtype=torch.int64))
    run.y[0] = 2
    with pytest.raises(native.KernelError, match="label"):
        run(torch.zeros(3, 4, dtype=torch.int64))


@needs_kernel
def test_replicas_that_changed_their_dtype_are_refused():
    ens, run, _, _ = perceptrons(dtype=torch.float64)
    index = torch.arange(4).expand(3, 4)
    run(index)
    ens.float()
    with pytest.raises(TypeError, match=r"torch.float32 on cpu now; data of torch.float64"):
        run(index)


@needs_kernel
def test_gradients_that_cannot_be_written_to_are_made_anew():
    ens, run, _, _ = perceptrons()
    index = torch.arange(4).expand(3, 4)
    run(index)
    want = [p.grad.clone() for p in ens.parameters()]
    first = next(iter(ens.parameters()))
    for grad in (
        torch._neg_view(torch.zeros_like(first)),
        torch.zeros(3, 2, 6).mT,
        torch.zeros_like(first).as_subclass(Tagged),
    ):
        first.grad = grad
        run(index)
        assert all(torch.equal(p.grad, g) for p, g in zip(ens.parameters(), want, strict=True))


def test_nets_that_do_not_fit_together_are_left_to_torch():
    bad = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(7, 1)), 2)
    x = torch.randn(5, 2)
    assert Perceptrons.make(bad, x, torch.zeros(5, 1), F.mse_loss, False) is None
    ens, _, _, _ = perceptrons()
    assert Perceptrons.make(ens, x, torch.zeros(4, 2), F.mse_loss, False) is None
    assert Perceptrons.make(ens, x, torch.zeros(4, dtype=torch.int64), F.cross_entropy, False) is None
    assert Perceptrons.make(ens, x.expand(2, 5, 2), torch.zeros(2, 5, 2), F.mse_loss, True) is None
    leaky = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(-0.5), nn.Linear(6, 1)), 2)
    assert Perceptrons.make(leaky, x, torch.zeros(5, 1), F.mse_loss, False) is None


ACTIVATIONS = [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Identity]
LOSSES = [F.mse_loss, F.binary_cross_entropy_with_logits, F.cross_entropy]


def by_autograd(ens, x, y, index, loss):
    for p in ens.parameters():
        p.grad = None
    out = ens(x[index], each=True)
    losses = torch.stack([loss(out[i], y[index[i]]) for i in range(len(out))])
    losses.sum().backward()
    return losses.detach(), [p.grad for p in ens.parameters()]


@needs_kernel
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_what_is_no_number_shows_as_it_does_in_torch(loss, activation, bad):
    index = torch.arange(10).expand(3, 10).contiguous()
    for at in range(4):
        ens, run, x, y = perceptrons(activation, loss=loss)
        with torch.no_grad():
            list(ens.parameters())[at][1].view(-1)[0] = bad
        losses = run(index)
        got = [p.grad.clone() for p in ens.parameters()]
        want_losses, want = by_autograd(ens, x, y, index, loss)
        assert losses.isfinite().tolist() == want_losses.isfinite().tolist()
        assert torch.equal(losses.isnan(), want_losses.isnan())
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a.isfinite().flatten(1).all(1), b.isfinite().flatten(1).all(1))
        assert run.finite == all(bool(x.isfinite().all()) for x in (losses, *got))


@needs_kernel
def test_a_replica_with_a_nan_weight_is_stopped():
    ens, _, x, y = perceptrons()
    with torch.no_grad():
        next(iter(ens.parameters()))[1, 0, 0] = math.nan
    opt = tether.methods.sgd(ens, lr=0.1)
    with pytest.warns(UserWarning, match="replica 1 has a loss that is not finite"):
        record = tether.train(ens, opt, (x, y), F.mse_loss, steps=3, batch=4)
    assert list(record.stopped) == [1]


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_activations_have_all_their_digits(activation, dtype):
    z = torch.cat([10.0 ** torch.linspace(-12, 1.3, 300, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    z = torch.cat((z, -z)).to(dtype)

    def net():
        layer = nn.Sequential(nn.Linear(1, 1, bias=False), activation()).to(dtype)
        nn.init.ones_(layer[0].weight)
        return layer

    # the mean square of f(z) over one point each
    ens = tether.Replicas(net, len(z))
    run = Perceptrons.make(ens, z.view(-1, 1), torch.zeros(len(z), 1, dtype=dtype), F.mse_loss, False)
    got = run(torch.arange(len(z)).view(-1, 1), gradient=False).sqrt()
    want = activation()(z.double()).abs()
    torch.testing.assert_close(got, want, rtol=8 * torch.finfo(dtype).eps, atol=1e-300)
