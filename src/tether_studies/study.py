"""Study: a claim of a paper, an experiment that tests it, and what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from tether_studies.fields import fitted, mistake

if TYPE_CHECKING:
    from tether_studies.lab import Lab

__all__ = [
    *("HELD", "NOT_HELD", "UNDECIDED", "Claim", "Study", "Table"),
    *("every", "less", "mean_error", "more", "near", "plus_minus", "yes"),
]

HELD, NOT_HELD, UNDECIDED = "held", "not held", "not decided"
Results = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it gives as its number, what was measured here, and whether that bears it out."""

    text: str
    published: str
    measured: str
    verdict: str
    evidence: str = ""  # the statistics behind the verdict
    source: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text or numbers under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


def no_figures(results: Results, config: Any) -> Mapping[str, Any]:
    """What a study draws that draws nothing."""
    return {}


@dataclass(frozen=True)
class Study:
    """An experiment by its name, at three scales.

    Args:
        name: as `tether run` takes it, e.g. ``fig-3.8``.
        title: the claim in a line.
        source: document and figure or table.
        config: a frozen dataclass of plain values; its defaults end within ten minutes on two cores.
        run: the experiment: ``run(config, lab)`` returns results, plain values and arrays by name.
        claims: ``claims(results, config)`` sets measured beside published and says what holds.
        draw: ``draw(results, config)`` returns figures by name, drawn like the paper's.
        tables: ``tables(results, config)`` returns the numbers behind them.
        quick: fields of the config for a run of seconds, which shows that the program works and decides nothing.
        full: fields of the config for the paper's scale.
        data: the data sets it needs, by the names of their folders; packages as ``pip:NAME``, or ``weights:NAME``.
        notes: what differs from the paper, and why.
    """

    name: str
    title: str
    source: str
    config: type
    run: Callable[[Any, Lab], Results]
    claims: Callable[[Results, Any], list[Claim]]
    draw: Callable[[Results, Any], Mapping[str, Any]] = no_figures
    tables: Callable[[Results, Any], Sequence[Table]] = lambda results, config: ()
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    data: Sequence[str] = ()
    notes: str = ""

    def at(self, scale: str, **changes: Any) -> Any:
        """The config at a scale, ``default``, ``quick`` or ``full``, with some fields changed."""
        config = self.config()
        fields = {"default": {}, "quick": self.quick, "full": self.full}[scale]
        values = asdict(replace(config, **{**fields, **changes}))
        for name, kind in get_type_hints(self.config).items():
            try:
                values[name] = fitted(values[name], kind)
            except ValueError:
                example = getattr(config, name)
                raise TypeError(f"{self.name}: {mistake(name, values[name], kind, example)}") from None
        return replace(config, **values)

    def changed(self, scale: str, config: Any) -> dict[str, Any]:
        """The fields of a config that are not those of its scale."""
        own = asdict(self.at(scale))
        return {name: value for name, value in asdict(config).items() if value != own[name]}


# Judges. A difference of less than two standard errors decides nothing.


def mean_error(values: Any) -> tuple[float, float]:
    """Mean and standard error; the error of a single value is unknown, nan."""
    x = np.asarray(values, dtype=float).ravel()
    return float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def plus_minus(values: Any, digits: int = 1) -> str:
    """Mean ± standard error, as text.

    >>> plus_minus([1.0, 2.0, 3.0])
    '2.0 ± 0.6'
    """
    mean, error = mean_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def more(a: Any, b: Any, by: float = 0.0, errors: float = 2.0, paired: bool = False) -> tuple[str, str]:
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


def less(a: Any, b: Any, by: float = 0.0, errors: float = 2.0, paired: bool = False) -> tuple[str, str]:
    """Is a less than b, by at least so much?"""
    return more(b, a, by, errors, paired)


def near(a: Any, b: Any, within: float, errors: float = 2.0) -> tuple[str, str]:
    """Is the mean of a within so much of the mean of b, with the errors of both allowed for?"""
    (ma, ea), (mb, eb) = mean_error(a), mean_error(b)
    difference, error = abs(ma - mb), math.hypot(0 if math.isnan(ea) else ea, 0 if math.isnan(eb) else eb)
    text = f"|difference| {difference:.3g} ± {error:.2g}, asked for: {within:.3g}"
    if difference + errors * error <= within:
        return HELD, text
    return (NOT_HELD if difference - errors * error > within else UNDECIDED), text


def yes(true: bool, evidence: str) -> tuple[str, str]:
    """A claim that needs no statistics."""
    return (HELD if true else NOT_HELD), evidence


def every(judged: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Several judgements by their names: held if all of them are, not held if one is not.

    >>> every({"here": ("held", "3 ± 1"), "there": ("not decided", "1 ± 1")})
    ('not decided', 'here: 3 ± 1 (held); there: 1 ± 1 (not decided)')
    """
    verdicts = {verdict for verdict, _ in judged.values()}
    found = NOT_HELD if NOT_HELD in verdicts else UNDECIDED if UNDECIDED in verdicts else HELD
    return found, "; ".join(f"{name}: {evidence} ({verdict})" for name, (verdict, evidence) in judged.items())
