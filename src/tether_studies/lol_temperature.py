"""Figure 3.17: LOL, too, is most accurate at a moderate temperature.

200 ReLU nodes on the four-turn spiral, LOL with h = 0.8 and friction 1 for 50,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from tether_studies import temperatures
from tether_studies.judges import every, less, more
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, Task
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.17",
    "LOL classifies better at a moderate temperature",
    "thesis, Figure 3.17",
    notes="The figure has one run for each temperature and does not give the data: 1000 points, 20 at a time, and "
    "torch's own start are taken here, as elsewhere in section 3.6.",
)
ALL = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COLD, BEST, WARMER, HOT, HOTTEST = 1e-8, 1e-5, 1e-4, 1e-3, 1e-2


@dataclass(frozen=True)
class Config:
    nodes: int = at(200, quick=40)
    steps: int = at(50_000, quick=200)
    runs: int = at(8, quick=2, full=20)


def task(config: Config) -> Task:
    return Task("spiral", {"turns": 4.0}, config.nodes)


def run(config: Config, lab: Lab) -> Results:
    return temperatures.sweep(lab, task(config), "lol", ALL, config.steps, config.runs, lr=0.8, friction=1.0)


def claims(results: Results, config: Config) -> Claims:
    found = temperatures.accuracies(results, ALL)
    peak = max(ALL, key=lambda τ: found[τ].mean())
    yield Claim(
        "performance increases with the temperature up to τ = 1e-5",
        "Figure 3.17: increases until 0.00001",
        temperatures.told(found, ALL[:4]),
        *more(found[BEST], found[COLD]),
    )
    yield Claim(
        "after which it begins to decrease",
        "Figure 3.17, in words",
        temperatures.told(found, (BEST, WARMER)),
        *less(found[WARMER], found[BEST]),
    )
    yield Claim(
        "at τ = 0.001 the method is unusable",
        "Figure 3.17, in words; taken here as at least 20 points below the best",
        f"{ACCURACY.text(found[HOT])} %",
        *less(found[HOT], found[BEST], by=20.0),
    )
    yield Claim(
        "there is a band of temperatures in which LOL performs better, wherever it lies",
        "section 3.6: more accurate at modest temperatures",
        temperatures.told(found, (COLD, peak, HOTTEST)),
        *every({"than cold": more(found[peak], found[COLD]), "than hot": more(found[peak], found[HOTTEST])}),
    )


def tables(results: Results, config: Config) -> list[Table]:
    return [temperatures.table(results, ALL)]


def draw(results: Results, config: Config) -> Figures:
    shown = (COLD, BEST, WARMER, HOT)
    return temperatures.draw(results, ALL, shown, task(config), "LOL on the four-turn spiral (Figure 3.17)")
