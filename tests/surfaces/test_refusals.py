"""What is refused, in words that say what to do instead, with nothing changed; and the contract of the six methods."""

import copy
import io
import math
import re

import pytest
import torch
from torch import nn
from walks import faults, normal, run, walk

import tether
from tether import methods
from tether.surfaces import Circle, Level, Orthogonal, SpectralBall, Sphere, SurfaceError


def linear(*, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3, dtype=dtype)


@pytest.fixture
def net():
    """A model that must be as it was at the end."""
    net = linear()
    yield net
    for x, y in zip(net.parameters(), linear().parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("surface", [Circle, Sphere])
@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, -math.inf, torch.tensor(-2.0)], ids=str)
def test_a_radius_must_be_finite_and_positive(surface, radius):
    with pytest.raises(SurfaceError, match=r"radius=.* must be finite and > 0; e\.g\. \w+\(0\.5\)"):
        surface(radius)


@pytest.mark.parametrize("surface", [Circle, Sphere])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_every_radius_of_a_tensor_must_be_finite_and_positive(surface, bad):
    with pytest.raises(SurfaceError, match=r"every radius must be finite and > 0, found " + re.escape(f"{bad}")):
        surface(torch.tensor([1.0, bad, 2.0]))


@pytest.mark.parametrize("surface", [Circle, Sphere])
@pytest.mark.parametrize("radius", ["wide", [1.0, 2.0]], ids=str)
def test_a_radius_must_be_a_number(surface, radius):
    with pytest.raises(SurfaceError, match="is not a number"):
        surface(radius)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Circle(None), "is not a number"),
        (lambda: Sphere("1"), "radius='1' is not a number"),
        (lambda: SpectralBall(True), "radius=True is not a number"),
        (lambda: Sphere(per="layer"), "per='layer' must be 'row' or 'tensor'"),
        (lambda: Sphere(None, slack=True), "radius=None keeps the norm, so there is no slack"),
        (lambda: Sphere(torch.ones(3), per="tensor"), "has one radius: give a number"),
    ],
)
def test_a_sphere_of_no_kind(make, match):
    with pytest.raises(SurfaceError, match=match):
        make()


@pytest.mark.parametrize(
    ("surface", "start", "match"),
    [
        (Sphere(None, per="tensor"), torch.zeros(3, 2), "norm 0 have no direction.*choose the radius"),
        (Sphere(None), torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "norm 0 have no direction"),
        (Sphere(per="tensor"), torch.ones(1, 1), "has no direction to learn"),
    ],
)
def test_a_weight_without_a_direction(surface, start, match):
    weight = nn.Parameter(start.clone())
    with pytest.raises(SurfaceError, match=match):
        tether.Optimizer([("weight", weight)], on=surface, lr=0.1)
    assert torch.equal(weight, start)


WRONG_SHAPES = [Circle(torch.ones(5)), Circle(torch.ones(2, 3, 4)), Sphere(torch.ones(4)), Sphere(torch.ones(3, 1))]


@pytest.mark.parametrize("surface", WRONG_SHAPES, ids=str)
def test_a_radius_of_the_wrong_shape(surface, net):
    with pytest.raises(SurfaceError, match=r"'weight': the radius has shape .* must broadcast to \(3"):
        tether.Optimizer(net, [tether.Part("weight", on=surface), tether.Part("*")], lr=0.1)
    with pytest.raises(SurfaceError, match="must broadcast"):
        tether.constrain(torch.optim.SGD(net.named_parameters(), lr=0.1), {"weight": surface})


@pytest.mark.parametrize("surface", [Sphere(), Orthogonal()], ids=str)
def test_a_vector_is_no_matrix(surface, net):
    with pytest.raises(SurfaceError, match=r"on 'bias': a parameter of shape \(3,\) .* leave biases free"):
        tether.Optimizer(net, [tether.Part("bias", on=surface), tether.Part("*")], lr=0.1)
    with pytest.raises(SurfaceError, match="leave biases free"):
        tether.Optimizer([net.bias], on=surface, lr=0.1)
    with pytest.raises(SurfaceError, match="leave biases free"):
        tether.constrain(torch.optim.SGD(net.named_parameters(), lr=0.1), {"bias": surface})


def test_a_refused_part_leaves_those_before_it_alone(net):
    parts = [tether.Part("weight", on=Orthogonal()), tether.Part("bias", on=Sphere())]
    with pytest.raises(SurfaceError, match="leave biases free"):
        tether.Optimizer(net, parts, lr=0.1)


def test_an_infeasible_level_leaves_the_other_surfaces_of_constrain_alone(net):
    opt = torch.optim.SGD(net.named_parameters(), lr=0.1)
    with pytest.raises(SurfaceError, match="no point with g = 0"):
        tether.constrain(opt, {"weight": Orthogonal(), "bias": Level(lambda b: b.square().sum() + 1)})


@pytest.mark.parametrize("on", ["Orthogonal", Orthogonal, 3, 3.0], ids=str)
def test_on_must_be_a_surface(on, net):
    with pytest.raises(TypeError, match=r"on=.* must be a surface, e\.g\. on=tether\.Orthogonal\(\)"):
        tether.Optimizer(net, on=on, lr=0.1)
    with pytest.raises(TypeError, match=r"is no surface, e\.g\. tether\.Orthogonal\(\)"):
        tether.constrain(torch.optim.SGD(net.named_parameters(), lr=0.1), {"weight": on})


@pytest.mark.parametrize("surface", [Circle(), Sphere(), Orthogonal()], ids=str)
def test_a_letter_of_flat_space_is_refused_on_a_surface(surface, net):
    with pytest.raises(ValueError, match=r"the word 'UBU' on .*: U has no exact map on a surface.*word='BAOAB'"):
        tether.Optimizer(net, [tether.Part("weight", word="UBU", on=surface), tether.Part("*")], lr=0.1)


def test_a_word_changed_to_one_of_flat_space_is_refused():
    net = linear()
    opt = tether.Optimizer(net, [tether.Part("weight", word="BAOAB", on=Sphere()), tether.Part("*")], lr=0.1)
    opt.param_groups[0]["word"] = "UBU"
    before = net.weight.detach().clone()
    net(torch.ones(4)).sum().backward()
    with pytest.raises(ValueError, match="U has no exact map"):
        opt.step()
    assert torch.equal(net.weight, before)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"tolerance": 0.0}, "tolerance=0.0 must be finite and > 0"),
        ({"tolerance": math.nan}, "tolerance=nan must be finite and > 0"),
        ({"iterations": 0}, "iterations=0 must be 1 or more"),
        ({"iterations": 2.5}, "iterations=2.5 must be 1 or more"),
        ({"scale": 0.0}, "scale=0.0 must be finite and > 0"),
        ({"scale": math.inf}, "scale=inf must be finite and > 0"),
        ({"start": "haar"}, "start='haar' must be 'project' or 'random'"),
    ],
)
def test_fields_of_orthogonal(fields, match):
    with pytest.raises(SurfaceError, match=match):
        Orthogonal(**fields)


@pytest.mark.parametrize("surface", [Circle(), Sphere(), Orthogonal()], ids=str)
def test_an_empty_parameter_is_refused_or_left_alone(surface):
    empty = nn.Parameter(torch.empty(0, 3))
    try:
        opt = tether.Optimizer([("w", empty)], on=surface, lr=0.1)
    except SurfaceError:
        return
    empty.grad = torch.empty(0, 3)
    opt.step()


# Level


@pytest.mark.parametrize(("g", "slack"), [(None, 0), (3, 0)])
def test_g_must_be_a_function(g, slack):
    with pytest.raises(SurfaceError, match="is not a function"):
        Level(g, slack)


@pytest.mark.parametrize("slack", [-1, 1.5, "two"])
def test_slack_must_be_a_number_of_variables(slack):
    with pytest.raises(SurfaceError, match="must be a number of variables"):
        Level(lambda w, ξ: w.sum() + ξ, slack)


BAD = {
    "a float": (lambda w: 1.0, "g returned float; it must return a tensor"),
    "nothing": (lambda w: None, "g returned NoneType; it must return a tensor"),
    "a tuple": (lambda w: (w.sum(), w.sum()), "g returned tuple; it must return a tensor"),
    "no constraint": (lambda w: w[:0], "g"),
    "integers": (lambda w: (w > 0).long(), "g"),
    "nan": (lambda w: (w.sum() * 0 - 1).sqrt(), "g"),
    "never zero": (lambda w: w.square().sum() + 1, r"no point with g = 0 found near the start, \|g\| stays at 1"),
    "the same twice": (lambda w: torch.stack((w.sum() - 1, w.sum() - 1)), "rank-deficient.*drop redundant"),
    "a constant": (lambda w: w.new_zeros(1), "rank-deficient"),
    "a square": (lambda w: (w.sum() - 1) ** 2, "rank-deficient|no point with g = 0"),
    "a singular point": (lambda w: w.prod(), "rank-deficient|no point with g = 0"),
    "too many": (lambda w: w.flatten().repeat(2), "g has 8 components for 4 variables"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_g_that_cannot_be_used(kind):
    g, match = BAD[kind]
    start = torch.zeros(4) if kind == "a singular point" else torch.tensor([0.3, -0.2, 0.5, 0.1])
    w = nn.Parameter(start.clone())
    with pytest.raises(SurfaceError, match=match):
        tether.Optimizer([("w", w)], on=Level(g), lr=0.1)
    assert torch.equal(w, start)


def test_a_g_with_constants_in_double_precision():
    A = normal(2, 4)
    (w,), opt = walk(Level(lambda w: A @ w - 1), [normal(4, seed=1)], "BAOAB", 0.1, temperature=0.1)
    run(opt, 3)
    torch.testing.assert_close(A @ w.detach(), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_part_that_cannot_step_leaves_the_others_alone():
    net = linear()
    on = Level(lambda b: b.square().sum() - 1)
    opt = tether.Optimizer(net, [tether.Part("weight", on=Circle()), tether.Part("bias", on=on)], lr=100.0)
    before = [param.detach().clone() for param in net.parameters()]
    for i, param in enumerate(net.parameters()):
        param.grad = 10 * normal(*param.shape, seed=i, dtype=torch.float32)
    with pytest.raises(SurfaceError, match="too long"):
        opt.step()
    assert all(torch.equal(x, y) for x, y in zip(net.parameters(), before, strict=True))


# constrain and checkpoints


def test_constrain_without_names(net):
    with pytest.raises(ValueError, match=r"build the optimizer from model\.named_parameters\(\)"):
        tether.constrain(torch.optim.SGD(net.parameters(), lr=0.1), {"weight": Orthogonal()})


def test_constrain_that_matches_nothing(net):
    opt = torch.optim.SGD(net.named_parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"'conv\.\*' matches no parameter of the optimizer"):
        tether.constrain(opt, {"weight": Orthogonal(), "conv.*": Sphere()})
    opt.step()  # no hook was left behind


KINDS = [Circle(0.5), Circle(0.6), Circle(torch.full((3, 4), 0.5)), Sphere(0.5), Sphere(0.5, slack=False)]
KINDS += [Sphere(0.5, per="tensor"), Sphere(None, per="tensor")]
KINDS += [Orthogonal(), Orthogonal(scale=2.0), SpectralBall(0.5), SpectralBall(0.6), tether.Free()]


@pytest.mark.parametrize("saved", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_a_checkpoint_of_another_surface(saved):
    (q,), source = walk(KINDS[saved], [0.2 * normal(3, 4)], "OBA", 0.1)
    run(source, 2)
    for i, surface in enumerate(KINDS):
        if i == saved:
            continue
        (q,), opt = walk(surface, [0.2 * normal(3, 4)], "OBA", 0.1)
        run(opt, 1)
        before = q.detach().clone(), opt.state[q]["momentum"].clone()
        with pytest.raises(ValueError, match=r"is on .* but the checkpoint was saved on .* checkpoint's parts"):
            opt.load_state_dict(source.state_dict())
        assert torch.equal(q, before[0])
        assert torch.equal(opt.state[q]["momentum"], before[1])


@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5), Orthogonal(), SpectralBall(0.5)], ids=str)
def test_a_checkpoint_of_another_shape(surface):
    _, source = walk(surface, [0.2 * normal(3, 4)], "OBA", 0.1)
    run(source, 1)
    _, opt = walk(surface, [0.2 * normal(5, 2)], "OBA", 0.1)
    with pytest.raises(ValueError, match="checkpoint of another model"):
        opt.load_state_dict(source.state_dict())


# The six methods under the contract

FIELDS = {"radius": 0.8, "temperature": 1e-2}
METHODS = {
    "circle_cola_od": FIELDS,
    "circle_cola_ud": FIELDS,
    "sphere_cola_od": FIELDS,
    "sphere_cola_ud": FIELDS,
    "orthogonal_cola_od": {"temperature": 1e-2},
    "orthogonal_cola_ud": {"temperature": 1e-2},
}
every_method = pytest.mark.parametrize("name", METHODS)


def build(name, dtype=torch.float32, seed=0, **fields):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    return net, getattr(methods, name)(net, **{**METHODS[name], **fields})


def train(net, opt, steps, start=0):
    dtype = next(net.parameters()).dtype
    for i in range(start, start + steps):
        x = normal(8, 3, seed=i).to(dtype)
        opt.zero_grad()
        (net(x) - x[:, :2]).square().mean().backward()
        opt.step()


def everything(net, opt):
    values = [param.detach() for param in net.parameters()]
    for param in net.parameters():
        values += [opt.state.get(param, {}).get(key) for key in ("momentum", "point")]
    return values


def assert_equal(one, other):
    for x, y in zip(everything(*one), everything(*other), strict=True):
        assert (x is None) == (y is None)
        assert x is None or (x.dtype is y.dtype and torch.equal(x, y))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_saved_and_loaded_runs_go_on_bit_for_bit(name, dtype):
    net, opt = build(name, dtype)
    train(net, opt, 10)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin, other = build(name, dtype, seed=3)
    twin.load_state_dict(saved["net"])
    other.load_state_dict(saved["opt"])
    late, latest = build(name, dtype, seed=4)
    train(late, latest, 3)  # loading into a run under way, in the other order
    latest.load_state_dict(saved["opt"])
    late.load_state_dict(saved["net"])
    pair = copy.deepcopy((net, opt))
    train(net, opt, 10, start=10)
    for run_ in (pair, (twin, other), (late, latest)):
        train(*run_, 10, start=10)
        assert_equal((net, opt), run_)


@every_method
def test_frozen_weights_are_left_alone(name):
    net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight.copy_(normal(8, 3))
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    opt = getattr(methods, name)(net, **METHODS[name])
    train(net, opt, 3)
    assert torch.equal(net[0].weight, before)


@every_method
def test_a_weight_without_a_gradient_stands_still_and_comes_back(name):
    net, opt = build(name)
    train(net, opt, 2)
    before = net[0].weight.detach().clone(), {k: v.clone() for k, v in opt.state[net[0].weight].items()}
    net[0].weight.requires_grad_(False)
    net[0].weight.grad = None
    train(net, opt, 2, start=2)
    assert torch.equal(net[0].weight, before[0])
    assert all(torch.equal(opt.state[net[0].weight][key], value) for key, value in before[1].items())
    net[0].weight.requires_grad_(True)
    train(net, opt, 2, start=4)
    assert not torch.equal(net[0].weight, before[0])
    assert opt.violation() <= 1e-6


@every_method
def test_biases_and_norm_layers_are_free_and_globs_can_free_more(name):
    _, opt = build(name, free=["3.*"])
    constrained = [group for group in opt.param_groups if group["on"] != "Free()"]
    assert [group["param_names"] for group in constrained] == [["0.weight"]]


@every_method
def test_weights_written_between_steps_are_noticed(name):
    net, opt = build(name, temperature=0.0)
    train(net, opt, 5)
    written = {key: 0.05 * torch.ones_like(value) for key, value in net.state_dict().items()}
    if name.startswith("orthogonal"):
        written = {key: net.state_dict()[key].roll(1, 0) for key in written}
    net.load_state_dict(written)
    for param in net.parameters():
        param.grad = torch.zeros_like(param)
        if "momentum" in opt.state[param]:
            opt.state[param]["momentum"].zero_()
    opt.step()  # without force or momentum they stay where they were written to
    for key, value in written.items():
        if key.endswith("weight") and value.dim() > 1:
            torch.testing.assert_close(net.state_dict()[key], value, rtol=0, atol=1e-6)
    assert opt.violation() <= 1e-6


@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5)], ids=str)
def test_weights_written_beyond_their_radius_are_brought_back(surface):
    (q,), opt = walk(surface, [0.1 * normal(3, 4)], "OBA", 0.1, temperature=0.1)
    run(opt, 3)
    with torch.no_grad():
        q.fill_(7.0)
    assert opt.violation() > 1  # and violation() says so before
    run(opt, 1)
    assert opt.violation() <= 1e-13
    assert max(faults(opt, surface)) <= 1e-13


@pytest.mark.parametrize("surface", [Sphere(0.5, slack=False), Orthogonal()], ids=str)
def test_weights_written_off_a_surface_without_slack_are_brought_back(surface):
    (q,), opt = walk(surface, [0.1 * normal(4, 3)], "OBA", 0.1, temperature=0.1)
    run(opt, 3)
    with torch.no_grad():
        q.add_(0.2 * normal(4, 3, seed=1))
    assert opt.violation() > 0.01
    run(opt, 2)
    assert opt.violation() <= 1e-13
    assert max(faults(opt, surface)) <= 1e-13


def test_radii_per_layer():
    net, opt = build("circle_cola_od", radius=[0.05, 0.1])
    train(net, opt, 5)
    assert net[0].weight.abs().max() <= 0.05
    assert net[3].weight.abs().max() <= 0.1
    assert net[3].weight.abs().max() > 0.05
    with pytest.raises(ValueError, match=r"radius has 3 values for the 2 weights 0\.weight, 3\.weight"):
        build("circle_cola_od", radius=[0.05, 0.1, 0.2])


def test_free_that_matches_nothing_or_everything():
    with pytest.raises(ValueError, match=r"free='9\.\*' matches no parameter"):
        build("sphere_cola_od", free=["9.*"])
    with pytest.raises(ValueError, match="no weights to constrain"):
        build("sphere_cola_od", free=["*"])
    with pytest.raises(TypeError, match="must be a list of globs"):
        build("sphere_cola_od", free="0.*")
