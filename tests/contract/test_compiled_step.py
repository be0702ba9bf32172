"""torch.compile(opt.step): the whole step is one graph, and its numbers are the uncompiled ones."""

import copy
import shutil
from math import nan

import pytest
import torch
from ondevice import fill, tower
from torch._dynamo.utils import counters

import tether
from tether import Part

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def word(text, **fields):
    return lambda model: tether.Optimizer(model, lr=torch.tensor(0.05), word=text, **fields)


def on(surface, text="OBA"):
    parts = [Part("*.weight", on=surface), Part("*")]
    return lambda model: tether.Optimizer(model, parts, lr=torch.tensor(0.05), word=text, temperature=1e-3)


TRACED = {
    "X": word("X"),
    "MS": word("MS", weight_decay=1e-2),
    "BAOAB": word("BAOAB", temperature=1e-3),  # its kick takes the step size before
    "L": word("L", temperature=1e-3),
    "BACDEDCA": word("BACDEDCA", temperature=1e-3, coupling=0.1),
    "normalised": word("BAFEFAB", temperature=1e-3, coupling=torch.tensor(0.1), normalised=True),
    "circle": on(tether.Circle(1.0)),
    "sphere": on(tether.Sphere(1.0)),
    "orthogonal": on(tether.Orthogonal()),
    "orthogonal, X": on(tether.Orthogonal(), "X"),
}


def backward(model):
    model.zero_grad()
    model(torch.linspace(-1, 1, 16).view(2, 8)).square().sum().backward()


def both(make, backend, steps=5, layers=2):
    """A model moved by a compiled step and one moved by a plain one, with a step size that changes."""
    model, twin = tower(layers), tower(layers)
    opt, other = make(model), make(twin)
    step = torch.compile(opt.step, backend=backend, fullgraph=True)
    for i in range(steps):
        for group in (*opt.param_groups, *other.param_groups):
            group["lr"].fill_(0.05 / (1 + i))
        for net, move in ((model, step), (twin, other.step)):
            backward(net)
            move()
    return model, opt, twin, other


def assert_equal(model, opt, twin, other):
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=2e-6, atol=2e-6)
    for group, same in zip(opt.state_dict()["param_groups"], other.state_dict()["param_groups"], strict=True):
        assert type(group["step"]) is int
        assert group["step"] == same["step"]
        assert group["previous_lr"] == pytest.approx(same["previous_lr"])
        assert float(group["thermostat"]) == pytest.approx(float(same["thermostat"]), rel=1e-5)


@pytest.mark.parametrize("name", TRACED)
def test_one_graph_and_the_same_numbers(name):
    found = both(TRACED[name], "eager")  # what becomes of the graph is inductor's, below
    assert counters["stats"]["unique_graphs"] == 1
    assert_equal(*found)


# inductor: few models with many parts, since each graph takes its time


def words(model):
    parts = [
        Part("0.weight", word="BAOAB"),
        Part("0.bias", word="X", weight_decay=1e-2),
        Part("1.weight", word="BACDEDCAB", coupling=0.1),
        Part("1.bias", word="BAFEFAB", coupling=torch.tensor(0.1), noise=0.05),
        Part("*"),
    ]
    return tether.Optimizer(model, parts, lr=torch.tensor(0.05), word="OBA", temperature=1e-3)


def surfaces(model):
    parts = [
        Part("0.weight", on=tether.Circle(1.0)),
        Part("1.weight", on=tether.Sphere(1.0)),
        Part("2.weight", on=tether.Sphere(1.0, slack=False)),
        Part("3.weight", on=tether.Orthogonal(iterations=8)),  # each iteration is an operation of its own
    ]
    for layer in model:
        layer.bias.requires_grad_(False)
    return tether.Optimizer(model, parts, lr=torch.tensor(0.05), word="OBA", temperature=1e-3)


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize(("make", "layers"), [(words, 3), (surfaces, 4)])
def test_inductor(make, layers):
    found = both(make, "inductor", steps=4, layers=layers)
    assert counters["stats"]["unique_graphs"] == 1
    assert_equal(*found)


# what is not traced runs as it is, behind a break of the graph


def level(model):
    parts = [Part("0.bias", on=tether.Level(lambda w: w.square().sum() - 1.0)), Part("*")]
    return tether.Optimizer(model, parts, lr=0.05)


UNTRACED = {
    "replicas": lambda ens: tether.Optimizer(ens, lr=0.05, word="BAOAB", temperature=1e-3),
    "every": lambda model: tether.methods.multirate_sgd(model, fast="1.*", k=2),
    "asleep": lambda model: tether.Optimizer(model, lr=0.05, asleep=0.5, nap=2),
    "merge": lambda model: tether.Optimizer(model, lr=0.05, word="OBA", merge=2),
    "metric": lambda model: tether.Optimizer(model, lr=0.05, metric=tether.Path()),
    "level": level,
    "several gradients": lambda model: tether.Optimizer(model, lr=0.05, word="BABA"),
    "closure": lambda model: tether.Optimizer(model, lr=0.05, word="BAOAB", temperature=1e-3),
}


@pytest.mark.parametrize("name", UNTRACED)
def test_what_is_not_traced_runs_as_it_is(name):
    def net():
        return tether.Replicas(lambda: tower(2), 3) if name == "replicas" else tower(2)

    model, twin = net(), net()
    opt, other = UNTRACED[name](model), UNTRACED[name](twin)
    step = torch.compile(opt.step, backend="eager")
    for _ in range(4):
        for one, move in ((model, step), (twin, other.step)):
            if name in ("closure", "several gradients"):

                def closure(one=one):
                    backward(one)
                    return torch.zeros(())

                move(closure)
            else:
                backward(one)
                move()
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), twin.parameters(), strict=True))
    assert opt.param_groups[0]["step"] == other.param_groups[0]["step"] == 4


def test_a_float_lr_makes_one_graph_more_whatever_it_becomes():
    def make(model):
        return tether.Optimizer(model, [Part("0.*"), Part("*", word="X")], lr=0.05, word="BAOAB", temperature=1e-3)

    model, twin = tower(2), tower(2)
    opt, other = make(model), make(twin)
    step = torch.compile(opt.step, backend="eager", fullgraph=True)
    for i in range(6):
        for group in (*opt.param_groups, *other.param_groups):
            group["lr"] = 0.05 / (1 + i)
        for net, move in ((model, step), (twin, other.step)):
            backward(net)
            move()
    assert counters["stats"]["unique_graphs"] == 2  # for one number, and for all others
    assert_equal(model, opt, twin, other)


def test_a_bad_gradient_moves_nothing_and_is_counted():
    model, opt, *_ = both(TRACED["BACDEDCA"], "eager")
    step = torch.compile(opt.step, backend="eager", fullgraph=True)
    before = [x.detach().clone() for x in (*model.parameters(), opt.param_groups[0]["thermostat"])]
    fill(model)
    model[1].bias.grad[0] = nan
    step()
    after = [*model.parameters(), opt.param_groups[0]["thermostat"]]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert opt.skipped == 1
    assert int(opt.param_groups[0]["step"]) == 5
    fill(model)
    with pytest.raises(tether.NonFiniteGradient, match="1 compiled steps"):
        opt.step()
    opt.step()
    assert opt.param_groups[0]["step"] == 6


def test_compiled_and_plain_steps_take_turns():
    model, opt, twin, other = both(TRACED["BAOAB"], "eager")
    for i in range(4):
        for net, one in ((model, opt), (twin, other)):
            backward(net)
            (torch.compile(one.step, backend="eager") if i % 2 and one is opt else one.step)()
    assert_equal(model, opt, twin, other)
    twin, other = copy.deepcopy((model, opt))
    for net, one in ((model, opt), (twin, other)):
        backward(net)
        one.step()
    assert_equal(model, opt, twin, other)


def test_a_changed_temperature_is_obeyed():
    model, opt, twin, other = both(TRACED["BAOAB"], "eager", steps=2)
    step = torch.compile(opt.step, backend="eager", fullgraph=True)
    for temperature in (1e-2, 1e-1, 0.0, 0.5):
        for net, one, move in ((model, opt, step), (twin, other, other.step)):
            one.param_groups[0]["temperature"] = temperature
            backward(net)
            move()
    assert_equal(model, opt, twin, other)


def test_a_step_of_no_length_moves_nothing():
    model, opt, *_ = both(word("MS", friction=float("inf")), "eager", steps=2)
    opt.param_groups[0]["lr"].zero_()
    before = copy.deepcopy(opt.state_dict())
    backward(model)
    torch.compile(opt.step, backend="eager", fullgraph=True)()
    after = opt.state_dict()
    assert after["param_groups"][0]["step"] == before["param_groups"][0]["step"] == 2
    assert all(torch.equal(after["state"][i]["momentum"], before["state"][i]["momentum"]) for i in after["state"])
