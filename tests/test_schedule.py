"""Schedule: a field times a factor of the number of steps, resumed exactly, wrong values refused beforehand."""

import io
from math import inf, nan

import pytest
import torch
from torch import nn

from tether import Optimizer, Part, Schedule


def optimizer(**fields):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    parts = [Part("0.*", temperature=4e-3, friction=2.0), Part("2.*", temperature=1e-3, friction=inf)]
    return model, Optimizer(model, parts, **{"lr": 0.1, "word": "BAOAB", **fields})


def values(opt, field):
    return [float(group[field]) for group in opt.param_groups]


def train(model, opt, schedule, steps):
    for _ in range(steps):
        opt.zero_grad()
        (model(torch.ones(2, 3)) - 1).square().mean().backward()
        opt.step()
        schedule.step()


def test_the_factor_acts_on_the_value_at_the_start():
    _, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 1 / (1 + t))
    seen = [values(opt, "temperature")]
    for _ in range(3):
        schedule.step()
        seen.append(values(opt, "temperature"))
    assert seen == [[4e-3, 1e-3], [2e-3, 5e-4], [4e-3 / 3, 1e-3 / 3], [1e-3, 2.5e-4]]
    assert schedule.last_values == seen[-1]


def test_the_factor_is_applied_on_construction():
    _, opt = optimizer()
    schedule = Schedule(opt, "lr", lambda t: 0.5)
    assert values(opt, "lr") == schedule.last_values == [0.05, 0.05]


def test_it_agrees_with_lambdalr():
    _, ours = optimizer()
    _, torchs = optimizer()
    schedule = Schedule(ours, "lr", lambda t: 0.9**t)
    scheduler = torch.optim.lr_scheduler.LambdaLR(torchs, lambda t: 0.9**t)
    for _ in range(5):
        assert values(ours, "lr") == values(torchs, "lr")
        schedule.step()
        torchs.step()
        scheduler.step()


@pytest.mark.parametrize("field", ["lr", "friction", "temperature", "coupling", "noise", "weight_decay"])
def test_every_number_can_be_scheduled(field):
    _, opt = optimizer(weight_decay=0.5)
    start = values(opt, field)
    schedule = Schedule(opt, field, lambda t: 2.0**t)
    schedule.step()
    assert values(opt, field) == [2 * value for value in start]


def test_where_picks_parts_by_their_glob_or_by_a_glob_of_globs():
    for where, chosen in (("0.*", [0]), ("2.*", [1]), ("*", [0, 1]), ("[0-1]*", [0])):
        _, opt = optimizer()
        schedule = Schedule(opt, "temperature", lambda t: 0.0, where=where)
        assert schedule.parts == chosen
        assert [value == 0 for value in values(opt, "temperature")] == [i in chosen for i in range(2)]


def test_zero_times_infinite_friction_is_zero():
    _, opt = optimizer()
    Schedule(opt, "friction", lambda t: 0.0)
    assert values(opt, "friction") == [0.0, 0.0]
    _, opt = optimizer()
    Schedule(opt, "friction", lambda t: 0.5)
    assert values(opt, "friction") == [1.0, inf]


def test_the_step_obeys():
    # at temperature 0 and infinite friction the momenta of the second part are 0, else they are √τ R
    model, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 1.0 if t < 2 else 0.0)
    train(model, opt, schedule, 2)
    assert opt.temperature()["2.*"] > 0
    train(model, opt, schedule, 1)
    assert opt.temperature()["2.*"] == 0


@pytest.mark.parametrize("field", ["lr", "temperature"])
def test_a_field_that_is_a_tensor_stays_that_tensor_and_is_obeyed(field):
    model, opt = optimizer()
    for group in opt.param_groups:
        group[field] = torch.tensor(float(group[field]))
    held = [group[field] for group in opt.param_groups]
    schedule = Schedule(opt, field, lambda t: 1.0 if t == 0 else 0.0)
    train(model, opt, schedule, 1)
    assert all(group[field] is tensor for group, tensor in zip(opt.param_groups, held, strict=True))
    assert values(opt, field) == [0.0, 0.0]
    before = [p.clone() for p in model.parameters()]
    train(model, opt, schedule, 1)
    if field == "lr":
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    else:
        assert opt.temperature()["2.*"] == 0


def test_a_shared_lr_tensor_is_scheduled_for_the_chosen_part_only():
    _, opt = optimizer(lr=torch.tensor(0.5))
    Schedule(opt, "lr", lambda t: 0.5, where="0.*")
    assert values(opt, "lr") == [0.25, 0.5]


def test_two_schedules_side_by_side():
    _, opt = optimizer()
    first = Schedule(opt, "temperature", lambda t: 0.5**t, where="0.*")
    second = Schedule(opt, "temperature", lambda t: 3.0**t, where="2.*")
    third = Schedule(opt, "friction", lambda t: 1 + t, where="0.*")
    for schedule in (first, second, third):
        schedule.step()
    assert values(opt, "temperature") == [2e-3, pytest.approx(3e-3)]
    assert values(opt, "friction") == [4.0, inf]


# checkpoints


@pytest.mark.parametrize("order", ["optimizer first", "schedule first"])
def test_resumed_in_mid_anneal_bit_for_bit(order):
    def anneal(t):
        return 0.8**t

    model, opt = optimizer()
    schedule = Schedule(opt, "temperature", anneal)
    train(model, opt, schedule, 5)
    buffer = io.BytesIO()
    torch.save([model.state_dict(), opt.state_dict(), schedule.state_dict()], buffer)
    train(model, opt, schedule, 5)

    buffer.seek(0)
    saved = torch.load(buffer)  # weights only: plain values and tensors
    twin, other = optimizer(seed=99)
    twin.load_state_dict(saved[0])
    if order == "optimizer first":
        other.load_state_dict(saved[1])
        resumed = Schedule(other, "temperature", anneal)
        resumed.load_state_dict(saved[2])
    else:
        resumed = Schedule(other, "temperature", anneal)
        resumed.load_state_dict(saved[2])
        other.load_state_dict(saved[1])
    assert resumed.last_values == [4e-3 * 0.8**5, 1e-3 * 0.8**5]
    train(twin, other, resumed, 5)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), twin.parameters(), strict=True))
    assert resumed.state_dict() == schedule.state_dict()
    assert values(opt, "temperature") == values(other, "temperature")


def test_the_state_is_plain_and_does_not_follow_the_run():
    _, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 0.5**t, where="2.*")
    state = schedule.state_dict()
    assert state == {"t": 0, "field": "temperature", "parts": [1], "start": [1e-3]}
    schedule.step()
    assert state["t"] == 0


# what it refuses, before anything changes


@pytest.mark.parametrize("field", ["word", "where", "thermostat", "seed", "tempature"])
def test_only_numbers_of_a_part_can_be_scheduled(field):
    _, opt = optimizer()
    message = f"cannot schedule '{field}'; numeric fields of a part are lr, friction, temperature, coupling, noise"
    with pytest.raises(ValueError, match=message):
        Schedule(opt, field, lambda t: 1.0)


def test_a_part_that_does_not_exist_lists_those_that_do():
    _, opt = optimizer()
    with pytest.raises(ValueError, match=r"no part is called '7\.\*'; parts are '0\.\*', '2\.\*'"):
        Schedule(opt, "temperature", lambda t: 0.5, where="7.*")
    assert values(opt, "temperature") == [4e-3, 1e-3]


@pytest.mark.parametrize("factor", [-1.0, nan, inf, "half", None])
def test_a_bad_first_factor_changes_nothing(factor):
    _, opt = optimizer()
    with pytest.raises((ValueError, TypeError), match=r"Schedule at t=0: (temperature|factor)="):
        Schedule(opt, "temperature", lambda t: factor)
    assert values(opt, "temperature") == [4e-3, 1e-3]


@pytest.mark.parametrize("factor", [-1.0, nan, inf])
def test_a_bad_later_factor_changes_nothing(factor):
    _, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 0.5 if t < 2 else factor)
    schedule.step()
    with pytest.raises(ValueError, match=r"Schedule at t=2: (temperature|factor)=.* must be"):
        schedule.step()
    assert schedule.t == 1
    assert values(opt, "temperature") == [2e-3, 5e-4]


def test_one_bad_part_among_two_changes_neither():
    # 1e308 · 1e10 overflows, 1 · 1e10 does not: the first part must keep its value all the same
    _, opt = optimizer()
    opt.param_groups[0]["temperature"] = 1.0
    opt.param_groups[1]["temperature"] = 1e308
    with pytest.raises(ValueError, match="temperature=inf"):
        Schedule(opt, "temperature", lambda t: 1e10)
    assert values(opt, "temperature") == [1.0, 1e308]


def test_another_schedules_state_is_refused_and_changes_nothing():
    _, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 0.5**t)
    schedule.step()
    before = schedule.state_dict(), values(opt, "temperature")
    for other in (Schedule(opt, "friction", lambda t: 1.0), Schedule(opt, "temperature", lambda t: 0.5, where="0.*")):
        opt.param_groups[0]["temperature"], opt.param_groups[1]["temperature"] = before[1]
        with pytest.raises(ValueError, match=r"this schedule sets 'temperature' of parts \[0, 1\], .* as it was saved"):
            schedule.load_state_dict(other.state_dict())
        assert (schedule.state_dict(), values(opt, "temperature")) == before


def test_a_state_that_leads_to_a_bad_value_changes_nothing():
    _, opt = optimizer()
    schedule = Schedule(opt, "temperature", lambda t: 1.0 - 0.1 * t)
    schedule.step()
    before = schedule.state_dict(), values(opt, "temperature")
    with pytest.raises(ValueError, match=r"Schedule at t=20: temperature=-"):
        schedule.load_state_dict({**before[0], "t": 20})
    assert (schedule.state_dict(), values(opt, "temperature")) == before


def test_an_optimizer_without_parts_is_refused():
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(TypeError, match=r"tether\.Optimizer"):
        Schedule(opt, "lr", lambda t: 1.0)
