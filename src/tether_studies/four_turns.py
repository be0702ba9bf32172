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
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import Recipe, Task, classifier, draw_classifier, learn
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-3.9",
    "AdLaLa resolves the four-turn spiral better than Adam, SGD and SGLD",
    "thesis, Figures 3.9, 3.10",
    notes="Figure 3.9 averages the classifier over the last 10 steps of one run; here it is that of the last step. The "
    "number of steps and the step sizes of Figure 3.10 are not given in the text: these are ours.",
)


CLASSIFIERS: dict[str, tuple[Recipe, float]] = {
    "Adam": (("Adam", {"lr": 0.005}), 0.5),
    "AdLaLa": (
        (
            "adlala",
            {
                "lr": 0.1,
                "temperature": 1e-4,
                "noise": 0.01,
                "coupling": 0.1,
                "friction": 0.03,
                "output_temperature": 1e-5,
            },
        ),
        0.01,
    ),
}
ADLALA: Recipe = ("adlala", {"lr": 0.25, "temperature": 1e-4, "friction": 0.1, "noise": 0.01, "coupling": 0.05})
NOISES = (0.0, 0.005, 0.01, 0.05, 0.1)  # of SGLD; 0 is SGD
STEP_SIZES = (0.05, 0.1, 0.2, 0.3, 0.5)
ADAM = (0.001, 0.002, 0.005, 0.01, 0.02)


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
    work["AdLaLa"] = partial(sweep, recipe=ADLALA)
    for noise in NOISES:
        each = torch.tensor(STEP_SIZES).repeat_interleave(config.sweep_runs)
        recipe: Recipe = ("sgld", {"lr": each, "noise": noise})
        work[f"SGLD {noise}"] = partial(sweep, recipe=recipe, cells=len(STEP_SIZES))
    for h in ADAM:
        work[f"Adam {h}"] = partial(sweep, recipe=("Adam", {"lr": h}))
    return lab.pieces(work)


def classify(config: Config, lab: Lab, name: str, seed: int) -> Results:
    """Test loss and accuracy at three times, the first run's classifier, and how much the boundaries bend."""
    recipe, start = CLASSIFIERS[name]
    task = wide(config, start)

    def look(step: int, nets: tether.Replicas) -> dict[str, torch.Tensor]:
        return {"classifier": classifier(nets[0], task.frame), "curvature": curvatures(config, task, nets)}

    place = lab.checkpoint(f"classifier of {name}")
    settings: dict[str, Any] = {"records": config.times, "watch": look, "checkpoint": place}
    found = learn(task, recipe, config.times[-1], config.runs, seed, **settings)
    _, _, x, y = task.sets(1, seed)
    return {**found, "points": x[0], "classes": y[0, :, 0]}


def curvatures(config: Config, task: Task, nets: tether.Replicas) -> torch.Tensor:
    """The mean curvature of each run's boundary, smoothed over 0.05."""
    found = [boundary_curvature(net, task.frame, smoothing=0.05, grid=config.grid).mean for net in nets]
    return torch.tensor(found)


def best(results: Results, names: list[str]) -> tuple[str, int, np.ndarray]:
    """The piece and cell with the highest mean accuracy in the end, and its runs."""
    cells = [(name, i, runs) for name in names for i, runs in enumerate(results[name]["accuracy"][-1])]
    return max(cells, key=lambda cell: cell[2].mean())


def claims(results: Results, config: Config) -> list[Claim]:
    adam, adlala = results["classifier of Adam"], results["classifier of AdLaLa"]
    ours = results["AdLaLa"]["accuracy"][-1, 0]
    rivals = {
        "SGD": best(results, [f"SGLD {NOISES[0]}"]),
        "SGLD": best(results, [f"SGLD {noise}" for noise in NOISES[1:]]),
        "Adam": best(results, [f"Adam {h}" for h in ADAM]),
    }
    found = []
    for what, unit, judge in (("accuracy", " %", more), ("loss", "", less)):
        digits = 1 if what == "accuracy" else 3
        a, b = adlala[what][:, 0], adam[what][:, 0]
        judged = {f"step {t:,}": judge(a[i], b[i]) for i, t in enumerate(config.times)}
        texts = [", ".join(plus_minus(x, digits) + unit for x in values) for values in (a, b)]
        found.append(
            Claim(
                f"{'higher' if judge is more else 'lower'} test {what} than Adam, 500 nodes",
                "Figure 3.9, at 20,000, 40,000 and 60,000 steps: far better resolved",
                f"AdLaLa {texts[0]}; Adam {texts[1]}",
                *every(judged),
            )
        )
    bends = [x["curvature"][-1][~np.isnan(x["curvature"][-1])] for x in (adlala, adam)]
    return [
        *found,
        Claim(
            "AdLaLa's classifiers are smoother",
            "Figure 3.9, in words",
            f"mean curvature of the boundary in the end: AdLaLa {plus_minus(bends[0])}, Adam {plus_minus(bends[1])}",
            *less(*bends),
        ),
        *(
            Claim(
                f"with one set of parameters AdLaLa is ahead of {name} with any in the range, 100 nodes",
                "Figure 3.10: consistently outperforms",
                f"AdLaLa {plus_minus(ours)} %, the best of {name} {plus_minus(runs)} % "
                f"(h = {setting(name, piece, cell)})",
                *more(ours, runs),
            )
            for name, (piece, cell, runs) in rivals.items()
        ),
    ]


def setting(name: str, piece: str, cell: int) -> str:
    """The parameters of a cell, in words."""
    value = piece.split()[1]
    return value if name == "Adam" else f"{STEP_SIZES[cell]}, σ = {value}"


def tables(results: Results, config: Config) -> list[Table]:
    rows = [
        [name, f"{t:,}", plus_minus(found["accuracy"][i, 0]), plus_minus(found["loss"][i, 0], 3),
         plus_minus(found["curvature"][i])]
        for name in CLASSIFIERS
        for found in [results[f"classifier of {name}"]]
        for i, t in enumerate(config.times)
    ]  # fmt: skip
    sweep = [
        [f"SGLD, σ = {noise}" if noise else "SGD", *map(plus_minus, results[f"SGLD {noise}"]["accuracy"][-1])]
        for noise in NOISES
    ]
    others = [["AdLaLa", plus_minus(results["AdLaLa"]["accuracy"][-1, 0])]]
    others += [[f"Adam, h = {h}", plus_minus(results[f"Adam {h}"]["accuracy"][-1, 0])] for h in ADAM]
    caption = f"{config.sweep_runs} runs of {config.sweep_steps:,} steps, test accuracy %"
    return [
        Table(["method", "step", "test accuracy %", "test loss", "curvature"], rows, f"{config.runs} runs"),
        Table(["method", *(f"h = {h}" for h in STEP_SIZES)], sweep, caption),
        Table(["method", "test accuracy %"], others, caption),
    ]


def draw(results: Results, config: Config) -> dict[str, Any]:
    nine, panels = subplots(2, len(config.times), figsize=(7.6, 5.4))
    for row, (name, (_, start)) in zip(panels, CLASSIFIERS.items(), strict=True):
        found = results[f"classifier of {name}"]
        for i, axis in enumerate(row):
            title = f"{name}, step {config.times[i]:,}\n{found['accuracy'][i, 0, 0]:.1f} %"
            field = found["classifier"][i]
            draw_classifier(axis, field, wide(config, start), found["points"], found["classes"], title)
    nine.suptitle(f"Four turns, p = 1, {config.nodes} nodes, one run (Figure 3.9)", fontsize=11)

    ten, (left, right) = subplots(2, 1, figsize=(6.4, 7.2))
    line = float(results["AdLaLa"]["accuracy"][-1].mean())
    colours = ("#1f77b4", "#d62728", "#e8b82c", "#8e44ad", "#2ca02c")
    for k, (noise, colour) in enumerate(zip(NOISES, colours, strict=True)):
        x = results[f"SGLD {noise}"]["accuracy"][-1]
        error = x.std(1, ddof=1) / x.shape[1] ** 0.5
        place = np.arange(len(STEP_SIZES)) + 0.17 * (k - 2)
        left.bar(place, x.mean(1), 0.16, yerr=error, color=colour, label=f"σ = {noise}", capsize=2)
    left.set(xticks=range(len(STEP_SIZES)), xticklabels=STEP_SIZES, xlabel="step size of SGLD (σ = 0: SGD)")
    x = np.stack([results[f"Adam {h}"]["accuracy"][-1, 0] for h in ADAM])
    right.bar(range(len(ADAM)), x.mean(1), 0.6, yerr=x.std(1, ddof=1) / x.shape[1] ** 0.5, capsize=3)
    right.set(xticks=range(len(ADAM)), xticklabels=ADAM, xlabel="step size of Adam")
    for axis in (left, right):
        axis.axhline(line, color="k", ls=":", label="AdLaLa")
        axis.set(ylim=(45, 100), ylabel="test accuracy %")
    left.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    ten.suptitle(f"Four turns, {config.sweep_nodes} nodes, {config.sweep_steps:,} steps (Figure 3.10)", fontsize=11)
    return {"classifiers": nine, "ranges": ten}
