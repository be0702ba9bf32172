"""What section 4.7.2 leaves open: which normals, SHAKE or RATTLE, the oblique circle, K iterations, penalties.

Each is compared with the printed lines, evaluated literally.
"""

import math

import pytest
import torch
from scipy.optimize import fsolve
from torch import nn
from walks import normal, tall, walk

import tether
from tether.noise import reference
from tether.surfaces import Circle, Level, Orthogonal, Sphere, SurfaceError

H, GAMMA, TAU = 0.07, 0.7, 0.04
TORUS = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)


def torus(w):
    """The circle of radius 1 around the circle of radius 2."""
    return (w[:2].norm() - 2).square() + w[2].square() - 1


def drawn(step, *shape):
    return reference(math.prod(shape), 0, step, 0, "q0", torch.float64).view(shape)


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=atol)


# (4.41) and (4.42)


def multiplier(bar, normals_at, start):
    """q̄ − ∇g λ with g = 0 by another solver, ∇g at the start or, as unknowns too, at the end."""
    gradient = torch.func.grad(torus)

    def residual(x):
        q, λ = torch.from_numpy(x[:3]), x[3]
        at = start if normals_at == "start" else q
        return torch.cat((q - bar + gradient(at) * λ, torus(q).view(1))).numpy()

    return torch.from_numpy(fsolve(residual, [*start.tolist(), 0.0], xtol=1e-14))[:3]


@pytest.mark.parametrize("along", ["start", "end"])
@pytest.mark.filterwarnings("ignore:The iteration is not making good progress", "ignore:xtol=")  # it is exact by then
def test_a_step_is_projected_along_the_normals_at_its_start_or_at_its_end(along):
    (w,), opt = walk(Level(torus, along=along), [TORUS], "X", H, temperature=TAU)
    q = TORUS
    for step in range(6):
        g = normal(3, seed=1 + step)
        w.grad.copy_(g)
        opt.step()
        q = multiplier(q - H * g + math.sqrt(2 * TAU * H) * drawn(step, 3), along, q)
        close(w, q, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.01, 1.0, 50.0])
def test_along_the_end_is_the_nearest_point_for_steps_of_any_length(dtype, length):
    start = nn.functional.normalize(normal(7, 5), dim=1).to(dtype)
    point = start + length * normal(7, 5, seed=1, dtype=dtype)
    surface = Level(lambda w: w.square().sum() - 1, along="end").bind([(5,)])
    expected = nn.functional.normalize(point, dim=1)
    close(surface.project(point, start), expected, atol=200 * torch.finfo(dtype).eps)
    if length == 50.0:  # (4.41) has no root there
        with pytest.raises(SurfaceError, match="the step is too long"):
            Level(lambda w: w.square().sum() - 1).bind([(5,)]).project(point, start)


def test_settings_that_matter_are_in_the_name_and_others_are_refused():
    assert repr(Level(torus, along="end", scheme="shake")) == "Level(torus, along='end', scheme='shake')"
    assert repr(Level(torus)) == "Level(torus)"
    assert repr(Circle(1.0, projection="oblique")) == "Circle(1.0, projection='oblique')"
    assert repr(Orthogonal(fixed=3)) == "Orthogonal(fixed=3)"
    for make, match in (
        (lambda: Level(torus, along="middle"), "along='middle' must be 'start'"),
        (lambda: Level(torus, scheme="verlet"), "scheme='verlet' must be 'rattle' or 'shake'"),
        (lambda: Level(torus, tolerance=-1.0), "tolerance=-1.0 must be finite and > 0"),
        (lambda: Level(torus, iterations=0), "iterations=0 must be 1 or more"),
        (lambda: Circle(1.0, projection="skew"), "projection='skew' must be"),
        (lambda: Orthogonal(fixed=0), "fixed=0 must be a number of iterations"),
        (lambda: Orthogonal(fixed=2, tolerance=1e-3), "leave one of them out"),
    ):
        with pytest.raises(SurfaceError, match=match):
            make()


# SHAKE beside RATTLE


@pytest.mark.parametrize("word", ["BAB", "BAOAB", "OBA"])
def test_shake_has_the_points_of_rattle_and_momenta_before_their_last_projection(word):
    fields = {"friction": GAMMA, "temperature": TAU} if "O" in word else {}
    both = {scheme: walk(Level(torus, scheme=scheme), [TORUS], word, H, **fields) for scheme in ("rattle", "shake")}
    across = 0.0
    for step in range(10):
        for (w,), opt in both.values():
            w.grad.copy_(normal(3, seed=step))
            opt.step()
        (q,), rattle = both["rattle"]
        (w,), shake = both["shake"]
        close(w, q.detach(), atol=1e-12)
        p, loose = rattle.state[q]["momentum"], shake.state[w]["momentum"]
        gradient = torch.func.grad(torus)(q.detach())
        n = gradient / gradient.norm()
        close(loose - n * (n @ loose), p, atol=1e-11)
        assert abs(float(n @ p)) < 1e-12  # (1.53)
        across = max(across, abs(float(n @ loose)))
    assert word == "OBA" or across > 1e-3  # OBA ends with O, and noise is projected


# 4.7.2.3: the circle by oblique projection


@pytest.mark.parametrize("radius", [0.8, torch.linspace(0.6, 1.4, 12).view(3, 4).double()], ids=["r", "r_i"])
def test_the_oblique_circle_takes_the_root_closest_to_its_start(radius):
    start = 0.4 * normal(3, 4).clamp(-1, 1)
    (q,), opt = walk(Circle(radius, projection="oblique"), [start], "X", 0.1, temperature=TAU)
    r = torch.as_tensor(radius, dtype=torch.float64)
    θ, ξ = start, (r**2 - start**2).sqrt()
    for step in range(8):
        g = normal(3, 4, seed=1 + step)
        q.grad.copy_(g)
        opt.step()
        R = drawn(step, 3, 4, 2)
        θ_, ξ_ = θ - 0.1 * g + math.sqrt(0.2 * TAU) * R[..., 0], ξ + math.sqrt(0.2 * TAU) * R[..., 1]
        # 0 = |q̄ − 2λ q_n|² − r² = 4λ² r² − 4λ q̄·q_n + |q̄|² − r²
        b, c = θ_ * θ + ξ_ * ξ, θ_**2 + ξ_**2 - r**2
        roots = [(b + sign * (b**2 - r**2 * c).sqrt()) / (2 * r**2) for sign in (1, -1)]
        ends = [(θ_ - 2 * λ * θ, ξ_ - 2 * λ * ξ) for λ in roots]
        far, near = ((x - θ) ** 2 + (y - ξ) ** 2 for x, y in ends)
        θ, ξ = (torch.where(near <= far, y, x) for x, y in zip(*ends, strict=True))
        close(q, θ)
        close(r * torch.cos(opt.state[q]["point"]), ξ)
    assert opt.violation() < 1e-14


def test_an_oblique_projection_that_does_not_exist_is_the_orthogonal_one_and_counted():
    surface = Circle(1.0, projection="oblique")
    (q,), opt = walk(surface, [torch.tensor([0.0, 0.6])], "X", 1.0)
    q.grad.copy_(torch.tensor([0.5, 5.0]))
    opt.step()  # the first goes by 0.5 along the circle; the second by 5·0.8 = 4, beyond its radius
    close(q, torch.tensor([-0.5, -4.4 / math.hypot(4.4, 0.8)]), atol=1e-6)
    assert surface.fallbacks == 1
    assert "1 projections by polar factor or nearest point" in opt.describe()


# Algorithms 1 and 2 of the ICML paper


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3)], ids=str)
@pytest.mark.parametrize("word", ["X", "OBA", "BAOAB"])
def test_a_fixed_number_of_iterations_is_the_printed_algorithm(word, shape, K):
    (w,), opt = walk(Orthogonal(fixed=K), [normal(*shape)], word, 0.2, friction=GAMMA, temperature=TAU)
    Q = tall(w.detach().clone())
    P, I_s, τ = torch.zeros_like(Q), torch.eye(Q.shape[1], dtype=torch.float64), TAU
    letters = {"X": [("X", 1)], "OBA": [("B", 1), ("A", 1), ("O", 1)]}
    letters["BAOAB"] = [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)]
    worst = 0.0
    for step in range(5):
        w.grad.copy_(normal(*shape, seed=1 + step))
        G, R = tall(w.grad), tall(drawn(step, *shape))
        opt.step()
        for name, share in letters[word]:
            h = 0.2 * (0.5 if word == "BAOAB" and step == 0 and name == "B" else share)
            if name in "XA":
                start = Q
                first = Q - h * G + math.sqrt(2 * τ * h) * R if name == "X" else Q + h * P
                Q = first
                for _ in range(K):
                    Q = Q - 0.5 * start @ (Q.mT @ Q - I_s)
                bar = P + (Q - first) / h
            elif name == "B":
                bar = P - h * G
            else:
                bar = math.exp(-GAMMA * h) * P + math.sqrt(τ * (1 - math.exp(-2 * GAMMA * h))) * R
            if name != "X":
                P = bar - 0.5 * Q @ (bar.mT @ Q + Q.mT @ bar)
        worst = max(worst, float((Q.mT @ Q - I_s).abs().max()))
        close(tall(w.detach()), Q, atol=1e-13)
        if word != "X":
            close(opt.state[w]["momentum"], P, atol=1e-12)
    assert worst > 1e-7  # so that the lines differ from those of a converged projection
    assert opt.violation() == pytest.approx(float((Q.mT @ Q - I_s).abs().max()), rel=1e-9)


def test_many_fixed_iterations_are_the_converged_projection_and_weights_near_the_surface_are_left_alone():
    (w,), opt = walk(Orthogonal(fixed=60), [normal(5, 3)], "OBA", 0.1)
    (v,), other = walk(Orthogonal(), [normal(5, 3)], "OBA", 0.1)
    for step in range(5):
        w.grad, v.grad = (0.5 * normal(5, 3, seed=step) for _ in range(2))
        opt.step()
        other.step()
    close(w, v.detach(), atol=1e-12)
    near = torch.linalg.qr(normal(5, 3))[0] + 1e-3 * normal(5, 3, seed=9)
    (w,), _ = walk(Orthogonal(fixed=2), [near], "X", 0.1)
    assert torch.equal(w, near)


def test_fixed_iterations_that_diverge_are_refused_and_nothing_has_moved():
    (w,), opt = walk(Orthogonal(fixed=9), [normal(5, 3)], "X", 1e4)
    before = w.detach().clone()
    w.grad.copy_(normal(5, 3, seed=1))
    with pytest.raises(SurfaceError, match="9 iterations lead to inf or nan; lower lr"):
        opt.step()
    assert torch.equal(w, before)


# Penalties


def test_the_penalty_of_any_g_and_its_gradient():
    w = normal(4).requires_grad_()
    tether.soft(lambda w: w.square().sum() - 1, 0.3)(w).backward()
    close(w.grad, 0.3 * 4 * (w.detach().square().sum() - 1) * w.detach())  # 2λg∇g, ∇g = 2w
    u, v = normal(2, 3), normal(3, seed=1)
    close(tether.soft(lambda u, v: u @ v - 1, 2.0)(u, v), 2.0 * (u @ v - 1).square().sum())


def test_the_penalty_of_a_module_by_glob_and_of_replicas():
    def excess(w):
        s = w.mT @ w if w.shape[0] >= w.shape[1] else w @ w.mT
        return s - torch.eye(len(s))

    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    close(tether.soft(excess, 0.05, where="*.weight")(net), 0.05 * tether.orthogonal_penalty(net), atol=1e-6)
    together = tether.soft(lambda a, b: b @ a, 1.0, where="*.weight")(net)
    close(together, (net[1].weight @ net[0].weight).square().sum().detach(), atol=1e-5)
    many = tether.Replicas(lambda: nn.Linear(3, 2), 4)
    each = tether.soft(lambda b: b - 1, 2.0, where="bias")(many)
    close(each, 2 * (dict(many.named_parameters())["bias"] - 1).square().sum(1).detach(), atol=1e-5)
    for bad, match in ((lambda: tether.soft(3, 1.0), "is not a function"), (lambda: tether.soft(excess, -1.0), "≥ 0")):
        with pytest.raises((TypeError, ValueError), match=match):
            bad()
    for wrong, kind in ((lambda w: 1.0, "float"), (lambda w: w > 0, "torch.bool")):
        with pytest.raises(TypeError, match=f"g returned {kind}; it must return a tensor of real constraints"):
            tether.soft(wrong, 1.0)(torch.ones(2))
    with pytest.raises(ValueError, match=r"'head\.\*' matches no parameter"):
        tether.soft(excess, 1.0, where="head.*")(net)


def test_the_minimum_with_a_penalty_approaches_the_surface_like_one_over_its_strength():
    # L = −w on w² = 1: the penalised minimum solves 1 = 4λ w (w² − 1), so that g ≈ 1/(4λ)
    for strength in (10.0, 1000.0):
        w = nn.Parameter(torch.ones(1, dtype=torch.float64))
        penalty, opt = tether.soft(lambda w: w.square() - 1, strength), tether.Optimizer([w], lr=0.1 / strength)
        for _ in range(200):
            opt.zero_grad()
            (-w.sum() + penalty(w)).backward()
            opt.step()
        x = w.item()
        assert 4 * strength * x * (x * x - 1) == pytest.approx(1, rel=1e-8)
        assert (x * x - 1) * 4 * strength == pytest.approx(1, rel=0.02)


def test_the_sphere_by_the_general_surface_along_its_end():
    start = nn.functional.normalize(normal(1, 4), dim=1)
    general = walk(Level(lambda w: w.square().sum() - 1, along="end"), [start], "X", 0.1, temperature=TAU)
    special = walk(Sphere(slack=False), [start], "X", 0.1, temperature=TAU)
    for step in range(5):
        for (w,), opt in (general, special):
            w.grad.copy_(normal(1, 4, seed=step))
            opt.step()
    close(general[0][0], special[0][0].detach(), atol=1e-12)
