"""Random subsets asleep (5.5.1) and composite networks (5.9.3), against the lines of the methods written out."""

import copy
import math

import pytest
import torch
from torch import nn

import tether
from tether import methods


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def test_a_subset_sleeps_for_k_steps_and_wakes_with_a_long_one():
    weight = nn.Linear(30, 20, bias=False).double()
    start, k, h = weight.weight.detach().clone(), 3, 0.1
    opt = methods.random_subset(weight, lr=h, k=k, probabilities={"weight": 0.4}, seed=7)
    θ = start.clone()
    for cycle in range(3):
        asleep = weight.weight.detach() == 0
        assert abs(float(asleep.double().mean()) - 0.4) < 4 * math.sqrt(0.24 / 600)
        for _ in range(k):
            assert torch.equal(weight.weight.detach() == 0, asleep)
            weight.weight.grad = torch.full_like(θ, 0.5 + cycle)
            opt.step()
            θ = torch.where(asleep, θ, θ - h * (0.5 + cycle))
        torch.testing.assert_close(weight.weight.detach(), θ)  # all awake
        weight.weight.grad = torch.full_like(θ, 2.0)
        opt.step()
        θ = θ - torch.where(asleep, h * k, h) * 2.0
        now = weight.weight.detach() == 0
        torch.testing.assert_close(weight.weight.detach(), torch.where(now, 0.0, θ))
        assert not torch.equal(now, asleep)


def test_sleep_is_resumed_exactly():
    def run(model, opt, steps):
        for _ in range(steps):
            opt.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            opt.step()

    model = small()
    opt = methods.random_subset(model, lr=0.01, k=4)
    run(model, opt, 6)
    state, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(model.state_dict())
    twin = small()
    other = methods.random_subset(twin, lr=0.01, k=4)
    other.load_state_dict(state)
    twin.load_state_dict(weights)
    run(model, opt, 7)
    run(twin, other, 7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_skipped_step_or_one_of_length_zero_wakes_nobody():
    weight = nn.Linear(30, 20, bias=False)
    opt = methods.random_subset(weight, lr=0.1, k=1, probabilities={"weight": 0.4}, on_nonfinite="skip")
    asleep = weight.weight.detach() == 0
    weight.weight.grad = torch.full_like(weight.weight, math.nan)
    opt.step()
    assert torch.equal(weight.weight.detach() == 0, asleep)
    weight.weight.grad = torch.ones_like(weight.weight)
    opt.param_groups[0]["lr"] = 0.0
    opt.step()
    assert torch.equal(weight.weight.detach() == 0, asleep)


def test_momenta_of_sleepers_rest_with_them():
    weight = nn.Linear(30, 20, bias=False).double()
    θ, k, h, μ = weight.weight.detach().clone(), 2, 0.1, 0.9
    opt = methods.random_subset(weight, lr=h, k=k, probabilities={"weight": 0.4}, momentum=μ)
    p = torch.zeros_like(θ)
    for _ in range(2):
        asleep = weight.weight.detach() == 0
        for step in range(k + 1):
            awake = ~asleep if step < k else torch.ones_like(asleep)
            g = torch.randn_like(θ)
            weight.weight.grad = g
            opt.step()
            p = torch.where(awake, μ * p + g, p)
            θ = torch.where(awake, θ - torch.where(asleep, h * k, h) * p, θ)
        with opt.awake():
            torch.testing.assert_close(weight.weight.detach(), θ)


def test_a_replica_sleeps_as_it_would_alone():
    ens = tether.Replicas(small, n=3, seed=1)
    alone = ens[1]
    x = torch.randn(6, 4)

    def run(model, total):
        opt = methods.random_subset(model, lr=0.05, k=2)
        for _ in range(8):
            opt.zero_grad()
            total(model(x)).backward()
            opt.step()

    start = copy.deepcopy(alone.state_dict())
    run(ens, lambda out: out.square().mean((1, 2)).sum())
    alone.load_state_dict(start)
    run(alone, lambda out: out.square().mean())
    for a, b in zip(ens[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weights", ["before the optimizer", "between", "after its state"])
@pytest.mark.parametrize("steps", [2, 4, 6])  # asleep in the first cycle, just before waking, in the second
def test_weights_may_be_loaded_at_any_time(weights, steps):
    def run(model, opt, n):
        for _ in range(n):
            opt.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            opt.step()

    model = small()
    opt = methods.random_subset(model, lr=0.01, k=4)
    run(model, opt, steps)
    saved, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    twin = small()
    if weights == "before the optimizer":
        twin.load_state_dict(saved)
    other = methods.random_subset(twin, lr=0.01, k=4)
    if weights == "between":
        twin.load_state_dict(saved)
    other.load_state_dict(state)
    if weights == "after its state":
        twin.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    run(model, opt, 7)
    run(twin, other, 7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_frozen_weights_do_not_sleep_and_the_table_says_who_does():
    model = small()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    opt = tether.Optimizer(model, [tether.Part("*.weight", asleep=0.5, nap=3), tether.Part("*")], lr=0.1)
    assert torch.equal(model[0].weight, before)
    assert (model[2].weight == 0).any()
    assert "0.5 for 3" in opt.describe()


@pytest.mark.parametrize(
    "fields",
    [
        {"asleep": 1.0},
        {"asleep": -0.1},
        {"asleep": 0.5, "nap": 0},
        {"asleep": 0.5, "word": "BAOAB"},
        {"asleep": 0.5, "word": "BACDEDCAB"},
        {"asleep": 0.5, "every": 2},
        {"asleep": 0.5, "on": tether.Circle(1.0)},
    ],
)
def test_what_cannot_sleep_is_refused_before_anything_changes(fields):
    model = small()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"asleep=|nap=|Sleep"):
        tether.Optimizer(model, [tether.Part("*.weight", asleep=0.5), tether.Part("*", **fields)], lr=0.1)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# composite networks


@pytest.mark.parametrize("μ", [0.0, 0.9])
def test_two_copies_trained_apart_and_merged(μ):
    """Against two networks that really are two, the slow one on the first batch of every cycle."""
    k, h, ω = 3, 0.3, 0.01
    batches = [torch.randn(6, 4) for _ in range(3 * k)]
    model = small()
    opt = methods.composite_sgd(model, lr=h, k=k, momentum=μ, weight_decay=ω)
    fast, slow = small(), small()
    quick = torch.optim.SGD(fast.parameters(), lr=h / k, momentum=μ, weight_decay=ω)
    lazy = torch.optim.SGD(slow.parameters(), lr=h, momentum=μ, weight_decay=ω)

    def move(net, optimizer, x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for step, x in enumerate(batches):
        move(model, opt, x)
        if step % k == 0:
            move(slow, lazy, x)
        move(fast, quick, x)
        if (step + 1) % k == 0:
            with torch.no_grad():
                for a, b in zip(fast.parameters(), slow.parameters(), strict=True):
                    a.copy_((a + b) / 2)
                    b.copy_(a)
        for a, b in zip(model.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def test_a_composite_run_resumed_in_mid_cycle_goes_on_exactly():
    def run(model, opt, n):
        for _ in range(n):
            opt.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            opt.step()

    model, twin = small(), small()
    opt, other = (methods.composite_sgd(net, lr=0.03, k=3) for net in (model, twin))
    run(model, opt, 5)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(model, opt, 7)
    run(twin, other, 7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_replicas_merge_with_a_step_size_each():
    ens = tether.Replicas(small, n=2, seed=1)
    alone = ens[1]
    x = torch.randn(6, 4)
    h = torch.tensor([0.1, 0.3])

    def run(model, lr, total):
        opt = tether.Optimizer(model, lr=lr / 3, word="MS", friction=0.1, merge=3)
        for _ in range(7):
            opt.zero_grad()
            total(model(x)).backward()
            opt.step()

    run(ens, h, lambda out: out.square().mean((1, 2)).sum())
    run(alone, 0.3, lambda out: out.square().mean())
    for a, b in zip(ens[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_merging_is_for_words_whose_steps_stand_by_themselves():
    with pytest.raises(ValueError, match=r"'BAOAB' ends a step with the next one's gradient, and Merge\(3\)"):
        tether.Optimizer(small(), lr=0.1, word="BAOAB", merge=3)
    with pytest.raises(ValueError, match="do not go together"):
        tether.Optimizer(small(), lr=0.1, merge=3, asleep=0.5)
    with pytest.raises(ValueError, match="k=0"):
        methods.composite_sgd(small(), k=0)
    parts = [tether.Part("0.*", merge=3), tether.Part("*", word="BABAB")]
    with pytest.raises(ValueError, match="several gradients"):
        tether.Optimizer(small(), parts, lr=0.1)


# what a step that is not made leaves behind


@pytest.mark.parametrize("fields", [{"merge": 3, "word": "MS", "friction": 0.1}, {"asleep": 0.5, "nap": 2}], ids=str)
@pytest.mark.parametrize("bad", range(6))
def test_a_replica_that_sits_a_step_out_stays_finite_and_the_others_do_not_notice(fields, bad):
    def run(fault):
        ens = tether.Replicas(small, n=3, seed=1)
        opt = tether.Optimizer(ens, lr=0.05, on_nonfinite="skip", **fields)
        for step in range(9):
            opt.zero_grad()
            ens(torch.ones(6, 4)).square().mean((1, 2)).sum().backward()
            if fault and step == bad:
                next(iter(ens.parameters())).grad[1] = math.nan
            opt.step()
        return ens

    clean, faulty = run(False), run(True)
    for a, b in zip(clean.parameters(), faulty.parameters(), strict=True):
        assert b.isfinite().all()
        assert torch.equal(a[[0, 2]], b[[0, 2]])


def test_a_step_that_fails_on_its_way_does_not_move_the_slow_copy(monkeypatch):
    model = small()
    opt = methods.composite_sgd(model, lr=0.1, k=3)
    before = copy.deepcopy(opt.state_dict()["state"])

    def fail(*_):
        raise RuntimeError("a projection did not converge")

    for param in model.parameters():
        param.grad = torch.ones_like(param)
    monkeypatch.setattr("tether.engine.steps.counted", fail)
    with pytest.raises(RuntimeError, match="did not converge"):
        opt.step()
    after = opt.state_dict()["state"]
    assert all(torch.equal(x, after[i][key]) for i, own in before.items() for key, x in own.items())
