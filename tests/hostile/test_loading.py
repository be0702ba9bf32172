"""State that comes in through torch's own doors: hooks on loading, nan weights, a weight constrained twice."""

import math

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Level, Optimizer, Orthogonal, Part, Replicas, SpectralBall, Sphere, methods


def stepped(opt, model, steps=3):
    for step in range(steps):
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + i))
        opt.step()


@pytest.mark.parametrize("how", ["in place", "returned"])
@pytest.mark.parametrize("method", [methods.langevin, methods.circle_cola_ud, methods.random_subset])
def test_a_hook_before_loading_may_change_the_dict(method, how):
    model = nn.Linear(4, 4)
    opt = method(model, lr=0.1)
    stepped(opt, model)
    state = opt.state_dict()
    twin = nn.Linear(4, 4)
    other = method(twin, lr=0.1)

    def halve(_, given):
        groups = [{**group, "lr": group["lr"] / 2, "step": 100} for group in given["param_groups"]]
        if how == "in place":
            given["param_groups"] = groups
            return None
        return {**given, "param_groups": groups}

    other.register_load_state_dict_pre_hook(halve)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.05
    assert other.param_groups[0]["step"] == 100
    assert state["param_groups"][0]["lr"] == 0.1
    stepped(other, twin, 1)


def test_a_hook_may_bring_an_old_dict_into_shape():
    """Renamed keys are what such hooks are for."""
    model = nn.Linear(4, 4)
    opt = methods.langevin(model, lr=0.1)
    stepped(opt, model)
    old = opt.state_dict()
    old["param_groups"] = [{("wort" if k == "word" else k): v for k, v in g.items()} for g in old["param_groups"]]
    other = methods.langevin(model, lr=0.1)

    def rename(_, given):
        groups = [{("word" if k == "wort" else k): v for k, v in g.items()} for g in given["param_groups"]]
        return {**given, "param_groups": groups}

    with pytest.raises(ValueError, match="word"):
        other.load_state_dict(old)
    other.register_load_state_dict_pre_hook(rename)
    other.load_state_dict(old)
    assert other.param_groups[0]["step"] == 3


def test_a_checkpoint_with_another_number_of_groups_changes_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    opt = methods.random_subset(model, lr=0.1, k=5)
    stepped(opt, model, 2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = opt.state_dict()
    state["param_groups"] = state["param_groups"][:1]
    with pytest.raises(ValueError):
        opt.load_state_dict(state)
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name])


SURFACES = [Circle(1.0), Sphere(1.0), Sphere(1.0, slack=False), Sphere(1.0, per="tensor")]
SURFACES += [Orthogonal(), SpectralBall(1.0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("surface", [*SURFACES, Level(lambda w: w.square().sum() - 1)], ids=lambda s: type(s).__name__)
def test_nan_weights_violate_their_constraint(surface, bad):
    model = nn.Linear(4, 4)
    opt = Optimizer(model, [Part("weight", on=surface), Part("*")], lr=0.1)
    with torch.no_grad():
        model.weight[1, 2] = bad
    assert not opt.violation() < 1


@pytest.mark.parametrize("surface", SURFACES, ids=lambda s: type(s).__name__)
def test_a_nan_replica_violates_alone(surface):
    ens = Replicas(lambda: nn.Linear(4, 4), 3)
    opt = Optimizer(ens, [Part("weight", on=surface), Part("*")], lr=0.1)
    with torch.no_grad():
        ens.weight[1] = math.nan
    found = opt.violation()
    assert math.isnan(found[1])
    assert max(found[0], found[2]) < 1e-6


def test_a_weight_is_constrained_once():
    model = nn.Linear(4, 4)
    opt = tether.constrain(torch.optim.SGD(model.named_parameters(), lr=0.1), {"weight": Orthogonal()})
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match=r"weight.*already"):
        tether.constrain(opt, {"weight": Circle(0.1)})
    assert torch.equal(model.weight, before)


def test_a_weight_of_a_tether_optimizer_is_constrained_by_its_part():
    model = nn.Linear(4, 4)
    opt = Optimizer(model, [Part("weight", on=Orthogonal()), Part("*")], lr=0.1)
    with pytest.raises(TypeError, match="on="):
        tether.constrain(opt, {"weight": Circle(0.1)})


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        (Level(lambda q: q.square().sum() - 1), Level(lambda q: q.square().sum() + 1 - 2)),
        (Orthogonal(tolerance=1e-6), Orthogonal(tolerance=1e-5)),
    ],
    ids=["Level", "Orthogonal"],
)
def test_a_checkpoint_of_another_surface_is_refused(saved, other):
    models = [nn.Linear(3, 3, bias=False) for _ in range(2)]
    opts = [Optimizer(model, lr=0.1, on=on) for model, on in zip(models, (saved, other), strict=True)]
    with pytest.raises(ValueError, match="checkpoint was saved on"):
        opts[1].load_state_dict(opts[0].state_dict())
