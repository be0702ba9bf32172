"""Figures 3.9 and 3.10: AdLaLa against SGD, SGLD and Adam on the four-turn spiral.

Figure 3.9: 500 ReLU nodes on evenly spaced arms (p = 1), Adam with h = 0.005 from 0.5 N(0, 1) and AdLaLa from
0.01 N(0, 1), seen after 20,000, 40,000 and 60,000 steps. Figure 3.10: 100 nodes; AdLaLa with one set of parameters
against ranges of step sizes, and of noise for SGLD. 1000 points, 20 at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import tether
from tether.measure import boundary_curvature
from tether_studies.drawing import draw_bars, subplots
from tether_studies.judges import every, less, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import ACCURACY, LOSS, Task, classifier, draw_classifier, each, learn
from tether_studies.quantities import at_end, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.9",
    "AdLaLa resolves the four-turn spiral better than Adam, SGD and SGLD",
    "thesis, Figures 3.9, 3.10",
    notes="Figure 3.9 averages the classifier over the last 10 steps of one run; here it is that of the last step. The "
    "number of steps and the step sizes of Figure 3.10 are not given in the text: these are ours.",
)
ADLALA: dict[str, Any] = {"temperature": 1e-4, "noise": 0.01}
CLASSIFIERS = {  # and the standard deviation of their starts
    "Adam": (recipe("Adam", lr=0.005), 0.5),
    "AdLaLa": (recipe("adlala", lr=0.1, coupling=0.1, friction=0.03, output_temperature=1e-5, **ADLALA), 0.01),
}
NOISES = (0.0, 0.005, 0.01, 0.05, 0.1)  # of SGLD; 0 is SGD
STEP_SIZES = (0.05, 0.1, 0.2, 0.3, 0.5)
ADAM = (0.001, 0.002, 0.005, 0.01, 0.02)
CURVATURE = at_end("curvature", "curvature")


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=20)  # of Figure 3.9
    nodes: int = at(500, quick=40)
    times: tuple[int, ...] = at((20_000, 40_000, 60_000), quick=(20, 40, 60))
    sweep_runs: int = at(6, quick=2, full=20)  # of Figure 3.10
    sweep_nodes: int = at(100, quick=20)
    sweep_steps: int = at(20_000, quick=60, full=50_000)
    grid: int = at(300, quick=120, full=1000)  # points along a side, for the curvature


def wide(config: Config, start: float) -> Task:
    return Task("spiral", {"turns": 4.0, "power": 1.0}, config.nodes, spread=start)


def run(config: Config, lab: Lab) -> Results:
    """Classifiers over time, and accuracies over ranges of parameters."""
    seed, task = lab.named_seed("runs"), Task("spiral", {"turns": 4.0}, config.sweep_nodes)
    work: dict[str, Any] = {f"classifier of {name}": partial(classify, config, lab, name, seed) for name in CLASSIFIERS}
    sweep = partial(learn, task, steps=config.sweep_steps, runs=config.sweep_runs, seed=seed, records=5)
    work["AdLaLa"] = partial(sweep, recipe=recipe("adlala", lr=0.25, friction=0.1, coupling=0.05, **ADLALA))
    for noise in NOISES:
        sgld = recipe("sgld", lr=each(STEP_SIZES, config.sweep_runs), noise=noise)
        work[f"SGLD {noise}"] = partial(sweep, recipe=sgld, cells=len(STEP_SIZES))
    return lab.pieces(work | {f"Adam {h}": partial(sweep, recipe=recipe("Adam", lr=h)) for h in ADAM})


def classify(config: Config, lab: Lab, name: str, seed: int) -> Results:
    """Test loss and accuracy at three times, the first run's classifier, and how much the boundaries bend."""
    made, start = CLASSIFIERS[name]
    task = wide(config, start)

    def look(step: int, nets: tether.Replicas) -> dict[str, torch.Tensor]:
        bent = [boundary_curvature(net, task.frame, smoothing=0.05, grid=config.grid).mean for net in nets]
        return {"classifier": classifier(nets[0], task.frame), "curvature": torch.tensor(bent)}

    place = lab.checkpoint(f"classifier of {name}")
    settings: dict[str, Any] = {"records": config.times, "watch": look, "checkpoint": place}
    found = learn(task, made, config.times[-1], config.runs, seed, **settings)
    _, _, x, y = task.sets(1, seed)
    return {**found, "points": x[0], "classes": y[0, :, 0]}


def claims(results: Results, config: Config) -> Claims:
    adam, adlala = results["classifier of Adam"], results["classifier of AdLaLa"]
    for what, unit, digits, word, judge in (("accuracy", " %", 1, "higher", more), ("loss", "", 3, "lower", less)):
        a, b = adlala[what][:, 0], adam[what][:, 0]
        texts = [", ".join(plus_minus(x, digits) + unit for x in values) for values in (a, b)]
        yield Claim(
            f"{word} test {what} than Adam, 500 nodes",
            "Figure 3.9, at 20,000, 40,000 and 60,000 steps: far better resolved",
            f"AdLaLa {texts[0]}; Adam {texts[1]}",
            *every({f"step {t:,}": judge(a[i], b[i]) for i, t in enumerate(config.times)}),
        )
    bends = [x["curvature"][-1][~np.isnan(x["curvature"][-1])] for x in (adlala, adam)]
    yield Claim(
        "AdLaLa's classifiers are smoother",
        "Figure 3.9, in words",
        f"mean curvature of the boundary in the end: AdLaLa {plus_minus(bends[0])}, Adam {plus_minus(bends[1])}",
        *less(*bends),
    )
    ours = results["AdLaLa"]["accuracy"][-1, 0]
    rivals = {"SGD": ["SGLD 0.0"], "SGLD": [f"SGLD {x}" for x in NOISES[1:]], "Adam": [f"Adam {h}" for h in ADAM]}
    for name, pieces in rivals.items():
        cells = [(piece, i, runs) for piece in pieces for i, runs in enumerate(results[piece]["accuracy"][-1])]
        piece, cell, best = max(cells, key=lambda found: found[2].mean())
        value = piece.split()[1]
        setting = value if name == "Adam" else f"{STEP_SIZES[cell]}, σ = {value}"
        yield Claim(
            f"with one set of parameters AdLaLa is ahead of {name} with any in the range, 100 nodes",
            "Figure 3.10: consistently outperforms",
            f"AdLaLa {plus_minus(ours)} %, the best of {name} {plus_minus(best)} % (h = {setting})",
            *more(ours, best),
        )


def tables(results: Results, config: Config) -> list[Table]:
    rows = {
        (name, f"{t:,}"): {
            key: results[f"classifier of {name}"][key][: i + 1] for key in ("accuracy", "loss", "curvature")
        }
        for name in CLASSIFIERS
        for i, t in enumerate(config.times)
    }
    sweep = [
        [f"SGLD, σ = {noise}" if noise else "SGD", *map(plus_minus, results[f"SGLD {noise}"]["accuracy"][-1])]
        for noise in NOISES
    ]
    caption = f"{config.sweep_runs} runs of {config.sweep_steps:,} steps, test accuracy %"
    others = {"AdLaLa": results["AdLaLa"]} | {f"Adam, h = {h}": results[f"Adam {h}"] for h in ADAM}
    return [
        tabulated(["method", "step"], rows, [ACCURACY, LOSS, CURVATURE], f"{config.runs} runs"),
        Table(["method", *(f"h = {h}" for h in STEP_SIZES)], sweep, caption),
        tabulated("method", others, [ACCURACY], caption),
    ]


def draw(results: Results, config: Config) -> Figures:
    nine, panels = subplots(2, len(config.times), figsize=(7.6, 5.4))
    for row, (name, (_, start)) in zip(panels, CLASSIFIERS.items(), strict=True):
        found, task = results[f"classifier of {name}"], wide(config, start)
        for i, axis in enumerate(row):
            title = f"{name}, step {config.times[i]:,}\n{found['accuracy'][i, 0, 0]:.1f} %"
            draw_classifier(axis, found["classifier"][i], task, found["points"], found["classes"], title)
    nine.suptitle(f"Four turns, p = 1, {config.nodes} nodes, one run (Figure 3.9)", fontsize=11)
    ten, (left, right) = subplots(2, 1, figsize=(6.4, 7.2))
    colours = ("#1f77b4", "#d62728", "#e8b82c", "#8e44ad", "#2ca02c")
    draw_bars(left, {f"σ = {x}": results[f"SGLD {x}"]["accuracy"][-1] for x in NOISES}, STEP_SIZES, colours)
    draw_bars(right, {"": np.stack([results[f"Adam {h}"]["accuracy"][-1, 0] for h in ADAM])}, ADAM, colours)
    for axis, name in ((left, "SGLD (σ = 0: SGD)"), (right, "Adam")):
        axis.axhline(float(results["AdLaLa"]["accuracy"][-1].mean()), color="k", ls=":", label="AdLaLa")
        axis.set(ylim=(45, 100), xlabel=f"step size of {name}", ylabel="test accuracy %")
    left.legend(ncols=3, loc="upper left")
    ten.suptitle(f"Four turns, {config.sweep_nodes} nodes, {config.sweep_steps:,} steps (Figure 3.10)", fontsize=11)
    return {"classifiers": nine, "ranges": ten}
