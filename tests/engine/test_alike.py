"""Parts with equal settings move as one: like each alone, and like one part."""

import copy

import pytest
import torch
from torch import nn

import tether
from tether.engine import steps
from tether.engine.rows import Row


def trained(opt_of, steps=6, seed=0, change=None):
    """The parameters and momenta after some steps of a small network; `change(opt)` is called in the middle."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)
    )
    opt, x = opt_of(net), torch.randn(8, 4)
    for i in range(steps):
        if change is not None and i == steps // 2:
            opt = change(opt) or opt
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
    return [param.detach().clone() for param in net.parameters()], opt


def table(**fields):
    """A part for each parameter; weights on a surface, if one is given."""
    on = fields.pop("on", None)
    numbers = range(0, 7, 2)
    weights = [tether.Part(f"{i}.weight", **({} if on is None else {"on": copy.deepcopy(on)})) for i in numbers]
    parts = [*weights, *(tether.Part(f"{i}.bias") for i in numbers)]
    return lambda net: tether.Optimizer(net, parts, **{"lr": 0.1, "word": "BAOAB", "temperature": 1e-2, **fields})


CASES = {
    "free": {},
    "overdamped": {"word": "X"},
    "circle": {"on": tether.Circle(2.0)},
    "sphere": {"on": tether.Sphere(2.0)},
    "orthogonal": {"on": tether.Orthogonal()},
    "thermostat": {"word": "BACDEDCA", "coupling": 0.1},
}


@pytest.fixture
def apart(monkeypatch):
    """Lets every part move alone."""

    def switch():
        monkeypatch.setattr(steps, "as_one", lambda opt: opt.rows)

    return switch


def raise_one(opt):
    opt.param_groups[2]["lr"] = 0.2


def lower_all(opt):
    for group in opt.param_groups:
        group["lr"] *= 0.5


def freeze_one(opt):
    opt.param_groups[1]["params"][0].requires_grad_(False)
    opt.param_groups[1]["params"][0].grad = None


def load_own(opt):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


@pytest.mark.parametrize("change", [None, raise_one, lower_all, freeze_one, load_own])
@pytest.mark.parametrize("case", CASES)
def test_they_move_as_each_alone_whatever_happens_between_steps(case, change, apart):
    together, opt = trained(table(**CASES[case]), change=change)
    assert len(opt.gathering.rows) < len(opt.rows)
    saved = opt.state_dict()
    apart()
    alone, other = trained(table(**CASES[case]), change=change)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(saved["state"], other.state_dict()["state"], rtol=1e-5, atol=1e-5)
    assert saved["param_groups"] == other.state_dict()["param_groups"] or case == "thermostat"


def test_only_equal_settings_are_gathered():
    def rows(*parts, **fields):
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        opt = tether.Optimizer(net, list(parts), **{"lr": 0.1, **fields})
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
        return len(opt.gathering.rows)

    one, two = (lambda **fields: tether.Part("0.*", **fields)), (lambda **fields: tether.Part("1.*", **fields))
    assert rows(one(), two()) == 1
    assert rows(one(temperature=0.1), two(temperature=0.2)) == 2
    assert rows(one(on=tether.Circle(1.0)), two(on=tether.Circle(2.0))) == 2
    assert rows(one(on=tether.Circle(2.0)), two(on=tether.Circle(2.0))) == 1
    equations = [lambda w: w.square().sum() - 1, lambda w: w.square().sum() - 4]
    assert rows(*(tether.Part(f"{i}.*", on=tether.Level(g)) for i, g in enumerate(equations))) == 2
    assert rows(one(lr=torch.tensor(0.1)), two(lr=torch.tensor(0.1))) == 2  # tensors may be others at every step
    assert rows(one(every=2), two(), word="MS") == 2


def test_a_part_for_each_weight_is_planned_once(monkeypatch):
    begun, begin = [], Row.begin
    monkeypatch.setattr(Row, "begin", lambda row, *rest: begun.append(len(row.names)) or begin(row, *rest))
    trained(table(word="X"), steps=1)
    assert begun == [8]


def test_a_scheduler_makes_no_new_leaders():
    _, opt = trained(table(word="OBA"), steps=2)
    before = list(opt.gathering.rows)
    lower_all(opt)
    opt.step()
    assert opt.gathering.rows == before
    assert {row.values["lr"] for row in before} == {group["lr"] for group in opt.param_groups}


def set_one(opt):
    opt.param_groups[1]["thermostat"] = torch.full((3,), 0.7, dtype=torch.float64)


def stop_one(opt):
    opt.stop([1])


def lose_one(opt):
    """A parameter whose gradient the kernel cannot read: from here on every part plans its own step."""
    param = opt.param_groups[2]["params"][0]
    param.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.mT.contiguous().mT))


@pytest.mark.parametrize("change", [None, set_one, stop_one, freeze_one, load_own, lose_one])
@pytest.mark.parametrize("fields", [{}, {"normalised": True}, {"word": "BAFEFAB"}])
def test_thermostats_of_replicas_move_as_each_alone_to_the_bit(fields, change, apart):
    def run():
        ens = tether.Replicas(lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(9)]), 3)
        settings = {"word": "BACDEDCAB", "coupling": 1e-2, "temperature": 1e-2, "noise": 0.1, **fields}
        parts = [tether.Part(f"{i}.{kind}", **settings) for i in range(9) for kind in ("weight", "bias")]
        opt, x = tether.Optimizer(ens, parts, lr=0.05), torch.ones(5, 4)
        for i in range(6):
            if change is not None and i == 3:
                change(opt)
            opt.zero_grad()
            ens(x).square().mean((1, 2)).sum().backward()
            opt.step()
        ξ = [group["thermostat"].clone() for group in opt.param_groups]
        return [param.detach().clone() for param in ens.parameters()], ξ, opt

    together, ξ, opt = run()
    leaders = [row for row in opt.gathering.rows if len(row.names) > 1]
    assert [len(row.names) for row in leaders] == ([2] if change is lose_one else [16, 2])  # 16 go together
    assert len({float(x[0]) for x in ξ}) == 18  # each has its own
    apart()
    alone, others, _ = run()
    assert all(map(torch.equal, together, alone))
    assert all(map(torch.equal, ξ, others))


def test_a_thermostat_that_is_too_fast_is_named():
    net = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 1))
    parts = [tether.Part(where, word="BACDEDCAB", coupling=0.1, temperature=1.0) for where in ("0.weight", "0.bias")]
    opt = tether.Optimizer(net, [*parts, tether.Part("*")], lr=0.1)
    net(torch.ones(1, 40)).sum().backward()
    before = [param.detach().clone() for param in net.parameters()]
    with pytest.raises(RuntimeError, match=r"part '0.weight': the thermostat is too fast .* N = 1600"):
        opt.step()
    assert all(map(torch.equal, before, net.parameters()))
