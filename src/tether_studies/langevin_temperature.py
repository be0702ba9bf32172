"""Figure 3.1: a moderate temperature makes Langevin dynamics a better optimizer.

500 ReLU nodes on sine against cosine (a = 3, b = 2, c = 0.02), BAOAB with h = 0.4 and γ = 10 for 50,000 steps, 1000
points to train on, 20 at a time. Four temperatures as in the figure, and three beyond it: "further increases of the τ
parameter can negatively affect the results".
"""

from __future__ import annotations

from dataclasses import dataclass

from tether_studies import temperatures
from tether_studies.judges import less, more
from tether_studies.lab import Lab
from tether_studies.planar import Task
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.1",
    "Langevin dynamics classifies better at a moderate temperature",
    "thesis, Figure 3.1",
    notes="The figure has one run for each temperature. The data are read as x₂ = cos(b x₁ π): as printed, cos(btπ) "
    "with t in (0, 1), a would only stretch the axis.",
)
SHOWN = (1e-8, 1e-7, 1e-6, 1e-5)
BEYOND = (1e-4, 1e-3, 1e-2)
ALL = SHOWN + BEYOND


@dataclass(frozen=True)
class Config:
    nodes: int = at(500, quick=50)
    steps: int = at(50_000, quick=200)
    runs: int = at(6, quick=2, full=20)


def task(config: Config) -> Task:
    # (3.33) has cos(btπ); only with cos(b x₁ π), x₁ = at, does a larger a give "more crossings", as section 3.6 says
    return Task("trig", {"scale": 3.0, "frequency": 6.0}, config.nodes)


def run(config: Config, lab: Lab) -> Results:
    return temperatures.sweep(lab, task(config), "langevin", ALL, config.steps, config.runs, lr=0.4, friction=10.0)


def claims(results: Results, config: Config) -> Claims:
    found = temperatures.accuracies(results, ALL)
    yield Claim(
        "the test accuracy improves as the temperature is raised from 1e-8 to 1e-5",
        "Figure 3.1: substantially, from panel to panel",
        temperatures.told(found, SHOWN),
        *more(found[SHOWN[-1]], found[SHOWN[0]]),
    )
    yield Claim(
        "further increases can negatively affect the results: there is a best temperature",
        "in words: a 'Goldilocks' region",
        temperatures.told(found, (SHOWN[-1], *BEYOND)),
        *less(found[BEYOND[-1]], found[SHOWN[-1]]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    return [temperatures.table(results, ALL)]


def draw(results: Results, config: Config) -> Figures:
    return temperatures.draw(results, ALL, SHOWN, task(config), "Langevin dynamics, sine against cosine (Figure 3.1)")
