"""Every method under torch.compile: the same numbers as without, and nothing compiled anew at each step."""

import shutil

import pytest
import torch
from rows import LR, ROWS, batch, closure_for, every_method, network, one_gradient_methods, train
from torch._dynamo.utils import counters

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled():
    """How many graphs and how many frames have been compiled so far."""
    return counters["stats"]["unique_graphs"], counters["frames"]["total"]


def assert_close(model, twin):
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@every_method
def test_a_compiled_step_equals_an_eager_one(name):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    train(twin, other, 5)
    step = torch.compile(opt.step, backend="eager")
    for i in range(5):
        closure = closure_for(model, opt, i)
        if ROWS[name].closure:
            step(closure)
        else:
            closure()
            step()
    assert_close(model, twin)


def training_step(model, opt, backend):
    @torch.compile(backend=backend)
    def training_step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return training_step


@one_gradient_methods
def test_a_compiled_loop_body_equals_an_eager_one_and_is_compiled_once(name):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    step = training_step(model, opt, "eager")
    for i in range(9):
        for group in (*opt.param_groups, *other.param_groups):
            group["lr"] = LR / (1 + i)  # a float that changes is what makes torch compile anew
        (loss,) = train(twin, other, 1, start=i)
        assert float(step(*batch(i)).detach()) == pytest.approx(loss, rel=1e-4)
        if i == 4:  # after one cycle of a rhythm
            before = compiled()
    assert_close(model, twin)
    assert before[0] > 0
    assert compiled() == before


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
def test_inductor():
    name = "adlala"
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    losses = train(twin, other, 5)
    step = training_step(model, opt, "inductor")
    for i, loss in enumerate(losses):
        assert float(step(*batch(i)).detach()) == pytest.approx(loss, rel=1e-4)
    assert_close(model, twin)
