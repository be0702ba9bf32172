"""The planar data sets: every point obeys the formulas of (3.32) and (3.33)."""

from math import cos, inf, nan, pi, sin, sqrt

import pytest
import torch
from scipy import stats

from tether.data import spiral, trig

both = pytest.mark.parametrize("data", [spiral, trig])


@pytest.mark.parametrize(
    ("scale", "turns", "power"), [(2.0, 2.0, 0.5), (1.0, 2.0, 0.5), (2.0, 4.0, 1.0), (3.0, 1.0, 2.0)]
)
def test_a_spiral_point_lies_where_its_radius_says(scale, turns, power):
    # x = a tᵖ (cos φ, sin φ), φ = 2 b tᵖ π, second arm shifted by π: the radius r = a tᵖ fixes the angle
    points, labels = spiral(200, turns=turns, scale=scale, power=power, noise=0.0)
    for (x, y), label in zip(points.double().tolist(), labels.tolist(), strict=True):
        r = sqrt(x * x + y * y)
        angle = 2 * pi * turns * r / scale + pi * label
        assert (x, y) == pytest.approx((r * cos(angle), r * sin(angle)), abs=3e-5)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_t_is_uniform(power):
    # r = a tᵖ with t ~ U(0, 1)
    points, _ = spiral(5000, scale=2.0, power=power, noise=0.0)
    t = (points.norm(dim=1).double() / 2.0) ** (1 / power)
    assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("scale", "frequency"), [(6.0, 1.0), (2.0, 5.0)])
def test_a_trigonometric_point_lies_on_its_curve(scale, frequency):
    # x1 = a t; x2 = cos(b t π), sin(b t π) for class 1
    points, labels = trig(200, scale=scale, frequency=frequency, noise=0.0)
    for (x1, x2), label in zip(points.double().tolist(), labels.tolist(), strict=True):
        angle = frequency * pi * x1 / scale
        assert x2 == pytest.approx(sin(angle) if label else cos(angle), abs=1e-5)
    t = points[:, 0].double() / scale
    assert stats.kstest(trig(5000, noise=0.0)[0][:, 0].numpy() / 6.0, "uniform").pvalue > 1e-3
    assert t.min() >= 0
    assert t.max() <= 1


def test_spiral_noise_is_added_to_both_coordinates():
    clean, noisy = spiral(20_000, noise=0.0, seed=3)[0], spiral(20_000, noise=0.1, seed=3)[0]
    normals = ((noisy - clean) / 0.1).double()
    assert (normals.mean(0).abs() < 4 / sqrt(20_000)).all()
    assert ((normals.var(0) - 1).abs() < 4 * sqrt(2 / 20_000)).all()
    assert abs((normals[:, 0] * normals[:, 1]).mean()) < 4 / sqrt(20_000)


def test_trig_noise_is_added_to_the_height_only():
    clean, noisy = trig(20_000, noise=0.0, seed=3)[0], trig(20_000, noise=0.1, seed=3)[0]
    normals = ((noisy - clean) / 0.1).double()
    assert not normals[:, 0].any()
    assert abs(normals[:, 1].mean()) < 4 / sqrt(20_000)
    assert abs(normals[:, 1].var() - 1) < 4 * sqrt(2 / 20_000)


@both
@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_shapes_and_classes_by_turns(data, n):
    points, labels = data(n)
    assert points.shape == (n, 2)
    assert points.dtype is torch.float32
    assert labels.dtype is torch.int64
    assert labels.tolist() == [i % 2 for i in range(n)]


@both
def test_the_seed_alone_decides(data):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = data(50, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = data(50, seed=7), data(50, seed=8)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])


@both
@pytest.mark.parametrize("n", [0, -1, 2.5, 10.0, "10", None], ids=repr)
def test_a_bad_number_of_points_is_named(data, n):
    with pytest.raises(ValueError, match=rf"n={n!r} must be a number of points, 1 or more"):
        data(n)


@both
@pytest.mark.parametrize("noise", [-0.1, nan, inf])
def test_bad_noise_is_named(data, noise):
    with pytest.raises(ValueError, match=f"noise={noise} is out of range; noise must be finite and ≥ 0"):
        data(10, noise=noise)
