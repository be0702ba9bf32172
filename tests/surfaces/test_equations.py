"""One letter after the other against the printed equations of 4.7.2, evaluated literally, noise included.

The noise of a step is what `noise.reference` names: as many normals as the surrounding space has dimensions, or on the
circle, where only one direction is along it, one for each weight and momentum.
"""

import math

import pytest
import torch
from scipy.optimize import fsolve
from walks import normal, stiefel, tall, walk

from tether import native
from tether.noise import reference
from tether.surfaces import Circle, Level, Orthogonal, Sphere

H, GAMMA, TAU = 0.13, 0.7, 0.4
# how a word runs on one gradient: letters with durations in units of h
PROGRAMS = {
    "X": [("X", 1)],
    "OBA": [("B", 1), ("A", 1), ("O", 1)],
    "ABO": [("B", 1), ("O", 1), ("A", 1)],
    "BAOAB": [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)],
}
words = pytest.mark.parametrize("word", PROGRAMS)
temperatures = pytest.mark.parametrize("τ", [0.0, TAU])


@pytest.fixture(params=["kernel", "no compiler"])
def path(request, monkeypatch):
    if request.param == "no compiler":
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)


def drawn(step, *shape, name="q0"):
    return reference(math.prod(shape), 0, step, 0, name, torch.float64).view(shape)


def program(word, step):
    first = [("B", 0.5)] if word == "BAOAB" and step == 0 else []  # the very first kick is a half kick
    return [(name, H * share) for name, share in first + PROGRAMS[word][len(first) :]]


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=atol)


# 4.7.2.3 and 4.7.2.4: the circle, in its four variables


@words
@temperatures
@pytest.mark.parametrize("radius", [0.8, torch.linspace(0.6, 1.4, 12).view(3, 4).double()], ids=["r", "r_i"])
@pytest.mark.usefixtures("path")
def test_circle(word, τ, radius):
    start = 0.4 * normal(3, 4).clamp(-1, 1)
    (q,), opt = walk(Circle(radius), [start], word, H, friction=GAMMA, temperature=τ)
    r = torch.as_tensor(radius, dtype=torch.float64)
    θ, ξ = start, (r**2 - start**2).sqrt()
    pθ, pξ = torch.zeros_like(θ), torch.zeros_like(θ)
    for step in range(6):
        g = normal(3, 4, seed=1 + step)
        q.grad.copy_(g)
        opt.step()
        for name, h in program(word, step):
            if name == "X":  # (4.47)
                R = drawn(step, 3, 4, 2)
                θ_, ξ_ = θ - h * g + math.sqrt(2 * τ * h) * R[..., 0], ξ + math.sqrt(2 * τ * h) * R[..., 1]
                α = torch.atan2(ξ_, θ_)  # errata 3
                θ, ξ = r * torch.cos(α), r * torch.sin(α)
            elif name == "A":
                ω = (ξ * pθ - θ * pξ) / r**2
                c, s = torch.cos(ω * h), torch.sin(ω * h)
                θ, ξ, pθ, pξ = c * θ + s * ξ, -s * θ + c * ξ, ω * (-s * θ + c * ξ), -ω * (c * θ + s * ξ)
            elif name == "B":
                pθ, pξ = pθ - h * (1 - θ**2 / r**2) * g, pξ + h * θ * ξ / r**2 * g
            else:
                # any pair (R^c, R^ξ) with the one normal as its part along the circle (ξ, −θ)/r: Π takes the rest away
                along, across = drawn(step, 3, 4), normal(3, 4, seed=50 + step)
                Rθ, Rξ = (ξ * along + θ * across) / r, (-θ * along + ξ * across) / r
                a, b = math.exp(-GAMMA * h), math.sqrt(τ * (1 - math.exp(-2 * GAMMA * h)))
                pθ_, pξ_ = a * pθ + b * Rθ, a * pξ + b * Rξ
                pθ = (1 - θ**2 / r**2) * pθ_ - θ * ξ / r**2 * pξ_
                pξ = -θ * ξ / r**2 * pθ_ + (1 - ξ**2 / r**2) * pξ_
        angle = opt.state[q]["point"]
        close(q, θ)
        close(r * torch.cos(angle), ξ)
        if word != "X":
            p = opt.state[q]["momentum"]
            close(p * torch.cos(angle), pθ)
            close(-p * torch.sin(angle), pξ)


def test_the_quadrant_is_kept():
    # errata 3: with arctan(ξ/θ) as printed every weight turns positive
    (q,), opt = walk(Circle(1.0), [torch.tensor([-0.5, 0.5])], "X", 0.1)
    q.grad.copy_(torch.tensor([0.1, -0.1]))
    opt.step()
    assert q[0] < -0.5
    assert q[1] > 0.5


# The sphere: great circles, Π = I − qqᵀ/r²


@words
@temperatures
@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("radius", [0.8, torch.tensor([0.7, 0.9, 1.5]).double()], ids=["r", "r_i"])
@pytest.mark.usefixtures("path")
def test_sphere(word, τ, slack, radius):
    start = 0.15 * normal(3, 2, 2)
    (w,), opt = walk(Sphere(radius, slack=slack), [start], word, H, friction=GAMMA, temperature=τ)
    r = torch.as_tensor(radius, dtype=torch.float64).view(-1, 1)
    q = start.flatten(1)
    norm = q.norm(dim=1, keepdim=True)
    q = torch.cat((q, (r**2 - norm**2).sqrt()), 1) if slack else r * q / norm
    p = torch.zeros_like(q)

    def along(v):
        return v - q * (q * v).sum(1, keepdim=True) / r**2

    for step in range(6):
        w.grad.copy_(normal(3, 2, 2, seed=1 + step))
        opt.step()
        g = torch.zeros_like(q)
        g[:, :4] = normal(3, 2, 2, seed=1 + step).flatten(1)
        R = drawn(step, *q.shape)
        for name, h in program(word, step):
            if name == "X":
                q = q - h * g + math.sqrt(2 * τ * h) * R
                q = r * q / q.norm(dim=1, keepdim=True)
            elif name == "A":
                speed = p.norm(dim=1, keepdim=True)
                a = speed * h / r
                unit = torch.where(speed > 0, p / speed, p)
                q, p = torch.cos(a) * q + r * torch.sin(a) * unit, torch.cos(a) * p - torch.sin(a) * speed * q / r
            elif name == "B":
                p = along(p - h * g)
            else:
                p = along(math.exp(-GAMMA * h) * p + math.sqrt(τ * (1 - math.exp(-2 * GAMMA * h))) * R)
        close(w.flatten(1), q[:, :4])
        if slack:
            close(opt.state[w]["point"], q)
        if word != "X":
            close(opt.state[w]["momentum"], p)


# 4.7.2.5 and 4.7.2.6: orthogonality


@words
@temperatures
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (3, 3), (4, 2, 3)], ids=str)
@pytest.mark.parametrize("force", [0.5, 0.02, 1e-4])  # steps of square matrices have a closed form up to some length
def test_orthogonal(path, word, τ, shape, force):
    surface, τ = Orthogonal(iterations=200), 0.4 * τ * force**2
    (w,), opt = walk(surface, [normal(*shape)], word, H, friction=GAMMA, temperature=τ)
    Q = tall(w.detach().clone())
    P, one = torch.zeros_like(Q), torch.eye(Q.shape[1], dtype=torch.float64)

    def onto(bar, Qn, K=200):  # (4.55)
        for _ in range(K):
            bar = bar - Qn @ (0.5 * (bar.mT @ bar - one))
        return bar

    def along(Q, V):
        return V - 0.5 * Q @ (V.mT @ Q + Q.mT @ V)

    for step in range(5):
        w.grad.copy_(force * normal(*shape, seed=1 + step))
        G, R = tall(w.grad), tall(drawn(step, *shape))
        opt.step()
        for name, h in program(word, step):
            if name == "X":  # (4.53)
                Q = onto(Q - h * G + math.sqrt(2 * τ * h) * R, Q)
            elif name == "A":  # (4.57)
                bar = Q + h * P
                moved = onto(bar, Q)
                P = along(moved, P + (moved - bar) / h)
                Q = moved
            elif name == "B":
                P = along(Q, P - h * G)
            else:
                P = along(Q, math.exp(-GAMMA * h) * P + math.sqrt(τ * (1 - math.exp(-2 * GAMMA * h))) * R)
        assert surface.fallbacks == 0
        close(tall(w.detach()), Q, atol=1e-11)
        if word != "X":
            close(opt.state[w]["momentum"], P, atol=1e-11)


# 4.7.2.1 and 4.7.2.2: any g; here one with a slack variable and two equations


def curve(w, ξ):
    return torch.stack((w.square().sum() + ξ[0] ** 2 - 1, w[0] * w[1] - 0.1 * w[2] - 0.2 * ξ[0]))


def curve_jacobian(q):
    """∇ᵀg by hand."""
    x, y, z, ξ = q.tolist()
    return torch.tensor([[2 * x, 2 * y, 2 * z, 2 * ξ], [y, x, -0.1, -0.2]], dtype=torch.float64)


def curve_projector(q):
    """(4.43) with errata 5, from the partial Jacobians and H."""
    J = curve_jacobian(q)
    gθ, gξ = J[:, :3], J[:, 3:]
    inverse = torch.linalg.inv(gθ @ gθ.mT + gξ @ gξ.mT)
    top = torch.cat((gθ.mT @ inverse @ gθ, gθ.mT @ inverse @ gξ), 1)
    bottom = torch.cat((gξ.mT @ inverse @ gθ, gξ.mT @ inverse @ gξ), 1)
    return torch.eye(4, dtype=torch.float64) - torch.cat((top, bottom), 0)


def curve_onto(bar, start):
    """q̄ − ∇g(q_n)λ with g = 0, (4.41), by another solver."""
    J = curve_jacobian(start)

    def residual(λ):
        q = bar - J.mT @ torch.from_numpy(λ)
        return curve(q[:3], q[3:]).numpy()

    return bar - J.mT @ torch.from_numpy(fsolve(residual, [0.0, 0.0], xtol=1e-14))


@words
@temperatures
@pytest.mark.filterwarnings("ignore:The iteration is not making good progress", "ignore:xtol=")  # it is exact by then
def test_level(word, τ):
    start = torch.tensor([0.5, 0.4, -0.3], dtype=torch.float64)
    (w,), opt = walk(Level(curve, slack=1), [start], word, 0.5 * H, friction=GAMMA, temperature=0.1 * τ)
    opt.step()  # makes the state that the equations start from
    q = opt.state[w]["point"].clone()
    p = opt.state[w]["momentum"].clone() if word != "X" else torch.zeros_like(q)
    for step in range(1, 5):
        g = torch.zeros(4, dtype=torch.float64)
        g[:3] = normal(3, seed=1 + step)
        w.grad.copy_(g[:3])
        R = drawn(step, 4)
        opt.step()
        for name, h in program(word, step):
            h, t = 0.5 * h, 0.1 * τ
            if name == "X":
                q = curve_onto(q - h * g + math.sqrt(2 * t * h) * R, q)
            elif name == "A":
                bar = q + h * p
                moved = curve_onto(bar, q)
                p = curve_projector(moved) @ (p + (moved - bar) / h)
                q = moved
            elif name == "B":  # (4.44)
                p = curve_projector(q) @ (p - h * g)
            else:  # (4.45)
                p = curve_projector(q) @ (math.exp(-GAMMA * h) * p + math.sqrt(t * (1 - math.exp(-2 * GAMMA * h))) * R)
        close(w, q[:3], atol=1e-10)
        close(opt.state[w]["point"], q, atol=1e-10)
        if word != "X":
            close(opt.state[w]["momentum"], p, atol=1e-9)


def test_the_projections_agree_with_that_of_the_general_equation():
    Q, V = torch.linalg.qr(normal(1, 4, 2))[0], normal(1, 4, 2, seed=1)
    general = Level(stiefel).bind([(4, 2)]).tangent(Q.flatten(1), V.flatten(1)).view(1, 4, 2)
    close(Orthogonal().tangent(Q, V), general)
    q = torch.nn.functional.normalize(normal(1, 1, 5), dim=-1)
    v = normal(1, 1, 5, seed=1)
    general = Level(lambda w: w.square().sum() - 1).bind([(5,)]).tangent(q[0], v[0])
    close(Sphere(slack=False).tangent(q, v)[0], general)


# L: neighbouring steps share their noise


@pytest.mark.parametrize("surface", [Circle(1e6), Sphere(1e6)], ids=str)
@pytest.mark.usefixtures("path")
def test_the_limit_method_on_a_surface_so_large_that_it_is_flat(surface):
    # (2.56): θ − h g + √(2τh) (R_n + R_{n−1})/2, with R_{−1} = 0 at rest
    (w,), opt = walk(surface, [torch.zeros(2, 3, dtype=torch.float64)], "L", H, temperature=TAU)
    θ, last = torch.zeros(2, 3, dtype=torch.float64), 0.0
    for step in range(4):
        g = normal(2, 3, seed=step)
        w.grad.copy_(g)
        opt.step()
        R = drawn(step, 2, 3) if isinstance(surface, Circle) else drawn(step, 2, 4)[:, :3]
        θ = θ - H * g + math.sqrt(2 * TAU * H) * (R + last) / 2
        last = R
        close(w, θ, atol=1e-6)
