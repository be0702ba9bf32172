"""Student's t: its distribution function and its quantiles, for any number of degrees of freedom."""

import math
from functools import lru_cache

__all__ = ["quantile", "tail"]


def tail(t: float, freedom: float) -> float:
    """P(|T| > |t|) of Student's t with so many degrees of freedom: I_x(ν/2, ½), x = ν/(ν + t²).

    >>> round(tail(12.706204736, 1), 9), round(tail(1.0, 1), 12)  # of Cauchy's: 1 − 2 atan(t)/π
    (0.05, 0.5)
    """
    if math.isinf(t):
        return 0.0
    return _beta(freedom / (freedom + t * t), t * t / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(1024)
def quantile(level: float, freedom: float) -> float:
    """The t that |T| exceeds with probability `level`, by bisection.

    >>> [round(quantile(0.05, n), 3) for n in (1, 2, 4, 9)]  # as tables of Student's t have them
    [12.706, 4.303, 2.776, 2.262]
    """
    low, high = 0.0, 1.0
    while tail(high, freedom) > level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > level else (low, middle)
    return high


def _beta(x: float, rest: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), with rest = 1 − x given apart so that no digits are lost."""
    if x == 0 or rest == 0:
        return float(rest == 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(rest, x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), the continued fraction of I_x (DLMF 8.17.22), by Lentz's method."""
    value, above, below = 1.0, 1.0, 0.0
    for n in range(1, 10_000):
        m, odd = divmod(n, 2)
        d = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1)) if odd else m * (b - m) / ((a + n - 1) * (a + n))
        below, above = 1 / (1 + d * x * below), 1 + d * x / above
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return value
