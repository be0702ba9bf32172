"""Each letter against its equation, on plain numbers; letters of one's own; the fast path against the plain one."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tether
from fitting import used
from tether.letters import LETTERS, letter

θ, p, g, g0, R = np.random.default_rng(0).normal(size=(5, 7))
h, γ, τ, ε, σ = 0.3, 0.7, 0.2, 0.05, 0.4


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def evaluate(name, **given):
    """The letter on tensors, as numpy; a vector is whatever is an array."""
    values = [tensor(given[s]) if isinstance(given[s], np.ndarray) else given[s] for s in LETTERS[name].needs]
    result = LETTERS[name](*values)
    return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


# Langevin dynamics


def test_a_drifts():
    same(evaluate("A", θ=θ, p=p, h=h), θ + h * p)


def test_b_kicks():
    same(evaluate("B", p=p, g=g, h=h), p - h * g)


def test_o_solves_the_ornstein_uhlenbeck_equation():
    expected = math.exp(-γ * h) * p + math.sqrt(τ * (1 - math.exp(-2 * γ * h))) * R
    same(evaluate("O", p=p, R=R, h=h, γ=γ, τ=τ), expected)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"γ": 0.0}, p),
        ({"γ": math.inf}, math.sqrt(τ) * R),
        ({"γ": math.inf, "τ": 0.0}, 0 * p),
        ({"γ": math.inf, "h": 0.0}, p),
        ({"h": 0.0}, p),
        ({"τ": 0.0}, math.exp(-γ * h) * p),
    ],
)
def test_o_at_its_limits(limit, expected):
    same(evaluate("O", **{"p": p, "R": R, "h": h, "γ": γ, "τ": τ, **limit}), expected)


def test_o_keeps_the_precision_of_a_small_friction():
    """1 − e^{−2γh} at γh = 1e-12 is 2e-12 to every digit, where the plain difference has four."""
    found = evaluate("O", p=0 * p, R=R, h=1.0, γ=1e-12, τ=1.0)
    np.testing.assert_allclose(found, math.sqrt(2e-12) * R, rtol=1e-11)


def test_u_solves_drift_and_ornstein_uhlenbeck_together():
    """Means and covariance of the integrated process, as printed: ⟨θ²⟩, ⟨θp⟩ and ⟨p²⟩ from a start at 0."""
    η, m = math.exp(-γ * h), 1.7
    mean = LETTERS["U"](tensor(θ), tensor(p), 0 * tensor(R), 0 * tensor(R), h, γ, τ, m=m)
    same(mean[0], θ + (1 - η) / (γ * m) * p)
    same(mean[1], η * p)
    factor = np.array(
        [[float(x) for x in LETTERS["U"](0.0, 0.0, *pair, h, γ, τ, m=m)] for pair in ((1.0, 0.0), (0.0, 1.0))]
    )
    of_θ = τ / (m * γ**2) * (2 * γ * h - 3 + 4 * η - η**2)
    of_both, of_p = τ / γ * (1 - η) ** 2, τ * m * (1 - η**2)
    np.testing.assert_allclose(factor.T @ factor, [[of_θ, of_both], [of_both, of_p]], rtol=1e-12)


@pytest.mark.parametrize("number", [float, tensor], ids=["float", "tensor"])
def test_u_at_its_limits(number):
    """No friction is A, an infinite one redraws p, no time does nothing; small frictions keep their digits."""

    def both(**given):
        values = {"p": p, "R": R, "Q": g, "h": h, "γ": γ, **given}
        vectors = [tensor(θ), *(tensor(values[s]) for s in ("p", "R", "Q"))]
        return LETTERS["U"](*vectors, values["h"], number(values["γ"]), τ)

    for γ_, p_ in ((0.0, p), (math.inf, math.sqrt(τ) * R)):
        found = both(γ=γ_)
        same(found[0], θ + (h * p if γ_ == 0 else 0))
        same(found[1], p_)
    for γ_ in (γ, math.inf):
        found = both(h=0.0, γ=γ_)
        same(found[0], θ)
        same(found[1], p)
    for x in (1e-12, 1e-6, 1e-3):  # x/12 (1 − x²/10 + …)
        assert float(tether.letters.lag(number(x))) == pytest.approx(x / 12 * (1 - x**2 / 10), rel=1e-12)
    below, above = (float(tether.letters.lag(number(x))) for x in (1.0, 1 + 1e-15))
    assert below == pytest.approx(above, rel=1e-14)
    assert below == pytest.approx(1 - 2 * math.tanh(0.5), rel=1e-14)


def test_u_over_two_halves_is_u_over_the_whole_in_law():
    def law(time):
        unit = np.eye(2)
        move = np.array([[float(x) for x in LETTERS["U"](*e, 0.0, 0.0, time, γ, τ)] for e in unit]).T
        root = np.array([[float(x) for x in LETTERS["U"](0.0, 0.0, *e, time, γ, τ)] for e in unit]).T
        return move, root @ root.T

    (M, V), (half, v) = law(h), law(h / 2)
    np.testing.assert_allclose(half @ half, M, rtol=1e-13)
    np.testing.assert_allclose(half @ v @ half.T + v, V, rtol=1e-12)


# Adaptive Langevin dynamics


@pytest.mark.parametrize("ξ", [1.3, 0.0, -1.3])
def test_c_damps_or_drives_by_the_thermostat(ξ):
    same(evaluate("C", p=p, ξ=ξ, h=h), math.exp(-h * ξ) * p)
    same(evaluate("C", p=p, ξ=tensor(ξ), h=h), math.exp(-h * ξ) * p)


def test_d_adds_noise():
    same(evaluate("D", p=p, R=R, h=h, σ=σ), p + σ * math.sqrt(h) * R)


def test_e_moves_the_thermostat_towards_equal_temperature():
    expected = 0.1 + h * ε * (p @ p - 7 * τ)
    same(evaluate("E", ξ=0.1, p2=p @ p, N=7, h=h, ε=ε, τ=τ), expected)
    assert evaluate("E", ξ=0.1, p2=7 * τ, N=7, h=h, ε=ε, τ=τ) == pytest.approx(0.1, abs=1e-15)


@pytest.mark.parametrize("ξ", [1.3, -1.3, 1e-3])
def test_f_solves_friction_and_noise_together(ξ):
    expected = math.exp(-ξ * h) * p + σ * math.sqrt(-math.expm1(-2 * ξ * h) / (2 * ξ)) * R
    same(evaluate("F", p=p, R=R, ξ=tensor(ξ), h=h, σ=σ), expected)


def test_f_of_a_plain_number_keeps_double_precision():
    found = evaluate("F", p=p, R=R, ξ=1.3, h=h, σ=σ)
    same(found, evaluate("F", p=p, R=R, ξ=tensor(1.3), h=h, σ=σ))


@pytest.mark.parametrize("ξ", [0.0, 1e-17, -1e-17])
def test_f_without_a_thermostat_is_d(ξ):
    same(evaluate("F", p=p, R=R, ξ=tensor(ξ), h=h, σ=σ), evaluate("D", p=p, R=R, h=h, σ=σ))


def test_f_over_no_time_does_nothing():
    same(evaluate("F", p=p, R=R, ξ=tensor(1.3), h=0.0, σ=σ), p)


@pytest.mark.parametrize("ξ", [0.8, -0.8])
def test_f_over_two_halves_is_f_over_the_whole_in_law(ξ):
    """What `flow=True` promises: means multiply, variances add up after damping."""

    def mean_and_variance(time):
        unit, none = np.ones(1), np.zeros(1)
        mean = evaluate("F", p=unit, R=none, ξ=tensor(ξ), h=time, σ=σ)[0]
        return mean, evaluate("F", p=none, R=unit, ξ=tensor(ξ), h=time, σ=σ)[0] ** 2

    (m, v), (half_m, half_v) = mean_and_variance(h), mean_and_variance(h / 2)
    assert half_m**2 == pytest.approx(m, rel=1e-14)
    assert half_m**2 * half_v + half_v == pytest.approx(v, rel=1e-14)


# Overdamped dynamics


def test_x_is_euler_maruyama():
    same(evaluate("X", θ=θ, g=g, R=R, h=h, τ=τ), θ - h * g + math.sqrt(2 * τ * h) * R)
    same(evaluate("X", θ=θ, g=g, R=R, h=h, τ=0.0), θ - h * g)


def test_l_is_the_baoab_limit_and_remembers_its_normals():
    position, remembered = evaluate("L", θ=θ, p=p, g=g, R=R, h=h, τ=τ)
    same(position, θ - h * g + math.sqrt(2 * τ * h) * (R + p) / 2)
    same(remembered, R)


def test_h_corrects_an_euler_step_to_heuns():
    same(evaluate("H", θ=θ - h * g0, g=g, g0=g0, h=h), θ - h * (g0 + g) / 2)


# A letter of one's own


@pytest.fixture
def alphabet():
    """Lets a test add letters, and takes them out of the alphabet and of every cache afterwards."""
    before = dict(LETTERS)
    yield LETTERS
    LETTERS.clear()
    LETTERS.update(before)
    for module in (tether.words, tether.letters, tether.engine.sums):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def three_steps(word, foreach, **fields):
    """Position and momentum of two tensors on U = Σ q⁴/4 after three steps."""
    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    q = [nn.Parameter(start.clone()), nn.Parameter(start[:4].clone().view(2, 2))]
    opt = tether.Optimizer(q, lr=h, word=word, foreach=foreach, **fields)
    for _ in range(3):
        for x in q:
            x.grad = x.detach() ** 3
        opt.step()
    return q[0].detach().numpy(), opt.state[q[0]]["momentum"].numpy()


@pytest.mark.parametrize("foreach", [True, False])
def test_a_linear_letter_of_ones_own(alphabet, foreach):
    @letter("p", flow=False)
    def G(p, g, h, γ):
        """Kick and implicit friction: p ← (p − h g)/(1 + γh)."""
        return (p - h * g) / (1 + γ * h)

    assert alphabet["G"].kicks
    assert not alphabet["G"].moves
    q = np.linspace(-1, 1, 7)
    momentum = 0 * q
    for _ in range(3):
        momentum = (momentum - h * q**3) / (1 + γ * h)
        q = q + h * momentum
    found = three_steps("GA", foreach, friction=γ)
    same(found[0], q)
    same(found[1], momentum)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_nonlinear_letter_of_ones_own(alphabet, foreach):
    @letter("θ")
    def T(θ, p, h):
        """Relativistic drift: θ ← θ + h p/√(1 + p²)."""
        return θ + h * p / torch.sqrt(1 + p * p)

    q = np.linspace(-1, 1, 7)
    momentum = 0 * q
    for n in range(3):
        normals = tether.noise.reference(7, seed=0, step=n, draw=0, name="0", dtype=torch.float64).numpy()
        momentum = momentum - (h / 2 if n == 0 else h) * q**3
        q = q + h / 2 * momentum / np.sqrt(1 + momentum**2)
        momentum = math.exp(-γ * h) * momentum + math.sqrt(τ * (1 - math.exp(-2 * γ * h))) * normals
        q = q + h / 2 * momentum / np.sqrt(1 + momentum**2)
    found = three_steps("BTOTB", foreach, friction=γ, temperature=τ)
    same(found[0], q)
    same(found[1], momentum)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_letter_that_moves_position_and_momentum_at_once(alphabet, foreach):
    @letter("θ", "p")
    def Z(θ, p, h):
        """Rotation, the exact flow of the unit oscillator: both need the other's old value."""
        return math.cos(h) * θ + math.sin(h) * p, math.cos(h) * p - math.sin(h) * θ

    q = np.linspace(-1, 1, 7)
    momentum = 0 * q
    for _ in range(3):
        momentum = momentum - h * q**3
        q, momentum = math.cos(h) * q + math.sin(h) * momentum, math.cos(h) * momentum - math.sin(h) * q
    found = three_steps("BZ", foreach)
    same(found[0], q)
    same(found[1], momentum)


def test_added_letters_are_gone_after_their_test():
    assert "".join(sorted(LETTERS)) == "ABCDEFHLMOSUVX"


@pytest.mark.parametrize(
    ("name", "arguments", "changes", "message"),
    [
        ("Go", "p, h", ("p",), "a letter is a single capital, got 'Go'"),
        ("k", "p, h", ("p",), "a letter is a single capital, got 'k'"),
        ("A", "p, h", ("p",), "the letter A exists already"),
        ("G", "p, q", ("p",), "letter G: unknown symbol 'q'"),
        ("G", "p, h", (), "say which of θ, p, ξ"),
        ("G", "p, h", ("g",), "say which of θ, p, ξ"),
    ],
)
def test_a_letter_that_cannot_be_registered(alphabet, name, arguments, changes, message):
    before = dict(alphabet)
    namespace = {}
    exec(f"def {name}({arguments}): return p", namespace)
    with pytest.raises(ValueError, match=message):
        letter(*changes)(namespace[name])
    assert alphabet == before


# The fast path and the plain one

WORDS = ["X", "L", "OBA", "ABO", "MV", "BAB", "BAOA", "BAOAB", "UBU", "ABOBA", "OBABO", "BACDEDCAB", "BAFEFAB"]
WORDS_WITH_CLOSURE = ["BABAB", "XX", "XH", "OABABAO", "UBUBU"]


def run_on_a_network(word, foreach, weight_decay, dtype):
    """θ after 20 steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    x = torch.randn(10, 3, dtype=dtype)
    fields = used(word, friction=γ, temperature=0.01, weight_decay=weight_decay)
    opt = tether.Optimizer(model, lr=0.2, word=word, foreach=foreach, **fields)

    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(20):
        opt.step(closure)
    return torch.cat([q.detach().flatten() for q in model.parameters()])


@pytest.mark.parametrize("word", WORDS + WORDS_WITH_CLOSURE)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_kernel_foreach_and_tensor_by_tensor_give_the_same_numbers(word, weight_decay, dtype, rounding, monkeypatch):
    default = run_on_a_network(word, True, weight_decay, dtype)
    by_tensor = run_on_a_network(word, False, weight_decay, dtype)
    monkeypatch.setattr(tether.native, "serves", lambda dtype, device: False)
    without_kernel = run_on_a_network(word, True, weight_decay, dtype)
    assert_close(default, by_tensor, rtol=0, atol=rounding)
    assert_close(without_kernel, by_tensor, rtol=0, atol=rounding)
