"""Nested words against the algorithms of 1.2.3 as printed, and the resonances of its examples."""

import itertools
import math

import pytest
import torch

from tether.hamiltonian import parse, trajectory
from tether.words import WordError

Ω = 3.0


def slow(q):
    return q**4 / 4


def fast(q):
    return 1 - torch.cos(3 * q)


def forces(q):
    return q**3, 3 * torch.sin(3 * q)


def after(run, steps):
    return next(itertools.islice(run, steps - 1, None))


def start(n=5):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, dtype=torch.float64, generator=g), torch.randn(n, dtype=torch.float64, generator=g)


def test_respa_as_printed():  # Algorithm 1.1
    q, p = start()
    h, k = 0.3, 4
    got = after(trajectory("B(BAB)4B", [slow, fast], q, p, h), 3)
    for _ in range(3):
        p = p - h / 2 * forces(q)[0]
        for _ in range(k):
            p = p - h / (2 * k) * forces(q)[1]
            q = q + h / k * p
            p = p - h / (2 * k) * forces(q)[1]
        p = p - h / 2 * forces(q)[0]
    torch.testing.assert_close(got, (q, p), rtol=1e-13, atol=1e-13)


def test_three_time_scales_nest():
    q, p = start()
    h = 0.3
    got = after(trajectory("B(B(BAB)3B)2B", [slow, fast, slow], q, p, h), 1)
    p = p - h / 2 * forces(q)[0]
    for _ in range(2):
        p = p - h / 4 * forces(q)[1]
        for _ in range(3):
            p = p - h / 12 * forces(q)[0]
            q = q + h / 6 * p
            p = p - h / 12 * forces(q)[0]
        p = p - h / 4 * forces(q)[1]
    p = p - h / 2 * forces(q)[0]
    torch.testing.assert_close(got, (q, p), rtol=1e-13, atol=1e-13)


def coupled(Q, q):
    return Q**4 / 4 + (1 - torch.cos(2 * (Q - q)))


def slopes(Q, q):
    pull = 2 * torch.sin(2 * (Q - q))
    return Q**3 + pull, -pull


def mean_force(Q, q, p, h, k, m):
    """Av±: fast variables move by Verlet with Q fixed; the trapezoidal rule over k sub-steps."""
    total = slopes(Q, q)[0] / 2
    for i in range(k):
        p = p - h / (2 * k) * slopes(Q, q)[1]
        q = q + h / k * p / m
        p = p - h / (2 * k) * slopes(Q, q)[1]
        total = total + slopes(Q, q)[0] * (1 if i < k - 1 else 0.5)
    return total / k


@pytest.mark.parametrize("kind", [0, 1])
def test_reversible_averaging_as_printed(kind):  # Algorithms 1.3 and 1.4
    (Q, P), (q, p) = start(), start()
    q, p = q + 0.1, p - 0.2
    h, k, m = 0.2, 4, 0.1
    word = "BA(BAB)4AB" if kind == 0 else "B(BAB)4B"
    got = after(trajectory(word, coupled, (Q, q), (P, p), h, mass=(1.0, m), average=True), 3)
    for _ in range(3):
        P = P - h / 2 * mean_force(Q, q, p, h, k, m)
        if kind == 0:
            Q = Q + h / 2 * P
        for _ in range(k):
            p = p - h / (2 * k) * slopes(Q, q)[1]
            q = q + h / k * p / m
            if kind == 1:
                Q = Q + h / k * P
            p = p - h / (2 * k) * slopes(Q, q)[1]
        if kind == 0:
            Q = Q + h / 2 * P
        P = P - h / 2 * mean_force(Q, q, p, -h, k, m)
    torch.testing.assert_close(got, ((Q, q), (P, p)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("word", "average"), [("B(BAB)3B", False), ("BA(BAB)3AB", True), ("B(BAB)3B", True), ("BA(BAB)3AB", False)]
)
def test_second_order_and_reversible(word, average):
    (Q, P), (q, p) = start(), start()
    options = {"average": average}

    def end(h, back=False):
        run = trajectory(word, coupled, (Q, q + 0.1), (P, p), h, **options)
        (a, b), (c, d) = after(run, round(1 / h))
        if back:
            run = trajectory(word, coupled, (a, b), (-c, -d), h, **options)
            (a, b), (c, d) = after(run, round(1 / h))
            return torch.cat((a, b, -c, -d))
        return torch.cat((a, b, c, d))

    exact = end(1 / 256)
    errors = [float((end(h) - exact).abs().max()) for h in (1 / 8, 1 / 16, 1 / 32)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(1.9 < order < 2.15 for order in orders)
    torch.testing.assert_close(end(1 / 16, back=True), torch.cat((Q, q + 0.1, P, p)), rtol=1e-9, atol=1e-9)


def test_the_slow_force_is_computed_once_a_step():
    calls = {"slow": 0, "fast": 0}

    def count(name, U):
        def counted(q):
            calls[name] += 1
            return U(q)

        return counted

    after(trajectory("B(BAB)5B", [count("slow", slow), count("fast", fast)], *start(), 0.1), 10)
    assert calls == {"slow": 11, "fast": 51}


# Example 1.2.2: two springs


def springs(word, h, k=None, γ=0.0, τ=0.0):
    """The matrix of one step, column by column, of the words on U_S = q²/2, U_F = Ω²q²/2."""
    q = torch.tensor([1.0, 0.0], dtype=torch.float64)
    p = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return torch.stack(
        after(trajectory(word, [lambda q: q**2 / 2, lambda q: Ω**2 * q**2 / 2], q, p, h, friction=γ, temperature=τ), 1)
    )


@pytest.mark.parametrize("hΩ", [0.5, 2.0, 3.0, 3.1, 3.3, 4.5, 6.2, 6.4])
def test_the_sum_of_the_eigenvalues(hΩ):  # (1.36); the fast part is exact for k → ∞
    h = hΩ / Ω
    M = springs("B(BAB)400B", h)
    assert float(M.trace()) == pytest.approx(2 * math.cos(hΩ) - h / Ω * math.sin(hΩ), abs=2e-4)
    assert float(torch.linalg.det(M)) == pytest.approx(1, abs=1e-11)  # symplectic
    unstable = abs(2 * math.cos(hΩ) - h / Ω * math.sin(hΩ)) > 2
    assert (float(torch.linalg.eigvals(M).abs().max()) > 1.001) == unstable


def test_resonance_just_below_multiples_of_pi():  # Figure 1.9
    def radius(hΩ):
        return float(torch.linalg.eigvals(springs("B(BAB)200B", hΩ / Ω)).abs().max())

    for n in (1, 2, 3):
        assert radius(n * math.pi - 0.1) > 1.02
        assert radius(n * math.pi + 0.1) == pytest.approx(1, abs=1e-7)


def test_friction_removes_the_resonance():  # Figure 1.10
    h = (math.pi - 0.1) / Ω

    def moments(γ):
        """⟨q²⟩ by the discrete Lyapunov equation, or None where it grows without bound."""
        M = springs("B(BAOAB)20B", h, γ=γ)
        if torch.linalg.eigvals(M).abs().max() >= 1:
            return None
        # one step from rest gives the covariance of its noise: many systems at once
        n = 100_000
        zero = torch.zeros(n, dtype=torch.float64)
        energies = [lambda q: q**2 / 2, lambda q: Ω**2 * q**2 / 2]
        kick = torch.stack(after(trajectory("B(BAOAB)20B", energies, zero, zero, h, friction=γ, temperature=1.0), 1))
        C = kick @ kick.T / n
        S = torch.linalg.solve(torch.eye(4, dtype=M.dtype) - torch.kron(M, M), C.flatten())
        return float(S[0])

    assert moments(0.01) is None
    assert moments(0.05) is None or abs(moments(0.05) - 0.1) > 0.05
    assert moments(5.0) == pytest.approx(1 / (1 + Ω**2), abs=0.02)  # τ/(1 + Ω²) (1.39), at a step of 1


# Example 1.2.4: a slow mass on a fast one


def chain(word, h, W=10.0, k=300):
    basis = torch.eye(4, dtype=torch.float64)
    run = trajectory(
        word.replace("k", str(k)),
        lambda Q, q: Q**2 / 2 + W * (Q - q) ** 2 / 2,
        (basis[0], basis[1]),
        (basis[2], basis[3]),
        h,
        mass=(1.0, 1 / W),
        average=True,
    )
    (Q, q), (P, p) = next(run)
    return torch.stack((Q, q, P, p))


def exact_chain(kind, h, W=10.0):
    """(1.43)–(1.47), and for type 1 the fast oscillator around a centre that moves with speed P."""
    s, c = math.sin(W * h), math.cos(W * h)
    Q, q, P, p = torch.eye(4, dtype=torch.float64)
    P = P - h / 2 * (Q - (q - Q) / h * s - p / h * (1 - c))
    if kind == 0:
        middle = Q + h / 2 * P
        q, p = (q - middle) * c + p * s + middle, (middle - q) * s + p * c
    else:
        x, v = q - Q, p - P / W  # around Q + tP, with dq/dt = Ω²p
        q, p = x * c + v * s + Q + h * P, -x * s + v * c + P / W
    Q = Q + h * P
    P = P - h / 2 * (Q - (q - Q) / h * s + p / h * (1 - c))
    return torch.stack((Q, q, P, p))


@pytest.mark.parametrize(("kind", "word"), [(0, "BA(BAB)kAB"), (1, "B(BAB)kB")])
@pytest.mark.parametrize("h", [0.1, 0.5, 1.1])
def test_the_matrices_of_reversible_averaging(kind, word, h):  # (1.48)
    torch.testing.assert_close(chain(word, h), exact_chain(kind, h), rtol=1e-3, atol=1e-3)


def test_type_0_resonates_and_type_1_does_not():  # Figures 1.12 and 1.14
    steps = [0.01 * i for i in range(1, 150)]
    radii = [[float(torch.linalg.eigvals(exact_chain(kind, h)).abs().max()) for h in steps] for kind in (0, 1)]
    assert max(radii[0]) > 1.05
    assert max(radii[1]) == pytest.approx(1, abs=1e-6)
    at = steps[radii[0].index(max(radii[0]))]
    assert float(torch.linalg.eigvals(chain("BA(BAB)kAB", at)).abs().max()) > 1.05
    assert float(torch.linalg.eigvals(chain("B(BAB)kB", at)).abs().max()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("B(BAB)B", "how often it runs"),
        ("B(BAB", "how often it runs"),
        ("BAB)5", "never opened"),
        ("B(BAB)2(BAB)2B", "side by side"),
        ("B(BXB)2B", "not 'X'"),
        ("A(BAB)2A", "needs a kick"),
        ("BA(B)2B", "moves nothing"),
    ],
)
def test_words_that_cannot_be_read(word, says):
    with pytest.raises(WordError, match=says):
        parse(word)


def test_systems_that_do_not_fit_their_word():
    q, p = start()
    with pytest.raises(ValueError, match="pass 2 potentials"):
        trajectory("B(BAB)2B", [slow], q, p, 0.1)
    with pytest.raises(ValueError, match="3 variables need a word with 3 time scales"):
        trajectory("B(BAB)2B", coupled, (q, q, q), (p, p, p), 0.1)
    with pytest.raises(ValueError, match="must go together"):
        trajectory("B(BAB)2B", [slow, fast], q, p[:2], 0.1)
    with pytest.raises(ValueError, match="average=True is for two variables"):
        trajectory("B(BAB)2B", [slow, fast], q, p, 0.1, average=True)
