"""Table 6.1 and Figure 6.11: all influences on lines of loss and on test accuracy, side by side."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tether_studies.blocks import BLOCKS
from tether_studies.cases import SLOW_HIGH, walls
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, study
from tether_studies.influences import ALL, DEEPER, FEWER, STILL, UNNORMED
from tether_studies.judges import (
    HELD,
    LEVEL,
    NOT_HELD,
    POINT,
    UNDECIDED,
    Judgement,
    every,
    less,
    mean_error,
    more,
    undecided,
    yes,
)
from tether_studies.lab import joined
from tether_studies.lines import LOW
from tether_studies.other_starts import BARRED, CONVOLUTIONAL, PARTIAL, PLAIN, RANDOM, SCRATCH, TOP, often
from tether_studies.pretrained_starts import PRETRAINED
from tether_studies.pretrained_starts import SCRATCH as AFRESH
from tether_studies.replay import Absent, largest

CODES = {"monotone": "NB", "barrier": "B", "plateau": "P", "not finite": "∞"}
COLOURS = {"NB": "#3a7d44", "B": "#c2452d", "P": "#4c78b0", "∞": "#888888"}
Heights = Callable[[Results], Any]


def of_blocks(found: Results) -> Any:
    """The mean height of the barriers of the blocks."""
    return walls(found, BLOCKS[:4])


def of_the_line(found: Results) -> Any:
    """The height of the barrier of the whole network."""
    return found["barriers"]


class Row(NamedTuple):
    """A line of Table 6.1, and where its numbers come from."""

    category: str
    intervention: str
    shape: str  # as printed
    accuracy: str
    study: str
    cases: tuple[Any, ...]  # rows of that study's table
    base: Any
    heights: Heights | None = None  # of barriers, where the thesis says that they are higher or lower


START, DATA, OPTIMIZER, MODEL = "initialization", "data", "optimizer", "model"
FIXED = tuple(f"fixed h = {rate:g}" for rate in (0.1, 0.001))
ROWS = (
    Row(START, "pre-train the full model", "NB", "Better", "fig-6.4", (PRETRAINED,), AFRESH),
    Row(START, "pre-train on random labels", "H-LB", "Worse", "fig-6.2", (RANDOM,), PLAIN, of_the_line),
    Row(START, "start at the height of the barrier", "NB", "Better", "fig-6.2", (TOP,), BARRED),
    Row(START, "partial (pre-)training", "B/NB/P", "Often worse", "fig-6.2", tuple(PARTIAL.values()), "scratch"),
    Row(
        *(START, "partial random label pre-training", "B/NB", "Often worse", "fig-6.5"),
        tuple(("0", block) for block in CONVOLUTIONAL),
        ("0", SCRATCH),
    ),
    Row(DATA, "less data", "NB/L-LB", "Worse", "fig-6.6", (FEWER,), ALL, of_blocks),
    Row(DATA, "no data augmentation", "L-LB", "Worse", "fig-6.6", (STILL,), ALL, of_blocks),
    Row(OPTIMIZER, "less weight decay", "NB/B", "Worse", "fig-6.6", ("decay 0", "decay 0.0001"), ALL),
    Row(OPTIMIZER, "more weight decay", "P", "Worse", "fig-6.6", ("decay 0.005",), ALL),
    Row(OPTIMIZER, "fixed learning rate h = 0.01", "P", "Better", "fig-6.6", ("fixed h = 0.01",), ALL),
    Row(OPTIMIZER, "fixed learning rate h ≠ 0.01", "NB", "Worse", "fig-6.6", FIXED, ALL),
    Row(OPTIMIZER, "smaller h for conv blocks with barriers", "NB", "Worse", "fig-6.6", (SLOW_HIGH,), ALL),
    Row(MODEL, "depth", "H-LB", "Better", "fig-6.6", (DEEPER,), ALL, of_blocks),
    Row(MODEL, "no batch normalization", "NB", "Worse", "fig-6.6", (UNNORMED,), ALL),
    Row(MODEL, "MLPs: overparameterize", "NB", "Often better", "fig-6.17", (("wide", "net"),), ("narrow", "net")),
)


class Case(NamedTuple):
    """One way of doing an intervention."""

    name: str
    shape: str  # of most of its lines, by the letters of Table 6.1
    gains: np.ndarray  # in accuracy, run by run

    @property
    def gain(self) -> str:
        """The mean gain in points, and its error."""
        return "{:+.1f} ± {:.1f}".format(*mean_error(self.gains))


class Effect(NamedTuple):
    """What an intervention did."""

    shapes: Counter[str]  # of all lines
    cases: list[Case]
    shape: Judgement  # as printed?
    accuracy: Judgement


def right(found: Results) -> Any:
    """Test accuracies of the runs."""
    return found["accuracy"] if "accuracy" in found else found["accuracies"]


def effect(row: Row, found: Mapping[Any, Results]) -> Effect:
    """Of a row, from the table of its study."""
    base, cases = found[row.base], {joined(case): found[case] for case in row.cases}
    counts = {len(right(one)) for one in (base, *cases.values())}
    if len(counts) > 1:
        raise Absent(f"{row.study}: not every run of {row.base!r} has a counterpart in {', '.join(cases)}")
    lines = {name: Counter(CODES[str(shape)] for shape in one["shapes"]) for name, one in cases.items()}
    judge = more if "etter" in row.accuracy else less
    judged = {name: judge(right(one), right(base), least=POINT) for name, one in cases.items()}
    accuracy = often(judged) if row.accuracy.startswith("Often") else every(judged)
    ways = [
        Case(f"{row.intervention} ({name})", lines[name].most_common(1)[0][0], np.asarray(right(one)) - right(base))
        for name, one in cases.items()
    ]
    shapes = sum(lines.values(), Counter())
    return Effect(shapes, ways, shaped(row, shapes, base, cases), accuracy)


def both_ways(cases: Sequence[Case]) -> Judgement:
    """Is there a shape with which accuracy rises in one case and falls in another, beyond 5 % for as many cases?"""
    found = list[str]()
    runs = min((len(case.gains) for case in cases), default=None)
    for code in COLOURS:
        ends = []
        for judge in (more, less):
            judged = [(judge(case.gains, 0.0), case) for case in cases if case.shape == code]
            clear = [(one.p, case) for one, case in judged if one.verdict == HELD and one.p * len(cases) <= LEVEL]
            ends += [f"{case.gain} by {case.name}" for _, case in sorted(clear, key=lambda pair: pair[0])[:1]]
        if len(ends) == 2:
            found.append(f"{code}: {' and '.join(ends)}")
    if not found:
        return undecided("no shape is seen with accuracies that rise and that fall")._replace(runs=runs)
    return Judgement(HELD, "; ".join(found), runs)


def shaped(row: Row, shapes: Counter[str], base: Results, cases: Mapping[str, Results]) -> Judgement:
    """Do most lines have a shape of those printed, or are barriers higher or lower as printed? One is enough."""
    printed, parts = row.shape.split("/"), dict[str, Judgement]()
    known = [code for code in printed if code in COLOURS]
    if known:
        fitting = sum(shapes[code] for code in known)
        parts["lines"] = yes(2 * fitting > shapes.total(), f"{fitting} of {shapes.total()} are {' or '.join(known)}")
    for code, judge in (("H-LB", more), ("L-LB", less)):
        if code in printed and row.heights is not None:
            tall = row.heights(base)
            parts[code] = every({name: judge(row.heights(one), tall, least=LOW) for name, one in cases.items()})
    whole, verdicts = every(parts), {one.verdict for one in parts.values()}
    return whole._replace(verdict=next(x for x in (HELD, UNDECIDED, NOT_HELD) if x in verdicts))


@study("overview", "thesis, Table 6.1, Figure 6.11")
class Overview(Experiment):
    """the shape of a line and the test accuracy change independently of each other

    The interventions of Table 6.1, from what fig-6.2, fig-6.4, fig-6.5, fig-6.6 and fig-6.17 have found, each at the
    largest scale that was run in the same folder. Nothing is trained: run it again after them.

    The claim holds if with one shape of most lines accuracy rises in one case and falls in another, each at 5 % divided
    by the number of cases. What the thesis says of single interventions is judged in those studies and not counted
    again here. NB is no barrier, B a barrier, P a plateau, H-LB and L-LB are higher and lower barriers of layers. A
    shape is as printed if most lines have it; partial pre-training is that of trained networks. Where the thesis says
    H-LB of a start on random labels, the barrier of the whole network is compared.
    """

    says = """
        the shape of a line does not tell the test accuracy
            | Table 6.1, Figure 6.11: the shape of the linear path from initial to final state is not a reliable
            indicator of test accuracy
    """

    def run(self, lab: Lab) -> Results:
        """The table of every study that has been run; for the others what to run."""
        found = largest(lab, dict.fromkeys(row.study for row in ROWS))
        return {name: one if isinstance(one, Absent) else one[0].tabled(one[1]) for name, one in found.items()}

    def effects(self, results: Results) -> list[Effect | Absent]:
        """Of every row, or why there is none."""
        found: list[Effect | Absent] = []
        for row in ROWS:
            table = results[row.study]
            try:
                if isinstance(table, Absent):
                    raise table
                missing = [case for case in (row.base, *row.cases) if case not in table]
                if missing:
                    raise Absent(f"{row.study} has no run of {missing[0]!r}")
                found.append(effect(row, table))
            except Absent as absent:
                found.append(absent)
        return found

    def claims(self, results: Results) -> Found:
        effects = self.effects(results)
        found = [one for one in effects if isinstance(one, Effect)]
        counts = {what: sum(getattr(one, what).verdict == HELD for one in found) for what in ("shape", "accuracy")}
        said = f"of {len(ROWS)} rows {counts['shape']} have the shapes and {counts['accuracy']} the accuracy as printed"
        missing = next((f"; {one}" for one in effects if isinstance(one, Absent)), "")
        yield said + missing, both_ways([case for one in found for case in one.cases])

    def tables(self, results: Results) -> list[Table]:
        head = ["category", "intervention", "shapes of lines", "change of accuracy", "thesis: shape", "accuracy"]
        rows = []
        for row, one in zip(ROWS, self.effects(results), strict=True):
            if isinstance(one, Absent):
                cells = ["–", str(one), row.shape, row.accuracy]
            else:
                printed = f"{row.shape} ({one.shape.verdict})", f"{row.accuracy} ({one.accuracy.verdict})"
                cells = [told(one.shapes), ", ".join(case.gain for case in one.cases), *printed]
            rows.append([row.category, row.intervention, *cells])
        return [Table(head, rows, "Accuracy in points against the base of each row, mean ± standard error")]

    def draw(self, results: Results) -> Figures:
        """A point for each intervention: how accuracy changes, coloured by the most frequent shape."""
        figure, axis = subplots(figsize=(11, 6))
        for i, one in enumerate(self.effects(results)):
            if isinstance(one, Absent):
                axis.text(0.0, i, "not run", ha="center", va="center", fontsize=8, color="#888888")
                continue
            for case in one.cases:
                mean, error = mean_error(case.gains)
                axis.errorbar(mean, i, xerr=error, fmt="o", color=COLOURS[case.shape], capsize=3)
        axis.axvline(0, color="#888888", lw=0.8)
        labels = [f"{row.category}: {row.intervention} ({row.shape}, {row.accuracy})" for row in ROWS]
        axis.set(yticks=range(len(ROWS)), yticklabels=labels, ylim=(len(ROWS) - 0.5, -0.5))
        axis.set_xlabel("test accuracy against the base, points")
        for code in ("NB", "B", "P"):
            axis.plot([], [], "o", color=COLOURS[code], label=code)
        axis.legend(title="most lines", loc="lower right")
        axis.set_title("Figure 6.11; in brackets what the thesis has", fontsize=10)
        return {"overview": figure}


def told(shapes: Counter[str]) -> str:
    return ", ".join(f"{count} {code}" for code, count in shapes.most_common())
