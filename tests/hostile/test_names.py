"""Who is a replica, and whose noise is whose: what the parameters say, whatever way they were handed over."""

import gc
import weakref

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Optimizer, Orthogonal, Part, Replicas, Sphere


def ensemble(n=3):
    return Replicas(lambda: nn.Linear(4, 4), n)


WAYS = {
    "the module": lambda ens: ens,
    "named parameters": lambda ens: ens.named_parameters(),
    "a list of them": lambda ens: list(ens.named_parameters()),
    "parameters": lambda ens: ens.parameters(),
    "groups": lambda ens: [{"params": list(ens.named_parameters())}],
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_replicas_are_known_from_their_parameters(way, n):
    ens = ensemble(n)
    opt = Optimizer(WAYS[way](ens), lr=0.1, word="BACDEDCAB", temperature=0.1)
    for _ in range(2):
        for p in ens.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
    assert opt.violation().shape == (n,)
    assert opt.param_groups[0]["thermostat"].shape == (n,)


@pytest.mark.parametrize("n", [1, 3])
def test_every_replica_is_orthogonal_by_itself(n):
    ens = ensemble(n)
    Optimizer(list(ens.named_parameters()), [Part("weight", on=Orthogonal()), Part("*")], lr=0.1)
    for w in ens.weight:
        torch.testing.assert_close(w.T @ w, torch.eye(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("surface", [Orthogonal(), Sphere(0.7, slack=False), Circle(0.3)], ids=repr)
@pytest.mark.parametrize("n", [1, 3])
def test_constrain_knows_replicas(surface, n):
    ens = ensemble(n)
    opt = tether.constrain(torch.optim.SGD(ens.named_parameters(), lr=0.1, momentum=0.9), {"weight": surface})
    alone = [ens[i] for i in range(n)]
    opts = [
        tether.constrain(torch.optim.SGD(m.named_parameters(), lr=0.1, momentum=0.9), {"weight": surface})
        for m in alone
    ]
    for step in range(4):
        g = torch.randn(n, 4, 4, generator=torch.Generator().manual_seed(step))
        ens.weight.grad = g.clone()
        opt.step()
        for i, (m, o) in enumerate(zip(alone, opts, strict=True)):
            m.weight.grad = g[i].clone()
            o.step()
    for i, m in enumerate(alone):
        torch.testing.assert_close(ens.weight[i], m.weight, rtol=0, atol=1e-6)


def test_parameters_of_replicas_and_of_a_plain_module_do_not_go_together():
    ens, plain = ensemble(), nn.Linear(4, 4)
    named = [*ens.named_parameters(prefix="ens"), *plain.named_parameters(prefix="plain")]
    with pytest.raises(ValueError, match=r"plain\.weight"):
        Optimizer(named, lr=0.1)


def test_a_replica_taken_out_is_a_plain_module():
    ens = ensemble()
    opt = Optimizer(list(ens[1].named_parameters()), lr=0.1)
    assert isinstance(opt.violation(), float)


def step_in_backward(model, named):
    """The idiom: one optimizer for each parameter, stepping as soon as its gradient is there."""
    opts = {}
    for name, p in model.named_parameters():
        opts[p] = Optimizer([(name, p)] if named else [p], lr=0.1, temperature=1.0)

        def hook(param):
            opts[param].step()
            opts[param].zero_grad()

        p.register_post_accumulate_grad_hook(hook)
    return opts


@pytest.mark.filterwarnings("ignore:.*same noise")
def test_unnamed_parameters_in_the_backward_pass_are_refused_where_there_is_noise():
    model = nn.Linear(8, 8)
    opts = step_in_backward(model, named=False)
    with pytest.raises(RuntimeError, match=r"Optimizer\(\[\(name, param\)\]"):
        model(torch.ones(1, 8)).sum().backward()
    assert len(opts) == 2


def test_named_parameters_have_noise_of_their_own_in_the_backward_pass():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    start = [p.detach().clone() for p in model.parameters()]
    opts = step_in_backward(model, named=True)
    (0.0 * model(torch.ones(1, 8)).sum()).backward()
    a, b = (p.detach() - s for p, s in zip(model.parameters(), start, strict=True))
    assert len(opts) == 2
    assert a.abs().max() > 0.1
    assert not torch.allclose(a, b)


def test_two_optimizers_of_one_unnamed_parameter_each_are_warned_of_the_same_noise():
    gc.collect()
    model = nn.Linear(8, 3)
    with pytest.warns(UserWarning, match="same noise"):
        opts = [Optimizer([p], lr=0.1, temperature=1.0) for p in model.parameters()]
    assert len(opts) == 2


def test_a_new_tensor_for_each_step_is_not_kept():
    ens = ensemble()
    opt = Optimizer(ens, lr=0.1, word="BAOAB", temperature=torch.full((3,), 0.1))
    for p in ens.parameters():
        p.grad = torch.ones_like(p)
    kept = []
    for _ in range(20):
        opt.param_groups[0]["temperature"] = torch.rand(3)
        kept.append(weakref.ref(opt.param_groups[0]["temperature"]))
        opt.step()
    gc.collect()
    assert [ref() for ref in kept[:18]] == [None] * 18
