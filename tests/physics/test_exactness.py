"""What a word samples: exact covariances on the harmonic well, orders on the double well, laws at any τ."""

import math

import numpy as np
import pytest
import torch
from chains import (
    by_hand,
    chains,
    coefficients,
    covariance,
    double_well_force,
    double_well_moment,
    draw_double_well,
    linear_fit,
    run,
)
from scipy.linalg import solve_discrete_lyapunov
from scipy.stats import kstest, norm

import tether
from fitting import used

SETTINGS = [(1.0, 1.0), (0.1, 0.25), (10.0, 1e-4), (1.0, 4.0)]  # γ, τ
settings = pytest.mark.parametrize(("friction", "temperature"), SETTINGS)
sizes = pytest.mark.parametrize("h", [0.1, 0.5])


def close(x, y):
    return x == pytest.approx(y, rel=1e-10, abs=1e-14)


# Harmonic well, exact


# Each word as the optimizer must run it: one kick per gradient, in front, and the halves on either side joined.
ROTATED = {
    "OBA": [("B", 1), ("A", 1), ("O", 1)],
    "ABO": [("B", 1), ("O", 1), ("A", 1)],
    "BAOA": [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)],
    "BAOAB": [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)],
    "ABOBA": [("B", 0.5), ("O", 1), ("B", 0.5), ("A", 1)],
    "OBABO": [("B", 0.5), ("O", 1), ("B", 0.5), ("A", 1)],
    "OABAO": [("B", 1), ("A", 0.5), ("O", 1), ("A", 0.5)],
}


@settings
@sizes
@pytest.mark.parametrize("word", ROTATED)
def test_covariance_of_position_and_momentum_equals_that_of_the_letters_matrices(word, h, friction, temperature):
    found = covariance(coefficients(word, h, friction, temperature))
    np.testing.assert_allclose(found, by_hand(ROTATED[word], h, friction, temperature), rtol=1e-10, atol=1e-14)


@settings
@sizes
def test_position_variance_in_closed_form(h, friction, temperature):
    c, x = math.exp(-friction * h), friction * h
    variance = {
        "X": 1 / (1 - h / 2),
        "L": 1.0,
        "BAOAB": 1.0,
        "BAOA": 1.0,
        "OBABO": 1 / (1 - h**2 / 4),
        "ABOBA": 1 / (1 - h**2 / 4),  # at its kick; below at the end of its step
        "OBA": (1 + c) ** 2 / (2 + 2 * c - h**2),
        "ABO": (1 + c) ** 2 / (c * (2 + 2 * c - c * h**2)),
        "UBU": 2
        * (2 * c * x + (friction**2 - 1) * (1 - c**2))
        / (1 - c)
        / (2 * friction * (1 + c) - h * (1 - c))
        / friction,
    }
    for word, expected in variance.items():
        found = covariance(coefficients(word, h, friction, temperature))[0, 0]
        assert close(found, temperature * expected), word


@settings
def test_ubu_is_of_second_order_in_positions_and_momenta(friction, temperature):
    """At the middle of its step, where the kick is: halving h divides the errors of ⟨q²⟩ and ⟨p²⟩ by four."""
    off = [covariance(coefficients("UBU", h, friction, temperature)) / temperature - np.eye(2) for h in (0.002, 0.001)]
    assert off[0][0, 0] / off[1][0, 0] == pytest.approx(4, rel=0.01)
    assert off[0][1, 1] / off[1][1, 1] == pytest.approx(4, rel=0.06)


def test_position_variance_as_printed_at_one_tenth():
    found = {word: covariance(coefficients(word, 0.1))[0, 0] - 1 for word in ("OBA", "ABO")}
    assert found["OBA"] == pytest.approx(-0.0451, abs=5e-5)
    assert found["ABO"] == pytest.approx(0.0551, abs=5e-5)


@settings
@sizes
def test_aboba_is_exact_at_the_end_of_its_full_step_half_a_drift_before_the_kick(h, friction, temperature):
    back = np.array([1.0, -h / 2])
    found = covariance(coefficients("ABOBA", h, friction, temperature))
    assert close(back @ found @ back, temperature)


@settings
@sizes
@pytest.mark.parametrize("word", ["BAOAB", "BAOA", "OABAO"])
def test_momentum_variance_is_exact_after_o_and_short_by_a_quarter_h_squared_after_the_last_half_kick(
    word, h, friction, temperature
):
    found = covariance(coefficients(word, h, friction, temperature))
    assert close(found[1, 1], temperature)
    kick = np.array([-h / 2, 1.0])
    assert close(kick @ found @ kick, temperature * (1 - h**2 / 4))


@sizes
def test_cyclic_rotations_sample_the_same_positions_and_reversal_does_not(h):
    first = [covariance(coefficients(word, h)) for word in ("OBA", "BAO", "AOB")]
    second = [covariance(coefficients(word, h)) for word in ("ABO", "BOA", "OAB")]
    for group in (first, second):
        for other in group[1:]:
            np.testing.assert_allclose(other, group[0], rtol=1e-12)
    assert abs(first[0][0, 0] - second[0][0, 0]) > h / 2


@sizes
@pytest.mark.parametrize("word", ["X", "L", "BAOAB", "OBABO", "OBA"])
def test_covariance_of_a_coupled_quadratic_potential(word, h):
    """U = qᵀKq/2 in three dimensions: every closed form above with K for 1, as matrices commute with K."""
    temperature, friction, trials = 0.25, 0.7, 64
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    K = root @ root.T / 3 + 0.5 * torch.eye(3, dtype=torch.float64)

    q = torch.nn.Parameter(torch.zeros(trials, 3, dtype=torch.float64))
    fields = used(word, friction=friction, temperature=temperature)
    opt = tether.Optimizer([("q", q)], lr=h, word=word, seed=5, **fields)
    q.grad = torch.zeros_like(q)
    opt.step()
    start, p = torch.randn(2, trials, 3, generator=generator, dtype=torch.float64)
    R = tether.noise.reference(3 * trials, seed=5, step=1, draw=0, name="q", dtype=torch.float64).view(trials, 3)
    q.data.copy_(start)
    q.grad.copy_(start @ K)
    state = [q] if word == "X" else [q, opt.state[q]["momentum"]]
    given = [start] if word == "X" else [start, p]
    if word != "X":
        state[1].copy_(p)
    opt.step()
    matrix = linear_fit(torch.cat((*given, R), 1).numpy(), torch.cat([x.detach() for x in state], 1).numpy())
    transition, noise = matrix[:, :-3], matrix[:, -3:]
    found = solve_discrete_lyapunov(transition, noise @ noise.T)[:3, :3]

    K, one, c = K.numpy(), np.eye(3), math.exp(-friction * h)
    precision = {
        "X": K - h / 2 * K @ K,
        "L": K,
        "BAOAB": K,
        "OBABO": K - h**2 / 4 * K @ K,
        "OBA": K @ (2 * (1 + c) * one - h**2 * K) / (1 + c) ** 2,
    }[word]
    np.testing.assert_allclose(found, temperature * np.linalg.inv(precision), rtol=1e-10, atol=1e-12)


# Double well, γ = τ = 1: errors of ⟨q²⟩

EXACT = 1.04179730
REFERENCE = {
    "X": {0.025: -5.63e-3, 0.05: -1.18e-2, 0.1: -2.61e-2},
    "L": {0.025: -8.1e-5, 0.05: -3.45e-4, 0.1: -1.69e-3},
    "OBA": {0.1: -1.36e-2, 0.2: -2.65e-2},
    "ABO": {0.1: 1.46e-2, 0.2: 3.05e-2},
    "BAOAB": {0.1: -4.9e-4, 0.2: -2.02e-3},
    "ABOBA": {0.1: -2.6e-3, 0.2: -1.07e-2},
}
ORDER = {"X": 1, "L": 2, "OBA": 1, "ABO": 1, "BAOAB": 2, "ABOBA": 2}


def read_back(word, h):
    """ABOBA ends half a drift before its kick."""
    return h / 2 if word == "ABOBA" else 0.0


def double_well_error(word, h):
    basis = {"degree": 48, "of_p": 1} if word == "X" else {}
    return double_well_moment(coefficients(word, h), read_back(word, h), **basis) - EXACT


def test_double_well_moment_without_a_step_size_is_the_boltzmann_average():
    """The invariant law of a word tends to exp(−U); BAOAB at h = 0.01 is there to 5e-6."""
    assert double_well_error("BAOAB", 0.01) == pytest.approx(-4.9e-6, abs=5e-7)


@pytest.mark.parametrize("word", REFERENCE)
def test_double_well_errors_without_sampling(word):
    """Within 1.5 %, about the precision to which the values are printed."""
    found = {h: double_well_error(word, h) for h in REFERENCE[word]}
    assert found == pytest.approx(REFERENCE[word], rel=0.015)


@pytest.mark.parametrize("word", REFERENCE)
def test_double_well_errors_fall_with_the_order_of_the_word(word):
    h = min(REFERENCE[word])
    ratio = double_well_error(word, h) / double_well_error(word, h / 2)
    assert math.log2(ratio) == pytest.approx(ORDER[word], abs=0.1)


def test_on_the_double_well_ubu_is_of_second_order_with_three_quarters_of_the_error_of_baoab():
    errors = [double_well_error("UBU", h) for h in (0.1, 0.05)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.05)
    assert errors[0] / double_well_error("BAOAB", 0.1) == pytest.approx(0.745, abs=0.01)


@pytest.mark.parametrize("word", REFERENCE)
def test_double_well_errors_by_chains(word):
    """The whole optimizer with its own noise; 5 % and 4 standard errors, one of them an eighth of the error or less.

    Only the largest h: the chains it would take to see −8.1e-5 do not fit in a test.
    """
    h = max(REFERENCE[word])
    count, every = 20_000, 4
    steps = 8_000 if abs(REFERENCE[word][h]) < 5e-3 else 2_000
    q, opt = chains(word, h, count, draw_double_well(count), temperature=1.0, seed=1)
    run(q, opt, round(10 / h), double_well_force)
    total = torch.zeros(count, dtype=torch.float64)
    back = read_back(word, h)
    for _ in range(steps // every):
        run(q, opt, every, double_well_force)
        end = q.detach() if back == 0 else q.detach() - back * opt.state[q]["momentum"]
        total += end**2
    means = total / (steps // every)
    error, standard_error = float(means.mean()) - EXACT, float(means.std()) / math.sqrt(count)
    assert standard_error < abs(REFERENCE[word][h]) / 7
    assert abs(error - REFERENCE[word][h]) < 0.05 * abs(REFERENCE[word][h]) + 4 * standard_error


# Laws on the harmonic well at every temperature


@pytest.mark.parametrize("temperature", [1.0, 0.25, 1e-2, 1e-4])
@pytest.mark.parametrize(
    ("word", "h", "of_q", "of_p"),
    [
        ("X", 0.1, 1 / 0.95, None),
        ("L", 0.1, 1.0, None),
        ("BAOAB", 0.4, 1.0, 1.0),
        ("OBABO", 0.4, 1 / 0.96, 1 / 0.96),
        ("BACDEDCAB", 0.05, 1.0, 1.0),  # up to h²/2, a tenth of what 40,000 samples resolve
    ],
)
def test_law_of_position_and_momentum_at_any_temperature(word, h, of_q, of_p, temperature):
    """Normal with τ times the closed form as variance, from 40,000 chains that start at 0.

    The shape by Kolmogorov–Smirnov at the level 0.001, the variance within 4 standard errors (2.8 %).
    """
    adaptive = {}
    if word == "BACDEDCAB":
        # σ² = 2γτ with γ = 1; ε of (pᵀp − Nτ) so that the thermostat relaxes in a time of order 1.
        adaptive = {"noise": math.sqrt(2 * temperature), "coupling": 1 / temperature, "normalised": True}
    q, opt = chains(word, h, 40_000, temperature=temperature, seed=2, **adaptive)
    run(q, opt, round((40 if adaptive else 20) / h))

    def check_normal(x, variance):
        unit = x.detach().numpy() / math.sqrt(variance * temperature)
        assert kstest(unit, norm.cdf).pvalue > 0.001
        assert np.mean(unit**2) == pytest.approx(1, abs=4 * math.sqrt(2 / len(unit)))

    check_normal(q, of_q)
    if of_p is not None:
        p = opt.state[q]["momentum"]
        check_normal(p, of_p)
        check_normal(q + p, of_q + of_p + h * of_p)  # the kick position is h/2 past p: ⟨qp⟩ = (h/2)⟨p²⟩


def test_noise_of_another_seed_step_draw_or_tensor_is_independent():
    """Correlations of 400,000 normals within 4 standard errors of 0, and of 1 with themselves."""
    count = 400_000
    names = [(0, 0, 0, "a"), (1, 0, 0, "a"), (0, 1, 0, "a"), (0, 0, 1, "a"), (0, 0, 0, "b"), (1, 0, 0, "b")]
    normals = [tether.noise.reference(count, *name, torch.float64).numpy() for name in names]
    correlations = np.corrcoef(normals) - np.eye(len(names))
    assert np.abs(correlations).max() < 5 / math.sqrt(count)
