"""The published methods: the rows each one makes, its citation, and what it refuses."""

from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import torch
from torch import nn

from tether import methods


def network(layers=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        widths = [2, *[4] * (layers - 1), 1]
        return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def rows(opt, *fields):
    return [tuple(group[field] for field in ("where", "word", *fields)) for group in opt.param_groups]


def test_sgd():
    opt = methods.sgd(network(), lr=0.3)
    assert rows(opt, "lr", "temperature") == [("*", "X", 0.3, 0.0)]


def test_sgld_takes_the_noise_or_the_temperature():
    # σ² = 2τ
    assert rows(methods.sgld(network(), noise=0.2), "temperature") == [("*", "X", pytest.approx(0.02))]
    assert rows(methods.sgld(network(), temperature=0.02), "temperature") == [("*", "X", 0.02)]
    assert rows(methods.sgld(network()), "temperature") == [("*", "X", pytest.approx(0.01**2 / 2))]


def test_sgld_noise_is_sigma_root_h():
    # one step without gradient: θ = σ √h R, so its variance is σ² h
    model = nn.Sequential(nn.Linear(100, 100, bias=False))
    nn.init.zeros_(model[0].weight)
    opt = methods.sgld(model, lr=0.25, noise=0.3)
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    opt.step()
    want, n = 0.3**2 * 0.25, 10_000
    assert abs(model[0].weight.var().item() - want) < 4 * want * (2 / n) ** 0.5


def test_langevin():
    opt = methods.langevin(network(), lr=0.2, friction=3.0, temperature=1e-4)
    assert rows(opt, "lr", "friction", "temperature") == [("*", "BAOAB", 0.2, 3.0, 1e-4)]
    assert rows(methods.langevin(network(), word="OBA")) == [("*", "OBA")]


def test_langevin_in_layers():
    opt = methods.langevin_in_layers(network(), friction=[0.1, 1.0, 10.0], temperature=1e-3)
    assert rows(opt, "friction", "temperature") == [
        ("0.*", "BAOAB", 0.1, 1e-3),
        ("1.*", "BAOAB", 1.0, 1e-3),
        ("2.*", "BAOAB", 10.0, 1e-3),
    ]
    opt = methods.langevin_in_layers(network(), friction=2.0, temperature=(1e-3, 0.0, 1e-5), word="ABOBA")
    assert rows(opt, "friction", "temperature")[1] == ("1.*", "ABOBA", 2.0, 0.0)


def test_lol():
    opt = methods.lol(network())
    assert rows(opt, "friction", "temperature") == [("2.*", "BAOAB", inf, 0.0), ("*", "BAOAB", 0.01, 1e-3)]
    opt = methods.lol(network(), friction=0.5, temperature=1e-4, output_temperature=1e-5)
    assert rows(opt, "friction", "temperature") == [("2.*", "BAOAB", inf, 1e-5), ("*", "BAOAB", 0.5, 1e-4)]


def one_gradient(opt, params, value=1.0):
    for param in params:
        param.grad = torch.full_like(param, value)
    opt.step()


def test_dhsgd_moves_its_output_by_half_h_squared():
    # (3.29): θ −= (h²/2) g on the output layer from the first step on; Verlet inside: first a half kick, θ −= (h²/2) g
    model = network(2).double()
    start = [p.detach().clone() for p in model.parameters()]
    opt = methods.dhsgd(model, lr=0.2)
    assert rows(opt) == [("1.*", "BAOA"), ("*", "BAB")]
    one_gradient(opt, model.parameters())
    for p, old in zip(model.parameters(), start, strict=True):
        torch.testing.assert_close(p, old - 0.2**2 / 2, rtol=0, atol=1e-14)
    one_gradient(opt, model.parameters())
    # inside, p = −h/2 − h = −3h/2 now, so θ has moved by h²/2 + 3h²/2; the output forgets: 2 · h²/2
    torch.testing.assert_close(model[0].weight, start[0] - 2 * 0.2**2, rtol=0, atol=1e-14)
    torch.testing.assert_close(model[1].weight, start[2] - 0.2**2, rtol=0, atol=1e-14)


def test_dhsgd_contractive_moves_its_output_by_h():
    model = network(2).double()
    start = model[1].weight.detach().clone()
    opt = methods.dhsgd_contractive(model, lr=0.2)
    assert rows(opt) == [("1.*", "X"), ("*", "BAB")]
    one_gradient(opt, model.parameters())
    torch.testing.assert_close(model[1].weight, start - 0.2, rtol=0, atol=1e-14)
    assert rows(methods.dhsgd_contractive(model, scheme="heun")) == [("1.*", "XH"), ("*", "BAB")]


def test_dhsgd_contractive_ignores_a_temperature_default_on_its_output():
    opt = methods.dhsgd_contractive(network(2))
    assert rows(opt, "temperature")[0] == ("1.*", "X", 0.0)


@pytest.mark.parametrize(
    ("per", "wheres"),
    [
        ("model", ["*"]),
        ("layer", ["0.*", "1.*", "2.*"]),
        ("tensor", ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]),
    ],
)
def test_adaptive_langevin_has_a_thermostat_per(per, wheres):
    opt = methods.adaptive_langevin(network(), per=per, temperature=1e-3, coupling=0.05, noise=0.02)
    fields = ("temperature", "coupling", "noise", "thermostat")
    assert rows(opt, *fields) == [(where, "BACDEDCAB", 1e-3, 0.05, 0.02, 0.1) for where in wheres]


def test_adlala():
    # 3.6: h = 0.15, τ1 = τ2 = 1e-4, γ = 0.1, σ_A = 0.01, ε = 0.1; a thermostat for each tensor, ξ starts at 0.1
    opt = methods.adlala(network())
    assert rows(opt, "lr", "friction", "temperature")[0] == ("2.*", "BAOAB", 0.15, 0.1, 1e-4)
    fields = ("lr", "temperature", "coupling", "noise", "thermostat")
    inner = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert rows(opt, *fields)[1:] == [(where, "BACDEDCAB", 0.15, 1e-4, 0.1, 0.01, 0.1) for where in inner]
    opt = methods.adlala(network(), per="layer", output_temperature=1e-6)
    assert rows(opt, "temperature")[0] == ("2.*", "BAOAB", 1e-6)
    assert [where for where, _ in rows(opt)] == ["2.*", "0.*", "1.*"]
    assert [where for where, _ in rows(methods.adlala(network(), per="model"))] == ["2.*", "*"]


PARTITIONED = [methods.lol, methods.dhsgd, methods.dhsgd_contractive, methods.adlala]
ALL = [
    methods.sgd,
    methods.sgld,
    methods.rms_sgld,
    methods.langevin,
    methods.langevin_in_layers,
    methods.adaptive_langevin,
    *PARTITIONED,
]
by_name = {"ids": lambda method: method.__name__}


@pytest.mark.parametrize("method", PARTITIONED, **by_name)
def test_output_names_the_output_part(method):
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(4, 1), nn.Linear(2, 4)

    assert rows(method(Backwards()))[0][0] == "body.*"  # the last to be registered
    opt = method(Backwards(), output="head.*")
    assert rows(opt)[0][0] == "head.*"
    assert opt.param_groups[0]["param_names"] == ["head.weight", "head.bias"]
    with pytest.raises(ValueError, match=r"part 'heads\.\*' matches no parameter; parameters are named 'head\.weight'"):
        method(Backwards(), output="heads.*")


@pytest.mark.parametrize("method", PARTITIONED, **by_name)
def test_an_output_that_takes_everything_leaves_nothing_inside(method):
    with pytest.raises(ValueError, match="matches no parameter"):
        method(network(), output="*")


@pytest.mark.parametrize("method", PARTITIONED, **by_name)
def test_one_layer_cannot_be_partitioned_unless_told_how(method):
    message = r"needs two layers or more, this model has \['0'\]: use tether\.methods\.langevin, .* output='\.\.\.'"
    with pytest.raises(ValueError, match=message):
        method(network(1))
    assert rows(method(network(1), output="0.bias"))[0][0] == "0.bias"


@pytest.mark.parametrize("method", ALL, **by_name)
def test_describe_cites_the_source(method):
    opt = method(network())
    last = opt.describe().splitlines()[-1]
    source = methods.citation(method.__name__)
    assert last == f"{method.__name__}: {source}"
    assert any(name in source for name in ("Robbins", "Welling", "Li", "Leimkuhler"))
    assert any(year in source for year in ("1951", "2011", "2013", "2016", "2019"))


@pytest.mark.parametrize("method", ALL, **by_name)
def test_every_method_is_listed_documented_and_passes_options_on(method):
    assert method.__name__ in methods.__all__
    assert method.__doc__
    opt = method(network(), lr=0.07, seed=5, weight_decay=0.25)
    assert rows(opt, "lr", "seed", "weight_decay") == [(*row, 0.07, 5, 0.25) for row in rows(opt)]
    with pytest.raises(TypeError, match="did you mean 'weight_decay'"):
        method(network(), weigth_decay=0.1)


def test_no_method_without_constraints_is_untested():
    # tried in tests/surfaces, test_multirate.py, test_cycles.py, test_path_sgd.py, test_spectral.py, test_metropolis.py
    # and test_pace.py
    elsewhere = ("_cola_", "multirate", "random_subset", "composite", "path_sgd", "hmc", "mala", "muon", "samadams")
    free = {name for name in methods.__all__ if not any(part in name for part in elsewhere)}
    assert {method.__name__ for method in ALL} | {"citation"} == free


# layers: modules that hold parameters of their own

in_layers = pytest.mark.parametrize(
    "method", [methods.langevin_in_layers, methods.adaptive_langevin, lambda m: methods.adlala(m, per="layer")]
)


@in_layers
def test_a_parameter_at_the_root_is_a_layer_of_its_own(method):
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(2))
            self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    groups = {tuple(group["param_names"]) for group in method(Token()).param_groups}
    assert groups == {("token",), ("body.weight", "body.bias"), ("head.weight", "head.bias")}


@in_layers
def test_a_transformer_has_a_layer_inside_a_layer(method):
    # MultiheadAttention holds in_proj_weight itself and out_proj as a module
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 1))
    groups = {tuple(group["param_names"]) for group in method(model).param_groups}
    assert ("0.self_attn.in_proj_weight", "0.self_attn.in_proj_bias") in groups
    assert ("0.self_attn.out_proj.weight", "0.self_attn.out_proj.bias") in groups
    assert len(groups) == 7


def test_names_that_look_like_globs_are_meant_literally():
    model = nn.Module()
    model.layers = nn.ModuleDict({"a[0]": nn.Linear(2, 2), "a0": nn.Linear(2, 2), "out": nn.Linear(2, 1)})
    for opt in (methods.langevin_in_layers(model), methods.adaptive_langevin(model, per="tensor")):
        assert sum(len(group["params"]) for group in opt.param_groups) == 6
    groups = [group["param_names"] for group in methods.langevin_in_layers(model).param_groups]
    assert groups[0] == ["layers.a[0].weight", "layers.a[0].bias"]


# what they refuse


def test_sgld_noise_and_temperature_say_the_same_thing():
    with pytest.raises(ValueError, match=r"noise=0\.1 and temperature=0\.2 say the same thing \(σ² = 2τ\)"):
        methods.sgld(network(), noise=0.1, temperature=0.2)


@pytest.mark.parametrize("noise", [-0.1, nan, inf])
def test_sgld_noise_is_a_number_like_any_other(noise):
    with pytest.raises(ValueError, match=f"noise={noise} is out of range; noise must be finite and ≥ 0"):
        methods.sgld(network(), noise=noise)


def test_sgld_noise_that_is_no_number():
    with pytest.raises(TypeError, match="noise='much' is not a number"):
        methods.sgld(network(), noise="much")


@pytest.mark.parametrize("scheme", ["rk4", "Heun", None])
def test_the_scheme_is_euler_or_heun(scheme):
    with pytest.raises(ValueError, match=rf"scheme={scheme!r} must be 'euler' or 'heun'"):
        methods.dhsgd_contractive(network(), scheme=scheme)


@pytest.mark.parametrize("method", [methods.adaptive_langevin, methods.adlala], **by_name)
@pytest.mark.parametrize("per", ["weight", "Layer", None])
def test_a_thermostat_is_per_tensor_layer_or_model(method, per):
    with pytest.raises(ValueError, match=rf"per={per!r} must be 'tensor', 'layer' or 'model'"):
        method(network(), per=per)


@pytest.mark.parametrize("field", ["friction", "temperature"])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_value_for_each_layer_or_one_for_all(field, count):
    with pytest.raises(ValueError, match=rf"{field} has {count} values for the 3 layers 0, 1, 2"):
        methods.langevin_in_layers(network(), **{field: [0.1] * count})


@pytest.mark.parametrize("value", ["much", None, [0.1, "much", 0.3]], ids=repr)
def test_a_friction_that_is_no_number_is_named(value):
    with pytest.raises(TypeError, match=r"friction=.* is not a number"):
        methods.langevin_in_layers(network(), friction=value)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_the_values_may_be_an_array(kind):
    opt = methods.langevin_in_layers(network(), friction=kind([0.125, 1.0, 8.0]))
    assert [group["friction"] for group in opt.param_groups] == [0.125, 1.0, 8.0]


def test_one_value_for_all_may_be_a_tensor():
    opt = methods.langevin_in_layers(network(), friction=torch.tensor(0.5))
    assert [float(group["friction"]) for group in opt.param_groups] == [0.5] * 3


@pytest.mark.parametrize("method", [methods.langevin, methods.lol, methods.adlala], **by_name)
@pytest.mark.parametrize(("field", "value"), [("lr", -0.1), ("friction", nan), ("temperature", -1e-4)])
def test_bad_numbers_are_named(method, field, value):
    with pytest.raises(ValueError, match=f"{field}={value} is out of range; {field} must be"):
        method(network(), **{field: value})


def test_an_unknown_citation():
    with pytest.raises(KeyError):
        methods.citation("adam")
