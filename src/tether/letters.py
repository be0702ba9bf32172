"""The letters: each is one sub-step of the dynamics, written as its equation.

A letter is a pure function. The names of its arguments say what it needs (what it can do without has a default), its
decorator says what it changes, and it returns the new value of that. It works on plain tensors (the reference), and on
the formal sums of `sums.py`, which turn the same line into a few fused calls over a whole part.

=======  ==========================================================  =======================
symbol   meaning                                                     field of `Part`
=======  ==========================================================  =======================
θ p      parameters and momenta
g        loss gradient at θ, weight decay included
g0       the first gradient of this step (words with a closure)
R        fresh standard normals
Q        further ones, independent of R
h        duration of this letter: the step size over its count       ``lr``
γ τ m    friction, temperature, mass                                 ``friction, temperature, mass``
ξ        the part's thermostat                                       ``thermostat`` (its start)
ε σ      coupling of the thermostat, strength of the applied noise   ``coupling, noise``
p2 N     ``pᵀp`` and the number of degrees of freedom of the part;
         with a mass for each entry p2 is ``pᵀM⁻¹p``, and m is 1
=======  ==========================================================  =======================

Equation numbers are those of T. Vlaar's thesis (2022).

To add a letter, write it here (or in your own file) under ``@letter(...)`` and test it in
``tests/test_letters.py``; every word may then use it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["LETTERS", "SCALARS", "SYMBOLS", "VECTORS", "Letter", "letter"]

VECTORS = ("θ", "p", "g", "g0", "R", "Q")
SCALARS = ("h", "γ", "τ", "m", "ξ", "ε", "σ", "p2", "N")
SYMBOLS = VECTORS + SCALARS


@dataclass(frozen=True)
class Letter:
    """A letter: its map, the symbols that it needs and those that it changes."""

    name: str
    map: Callable[..., Any]
    needs: tuple[str, ...]
    changes: tuple[str, ...]
    flow: bool
    scalars: tuple[str, ...]
    limit: str = ""
    options: tuple[str, ...] = ()  # symbols that it can do without: arguments with a default
    curved: bool = True  # is there a map for it on a surface?

    @property
    def kicks(self) -> bool:
        """Does it use the gradient?"""
        return "g" in self.needs

    @property
    def moves(self) -> bool:
        """Does it change the parameters? A gradient computed before is then stale."""
        return "θ" in self.changes

    @property
    def draws(self) -> int:
        """How many normals it takes for each entry."""
        return ("R" in self.needs) + ("Q" in self.needs)

    @property
    def equation(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.map) or "").partition("\n")[0]

    def at(self, value: Callable[[str], Any]) -> Any:
        """The map, with the value of each symbol."""
        return self.map(*[value(s) for s in self.needs], **{s: value(s) for s in self.options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.map(*args, **kwargs)


LETTERS: dict[str, Letter] = {}


def letter(
    *changes: str, flow: bool = True, limit: str = "", curved: bool = True
) -> Callable[[Callable[..., Any]], Letter]:
    """Register a function as a letter that changes the given symbols.

    ``flow=True`` says that two applications in a row equal one of the summed duration (in law), as for every exact
    solution; neighbours are then merged. `limit` is a word whose limit of infinite friction is this letter. On a
    surface that word is run instead. ``curved=False`` says that there is no map for it on a surface.
    """

    def register(function: Callable[..., Any]) -> Letter:
        name = function.__name__
        if len(name) != 1 or not name.isupper():
            raise ValueError(f"a letter is a single capital, got {name!r}: rename the function, e.g. `def G(p, h)`")
        if name in LETTERS:
            raise ValueError(f"the letter {name} exists already ({LETTERS[name].equation}): choose another capital")
        given = inspect.signature(function).parameters.values()
        needs = tuple(one.name for one in given if one.default is one.empty)
        options = tuple(one.name for one in given if one.default is not one.empty)
        for symbol in (*needs, *options, *changes):
            if symbol not in SYMBOLS:
                raise ValueError(f"letter {name}: unknown symbol {symbol!r}; a letter may use {', '.join(SYMBOLS)}")
        if not changes or not set(changes) <= {"θ", "p", "ξ"}:
            raise ValueError(f"letter {name} changes {changes}: say which of θ, p, ξ, e.g. @letter('p')")
        scalars = tuple(symbol for symbol in (*needs, *options) if symbol in SCALARS)
        LETTERS[name] = Letter(name, function, needs, changes, flow, scalars, limit, options, curved)
        return LETTERS[name]

    return register


# Functions of numbers, tensors and formulas (`tether.engine.formulas`), which have a method of that name.


def exp(x: Any) -> Any:
    return math.exp(x) if isinstance(x, int | float) else x.exp()


def expm1(x: Any) -> Any:
    return math.expm1(x) if isinstance(x, int | float) else x.expm1()


def sqrt(x: Any) -> Any:
    return math.sqrt(x) if isinstance(x, int | float) else x.sqrt()


def shrink(x: Any) -> Any:
    """(1 − e^{−x})/x, which is 1 at x = 0."""
    if isinstance(x, int | float):
        return -math.expm1(-x) / x if x else 1.0
    if isinstance(x, torch.Tensor):
        return torch.where(x == 0, 1.0, -torch.expm1(-x) / torch.where(x == 0, 1.0, x))
    return x.shrink()


def lag(x: Any) -> Any:
    """(x − 2 tanh(x/2))/x², which is x/12 near x = 0 and 1/x for large x.

    The plain difference loses all digits for small x. There it is x/(4K + x²) with the continued fraction of tanh,
    K = 3 + y/(5 + y/(7 + …)) and y = x²/4.
    """
    if isinstance(x, int | float):
        return (1 - 2 * math.tanh(x / 2) / x) / x if x > 1 else x / (4 * _fraction(x * x / 4) + x * x)
    if isinstance(x, torch.Tensor):
        small, large = x.clamp(max=1), x.clamp(min=1)
        near = small / (4 * _fraction(small * small / 4) + small * small)
        return torch.where(x > 1, (1 - 2 * torch.tanh(large / 2) / large) / large, near)
    return x.lag()


def _fraction(y: Any) -> Any:
    """3 + y/(5 + y/(7 + …)), to the last bit of float64 for y ≤ 1/4."""
    found = 15.0
    for odd in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        found = odd + y / found
    return found


def times(γ: Any, h: Any) -> Any:
    """γh, which is 0 for h = 0 even where γ = ∞."""
    if hasattr(h, "times"):
        return h.times(γ)
    if hasattr(γ, "lasting"):
        return γ.lasting(h)
    if isinstance(γ, torch.Tensor) or isinstance(h, torch.Tensor):
        return torch.where(torch.as_tensor(h) == 0, 0.0, γ * h)
    return γ * h if h else 0.0


# Langevin dynamics, (2.52)


@letter("θ")
def A(θ, p, h, m=1.0):
    """Drift (2.53a): θ ← θ + h p/m.

    Preserves p; exact for dθ = p/m dt.
    """
    return θ + h / m * p


@letter("p")
def B(p, g, h):
    """Kick (2.53b): p ← p − h g.

    Preserves θ; exact for dp = −∇L(θ) dt.
    """
    return p - h * g


@letter("p")
def O(p, R, h, γ, τ, m=1.0):
    """Ornstein–Uhlenbeck (2.53c): p ← e^{−γh} p + √(τm(1 − e^{−2γh})) R.

    Preserves N(0, τm) exactly for any h. γ = 0 is the identity, γ = ∞ redraws p = √(τm) R, and
    τ = 0 is plain friction.
    """
    x = times(γ, h)
    return exp(-x) * p + sqrt(-τ * m * expm1(-2 * x)) * R


@letter("θ", "p", curved=False)
def U(θ, p, R, Q, h, γ, τ, m=1.0):
    """Drift and Ornstein–Uhlenbeck together: θ ← θ + (φ/m)(p + sR/(1 + η)) + h√(2τψ/m) Q, p ← ηp + sR.

    Here x = γh, η = e^{−x}, φ = (1 − η)/γ, s = √(τm(1 − η²)) as in O, and ψ = (x − 2 tanh(x/2))/x². It is the exact
    solution of dθ = p/m dt, dp = −γp dt + √(2γτm) dW: θ and p get the two correlated normals of the integrated and of
    the plain Ornstein–Uhlenbeck process. γ = 0 is A. In the word UBU (Alamo Zapatero, 2017; Sanz-Serna and
    Zygalakis, 2021) the kick is the only error.
    """
    x = times(γ, h)
    η, s = exp(-x), sqrt(-τ * m * expm1(-2 * x))
    θ = θ + h * shrink(x) / m * (p + s / (1 + η) * R) + h * sqrt(2 * τ / m * lag(x)) * Q
    return θ, η * p + s * R


# Adaptive Langevin dynamics, (2.59)


@letter("p")
def C(p, ξ, h):
    """Thermostat friction (2.59): p ← e^{−hξ} p.

    ξ may be negative and then accelerates. There is no further factor ε, unlike in (3.31) as printed.
    """
    return exp(-h * ξ) * p


@letter("p")
def D(p, R, h, σ, m=1.0):
    """Applied noise (2.59): p ← p + σ √(mh) R."""
    return p + σ * sqrt(m * h) * R


@letter("ξ")
def E(ξ, p2, N, h, ε, τ, m=1.0):
    """Thermostat (2.59): ξ ← ξ + h ε (pᵀp/m − N τ).

    ξ is constant when the kinetic temperature pᵀp/(mN) is τ. With C it oscillates around that with ω² = 2εNτ. The step
    must satisfy 2h²εNτ ≤ 1, so a wide layer needs a smaller ε, or ``normalised=True``.
    """
    return ξ + h * ε * (p2 / m - N * τ)


@letter("p")
def F(p, R, ξ, h, σ, m=1.0):
    """Thermostat friction and noise together (2.61): p ← e^{−ξh} p + σ √(m(1 − e^{−2ξh})/(2ξ)) R.

    The exact solution of dp = −ξ p dt + σ√m dW at fixed ξ, of either sign; ξ → 0 is D.
    """
    return exp(-ξ * h) * p + σ * sqrt(m * h * shrink(2 * ξ * h)) * R


# Overdamped dynamics, (2.38)


@letter("θ", flow=False)
def X(θ, g, R, h, τ):
    """Euler–Maruyama (2.51): θ ← θ − h g + √(2τh) R.

    τ = 0 is SGD, bit for bit; τ > 0 is SGLD with σ² = 2τ.
    """
    return θ - h * g + sqrt(2 * τ * h) * R


@letter("θ", "p", flow=False, limit="BAOA")
def L(θ, p, g, R, h, τ):
    """BAOAB-limit (2.56): θ ← θ − h g + √(2τh) (R + p)/2, p ← R.

    p holds the normals of the previous step, so consecutive steps share noise.
    """
    return θ - h * g + sqrt(2 * τ * h) / 2 * (R + p), R


# Heavy ball in torch's form, chapter 5


@letter("p", flow=False)
def M(p, g, γ):
    """Momentum as torch's SGD has it (5.1): p ← e^{−γ} p + g.

    γ = −log μ; γ = ∞ is no momentum, p = g. The word MS is ``torch.optim.SGD(lr=h, momentum=μ)``.
    """
    return exp(-γ) * p + g


@letter("θ")
def S(θ, p, h, m=1.0):
    """Step along the momentum (5.1): θ ← θ − h p/m."""
    return θ - h / m * p


@letter("θ", flow=False)
def V(θ, p, g, h, γ):
    """Nesterov's step as torch has it: θ ← θ − h (g + e^{−γ} p).

    After M, which leaves p ← e^{−γ} p + g. The word MV is ``torch.optim.SGD(lr=h, momentum=μ, nesterov=True)``.
    """
    return θ - h * (g + exp(-γ) * p)


@letter("θ", flow=False)
def H(θ, g, g0, h):
    """Heun's corrector (3.3.2.1): θ ← θ − (h/2)(g − g0).

    After X, which leaves θ* = θ − h g0, the word XH is θ ← θ − (h/2)(g(θ) + g(θ*)): second order.
    """
    return θ - h / 2 * (g - g0)
