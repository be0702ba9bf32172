"""Parts: what a row holds, which values it takes, and which parameters it gets."""

from dataclasses import FrozenInstanceError
from math import inf, nan

import numpy as np
import pytest
import torch
from torch import nn

import tether
from tether import Part
from tether.part import DEFAULTS, match, number

FIELDS = ("lr", "friction", "temperature", "coupling", "noise", "weight_decay")


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_row_takes_the_parts_values_and_else_the_defaults():
    row = Part("0.*", word="BAOAB", friction=0.0).row({**DEFAULTS, "lr": 0.1, "friction": 5.0, "temperature": 1e-4})
    assert row["friction"] == 0.0  # zero is a value, None is not
    assert (row["where"], row["word"], row["lr"], row["temperature"]) == ("0.*", "BAOAB", 0.1, 1e-4)
    assert (row["coupling"], row["noise"], row["weight_decay"], row["thermostat"]) == (0.1, 0.01, 0.0, 0.1)


def test_a_part_is_a_value():
    assert Part("0.*", friction=1.0) == Part("0.*", friction=1.0)
    with pytest.raises(FrozenInstanceError):
        Part("0.*").friction = 2.0


doors = pytest.mark.parametrize(
    "build",
    [
        lambda model, **fields: tether.Optimizer(model, **{"lr": 0.1, **fields}),
        lambda model, **fields: tether.Optimizer(model, [Part("0.*"), Part("2.*", **fields)], lr=0.1),
        lambda model, **fields: tether.Optimizer([{"params": list(model.named_parameters()), **fields}], lr=0.1),
    ],
    ids=["Optimizer", "Part", "param group"],
)

# every field with one such value, and every such value for one field: all go through one check
OUT_OF_RANGE = [(field, -0.5) for field in FIELDS]
OUT_OF_RANGE += [("lr", value) for value in (nan, inf, -inf, torch.tensor(-0.5))] + [("friction", -inf)]
NOT_A_NUMBER = [(field, "0.1") for field in FIELDS]
NOT_A_NUMBER += [("lr", value) for value in ("much", [0.1], {}, 1j, torch.ones(2, 2))]


@doors
@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE, ids=str)
def test_a_value_out_of_range_is_named_with_the_rule_and_a_fix(build, field, value):
    rule = r"0 or more \(inf included\)" if field == "friction" else "finite and ≥ 0"
    shown = rf"{field}=(tensor\()?{float(value)}[0)]* is out of range"
    with pytest.raises(ValueError, match=rf"part '.*': {shown}; {field} must be {rule}, e\.g\. {field}=0\.1"):
        build(network(), **{field: value})


@doors
@pytest.mark.parametrize(("field", "value"), NOT_A_NUMBER, ids=str)
def test_what_is_not_a_number_is_named_with_the_rule_and_a_fix(build, field, value):
    rule = r"0 or more \(inf included\)" if field == "friction" else "finite and ≥ 0"
    message = rf"(?s)part '.*': {field}=.* is not a number; {field} must be {rule}, e\.g\. {field}=0\.1"
    with pytest.raises(TypeError, match=message):
        build(network(), **{field: value})


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_thermostat_starts_at_a_finite_number(value):
    with pytest.raises(ValueError, match=f"thermostat={value} is out of range; thermostat must be a finite number"):
        tether.Optimizer(network(), lr=0.1, word="BAFEFAB", thermostat=value)
    tether.Optimizer(network(), lr=0.1, word="BAFEFAB", thermostat=-1.0)  # negative drives


def test_infinite_friction_and_zeros_are_in_range():
    fields = {**dict.fromkeys(FIELDS, 0.0), "friction": inf}
    assert tether.Optimizer(network(), word="OBA", **fields).param_groups[0]["friction"] == inf
    assert number("part", "lr", torch.tensor(0.25)) == 0.25
    assert number("part", "lr", np.float32(0.25)) == 0.25


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("frictoin", "friction"),
        ("temprature", "temperature"),
        ("weightdecay", "weight_decay"),
        ("normalized", "normalised"),
        ("words", "word"),
    ],
)
@doors
def test_an_unknown_field_is_told_the_nearest_name(build, typo, meant):
    with pytest.raises(TypeError, match=f"{typo}.*did you mean '{meant}'"):
        build(network(), **{typo: 1.0})


def test_a_field_far_from_all_lists_them():
    with pytest.raises(TypeError, match=r"unknown field 'qqq'; fields are where, word, on, lr, friction, temperature"):
        tether.Optimizer(network(), lr=0.1, qqq=1)


@pytest.mark.parametrize("where", [3, None, ("0.*",)], ids=repr)
def test_where_is_a_glob(where):
    with pytest.raises(TypeError, match=r"where=.*must be a (string|glob)"):
        tether.Optimizer(network(), [Part(where)], lr=0.1)


@pytest.mark.parametrize("value", ["no", 2, 0.5], ids=repr)
def test_normalised_is_yes_or_no(value):
    with pytest.raises(TypeError, match=r"normalised=.*must be True or False"):
        tether.Optimizer(network(), lr=0.1, word="BAFEFAB", normalised=value)


# matching


def named(*names, frozen=()):
    return [(name, nn.Parameter(torch.zeros(1), requires_grad=name not in frozen)) for name in names]


def taken(names, *wheres, frozen=()):
    return [[name for name, _ in mine] for mine in match(named(*names, frozen=frozen), [Part(w) for w in wheres])]


def test_the_first_match_wins_and_order_is_kept():
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert taken(names, "2.*", "*.weight", "*") == [["2.weight", "2.bias"], ["0.weight"], ["0.bias"]]
    assert taken(names, "*") == [list(names)]
    assert taken(names, "[02].weight", "?.bias") == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]


def test_globs_tell_capitals_apart():
    with pytest.raises(ValueError, match=r"'Head\.\*' matches no parameter"):
        taken(("head.weight",), "Head.*", "*")


def test_a_part_that_matches_nothing_shows_the_names():
    with pytest.raises(ValueError, match=r"part '7\.\*' matches no parameter; parameters are named 'a', 'b'"):
        taken(("a", "b"), "7.*", "*")
    with pytest.raises(ValueError, match=r"'f', …"):
        taken(tuple("abcdefg"), "7.*", "*")


def test_a_shadowed_part_is_told_to_go_first():
    with pytest.raises(ValueError, match=r"part '0\.\*' matches no parameter; an earlier part takes all it matches"):
        taken(("0.weight", "2.weight"), "*", "0.*")
    with pytest.raises(ValueError, match=r"\(0\.weight\): put the narrower part first"):
        taken(("0.weight", "2.weight"), "*", "0.*")


def test_a_parameter_that_no_part_wants_is_named():
    message = r"parameter '2\.bias' is matched by no part \(globs: '0\.\*', '\*\.weight'\); add a last Part\('\*'\)"
    with pytest.raises(ValueError, match=message):
        taken(("0.weight", "0.bias", "2.weight", "2.bias"), "0.*", "*.weight")


def test_frozen_parameters_may_be_left_out():
    assert taken(("0.weight", "2.bias"), "0.*", frozen=("2.bias",)) == [["0.weight"]]
    assert taken(("0.weight", "2.bias"), "*", frozen=("2.bias",)) == [["0.weight", "2.bias"]]
