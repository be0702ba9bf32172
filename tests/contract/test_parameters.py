"""Every method on every kind of parameter: dtypes, frozen, unused, tied, odd shapes and layouts, odd gradients."""

import copy
import math

import pytest
import torch
from rows import ROWS, assert_same, batch, every_method, network, push, refused, snapshot, train
from torch import nn

import tether
from tether import native


def loss_of(model, opt):
    """The loss on twenty batches that training does not see, with all weights awake."""
    batches = [batch(10_000 + i, next(model.parameters()).dtype) for i in range(20)]
    with torch.no_grad(), opt.awake():
        return sum(float((model(x) - y).square().mean()) for x, y in batches)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_trains_in_every_dtype(name, dtype):
    model = network(name, dtype=dtype)
    opt = ROWS[name].build(model, lr=ROWS[name].trains_at)
    before = loss_of(model, opt)
    train(model, opt, 60)
    assert loss_of(model, opt) < 0.9 * before
    for param in model.parameters():
        assert param.dtype is dtype
        assert param.isfinite().all()
        for key, value in opt.state[param].items():
            # torch leaves the dtype of "step" alone; averages, and points and momenta on a surface, are never in half
            wide = dtype is torch.bfloat16 and (key == "rms" or (ROWS[name].constrained and param.dim() > 1))
            assert key == "step" or value.dtype is (torch.float32 if wide else dtype)
            assert value.isfinite().all()


class Mixed(nn.Module):
    """Layers of three precisions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8, dtype=torch.bfloat16)
        self.second = nn.Linear(8, 8, dtype=torch.float32)
        self.third = nn.Linear(8, 1, dtype=torch.float64)

    def forward(self, x):
        x = torch.tanh(self.first(x.bfloat16())).float()
        return self.third(torch.tanh(self.second(x)).double())


@every_method
@pytest.mark.parametrize("foreach", [True, False])
def test_mixed_dtypes_in_one_model(name, foreach):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Mixed()
    if ROWS[name].measured:
        refused(name, model, r"'forward' \(bfloat16\) is not positively homogeneous")
        return
    dtypes = [param.dtype for param in model.parameters()]
    opt = ROWS[name].build(model, lr=ROWS[name].trains_at, foreach=foreach)
    before = loss_of(model, opt)
    train(model, opt, 60)
    assert loss_of(model, opt) < 0.9 * before
    assert [param.dtype for param in model.parameters()] == dtypes
    for param in model.parameters():
        wide = ROWS[name].constrained and param.dtype is torch.bfloat16 and param.dim() > 1
        expected = torch.float32 if wide else param.dtype
        for key, value in opt.state[param].items():
            assert key == "step" or value.dtype is torch.promote_types(
                expected, torch.float32 if key == "rms" else expected
            )


@every_method
@pytest.mark.parametrize("path", ["no compiler", "tensor by tensor"])
def test_all_paths_agree(name, path, monkeypatch):
    fast, other = network(name, dtype=torch.float64), network(name, dtype=torch.float64)
    train(fast, ROWS[name].build(fast, weight_decay=0.1), 10)
    if path == "no compiler":
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    train(other, ROWS[name].build(other, weight_decay=0.1, foreach=path == "no compiler"), 10)
    for x, y in zip(fast.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


@every_method
def test_frozen_parameters_are_left_alone(name):
    model = network(name)
    model[0].bias.requires_grad_(False)
    opt = ROWS[name].build(model)
    train(model, opt, 3)
    model[2].weight.requires_grad_(False)  # and frozen on the way
    model[2].weight.grad = None
    frozen = model[2].weight.clone()
    train(model, opt, 3, start=3)
    assert torch.equal(model[0].bias, network(name)[0].bias)
    assert model[0].bias not in opt.state
    assert torch.equal(model[2].weight, frozen)
    assert not torch.equal(model[0].weight, network(name)[0].weight)


@every_method
@pytest.mark.parametrize("missing", ["0.weight", "2.bias"])
def test_a_parameter_without_gradient_stands_still_and_disturbs_nobody(name, missing):
    # coupling=0 holds the thermostat, which others share, so that theirs must be the very same steps
    model, twin = network(name), network(name)
    opt, other = (ROWS[name].build(m, coupling=0.0) for m in (model, twin))
    push(model, opt, steps=3)  # a slow part moves along between its steps, and is asked again at the fourth
    push(twin, other, steps=3)
    before = snapshot(model, opt)
    push(model, opt, without=missing)
    push(twin, other)
    after = snapshot(model, opt)
    for key in before:
        if key.endswith(missing):
            assert torch.equal(before[key], after[key])
    push(model, opt, steps=2)
    push(twin, other, steps=2)
    for key, param in model.named_parameters():
        if key != missing and not (ROWS[name].measured or ROWS[name].paced):
            torch.testing.assert_close(param, twin.get_parameter(key), rtol=0, atol=1e-6)


@every_method
def test_a_first_gradient_that_comes_late(name):
    model, twin = network(name), network(name)
    opt, other = (ROWS[name].build(m, coupling=0.0) for m in (model, twin))
    push(model, opt, steps=3, without="0.bias")
    momentum = opt.state.get(model[0].bias, {}).get("momentum")
    assert momentum is None or not momentum.any()  # rhythms with state of their own have it from the start
    assert torch.equal(model[0].bias, network(name)[0].bias)
    push(model, opt, steps=3)
    push(twin, other, steps=6)
    assert not torch.equal(model[0].bias, network(name)[0].bias)
    for key, param in model.named_parameters():
        if key != "0.bias" and not (ROWS[name].measured or ROWS[name].paced):
            torch.testing.assert_close(param, twin.get_parameter(key), rtol=0, atol=1e-6)


@every_method
def test_no_gradient_at_all(name):
    model = network(name)
    opt = ROWS[name].build(model)
    before = [param.detach().clone() for param in model.parameters()]
    opt.step(lambda: torch.zeros(()))
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), before, strict=True))


class Odd(nn.Module):
    """0-dimensional, empty, transposed, strided and channels-last parameters; `plain` makes all contiguous."""

    def __init__(self, plain):
        super().__init__()
        self.inner, self.outer = nn.Module(), nn.Module()
        self.inner.scalar = nn.Parameter(torch.tensor(0.5))
        self.inner.empty = nn.Parameter(torch.empty(0, 3))
        self.inner.transposed = nn.Parameter(torch.linspace(-1, 1, 48).view(8, 6).t())
        self.inner.strided = nn.Parameter(torch.linspace(-1, 1, 48).view(24, 2)[:, 0])
        kernel = torch.linspace(-1, 1, 48).view(2, 2, 3, 4)
        self.outer.kernel = nn.Parameter(kernel.contiguous(memory_format=torch.channels_last))
        self.outer.scalar = nn.Parameter(torch.tensor(-0.5))
        self.outer.empty = nn.Parameter(torch.empty(0))
        if plain:
            for param in self.parameters():
                param.data = param.data.contiguous()


@every_method
@pytest.mark.parametrize("foreach", [True, False])
def test_layout_does_not_matter(name, foreach):
    odd, plain = Odd(plain=False), Odd(plain=True)
    if ROWS[name].measured:
        refused(name, odd, "paths start at one input tensor")
        return
    assert not odd.inner.transposed.is_contiguous()
    assert not odd.outer.kernel.is_contiguous()
    strides = [param.stride() for param in odd.parameters()]
    for model in (odd, plain):
        push(model, ROWS[name].build(model, foreach=foreach, weight_decay=0.1), steps=4)
    for (key, x), y in zip(odd.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")
    assert [param.stride() for param in odd.parameters()] == strides
    assert not torch.equal(odd.inner.scalar, torch.tensor(0.5))


@every_method
def test_a_gradient_may_be_laid_out_differently_from_its_parameter(name):
    model, plain = network(name), network(name)
    opt, other = (ROWS[name].build(m) for m in (model, plain))

    def closure_for(net, optimizer, transposed):
        x, y = batch(0)

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            weight = net[0].weight
            if transposed and weight.grad is not None:
                weight.grad = weight.grad.t().contiguous().t()
                assert not weight.grad.is_contiguous()
            return loss

        return closure

    for _ in range(4):
        opt.step(closure_for(model, opt, True))
        other.step(closure_for(plain, other, False))
    for x, y in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


@every_method
def test_a_channels_last_network_trains_like_a_contiguous_one(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), ROWS[name].activation(), nn.Conv2d(4, 1, 3))
        images = torch.randn(4, 2, 6, 6)
    if ROWS[name].measured:
        refused(name, model, r"'0' \(Conv2d\), does not tell the shape of an input")
        return
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    opts = [ROWS[name].build(net) for net in (model, twin)]  # kept: sleepers wake with the end of their optimizer
    inputs = (images, images.contiguous(memory_format=torch.channels_last))
    for net, opt, x in zip((model, twin), opts, inputs, strict=True):

        def closure(net=net, opt=opt, x=x):
            opt.zero_grad()
            loss = (net(x) - 1).square().mean()
            loss.backward()
            return loss

        for _ in range(5):
            opt.step(closure)
    assert twin[0].weight.is_contiguous(memory_format=torch.channels_last)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-6)


class Three(nn.Module):
    """Three square layers, the second perhaps sharing the weight of the first."""

    def __init__(self, tied):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        if tied:
            self.b.weight = self.a.weight


@every_method
def test_a_tied_parameter_moves_once_per_step(name):
    tied, free = Three(tied=True), Three(tied=False)
    if ROWS[name].measured:
        refused(name, tied, "paths start at one input tensor")
        return
    free.b.weight.requires_grad_(False)
    shared = ROWS[name].build(tied, coupling=0.0)
    names = [key for group in shared.param_groups for key in group["param_names"]]
    assert sorted(names) == ["a.bias", "a.weight", "b.bias", "c.bias", "c.weight"]
    apart = ROWS[name].build(free, coupling=0.0)
    for model, opt in ((tied, shared), (free, apart)):

        def closure(model=model):
            for param in model.parameters():
                param.grad = torch.full_like(param, 0.1) if param.requires_grad else None
            return torch.zeros(())

        for _ in range(3):
            opt.step(closure)
    assert tied.b.weight is tied.a.weight
    for key, param in tied.named_parameters():
        torch.testing.assert_close(param, free.get_parameter(key), rtol=0, atol=1e-6)


@every_method
@pytest.mark.filterwarnings("ignore:.*the thermostat has run away upwards")  # by gradients of 1e15 it must
@pytest.mark.parametrize("scale", [1e15, 1e-38, 1e-44])
def test_huge_and_tiny_gradients_keep_everything_finite(name, scale):
    model = network(name)
    opt = ROWS[name].build(model)
    push(model, opt, scale=scale, steps=4)
    for key, value in snapshot(model, opt).items():
        assert value.double().isfinite().all(), key
    if not ROWS[name].noisy and scale < 1:
        rounding = 1e-6 if ROWS[name].measured else 0.0  # to the metric's coordinates and back
        with opt.awake():
            for x, y in zip(model.parameters(), network(name).parameters(), strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=rounding)


@every_method
def test_a_finite_gradient_whose_sum_overflows_is_finite(name):
    model = network(name)
    start = snapshot(model, ROWS[name].build(model))
    opt = ROWS[name].build(model, lr=1e-3, on_nonfinite="raise")
    push(model, opt, scale=1.5e38)  # float32 ends at 3.4e38: each is finite, their sum is not
    assert model[0].weight.grad.abs().sum() == math.inf
    for key, param in model.named_parameters():
        assert not param.isnan().any()
        # energies of 1e38 are known to no more than 1e22: a proposal may be rejected
        assert ROWS[name].tested or not torch.equal(param, start[f"θ {key}"])


@every_method
def test_autograd_sees_that_the_parameters_changed(name):
    # A backward pass through weights that were moved after its forward pass must raise, as with torch's own.
    model = network(name)
    opt = ROWS[name].build(model)
    train(model, opt, 3)  # so that a slow part asks for its gradient again
    versions = [param._version for param in model.parameters()]
    x, y = batch(0)
    loss = (model(x) - y).square().mean()
    push(model, opt)
    assert all(param._version > old for param, old in zip(model.parameters(), versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_method
def test_parameters_whose_memory_was_replaced(name):
    model, twin = network(name), network(name)
    opt, other = (ROWS[name].build(m) for m in (model, twin))
    train(model, opt, 2)
    train(twin, other, 2)
    old = [param.data for param in model.parameters()]
    kept = [data.clone() for data in old]
    for param in model.parameters():
        param.data = param.data.clone()
    train(model, opt, 3, start=2)
    train(twin, other, 3, start=2)
    assert_same(snapshot(model, opt), snapshot(twin, other))
    assert all(torch.equal(x, y) for x, y in zip(old, kept, strict=True))


@every_method
def test_a_model_whose_dtype_changes_on_the_way(name):
    # torch's optimizers go on, with momenta in the old precision; here the run must go on and make sense.
    model, twin = network(name), network(name, dtype=torch.float64)
    opt, other = (ROWS[name].build(m) for m in (model, twin))
    twin.load_state_dict(model.state_dict())  # a random start on a surface is drawn in the parameters' precision
    for net, optimizer in ((model, opt), (twin, other)):
        for group in optimizer.param_groups:
            group["temperature"] = group["noise"] = 0.0
        train(net, optimizer, 3)
    model.double()
    opt.zero_grad()
    for net, optimizer in ((model, opt), (twin, other)):
        train(net, optimizer, 3, start=3)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@every_method
@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="a gradient has its parameter's dtype")
def test_a_gradient_of_another_dtype(name):
    model, twin = network(name), network(name)
    for param in model.parameters():
        param.grad_dtype = torch.float64
    opt, other = (ROWS[name].build(m) for m in (model, twin))

    for _ in range(3):
        opt.step(lambda: push_gradients(model, torch.float64))
        other.step(lambda: push_gradients(twin, torch.float32))
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def push_gradients(model, dtype):
    for param in model.parameters():
        param.grad = torch.linspace(-1, 1, param.numel(), dtype=dtype).view(param.shape)
    return torch.zeros(())


def test_wrappers_do_not_change_names():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    for wrapped in (torch.compile(model), torch.nn.DataParallel(model), torch.compile(torch.nn.DataParallel(model))):
        opt = tether.Optimizer(wrapped, [tether.Part("0.weight"), tether.Part("*")], lr=0.1)
        assert opt.param_groups[0]["param_names"] == ["0.weight"]
        assert opt.model is model
        assert tether.methods.random_subset(wrapped).param_groups[0]["param_names"] == ["0.weight"]
