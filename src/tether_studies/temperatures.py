"""Figures 3.1 and 3.17: Langevin dynamics and LOL are better optimizers at a moderate temperature."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, recipe, study
from tether_studies.judges import POINT, chosen, every, judging, less, more
from tether_studies.planar import ACCURACY, BEST, LOSS, WORST, Task, draw_classifier, each, todo

ALL = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COLD, MILD, WARMER, HOT, HOTTEST = 1e-8, 1e-5, 1e-4, 1e-3, 1e-2
PIECE = "temperatures"


class Temperatures(Experiment):
    """The same method at several temperatures, all at once and from the same starts."""

    settings: ClassVar[dict[str, Any]]
    shown: ClassVar[Sequence[float]]  # temperatures whose classifiers are drawn
    title: ClassVar[str]
    label = "temperature τ"
    columns = (ACCURACY, WORST, BEST, LOSS)
    nodes: int
    steps: int
    runs: int

    def task(self) -> Task:
        raise NotImplementedError

    def run(self, lab: Lab) -> Results:
        made = {PIECE: recipe(temperature=each(ALL, self.runs), **self.settings)}
        options: dict[str, Any] = {"cells": len(ALL), "records": 10, "portraits": True}
        return lab.pieces(todo(lab, self.task(), made, self.steps, self.runs, **options))

    def accuracies(self, results: Results) -> dict[float, np.ndarray]:
        return dict(zip(ALL, results[PIECE]["accuracy"][-1], strict=True))

    def tabled(self, results: Results) -> dict[str, Results]:
        found = results[PIECE]
        return {f"{τ:.0e}": {k: found[k][:, i] for k in ("accuracy", "loss")} for i, τ in enumerate(ALL)}

    def draw(self, results: Results) -> Figures:
        found = results[PIECE]
        figure, (first, second, below) = subplots(3, 2, figsize=(6.4, 8.6), height_ratios=[3, 3, 2])
        for panel, τ in zip([*first, *second], self.shown, strict=True):
            i = ALL.index(τ)
            said = f"τ = {τ:.0e}   {found['median'][i]:.1f} %"
            draw_classifier(panel, found["classifier"][i], self.task(), found["points"][i], found["classes"][i], said)
        for panel in below:
            panel.remove()
        wide = figure.add_subplot(3, 1, 3)
        draw_means(wide, ALL, found["accuracy"][-1])
        for τ, values in zip(ALL, found["accuracy"][-1], strict=True):
            wide.plot([τ] * self.runs, values, ".", color="0.6", ms=3, zorder=0)
        wide.set(xscale="log", xlabel="temperature τ", ylabel="test accuracy %")
        figure.suptitle(f"{self.title}; the median of {self.runs} runs", fontsize=11)
        return {"temperature": figure}


def told(found: dict[float, np.ndarray], temperatures: Iterable[float]) -> str:
    return ", ".join(f"{ACCURACY.text(found[τ])} % at {τ:.0e}" for τ in temperatures)


@study("fig-3.1", "thesis, Figure 3.1")
class Langevin(Temperatures):
    """Langevin dynamics classifies better at a moderate temperature

    500 ReLU nodes on sine against cosine (a = 3, b = 2, c = 0.02), BAOAB with h = 0.4 and γ = 10 for 50,000 steps, 1000
    points to train on, 20 at a time. Four temperatures as in the figure, and three beyond it.

    The figure has one run for each temperature. The data are read as x₂ = cos(b x₁ π): as printed, cos(btπ) with t in
    (0, 1), a would only stretch the axis.
    """

    says = """
        the test accuracy improves as the temperature is raised from 1e-8 to 1e-5 | Figure 3.1: substantially
        and it does so from panel to panel | Figure 3.1: 1e-8, 1e-7, 1e-6, 1e-5
        further increases can negatively affect the results: there is a best temperature
            | in words: a 'Goldilocks' region
    """
    settings: ClassVar = {"method": "langevin", "lr": 0.4, "friction": 10.0}
    shown = ALL[:4]
    title = "Langevin dynamics, sine against cosine (Figure 3.1)"
    nodes: int = at(500, quick=50)
    steps: int = at(50_000, quick=200)
    runs: int = at(6, quick=2, long=160, full=20)

    def task(self) -> Task:
        # (3.33) has cos(btπ); only with cos(b x₁ π), x₁ = at, does a larger a give "more crossings", as §3.6 says
        return Task("trig", {"scale": 3.0, "frequency": 6.0}, self.nodes)

    def claims(self, results: Results) -> Found:
        found = self.accuracies(results)
        rises = {f"{b:.0e} > {a:.0e}": more(found[b], found[a], least=POINT) for a, b in pairwise(ALL[:4])}
        yield told(found, ALL[:4]), more(found[MILD], found[COLD], least=POINT)
        yield told(found, ALL[:4]), every(rises)
        yield told(found, ALL[3:]), less(found[HOTTEST], found[MILD])


@study("fig-3.17", "thesis, Figure 3.17")
class LOL(Temperatures):
    """LOL classifies better at a moderate temperature

    200 ReLU nodes on the four-turn spiral, LOL with h = 0.8 and friction 1 for 50,000 steps.

    The figure has one run for each temperature and does not give the data: 1000 points, 20 at a time, and torch's own
    start are taken here, as elsewhere in section 3.6. Nor does it say whether its τ is that of the noise √(2γτ) alone
    or with the step size in it; the band of good temperatures lies higher here.
    """

    says = """
        performance increases with the temperature up to τ = 1e-5 | Figure 3.17: increases until 0.00001
        after which it begins to decrease | Figure 3.17, in words
        at τ = 0.001 the method is unusable | Figure 3.17, in words; taken here as at least 20 points below the best
        there is a band of temperatures in which LOL performs better, wherever it lies
            | section 3.6: more accurate at modest temperatures
    """
    settings: ClassVar = {"method": "lol", "lr": 0.8, "friction": 1.0}
    shown = (COLD, MILD, WARMER, HOT)
    title = "LOL on the four-turn spiral (Figure 3.17)"
    nodes: int = at(200, quick=40)
    steps: int = at(50_000, quick=200)
    runs: int = at(8, quick=2, long=80, full=20)

    def task(self) -> Task:
        return Task("spiral", {"turns": 4.0}, self.nodes)

    def claims(self, results: Results) -> Found:
        found = self.accuracies(results)
        yield told(found, ALL[:4]), more(found[MILD], found[COLD], least=POINT)
        yield told(found, (MILD, WARMER)), less(found[WARMER], found[MILD], least=POINT)
        yield f"{ACCURACY.text(found[HOT])} %", less(found[HOT], found[MILD], by=20.0)
        peak = chosen(found)
        others = {"than cold": COLD, "than hot": HOTTEST}
        band = {name: more(judging(found[peak]), judging(found[τ])) for name, τ in others.items()}
        yield told(found, (COLD, peak, HOTTEST)), every(band)
