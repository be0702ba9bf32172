"""Every method in every kind of training loop: schedulers, scalers, closures, groups; nothing else is touched."""

import random
from math import inf, nan

import numpy as np
import pytest
import torch
from rows import (
    LR,
    ROWS,
    assert_same,
    batch,
    closure_for,
    every_method,
    every_noisy_method,
    network,
    one_gradient_methods,
    push,
    snapshot,
    train,
)
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

SCHEDULERS = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda t: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 2, gamma=0.5),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [1, 3], gamma=0.5),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=3),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, start_factor=0.25, total_iters=4),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=4, power=2.0),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=4),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=3),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=8, cycle_momentum=False),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1), lr_scheduler.ExponentialLR(opt, 0.9)], milestones=[3]
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, 0.1), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
    "SWALR": lambda opt: SWALR(opt, swa_lr=0.01, anneal_epochs=3),
}


def test_no_scheduler_of_torch_is_left_out():
    assert set(lr_scheduler.__all__) - SCHEDULERS.keys() == {"LRScheduler"}  # the base class


def learning_rates(model, opt, scheduler, steps=7):
    rates = []
    for step in range(steps):
        rates.append([float(group["lr"]) for group in opt.param_groups])
        opt.step(closure_for(model, opt, step))
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return rates


# a scheduler sees the groups and not the method: one with a single group, one with several
@pytest.mark.parametrize("name", ["sgd", "adlala"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float lr", "tensor lr"])
def test_lr_follows_every_scheduler_as_in_torch(name, scheduler, as_tensor):
    lr = torch.tensor(LR) if as_tensor else LR
    model, twin = network(name), network(name)
    opt = ROWS[name].build(model, lr=lr)
    sgd = torch.optim.SGD(twin.parameters(), lr=torch.tensor(LR) if as_tensor else LR)
    ours = learning_rates(model, opt, SCHEDULERS[scheduler](opt))
    torchs = learning_rates(twin, sgd, SCHEDULERS[scheduler](sgd))
    assert len({rate for (rate,) in torchs}) > 1
    for row, (rate,) in zip(ours, torchs, strict=True):
        assert row == [rate] * len(row)
    assert all(isinstance(group["lr"], torch.Tensor) is as_tensor for group in opt.param_groups)
    if name == "sgd":
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), twin.parameters(), strict=True))


@every_method
def test_the_step_obeys_an_lr_that_changes(name):
    # A float and a tensor that hold the same number are the same step, and half the lr is another one.
    rate = float(torch.tensor(LR))
    runs = {}
    for key, second in (("float", rate / 2), ("tensor", rate / 2), ("kept", rate)):
        model = network(name)
        opt = ROWS[name].build(model, lr=torch.tensor(LR) if key == "tensor" else rate)
        for group in opt.param_groups:  # where a method divides it, a tensor is rounded to single precision
            group["lr"] = torch.tensor(LR) if key == "tensor" else rate
        train(model, opt, 2)
        for group in opt.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(second)
            else:
                group["lr"] = second
        train(model, opt, 2, start=2)
        runs[key] = snapshot(model, opt)
    assert_same(runs["float"], runs["tensor"])
    assert not torch.equal(runs["float"]["θ 0.weight"], runs["kept"]["θ 0.weight"])


@one_gradient_methods
def test_grad_scaler_scales_and_skips(name):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(6):
        opt.zero_grad()
        x, y = batch(step)
        scaler.scale((model(x) - y).square().mean()).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = inf
            before = snapshot(model, opt)
        scaler.step(opt)
        scaler.update()
        if step == 3:
            assert_same(before, snapshot(model, opt))
            assert scaler.get_scale() == 512.0
        else:
            train(twin, other, 1, start=step)
    assert_same(snapshot(model, opt), snapshot(twin, other))  # powers of two scale exactly


class Extended(nn.Module):
    """The usual network and one more layer beside it."""

    def __init__(self, name):
        super().__init__()
        self.base = network(name)
        self.extra = network(name, seed=1)[0]


@every_method
def test_add_param_group_takes_fields_and_leaves_the_others_their_noise(name):
    model, twin = Extended(name), Extended(name)
    opt, other = ROWS[name].build(model.base), ROWS[name].build(twin.base)
    for m, o in ((model, opt), (twin, other)):
        push(m.base, o, steps=2)
    groups = len(opt.param_groups)
    new = {"params": list(model.extra.named_parameters("extra")), "word": "OBA", "friction": 2.0, "lr": 0.01}
    if ROWS[name].tested:
        with pytest.raises(ValueError, match="needs a reversible word"):
            opt.add_param_group(new)
        assert len(opt.param_groups) == groups
        return
    if ROWS[name].paced:
        with pytest.raises(ValueError, match="is the clock of all parameters"):
            opt.add_param_group({**new, "word": "BAOAB"})
        assert len(opt.param_groups) == groups
        return
    opt.add_param_group(new)
    assert len(opt.param_groups) == groups + 1
    added = opt.param_groups[-1]
    assert (added["word"], added["friction"], added["lr"]) == ("OBA", 2.0, 0.01)
    assert added["param_names"] == ["extra.weight", "extra.bias"]
    assert added["step"] == opt.param_groups[0]["step"] == 2
    start = model.extra.weight.clone()
    if ROWS[name].measured:
        before = snapshot(model, opt)
        with pytest.raises(ValueError, match=r"'extra\.weight' is not a parameter of the measured network"):
            push(model, opt)
        after = snapshot(model, opt)
        assert_same(before, {key: after[key] for key in before})
        return
    for m, o in ((model, opt), (twin, other)):
        push(m, o, steps=3)
    assert not torch.equal(model.extra.weight, start)
    assert opt.state[model.extra.weight]["momentum"].abs().sum() > 0
    for key, param in model.base.named_parameters():
        torch.testing.assert_close(param, twin.base.get_parameter(key), rtol=0, atol=0)


BAD_FIELDS = [
    ({"friction": -1.0}, ValueError, r"friction=-1\.0 .* 0 or more"),
    ({"lr": nan}, ValueError, r"lr=nan .* finite"),
    ({"temperature": inf}, ValueError, r"temperature=inf .* finite"),
    ({"word": "BAOXY"}, ValueError, "unknown letter 'Y'"),
    ({"frictoin": 1.0}, TypeError, "did you mean 'friction'"),
]


@every_method
def test_a_bad_param_group_changes_nothing(name):
    model = Extended(name)
    opt = ROWS[name].build(model.base)
    push(model.base, opt)
    before, groups = snapshot(model.base, opt), [dict(group) for group in opt.param_groups]
    params = list(model.extra.named_parameters("extra"))
    for fields, error, message in BAD_FIELDS:
        new = {"params": params, **fields}
        given = dict(new)
        with pytest.raises(error, match=message):
            opt.add_param_group(new)
        assert new == given
        assert opt.param_groups == groups
        assert_same(before, snapshot(model.base, opt))
    if ROWS[name].paced:
        return
    opt.add_param_group({"params": params})
    push(model.base if ROWS[name].measured else model, opt)
    assert [group["step"] for group in opt.param_groups] == [2] * (len(groups) + 1)


@every_method
def test_a_parameter_is_in_one_group_only(name):
    model = network(name)
    opt = ROWS[name].build(model)
    groups = len(opt.param_groups)
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": [("again", model[0].weight)]})
    assert len(opt.param_groups) == groups
    push(model, opt)


@every_method
def test_both_ways_to_zero_the_gradients(name):
    runs = []
    for set_to_none in (True, False):
        model = network(name)
        opt = ROWS[name].build(model)
        for step in range(4):
            x, y = batch(step)

            def closure(model=model, opt=opt, x=x, y=y, set_to_none=set_to_none):
                opt.zero_grad(set_to_none=set_to_none)
                loss = (model(x) - y).square().mean()
                loss.backward()
                return loss

            opt.step(closure)
        opt.zero_grad(set_to_none=set_to_none)
        assert all((param.grad is None) is set_to_none for param in model.parameters())
        runs.append(snapshot(model, opt))
    assert_same(*runs)


@every_method
@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_are_never_modified(name, foreach):
    model = network(name)
    opt = ROWS[name].build(model, weight_decay=0.5, foreach=foreach)
    given = []

    def check():
        for grad, copy in given:
            assert torch.equal(grad, copy)
        given.clear()

    def closure(step):
        check()
        loss = closure_for(model, opt, step)()
        held = [param.grad for param in model.parameters() if param.grad is not None]
        given.extend((grad, grad.clone()) for grad in held)
        return loss

    for step in range(4):
        opt.step(lambda step=step: closure(step))
        assert given
        held = [param.grad for param in model.parameters() if param.grad is not None]
        assert all(now is grad for now, (grad, _) in zip(held, given, strict=True))
        check()


@every_method
def test_global_generators_are_neither_read_nor_advanced(name):
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        model = network(name)
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2], random.getstate()
        opt = ROWS[name].build(model)
        push(model, opt, steps=3)
        after = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2], random.getstate()
        assert torch.equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])
        assert before[2:] == after[2:]
        runs.append(snapshot(model, opt))
    assert_same(*runs)


@every_noisy_method
def test_the_seed_and_only_the_seed_names_the_noise(name):
    def run(seed):
        model = network(name)
        push(model, ROWS[name].build(model, seed=seed), steps=3)
        return model[0].weight.detach()

    assert torch.equal(run(1), run(1))
    assert (run(1) - run(2)).abs().min() > 0  # every single weight feels it


@every_method
def test_closure_runs_under_enable_grad_and_its_loss_comes_back(name):
    model = network(name)
    opt = ROWS[name].build(model)
    losses = []

    def closure():
        assert torch.is_grad_enabled()
        losses.append(closure_for(model, opt, 0)())
        return losses[-1]

    with torch.no_grad():
        returned = opt.step(closure)
        assert not torch.is_grad_enabled()
    assert returned is losses[0]
    assert len(losses) == ROWS[name].gradients


@every_method
def test_without_closure(name):
    model = network(name)
    opt = ROWS[name].build(model)
    closure_for(model, opt, 0)()
    before = snapshot(model, opt)
    if ROWS[name].closure:
        with pytest.raises(
            RuntimeError, match=rf"takes {ROWS[name].gradients} gradients per step: call opt.step\(closure\)"
        ):
            opt.step()
        assert_same(before, snapshot(model, opt))
    else:
        assert opt.step() is None
        twin = network(name)
        other = ROWS[name].build(twin)
        train(twin, other, 1)
        assert_same(snapshot(model, opt), snapshot(twin, other))


@every_method
def test_a_closure_that_fails_leaves_nothing_half_done(name):
    model = network(name)
    opt = ROWS[name].build(model)
    for steps in (0, 3):  # also when the failing step is the very first one
        train(model, opt, steps)
        before = snapshot(model, opt)
        calls = []

        def closure(calls=calls):
            calls.append(closure_for(model, opt, 7)())
            if len(calls) == ROWS[name].gradients:
                raise KeyError("no more data")
            return calls[-1]

        with pytest.raises(KeyError, match="no more data"):
            opt.step(closure)
        after = snapshot(model, opt)
        assert_same(before, {key: after[key] for key in before})
        new = after.keys() - before.keys()  # momenta that were made, but have not moved
        assert all(not after[key].any() for key in new)


@every_method
def test_lr_zero_moves_nothing_and_does_not_count(name):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    start = 0
    for steps in (0, 3):  # before the first step, too: distributed checkpointing does that
        train(model, opt, steps, start)
        train(twin, other, steps, start)
        start += steps
        before = snapshot(model, opt)
        rates = [group["lr"] for group in opt.param_groups]
        for group in opt.param_groups:
            group["lr"] = 0.0
        push(model, opt, steps=2)
        after = snapshot(model, opt)
        assert_same(before, {key: after[key] for key in before})
        for group, rate in zip(opt.param_groups, rates, strict=True):
            group["lr"] = rate
    train(model, opt, 3, start)
    train(twin, other, 3, start)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@every_method
def test_lr_zero_still_evaluates_the_closure(name):
    # A warm-up that starts at 0 logs its loss like any other step.
    model = network(name)
    opt = ROWS[name].build(model, lr=0.0)
    x, y = batch(0)
    loss = opt.step(closure_for(model, opt, 0))
    assert float(loss.detach()) == float((model(x) - y).square().mean().detach())


@every_method
def test_hooks_run_around_the_step(name):
    model = network(name)
    opt = ROWS[name].build(model)
    seen = []
    opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o is opt)))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", o is opt)))
    push(model, opt)
    assert seen == [("before", True), ("after", True)]


@every_method
def test_clipping_acts_before_the_step(name):
    # clip_grad_norm_ works on .grad in place; the step must use what it left there.
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)

    def clipped():
        push_closure(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return torch.zeros(())

    def scaled():
        push_closure(twin)
        norm = torch.stack([param.grad.norm() for param in twin.parameters()]).norm()
        for param in twin.parameters():
            param.grad = param.grad * (0.1 / (norm + 1e-6))
        return torch.zeros(())

    for _ in range(3):
        opt.step(clipped)
        other.step(scaled)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)


def push_closure(model):
    for param in model.parameters():
        param.grad = torch.ones_like(param)
