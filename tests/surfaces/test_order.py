"""Orders of accuracy on a surface, without sampling, and the reversibility of RATTLE."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import iv
from walks import normal, stiefel, walk

from tether.surfaces import Circle, Level, Orthogonal, SpectralBall, Sphere

KAPPA = 1.5


def cold_step(word, h, angle, p, friction):
    """A step of the real optimizer at τ = 0 on the unit circle with L = −κθ, from given angles and momenta."""
    (q,), opt = walk(Circle(1.0), [torch.zeros(angle.size, dtype=torch.float64)], word, h, friction=friction)
    opt.step()  # makes the state, and a step before of the same size
    state = opt.state[q]
    with torch.no_grad():
        q.copy_(torch.from_numpy(np.sin(angle.ravel())))
    saved = opt.state_dict()
    saved["state"][0] = {"point": torch.from_numpy(angle.ravel()), "momentum": torch.from_numpy(p.ravel())}
    opt.load_state_dict(saved)
    q.grad.fill_(-KAPPA)
    opt.step()
    state = opt.state[q]
    return state["point"].numpy().reshape(angle.shape), state["momentum"].numpy().reshape(p.shape)


def mean_sine(word, h, friction=1.0, waves=12, degree=14):
    """E sin q in the law that B A O A leaves invariant, at τ = 1.

    The law is sought as exp(κ sin q − p²/2) Σ c φ with φ products of Fourier modes in q and Hermite polynomials in p.
    The normals come in last, by O and the drift that follows it: p = p₀ + s R and q = q₀ + d R.
    """
    angle = 2 * np.pi * (np.arange(4 * waves) + 0.5) / (4 * waves) - np.pi
    nodes_p, weights_p = hermegauss(2 * degree)
    nodes_r, weights_r = hermegauss(20)
    q, p = np.meshgrid(angle, nodes_p, indexing="ij")
    q0, p0 = cold_step(word, h, q, p, friction)
    s = math.sqrt(-math.expm1(-2 * friction * h))
    d = h / 2 * s

    def fourier(x):
        modes = [np.ones_like(x)]
        for k in range(1, waves + 1):
            modes += [np.cos(k * x), np.sin(k * x)]
        return np.stack(modes, -1)

    def hermite(x):
        values = [np.ones_like(x), x]
        for n in range(1, degree - 1):
            values.append((x * values[-1] - math.sqrt(n) * values[-2]) / math.sqrt(n + 1))
        return np.stack(values, -1)

    after = 0.0
    for r, w in zip(nodes_r, weights_r / weights_r.sum(), strict=True):
        after = after + w * np.einsum("ija,ijb->ijab", fourier(q0 + d * r), hermite(p0 + s * r))
    before = np.einsum("ija,ijb->ijab", fourier(q), hermite(p))
    size = before.shape[2] * before.shape[3]
    after, before = after.reshape(*q.shape, size), before.reshape(*q.shape, size)
    weights = np.exp(KAPPA * np.sin(angle))[:, None] * weights_p
    balance = np.einsum("ijb,ij,ija->ba", after - before, weights, before, optimize=True)
    mass = np.einsum("ij,ija->a", weights, before)
    # one row is redundant, since the constant is balanced by itself: the total mass takes its place
    balance[0] = mass
    c = np.linalg.lstsq(balance, np.eye(size)[0], rcond=None)[0]
    return float(np.einsum("ij,ij,ija,a", np.sin(q), weights, before, c, optimize=True))


def test_geodesic_baoab_is_second_order_on_the_circle():
    exact = iv(1, KAPPA) / iv(0, KAPPA)
    errors = [mean_sine("BAOAB", h) - exact for h in (0.4, 0.2, 0.1)]
    ratios = [errors[0] / errors[1], errors[1] / errors[2]]
    assert ratios == pytest.approx([4.0, 4.0], rel=0.05)
    assert abs(errors[0]) < 0.01


def test_the_sphere_moves_its_chains_as_the_circle_does():
    # one weight and its slack are a circle: the same order follows
    start, gradient = torch.tensor([[0.3], [-0.6]], dtype=torch.float64), torch.tensor([[1.0], [-2.0]])
    for word in ("X", "L", "OBA", "ABO", "BAOAB"):
        (a,), circle = walk(Circle(0.8), [start], word, 0.1)
        (b,), sphere = walk(Sphere(0.8), [start], word, 0.1)
        for _ in range(30):
            a.grad.copy_(gradient)
            b.grad.copy_(gradient)
            circle.step()
            sphere.step()
            torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-12)


def on_surface(name):
    if name == "orthogonal, tall":
        surface, q = Orthogonal(), torch.linalg.qr(normal(3, 6, 4))[0]
    elif name == "orthogonal, square":
        surface, q = Orthogonal(), torch.linalg.qr(normal(3, 4, 4))[0]
    elif name == "orthogonal, scaled":
        surface, q = Orthogonal(scale=2.0), 2 * torch.linalg.qr(normal(3, 5, 3))[0]
    elif name == "spectral ball":
        surface = SpectralBall(2.0)
        q = surface.place(0.7 * normal(3, 5, 3))
    elif name == "level":
        surface, q = Level(stiefel).bind([(4, 2)]), torch.linalg.qr(normal(3, 4, 2))[0].flatten(1)
    elif name == "level, torus":
        surface = Level(lambda w: ((w[0] ** 2 + w[1] ** 2).sqrt() - 2) ** 2 + w[2] ** 2 - 1).bind([(3,)])
        q = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    elif name == "sphere":
        surface, q = Sphere(1.0), torch.nn.functional.normalize(normal(3, 5, 4), dim=-1)
    elif name == "sphere, whole":
        surface, q = Sphere(per="tensor"), torch.nn.functional.normalize(normal(3, 20), dim=-1)
    elif name == "sphere, own norm":
        surface = Sphere(None)
        q = surface.place(normal(3, 5, 4))
    else:
        surface, q = Circle(0.5), normal(3, 5)
        return surface, q, normal(3, 5, seed=1)
    return surface, q, surface.tangent(q, normal(*q.shape, seed=1))


WHOLE = ["sphere, whole", "sphere, own norm"]
SURFACES = [
    "circle",
    "sphere",
    *WHOLE,
    "orthogonal, tall",
    "orthogonal, square",
    "orthogonal, scaled",
    "spectral ball",
    "level",
    "level, torus",
]


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("h", [0.01, 0.1])
def test_the_drift_is_reversible(name, h):
    surface, q, p = on_surface(name)
    x, v = q, p
    for _ in range(20):
        x, v = surface.drift(x, v, h)
    assert (x - q).abs().max() > 0.1
    v = -v
    for _ in range(20):
        x, v = surface.drift(x, v, h)
    assert (x - q).abs().max() <= 1e-10
    assert (v + p).abs().max() <= 1e-10
    assert getattr(surface, "fallbacks", 0) == 0


@pytest.mark.parametrize("name", SURFACES)
def test_the_drift_is_second_order_and_keeps_the_speed(name):
    # against the same time in 64 times as many steps; geodesics have constant speed
    surface, q, p = on_surface(name)

    def after(steps):
        x, v = q, p
        for _ in range(steps):
            x, v = surface.drift(x, v, 0.4 / steps)
        return x, v

    (fine, v), (middle, _), (coarse, _) = after(64), after(8), after(4)
    errors = (coarse - fine).norm().item(), (middle - fine).norm().item()
    if name in ("circle", "sphere", *WHOLE):
        assert max(errors) <= 1e-12  # exact
    else:
        assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.15)
    assert v.norm().item() == pytest.approx(p.norm().item(), rel=1e-3)
