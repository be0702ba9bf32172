"""What the words sample on a surface: closed forms, in standard errors of independent chains."""

import math

import numpy as np
import pytest
import torch
from scipy.special import iv
from scipy.stats import kstest
from walks import errors_of, haar, matrix_langevin_mean, run, stiefel, walk

from tether.surfaces import Circle, Level, Orthogonal, Sphere

# word: step size, time to forget the start and reach the target; X, OBA are first order and need short steps
TIMES = {"X": (0.01, 6.0), "L": (0.1, 6.0), "BAOAB": (0.25, 25.0), "OBA": (0.02, 15.0)}
words = pytest.mark.parametrize("word", TIMES)
STANDARD_ERRORS = 4.0


def settle(opt, word, before=None):
    h, time = TIMES[word]
    run(opt, round(time / h), before)


@words
@pytest.mark.parametrize("radius", [1.0, 0.5])
def test_no_force_is_uniform_on_the_circle(word, radius):
    h, _ = TIMES[word]
    τ = radius**2  # so that an angle moves as it does on the unit circle
    (q,), opt = walk(Circle(radius), [torch.full((20_000,), 0.4 * radius)], word, h, temperature=τ)
    settle(opt, word)
    angle = torch.atan2(q.detach(), radius * torch.cos(opt.state[q]["point"]))
    assert kstest(angle.numpy() / (2 * math.pi) + 0.5, "uniform").pvalue > 1e-3
    assert abs(errors_of(q.detach() ** 2, radius**2 / 2)) < STANDARD_ERRORS
    assert abs(errors_of(q.detach() ** 4, 3 * radius**4 / 8)) < STANDARD_ERRORS


@words
@pytest.mark.parametrize("radius", [1.0, 0.5])
def test_a_linear_force_is_von_mises_on_the_circle(word, radius):
    # L = −f θ at temperature τ: density exp(κ cos φ) with κ = f r/τ, mean cosine I₁(κ)/I₀(κ)
    h, _ = TIMES[word]
    κ, τ = 1.5, radius**2
    (q,), opt = walk(Circle(radius), [torch.zeros(20_000)], word, h, temperature=τ)
    q.grad.fill_(-κ * τ / radius)
    settle(opt, word)
    cosine = q.detach() / radius
    assert abs(errors_of(cosine, iv(1, κ) / iv(0, κ))) < STANDARD_ERRORS
    assert abs(errors_of(2 * cosine**2 - 1, iv(2, κ) / iv(0, κ))) < STANDARD_ERRORS


# with slack 2 columns make an S² in R³, without 3 do
SPHERES = {"with slack": (Sphere(0.8), 2), "without slack": (Sphere(0.8, slack=False), 3)}


@words
@pytest.mark.parametrize("kind", SPHERES)
def test_no_force_is_uniform_on_the_sphere(word, kind):
    surface, columns = SPHERES[kind]
    h, _ = TIMES[word]
    (q,), opt = walk(surface, [torch.full((10_000, columns), 0.3)], word, h, temperature=0.64)
    settle(opt, word)
    x = q.detach() / 0.8
    assert kstest(x[:, 0].numpy(), "uniform", args=(-1, 2)).pvalue > 1e-3  # Archimedes
    assert abs(errors_of(x, 0.0)).max() < STANDARD_ERRORS
    assert abs(errors_of(x**2, 1 / 3)).max() < STANDARD_ERRORS
    assert abs(errors_of(x**4, 1 / 5)).max() < STANDARD_ERRORS
    assert abs(errors_of(x[:, 0] * x[:, 1], 0.0)) < STANDARD_ERRORS
    assert abs(errors_of(x[:, 0] ** 2 * x[:, 1] ** 2, 1 / 15)) < STANDARD_ERRORS


@words
@pytest.mark.parametrize("kind", SPHERES)
def test_a_linear_force_is_von_mises_fisher_on_the_sphere(word, kind):
    # density exp(κ x) on S² ⊂ R³: E x = coth κ − 1/κ, E x² = 1 − 2 E x/κ
    surface, columns = SPHERES[kind]
    h, _ = TIMES[word]
    κ, τ = 1.5, 0.64
    (q,), opt = walk(surface, [torch.full((10_000, columns), 0.1)], word, h, temperature=τ)
    q.grad[:, 1] = -κ * τ / 0.8
    settle(opt, word)
    x = q.detach()[:, 1] / 0.8
    mean = 1 / math.tanh(κ) - 1 / κ
    assert abs(errors_of(x, mean)) < STANDARD_ERRORS
    assert abs(errors_of(x**2, 1 - 2 * mean / κ)) < STANDARD_ERRORS
    assert abs(errors_of(q.detach()[:, 0], 0.0)) < STANDARD_ERRORS


def test_von_mises_fisher_in_higher_dimension():
    # five weights and their slack: S⁵ ⊂ R⁶, E x = I₃(κ)/I₂(κ)
    κ = 3.0
    (q,), opt = walk(Sphere(1.0), [torch.full((5000, 5), 0.1)], "BAOAB", 0.25, temperature=1.0)
    q.grad[:, 0] = -κ
    run(opt, 100)
    assert abs(errors_of(q.detach()[:, 0], iv(3, κ) / iv(2, κ))) < STANDARD_ERRORS


# Stiefel: every parameter is a chain; half of them feel no force, half the force F. Time averages of each chain.

FORCE = np.array([[1.5, 0.0], [0.0, -0.7], [0.4, 0.0]])


def stiefel_averages(surface, word, h, warm, steps, chains, every=1):
    """Moments of free chains and means of forced ones, averaged over the time of each chain."""
    starts = [torch.from_numpy(q) for q in haar(chains, 3, 2, seed=3)]
    start = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double()
    starts = [start if i % 2 else q for i, q in enumerate(starts)]
    params, opt = walk(surface, [q.float() for q in starts], word, h, temperature=1.0)
    for q in params[chains // 2 :]:
        q.grad.copy_(torch.from_numpy(-FORCE))
    run(opt, warm)
    sums = 0.0
    for step in range(steps):
        opt.step()
        if step % every == 0:
            q = torch.stack([param.detach() for param in params]).double()
            mixed = (q[:, 0, 0] * q[:, 0, 1] * q[:, 1, 0] * q[:, 1, 1]).view(-1, 1)
            same_row, same_column = q[:, :, :1] ** 2 * q[:, :, 1:] ** 2, q[:, :1] ** 2 * q[:, 1:2] ** 2
            moments = [q, q**2, q**3, q**4, same_row, same_column, mixed]
            sums = sums + torch.cat([m.flatten(1) for m in moments], 1)
    averages = (sums / len(range(0, steps, every))).numpy()
    return averages[: chains // 2], averages[chains // 2 :]


# E Q_ij² = 1/r, E Q_ij⁴ = 3/(r(r+2)), E Q_ij²Q_kj² = 1/(r(r+2)) in a column; of two columns
# E Q_i1²Q_i2² = 1/(r(r+2)) and E Q_11Q_12Q_21Q_22 = −1/((r−1)r(r+2)), at r = 3
HAAR = np.array([0.0] * 6 + [1 / 3] * 6 + [0.0] * 6 + [1 / 5] * 6 + [1 / 15] * 3 + [1 / 15] * 2 + [-1 / 30])


def test_the_expected_moments_agree_with_an_independent_sampler():
    q = haar(200_000, 3, 2)
    mixed = (q[:, 0, 0] * q[:, 0, 1] * q[:, 1, 0] * q[:, 1, 1]).reshape(-1, 1)
    parts = [q, q**2, q**3, q**4, q[:, :, :1] ** 2 * q[:, :, 1:] ** 2, q[:, :1] ** 2 * q[:, 1:2] ** 2, mixed]
    moments = np.concatenate([m.reshape(len(q), -1) for m in parts], 1)
    assert abs(errors_of(moments, HAAR)).max() < STANDARD_ERRORS
    weight = np.exp((q * FORCE).sum((1, 2)))
    mean = (q * weight[:, None, None]).mean(0) / weight.mean()
    np.testing.assert_allclose(mean, matrix_langevin_mean(FORCE), atol=0.01)


STIEFEL = {"X": (0.02, 100, 300), "L": (0.02, 100, 300), "BAOAB": (0.25, 30, 150), "OBA": (0.05, 100, 300)}


@pytest.mark.parametrize("word", STIEFEL)
def test_stiefel_is_haar_without_a_force_and_matrix_langevin_with_one(word):
    free, forced = stiefel_averages(Orthogonal(), word, *STIEFEL[word], chains=400, every=3)
    assert abs(errors_of(free, HAAR)).max() < STANDARD_ERRORS
    assert abs(errors_of(forced[:, :6], matrix_langevin_mean(FORCE).ravel())).max() < STANDARD_ERRORS


# Level: the same measures from nothing but an equation


def test_level_of_the_circle_is_von_mises():
    def g(w, ξ):
        return w.square() + ξ.square() - 0.25

    κ, τ = 1.5, 0.25
    params, opt = walk(Level(g, slack=1), [torch.tensor([0.1])] * 200, "BAOAB", 0.25, temperature=τ)
    for q in params:
        q.grad.fill_(-κ * τ / 0.5)
    run(opt, 20)
    assert abs(errors_of(averages(params, opt, lambda q: q / 0.5, 60), iv(1, κ) / iv(0, κ))) < STANDARD_ERRORS


@pytest.mark.parametrize(("word", "h"), [("X", 0.02), ("L", 0.05), ("BAOAB", 0.25)])
def test_level_of_the_sphere_is_von_mises_fisher(word, h):
    def g(w):
        return w.square().sum() - 1

    κ = 1.5
    params, opt = walk(Level(g), [torch.eye(3)[i % 3] for i in range(200)], word, h, temperature=1.0)
    for q in params:
        q.grad[0] = -κ
    run(opt, 120 if word == "X" else 40)
    found = averages(params, opt, lambda q: q, 80)
    assert abs(errors_of(found, np.array([1 / math.tanh(κ) - 1 / κ, 0.0, 0.0]))).max() < STANDARD_ERRORS


def test_level_of_stiefel_is_haar_and_matrix_langevin():
    free, forced = stiefel_averages(Level(stiefel), "BAOAB", 0.25, 20, 60, chains=200)
    assert abs(errors_of(free, HAAR)).max() < STANDARD_ERRORS
    assert abs(errors_of(forced[:, :6], matrix_langevin_mean(FORCE).ravel())).max() < STANDARD_ERRORS


# L at h = 0.08 is refused for some seeds (0, 5 and 13 among them): the projection does not converge
@pytest.mark.parametrize(("word", "h"), [("L", 0.05), ("BAOAB", 0.25)])
def test_a_torus_has_its_surface_measure(word, h):
    # (R + r cos v) dv du with R = 2, r = 1: E cos v = r/2R, E cos 2v = 0, and u is uniform
    def torus(w):
        return ((w[0] ** 2 + w[1] ** 2).sqrt() - 2) ** 2 + w[2] ** 2 - 1

    angles = 2 * math.pi * torch.arange(240) / 240
    starts = [torch.tensor([2 * math.cos(u), 2 * math.sin(u), (-1.0) ** i]) for i, u in enumerate(angles.tolist())]
    params, opt = walk(Level(torus), starts, word, h, temperature=1.0)
    run(opt, 45)

    def observed(q):
        cosine = (q[:, 0] ** 2 + q[:, 1] ** 2).sqrt() - 2
        return torch.stack((cosine, 2 * cosine**2 - 1, q[:, 2], q[:, 0]), 1)

    found = averages(params, opt, observed, 80)
    assert abs(errors_of(found, np.array([0.25, 0.0, 0.0, 0.0]))).max() < STANDARD_ERRORS


def averages(params, opt, observed, steps):
    """What is observed, averaged over the time of each chain."""
    total = 0.0
    for _ in range(steps):
        opt.step()
        total = total + observed(torch.stack([q.detach() for q in params]).double())
    return np.squeeze((total / steps).numpy())
