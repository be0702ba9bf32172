"""Figures 3.11 and 3.12: LOL and AdLaLa learn sine against cosine faster than Adam.

100 ReLU nodes, 1000 points, 50 at a time. Three periods (a = 6): steps to 90 % test accuracy. Five periods (a = 10):
where Adam stops, LOL and AdLaLa go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import UNDECIDED, every, less, more, near, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import LOSS, Task, learn
from tether_studies.quantities import Quantity, listed, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.11",
    "LOL and AdLaLa learn sine against cosine faster than Adam",
    "thesis, Figures 3.11, 3.12",
    notes="Figure 3.12 averages 20 runs of 100,000 steps. The data are read as x₂ = cos(b x₁ π): as printed, cos(btπ) "
    "with t in (0, 1), a would only stretch the axis, and there would be a single crossing whatever a is; then Adam is "
    "above 90 % within the first 500 steps (--set printed=True).",
)
LOL = recipe("lol", lr=0.1, friction=0.01, temperature=1e-3)
ADAM = {f"Adam h={h}": recipe("Adam", lr=h) for h in (0.005, 0.01, 0.02)}
WARM: dict[str, Any] = {"temperature": 1e-4, "noise": 0.001, "coupling": 0.1}
THREE = {"LOL": LOL, "AdLaLa": recipe("adlala", lr=0.2, friction=10.0, **WARM), **ADAM}
FIVE = {"LOL": LOL, "AdLaLa": recipe("adlala", lr=0.1, friction=5.0, **WARM), **ADAM}
FIVE["SGLD"] = recipe("sgld", lr=0.1, noise=0.01)
del FIVE["Adam h=0.02"]
ENOUGH = 90.0


@dataclass(frozen=True)
class Config:
    runs: int = at(6, quick=2, full=20)
    nodes: int = at(100, quick=20)
    three_steps: int = at(20_000, quick=50)
    five_steps: int = at(50_000, quick=50, full=100_000)
    records: int = at(100, quick=10)
    printed: bool = False  # the data as (3.33) prints them


def run(config: Config, lab: Lab) -> Results:
    """Test loss and accuracy over time."""
    seed, work = lab.named_seed("runs"), {}
    for a, methods, steps in ((6, THREE, config.three_steps), (10, FIVE, config.five_steps)):
        # (3.33) has cos(btπ); only with cos(b x₁ π), x₁ = at, does a larger a give "more crossings", as the text says
        frequency = 1.0 if config.printed else float(a)
        task = Task("trig", {"scale": float(a), "frequency": frequency}, config.nodes, batch=50)
        for name, made in methods.items():
            piece = f"a = {a}, {name}"
            trained = partial(learn, task, made, steps, config.runs, seed, records=config.records)
            work[piece] = partial(trained, checkpoint=lab.checkpoint(piece))
    return lab.pieces(work)


def first_time(found: Results, accuracy: float = ENOUGH) -> np.ndarray:
    """For each run the step of the first record with so much accuracy; the last step where there is none."""
    reached = found["accuracy"][:, 0] >= accuracy
    return np.where(reached.any(0), found["steps"][reached.argmax(0)], found["steps"][-1])


def never(found: Results, accuracy: float = ENOUGH) -> int:
    """How many runs never have so much."""
    return int((found["accuracy"][:, 0].max(0) < accuracy).sum())


def final(found: Results) -> np.ndarray:
    """The mean accuracy of each run over the last tenth of the time."""
    return found["accuracy"][-max(1, len(found["steps"]) // 10) :, 0].mean(0)


def said(found: Results) -> str:
    """When the runs had enough, and how many never had."""
    return plus_minus(first_time(found), 0) + (f" ({never(found)} never)" if never(found) else "")


TIME = Quantity(f"steps to {ENOUGH:.0f} %", lambda found: found, show=said)
FINAL = Quantity("test accuracy %, last tenth", final, unit=" %")


def claims(results: Results, config: Config) -> Claims:
    times = {name: first_time(results[f"a = 6, {name}"]) for name in THREE}
    quickest = min(ADAM, key=lambda name: times[name].mean())
    yield Claim(
        "three periods: LOL and AdLaLa reach 90 % sooner than Adam",
        "Figure 3.11: outperform Adam in convergence rate",
        f"steps to 90 %: {listed(times, 0)}",
        *every({f"{name} < {quickest}": less(times[name], times[quickest]) for name in ("LOL", "AdLaLa")}),
    )
    ratios = times[quickest] / times["AdLaLa"]
    late = sum(never(results[f"a = 6, {name}"]) for name in (quickest, "AdLaLa"))
    yield Claim(
        "at its best step size Adam takes almost three times as long as AdLaLa",
        "almost three times, h = 0.01",
        f"{plus_minus(ratios, 2)} times, {quickest.replace('Adam ', '')}",
        *(near(ratios, 3.0, within=0.5) if not late else (UNDECIDED, f"{late} of these runs never get there")),
    )
    five = {name: results[f"a = 10, {name}"] for name in FIVE}
    ends, adams = FINAL.of(five), [name for name in FIVE if name in ADAM]
    best = max(adams, key=lambda name: ends[name].mean())
    peak = max(float(five[name]["accuracy"][:, 0].mean(1).max()) for name in adams)
    yield Claim(
        "five periods: Adam never reaches the accuracy of LOL and AdLaLa",
        "Figure 3.12: Adam at most 73 % after 100,000 steps",
        f"{FINAL.listed(five)}; Adam's peak {peak:.1f} %",
        *every({f"{name} > {best}": more(ends[name], ends[best]) for name in ("LOL", "AdLaLa")}),
    )
    yield Claim(
        "SGLD cannot compete at all",
        "Figure 3.12, in words",
        FINAL.listed(five, "SGLD"),
        *every({f"SGLD < {name}": less(ends["SGLD"], ends[name]) for name in ("LOL", "AdLaLa", best)}),
    )


def tables(results: Results, config: Config) -> list[Table]:
    rows = {(a, name): results[f"a = {a}, {name}"] for a, methods in ((6, THREE), (10, FIVE)) for name in methods}
    end = Quantity("test loss, end", LOSS.take, LOSS.digits)
    return [tabulated(["a", "method"], rows, [TIME, FINAL, end], f"{config.runs} runs")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(2, 2, figsize=(8.4, 6.6), sharex="col")
    for (top, bottom), a, methods, number in zip(panels.T, (6, 10), (THREE, FIVE), ("3.11", "3.12"), strict=True):
        found = {name: results[f"a = {a}, {name}"] for name in methods}
        draw_curves(top, found, "loss")
        draw_curves(bottom, found, "accuracy")
        top.set(title=f"a = {a} (Figure {number})", ylabel="test loss", yscale="log")
        bottom.set(xlabel="steps", ylabel="test accuracy %")
        bottom.legend()
    return {"trigonometric": figure}
