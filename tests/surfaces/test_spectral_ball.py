"""SpectralBall: the uniform measure of the ball, starts, written weights, every layer, any optimizer, resuming."""

import copy
import math

import pytest
import torch
from scipy.stats import kstest
from test_measures import STANDARD_ERRORS
from test_on_the_surface import LAYERS
from walks import errors_of, normal, run, walk

import tether
from tether.surfaces import SpectralBall, SurfaceError

# word: step size, time to forget the start; drifts are those of RATTLE, not geodesics, and L makes drifts of √(2h)
TIMES = {"X": (0.02, 4.0), "L": (0.02, 4.0), "BAOAB": (0.25, 15.0), "OBA": (0.05, 15.0)}


def largest(w):
    return torch.linalg.svdvals(w.detach().flatten(1).double())[0].item()


@pytest.mark.parametrize("word", TIMES)
@pytest.mark.parametrize("radius", [0.5])
def test_no_force_is_uniform_in_the_ball(word, radius):
    """A ball of 2 × 2 matrices has four dimensions, so that σ₁⁴ is uniform; moments are those of a column of R⁵."""
    h, time = TIMES[word]
    start = torch.full((3000, 2, 2), 0.3 * radius)
    (q,), opt = walk(SpectralBall(radius), [start], word, h, temperature=radius**2, batch_dims=1)
    run(opt, round(time / h))
    x = q.detach().double() / radius
    σ = torch.linalg.svdvals(x)
    assert kstest((σ[:, 0] ** 4).numpy(), "uniform").pvalue > 1e-3
    assert abs(errors_of(x, 0.0)).max() < STANDARD_ERRORS
    assert abs(errors_of(x**2, 1 / 5)).max() < STANDARD_ERRORS
    assert abs(errors_of(x**4, 3 / 35)).max() < STANDARD_ERRORS
    assert abs(errors_of(x[:, 0, 0] * x[:, 0, 1] * x[:, 1, 0] * x[:, 1, 1], -1 / 140)) < STANDARD_ERRORS
    assert opt.violation().max() <= 1e-5


@pytest.mark.parametrize("word", TIMES)
def test_a_linear_force_is_a_cut_exponential(word):
    """Of one weight in [−r, r] with the density exp(κx/r): E x/r = coth κ − 1/κ."""
    h, time = TIMES[word]
    κ, r = 1.5, 0.5
    (q,), opt = walk(SpectralBall(r), [torch.zeros(8000, 1, 1)], word, h, temperature=r**2, batch_dims=1)
    q.grad.fill_(-κ * r)
    run(opt, round(time / h))
    mean = 1 / math.tanh(κ) - 1 / κ
    x = q.detach().flatten() / r
    assert abs(errors_of(x, mean)) < STANDARD_ERRORS
    assert abs(errors_of(x**2, 1 - 2 * mean / κ)) < STANDARD_ERRORS


@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_with_a_weight_can_be_bounded(layer, word):
    torch.manual_seed(0)
    net = LAYERS[layer]()
    parts = [tether.Part("weight", on=SpectralBall(0.3)), tether.Part("*")][: len(list(net.parameters()))]
    opt = tether.Optimizer(net, parts, lr=0.05, word=word, temperature=0.01)
    start = net.weight.detach().clone()
    for step in range(100):
        for i, param in enumerate(net.parameters()):
            param.grad = normal(*param.shape, seed=7 * step + i, dtype=torch.float32)
        opt.step()
        assert largest(net.weight) <= 0.3 * (1 + 1e-5)
    assert opt.violation() <= 1e-5
    assert (net.weight - start).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_start_outside_is_cut_and_one_inside_is_left_alone(dtype):
    wide = 0.3 * normal(4, 7, dtype=dtype)  # singular values from 0.4 to 1.2
    (inside, outside), opt = walk(SpectralBall(2.0), [wide, 3 * wide], "X", 0.1)
    assert torch.equal(inside.detach(), wide)
    u, σ, v = torch.linalg.svd(3 * wide, full_matrices=False)
    assert (σ > 2).any()
    assert (σ < 2).any()
    cut = torch.where(σ > 2, 2 * (1 - 1e-3), σ)
    torch.testing.assert_close(outside.detach(), (u * cut) @ v, rtol=0, atol=1e-5)
    assert opt.violation() <= 1e-6


@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("size", [0.5, 0.5001, 3.0])
def test_a_singular_value_on_or_beyond_the_radius_moves_again(word, size):
    (q,), opt = walk(SpectralBall(0.5), [size * torch.eye(3, 2)], word, 0.1)
    q.grad.copy_(torch.eye(3, 2))
    run(opt, 250)
    assert q.diagonal().max() < 0
    assert opt.violation() <= 1e-6


def test_descent_finds_the_nearest_matrix_of_the_ball():
    """Of |W − T|²/2, which cuts the singular values of T."""
    target = normal(4, 5)
    (q,), opt = walk(SpectralBall(1.0), [0.1 * normal(4, 5, seed=1)], "X", 0.2)
    run(opt, 2000, lambda: q.grad.copy_(q.detach() - target))
    u, σ, v = torch.linalg.svd(target, full_matrices=False)
    assert σ.max() > 1 > σ.min()
    torch.testing.assert_close(q.detach(), (u * σ.clamp_max(1)) @ v, rtol=0, atol=1e-6)


def test_weights_that_somebody_wrote_are_taken_as_they_are_with_the_nearest_slack():
    surface = SpectralBall(1.0)
    (q, other), opt = walk(surface, [0.2 * normal(5, 3), 0.2 * normal(5, 3, seed=1)], "BAOAB", 0.1, temperature=1.0)
    run(opt, 30)
    before, kept = (opt.state[x]["point"][5:].clone() for x in (q, other))
    new = 0.3 * normal(5, 3, seed=2)
    with torch.no_grad():
        q.copy_(new)
    points = torch.stack([opt.state[x]["point"] for x in (q, other)])
    found = surface.follow(torch.stack([q.detach(), other.detach()]), points, 1e-16)
    torch.testing.assert_close(found[0, :5], new)
    assert torch.equal(found[1, 5:], kept)
    gram = found[0].T @ found[0]
    torch.testing.assert_close(gram, torch.eye(3, dtype=gram.dtype))
    nearness = (found[0, 5:] * before).sum()
    for seed in range(20):  # the slack is known up to a rotation: none is nearer
        turn = torch.linalg.qr(normal(4, 4, seed=seed))[0]
        assert (turn @ found[0, 5:] * before).sum() < nearness
    opt.step()
    assert opt.violation() <= 1e-12


def test_constrain_keeps_any_optimizer_in_the_ball():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 16, 3))
    make = {
        "adam": lambda: torch.optim.AdamW(net.named_parameters(), lr=0.05),
        "sgd": lambda: torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9),
    }
    for kind in make:
        opt = tether.constrain(make[kind](), {"*.weight": SpectralBall(0.7)})
        opt = copy.deepcopy({"net": net, "opt": opt})
        model, opt = opt["net"], opt["opt"]
        for step in range(30):
            opt.zero_grad()
            model(normal(8, 2, 6, 6, seed=step, dtype=torch.float32)).square().mean().mul(-1).backward()
            opt.step()
            assert max(largest(model[0].weight), largest(model[2].weight)) <= 0.7 * (1 + 1e-5)
        assert tether.violation(opt) <= 1e-5
        assert largest(model[2].weight) > 0.5


@pytest.mark.parametrize("word", ["X", "BAOAB"])
def test_a_resumed_run_has_the_same_bits(word):
    def made():
        return walk(SpectralBall(0.8), [0.2 * normal(4, 6), 0.2 * normal(4, 6, seed=1)], word, 0.05, temperature=0.1)

    params, opt = made()
    run(opt, 5)
    saved, weights = copy.deepcopy(opt.state_dict()), [q.detach().clone() for q in params]
    run(opt, 5)
    others, again = made()
    with torch.no_grad():
        for q, w in zip(others, weights, strict=True):
            q.copy_(w)
    again.load_state_dict(saved)
    run(again, 5)
    assert all(torch.equal(x, y) for x, y in zip(params, others, strict=True))


def test_replicas_move_as_they_would_alone():
    starts = 0.2 * normal(3, 4, 5)
    (many,), opt = walk(SpectralBall(0.8), [starts], "OBA", 0.1, batch_dims=1)
    alone = [walk(SpectralBall(0.8), [start], "OBA", 0.1) for start in starts]
    for step in range(10):
        many.grad.copy_(normal(3, 4, 5, seed=step))
        opt.step()
        for i, ((q,), single) in enumerate(alone):
            q.grad.copy_(many.grad[i])
            single.step()
    for i, ((q,), _) in enumerate(alone):
        torch.testing.assert_close(many[i], q, rtol=0, atol=1e-12)


def test_weights_that_are_not_finite_are_an_error_of_the_step_and_not_put_right_in_silence():
    (q,), opt = walk(SpectralBall(0.8), [0.2 * normal(4, 5)], "OBA", 0.1)
    opt.step()
    with torch.no_grad():
        q[1, 2] = math.nan
    before = q.detach().clone()
    assert math.isnan(opt.violation())
    with pytest.raises(
        SurfaceError, match=r"SpectralBall\(0.8\): the step leads to inf or nan; lower lr, or clip the gradient"
    ):
        opt.step()
    torch.testing.assert_close(q.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_refusals():
    with pytest.raises(SurfaceError, match="is no matrix; constrain weights"):
        walk(SpectralBall(1.0), [torch.zeros(3)], "X", 0.1)
    with pytest.raises(SurfaceError, match=r"radius=-1 must be finite and > 0"):
        SpectralBall(-1)
    with pytest.raises(SurfaceError, match="has one radius"):
        SpectralBall(torch.ones(3))
    with pytest.raises(SurfaceError, match="or its square is out of the range of float32"):
        walk(SpectralBall(1e30), [torch.zeros(3, 3)], "X", 0.1)


def test_degrees_of_freedom_are_those_of_the_weight_and_its_slack():
    """nk of W, and of the (k + 1)k entries of S all but the k(k + 1)/2 that W determines."""
    assert SpectralBall(0.5).dimension((4, 3)) == SpectralBall(0.5).dimension((3, 2, 2)) == 12 + 6
    assert repr(SpectralBall(0.5)) == "SpectralBall(0.5)"
