"""What a user gets to read: each message names the value, the rule and the corrected call."""

import inspect
import math
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import tether
from tether import Part, methods
from tether.surfaces import Level, Orthogonal, Sphere, SurfaceError


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


# The keywords of torch's optimizers

OURS = {"self", "params", "lr", "weight_decay", "foreach"}
KEYWORDS = sorted(
    {name for kind in (torch.optim.SGD, torch.optim.Adam) for name in inspect.signature(kind).parameters} - OURS
)
SAID = {
    "momentum": r"word='MS', friction=-math\.log\(0\.9\)",
    "betas": r"tether\.constrain\(torch\.optim\.Adam\(model\.named_parameters\(\)\)",
    "maximize": r"\(-loss\)\.backward\(\)",
    "nesterov": "word='MV'",
    "fused": "leave it out",
}
DOORS = {
    "Optimizer": lambda name: tether.Optimizer(network(), lr=0.1, **{name: 0.9}),
    "Part": lambda name: Part("*", **{name: 0.9}),
    "param group": lambda name: tether.Optimizer([{"params": list(network().parameters()), name: 0.9}], lr=0.1),
    "method": lambda name: methods.langevin(network(), **{name: 0.9}),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", KEYWORDS)
def test_every_keyword_of_sgd_and_adam_has_its_translation(name, door):
    with pytest.raises(
        TypeError, match=rf"'{name}' is a keyword of torch's optimizers.*{SAID.get(name, '')}"
    ) as caught:
        DOORS[door](name)
    assert "fields are" not in str(caught.value)


def test_the_translation_of_momentum_is_exact():
    ours, theirs = network(), network()
    opt = tether.Optimizer(ours, lr=0.1, word="MS", friction=-math.log(0.9))
    other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        for model, each in ((ours, opt), (theirs, other)):
            each.zero_grad()
            model(x).square().mean().backward()
            each.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


# Fields that nothing uses

UNUSED = [
    ({"friction": 5.0}, "friction=5.0 has no effect: the word 'X' has no letter that uses γ; write e.g. word='BAOAB'"),
    ({"friction": 1.0}, "friction=1.0 has no effect"),  # the default's own value, but given
    ({"word": "BAOAB", "noise": 0.1}, "noise=0.1 has no effect: the word 'BAOAB' has no letter that uses σ"),
    ({"word": "BAOAB", "coupling": 2}, "coupling=2 has no effect"),
    ({"word": "BAOAB", "normalised": True}, "normalised=True has no effect"),
    ({"word": "BAOAB", "thermostat": 0.5}, "thermostat=0.5 has no effect"),
    ({"word": "MS", "temperature": 0.1}, "temperature=0.1 has no effect: the word 'MS' has no letter that uses τ"),
    ({"word": "BACDEDCAB", "friction": torch.tensor(2.0)}, "friction=.* has no effect"),
]


@pytest.mark.parametrize(("fields", "message"), UNUSED, ids=lambda x: str(x)[:40])
def test_a_field_that_the_word_does_not_use_warns_once(fields, message):
    model = network()
    doors = [
        lambda: tether.Optimizer(model, lr=0.1, **fields),
        lambda: tether.Optimizer(model, [Part("0.*", **fields), Part("*")], lr=0.1),
        lambda: tether.Optimizer([{"params": list(model.parameters()), **fields}], lr=0.1),
    ]
    for build in doors:
        with pytest.warns(UserWarning, match=message) as caught:
            build()
        assert len(caught) == 1
        assert caught[0].filename == __file__  # it points to the user's line


def test_as_an_error_it_comes_before_anything_has_changed():
    model = network()
    before = model[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no effect"):
            tether.Optimizer(model, [Part("*.weight", on=Orthogonal()), Part("*")], lr=0.1, friction=5.0)
    assert torch.equal(model[0].weight, before)


def test_fields_that_some_part_uses_and_zeros_do_not_warn():
    parts = [Part("0.*", word="BAOAB"), Part("*")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tether.Optimizer(network(), parts, lr=0.1, friction=5.0, temperature=1e-3)
        tether.Optimizer(network(), lr=0.1, friction=0.0, noise=0, normalised=False)  # true of X as well
        for name in sorted(methods.CITATIONS):
            getattr(methods, name)(network(), **({"fast": "2.*"} if name == "multirate_sgd" else {}))
        methods.path_sgd(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), momentum=0.9)
        methods.composite_sgd(network(), momentum=0.0)


# What is to be moved

WRONG = {
    "a method": (lambda model: model.parameters, r"a function, parameters: call it, e\.g\. Optimizer\(model\.named_p"),
    "a class": (lambda model: nn.Linear, r"the class Linear: pass a module, e\.g\. Optimizer\(Linear\(\.\.\.\), lr="),
    "a number": (lambda model: 3, r"params=3 .* pass a module, model\.named_parameters\(\)"),
    "nothing": (lambda model: None, r"params=None .* pass a module"),
    "weights": (lambda model: model.state_dict(), r"a dict of tensors: pass the module itself"),
    "text": (lambda model: "model", r"params='model' .* pass a module"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_parameters(kind):
    make, message = WRONG[kind]
    with pytest.raises(TypeError, match=message):
        tether.Optimizer(make(network()), lr=0.1)


PARTITIONED = ["adlala", "adaptive_langevin", "lol", "dhsgd", "langevin_in_layers", "circle_cola_ud", "random_subset"]


@pytest.mark.parametrize("name", [*PARTITIONED, "multirate_sgd"])
def test_methods_that_look_at_layers_want_the_model(name):
    fields = {"fast": "2.*"} if name == "multirate_sgd" else {}
    method = getattr(methods, name)
    with pytest.raises(
        TypeError, match=rf"{name} looks at the model's layers.*methods\.{name}\(model, .*got a generator"
    ):
        method(network().parameters(), **fields)
    with pytest.raises(TypeError, match=rf"methods\.{name}\(model, .*got the class Linear"):
        method(nn.Linear, **fields)


def test_methods_that_do_not_take_parameters():
    methods.sgd(network().parameters()).step()
    methods.langevin(network().named_parameters()).step()


def test_a_model_that_is_frozen_altogether_warns():
    model = network().requires_grad_(False)
    with pytest.warns(UserWarning, match=r"none of the 4 parameters asks for a gradient.*requires_grad_\(True\)"):
        tether.Optimizer(model, lr=0.1)
    model[0].weight.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tether.Optimizer(model, lr=0.1)


@pytest.mark.parametrize("surface", [tether.Free(), Orthogonal()], ids=str)
def test_meta_parameters_are_to_be_materialised(surface):
    with torch.device("meta"):
        model = nn.Linear(3, 3, bias=False)
    with pytest.raises(TypeError, match=r"'weight' is on the meta device.*model\.to_empty\(device='cpu'\)"):
        tether.Optimizer(model, lr=0.1, on=surface)


def test_integer_and_complex_parameters():
    integers = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    with pytest.raises(TypeError, match=r"'w' is torch\.int64.*register_buffer"):
        tether.Optimizer([("w", integers)], lr=0.1)
    with pytest.raises(TypeError, match=r"'w' is torch\.complex64.*torch\.view_as_real"):
        tether.Optimizer([("w", nn.Parameter(torch.ones(3, dtype=torch.complex64)))], lr=0.1)


# Whole numbers


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, torch.tensor], ids=lambda kind: kind.__name__)
def test_whole_numbers_of_numpy_are_whole_numbers(kind, tmp_path):
    two = kind(2)
    parts = [Part("0.*"), Part("*", every=two)]
    optimizers = [
        tether.Optimizer(network(), parts, lr=0.1, seed=two),
        tether.Optimizer(network(), lr=0.1, merge=two),
        tether.Optimizer(network(), lr=0.1, asleep=0.5, nap=two),
        methods.multirate_sgd(network(), fast="2.*", k=two),
        methods.composite_sgd(network(), k=two),
        methods.random_subset(network(), k=two),
    ]
    for i, opt in enumerate(optimizers):
        for group in opt.param_groups:
            assert all(type(group[name]) is int for name in ("seed", "every", "nap", "merge"))
        torch.save(opt.state_dict(), tmp_path / f"{i}.pt")
        opt.load_state_dict(torch.load(tmp_path / f"{i}.pt", weights_only=True))
    assert optimizers[0].param_groups[1]["every"] == optimizers[0].param_groups[0]["seed"] == 2
    apart = {name: torch.optim.SGD(network().parameters()) for name in "ab"}
    assert type(tether.Multirate(apart, every={"a": two}).every["a"]) is int
    assert Orthogonal(iterations=two).iterations == 2
    assert Level(lambda w, ξ: w.sum() + ξ, slack=two).variables == 2


@pytest.mark.parametrize("value", [2.0, np.float64(2.0), "2", True, 0, -1, None, torch.tensor(2.0)], ids=repr)
def test_other_numbers_of_steps_are_refused(value):
    for name in ("every", "nap", "merge"):
        with pytest.raises(ValueError, match=rf"{name}=.* must be a whole number of steps, 1 or more, e\.g\. {name}=5"):
            tether.Optimizer(network(), lr=0.1, **{name: value})
    with pytest.raises(ValueError, match=r"k=.* must be a whole number of steps, 1 or more, e\.g\. k=5"):
        methods.composite_sgd(network(), k=value)


@pytest.mark.parametrize("seed", [1.0, "1", None], ids=repr)
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(TypeError, match=r"seed=.* must be an int, e\.g\. seed=0"):
        tether.Optimizer(network(), lr=0.1, seed=seed)


def test_foreach_none_is_the_default():
    references = [tether.Optimizer(network(), lr=0.1, foreach=each).reference for each in (None, True, False)]
    assert references == [False, False, True]


# Surfaces


def test_a_function_without_a_signature():
    with pytest.raises(
        SurfaceError, match=r"put it in a lambda, e\.g\. Level\(lambda w: torch\.linalg\.det\(w\) - 1\)"
    ):
        Level(torch.linalg.det)
    w = nn.Parameter(torch.eye(3, dtype=torch.float64) * 1.1)
    tether.Optimizer([("w", w)], on=Level(lambda w: torch.linalg.det(w) - 1), lr=0.1)
    assert float(torch.linalg.det(w.detach())) == pytest.approx(1, abs=1e-12)


def test_rows_of_an_lstm_are_those_of_the_stacked_gates():
    lstm = nn.LSTM(3, 5)
    parts = [Part("weight_hh*", on=Orthogonal()), Part("weight_ih*", on=Sphere(0.3)), Part("*")]
    tether.Optimizer(lstm, parts, lr=0.1)
    w = lstm.weight_hh_l0.detach()  # (4 · 5, 5): tall, so that its columns are orthonormal, but no single gate is
    torch.testing.assert_close(w.T @ w, torch.eye(5), rtol=0, atol=1e-6)
    assert all(float((gate.T @ gate - torch.eye(5)).abs().max()) > 0.1 for gate in w.split(5))
    assert lstm.weight_ih_l0.detach().norm(dim=1).max() <= 0.3 + 1e-6  # each gate of each unit by itself
    for kind in (Sphere, Orthogonal):
        assert "LSTM" in inspect.getdoc(kind)


def test_rows_of_a_transposed_convolution_are_its_input_channels():
    conv = nn.ConvTranspose2d(4, 6, 3)
    with torch.no_grad():
        conv.weight.mul_(10)
    tether.Optimizer(conv, [Part("weight", on=Sphere(0.5)), Part("*")], lr=0.1)
    w = conv.weight.detach()  # (in, out, 3, 3)
    assert w.flatten(1).norm(dim=1).max() <= 0.5
    assert w.transpose(0, 1).flatten(1).norm(dim=1).shape == (6,)
    for kind in (Sphere, Orthogonal):
        assert "transposed convolution" in " ".join(inspect.getdoc(kind).split())


def heads():
    return nn.Sequential(OrderedDict(body=nn.Linear(3, 4), head=nn.Linear(4, 2)))


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (lambda m: tether.Optimizer(m, lr=0.1, word="Adam"), r"tether\.constrain\(torch\.optim\.Adam\("),
        (lambda m: tether.Optimizer(m, [tether.Part("head"), tether.Part("*")], lr=0.1), r"did you mean 'head\.\*'\?"),
        (
            lambda m: tether.constrain(torch.optim.SGD(m.named_parameters(), lr=0.1), {"conv.*": tether.Sphere()}),
            r"'conv\.\*' matches no parameter of the optimizer; parameters are named 'body\.weight', 'body\.bias'",
        ),
        (lambda m: tether.violation(torch.optim.SGD(m.parameters(), lr=0.1)), r"tether\.constrain\(opt"),
        (lambda m: tether.methods.multirate_sgd(m, fast=["body.*", "head.*"]), "nothing is left slow"),
    ],
)
def test_what_newcomers_try(trial, message):
    model = heads()
    before = [x.clone() for x in model.parameters()]
    with pytest.raises(ValueError, match=message):
        trial(model)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_field_that_every_part_sets_itself_warns():
    with pytest.warns(UserWarning, match="every part sets its own friction"):
        tether.methods.multirate_sgd(heads(), fast=["head.*"], friction=1.5)


def test_fast_parameters_by_several_globs_and_slow_ones_after_release():
    model = heads()
    opt = tether.methods.multirate_sgd(model, fast=["head.weight", "head.bias"], k=3)
    model(torch.ones(2, 3)).sum().backward()
    opt.step()
    assert [x.requires_grad for x in model.parameters()] == [False, False, True, True]
    opt.release()
    assert all(x.requires_grad for x in model.parameters())
