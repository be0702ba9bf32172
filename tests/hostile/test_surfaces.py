"""Surfaces under numbers that are very large, very small, very many, or none at all."""

import math
import re

import pytest
import torch
from torch import nn

import tether
from tether.surfaces import Circle, Level, Orthogonal, Sphere, SurfaceError


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def walk(surface, start, steps=10, word="OBA", size=0.01, lr=0.1, **fields):
    w = nn.Parameter(start.clone())
    opt = tether.Optimizer([("w", w)], on=surface, lr=lr, word=word, **fields)
    for i in range(steps):
        w.grad = size * normal(*start.shape, seed=i + 1, dtype=start.dtype)
        opt.step()
        yield w.detach(), opt


class ByMaps(Orthogonal):
    """Without the compiled path."""

    def kernel(self, shape, dtype):
        return None


# Sums of many terms


@pytest.mark.parametrize("kind", [Orthogonal, ByMaps])
@pytest.mark.parametrize("word", ["X", "OBA"])
@pytest.mark.parametrize("shape", [(4096, 4), (16384, 4), (4, 4096), (4096, 1), (1024, 16)], ids=str)
def test_tall_matrices_are_orthogonal_to_1e_6(kind, word, shape):
    surface = kind()
    eye = torch.eye(min(shape), dtype=torch.float64)
    for w, opt in walk(surface, normal(*shape), 5, word, size=1e-3, temperature=1e-6):
        q = w.double() if shape[0] >= shape[1] else w.double().T
        off = float((q.T @ q - eye).abs().max())
        assert off <= 1e-6
        assert opt.violation() == pytest.approx(off, abs=1e-9)  # and says what is true
    assert surface.fallbacks == 0


@pytest.mark.parametrize("kind", [Orthogonal, ByMaps])
def test_columns_whose_products_do_not_cancel(kind):
    """Two columns, equal in the first half and opposite in the second: their product first rises to 1/2."""
    r = 16384
    q = torch.ones(r, 2) / math.sqrt(r)
    q[r // 2 :, 1] *= -1
    eye = torch.eye(2, dtype=torch.float64)
    for w, _ in walk(kind(), q, 5, "OBA", size=1e-4):
        assert float((w.double().T @ w.double() - eye).abs().max()) <= 1e-6


@pytest.mark.parametrize("shape", [(16384, 4), (4, 16384)], ids=str)
def test_a_tall_start_is_projected_to_1e_6(shape):
    w = nn.Parameter(normal(*shape))
    tether.Optimizer([("w", w)], on=Orthogonal(), lr=0.1)
    q = w.detach().double() if shape[0] >= shape[1] else w.detach().double().T
    assert float((q.T @ q - torch.eye(4, dtype=torch.float64)).abs().max()) <= 1e-6


# Level


def test_a_level_in_single_precision_holds_from_every_start():
    """|w|² = 9 cannot be met better than to half an ulp of 9, 5e-7: eps·|J||q| = 18 eps, and |w|² itself is rounded."""
    for seed in range(20):
        for w, _ in walk(Level(lambda w: w.square().sum() - 9), normal(20, seed=seed), 2, "BAOAB", temperature=0.1):
            assert abs(float(w.double().square().sum()) - 9) <= (18 + 9) * 2**-23


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_a_level_of_any_scale(scale):
    for w, _ in walk(Level(lambda w: w.square().sum() - scale**2), scale * normal(20), 3, size=0.01 * scale):
        assert float(w.double().norm()) == pytest.approx(scale, rel=5e-7 if scale >= 1 else 1)


def test_a_level_still_refuses_what_is_never_zero():
    w = nn.Parameter(normal(20))
    with pytest.raises(SurfaceError, match="no point with g = 0"):
        tether.Optimizer([("w", w)], on=Level(lambda w: w.square().sum() + 1e-3), lr=0.1)


def test_defaults_of_g_are_not_parameters():
    """Each of the two weights on a sphere of its own, not the second in the place of r."""
    on = Level(lambda w, r=2.0: w.square().sum() - r * r)
    a, b = nn.Parameter(normal(5)), nn.Parameter(normal(5, seed=1))
    tether.Optimizer([("a", a), ("b", b)], on=on, lr=0.1)
    for w in (a, b):
        assert float(w.detach().norm()) == pytest.approx(2, abs=1e-6)
    both = Level(lambda a, b, r=2.0: (a * b).sum() - r)
    assert both.together
    assert not on.together
    assert not Level(lambda w, ξ, r=2.0: w.square().sum() + ξ**2 - r, slack=1).together


# Numbers that are none, or too large for the dtype

SURFACES = {
    "circle": Circle(),
    "sphere": Sphere(),
    "sphere without slack": Sphere(slack=False),
    "orthogonal": Orthogonal(),
    "random": Orthogonal(start="random"),
    "level": Level(lambda w: w.square().sum() - 1),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SURFACES)
def test_a_start_that_is_not_finite_is_refused(name, bad):
    start = normal(4, 3)
    start[1, 2] = bad
    w, other = nn.Parameter(start.clone()), nn.Parameter(normal(4, 3))
    with pytest.raises(SurfaceError, match=r"on 'w': the start holds 1 inf or nan among 12"):
        tether.Optimizer([("other", other), ("w", w)], on=SURFACES[name], lr=0.1)
    assert torch.equal(w.nan_to_num(), start.nan_to_num())
    assert torch.equal(other, normal(4, 3))
    with pytest.raises(SurfaceError, match="holds 1 inf or nan"):
        tether.constrain(torch.optim.SGD([("w", w)], lr=0.1), {"w": SURFACES[name]})


@pytest.mark.parametrize("name", SURFACES)
def test_the_violation_of_nan_is_nan(name):
    θ = torch.full((2, 4, 3), math.nan)
    surface = SURFACES[name].bind([(4, 3)])
    fine = surface.place(normal(2, 4, 3))
    assert math.isnan(float(surface.violation(surface.embed(fine, θ))))
    θ = surface.lower(fine, (4, 3)).clone()
    θ[1, 2, 0] = math.nan  # one is enough
    assert math.isnan(float(surface.violation(surface.embed(fine, θ))))


RADII = [
    (torch.float32, 1e20),
    (torch.float32, 1e-20),
    (torch.float64, 1e160),
    (torch.float64, 1e-160),
    (torch.float16, 1e5),
    (torch.float16, 1e-8),
    (torch.bfloat16, 1e20),
]


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize(("dtype", "radius"), RADII, ids=str)
@pytest.mark.parametrize("kind", [Circle, Sphere, lambda r: Sphere(r, slack=False)], ids=["circle", "sphere", "bare"])
def test_a_radius_that_the_dtype_cannot_hold_is_refused(kind, dtype, radius, tensor):
    w = nn.Parameter(normal(3, 3, dtype=dtype))
    surface = kind(torch.tensor([1.0, radius, 1.0], dtype=torch.float64) if tensor else radius)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        SurfaceError, match=rf"on 'w': the radius {re.escape(f'{radius:g}')} .* {name} .* between \S+ and \S+"
    ):
        tether.Optimizer([("w", w)], on=surface, lr=0.1)
    assert torch.equal(w, normal(3, 3, dtype=dtype))


def test_a_scale_that_the_dtype_cannot_hold_is_refused():
    for dtype, scale in RADII:
        w = nn.Parameter(normal(3, 3, dtype=dtype))
        with pytest.raises(SurfaceError, match=rf"on 'w': the scale {re.escape(f'{scale:g}')}"):
            tether.Optimizer([("w", w)], on=Orthogonal(scale=scale), lr=0.1)


@pytest.mark.parametrize("radius", [1e-18, 1e-4, 1e4, 1e18])
@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("word", ["X", "OBA", "BAOAB"])
def test_the_radii_it_takes_it_holds(radius, slack, word):
    """A step about as long as the radius."""
    surface = Sphere(radius, slack)
    for w, _ in walk(surface, radius * normal(3, 4) / 4, 5, word, size=radius):
        assert w.isfinite().all()
        norms = w.double().norm(dim=1) / radius
        assert norms.max() <= 1 + 1e-6
        assert slack or norms.min() >= 1 - 1e-6


@pytest.mark.parametrize("size", [1e15, 1e20, 1e30, 1e37])
@pytest.mark.parametrize("word", ["X", "OBA", "BAOAB", "L"])
@pytest.mark.parametrize("slack", [True, False])
def test_huge_gradients_leave_rows_on_their_sphere(slack, word, size):
    for w, opt in walk(Sphere(2.0, slack), normal(3, 4), 3, word, size=size):
        assert w.isfinite().all()
        assert opt.violation() <= 1e-5


def test_a_point_that_the_dtype_cannot_hold_is_refused_before_any_other_is_written():
    """The mean of ten numbers is 1e5, more than a float16: they are not to become inf."""
    w, other = (nn.Parameter(torch.ones(10, dtype=torch.float16)) for _ in range(2))
    parts = [tether.Part("other", on=Circle(0.5)), tether.Part("w", on=Level(lambda w: w.mean() - 1e5))]
    with pytest.raises(SurfaceError, match=r"on 'w': the point to start from is out of the range of float16"):
        tether.Optimizer([("other", other), ("w", w)], parts, lr=0.1)
    assert torch.equal(w, torch.ones_like(w))
    assert torch.equal(other, torch.ones_like(w))
