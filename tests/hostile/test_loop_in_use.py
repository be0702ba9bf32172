"""The loop in real hands: shapes that broadcast, hooks that are passed over, optimizers of another model, odd data."""

import contextlib
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import optimizer as step_hooks
from torch.utils.data import DataLoader, TensorDataset

import tether
from tether import methods

F = nn.functional
X = torch.linspace(-1, 1, 24).unsqueeze(1)
LINE = 2 * X + 1
LABELS = (X[:, 0] > 0).long()


class Flat(nn.Module):
    """A line whose output is (N,) already."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x):
        return self.line(x).squeeze(-1)


def perceptron():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def classifier():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))


# shapes


@pytest.mark.parametrize("shape", [(24,), (24, 1)])
@pytest.mark.parametrize("net", [Flat, lambda: nn.Linear(1, 1)], ids=["(N,)", "(N, 1)"])
@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, nn.MSELoss(), nn.L1Loss(), partial(F.huber_loss, delta=2.0)],
    ids=["mse", "module", "l1", "partial"],
)
@pytest.mark.parametrize("how", ["tensors", "loader", "replicas", "replicas, loader", "replicas, each"])
def test_targets_take_the_shape_of_the_output(net, shape, loss, how):
    """The loss at the first step is that of the points one by one, whatever axes of length 1 there are."""
    y = LINE.reshape(shape)
    model = tether.Replicas(net, 3) if "replicas" in how else net()
    data = DataLoader(TensorDataset(X, y), batch_size=24) if "loader" in how else (X, y)
    if "each" in how:
        data = (X.expand(3, *X.shape), y.expand(3, *y.shape))
    nets = list(model) if "replicas" in how else [model]
    expected = [float(loss(one(X).detach().reshape(24), LINE.reshape(24))) for one in nets]
    record = tether.train(model, methods.sgd(model, lr=0.1), data, loss, steps=1, log_every=1, each="each" in how)
    assert record.losses.reshape(-1).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_net_with_flat_outputs_learns_the_line():
    net = Flat()
    record = tether.train(net, methods.sgd(net, lr=0.5), (X, LINE), F.mse_loss, steps=200)
    assert float(record.losses[-1]) < 1e-10
    assert float(net.line.weight.detach()) == pytest.approx(2, abs=1e-4)


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits, F.l1_loss], ids=["mse", "bce", "l1"])
def test_targets_that_cannot_agree_are_refused_with_both_shapes(many, loss):
    model = tether.Replicas(classifier, 2) if many else classifier()
    with pytest.raises(ValueError, match=r"output has shape \(24, 2\) and the target \(24,\)|\(24, 2\).*\(24, 1\)"):
        tether.train(model, methods.sgd(model), (X, LINE[:, 0]), loss, steps=1)


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize(
    "loss", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)], ids=["function", "module"]
)
@pytest.mark.parametrize("targets", [torch.zeros(24, dtype=torch.long), torch.ones(24, 1)], ids=["labels", "shares"])
def test_the_cross_entropy_of_one_output_is_refused(many, loss, targets):
    model = tether.Replicas(perceptron, 2) if many else perceptron()
    with pytest.raises(ValueError, match=r"score for each class.*shape \(24, 1\).*binary_cross_entropy_with_logits"):
        tether.train(model, methods.sgd(model), (X, targets), loss, steps=1)


@pytest.mark.parametrize("many", [True, False])
def test_a_loss_that_is_no_scalar_is_refused(many):
    model = tether.Replicas(perceptron, 2) if many else perceptron()
    for loss in (partial(F.mse_loss, reduction="none"), nn.MSELoss(reduction="none"), lambda out, y: (out - y) ** 2):
        with pytest.raises(ValueError, match=r"the loss has shape \(24, 1\), not one number.*mean"):
            tether.train(model, methods.sgd(model), (X, LINE), loss, steps=1)
    tether.train(model, methods.sgd(model, lr=1e-3), (X, LINE), nn.MSELoss(reduction="sum"), steps=1)


def test_a_loss_without_a_gradient_is_refused():
    net = perceptron()
    with pytest.raises(ValueError, match="does not depend on the parameters"):
        tether.train(net, methods.sgd(net), (X, LINE), lambda out, y: F.mse_loss(out.detach(), y), steps=1)
    with pytest.raises(TypeError, match=r"the loss is 0\.5, a float: return a tensor"):
        tether.train(net, methods.sgd(net), (X, LINE), lambda out, y: 0.5, steps=1)


# the optimizer


def test_the_optimizer_of_another_model_is_refused():
    net, other = perceptron(), perceptron()
    with pytest.raises(ValueError, match=r"moves no parameter of this model.*methods\.sgd\(model\)"):
        tether.train(net, methods.sgd(other), (X, LINE), F.mse_loss, steps=1)
    head = torch.optim.SGD(net[2].parameters(), lr=0.1)  # a part of it is enough
    tether.train(net, head, (X, LINE), F.mse_loss, steps=1)


def test_a_frozen_model_is_told_and_left_alone():
    net = perceptron().requires_grad_(False)
    before = [p.clone() for p in net.parameters()]
    with pytest.warns(UserWarning, match="every parameter is frozen"):
        record = tether.train(net, torch.optim.SGD(net.parameters(), lr=0.1), (X, LINE), F.mse_loss, steps=2)
    assert len(record.losses) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


class Doubled(tether.Optimizer):
    """Steps and counts."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


@pytest.mark.parametrize("many", [True, False])
def test_the_step_of_a_subclass_is_called(many):
    model = tether.Replicas(perceptron, 2) if many else perceptron()
    opt = Doubled(model, lr=0.1)
    tether.train(model, opt, (X, LINE), F.mse_loss, steps=5)
    assert opt.calls == 5


def test_the_step_hooks_of_all_optimizers_are_called():
    model, calls = tether.Replicas(perceptron, 2), []
    opt = tether.Optimizer(model, lr=0.1)
    handles = [
        step_hooks.register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        step_hooks.register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    try:
        tether.train(model, opt, (X, LINE), F.mse_loss, steps=3)
    finally:
        for handle in handles:
            handle.remove()
    assert calls == ["before", "after"] * 3


def test_a_hook_that_a_callback_registers_is_called():
    model, calls = tether.Replicas(perceptron, 2), []
    opt = tether.Optimizer(model, lr=0.1)

    def register(step, model, opt):
        if step == 2:
            opt.register_step_post_hook(lambda *_: calls.append("step"))
            next(iter(model.parameters())).register_hook(lambda g: calls.append("gradient"))

    tether.train(model, opt, (X, LINE), F.mse_loss, steps=5, log_every=1, callbacks=[register])
    assert calls == ["gradient", "step"] * 3


def test_without_hooks_the_compiled_gradients_are_used(monkeypatch):
    model = tether.Replicas(perceptron, 2)
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("the slow path"))
    tether.train(model, tether.Optimizer(model, lr=0.1), (X, LINE), F.mse_loss, steps=3)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_layer_that_a_callback_freezes_stands_still(compiled):
    model, seen = tether.Replicas(perceptron, 2), []

    def freeze(step, model, opt):
        if step == 2:
            model.get_parameter("0.weight").requires_grad_(False)
        seen.append(model.get_parameter("0.weight").detach().clone())

    opt = tether.Optimizer(model, lr=0.1)
    tether.train(model, opt, (X, LINE), F.mse_loss, 4, log_every=1, callbacks=[freeze], compiled=compiled)
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[3])


HOOKS = {
    "tensor": lambda m, note: next(iter(m.parameters())).register_hook(note),
    "accumulated": lambda m, note: next(iter(m.parameters())).register_post_accumulate_grad_hook(note),
    "layer": lambda m, note: m.get_submodule("0").register_forward_hook(note),
    "layer, backward": lambda m, note: m.get_submodule("2").register_full_backward_hook(note),
    "replicas": lambda m, note: m.register_forward_hook(note),
    "replicas, before": lambda m, note: m.register_forward_pre_hook(note),
    "all modules": lambda m, note: nn.modules.module.register_module_forward_hook(note),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_see_what_they_wait_for(kind):
    model, calls = tether.Replicas(perceptron, 2), []
    handle = HOOKS[kind](model, lambda *_: calls.append(kind))
    try:
        tether.train(model, tether.Optimizer(model, lr=0.1), (X, LINE), F.mse_loss, steps=3)
    finally:
        handle.remove()
    assert len(calls) >= 3


def test_a_hook_that_halves_the_gradient_halves_the_step():
    nets = [tether.Replicas(perceptron, 2) for _ in range(2)]
    start = [p.detach().clone() for p in nets[0].parameters()]
    for p in nets[1].parameters():
        p.register_hook(lambda g: g / 2)
    for net in nets:
        tether.train(net, tether.Optimizer(net, lr=0.1), (X, LINE), F.mse_loss, steps=1)
    for p, q, at in zip(nets[0].parameters(), nets[1].parameters(), start, strict=True):
        torch.testing.assert_close(q - at, (p - at) / 2, rtol=1e-4, atol=1e-7)


# weights that sleep, parameters that are slow


class Sleepy(torch.optim.SGD):
    """Tells of what it is asked."""

    def __init__(self, *args, **fields):
        super().__init__(*args, **fields)
        self.told = []

    @contextlib.contextmanager
    def awake(self):
        self.told.append("wake")
        yield
        self.told.append("sleep")

    def release(self):
        self.told.append("release")


def test_callbacks_and_the_end_are_awake():
    net = perceptron()
    opt = Sleepy(net.parameters(), lr=0.1)
    seen = []
    look = [lambda *_: seen.append(opt.told[-1])]
    tether.train(net, opt, (X, LINE), F.mse_loss, steps=4, log_every=2, callbacks=look)
    assert seen == ["wake", "wake"]
    assert opt.told == ["wake", "sleep", "wake", "sleep", "release"]
    with pytest.raises(ZeroDivisionError):
        tether.train(net, opt, (X, LINE), F.mse_loss, steps=1, callbacks=[lambda *_: 1 / 0])
    assert opt.told[-1] == "release"


@pytest.mark.skipif(not hasattr(tether.Optimizer, "awake"), reason="the optimizer cannot wake yet")
def test_random_subsets_end_awake():
    net = classifier()
    opt = methods.random_subset(net, lr=0.1, k=5, probabilities={"*": 0.8})
    zeros = []

    def look(*_):
        zeros.append(sum(int((p == 0).sum()) for p in net.parameters()))

    tether.train(net, opt, (X, LABELS), steps=11, log_every=1, callbacks=[look])
    look()
    assert zeros == [0] * 12


@pytest.mark.parametrize("at", [5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["subset", "multirate"])
def test_a_run_in_two_calls_is_the_run_in_one(kind, at):
    """What the first call gives back at its end, the second takes again before its first forward pass."""
    nets = []
    for calls in ([23], [at, 23 - at]):
        torch.manual_seed(0)
        net = perceptron()
        if kind == "subset":
            opt = methods.random_subset(net, lr=0.1, k=3, probabilities={"*": 0.5})
        else:
            opt = methods.multirate_sgd(net, fast="2.*", k=3, lr=0.1)
        for steps in calls:
            tether.train(net, opt, (X, LINE), F.mse_loss, steps)
        nets.append(net)
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.skipif(not hasattr(tether.Optimizer, "release"), reason="the optimizer cannot release yet")
def test_slow_parameters_ask_for_gradients_after_the_run():
    net = perceptron()
    opt = methods.multirate_sgd(net, fast="2.*", k=5, lr=0.1)
    tether.train(net, opt, (X, LINE), F.mse_loss, steps=7)
    assert all(p.requires_grad for p in net.parameters())


# data and counts


class Dictionaries:
    def __iter__(self):
        yield {"input": X, "label": LINE}


ODD = {
    "one tensor": (X, TypeError, r"one tensor of shape \(24, 1\), without targets: pass a pair"),
    "one of a pair": ((X,), TypeError, "a tuple of Tensor: pass a pair"),
    "no target": ((X, None), TypeError, "a tuple of Tensor and NoneType: pass a pair"),
    "arrays": ((X.numpy(), LINE.numpy()), TypeError, "a tuple of ndarray and ndarray: pass a pair .* of tensors"),
    "a dict": ({"x": X, "y": LINE}, TypeError, "a dict with the keys 'x', 'y': pass a pair"),
    "dict batches": (Dictionaries(), TypeError, "a batch is a dict with the keys 'input', 'label': it must be a pair"),
    "lone batches": (DataLoader(X, 8), TypeError, r"a batch is a tensor of shape \(8, 1\)"),
    "triples": ([(X, LINE, X)] * 3, TypeError, "a batch is a tuple of 3"),
    "a data set": (TensorDataset(X, LINE), TypeError, r"holds points and no batches: pass DataLoader\(data"),
    "a number": (3, TypeError, "data=3 is not iterable"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_data_are_refused_by_what_is_expected(kind):
    data, error, message = ODD[kind]
    net = perceptron()
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(error, match=message):
        tether.train(net, methods.sgd(net), data, F.mse_loss, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_generator_is_gone_through_once():
    net = perceptron()
    batches = ((X, LINE) for _ in range(3))
    with pytest.raises(ValueError, match=r"used up after 3 batches, and steps=5.*list of batches or a DataLoader"):
        tether.train(net, methods.sgd(net), batches, F.mse_loss, steps=5)
    with pytest.raises(ValueError, match="used up after 0 batches"):
        tether.train(net, methods.sgd(net), batches, F.mse_loss, steps=5)
    endless = iter(lambda: (X, LINE), None)
    assert tether.train(net, methods.sgd(net), endless, F.mse_loss, steps=5).steps[-1] == 5


def test_no_batch_more_is_drawn_than_is_used():
    net, drawn = perceptron(), []
    tether.train(net, methods.sgd(net), ((drawn.append(0), (X, LINE))[1] for _ in range(9)), F.mse_loss, steps=4)
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("loss", "message"),
    [(nn.MSELoss, r"loss=MSELoss is a class: make one of it, loss=MSELoss\(\)"), ("mse", "loss='mse' must be a func")],
    ids=["class", "string"],
)
def test_a_loss_is_a_function(loss, message):
    net = perceptron()
    with pytest.raises(TypeError, match=message):
        tether.train(net, methods.sgd(net), (X, LINE), loss, steps=1)


@dataclass
class Scaled:
    """A loss that cannot be hashed."""

    by: float

    def __call__(self, out, y):
        return self.by * (out - y).square().mean()


@pytest.mark.parametrize("many", [True, False])
def test_a_loss_may_be_a_dataclass(many):
    model = tether.Replicas(perceptron, 2) if many else perceptron()
    record = tether.train(model, methods.sgd(model), (X, LINE), Scaled(2.0), steps=1)
    assert record.losses.numel() == 1 + many


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_counts_may_be_numpys(kind):
    net = perceptron()
    counts = {"steps": kind(4), "batch": kind(5), "log_every": kind(2), "seed": kind(3)}
    assert tether.train(net, methods.sgd(net), (X, LINE), F.mse_loss, **counts).steps == [2, 4]
    counts = {"draws": kind(2), "thin": kind(3), "burn_in": kind(1), "batch": kind(5)}
    assert tether.sample(net, methods.sgld(net), (X, LINE), F.mse_loss, **counts)["0.bias"].shape == (1, 2, 8)


@pytest.mark.parametrize("name", ["steps", "batch", "log_every", "seed"])
def test_counts_are_whole(name):
    net = perceptron()
    with pytest.raises(TypeError, match=f"{name}=2.5 must be a whole number"):
        tether.train(net, methods.sgd(net), (X, LINE), F.mse_loss, **{name: 2.5})


# records


def test_what_callbacks_return_in_changing_shapes_is_kept():
    net = perceptron()

    def growing(step, *_):
        return {"sizes": torch.ones(step), "step": step}

    with pytest.warns(UserWarning, match=r"'sizes' of shape \(2,\) at step 2, and of shape \(1,\) before") as warned:
        record = tether.train(net, methods.sgd(net), (X, LINE), F.mse_loss, 5, log_every=1, callbacks=[growing])
    assert len(warned) == 1
    assert [len(row) for row in record.metrics["sizes"]] == [1, 2, 3, 4, 5]
    assert record.metrics["step"].tolist() == [1, 2, 3, 4, 5]
    assert len(record.losses) == 5


@pytest.mark.parametrize(
    ("found", "message"), [(0.5, "a callback returned 0.5: return None or"), ({"a": "b"}, "returned 'a': 'b', which")]
)
def test_what_cannot_be_recorded_is_named_at_once(found, message):
    net = perceptron()
    with pytest.raises(TypeError, match=message):
        tether.train(net, methods.sgd(net), (X, LINE), F.mse_loss, 5, log_every=1, callbacks=[lambda *_: found])


# sampling


def test_sampling_needs_a_temperature():
    net = perceptron()
    with pytest.raises(ValueError, match=r"every part has temperature 0.*langevin\(model"):
        tether.sample(net, methods.langevin(net, temperature=0.0), (X, LINE), F.mse_loss, draws=2)
    with pytest.raises(TypeError, match=r"torch's SGD has no temperature.*langevin\(model"):
        tether.sample(net, torch.optim.SGD(net.parameters(), lr=0.1), (X, LINE), F.mse_loss, draws=2)
    some = tether.Optimizer(net, [tether.Part("0.*", temperature=1e-3), tether.Part("*")], lr=0.1)
    tether.sample(net, some, (X, LINE), F.mse_loss, draws=2)


def test_quantities_of_changing_shape_are_refused_at_once():
    net, calls = perceptron(), []

    def growing(model):
        calls.append(0)
        return torch.ones(len(calls))

    with pytest.raises(ValueError, match=r"quantity 'size' has shape \(2,\) at step 2 and had \(1,\)"):
        tether.sample(net, methods.sgld(net), (X, LINE), F.mse_loss, 50, 1, quantities={"size": growing})
    assert len(calls) == 2


# another default device


@pytest.mark.parametrize("kind", ["one", "replicas", "replicas, each"])
def test_a_default_device_that_is_not_the_data_s_changes_nothing(kind):
    losses = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        model = perceptron() if kind == "one" else tether.Replicas(perceptron, 2)
        data = (X.expand(2, 24, 1), LINE.expand(2, 24, 1)) if "each" in kind else (X, LINE)
        options = {"each": "each" in kind, "compiled": False, "callbacks": [lambda step, *_: {"step": step}]}
        torch.set_default_device(device)
        try:
            record = tether.train(
                model, torch.optim.SGD(model.parameters(), 0.1), data, F.mse_loss, 4, None, 1, **options
            )
        finally:
            torch.set_default_device(None)
        assert record.metrics["step"].tolist() == [1, 2, 3, 4]
        losses.append(record.losses)
    assert torch.equal(*losses)
