"""Nothing leaves its surface: every word, hot and cold, every dtype, long runs, steps too long, odd starts."""

import math

import pytest
import torch
from torch import nn
from walks import LIMIT, LONG, WORDS, errors_of, faults, normal, run, stiefel, tall, walk

import tether
from tether.surfaces import Circle, Level, Orthogonal, SpectralBall, Sphere

ROW = torch.tensor([0.3, 0.6, 1.0, 0.8, 0.5])
# name: surface, shapes of its parameters, steps
SURFACES = {
    "circle": (lambda: Circle(0.7), [(5, 4)], 300),
    "circle, a radius each": (lambda: Circle(torch.linspace(0.1, 1.0, 20).view(5, 4)), [(5, 4)], 150),
    "sphere": (lambda: Sphere(0.9), [(5, 4)], 300),
    "sphere, a radius each": (lambda: Sphere(ROW), [(5, 4)], 150),
    "sphere without slack": (lambda: Sphere(0.9, slack=False), [(5, 4)], 200),
    "sphere, whole weight": (lambda: Sphere(0.9, per="tensor"), [(5, 4)], 80),
    "sphere, its own norm": (lambda: Sphere(None, per="tensor"), [(2, 2)], 80),
    "orthogonal": (Orthogonal, [(6, 4), (4, 6), (4, 4)], 150),
    "orthogonal, scaled": (lambda: Orthogonal(scale=2.0), [(6, 4)], 150),
    "spectral ball": (lambda: SpectralBall(0.9), [(6, 4), (4, 6), (4, 4), (3, 1, 2)], 150),
    "level": (lambda: Level(stiefel), [(3, 2)], 20),
}
OTHERS = [(dtype, word) for dtype in (torch.float64, torch.bfloat16) for word in ("X", "BAOAB", "BACDEDCAB")]
CASES = [(torch.float32, word) for word in WORDS] + OTHERS


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize(("dtype", "word"), CASES, ids=str)
def test_points_and_momenta_stay_where_they_belong(name, word, dtype):
    make, shapes, steps = SURFACES[name]
    steps = LONG * (steps if dtype is torch.float32 else min(steps, 100))
    surface = make()
    h = 0.05 if name != "level" else 0.02
    starts = [0.5 * normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]
    if name == "level":
        starts = [torch.linalg.qr(start.float())[0].to(dtype) for start in starts]
    params, opt = walk(surface, starts, word, h, temperature=0.0)
    targets = [normal(*shape, seed=10 + i, dtype=dtype) for i, shape in enumerate(shapes)]
    checks = 0
    for step in range(steps):
        if step == steps // 2:
            opt.param_groups[0]["temperature"] = 0.1
            opt.param_groups[0]["noise"] = 0.3
        for q, target in zip(params, targets, strict=True):
            q.grad.copy_(q.detach() - target)
        opt.step()
        if step % max(steps // 40, 1) == 0 or step == steps - 1:
            off, cotangency = faults(opt, surface)
            assert opt.violation() <= LIMIT[dtype]
            assert off <= LIMIT[dtype]
            # bfloat16 rounds the point itself, momenta belong to the point before rounding
            assert cotangency <= LIMIT[dtype] * (10 if dtype is torch.bfloat16 else 1)
            checks += 1
    assert checks >= 20
    assert all(q.dtype is dtype for q in params)
    if dtype is torch.float32:
        assert "polar" not in opt.describe()


LAYERS = {
    "linear, tall": lambda: nn.Linear(4, 7),
    "linear, wide": lambda: nn.Linear(7, 4),
    "conv1d": lambda: nn.Conv1d(2, 8, 3),
    "conv2d": lambda: nn.Conv2d(2, 5, 3),
    "conv3d": lambda: nn.Conv3d(1, 4, 2),
    "transposed conv2d": lambda: nn.ConvTranspose2d(5, 2, 3),
    "embedding": lambda: nn.Embedding(9, 4),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("word", ["X", "OBA"])
def test_every_layer_with_a_weight_can_be_orthogonal(layer, word):
    torch.manual_seed(0)
    net = LAYERS[layer]()
    parts = [tether.Part("weight", on=Orthogonal()), tether.Part("*")][: len(list(net.parameters()))]
    opt = tether.Optimizer(net, parts, lr=0.05, word=word, temperature=0.01)
    start = net.weight.detach().clone()
    for step in range(100):
        for i, param in enumerate(net.parameters()):
            param.grad = normal(*param.shape, seed=7 * step + i, dtype=torch.float32)
        opt.step()
    q = tall(net.weight.detach())
    assert q.shape[0] >= q.shape[1] > 1
    assert (q.mT @ q - torch.eye(q.shape[1])).abs().max() <= 1e-6
    assert (net.weight - start).abs().max() > 0.1


@pytest.mark.parametrize("word", ["X", "BAOAB"])
@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5), Sphere(0.5, slack=False)], ids=str)
def test_no_drift_in_a_long_run(word, surface):
    # TETHER_LONG=50 takes a hundred thousand steps, 500 a million
    _, opt = walk(surface, [0.2 * normal(2, 2, dtype=torch.float32)], word, 0.1, temperature=0.1)
    run(opt, 2_000 * LONG)
    off, cotangency = faults(opt, surface)
    assert max(off, cotangency, opt.violation()) <= 2e-7


@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("start", [0.5, -0.5, 0.5001, 3.0, -100.0])
@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5)], ids=str)
def test_a_weight_on_or_beyond_its_radius_moves_again(word, start, surface):
    (q,), opt = walk(surface, [torch.full((1, 1), start)], word, 0.1)
    assert q.abs().item() <= 0.5
    placed = q.item()
    assert placed == pytest.approx(math.copysign(0.5, start), rel=2e-3)  # near where it was
    q.grad.fill_(start)  # pulls inwards
    run(opt, 150)
    assert q.item() * start < 0
    assert opt.violation() <= 1e-6


def test_a_weight_inside_its_radius_is_left_where_it_is():
    start = torch.linspace(-0.49, 0.49, 12).view(3, 4)
    for surface in (Circle(0.5), Sphere(1.5)):
        (q,), _ = walk(surface, [start], "X", 0.1)
        torch.testing.assert_close(q.detach(), start, rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 2, 3), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_start_project_is_the_nearest_orthogonal_matrix(shape, scale):
    start = normal(*shape)
    (w,), _ = walk(Orthogonal(scale=scale), [start], "X", 0.1)
    u, _, v = torch.linalg.svd(start.flatten(1), full_matrices=False)
    torch.testing.assert_close(w.detach().flatten(1), scale * u @ v, rtol=0, atol=1e-12)


def test_start_random_is_haar_whatever_was_there():
    starts = [torch.ones(4, 2, dtype=torch.float64)] * 2000
    params, opt = walk(Orthogonal(start="random"), starts, "X", 0.1)
    q = torch.stack([param.detach() for param in params])
    assert opt.violation() <= 1e-13
    assert abs(errors_of(q, 0.0)).max() < 4
    assert abs(errors_of(q**2, 1 / 4)).max() < 4
    assert abs(errors_of(q**4, 3 / (4 * 6))).max() < 4
    # E Q₁₁²Q₁₂² = 1/(r(r+2)) in a row; in two rows and columns E Q₁₁Q₁₂Q₂₁Q₂₂ = −1/((r−1)r(r+2))
    assert abs(errors_of(q[:, 0, 0] ** 2 * q[:, 1, 0] ** 2, 1 / 24)) < 4
    assert abs(errors_of(q[:, 0, 0] * q[:, 0, 1] * q[:, 1, 0] * q[:, 1, 1], -1 / 72)) < 4


def test_start_random_depends_on_seed_and_name_alone():
    def first(seed, start):
        return walk(Orthogonal(start="random"), [start], "X", 0.1, seed=seed)[0][0].detach()

    assert torch.equal(first(1, torch.zeros(5, 3)), first(1, torch.ones(5, 3)))
    assert not torch.equal(first(1, torch.zeros(5, 3)), first(2, torch.zeros(5, 3)))


@pytest.mark.parametrize("word", ["X", "OBA", "BAOAB"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 4)])
def test_a_step_far_too_long_is_answered_by_the_polar_factor_and_counted(word, shape):
    surface = Orthogonal()
    (q,), opt = walk(surface, [normal(*shape, dtype=torch.float32)], word, 100.0)
    assert "polar" not in opt.describe()
    for step in range(20):
        q.grad = normal(*shape, seed=100 + step, dtype=torch.float32)
        opt.step()
        assert opt.violation() <= 1e-6
    assert surface.fallbacks >= 20
    assert f"{surface.fallbacks} projections by polar factor" in opt.describe()


def test_the_polar_fallback_is_the_nearest_point_of_the_step():
    start = torch.linalg.qr(normal(5, 3))[0]
    (q,), opt = walk(Orthogonal(), [start], "X", 100.0)
    q.grad = normal(5, 3, seed=1)
    u, _, v = torch.linalg.svd(start - 100.0 * q.grad, full_matrices=False)
    opt.step()
    torch.testing.assert_close(q.detach(), u @ v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("word", ["X", "OBA", "BAOAB"])
def test_a_step_too_long_for_one_matrix_leaves_its_neighbours_alone(word):
    # parameters of one shape are moved as one stack, but each must go where it would go alone
    starts = [torch.linalg.qr(normal(3, 2, seed=i))[0] for i in range(2)]
    pair, both = walk(Orthogonal(), starts, word, 0.3)
    (single,), alone = walk(Orthogonal(), starts[:1], word, 0.3)
    for step in range(5):
        pair[0].grad.copy_(normal(3, 2, seed=10 + step))
        pair[1].grad.copy_(100 * normal(3, 2, seed=20 + step))
        single.grad.copy_(pair[0].grad)
        both.step()
        alone.step()
    torch.testing.assert_close(pair[0].detach(), single.detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_step_that_the_iteration_can_take_is_not_given_to_the_polar_factor(dtype):
    # (4.55) contracts by about ‖Q̄ − Q‖ each time: of 200 steps of that length below ½ it can take all, given the time
    Q = torch.linalg.qr(normal(200, 6, 4))[0]
    P = Orthogonal().tangent(Q, normal(200, 6, 4, seed=1))
    P = 0.45 * P / P.flatten(1).norm(dim=1).view(-1, 1, 1)
    X = Q + P
    for _ in range(100):
        X = X - 0.5 * Q @ (X.mT @ X - torch.eye(4, dtype=torch.float64))
    assert (X.mT @ X - torch.eye(4, dtype=torch.float64)).abs().max() <= 1e-13
    surface = Orthogonal()
    moved = surface.drift(Q.to(dtype), P.to(dtype), 1.0)[0]
    assert surface.fallbacks == 0
    torch.testing.assert_close(moved.double(), X, rtol=0, atol=1e-6 if dtype is torch.float32 else 1e-12)


@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5), Sphere(0.5, slack=False)], ids=str)
def test_circles_and_spheres_take_steps_of_any_length(word, surface):
    (q,), opt = walk(surface, [0.2 * normal(3, 4, dtype=torch.float32)], word, 100.0)
    for step in range(10):
        q.grad = normal(3, 4, seed=step, dtype=torch.float32)
        opt.step()
        assert opt.violation() <= 1e-6


@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("surface", [Circle(0.5), Sphere(0.5), Sphere(0.5, slack=False), Orthogonal()], ids=str)
def test_gradients_whose_squares_overflow(word, surface):
    (q,), opt = walk(surface, [0.2 * normal(3, 4, dtype=torch.float32)], word, 1.0)
    q.grad = 1e20 * normal(3, 4, dtype=torch.float32)
    opt.step()
    assert q.isfinite().all()
    assert opt.violation() <= 1e-6


def test_a_level_step_too_long_says_so_and_moves_nothing():
    (q,), opt = walk(Level(stiefel), [torch.linalg.qr(normal(3, 2))[0]], "X", 100.0)
    before = q.detach().clone()
    q.grad = normal(3, 2, seed=1)
    with pytest.raises(tether.surfaces.SurfaceError, match=r"too long.*lower lr"):
        opt.step()
    assert torch.equal(q.detach(), before)
    q.grad *= 1e-5
    opt.step()  # and the run can go on
    assert opt.violation() <= 1e-13


def test_g_of_several_parameters_holds_them_together():
    def g(v, w):
        return torch.stack((v.square().sum() + w.square().sum() - 1, v[0] - w[0, 0]))

    starts = [normal(3), normal(2, 2, seed=1)]
    params, opt = walk(Level(g), starts, "BAOAB", 0.05, temperature=0.1)
    run(opt, 30)
    assert g(*[q.detach() for q in params]).abs().max() <= 1e-13
    assert opt.violation() <= 1e-13
    assert all((q - start).abs().max() > 0.01 for q, start in zip(params, starts, strict=True))


def test_an_inequality_by_slack():
    # |w|² ≤ 1 as |w|² + ξ² = 1
    def ball(w, ξ):
        return w.square().sum() + ξ.square().sum() - 1

    (q,), opt = walk(Level(ball, slack=1), [torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)], "X", 0.1)
    torch.testing.assert_close(q.detach(), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), rtol=0, atol=1e-12)
    q.grad.copy_(torch.tensor([-1.0, 0.0, 0.0]))
    run(opt, 60)
    assert q[0].item() == pytest.approx(1.0, abs=0.01)
    assert opt.violation() <= 1e-13
