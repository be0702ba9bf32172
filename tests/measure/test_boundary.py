"""Contours, curvature and gradients against circles, ellipses, corners and smoothed ReLU networks in closed form."""

import math

import contourpy
import numpy as np
import pytest
import torch
from scipy.special import ellipe
from torch import nn

import tether
from tether import measure
from tether.measure.contour import contour

SQUARE = (-3, 3, -3, 3)


def circle(radius):
    return lambda p: p.square().sum(1) - radius**2


def perceptron(width=20, seed=0, outputs=1):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, outputs))
    with torch.no_grad():
        net[0].weight.normal_()
        net[0].bias.normal_()
    return net


# Contours


def rotated(points, closed):
    """A curve in a form that does not depend on where it starts and which way it runs, to 9 digits."""
    points = points.round(9)
    if not closed:
        return np.array(min(points.tolist(), points[::-1].tolist()))
    first = np.lexsort(points.T[::-1])[0]
    one, other = np.roll(points, -first, axis=0), np.roll(points[::-1], first + 1, axis=0)
    return np.array(min(one.tolist(), other.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_contours_are_those_of_contourpy(seed):
    """Random fields have many saddles, open and closed curves."""
    x, y = np.linspace(-1, 2, 23), np.linspace(0, 5, 31)
    z = np.random.default_rng(seed).normal(size=(31, 23))
    ours = [rotated(curve.points, curve.closed) for curve in contour(x, y, z, 0.2)]
    lines = contourpy.contour_generator(x, y, z).lines(0.2)
    theirs = []
    for line in lines:
        closed = np.array_equal(line[0], line[-1])
        theirs.append(rotated(line[:-1] if closed else line, closed))
    assert len(ours) > 20
    assert len(ours) == len(theirs)
    key = lambda curve: curve.tolist()  # noqa: E731
    for one, other in zip(sorted(ours, key=key), sorted(theirs, key=key), strict=True):
        np.testing.assert_allclose(one, other, atol=1.1e-9)


def test_a_level_met_exactly_at_corners_of_the_grid_gives_no_point_twice():
    x = np.linspace(-2, 2, 5)
    (curve,) = contour(x, x, np.abs(x)[:, None] + np.abs(x)[None] - 1.0)
    assert curve.closed
    assert len(curve.points) == 4  # the diamond |x| + |y| = 1 has its corners on the grid and its sides between
    assert curve.length == pytest.approx(4 * math.sqrt(2))


def test_a_boundary_has_its_length_and_its_curves():
    two = measure.boundary(lambda p: (p - torch.tensor([1.5, 0.0])).norm(dim=1) * (p + 1.5).norm(dim=1) - 1, SQUARE)
    assert len(two.curves) == 2  # an oval of Cassini in two parts
    assert two.exists
    line = measure.boundary(lambda p: p[:, 0] - 2 * p[:, 1], extent=(-1, 1, -1, 1), grid=50)
    assert line.length == pytest.approx(math.sqrt(5), rel=1e-12)
    assert not line.curves[0].closed


# Curvature by the formula for level sets


def test_the_curvature_of_a_circle_is_one_over_its_radius():
    found = measure.boundary_curvature(circle(2.0), extent=SQUARE, smoothing=0)
    assert f"{found.mean:.6f} {found.std:.6f} {found.max:.6f}" == "0.500000 0.000000 0.500000"
    assert found.length == pytest.approx(4 * math.pi, rel=1e-5)


@pytest.mark.parametrize("smoothing", [None, 0.05, 0.3])
def test_smoothing_a_paraboloid_lifts_it(smoothing):
    """(x² + y²) ∗ Gaussian = x² + y² + 2s², so that the circle's radius is √(r² − 2s²)."""
    found = measure.boundary_curvature(circle(2.0), extent=SQUARE, smoothing=smoothing, grid=300)
    assert found.smoothing == pytest.approx(smoothing or 2 * 6 / 299)
    expected = 1 / math.sqrt(4 - 2 * found.smoothing**2)
    assert found.mean == pytest.approx(expected, rel=1e-4)
    assert found.max == pytest.approx(expected, rel=1e-4)
    assert found.std < 1e-4


def test_an_ellipse_turns_once_and_most_at_its_ends():
    a, b = 2.0, 0.5
    found = measure.boundary_curvature(
        lambda p: (p[:, 0] / a) ** 2 + (p[:, 1] / b) ** 2 - 1, extent=(-3, 3, -1, 1), smoothing=0
    )
    perimeter = 4 * a * ellipe(1 - (b / a) ** 2)
    assert found.length == pytest.approx(perimeter, rel=1e-5)
    assert found.mean == pytest.approx(2 * math.pi / perimeter, rel=1e-4)
    assert found.max == pytest.approx(a / b**2, rel=1e-3)


@pytest.mark.parametrize("smoothing", [0.01, 0.04])
def test_a_right_angle_turns_by_a_quarter_at_every_scale(smoothing):
    """max(x, y) ∗ Gaussian is known, and its level curve has curvature 2/(s √(2π)) on the diagonal."""
    found = measure.boundary_curvature(lambda p: p.max(1).values, extent=(-1, 1, -1, 1), smoothing=smoothing, grid=1000)
    assert found.mean * found.length == pytest.approx(math.pi / 2, rel=1e-3)
    assert found.max == pytest.approx(
        2 / (smoothing * math.sqrt(2 * math.pi)), rel=0.5 * (0.002 / smoothing) ** 2
    )  # between points


def smoothed(net, s):
    """The network under a Gaussian: E[relu(m + σN)] = m Φ(m/σ) + σ φ(m/σ), σ = s |w|, unit by unit."""
    w, b, a, c = (x.detach().double() for x in net.parameters())

    def f(p):
        m, σ = p.double() @ w.T + b, s * w.norm(dim=1)
        φ = torch.exp(-((m / σ) ** 2) / 2) / math.sqrt(2 * math.pi)
        return (m * torch.special.ndtr(m / σ) + σ * φ) @ a.T + c

    return f


@pytest.mark.parametrize(("cells", "tolerance"), [(2, 0.03), (8, 0.003)])
def test_a_relu_network_smoothed_on_the_grid_is_the_network_smoothed_in_closed_form(cells, tolerance):
    net, extent = perceptron(), (-2, 2, -2, 2)
    s = cells * 4 / 399
    found = measure.boundary_curvature(net, extent, smoothing=s, grid=400)
    exact = measure.boundary_curvature(smoothed(net, s), extent, smoothing=0, grid=400)
    assert found.max > 1
    assert found.mean == pytest.approx(exact.mean, rel=tolerance)
    assert found.max == pytest.approx(exact.max, rel=tolerance)
    assert found.length == pytest.approx(exact.length, rel=1e-4)


def test_relu_networks_need_a_scale():
    with pytest.raises(ValueError, match=r"linear in pieces.*smoothing=0\.01"):
        measure.boundary_curvature(perceptron(), (-2, 2, -2, 2), smoothing=0, grid=200)
    straight = measure.boundary_curvature(lambda p: p[:, 0] - p[:, 1], (-2, 2, -2, 2), smoothing=0, grid=50)
    assert straight.mean == straight.max == 0


def test_a_smooth_network_is_measured_by_autograd_as_on_the_grid():
    net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(perceptron()[0].weight)
    exact = measure.boundary_curvature(net, (-2, 2, -2, 2), smoothing=0, grid=400)
    found = measure.boundary_curvature(net, (-2, 2, -2, 2), smoothing=0.02, grid=400)
    assert exact.mean > 0.1
    assert found.mean == pytest.approx(exact.mean, rel=2e-2)


# The contour estimate


def test_the_contour_estimate_is_4_60_on_the_lines_of_matplotlib():
    """As section 4.7.3.3 has it, evaluated literally; open curves, so that the ends are the same."""
    f = lambda p: p[:, 1] - torch.sin(2 * p[:, 0])  # noqa: E731
    found = measure.boundary_curvature(f, extent=SQUARE, smoothing=0, grid=300).contour
    axis = np.linspace(-3, 3, 300)
    x, y = np.meshgrid(axis, axis)
    (line,) = contourpy.contour_generator(x, y, y - np.sin(2 * x)).lines(0.0)
    dx, dy = np.gradient(line[:, 0]), np.gradient(line[:, 1])
    ddx, ddy = np.gradient(dx), np.gradient(dy)
    literal = np.abs(ddx * dy - dx * ddy) / (dx**2 + dy**2) ** 1.5
    assert found.mean == pytest.approx(literal.mean(), rel=1e-6)
    assert found.std == pytest.approx(literal.std(), rel=1e-6)
    assert found.max == pytest.approx(literal.max(), rel=1e-6)


@pytest.mark.parametrize("grid", [300, 1000])
@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
def test_the_contour_estimate_of_circles_is_15_per_cent_too_large_on_every_grid(radius, grid):
    found = measure.boundary_curvature(circle(radius), extent=SQUARE, smoothing=0, grid=grid).contour
    assert found.mean * radius == pytest.approx(1.15, abs=0.04)
    assert found.std * radius == pytest.approx(0.57, abs=0.06)


# What f may be


def test_scores_come_as_one_logit_two_logits_a_probability_or_numpy():
    one = measure.boundary_curvature(circle(2.0), extent=SQUARE, grid=200)
    same = [
        measure.boundary_curvature(lambda p: circle(2.0)(p)[:, None], extent=SQUARE, grid=200),
        measure.boundary_curvature(lambda p: torch.stack([-circle(2.0)(p), 0 * p[:, 0]], 1), extent=SQUARE, grid=200),
        measure.boundary_curvature(lambda p: circle(2.0)(p).numpy(), extent=SQUARE, grid=200),
        measure.boundary_curvature(lambda p: 0.5 + circle(2.0)(p) / 40, extent=SQUARE, grid=200, level=0.5),
    ]
    assert [found.mean for found in same] == pytest.approx([one.mean] * 4, rel=1e-7)
    assert measure.boundary_curvature(circle(2.0), SQUARE, grid=200, chunk=7).mean == pytest.approx(one.mean, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_precisions(dtype):
    net = perceptron().to(dtype)
    single = perceptron()
    single.load_state_dict(net.state_dict())
    found, expected = (measure.boundary_curvature(x, (-2, 2, -2, 2), grid=200) for x in (net, single))
    assert found.mean == pytest.approx(expected.mean, rel=1e-4)
    assert next(net.parameters()).dtype is dtype


def test_a_function_around_a_network_of_single_precision():
    net = perceptron()
    wrapped = measure.boundary_curvature(lambda p: net(p), (-2, 2, -2, 2), grid=200)
    assert wrapped.mean == pytest.approx(measure.boundary_curvature(net, (-2, 2, -2, 2), grid=200).mean, rel=1e-6)


def test_replicas_are_measured_one_by_one():
    ens = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), n=3)
    found = measure.boundary_curvature(ens, (-4, 4, -4, 4), grid=100)
    alone = [measure.boundary_curvature(ens[i], (-4, 4, -4, 4), grid=100) for i in range(3)]
    assert [x.mean for x in found] == pytest.approx([x.mean for x in alone], nan_ok=True)
    assert len(measure.prediction_gradient(ens, (-1, 1, -1, 1), points=10)) == 3


def test_a_constant_predictor_has_no_boundary_and_says_so():
    found = measure.boundary_curvature(lambda p: torch.ones(len(p)), SQUARE, grid=50)
    assert not found.exists
    assert all(map(math.isnan, (found.mean, found.std, found.max, found.contour.mean)))
    assert str(found).startswith("no boundary: the score stays on one side of 0")
    assert measure.boundary_curvature(lambda p: torch.ones(len(p)), SQUARE, grid=50, smoothing=0).exists is False


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure.boundary(circle(1), (1, -1, 0, 1)), r"extent=\(1, -1, 0, 1\) must be \(x0, x1, y0, y1\)"),
        (lambda: measure.boundary(circle(1), SQUARE, grid=1), "grid=1 must be an integer, 2 or more"),
        (lambda: measure.boundary(lambda p: p.new_zeros(len(p), 3), SQUARE), "two logits, for each point"),
        (lambda: measure.boundary(lambda p: p[:, 0] / 0, SQUARE), "not finite at"),
        (lambda: measure.boundary_curvature(circle(1), SQUARE, smoothing=1e-3), "at least a cell of the grid, 0.00601"),
        (lambda: measure.boundary_curvature(circle(1), SQUARE, smoothing=-1.0), "smoothing=-1.0 must be 0 or at least"),
        (
            lambda: measure.boundary_curvature(lambda p: circle(1)(p.detach()), SQUARE, smoothing=0, grid=50),
            "by autograd, but f is not differentiable",
        ),
        (lambda: measure.prediction_gradient(circle(1)), "either extent"),
        (lambda: measure.prediction_gradient(circle(1), (1, 2, 1, 2)), "do not cross"),
        (lambda: measure.prediction_gradient(circle(1), SQUARE, logits=False), "no probabilities"),
        (lambda: measure.prediction_gradient(circle(1), lines={"a": ([0, 0], [0, 0])}), "from one input to another"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
    with pytest.raises(TypeError, match="f must be a model or a function"):
        measure.boundary(3, SQUARE)


# The gradient of the prediction


def test_the_gradient_along_lines_is_that_of_the_logistic_function():
    """σ' = σ(1 − σ) times the slope of the logit; central differences are off by h²/6 of the third derivative."""
    found = measure.prediction_gradient(lambda p: 6 * p[:, 0] - 3 * p[:, 1] ** 2 + 1, extent=(-1, 1, -2, 2))
    x, y = found["y = 0"], found["x = 0"]
    σ = 1 / (1 + np.exp(-6 * x.positions - 1))
    np.testing.assert_allclose(x.predictions, σ, rtol=1e-12)
    np.testing.assert_allclose(x.gradients, 6 * σ * (1 - σ), atol=1e-4)
    assert (x.positions[0], x.positions[-1], y.positions[0], y.positions[-1]) == (-1, 1, -2, 2)
    σ = 1 / (1 + np.exp(3 * y.positions**2 - 1))
    np.testing.assert_allclose(y.gradients, -6 * y.positions * σ * (1 - σ), atol=1e-4)
    assert found.max == pytest.approx(1.5, abs=1e-4)


def test_lines_between_images_and_probabilities_of_both_classes():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    found = measure.prediction_gradient(net, lines={"a to b": (a, b)}, points=5)["a to b"]
    with torch.no_grad():
        ends = net(torch.stack([a, b])).softmax(1)[:, 1]
    np.testing.assert_allclose(found.predictions[[0, -1]], ends, rtol=1e-5)
    assert found.positions[-1] == pytest.approx(float((a - b).norm()), rel=1e-6)
    sure = nn.Sequential(net, nn.Softmax(1))
    same = measure.prediction_gradient(sure, lines={"a to b": (a, b)}, points=5, logits=False)["a to b"]
    np.testing.assert_allclose(same.predictions, found.predictions, rtol=1e-5)


def test_results_print_as_one_line_and_draw_themselves():
    plt = pytest.importorskip("matplotlib.pyplot")
    data = tether.data.spiral(20)
    curved = measure.boundary_curvature(circle(2.0), SQUARE, grid=100)
    assert str(curved).startswith("curvature: mean 0.5018, std ")
    assert str(curved).endswith(", max 0.5018 over a length of 12.52, smoothed over 0.121")
    for found, options in (
        (curved, {"data": data}),
        (curved.boundary, {"data": data}),
        (measure.prediction_gradient(circle(2.0), SQUARE), {}),
    ):
        assert "\n" not in str(found)
        ax = plt.subplots()[1]
        assert found.plot(ax, **options) is ax
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert found.plot() is not ax
    plt.close("all")
