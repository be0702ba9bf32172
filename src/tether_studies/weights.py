"""Figure 3.8: AdLaLa classifies the two-turn spiral best, and leaves no weights near zero as SGD and Adam do.

20 ReLU nodes, 500 points, 25 at a time, 10,000 steps, a hundred runs of each method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED, every, less, more, near, yes
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, BEST, WORST, Task, learn
from tether_studies.quantities import Quantity, listed
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.8",
    "AdLaLa classifies the two-turn spiral best and leaves no weights near zero",
    "thesis, Figure 3.8",
    notes="The start is not given: torch's own is taken, as in the authors' program, and for the order also "
    "0.01 N(0, 1) with biases 0. SGD and Adam depend on it, AdLaLa does not.",
)
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
GAUSSIAN = replace(TASK, spread=0.01)  # the other start of the chapter
ORDER = ("AdLaLa γ=0.5", "AdLaLa γ=10", "Adam", "SGD")
SMALL = 0.1  # what counts as close to zero


@dataclass(frozen=True)
class Config:
    runs: int = at(100, quick=4, full=1000)
    steps: int = at(10_000, quick=100)


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies and parameters of all runs at the end."""
    seed = lab.named_seed("runs")
    size: dict[str, Any] = {"steps": config.steps, "runs": config.runs, "seed": seed, "watch": parameters}
    work = {name: partial(learn, TASK, made, **size) for name, made in METHODS.items()}
    return lab.pieces(work | {gaussian(name): partial(learn, GAUSSIAN, METHODS[name], **size) for name in ORDER})


def gaussian(name: str) -> str:
    return f"{name}, 0.01 N(0, 1)"


def parameters(step: int, nets: tether.Replicas) -> dict[str, torch.Tensor]:
    """The weights of both layers and the biases of the first, a row for each replica."""
    W, b, V, _ = nets.parameters()
    return {"weights 1": W.flatten(1), "biases": b, "weights 2": V.flatten(1)}


def inner(found: Results, record: int = -1) -> np.ndarray:
    """The weights and biases of the hidden layer, a row for each run."""
    return np.concatenate((found["weights 1"][record], found["biases"][record]), 1)


def small(found: Results) -> np.ndarray:
    """Per cent of the hidden layer's parameters that are close to zero, for each run."""
    return 100 * (np.abs(inner(found)) < SMALL).mean(1)


ZEROS = Quantity(f"|parameter| < {SMALL}, %", small, unit=" %")


def claims(results: Results, config: Config) -> Claims:
    of, names = ACCURACY.of(results, METHODS), tuple(PUBLISHED)
    published = ", ".join(f"{name} {value} %" for name, value in PUBLISHED.items())
    yield Claim(
        "AdLaLa with γ = 0.5 has the highest test accuracy of the five",
        published,
        ACCURACY.listed(results, *names),
        *every({f"> {name}": more(of[ORDER[0]], of[name]) for name in (*ORDER[1:], "SGLD")}),
    )
    # The thesis does not say from which start.
    other = {name: ACCURACY.take(results[gaussian(name)]) for name in ORDER}
    for start, by in (("torch's start", of), ("0.01 N(0, 1)", other)):
        yield Claim(
            f"first AdLaLa with γ = 0.5, then with γ = 10, then Adam, then SGD, from {start}",
            ", ".join(f"{name} {PUBLISHED[name]} %" for name in ORDER),
            listed({name: by[name] for name in ORDER}, unit=" %"),
            *every({f"{a} > {b}": more(by[a], by[b]) for a, b in pairwise(ORDER)}),
        )
    yield Claim(
        "SGLD, with so much noise, is no better than SGD, within 2 points",
        f"SGLD {PUBLISHED['SGLD']} %, SGD {PUBLISHED['SGD']} %",
        ACCURACY.listed(results, "SGLD", "SGD"),
        *less(of["SGLD"], of["SGD"], by=-2.0),
    )
    yield Claim(
        "the mean test accuracies",
        published,
        ACCURACY.listed(results, *names),
        *every({name: near(of[name], value, within=3.0) for name, value in PUBLISHED.items()}),
    )
    yield from distributions(results)
    yield from robustness(results)


def distributions(results: Results) -> Claims:
    zeros = ZEROS.of(results, METHODS)
    yield Claim(
        "SGD and Adam leave many weights and biases close to zero, SGLD and AdLaLa do not",
        "section 3.5: many (close to) zero; most equally activated",
        f"|parameter| < {SMALL}: {ZEROS.listed(results, *METHODS)}",
        *every({f"{a} > {b}": more(zeros[a], zeros[b]) for a in ("SGD", "Adam") for b in ("SGLD", "AdLaLa γ=0.5")}),
    )
    layers = ("weights 1", "weights 2")
    sizes = {name: [np.abs(results[name][layer][-1]).mean(1) for layer in layers] for name in METHODS}
    judged = {name: more(b, a) for name, (a, b) in sizes.items() if name not in ("AdLaLa γ=10", "LOL")}
    yield Claim(
        "the weights of layer 2 tend to be larger than those of layer 1, but not for AdLaLa with large γ",
        "Figure 3.8, in words",
        "mean |w| of layers 1 and 2: "
        + ", ".join(f"{name} {a.mean():.2f}, {b.mean():.2f}" for name, (a, b) in sizes.items()),
        *every(judged | {"AdLaLa γ=10": less(*reversed(sizes["AdLaLa γ=10"]))}),
    )
    largest = float(np.abs(inner(results["LOL"])).max())
    yield Claim(
        "with LOL weights and biases of layer 1 can become very large",
        "of the order 10² (not shown in the figure)",
        f"the largest is {largest:.0f}",
        *yes(largest > 10**1.5, "on a logarithmic scale nearer to 100 than to 10, or beyond"),
    )


def robustness(results: Results) -> Claims:
    of, adam = ACCURACY.of(results, METHODS), small(results["Adam"])
    spread = {name: float(np.ptp(of[name])) for name in ("Adam", "LOL", "AdLaLa γ=0.5")}
    yield Claim(
        "best and worst run: far apart for Adam, less for LOL, still less for AdLaLa",
        "35 points for Adam, 10 for LOL, less for AdLaLa",
        ", ".join(f"{name} {value:.1f}" for name, value in spread.items()),
        *yes(spread["AdLaLa γ=0.5"] < spread["LOL"] < spread["Adam"], f"of {len(adam)} runs each"),
    )
    r = float(np.corrcoef(adam, of["Adam"])[0, 1]) if np.ptp(adam) and np.ptp(of["Adam"]) else math.nan
    error = 1 / math.sqrt(max(len(adam) - 2, 1))
    yield Claim(
        "Adam does worse where more of its parameters are zero",
        "section 3.5, in words",
        f"correlation {r:.2f} of accuracy with the share below {SMALL}",
        UNDECIDED if not abs(r) > 2 * error else (HELD if r < 0 else NOT_HELD),
        f"± {error:.2f} over {len(adam)} runs",
    )


def tables(results: Results, config: Config) -> list[Table]:
    columns = [ACCURACY, WORST, BEST, ZEROS]
    rows = [[name, *(one.cell(found) for one in columns)] for name, found in results.items()]
    for row in rows:
        row.insert(4, PUBLISHED.get(row[0].partition(",")[0], "–"))
    heads = [one.name for one in columns]
    return [Table(["method", *heads[:3], "thesis %", heads[3]], rows, f"{config.runs} runs of {config.steps:,} steps")]


def draw(results: Results, config: Config) -> Figures:
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
    figure.supxlabel("value; beyond ±8 in the outermost bins", fontsize=9)
    figure.suptitle(f"Parameters of {config.runs} runs, two-turn spiral (Figure 3.8)", fontsize=11)
    return {"weights": figure}


def histogram(axis: Any, values: np.ndarray, limit: float, bins: int, logarithmic: bool = False, **style: Any) -> None:
    """Draw counts from −limit to limit; what lies beyond is in the outermost bins."""
    counts, edges = np.histogram(np.clip(values, -limit, limit), bins, (-limit, limit))
    axis.stairs(np.log1p(counts) if logarithmic else counts, edges, fill=True, **style)
    axis.set(yticks=[], xlim=(-limit, limit))
