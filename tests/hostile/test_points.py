"""Weights on a surface that somebody else writes to: averages swapped in, replicas put back, checkpoints restored."""

import copy

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Level, Optimizer, Orthogonal, Part, Replicas, SpectralBall, Sphere, methods


def rest(params):
    for p in params:
        p.grad = torch.zeros_like(p)


def mean_square(opt, params, steps, which=slice(None), event=lambda step: None):
    """⟨θ²⟩ along a run without a force, after a tenth of it."""
    total, count = 0.0, 0
    for step in range(steps):
        rest(params)
        opt.step()
        event(step)
        if step >= steps // 10:
            total += float(torch.cat([p.detach()[which].flatten() for p in params]).square().mean())
            count += 1
    return total / count


# Uniform on the unit circle: ⟨θ²⟩ = 1/2. With 1,200 weights over 180 correlated steps the error is below 0.01.
@pytest.mark.parametrize("surface", [Circle(1.0), Sphere(1.0)], ids=repr)
@pytest.mark.parametrize("how", ["stopped", "skipped"])
def test_a_resting_replica_leaves_the_others_alone(surface, how):
    columns = 20 if isinstance(surface, Circle) else 1  # a row of one weight and its slack is a circle, too
    ens = Replicas(lambda: nn.Linear(columns, 20, bias=False), 4)
    opt = Optimizer(
        ens, lr=0.5, word="BAOAB", on=surface, temperature=0.1, on_nonfinite="skip" if how == "skipped" else "raise"
    )
    alone = Replicas(lambda: nn.Linear(columns, 20, bias=False), 4)
    plain = Optimizer(alone, lr=0.5, word="BAOAB", on=surface, temperature=0.1)
    if how == "stopped":
        opt.stop([3])
    for _ in range(60):
        rest([*ens.parameters(), *alone.parameters()])
        if how == "skipped":
            ens.weight.grad[3] = torch.nan
        opt.step()
        plain.step()
    torch.testing.assert_close(ens.weight[:3], alone.weight[:3], rtol=0, atol=0)


def test_a_stopped_replica_leaves_the_measure_of_the_others():
    ens = Replicas(lambda: nn.Linear(20, 20, bias=False), 4)
    opt = Optimizer(ens, lr=0.5, word="BAOAB", on=Circle(1.0), temperature=0.1)
    opt.stop([3])
    assert abs(mean_square(opt, [ens.weight], 200, slice(0, 3)) - 0.5) < 0.03


@pytest.mark.parametrize("native", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("surface", [Circle(1.0), Circle(torch.full((5,), 1.0)), Sphere(1.0)], ids=repr)
@pytest.mark.parametrize("through", ["copy_", "data", "vector"])
def test_weights_swapped_out_and_in_again_change_nothing(surface, through, native, monkeypatch):
    if not native:
        monkeypatch.setattr(tether.native, "serves", lambda *_: False)
    runs = []
    for swaps in (False, True):
        layer = nn.Linear(5, 4)
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-0.4, 0.4, 20).view(4, 5))
        opt = Optimizer(layer, [Part("weight", on=surface), Part("*")], lr=0.5, word="BAOAB", temperature=0.1)
        for step in range(40):
            rest(layer.parameters())
            opt.step()
            if swaps and step % 10 == 9:
                held = layer.weight.detach().clone()
                swap(layer, torch.full((4, 5), 0.1), through)
                swap(layer, held, through)
        runs.append(layer.weight.detach().clone())
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def swap(layer, value, through):
    if through == "copy_":
        with torch.no_grad():
            layer.weight.copy_(value)
    elif through == "data":
        layer.weight.data.copy_(value)
    else:
        nn.utils.vector_to_parameters(torch.cat([value.flatten(), layer.bias.detach()]), layer.parameters())


SLACK = [Circle(1.0), Circle(torch.full((5,), 1.0)), Sphere(1.0), Level(lambda w, s: w.square().sum() + s**2 - 4, 1)]
SLACK += [SpectralBall(1.0)]


@pytest.mark.parametrize("surface", SLACK, ids=["Circle", "Circles", "Sphere", "Level", "SpectralBall"])
@pytest.mark.parametrize("through", ["copy_", "data", "vector"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_what_somebody_wrote_to_a_weight_stays(surface, through, dtype):
    layer = nn.Linear(5, 4).to(dtype)
    opt = Optimizer(layer, [Part("weight", on=surface), Part("*")], lr=0.1, word="X")
    for _ in range(3):
        rest(layer.parameters())
        opt.step()
    value = torch.linspace(-0.3, 0.3, 20, dtype=dtype).view(4, 5)
    swap(layer, value, through)
    rest(layer.parameters())
    opt.step()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(layer.weight.detach(), value, rtol=0, atol=4 * eps)
    assert opt.violation() <= 16 * eps


@pytest.mark.parametrize("surface", [Circle(1.0), Sphere(1.0)], ids=repr)
@pytest.mark.parametrize("native", [True, False], ids=["kernel", "torch"])
def test_a_weight_written_to_keeps_the_sign_of_its_slack(surface, native, monkeypatch):
    """Momenta belong to one of the two points above a weight: on the other one they point back."""
    if not native:
        monkeypatch.setattr(tether.native, "serves", lambda *_: False)
    layer = nn.Linear(1, 50, bias=False)
    opt = Optimizer(layer, lr=0.5, word="BAOAB", on=surface, temperature=0.1)
    mean_square(opt, [layer.weight], 20)
    point = opt.state[layer.weight]["point"]
    slack = (torch.cos(point) if isinstance(surface, Circle) else point[:, -1:]).clone()
    assert (slack < 0).any()
    with torch.no_grad():
        layer.weight.mul_(0.9)
    opt.param_groups[0]["temperature"], opt.param_groups[0]["lr"] = 0.0, 1e-30
    rest([layer.weight])
    opt.step()
    after = torch.cos(point) if isinstance(surface, Circle) else point[:, -1:]
    clear = slack.abs() > 1e-3
    assert (after.sign() == slack.sign())[clear].all()


def forced(layer, step):
    for i, p in enumerate(layer.parameters()):
        g = torch.Generator().manual_seed(100 * step + i)
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)


KINDS = [f"{surface}_cola_{kind}" for surface in ("circle", "sphere", "orthogonal") for kind in ("od", "ud")]
METHODS = {name: getattr(methods, name) for name in KINDS}
SURFACES = {
    "Sphere without slack": Sphere(1.0, slack=False),
    "Level": Level(lambda w: w.square().sum() - 1),
    "Level with slack": Level(lambda w, s: w.square().sum() + s**2 - 4, 1),
    "Orthogonal at random": Orthogonal(start="random"),
}


def build(name, layer):
    if name in METHODS:
        return METHODS[name](layer, lr=0.1, temperature=1e-2, seed=5)
    parts = [Part("weight", on=SURFACES[name]), Part("*")]
    return Optimizer(layer, parts, lr=0.1, word="OBA", temperature=1e-2, seed=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*METHODS, *SURFACES])
def test_model_first_then_optimizer_then_its_state(name, dtype):
    """Lightning's order: the optimizer is made around weights that lie on their surface already."""
    straight = nn.Linear(6, 4).to(dtype)
    opt = build(name, straight)
    for step in range(8):
        forced(straight, step)
        opt.step()
    weights, state = copy.deepcopy(straight.state_dict()), copy.deepcopy(opt.state_dict())
    for step in range(8, 16):
        forced(straight, step)
        opt.step()

    layer = nn.Linear(6, 4).to(dtype)
    layer.load_state_dict(weights)
    again = build(name, layer)
    torch.testing.assert_close(layer.state_dict(), weights, rtol=0, atol=0)  # it has moved nothing
    again.load_state_dict(state)
    for step in range(8, 16):
        forced(layer, step)
        again.step()
    torch.testing.assert_close(layer.state_dict(), straight.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["circle_cola_ud", "sphere_cola_ud"])
def test_saved_points_are_trusted_parameter_by_parameter(name):
    """One of two equal layers is written to after loading: the other one goes on from its saved point."""
    nets = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    opts = [METHODS[name](net, lr=0.3, temperature=0.1, seed=5) for net in nets]
    for step in range(12):
        forced(nets[0], step)
        opts[0].step()
    nets[1].load_state_dict(nets[0].state_dict())
    opts[1].load_state_dict(opts[0].state_dict())
    with torch.no_grad():
        nets[1][1].weight.mul_(0.5)
    for step in range(12, 15):
        for net, opt in zip(nets, opts, strict=True):
            forced(net, step)
            opt.step()
    torch.testing.assert_close(nets[1][0].weight, nets[0][0].weight, rtol=0, atol=0)


@pytest.mark.parametrize("surface", [Circle(1.0), Sphere(1.0)], ids=repr)
def test_a_parameter_of_another_shape_is_not_written_beyond_its_end(surface):
    layer = nn.Linear(8, 8, bias=False)
    opt = Optimizer(layer, lr=0.1, word="X", on=surface)
    rest([layer.weight])
    opt.step()
    room = torch.full((64,), 7.0)
    layer.weight.data = room[:16].view(4, 4).zero_()
    layer.weight.grad = torch.zeros(4, 4)
    opt.step()
    assert (room[16:] == 7.0).all()


@pytest.mark.parametrize("surface", [tether.Free(), Circle(1.0), Sphere(1.0), Orthogonal()], ids=repr)
@pytest.mark.parametrize("shape", [(4, 4), (3, 4)])
def test_a_parameter_that_no_longer_fits_its_momentum_is_refused(surface, shape):
    layer = nn.Linear(6, 2, bias=False)
    opt = Optimizer(layer, lr=0.1, word="OBA", on=surface)
    rest([layer.weight])
    opt.step()
    layer.weight.data = torch.eye(4)[: shape[0]].clone()
    layer.weight.grad = torch.zeros(shape)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"weight.*replaced"):
        opt.step()
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("surface", [tether.Free(), Circle(1.0), Sphere(1.0), Orthogonal()], ids=repr)
def test_a_momentum_that_the_user_sets_is_used(surface):
    moved = []
    for replace in (False, True):
        layer = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            layer.weight.copy_(0.5 * torch.eye(3) if not isinstance(surface, Orthogonal) else torch.eye(3))
        opt = Optimizer(layer, lr=0.1, word="OBA", on=surface)
        rest([layer.weight])
        opt.step()
        momentum = opt.state[layer.weight]["momentum"]
        value = torch.zeros_like(momentum)
        value[0, 1], value[1, 0] = 0.3, -0.3
        if replace:
            opt.state[layer.weight]["momentum"] = value
        else:
            momentum.copy_(value)
        rest([layer.weight])
        opt.step()
        assert opt.state[layer.weight]["momentum"].abs().max() > 0.2
        moved.append(layer.weight.detach().clone())
    assert torch.equal(*moved)
