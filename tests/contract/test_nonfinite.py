"""Every method when a gradient is inf or nan: nothing moves, be it raised or skipped."""

from math import inf, nan

import pytest
import torch
from rows import ROWS, assert_same, closure_for, every_method, network, snapshot, train

import tether

# which of the step's gradients goes wrong; only Heun's scheme takes a second one. Proposals are rejected then.
CASES = [
    pytest.param(name, call, id=f"{name}, gradient {call}")
    for name, row in ROWS.items()
    for call in ((1, 2) if row.closure and not row.tested else (1,))
]
every_gradient = pytest.mark.parametrize(("name", "bad_call"), CASES)


def spoiling(model, opt, step, bad_call, value=nan):
    """A closure whose gradient number `bad_call` has one bad entry, the last of 2.weight."""
    calls = []

    def closure():
        calls.append(closure_for(model, opt, step)())
        if len(calls) == bad_call:
            model[2].weight.grad[0, -1] = value
        return calls[-1]

    return closure


def assert_untouched(before, model, opt):
    after = snapshot(model, opt)
    assert_same(before, {key: after[key] for key in before})
    for key in after.keys() - before.keys():  # a first step may have made its momenta, but not moved them
        assert not after[key].any(), key


@every_gradient
@pytest.mark.parametrize("steps", [0, 3], ids=["first step", "later step"])
def test_raise_names_the_parameter_and_moves_nothing(name, bad_call, steps):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    train(model, opt, steps)
    before = snapshot(model, opt)
    with pytest.raises(tether.NonFiniteGradient, match=r"'2\.weight' \(1 nan and 0 inf of 8\)") as caught:
        opt.step(spoiling(model, opt, 50, bad_call))
    assert "lower lr or clip the gradient" in str(caught.value)
    assert "on_nonfinite='skip'" in str(caught.value)
    assert caught.value.names == ("2.weight",)
    assert_untouched(before, model, opt)
    train(model, opt, 3, start=steps)
    train(twin, other, steps + 3)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@every_gradient
@pytest.mark.parametrize("steps", [0, 3], ids=["first step", "later step"])
def test_skip_moves_nothing_counts_and_goes_on(name, bad_call, steps):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model, on_nonfinite="skip"), ROWS[name].build(twin)
    train(model, opt, steps)
    before = snapshot(model, opt)
    assert "skipped" not in opt.describe()
    for _ in range(2):
        assert isinstance(opt.step(spoiling(model, opt, 50, bad_call)), torch.Tensor)
        assert_untouched(before, model, opt)
    assert "2 skipped (non-finite)" in opt.describe()
    train(model, opt, 3, start=steps)
    train(twin, other, steps + 3)
    assert_same(snapshot(model, opt), snapshot(twin, other))
    assert "2 skipped (non-finite)" in opt.describe()


# what is finite is asked by dtype and place of the tensors, free or on a surface; by no method
@pytest.mark.parametrize("name", ["adlala", "orthogonal_cola_ud"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_no_bad_number_gets_through(name, dtype, value):
    model = network(name, dtype=dtype)
    opt = ROWS[name].build(model)
    before = snapshot(model, opt)
    with pytest.raises(tether.NonFiniteGradient):
        opt.step(spoiling(model, opt, 0, 1, value))
    assert_untouched(before, model, opt)


@every_method
def test_infinities_that_cancel_and_strided_gradients(name):
    model = network(name)
    opt = ROWS[name].build(model)

    def closure():
        closure_for(model, opt, 0)()
        model[0].weight.grad = model[0].weight.grad.t().contiguous().t()
        model[0].weight.grad[0, 0], model[0].weight.grad[1, 1] = inf, -inf

    with pytest.raises(tether.NonFiniteGradient, match=r"'0\.weight' \(0 nan and 2 inf of 24\)"):
        opt.step(closure)
