"""A field that somebody changes between steps is obeyed or refused: the table that is printed is the one that runs."""

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Every, Merge, Optimizer, Part, Sleep, methods


def net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))


def loop(model, opt, steps, start=0):
    for step in range(start, start + steps):
        for i, param in enumerate(model.parameters()):
            noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + i))
            param.grad = noise + 0.1 * param.detach() if param.requires_grad else None
        opt.step()


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 0.02), ("weight_decay", 0.1), ("word", "MS"), ("merge", 3), ("asleep", 0.5)],
)
def test_a_changed_field_is_obeyed(field, value):
    model, twin = net(), net()
    opt = Optimizer(model, lr=0.1, friction=0.0)
    opt.param_groups[0][field] = value
    other = Optimizer(twin, **{"lr": 0.1, "friction": 0.0, field: value})
    loop(model, opt, 7)
    loop(twin, other, 7)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    assert opt.describe() == other.describe()


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("on", "Circle(1.0)", "build a new one with on="),
        ("metric", "Path(2)", "build a new one with metric="),
        ("word", "QX", "unknown letter"),
        ("every", 0, "every=0 must be a whole number"),
        ("asleep", 1.5, "asleep=1.5 must be a share"),
        ("merge", 2.5, "merge=2.5 must be a whole number"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_and_nothing_moves(field, value, match):
    model = net()
    opt = Optimizer(model, lr=0.1)
    loop(model, opt, 2)
    before = [p.detach().clone() for p in model.parameters()]
    opt.param_groups[0][field] = value
    with pytest.raises((ValueError, TypeError), match=match):
        loop(model, opt, 1)
    for p, x in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, x)


def test_two_rhythms_set_one_after_the_other_are_refused():
    model = net()
    opt = Optimizer(model, lr=0.1, asleep=0.5)
    opt.param_groups[0]["merge"] = 5
    with pytest.raises(ValueError, match="do not go together"):
        loop(model, opt, 1)


@pytest.mark.parametrize(
    ("rhythm", "short"),
    [(Every(2), {"every": 2}), (Sleep(0.5, nap=3), {"asleep": 0.5, "nap": 3}), (Merge(3), {"merge": 3})],
    ids=repr,
)
def test_short_forms_are_rhythms(rhythm, short):
    results = []
    for fields in ({"rhythm": rhythm}, short):
        model = net()
        opt = Optimizer(model, [Part("0.*", **fields), Part("*")], lr=0.1)
        loop(model, opt, 9)
        results.append(([p.detach().clone() for p in model.parameters()], opt.describe()))
    assert results[0][1] == results[1][1]
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))


def test_a_rhythm_goes_with_noise_and_with_langevin_dynamics():
    for fields in ({"asleep": 0.5, "nap": 3}, {"merge": 3}):
        model = net()
        opt = Optimizer(model, lr=0.1, word="OBA", temperature=1e-3, **fields)
        loop(model, opt, 9)
        assert all(p.isfinite().all() for p in model.parameters())


def test_the_clock_counts_for_every_method():
    model = net()
    opt = methods.sgd(model)
    loop(model, opt, 3)
    assert opt.clock.step == 3


def test_a_metric_may_be_added_later():
    model = net()
    opt = Optimizer(model, [Part("0.*"), Part("2.*")], lr=0.1)
    held = opt.param_groups.pop()
    opt.rows.pop()
    opt.add_param_group(
        {"params": list(zip(held["param_names"], held["params"], strict=True)), "metric": tether.Path()}
    )
    loop(model, opt, 2)
    assert opt.param_groups[1]["metric"] == "Path(2)"


def test_a_rhythm_says_by_name_what_it_does_not_go_with():
    with pytest.raises(ValueError, match=r"asleep=0.5 sets weights to 0, which Circle\(1.0\) does not allow"):
        Optimizer(net(), lr=0.1, asleep=0.5, on=Circle(1.0))
    with pytest.raises(ValueError, match=r"'BAOAB' ends a step with the next one's gradient, and Merge\(3\)"):
        Optimizer(net(), lr=0.1, merge=3, word="BAOAB")
