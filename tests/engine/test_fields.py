"""A field that somebody changes between steps is obeyed or refused: the table that is printed is the one that runs."""

from math import inf, nan

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


ADAPTIVE = {"word": "BAFEFAB", "temperature": 1e-2}
# field, another value, and the fields of a part in which it matters
OBEYED = [
    ("word", "MS", {}),
    ("word", "BAFEFAB", {}),
    ("lr", 0.02, {}),
    ("lr", torch.tensor(0.02), {}),
    ("friction", 0.3, {"word": "OBA"}),
    ("friction", inf, {"word": "OBA"}),
    ("temperature", 1e-2, {}),
    ("mass", 2.0, {"word": "OBA"}),
    ("mass", torch.tensor(2.0), {"word": "OBA"}),
    ("coupling", 0.5, ADAPTIVE),
    ("noise", 0.2, ADAPTIVE),
    ("weight_decay", 0.1, {}),
    ("thermostat", 0.7, ADAPTIVE),
    ("thermostat", torch.tensor(0.7), ADAPTIVE),
    ("normalised", True, ADAPTIVE),
    ("every", 2, {}),
    ("every", 1, {"every": 3}),
    ("drift", False, {"word": "OBA", "every": 3}),
    ("rhythm", Merge(3), {}),
    ("rhythm", Every(2), {}),
    ("rhythm", Sleep(0.5), {}),
    ("asleep", 0.5, {}),
    ("nap", 2, {"asleep": 0.5}),
    ("merge", 3, {}),
    ("merge", 1, {"merge": 3}),
    ("seed", 5, {"temperature": 1e-2}),
    ("where", "first", {}),
]
NUMBERS = ("lr", "friction", "temperature", "coupling", "noise", "weight_decay", "mass")
NO_NUMBERS = [-1.0, nan, "fast", None, 1j]
REFUSED = [
    *[(name, value, rf"{name}=.* must be") for name in NUMBERS for value in NO_NUMBERS],
    *[(name, torch.ones(3), rf"{name}=.* must be") for name in NUMBERS if name not in ("friction", "mass")],
    *[(name, inf, rf"{name}=inf is out of range") for name in NUMBERS if name != "friction"],
    *[("thermostat", value, "thermostat=.* must be a finite number") for value in (nan, "hot", None)],
    ("thermostat", torch.tensor(nan), "thermostat has run away"),
    ("word", "QX", "unknown letter"),
    ("word", "", "an empty word"),
    *[("word", value, "a word is a string of letters") for value in (3, None)],
    *[("on", value, "build a new one with on=") for value in ("Circle(1.0)", Circle(1.0), None)],
    *[("metric", value, "build a new one with metric=") for value in ("Path(2)", tether.Path(), 3)],
    *[("every", value, "every=.* must be a whole number") for value in (0, -1, 2.5, "2", None)],
    *[("drift", value, "drift=.* must be True or False") for value in ("yes", None)],
    *[("asleep", value, "asleep=.* must be a share") for value in (1.5, -0.1, nan, "half", None)],
    *[("nap", value, "nap=.* must be a whole number") for value in (0, 2.5, None)],
    *[("merge", value, "merge=.* must be a whole number") for value in (0, 2.5, None)],
    *[("normalised", value, "normalised=.* must be True or False") for value in ("yes", 2, None)],
    *[("rhythm", value, "rhythm=.* must be a rhythm") for value in ("Merge(3)", "often", 5)],
    ("thermostat", torch.ones(3), "thermostat="),
    *[("seed", value, "seed=") for value in ("a", 1.5, None)],
    ("where", 3, "where=3 must be a glob"),
]


def shown(x):
    return "" if isinstance(x, dict) else str(x)


def table(model, fields):
    """Two parts, the first with the given fields; those that are the optimizer's own are for both."""
    own = {name: value for name, value in fields.items() if name in ("lr", "seed")}
    part = {name: value for name, value in fields.items() if name not in own}
    return Optimizer(model, [Part(**{"where": "0.*", **part}), Part("*")], **{"lr": 0.1, **own})


def put(opt, field, value):
    for group in opt.param_groups[: 2 if field in ("lr", "seed") else 1]:
        group[field] = value


def test_no_field_is_left_out():
    tried = {field for field, *_ in OBEYED} | {"on", "metric"}  # these two are refused
    assert tried == {*tether.part.FIELDS, "seed"}
    assert {field for field, *_ in REFUSED} == tried


@pytest.mark.parametrize(("field", "value", "fields"), OBEYED, ids=shown)
def test_a_changed_field_is_obeyed(field, value, fields):
    model, twin = net(), net()
    opt = table(model, fields)
    put(opt, field, value)
    other = table(twin, {**fields, field: value} if field != "where" else fields)
    loop(model, opt, 7)
    loop(twin, other, 7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    if field != "where":
        assert opt.describe() == other.describe()
    else:
        assert "first" in opt.describe()


@pytest.mark.parametrize(("field", "value", "fields"), [row for row in OBEYED if row[0] != "where"], ids=shown)
def test_a_field_changed_between_steps_changes_the_run(field, value, fields):
    model, twin = net(), net()
    opt, other = table(model, fields), table(twin, fields)
    loop(model, opt, 3)
    loop(twin, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    put(opt, field, value)
    loop(model, opt, 4, start=3)
    loop(twin, other, 4, start=3)
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert all(param.isfinite().all() for param in model.parameters())


@pytest.mark.parametrize(
    ("field", "value", "match"),
    REFUSED,
    ids=shown,
)
def test_what_cannot_be_obeyed_is_refused_and_nothing_moves(field, value, match):
    model = net()
    opt = table(model, ADAPTIVE if field in ("friction", "coupling", "noise", "thermostat", "normalised") else {})
    opt.param_groups[1]["temperature"] = 1e-3
    loop(model, opt, 2)
    before = [p.detach().clone() for p in model.parameters()]
    put(opt, field, value)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=match):
        loop(model, opt, 1, start=2)
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
