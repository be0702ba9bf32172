"""Optimizer: what it takes, what it refuses, and that a refusal leaves nothing half done."""

import io
from math import exp, inf, isnan, nan, sqrt

import numpy as np
import pytest
import torch
from torch import nn

import tether
from tether import Optimizer, Part, methods


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model):
    x = torch.linspace(-1, 1, 12).view(4, 3)
    model.zero_grad()
    loss = (model(x) - 1).square().mean()
    loss.backward()
    return loss


def train(model, opt, steps):
    for _ in range(steps):
        opt.step(lambda: backward(model))


def state_of(model, opt):
    """Everything a step may change, as one comparable value."""
    states = {name: opt.state.get(p, {}) for name, p in model.named_parameters()}
    momenta = {name: state["momentum"].tolist() for name, state in states.items() if "momentum" in state}
    groups = [(float(g["thermostat"]), g["step"], g["previous_lr"]) for g in opt.param_groups]
    return {name: p.tolist() for name, p in model.named_parameters()}, momenta, groups


# what it takes


@pytest.mark.parametrize(
    "params",
    [
        lambda m: m,
        lambda m: m.named_parameters(),
        lambda m: list(m.named_parameters()),
        lambda m: [{"params": m.named_parameters()}],
        lambda m: [{"params": m[0].named_parameters("0")}, {"params": m[2].named_parameters("2")}],
    ],
    ids=["module", "generator", "list", "group", "two groups"],
)
def test_however_the_parameters_are_given_they_get_the_same_noise(params):
    runs = []
    for given in (params, lambda m: m):
        model = network()
        train(model, Optimizer(given(model), lr=0.1, word="BAOAB", temperature=1e-2), 3)
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*runs, rtol=0, atol=1e-6)


def test_unnamed_parameters_are_called_by_their_number():
    model, twin = network(), network()
    plain = Optimizer(model.parameters(), lr=0.1, temperature=1e-2)
    numbered = Optimizer([(str(i), p) for i, p in enumerate(twin.parameters())], lr=0.1, temperature=1e-2)
    train(model, plain, 3)
    train(twin, numbered, 3)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_partition_with_equal_fields_changes_nothing():
    model, twin = network(), network()
    train(model, Optimizer(model, lr=0.1, word="BAOAB", temperature=1e-2), 3)
    parts = [Part("2.*"), Part("*.bias"), Part("*")]
    train(twin, Optimizer(twin, parts, lr=0.1, word="BAOAB", temperature=1e-2), 3)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_sgd_is_torchs_to_the_last_bit():
    model, twin = network(), network()
    train(model, Optimizer(model, lr=0.1, weight_decay=0.01), 5)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=0.01), 5)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), twin.parameters(), strict=True))


def test_oba_is_sgd_with_momentum():
    # errata 1: lr = h², momentum = exp(−γh)
    h, friction = 0.3, 1.5
    model, twin = network().double(), network().double()
    ours = Optimizer(model, lr=h, word="OBA", friction=friction)
    torchs = torch.optim.SGD(twin.parameters(), lr=h**2, momentum=exp(-friction * h))
    for m, opt in ((model, ours), (twin, torchs)):
        for _ in range(5):
            for p in m.parameters():
                p.grad = p.detach() - 1
            opt.step()
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_one_step_of_each_part_by_hand():
    # g = 2 for both: X moves by −h g; O comes after the drift of BAO, so p = −h g e^{−γh}, θ moves by −h² g.
    a, b = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    opt = Optimizer([("a", a), ("b", b)], [Part("a"), Part("b", word="BAO", lr=0.2, friction=3.0)], lr=0.1)
    a.grad, b.grad = torch.full_like(a, 2.0), torch.full_like(b, 2.0)
    opt.step()
    assert a.item() == pytest.approx(-0.1 * 2, rel=1e-14)
    assert b.item() == pytest.approx(-(0.2**2) * 2, rel=1e-14)
    assert opt.state[b]["momentum"].item() == pytest.approx(-0.2 * 2 * exp(-3.0 * 0.2), rel=1e-14)


def test_weight_decay_is_a_gradient():
    θ = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    θ.grad = torch.ones_like(θ)
    Optimizer([θ], lr=0.1, weight_decay=0.5).step()
    assert θ.item() == pytest.approx(2 - 0.1 * (1 + 0.5 * 2), rel=1e-14)


@pytest.mark.parametrize("normalised", [False, True])
def test_the_thermostat_by_hand(normalised):
    # BAE: p = −h g, then ξ += h ε (pᵀp − N τ), with ε/N where normalised
    θ = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    opt = Optimizer([θ], lr=0.5, word="BAE", coupling=0.3, temperature=0.01, thermostat=0.2, normalised=normalised)
    θ.grad = torch.ones_like(θ)
    opt.step()
    ε = 0.3 / 4 if normalised else 0.3
    assert float(opt.param_groups[0]["thermostat"]) == pytest.approx(0.2 + 0.5 * ε * (4 * 0.25 - 4 * 0.01), rel=1e-12)


def test_temperature_is_the_mean_square_momentum():
    model = network()
    opt = Optimizer(model, [Part("0.*", word="BAOAB"), Part("*")], lr=0.1)
    assert isnan(opt.temperature()["0.*"])  # no momenta before the first step
    train(model, opt, 1)
    for param in model[0].parameters():
        opt.state[param]["momentum"].fill_(3.0)
    temperature = opt.temperature()
    assert temperature["0.*"] == 9.0
    assert isnan(temperature["*"])


def test_describe_shows_the_table():
    model = network()
    parts = [Part("0.*", word="BACDEDCAB", temperature=1e-4), Part("*", word="BAOAB", friction=inf)]
    opt = Optimizer(model, parts, lr=0.25, seed=3)
    train(model, opt, 2)
    head, rule, first, second, last = opt.describe().splitlines()
    assert " ".join(head.split()) == "part parameters word lr friction temperature coupling noise thermostat"
    assert set(rule) <= {"─", " "}
    assert first.split()[:8] == ["0.*", "32", "BACDEDCAB", "0.25", "·", "0.0001", "0.1", "0.01"]
    assert second.split() == ["*", "9", "BAOAB", "0.25", "inf", "0", "·", "·", "·"]
    assert last == "step 2, seed 3"
    assert repr(opt) == opt.describe()


def test_parts_of_the_same_glob_are_told_apart():
    model = network()
    opt = Optimizer([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    assert list(opt.temperature()) == ["* #0", "* #1"]


# what it refuses


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda m: Optimizer([], lr=0.1), ValueError, r"no parameters to move: pass model\.named_parameters\(\)"),
        (lambda m: Optimizer(nn.ReLU(), lr=0.1), ValueError, "no parameters to move"),
        (lambda m: Optimizer(m[0].weight, lr=0.1), TypeError, r"put it in a list: Optimizer\(\[tensor\], lr=\.\.\.\)"),
        (lambda m: Optimizer(m, [], lr=0.1), TypeError, r"parts=\[\] must be a list of tether\.Part"),
        (lambda m: Optimizer(m, ["0.*"], lr=0.1), TypeError, r"must be a list of tether\.Part"),
        (lambda m: Optimizer(m, Part("*"), lr=0.1), TypeError, r"must be a list of tether\.Part"),
        (lambda m: Optimizer(m, 0.1, lr=0.1), TypeError, r"parts=0\.1 must be a list of tether\.Part"),
        (
            lambda m: Optimizer(m.parameters(), [Part("0.*"), Part("*")], lr=0.1),
            ValueError,
            r"matched by name: pass model\.named_parameters\(\) instead of model\.parameters\(\)",
        ),
        (
            lambda m: Optimizer([{"params": m.parameters()}], [Part("*")], lr=0.1),
            ValueError,
            r"param-group dicts are parts themselves: pass named_parameters\(\)",
        ),
        (
            lambda m: Optimizer(m, lr=0.1, on_nonfinite="rais"),
            ValueError,
            "on_nonfinite='rais' must be 'raise' or 'skip'",
        ),
        (lambda m: Optimizer(m, lr=0.1, seed=1.5), TypeError, r"seed=1\.5 must be an int, e\.g\. seed=0"),
        (lambda m: Optimizer(m, lr=0.1, word="BAOY"), ValueError, "unknown letter 'Y'"),
        (lambda m: Optimizer(m, lr=0.1, word=3), TypeError, "a word is a string of letters such as 'BAOAB', got 3"),
    ],
)
def test_a_bad_call_says_what_to_write(build, error, message):
    with pytest.raises(error, match=message):
        build(network())


def test_one_part_for_everything_needs_no_names():
    model = network()
    assert Optimizer(model.parameters(), [Part("*", word="BAOAB")], lr=0.1).param_groups[0]["word"] == "BAOAB"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_parameters_that_are_not_real_numbers_are_named(dtype):
    model = network()
    model.odd = nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)
    with pytest.raises(TypeError, match=rf"parameter 'odd' is {dtype}; tether moves real .* torch\.view_as_real\(z\)"):
        Optimizer(model, lr=0.1)
    opt = Optimizer(network(), lr=0.1)
    with pytest.raises(TypeError, match=f"parameter 'odd' is {dtype}"):
        opt.add_param_group({"params": [("odd", model.odd)]})
    assert len(opt.param_groups) == 1


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")  # torch's own, before ours
def test_a_tensor_under_two_names_is_refused():
    # It would get two momenta and move twice per step, which no checkpoint could hold.
    model = network()
    model[2].weight = nn.Parameter(torch.zeros(1, 8))
    model.again = model[2].weight
    twice = list(model.named_parameters(remove_duplicate=False))
    with pytest.raises(ValueError, match=r"2\.weight.*again|again.*2\.weight"):
        Optimizer(twice, lr=0.1)


@pytest.mark.parametrize("word", ["X", "BAOAB", "BAFEFAB"])
def test_a_sparse_gradient_is_named_and_moves_nothing(word):
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    opt = Optimizer(model, lr=0.1, word=word, temperature=1e-3)
    model(torch.tensor([1, 2])).sum().backward()
    before = state_of(model, opt)
    message = r"gradient of '0\.weight' is sparse; .* use nn\.Embedding\(\.\.\., sparse=False\)"
    with pytest.raises(TypeError, match=message):
        opt.step()
    assert state_of(model, opt) == before


FIELDS = ("lr", "friction", "temperature", "coupling", "noise", "weight_decay")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-1.0, nan])
def test_a_field_made_bad_on_the_way_moves_nothing(field, value):
    model = network()
    opt = methods.adlala(model)
    train(model, opt, 2)
    before = state_of(model, opt)
    kept = opt.param_groups[1][field]
    opt.param_groups[1][field] = value
    calls = []
    with pytest.raises(ValueError, match=rf"part '0\.weight': {field}={value} is out of range; {field} must be"):
        opt.step(lambda: calls.append(backward(model)))
    assert not calls  # found before any work is done
    assert state_of(model, opt) == before
    opt.param_groups[1][field] = kept
    train(model, opt, 1)


@pytest.mark.parametrize("value", [None, "much", torch.ones(2)], ids=repr)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_made_no_number_on_the_way_is_named(field, value):
    if field in ("friction", "mass") and isinstance(value, torch.Tensor):
        return  # a number for each entry
    model = network()
    opt = methods.adlala(model)
    opt.param_groups[1][field] = value
    with pytest.raises(TypeError, match=rf"(?s)part '0\.weight': {field}=.* is not a number; {field} must be"):
        train(model, opt, 1)


def test_a_thermostat_made_nan_on_the_way_is_named():
    model = network()
    opt = methods.adlala(model)
    opt.param_groups[1]["thermostat"] = nan
    before = state_of(model, opt)[0]
    with pytest.raises(ValueError, match="thermostat=nan is out of range"):
        train(model, opt, 1)
    assert state_of(model, opt)[0] == before


def test_a_word_changed_on_the_way_is_checked():
    model = network()
    opt = Optimizer(model, lr=0.1)
    opt.param_groups[0]["word"] = "BAY"
    before = state_of(model, opt)
    with pytest.raises(ValueError, match="unknown letter 'Y'"):
        train(model, opt, 1)
    assert state_of(model, opt) == before


@pytest.mark.parametrize("field", ["temperature", "friction"])
def test_a_field_that_is_a_tensor_may_change_in_place(field):
    θ = nn.Parameter(torch.zeros(1000, dtype=torch.float64))
    θ.grad = torch.zeros_like(θ)
    fields = {"temperature": 4.0, "friction": inf, field: torch.tensor(0.0, dtype=torch.float64)}
    opt = Optimizer([("θ", θ)], lr=0.1, word="BAOA", **fields)
    opt.step()
    assert opt.temperature()["*"] == 0.0
    opt.param_groups[0][field].fill_(4.0 if field == "temperature" else 1e9)
    opt.step()
    assert opt.temperature()["*"] == pytest.approx(4.0, abs=5 * 4 * sqrt(2 / 1000))


def test_two_parts_do_not_share_an_lr_tensor():
    opt = Optimizer(network(), [Part("0.*"), Part("*")], lr=torch.tensor(0.1))
    opt.param_groups[0]["lr"].fill_(0.5)
    assert float(opt.param_groups[1]["lr"]) == pytest.approx(0.1)


def test_numpy_numbers_do_not_spoil_a_checkpoint():
    model = network()
    opt = Optimizer(model, lr=np.float64(0.1), temperature=np.float32(1e-3), seed=3)
    train(model, opt, 1)
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer)["param_groups"][0]["lr"] == 0.1


# checkpoints of something else


def test_a_checkpoint_of_other_words_is_refused_and_changes_nothing():
    model = network()
    opt = methods.langevin(model)
    train(model, opt, 2)
    before = state_of(model, opt)
    saved = methods.langevin(network(), word="OBA").state_dict()
    message = r"part '\*' \(group 0\) runs the word 'BAOAB', but the checkpoint was saved with 'OBA': build"
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert state_of(model, opt) == before
    train(model, opt, 1)


def test_a_checkpoint_of_another_optimizer_is_refused():
    model = network()
    saved = torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
    with pytest.raises(ValueError, match="of another optimizer, not of tether's"):
        Optimizer(model, lr=0.1).load_state_dict(saved)


def test_a_checkpoint_of_other_parts_is_refused_and_changes_nothing():
    model = network()
    opt = Optimizer(model, [Part("0.*"), Part("*")], lr=0.1, word="BAOAB")
    train(model, opt, 2)
    before = state_of(model, opt)
    for other in ([Part("*")], [Part("0.weight"), Part("*")], [Part("0.*"), Part("2.bias"), Part("*")]):
        saved = Optimizer(network(), other, lr=0.1, word="BAOAB").state_dict()
        with pytest.raises(ValueError, match="parameter group"):
            opt.load_state_dict(saved)
        assert state_of(model, opt) == before
    train(model, opt, 1)


def test_a_checkpoint_of_other_shapes_is_refused_and_changes_nothing():
    model = network()
    opt = Optimizer(model, lr=0.1, word="BAOAB")
    train(model, opt, 2)
    before = state_of(model, opt)
    wide = nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 1))
    other = Optimizer(wide, lr=0.1, word="BAOAB")
    train(wide, other, 1)
    with pytest.raises(ValueError, match=r"0\.weight"):
        opt.load_state_dict(other.state_dict())
    assert state_of(model, opt) == before
    train(model, opt, 1)


# words that take several gradients


def closure_of(model, opt, spoil_call=None):
    calls = []

    def closure():
        opt.zero_grad()
        loss = backward(model)
        calls.append(loss)
        if len(calls) == spoil_call:
            model[0].weight.grad[0, 0] = nan
        return loss

    return closure


def test_babab_by_hand():
    # U = θ²/2: two leapfrog steps of h/2 with kicks of h/3 as written, from θ = 1, p = 0
    θ = nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = Optimizer([θ], lr=0.3, word="BABAB")

    def closure():
        θ.grad = θ.detach().clone()
        return 0.5 * float(θ.detach()) ** 2

    assert opt.step(closure) == 0.5
    x, p = 1.0, 0.0
    for _ in range(2):
        p -= 0.1 * x
        x += 0.15 * p
    p -= 0.1 * x
    assert θ.item() == pytest.approx(x, rel=1e-14)
    assert opt.state[θ]["momentum"].item() == pytest.approx(p, rel=1e-14)


def test_heun_by_hand():
    # U = θ²/2: θ* = θ − hθ, then θ − (h/2)(θ + θ*) = θ (1 − h + h²/2)
    θ = nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = Optimizer([θ], lr=0.3, word="XH")

    def closure():
        θ.grad = θ.detach().clone()
        return 0.0

    opt.step(closure)
    assert θ.item() == pytest.approx(1 - 0.3 + 0.3**2 / 2, rel=1e-14)


def test_heun_when_the_two_closures_reach_different_parameters():
    # a has gradients 1 then none, b none then 1: neither can be corrected; X moved a, and b waits.
    a, b = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    opt = Optimizer([("a", a), ("b", b)], lr=0.1, word="XH")
    calls = []

    def closure():
        calls.append(1)
        a.grad = torch.ones_like(a) if len(calls) == 1 else None
        b.grad = torch.full_like(b, 7.0) if len(calls) == 2 else None
        return 0.0

    opt.step(closure)
    assert a.item() in (pytest.approx(-0.1), pytest.approx(0.0))  # its own gradient, or none
    assert b.item() == pytest.approx(0.0, abs=1e-15)


def test_a_word_that_starts_without_a_gradient_does_not_need_an_old_one():
    # ABABA drifts before its first kick; whether gradients were zeroed in between must not matter.
    runs = []
    for zero in (False, True):
        model = network()
        opt = Optimizer(model, lr=0.1, word="ABABA")
        for _ in range(4):
            opt.step(closure_of(model, opt))
            if zero:
                opt.zero_grad(set_to_none=True)
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*runs, rtol=0, atol=1e-6)


def test_a_word_that_starts_without_a_gradient_recovers_from_a_bad_one():
    model = network()
    opt = Optimizer(model, lr=0.1, word="ABABA")
    train(model, opt, 2)
    before = state_of(model, opt)
    with pytest.raises(tether.NonFiniteGradient):
        opt.step(closure_of(model, opt, spoil_call=2))
    assert state_of(model, opt) == before
    opt.step(closure_of(model, opt))  # the bad gradient is still in .grad when this starts
    assert state_of(model, opt) != before


def test_a_failure_in_the_second_gradient_restores_the_thermostat():
    model = network()
    opt = Optimizer(model, [Part("0.*", word="BAEAB"), Part("*", word="XH")], lr=0.1, temperature=0.0)
    for steps in (0, 2):
        for _ in range(steps):
            opt.step(closure_of(model, opt))
        before = state_of(model, opt)
        with pytest.raises(tether.NonFiniteGradient):
            opt.step(closure_of(model, opt, spoil_call=2))
        after = state_of(model, opt)
        assert (after[0], after[2]) == (before[0], before[2])
        if steps:
            assert after[1] == before[1]


def test_a_failure_after_a_first_gradient_came_late_restores_the_others():
    # b has its first gradient in the middle of a step, which makes new momenta; the third gradient is bad.
    a, b = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    opt = Optimizer([("a", a), ("b", b)], lr=0.1, word="BABAB")
    calls = []

    def closure():
        calls.append(1)
        a.grad = torch.full_like(a, nan if len(calls) == 6 else 1.0)
        b.grad = torch.ones_like(b) if len(calls) >= 5 else None
        return 0.0

    opt.step(closure)
    before = a.tolist(), opt.state[a]["momentum"].tolist()
    assert before[1][0] != 0
    with pytest.raises(tether.NonFiniteGradient, match="'a'"):
        opt.step(closure)
    assert (a.tolist(), opt.state[a]["momentum"].tolist()) == before
    assert b.tolist() == [0.0] * 3
    assert not opt.state[b]["momentum"].any()


def test_a_parameter_without_gradient_does_not_drift_before_the_kick_either():
    a, b = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    opt = Optimizer([("a", a), ("b", b)], lr=0.1, word="ABABA")
    used = {a, b}

    def closure():
        for param in (a, b):
            param.grad = torch.ones_like(param) if param in used else None
        return 0.0

    opt.step(closure)
    used.discard(b)
    before = b.tolist(), opt.state[b]["momentum"].tolist()
    assert before[1][0] != 0
    for _ in range(2):
        opt.step(closure)
        assert (b.tolist(), opt.state[b]["momentum"].tolist()) == before
    used.add(b)
    opt.step(closure)
    assert b.tolist() != before[0]
