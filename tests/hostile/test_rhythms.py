"""Sleepers and slow parts at the end of a run, in a picture taken in the middle, and in the next optimizer."""

import copy
import gc
import io

import pytest
import torch
from torch import nn

import tether
from tether import Multirate, Optimizer, Part, Replicas, methods

F = nn.functional


def net():
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))


def points():
    x = torch.linspace(-1, 1, 60).view(10, 6)
    return x, x.sum(1, keepdim=True).sin()


def loop(model, opt, steps):
    x, y = points()
    for _ in range(steps):
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()


def asleep(model):
    return float((model[0].weight == 0).float().mean())


@pytest.mark.parametrize("steps", [1, 3, 5, 6, 7])
def test_awake_shows_all_weights_and_changes_nothing(steps):
    runs = []
    for looked in (False, True):
        torch.manual_seed(0)
        model = net()
        opt = methods.random_subset(model, lr=0.1, k=5)
        for _ in range(steps):
            loop(model, opt, 1)
            if looked:
                before = copy.deepcopy(model.state_dict())
                with opt.awake():
                    assert asleep(model) == 0
                torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        loop(model, opt, 8)
        runs.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def test_awake_shows_the_weights_that_sleepers_had():
    model = net()
    start = model[0].weight.detach().clone()
    opt = methods.random_subset(model, lr=0.0, k=5)
    assert asleep(model) > 0.5
    with opt.awake():
        assert torch.equal(model[0].weight, start)


def test_awake_puts_sleepers_back_after_an_error_and_allows_no_step():
    model = net()
    opt = methods.random_subset(model, lr=0.1, k=5)
    loop(model, opt, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="awake"), opt.awake():
        loop(model, opt, 1)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_awake_is_for_every_optimizer():
    model = net()
    with methods.sgd(model).awake():
        pass


def test_release_wakes_sleepers_and_the_next_step_goes_on():
    model = net()
    opt = methods.random_subset(model, lr=0.1, k=5)
    loop(model, opt, 2)
    opt.release()
    assert asleep(model) == 0
    loop(model, opt, 1)
    assert asleep(model) > 0.5


def test_a_checkpoint_of_released_weights_goes_on():
    model = net()
    opt = methods.random_subset(model, lr=0.1, k=5)
    loop(model, opt, 2)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    with opt.awake():
        shown = copy.deepcopy(model.state_dict())
    loop(model, opt, 9)
    for saved in (weights, shown):
        again = net()
        twin = methods.random_subset(again, lr=0.1, k=5)
        again.load_state_dict(saved)
        twin.load_state_dict(state)
        loop(again, twin, 9)
        torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("how", ["garbage", "next"])
def test_sleepers_of_an_optimizer_that_is_dropped_wake(how):
    model = net()
    start = model[0].weight.detach().clone()
    opt = methods.random_subset(model, lr=0.0, k=5)
    assert asleep(model) > 0.5
    if how == "garbage":
        del opt
        gc.collect()
        assert torch.equal(model[0].weight, start)
        return
    opt = methods.random_subset(model, lr=0.0, k=5, seed=1)
    gc.collect()
    with opt.awake():
        assert torch.equal(model[0].weight, start)
    assert asleep(model) > 0.5


def test_sleepers_wake_when_the_collector_comes_inside_a_transform():
    model = net()
    start = [p.detach().clone() for p in model.parameters()]
    opts = [Optimizer(model, lr=0.0, asleep=0.5)]

    def f(x):
        opts.clear()
        gc.collect()
        return x.square().sum()

    torch.func.grad(f)(torch.ones(2))
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), start, strict=True))


def slow_net():
    torch.manual_seed(1)
    return net()


@pytest.mark.parametrize("how", ["release", "garbage", "next"])
def test_slow_parameters_are_given_back(how):
    model = slow_net()
    opt = methods.multirate_sgd(model, fast="2.*", k=5)
    loop(model, opt, 7)
    assert not model[0].weight.requires_grad  # it waits
    if how == "release":
        opt.release()
    elif how == "garbage":
        del opt
        gc.collect()
    if how == "next":
        opt = methods.sgd(model, lr=0.1)
    else:
        assert all(p.requires_grad for p in model.parameters())
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    loop(model, opt, 1)
    assert not torch.equal(model[0].weight, before)


def test_a_second_multirate_run_moves_the_slow_part():
    model = slow_net()
    first = methods.multirate_sgd(model, fast="2.*", k=5)
    loop(model, first, 7)
    second = methods.multirate_sgd(model, fast="2.*", k=5)
    before = model[0].weight.detach().clone()
    loop(model, second, 6)
    assert not torch.equal(model[0].weight, before)


def test_frozen_parameters_stay_frozen_when_slow_ones_are_given_back():
    model = slow_net()
    model[0].bias.requires_grad_(False)
    opt = methods.multirate_sgd(model, fast="2.*", k=5)
    loop(model, opt, 7)
    opt.release()
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True]


def test_release_in_the_middle_of_a_cycle_changes_no_number():
    runs = []
    for released in (False, True):
        model = slow_net()
        opt = methods.multirate_sgd(model, fast="2.*", k=5)
        for _ in range(12):
            loop(model, opt, 1)
            if released:
                opt.release()
        runs.append(model.state_dict())
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def pair(model):
    optimizers = {"head": torch.optim.AdamW(model[2].parameters()), "body": torch.optim.SGD(model[0].parameters(), 0.1)}
    return Multirate(optimizers, every={"body": 5})


def test_multirate_gives_slow_parameters_back():
    model = slow_net()
    opt = pair(model)
    loop(model, opt, 3)
    assert not model[0].weight.requires_grad
    opt.release()
    assert model[0].weight.requires_grad
    loop(model, opt, 1)
    del opt
    gc.collect()
    assert model[0].weight.requires_grad


def test_a_group_added_to_multirate_is_refused_and_one_of_its_optimizers_takes_it():
    model, extra = slow_net(), nn.Parameter(torch.ones(3))
    opt = pair(model)
    with pytest.raises(ValueError, match=r"optimizers\['head'\]\.add_param_group"):
        opt.add_param_group({"params": [extra]})
    assert len(opt.param_groups) == 2
    opt.optimizers["head"].add_param_group({"params": [extra]})
    assert any(p is extra for group in opt.param_groups for p in group["params"])
    extra.grad = torch.ones(3)
    loop_grads(model)
    opt.step()
    assert not torch.equal(extra, torch.ones(3))


def loop_grads(model):
    x, y = points()
    F.mse_loss(model(x), y).backward()


def test_multirate_can_be_copied():
    model = slow_net()
    opt = pair(model)
    loop(model, opt, 3)
    twin, twin_opt = copy.deepcopy((model, opt))
    loop(model, opt, 5)
    loop(twin, twin_opt, 5)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert twin_opt.steps == 8


def test_multirate_can_be_pickled():
    model = slow_net()
    opt = pair(model)
    loop(model, opt, 3)
    buffer = io.BytesIO()
    torch.save((model, opt), buffer)
    buffer.seek(0)
    twin, twin_opt = torch.load(buffer, weights_only=False)
    loop(model, opt, 5)
    loop(twin, twin_opt, 5)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_replicas_of_sleepers_wake():
    ens = Replicas(net, 3)
    opt = methods.random_subset(ens, lr=0.1, k=5)
    x, y = points()
    for _ in range(3):
        opt.zero_grad()
        (ens(x) - y).square().mean().backward()
        opt.step()
    assert (ens.get_parameter("0.weight") == 0).float().mean() > 0.5
    with opt.awake():
        assert (ens.get_parameter("0.weight") == 0).sum() == 0


def test_part_fields_of_rhythms_still_read_as_before():
    opt = Optimizer(net(), [Part("0.*", every=2), Part("*")], lr=0.1)
    assert "every" in opt.describe()
    assert isinstance(opt, tether.Optimizer)


@pytest.mark.parametrize("copied", [False, True])
def test_weights_loaded_between_two_optimizer_dicts_are_kept(copied):
    # as Accelerate does: the model is restored, then the optimizer's own dict is taken and loaded on another device
    model, other = net(), net()
    opt = methods.random_subset(model, lr=0.0, k=5)
    model.load_state_dict(other.state_dict())
    own = opt.state_dict()
    opt.load_state_dict(copy.deepcopy(own) if copied else own)
    assert asleep(model) > 0.5
    with opt.awake():
        torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)
