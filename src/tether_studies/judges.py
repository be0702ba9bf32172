"""Judges: is this more than that, given how much the runs vary? Each returns a verdict and its evidence.

A difference of less than two standard errors decides nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = [
    *("HELD", "NOT_HELD", "UNDECIDED", "Judgement"),
    *("every", "less", "mean_error", "more", "near", "plus_minus", "yes"),
]

HELD, NOT_HELD, UNDECIDED = "held", "not held", "not decided"
Judgement = tuple[str, str]  # verdict and evidence


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


def more(a: Any, b: Any, by: float = 0.0, errors: float = 2.0, paired: bool = False) -> Judgement:
    """Is a more than b, by at least so much? Verdict and evidence from the runs of both.

    >>> more([3.0, 3.1, 2.9, 3.0], [1.0, 1.1, 0.9, 1.0])
    ('held', 'difference 2 ± 0.058 over 4 and 4 runs')

    If run i of both had the same data and start, `paired`, their difference is judged run by run.

    >>> more([3.0, 3.1, 2.9, 3.0], [1.0, 1.1, 0.9, 1.1], paired=True)
    ('held', 'difference 1.98 ± 0.025 over 4 pairs of runs')
    """
    (ma, ea), (mb, eb) = mean_error(a), mean_error(b)
    difference, error = ma - mb - by, math.hypot(ea, eb)
    count = f"{np.size(a)} and {np.size(b)} runs"
    if paired:
        error = mean_error(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))[1]
        count = f"{np.size(a)} pairs of runs"
    text = f"difference {ma - mb:.3g} ± {error:.2g} over {count}"
    if math.isnan(error):
        return UNDECIDED, f"difference {ma - mb:.3g} of too few runs for an error"
    if abs(difference) <= errors * error or math.isnan(difference):
        return UNDECIDED, text
    return (HELD if difference > 0 else NOT_HELD), text


def less(a: Any, b: Any, by: float = 0.0, errors: float = 2.0, paired: bool = False) -> Judgement:
    """Is a less than b, by at least so much?"""
    return more(b, a, by, errors, paired)


def near(a: Any, b: Any, within: float, errors: float = 2.0) -> Judgement:
    """Is the mean of a within so much of the mean of b, with the errors of both allowed for?"""
    (ma, ea), (mb, eb) = mean_error(a), mean_error(b)
    difference, error = abs(ma - mb), math.hypot(0 if math.isnan(ea) else ea, 0 if math.isnan(eb) else eb)
    text = f"|difference| {difference:.3g} ± {error:.2g}, asked for: {within:.3g}"
    if difference + errors * error <= within:
        return HELD, text
    return (NOT_HELD if difference - errors * error > within else UNDECIDED), text


def yes(true: bool, evidence: str) -> Judgement:
    """A claim that needs no statistics."""
    return (HELD if true else NOT_HELD), evidence


def every(judged: Mapping[str, Judgement]) -> Judgement:
    """Several judgements by their names: held if all of them are, not held if one is not.

    >>> every({"here": ("held", "3 ± 1"), "there": ("not decided", "1 ± 1")})
    ('not decided', 'here: 3 ± 1 (held); there: 1 ± 1 (not decided)')
    """
    verdicts = {verdict for verdict, _ in judged.values()}
    found = NOT_HELD if NOT_HELD in verdicts else UNDECIDED if UNDECIDED in verdicts else HELD
    return found, "; ".join(f"{name}: {evidence} ({verdict})" for name, (verdict, evidence) in judged.items())
