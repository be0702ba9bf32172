"""Judges: is this more than that, given how much the runs vary? Each returns a verdict and its evidence.

One level for all: a verdict is given where Student's t, two-sided, is beyond its 5 % point for the number of runs there
is. Run i of both sides is a pair, for it has the same data, start or minibatches; where it has not, a study says why
(`apart`). "As good as" is two one-sided tests at 5 % against a margin (`near`), "no worse than" is one of them
(`no_worse`). A claim of a difference is not held, either, where the same two tests show that there is none that it can
mean (`least`). Verdicts from fewer than four runs are provisional.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tether_studies.student import quantile, tail

__all__ = [
    "HELD",
    "LEVEL",
    "NOT_HELD",
    "POINT",
    "UNDECIDED",
    "UNJUDGED",
    "Judgement",
    "chosen",
    "every",
    "falls",
    "judging",
    "less",
]
__all__ += ["mean_error", "more", "near", "no_worse", "plus_minus", "undecided", "yes"]

HELD, NOT_HELD, UNDECIDED, UNJUDGED = "held", "not held", "not decided", "not judged"
LEVEL = 0.05  # of every test
FEW = 4  # verdicts from fewer runs are provisional
POINT = 1.0  # of accuracy in per cent: the least difference that a picture, or words, can mean
K = TypeVar("K")


class Judgement(NamedTuple):
    """A verdict and what it rests on."""

    verdict: str
    evidence: str
    runs: int | None = None  # the least number behind it; None if it is no matter of statistics
    p: float = 0.0  # of its test: how often a difference like this comes from none

    @property
    def provisional(self) -> bool:
        return self.runs is not None and self.runs < FEW


def mean_error(values: Any) -> tuple[float, float]:
    """Mean and standard error; nan where they are unknown: the error of a single value, both of none."""
    x = np.asarray(values, dtype=float).ravel()
    return float(x.mean()) if len(x) else math.nan, float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def plus_minus(values: Any, digits: int = 1) -> str:
    """Mean ± standard error, as text.

    >>> plus_minus([1.0, 2.0, 3.0])
    '2.0 ± 0.6'
    """
    mean, error = mean_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def more(a: Any, b: Any, by: float = 0.0, apart: str = "", least: float = 0.0) -> Judgement:
    """Is a more than b, by at least so much? Run i of both is a pair; b may be one number.

    >>> more([3.0, 3.1, 2.9, 3.0], [1.0, 1.1, 0.9, 1.1])[:3]
    ('held', 'difference 1.98 ± 0.025 over 4 pairs of runs, t = 79 (3.18 needed)', 4)

    `apart` says why runs are no pairs. The error is that of both sides then, its degrees of freedom those of Welch.

    >>> more([3.0, 3.1, 2.9, 3.0], [1.0, 1.1, 0.9], apart="other data").evidence
    'difference 2 ± 0.071 over 4 and 3 runs (other data), t = 28 (2.82 needed)'

    `least` is the smallest difference that the claim can mean. If two one-sided tests at 5 % find a smaller one, either
    way, the claim is not held: there is no such difference.

    >>> more([1.0, 1.25, 0.75, 1.0], 1.0, least=0.5)[:2]
    ('not held', 'difference 0 ± 0.1 over 4 runs, t = 0 (3.18 needed), less than 0.5 either way: t = 4.9 (2.35 needed)')
    """
    found = _difference(a, b, apart)
    distance = found.mean - by
    if math.isnan(found.error) or math.isnan(distance):
        return Judgement(UNDECIDED, f"difference {found.mean:.3g}, {found.over}", found.runs, 1.0)
    needed = quantile(LEVEL, found.freedom)
    t = found.errors(distance)
    asked = f", {by:g} asked for" if by else ""
    text = f"difference {found} over {found.over}{asked}, t = {t:.2g} ({needed:.3g} needed)"
    if abs(t) > needed:
        return Judgement(HELD if t > 0 else NOT_HELD, text, found.runs, tail(t, found.freedom))
    small, needed = found.errors(least - abs(distance)), quantile(2 * LEVEL, found.freedom)
    if small > needed:
        text += f", less than {least:.2g} either way: t = {small:.2g} ({needed:.3g} needed)"
        return Judgement(NOT_HELD, text, found.runs, tail(small, found.freedom) / 2)
    return Judgement(UNDECIDED, text, found.runs, tail(t, found.freedom))


def less(a: Any, b: Any, by: float = 0.0, apart: str = "", least: float = 0.0) -> Judgement:
    """Is a less than b, by at least so much?"""
    return more(b, a, by, apart, least)


def near(a: Any, b: Any, within: float, apart: str = "") -> Judgement:
    """Is a as good as b, to a margin? Two one-sided tests at 5 % against −margin and margin.

    Not held is what lies beyond the margin by the two-sided test.

    >>> near([1.0, 1.25, 0.75, 1.0], 1.0, within=0.5)[:2]
    ('held', 'difference 0 ± 0.1 over 4 runs, margin 0.5: t = 4.9 (2.35 needed)')
    """
    return _margin(a, b, within, apart, both=True)


def no_worse(a: Any, b: Any, within: float, apart: str = "") -> Judgement:
    """Is a not less than b by more than a margin? The lower of the two one-sided tests of `near`."""
    return _margin(a, b, within, apart, both=False)


def _margin(a: Any, b: Any, within: float, apart: str, both: bool) -> Judgement:
    found = _difference(a, b, apart)
    if math.isnan(found.error) or math.isnan(found.mean):
        return Judgement(UNDECIDED, f"difference {found.mean:.3g}, {found.over}", found.runs, 1.0)
    one, two = quantile(2 * LEVEL, found.freedom), quantile(LEVEL, found.freedom)
    t = found.errors(within - abs(found.mean) if both else within + found.mean)
    text = f"difference {found} over {found.over}, margin {within:.3g}: t = {t:.2g} ({one:.3g} needed)"
    verdict = HELD if t > one else NOT_HELD if t < -two else UNDECIDED
    return Judgement(verdict, text, found.runs, tail(t, found.freedom))


class _Difference(NamedTuple):
    mean: float
    error: float
    freedom: float
    runs: int
    over: str

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.error:.2g}"

    def errors(self, distance: float) -> float:
        """A distance in standard errors; without an error it is infinite."""
        return distance / self.error if self.error else math.copysign(math.inf, distance) if distance else 0.0


def _difference(a: Any, b: Any, apart: str) -> _Difference:
    """Of two sides' runs, in pairs unless they are apart, or of one side's from a number."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if y.ndim == 0 or x.ndim == 0:
        n = max(x.size, y.size)
        return _Difference(*mean_error(x - y), n - 1, n, _counted(n, "run"))
    x, y = x.ravel(), y.ravel()
    if not apart:
        if len(x) != len(y):
            rule = "runs are pairs; if they are none, say why: apart='each has its own data'"
            raise ValueError(f"{len(x)} runs against {len(y)}: {rule}")
        return _Difference(*mean_error(x - y), len(x) - 1, len(x), _counted(len(x), "pair of runs", "pairs of runs"))
    (mx, ex), (my, ey) = mean_error(x), mean_error(y)
    error = math.hypot(ex, ey)
    parts = ex**4 / (len(x) - 1) + ey**4 / (len(y) - 1) if error > 0 else math.nan
    freedom = error**4 / parts if parts > 0 else min(len(x), len(y)) - 1
    return _Difference(mx - my, error, freedom, min(len(x), len(y)), f"{len(x)} and {len(y)} runs ({apart})")


def _counted(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def falls(x: Any, y: Any) -> Judgement:
    """Is y less in runs with more x? Without a correlation r √(n − 2) / √(1 − r²) is Student's t, n − 2 freedoms.

    >>> falls([0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.5])[:2]
    ('held', 'correlation -0.99 over 4 runs, t = -9.8 (4.3 needed)')
    """
    n = np.size(x)
    if n < 3 or not (np.ptp(x) and np.ptp(y)):
        return undecided(f"{n} runs that do not differ" if n > 2 else f"{n} runs")
    r = float(np.corrcoef(x, y)[0, 1])
    t = r * math.sqrt((n - 2) / (1 - r * r)) if abs(r) < 1 else math.copysign(math.inf, r)
    needed = quantile(LEVEL, n - 2)
    verdict = UNDECIDED if abs(t) <= needed else HELD if t < 0 else NOT_HELD
    return Judgement(
        verdict, f"correlation {r:.2f} over {n} runs, t = {t:.2g} ({needed:.3g} needed)", n, tail(t, n - 2)
    )


def judging(values: Any) -> np.ndarray:
    """The runs that judge a winner: those with odd numbers; the even ones choose it (`chosen`)."""
    return np.asarray(values, dtype=float).ravel()[1::2]


def chosen(cells: Mapping[K, Any], best: Callable[..., K] = max) -> K:
    """The name of the best mean over the runs with even numbers. The odd ones are left to judge it (`judging`).

    A winner that is judged by the runs that chose it is ahead by luck as well.

    >>> cells = {"a": [1.0, 9.0, 1.0, 9.0], "b": [2.0, 0.0, 2.0, 0.0]}
    >>> chosen(cells), chosen(cells, min), judging(cells["b"]).tolist()
    ('b', 'a', [0.0, 0.0])
    """
    return best(cells, key=lambda name: float(np.mean(np.asarray(cells[name], dtype=float).ravel()[::2])))


def yes(true: Any, evidence: str) -> Judgement:
    """A claim that needs no statistics."""
    return Judgement(HELD if true else NOT_HELD, evidence)


def undecided(evidence: str) -> Judgement:
    """What this run cannot tell, and why."""
    return Judgement(UNDECIDED, evidence, p=1.0)


def every(judged: Mapping[str, Judgement]) -> Judgement:
    """The parts of a claim by their names, each with its own verdict: held if all of them are.

    Not held if one is not even at 5 % divided by the number of parts: of many parts one fails by chance.

    >>> every({"here": Judgement("held", "3 ± 1", 4), "there": Judgement("not decided", "1 ± 1", 5)})[:3]
    ('not decided', 'here: 3 ± 1 (held); there: 1 ± 1 (not decided)', 4)
    """
    parts = list(judged.values())
    clear = [one for one in parts if one.verdict == NOT_HELD and one.p * len(parts) <= LEVEL]
    found = NOT_HELD if clear else HELD if all(one.verdict == HELD for one in parts) else UNDECIDED
    text = "; ".join(f"{name}: {one.evidence} ({one.verdict})" for name, one in judged.items())
    ps = [one.p for one in parts]
    p = min(1.0, len(ps) * min(one.p for one in clear)) if clear else max(ps, default=0.0)
    return Judgement(found, text, min((one.runs for one in parts if one.runs is not None), default=None), p)
