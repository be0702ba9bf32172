"""Figures 3.6 to 3.8: what thermodynamic methods do to the weights, and how well they classify spirals."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import tether
from tether_studies.drawing import beside, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, recipe, study
from tether_studies.judges import every, falls, less, more, near, plus_minus, yes
from tether_studies.planar import ACCURACY, BEST, WORST, Task, todo
from tether_studies.quantities import Quantity, given, within

adlala = partial(recipe, "adlala", lr=0.25, temperature=1e-4, noise=0.01, coupling=0.1)
METHODS = {
    "SGD": recipe("sgd", lr=0.1),
    "SGLD": recipe("sgld", lr=0.1, noise=0.1),
    "Adam": recipe("Adam", lr=0.005),
    "AdLaLa γ=10": adlala(friction=10.0),
    "AdLaLa γ=0.5": adlala(friction=0.5),
    "LOL": recipe("lol", lr=0.25, friction=0.01, temperature=1e-3),
}
PUBLISHED = {"SGD": 79.0, "SGLD": 78.0, "Adam": 83.7, "AdLaLa γ=10": 85.5, "AdLaLa γ=0.5": 93.4}  # over 100 runs
TASK = Task("spiral", {"turns": 2.0}, nodes=20, train=500, batch=25)  # with torch's start, as the authors' program
ORDER = ("AdLaLa γ=0.5", "AdLaLa γ=10", "Adam", "SGD")
SMALL = 0.1  # what counts as close to zero


def parameters(step: int, nets: tether.Replicas) -> dict[str, torch.Tensor]:
    """The weights of both layers and the biases of the first, a row for each replica, in 16 bits: they are many."""
    W, b, V, _ = (x.detach().half() for x in nets.parameters())
    return {"weights 1": W.flatten(1), "biases": b, "weights 2": V.flatten(1)}


def inner(found: Results, record: int = -1) -> np.ndarray:
    """The weights and biases of the hidden layer, a row for each run."""
    return np.concatenate((found["weights 1"][record], found["biases"][record]), 1).astype(np.float32)


def small(found: Results) -> np.ndarray:
    """Per cent of the hidden layer's parameters that are close to zero, for each run."""
    return 100 * (np.abs(inner(found)) < SMALL).mean(1)


ZEROS = Quantity(f"|parameter| < {SMALL}, %", small, unit=" %")


def histogram(axis: Any, values: np.ndarray, limit: float, bins: int, logarithmic: bool = False, **style: Any) -> None:
    """Draw counts from −limit to limit; what lies beyond is in the outermost bins."""
    counts, edges = np.histogram(np.clip(values.astype(np.float32), -limit, limit), bins, (-limit, limit))
    axis.stairs(np.log1p(counts) if logarithmic else counts, edges, fill=True, **style)
    axis.set(yticks=[], xlim=(-limit, limit))


@study("fig-3.8", "thesis, Figure 3.8")
class Weights(Experiment):
    """AdLaLa classifies the two-turn spiral best and leaves no weights near zero

    20 ReLU nodes, 500 points, 25 at a time, 10,000 steps, a hundred runs of each method.

    The start is not given: torch's own is taken, as in the authors' program, and for the order also 0.01 N(0, 1) with
    biases 0. SGD and Adam depend on it, AdLaLa does not.
    """

    says = """
        AdLaLa with γ = 0.5 has the highest test accuracy of the five
            | SGD 79.0 %, SGLD 78.0 %, Adam 83.7 %, AdLaLa γ=10 85.5 %, AdLaLa γ=0.5 93.4 %
        first AdLaLa with γ = 0.5, then with γ = 10, then Adam, then SGD, from torch's start
            | AdLaLa γ=0.5 93.4 %, AdLaLa γ=10 85.5 %, Adam 83.7 %, SGD 79.0 %
        first AdLaLa with γ = 0.5, then with γ = 10, then Adam, then SGD, from 0.01 N(0, 1)
            | AdLaLa γ=0.5 93.4 %, AdLaLa γ=10 85.5 %, Adam 83.7 %, SGD 79.0 %
        SGLD, with so much noise, is less accurate than SGD | SGLD 78.0 %, SGD 79.0 %
        the mean test accuracies | SGD 79.0 %, SGLD 78.0 %, Adam 83.7 %, AdLaLa γ=10 85.5 %, AdLaLa γ=0.5 93.4 %
        SGD and Adam leave many weights and biases close to zero, SGLD and AdLaLa do not
            | section 3.5: many (close to) zero; most equally activated
        the weights of layer 2 tend to be larger than those of layer 1, but not for AdLaLa with large γ
            | Figure 3.8, in words
        with LOL weights and biases of layer 1 can become very large | of the order 10² (not shown in the figure)
        best and worst run: far apart for Adam, less for LOL, still less for AdLaLa
            | 35 points for Adam, 10 for LOL, less for AdLaLa
        Adam does worse where more of its parameters are zero | section 3.5, in words
    """
    columns = (ACCURACY, WORST, BEST, given("thesis", "thesis %"), ZEROS)
    caption = "{runs} runs of {steps:,} steps"
    runs: int = at(100, quick=4, long=2000, full=2000)
    steps: int = at(10_000, quick=100)

    def run(self, lab: Lab) -> Results:
        """Test accuracies and parameters of all runs at the end."""
        other = {f"{name}, 0.01 N(0, 1)": METHODS[name] for name in ORDER}
        tasks = ((TASK, METHODS), (replace(TASK, spread=0.01), other))
        work = [todo(lab, task, methods, self.steps, self.runs, watch=parameters) for task, methods in tasks]
        return lab.pieces(work[0] | work[1])

    def claims(self, results: Results) -> Found:
        of, names = ACCURACY.of(results, METHODS), tuple(PUBLISHED)
        yield ACCURACY.more(results, ORDER[0], (*ORDER[1:], "SGLD"), names=names)
        for start in ("", ", 0.01 N(0, 1)"):  # the thesis does not say from which
            by = {name: results[f"{name}{start}"] for name in ORDER}
            half = {(a, b): (PUBLISHED[a] - PUBLISHED[b]) / 2 for a, b in pairwise(ORDER)}
            judged = {f"{a} > {b}": ACCURACY.more(by, a, b, least=least)[1] for (a, b), least in half.items()}
            yield ACCURACY.listed(by), every(judged)
        yield ACCURACY.less(results, "SGLD", "SGD", least=(PUBLISHED["SGD"] - PUBLISHED["SGLD"]) / 2)
        means = every({name: near(of[name], value, within=3.0) for name, value in PUBLISHED.items()})
        yield ACCURACY.listed(results, *names), means
        many, told = (("SGD", "Adam"), ("SGLD", "AdLaLa γ=0.5")), f"|parameter| < {SMALL}: "
        yield ZEROS.more(results, *many, told=told, names=METHODS)
        layers = ("weights 1", "weights 2")
        sizes = {name: [np.abs(results[name][layer][-1]).mean(1) for layer in layers] for name in METHODS}
        judged = {name: more(b, a) for name, (a, b) in sizes.items() if name not in ("AdLaLa γ=10", "LOL")}
        text = ", ".join(f"{name} {a.mean():.2f}, {b.mean():.2f}" for name, (a, b) in sizes.items())
        large = less(*reversed(sizes["AdLaLa γ=10"]))
        yield f"mean |w| of layers 1 and 2: {text}", every(judged | {"AdLaLa γ=10": large})
        largest = float(np.abs(inner(results["LOL"])).max())
        evidence = "on a logarithmic scale nearer to 100 than to 10, or beyond"
        yield f"the largest is {largest:.0f}", yes(largest > 10**1.5, evidence)
        spread = {name: float(np.ptp(of[name])) for name in ("Adam", "LOL", "AdLaLa γ=0.5")}
        ordered = spread["AdLaLa γ=0.5"] < spread["LOL"] < spread["Adam"]
        yield ", ".join(f"{name} {x:.1f}" for name, x in spread.items()), yes(ordered, f"of {self.runs} runs each")
        judgement = falls(small(results["Adam"]), of["Adam"])
        yield f"share below {SMALL}: {plus_minus(small(results['Adam']))} %; {judgement.evidence}", judgement

    def tabled(self, results: Results) -> dict[str, Results]:
        return {x: one | {"thesis": PUBLISHED.get(x.partition(",")[0], "–")} for x, one in results.items()}

    def draw(self, results: Results) -> Figures:
        kinds = {"weights 1": "weights, layer 1", "biases": "biases, layer 1", "weights 2": "weights, layer 2"}
        figure, panels = subplots(len(METHODS), 3, figsize=(7.2, 9.5), sharex="col")
        for row, name in zip(panels, METHODS, strict=True):
            for axis, kind in zip(row, kinds, strict=True):
                histogram(axis, results[name][kind][-1], 8.0, 160, color="#1f5fa8")
            row[0].set_ylabel(name, fontsize=9)
            accuracy = ACCURACY.take(results[name]).mean()
            row[2].text(0.98, 0.8, f"{accuracy:.1f} %", transform=row[2].transAxes, ha="right")
        for axis, title in zip(panels[0], kinds.values(), strict=True):
            axis.set_title(title, fontsize=10)
        printed = {name: (mean, math.nan) for name, mean in PUBLISHED.items()}
        means = beside(printed, ACCURACY.of(results, PUBLISHED), ACCURACY.name)
        figure.supxlabel("value; beyond ±8 in the outermost bins", fontsize=9)
        figure.suptitle(f"Parameters of {self.runs} runs, two-turn spiral (Figure 3.8)", fontsize=11)
        return {"weights": figure, "accuracies": means}


OVER_TIME = {
    "SGD": recipe("sgd", lr=0.2),
    "Adam": recipe("Adam", lr=0.005),
    "SGLD": recipe("sgld", lr=0.1, noise=0.01),
    "SGLD σ=0.1": recipe("sgld", lr=0.1, noise=0.1),  # as in Figure 3.8; not in the captions
}
AT_END = {  # published, by the turns
    2: {"SGD": 96.0, "Adam": 99.0, "SGLD": 74.0, "AdLaLa": 99.0},
    4: {"SGD": 58.0, "Adam": 67.0, "SGLD": 54.0, "AdLaLa": 80.0},
}
FRICTIONS = {2: 0.5, 4: 0.1}  # of AdLaLa
SIZE = Quantity("mean |parameter|", lambda found: np.abs(found["values"]).mean(1), 3)


@study("fig-3.6", "thesis, Figures 3.6, 3.7")
class OverTime(Experiment):
    """thermodynamic methods excite all weights at once; on four turns that pays

    500 ReLU nodes, 1000 points, 20 at a time, on two and four turns, seen after 50, 1000 and 10,000 steps.

    The figures show a single run; here several. Their start is not given: 0.01 N(0, 1) is taken, as in Figures 3.9 and
    3.14, with biases 0. Their captions give σ = 0.01 for SGLD; here also the σ = 0.1 of Figure 3.8.
    """

    says = """
        on two turns SGD, Adam and AdLaLa find good minima, SGLD does not
            | Figure 3.6, step 10,000: SGD 96 %, Adam 99 %, SGLD 74 %, AdLaLa 99 %
        on four turns AdLaLa is far ahead of SGD, Adam and SGLD
            | Figure 3.7, step 10,000: SGD 58 %, Adam 67 %, SGLD 54 %, AdLaLa 80 %
        after 50 steps the thermodynamic methods have excited the parameters more than SGD and Adam
            | Figures 3.6, 3.7: the dark green histograms
        SGLD assigns larger values to the parameters than AdLaLa | Figures 3.6, 3.7: much larger
    """
    runs: int = at(8, quick=2, long=24, full=100)
    nodes: int = at(500, quick=50)
    times: tuple[int, ...] = at((50, 1000, 10_000), quick=(20, 40, 100))
    start: float = 0.01  # standard deviation of the first weights

    def run(self, lab: Lab) -> Results:
        """Test accuracies and parameters at three times."""
        work: dict[Any, Any] = {}
        for turns, friction in FRICTIONS.items():
            task = Task("spiral", {"turns": float(turns)}, self.nodes, spread=self.start)
            made = OVER_TIME | {"AdLaLa": adlala(friction=friction)}
            methods = {(f"{turns} turns", name): made[name] for name in made}
            work |= todo(lab, task, methods, self.times[-1], self.runs, records=self.times, watch=parameters)
        return lab.pieces(work)

    def claims(self, results: Results) -> Found:
        two, four = (within(results, f"{turns} turns") for turns in FRICTIONS)
        yield ACCURACY.more(two, ("SGD", "Adam", "AdLaLa"), "SGLD", names=two)
        yield ACCURACY.more(four, "AdLaLa", ("SGD", "Adam", "SGLD"), names=four)
        early, late = ({x: {"values": inner(found, record)} for x, found in four.items()} for record in (0, -1))
        yield sizes("mean |parameter| on four turns: ", early), SIZE.more(early, ("SGLD", "AdLaLa"), ("SGD", "Adam"))[1]
        yield sizes("mean |parameter| on four turns, in the end: ", late), SIZE.more(late, "SGLD", "AdLaLa")[1]

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for turns, published in AT_END.items():
            for name, found in within(results, f"{turns} turns").items():
                rows.append([turns, name, *map(plus_minus, found["accuracy"][:, 0]), published.get(name, "–")])
        times = [f"% at step {t:,}" for t in self.times]
        return [Table(["turns", "method", *times, "thesis %, at the end"], rows, f"Test accuracy, {self.runs} runs")]

    def draw(self, results: Results) -> Figures:
        figure, panels = subplots(4, 5, figsize=(8.6, 8.4), sharex="row")
        rows = [(turns, kind) for turns in FRICTIONS for kind in ("weights 1", "biases")]
        for line, (turns, kind) in zip(panels, rows, strict=True):
            for axis, (name, found) in zip(line, within(results, f"{turns} turns").items(), strict=True):
                for i, colour in enumerate(("#14532d", "#3f9b5f", "#f2c14e")):
                    style = {"color": colour, "alpha": 0.6, "label": f"step {self.times[i]:,}"}
                    histogram(axis, found[kind][i], 2.0, 80, logarithmic=True, **style)
                if line[0] is panels[0, 0]:
                    axis.set_title(name, fontsize=10)
            line[0].set_ylabel(f"{turns} turns, {kind}", fontsize=9)
        title = "value; beyond ±2 in the outermost bins"
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, title=title)
        title = f"First layer over time, {self.nodes} nodes, logarithmic counts (Figures 3.6, 3.7)"
        figure.suptitle(title, fontsize=11)
        return {"weights": figure}


def sizes(text: str, found: dict[str, Results]) -> str:
    return text + ", ".join(f"{name} {SIZE.take(x).mean():.3f}" for name, x in found.items())
