"""A step on an accelerator: nothing is asked of it, its operations are counted, and its numbers are those of the CPU.

There is no accelerator here. The meta device shows the first two. For the third, the CPU is treated as one.
"""

from math import inf, nan

import pytest
import torch
from ondevice import Counted, fill, on_meta, operations, tower
from rows import ROWS, assert_same, closure_for, network, one_gradient_methods, snapshot, train

import tether
from tether import Part

pytestmark = pytest.mark.filterwarnings("ignore")


def word(text, **fields):
    return lambda model: tether.Optimizer(model, lr=0.05, word=text, **fields)


def on(surface, text="OBA"):
    parts = [Part("*.weight", on=surface), Part("*")]
    return lambda model: tether.Optimizer(model, parts, lr=0.05, word=text, temperature=1e-3)


# a fixed number of operations, whatever the number of layers
FIXED = {
    "X": word("X"),
    "OBA": word("OBA"),
    "OBA with weight decay": word("OBA", weight_decay=1e-3),
    "X with noise": word("X", temperature=1e-3),
    "BAOAB with noise": word("BAOAB", temperature=1e-3),
    "BAOAB, skip": word("BAOAB", temperature=1e-3, on_nonfinite="skip"),
    "L": word("L", temperature=1e-3),
    "BACDEDCA": word("BACDEDCA", temperature=1e-3, coupling=1e-3),
    "circle, OBA with noise": on(tether.Circle(1.0)),
    "sphere, OBA with noise": on(tether.Sphere(1.0)),
    "sphere without slack, X": on(tether.Sphere(1.0, slack=False), "X"),
    "orthogonal, OBA with noise": on(tether.Orthogonal()),
    "orthogonal, L": on(tether.Orthogonal(), "L"),
    "every": lambda model: tether.methods.multirate_sgd(model, fast="1.*", k=2),
    "merge": lambda model: tether.Optimizer(model, lr=0.01, merge=2),
    "merge, momenta and noise": word("OBA", merge=2, temperature=1e-3),
    "asleep": word("X", asleep=0.5, nap=2),
    "asleep, momenta and noise": word("OBA", asleep=0.5, nap=2, temperature=1e-3),
    "random_subset": lambda model: tether.methods.random_subset(model, lr=0.05, k=2),
}


class Watched(tether.Path):
    """Knows how many operations the network's own passes took."""

    passes = 0

    def measure(self, model):
        with Counted() as counted:
            found = super().measure(model)
        self.passes = counted.calls.total()
        return found


PATHS = {"path, X": "X", "path, OBA": "OBA"}
RIVALS = {
    "torch SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
    "torch SGD, momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True),
    "torch AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True),
}


def counts(make, layers):
    """How many operations steps take: those of a cycle, after one that may make buffers."""
    model = tower(layers)
    opt = on_meta(make, model)
    for _ in range(3):
        operations(opt, model)
    return [operations(opt, model).total() for _ in range(3)]


def table():
    """The operations of a step, as `docs/devices.md` shows them."""
    print(f"{'a step of':30s} 8 layers  80 layers")
    for name, make in {**RIVALS, **FIXED}.items():
        print(f"{name:30s} {max(counts(make, 8)):8d} {max(counts(make, 80)):10d}")
    for name, text in PATHS.items():
        (ours, network), (more, larger) = around_a_network(text, 8), around_a_network(text, 80)
        print(f"{name:30s} {ours:8d} {more:10d}")
        print(f"{'  and passes of the network':30s} {network:8d} {larger:10d}")


@pytest.mark.parametrize("name", FIXED)
def test_the_number_of_operations_does_not_grow_with_the_layers(name):
    assert counts(FIXED[name], 3) == counts(FIXED[name], 12)


def around_a_network(text, layers):
    """The operations of a step by the path metric: ours, and those of its passes through the network."""
    model = tower(layers)
    opt = on_meta(lambda net: tether.Optimizer(net, lr=0.1, word=text, metric=Watched()), model)
    operations(opt, model)
    total = operations(opt, model).total()
    return total - opt.rows[0].metric.passes, opt.rows[0].metric.passes


@pytest.mark.parametrize("name", PATHS)
def test_a_path_step_adds_a_fixed_number_to_the_passes_of_the_network(name):
    (ours, network), (more, larger) = around_a_network(PATHS[name], 2), around_a_network(PATHS[name], 12)
    assert ours == more < 60
    assert larger > 5 * network


def test_meta_finds_a_question():
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.ones((), device="meta"))


def test_a_thermostat_and_an_lr_of_the_device_stay_there():
    model = tower(2)
    opt = on_meta(FIXED["BACDEDCA"], model)
    opt.param_groups[0]["lr"] = torch.tensor(0.05, device="meta")
    operations(opt, model)
    assert opt.param_groups[0]["thermostat"].device.type == "meta"
    assert opt.param_groups[0]["thermostat"].shape == ()


# numbers


@pytest.fixture
def accelerator(monkeypatch):
    """The CPU, treated as an accelerator: no kernel, and nothing may be looked at."""
    monkeypatch.setattr("tether.engine.host.reads", lambda device: False)
    monkeypatch.setattr("tether.native.serves", lambda dtype, device: False)


def close(model, twin, tolerance=2e-6):
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@one_gradient_methods
def test_the_numbers_are_those_of_the_cpu(name, request):
    twin = network(name)
    train(twin, ROWS[name].build(twin), 12)
    request.getfixturevalue("accelerator")
    model = network(name)
    train(model, ROWS[name].build(model), 12)
    close(model, twin, 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(6, 6), (20, 4), (3, 9)])
@pytest.mark.parametrize("length", [1e-3, 0.1, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 3.0, 30.0])
def test_orthogonal_by_count_equals_orthogonal_by_looking(dtype, shape, length, monkeypatch):
    """From short steps to those that take the polar factor; singular values of a step along Σ are at least 1.

    A contraction is about as large as the length, so that some of those near 0.7 take it, the same ones on each way.
    """
    surface, generator = tether.Orthogonal(), torch.Generator().manual_seed(1)
    q = surface.place(torch.randn(5, *shape, dtype=torch.float64, generator=generator)).to(dtype)
    v = surface.lift(torch.randn(5, *shape, dtype=torch.float64, generator=generator)).to(dtype)
    p = surface.tangent(q, v)
    p = p * (length / torch.linalg.matrix_norm(p, 2)).view(-1, 1, 1)
    seen, momenta = surface.drift(q, p, 1.0)
    before = surface.fallbacks
    monkeypatch.setattr("tether.engine.host.reads", lambda device: False)
    blind, others = surface.drift(q, p, 1.0)
    error = 20 * surface.tolerance_for(dtype) * max(1, length)  # the condition number of the polar factor
    torch.testing.assert_close(blind, seen, rtol=0, atol=error)
    torch.testing.assert_close(others, momenta, rtol=0, atol=error * max(1, length))
    assert surface.fallbacks == 2 * before
    if length < 0.5 or length > 1:
        assert before == (5 if length > 1 else 0)


def test_a_matrix_without_a_polar_factor_stays_where_it_was(accelerator):
    surface = tether.Orthogonal()
    q = torch.eye(3).repeat(2, 1, 1)
    moved = surface.project(q - torch.stack((torch.eye(3), torch.zeros(3, 3))), q)
    assert torch.equal(moved, q)


# gradients that are not finite


@one_gradient_methods
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_bad_gradient_moves_nothing_and_is_told_at_the_next_step(name, value, accelerator):
    model = network(name)
    opt = ROWS[name].build(model)
    train(model, opt, 2)
    before = snapshot(model, opt)
    closure_for(model, opt, 50)()
    model[2].weight.grad[0, -1] = value
    opt.step()
    after = snapshot(model, opt)
    clocks = {key for key in before if key.startswith("step ")}
    if opt.rows[0].rhythm == tether.rhythms.Always():
        assert_same(*({key: x for key, x in each.items() if key not in clocks} for each in (before, after)))
    closure_for(model, opt, 51)()
    with pytest.raises(tether.NonFiniteGradient, match=r"'2\.weight'") as caught:
        opt.step()
    assert caught.value.names == ("2.weight",)
    assert_same(after, snapshot(model, opt))
    opt.step()  # told once
    assert all(bool(x.isfinite().all()) for x in model.parameters())


def test_skipped_steps_are_counted(accelerator):
    model = tower(2)
    opt = tether.Optimizer(model, lr=0.1, word="BACDEDCA", temperature=1e-3, on_nonfinite="skip")
    for i in range(5):
        fill(model)
        if i % 2:
            model[1].bias.grad[0] = nan
            before = snapshot(model, opt)
        opt.step()
        if i % 2:
            after = snapshot(model, opt)
            assert all(torch.equal(before[key], after[key]) for key in before if not key.startswith("step "))
    assert isinstance(opt.missed, torch.Tensor)
    assert opt.skipped == 2
    assert "2 skipped (non-finite)" in opt.describe()


@pytest.mark.parametrize("text", ["BAOAB", "BACDEDCA"])
@pytest.mark.parametrize("surface", [tether.Free(), tether.Circle(1.0), tether.Orthogonal()], ids=repr)
def test_a_replica_with_a_bad_gradient_rests_alone(text, surface, accelerator):
    ens = tether.Replicas(lambda: torch.nn.Linear(4, 4, bias=False), 3)
    fields = {"word": text, "on": surface, "temperature": 1e-3, "coupling": 1e-3, "on_nonfinite": "skip"}
    opt = tether.Optimizer(ens, lr=0.05, **fields)
    fill(ens)
    opt.step()
    opt.stop([0])
    weight = next(iter(ens.parameters()))
    before = weight.detach().clone()
    fill(ens)
    weight.grad[1, 0, 0] = inf
    opt.step()
    moved = (weight != before).flatten(1).any(1)
    assert moved.tolist() == [False, False, True]
    assert opt.skipped == 1


if __name__ == "__main__":
    table()
