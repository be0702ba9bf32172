"""Figure 3.14: the accuracies of Adam and SGD vary more from run to run than those of AdLaLa and LOL.

20 ReLU nodes on the two-turn spiral, 500 points, 10 at a time, a hundred runs; weights that start as 0.01 N(0, 1), and
for Adam and AdLaLa also as torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, BEST, WORST, Task, learn
from tether_studies.quantities import Quantity, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at
from tether_studies.weights import adlala

STUDY = Study(
    "fig-3.14",
    "AdLaLa and LOL vary less from run to run than Adam and SGD",
    "thesis, Figure 3.14",
    notes="The number of steps is not given: 10,000, as in Figure 3.8. Biases start at 0 with the Gaussian weights.",
)
ADAM, ADLALA, GAUSSIAN = recipe("Adam", lr=0.005), adlala(friction=0.5), 0.01
RUNS = {  # method, start, colour as in the figure
    "SGD": (recipe("sgd", lr=0.25), GAUSSIAN, "#c0392b"),
    "Adam": (ADAM, GAUSSIAN, "#1f3a93"),
    "Adam, torch's start": (ADAM, None, "#5dade2"),
    "LOL": (recipe("lol", lr=0.25, friction=0.01, temperature=1e-3), GAUSSIAN, "#d4ac0d"),
    "AdLaLa": (ADLALA, GAUSSIAN, "#7d3c98"),
    "AdLaLa, torch's start": (ADLALA, None, "#239b56"),
}
OTHERS, OURS = tuple(RUNS)[:3], tuple(RUNS)[3:]


@dataclass(frozen=True)
class Config:
    runs: int = at(100, quick=4, full=1000)
    steps: int = at(10_000, quick=100, full=20_000)
    records: int = at(20, quick=4)


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies over time."""
    seed, work = lab.named_seed("runs"), {}
    for name, (made, start, _) in RUNS.items():
        task = Task("spiral", {"turns": 2.0}, nodes=20, train=500, batch=10, spread=start)
        work[name] = partial(learn, task, made, config.steps, config.runs, seed, records=config.records)
    return lab.pieces(work)


def deviations(found: Results) -> np.ndarray:
    """Squared deviations from the mean in the end: their mean is the variance, their error that of the variance."""
    x = ACCURACY.take(found)
    return (x - x.mean()) ** 2 * len(x) / max(len(x) - 1, 1)


VARIANCE = Quantity("variance", deviations)


def claims(results: Results, config: Config) -> Claims:
    of, squares = ACCURACY.of(results), VARIANCE.of(results)
    for ours in (OURS[:1], OURS[1:]):
        yield Claim(
            f"{ours[0]} has a much lower variance of its test accuracy than Adam and SGD",
            "Figure 3.14: much lower",
            "variance in the end: " + ", ".join(f"{n} {squares[n].mean():.1f}" for n in (*ours, *OTHERS)),
            *every({f"{a} < {b}": less(squares[a], squares[b]) for a in ours for b in OTHERS}),
        )
    adam, adlala = (of[f"{name}, torch's start"] - of[name] for name in ("Adam", "AdLaLa"))
    yield Claim(
        "Adam depends on the start, AdLaLa less so",
        "Figure 3.14: highly dependent, and less sensitive",
        f"torch's start minus 0.01 N(0, 1): Adam {plus_minus(adam)}, AdLaLa {plus_minus(adlala)} points",
        *more(np.sign(adam.mean()) * adam, np.sign(adlala.mean()) * adlala),
    )
    yield Claim(
        "LOL and AdLaLa are more accurate on average",
        "Figure 3.14, bottom (a picture, no numbers in the text)",
        ACCURACY.listed(results),
        *every({f"{a} > {b}": more(of[a], of[b]) for a in OURS for b in OTHERS}),
    )


def tables(results: Results, config: Config) -> list[Table]:
    caption = f"{config.runs} runs of {config.steps:,} steps"
    return [tabulated("method", results, [ACCURACY, VARIANCE, WORST, BEST], caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, (top, bottom) = subplots(2, 1, figsize=(6.4, 7), sharex=True)
    for name, (_, _, colour) in RUNS.items():
        steps, x = results[name]["steps"], results[name]["accuracy"][:, 0]
        top.plot(steps, x.var(1, ddof=1), color=colour, label=name)
        bottom.plot(steps, x.mean(1), color=colour)
    top.set(ylabel="variance of the test accuracy, %²", title=f"Two-turn spiral, {config.runs} runs (Figure 3.14)")
    bottom.set(xlabel="steps", ylabel="mean test accuracy %")
    top.legend(ncols=2)
    return {"variance": figure}
