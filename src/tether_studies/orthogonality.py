"""Figures 4.4, 4.5 and 4.8: deep perceptrons with orthogonal weights on the four-turn spiral.

Hidden layers of 100 ReLU nodes see the 500 points of (4.58), 25 at a time. o-CoLA-od keeps the weights between hidden
layers orthogonal; beside it SGD from torch's start, SGD from an orthogonal start, and SGD with the soft constraint
λ‖QᵀQ − I‖² added to the loss, which is stiff: stable only for h < 1/(4λ).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.planar import Sets, Task
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-4.4",
    "beyond three hidden layers orthogonal weights win",
    "thesis, Figures 4.4, 4.5, 4.8; ICML paper, Figures 4, 5, D2",
    notes="The thesis does not give the number of epochs (here 1000), nor the strengths and step sizes of Figure 4.5; "
    "its caption names the method there o-CoLA-ud, its text o-CoLA-od, which is taken here.",
)


__all__ = ["METHODS", "SPIRAL", "Recipe", "learn", "network"]

SPIRAL = Task(options={"turns": 4}, train=500, test=1000, batch=25)
NODES = 100


@dataclass(frozen=True)
class Recipe:
    """How the weights between hidden layers begin and what holds them."""

    constrained: bool = False
    orthogonal_start: bool = False
    strength: float = 0.0  # λ of the soft constraint
    temperature: float = 0.0
    lr: float = 0.1


METHODS = {
    "SGD": Recipe(),
    "SGD, orthogonal start": Recipe(orthogonal_start=True),
    "SGD, soft constraint": Recipe(strength=0.05),  # the paper's best
    "o-CoLA-od": Recipe(constrained=True),
}


@dataclass(frozen=True)
class Config:
    steps: int = at(20_000, quick=40, full=40_000)
    depths: tuple[int, ...] = at((3, 4, 6), quick=(3, 4), full=(3, 4, 5, 6))  # hidden layers
    runs: tuple[int, ...] = at((5, 16, 5), quick=(2, 2), full=(10,) * 4)  # at each depth; at four SGD's vary much
    deep: int = at(6, quick=4)  # of them in Figures 4.5 and 4.8
    soft_runs: int = at(3, quick=2, full=10)  # of each cell of Figure 4.5
    step_sizes: tuple[float, ...] = at((0.1, 0.02), full=(0.1, 0.05, 0.01))
    strengths: tuple[float, ...] = at((0.5, 4.0), full=(0.01, 0.5, 4.0))
    temperature: float = 1e-6


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies over time; run i of every method has the same data and minibatches."""
    seed = lab.named_seed("data")
    work: dict[str, Any] = {}
    runs = dict(zip(config.depths, config.runs, strict=True))
    for depth in config.depths:
        for method, recipe in METHODS.items():
            work[f"{method}, {depth}"] = partial(piece, recipe, depth, runs[depth], config.steps, seed)
    warm = Recipe(constrained=True, temperature=config.temperature)
    work[f"warm, {config.deep}"] = partial(piece, warm, config.deep, runs[config.deep], config.steps, seed)
    for h in config.step_sizes:
        for strength in config.strengths:
            soft = Recipe(strength=strength, lr=h)
            work[f"h={h}, λ={strength}"] = partial(piece, soft, config.deep, config.soft_runs, config.steps, seed)
    return lab.pieces(work)


def piece(recipe: Recipe, hidden: int, runs: int, steps: int, seed: int) -> Results:
    """Steps, test accuracies in per cent as times × runs, and the largest |QᵀQ − I| in the end."""
    return learn(recipe, hidden, SPIRAL.sets(runs, seed), steps, seed)[0]


def network(hidden: int, orthogonal: bool = False) -> nn.Sequential:
    """So many hidden layers of ReLU nodes; on request the weights between them start orthogonal."""
    layers: list[nn.Module] = [nn.Linear(2, NODES), nn.ReLU()]
    for _ in range(hidden - 1):
        linear = nn.Linear(NODES, NODES)
        if orthogonal:
            nn.init.orthogonal_(linear.weight)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(NODES, 1))


def learn(recipe: Recipe, hidden: int, sets: Sets, steps: int, seed: int) -> tuple[Results, tether.Replicas]:
    """Train a network on each of the sets."""
    x, y, x_test, y_test = sets
    nets = tether.Replicas(lambda: network(hidden, recipe.orthogonal_start), len(x), seed=seed)
    inner = [nets.get_parameter(f"{2 * i}.weight") for i in range(1, hidden)]
    if recipe.constrained:
        free = ["0.*", f"{2 * hidden}.*"]
        options: dict[str, Any] = {"temperature": recipe.temperature, "seed": seed}
        opt = tether.methods.orthogonal_cola_od(nets, lr=recipe.lr, free=free, **options)
    else:
        opt = tether.methods.sgd(nets, lr=recipe.lr)
    if recipe.strength:
        penalise(opt, inner, recipe.strength)

    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            right = (nets(x_test, each=True) > 0) == (y_test > 0.5)
        return {"accuracy": 100 * right.float().mean((1, 2))}

    every = max(steps // 40, 1)
    with warnings.catch_warnings():  # a constraint too stiff for its step may blow up, and ends where it does
        warnings.filterwarnings("ignore", r"replica .* is stopped")
        record = tether.train(nets, opt, (x, y), bce, steps, SPIRAL.batch, every, [test], each=True, seed=seed)
    with torch.no_grad():
        gap = max(float((w.mT @ w - torch.eye(NODES)).abs().max()) for w in inner)
    curve = record.metrics["accuracy"]
    found = {"steps": record.steps, "curve": curve, "accuracy": curve[-1], "gap": gap}
    return found, nets


def penalise(opt: torch.optim.Optimizer, weights: Sequence[torch.Tensor], strength: float) -> None:
    """Add to every gradient that of `tether.orthogonal_penalty`, 4λ W (WᵀW − I) for square W.

    In place of autograd's: the gradient of the loss is then the compiled one.
    """
    step = opt.step

    def stiff(closure: Any) -> Any:
        def both() -> Any:
            loss = closure()
            with torch.no_grad():
                for w in weights:
                    assert w.grad is not None
                    w.grad.baddbmm_(w, w.mT @ w - torch.eye(w.shape[-1]), alpha=4 * strength)
            return loss

        return step(both)

    opt.step = stiff  # type: ignore[method-assign,assignment]


def claims(results: Results, config: Config) -> list[Claim]:
    ends = {name: found["accuracy"] for name, found in results.items()}
    beyond = [depth for depth in config.depths if depth > 3]

    def beats(other: str) -> tuple[str, str, str]:
        pairs = {f"{d} layers": (ends[f"o-CoLA-od, {d}"], ends[f"{other}, {d}"]) for d in beyond}
        text = "; ".join(f"{name} {plus_minus(a)} against {plus_minus(b)}" for name, (a, b) in pairs.items())
        return text, *every({name: more(a, b) for name, (a, b) in pairs.items()})

    gap = max(float(results[f"o-CoLA-od, {depth}"]["gap"]) for depth in config.depths)
    return [
        *(
            Claim(f"beyond three hidden layers o-CoLA-od ends higher than {other}", published, *beats(other))
            for other, published in (
                ("SGD", "Figure 4.4: it significantly outperforms unconstrained SGD"),
                ("SGD, orthogonal start", "Figure 4.4: it clearly outperforms all of these variants"),
                (
                    "SGD, soft constraint",
                    "Figure 4.4: it significantly outperforms SGD with a soft constraint, λ = 0.05",
                ),
            )
        ),
        Claim(
            "its weights stay orthogonal",
            "(4.53)–(4.55): by construction, to the tolerance of the iteration",
            f"largest entry of |QᵀQ − I| in the end {gap:.1e}",
            *yes(gap < 1e-5, "single precision; all layers, depths and runs"),
        ),
        *soft_claims(ends, results, config),
        warm_claim(results, config),
    ]


def soft_claims(ends: dict[str, Any], results: Results, config: Config) -> list[Claim]:
    """Figure 4.5."""
    d, hard, (large, *_, small) = config.deep, ends[f"o-CoLA-od, {config.deep}"], config.step_sizes
    cells = {(h, s): ends[f"h={h}, λ={s}"] for h in config.step_sizes for s in config.strengths}
    cells[METHODS["SGD"].lr, METHODS["SGD, soft constraint"].strength] = ends[f"SGD, soft constraint, {d}"]
    (h, s), best = max(cells.items(), key=lambda cell: cell[1].mean())
    stiff = max(config.strengths)
    gaps = [float(results[f"h={x}, λ={stiff}"]["gap"]) for x in (large, small)]
    return [
        Claim(
            "no step size and strength of the soft constraint reach o-CoLA-od",
            "Figure 4.5: the soft constraint is unable to reach the same performance",
            f"best of {len(cells)} pairs, h = {h:g}, λ = {s:g}: {plus_minus(best)}; o-CoLA-od {plus_minus(hard)} "
            f"({d} layers)",
            *more(hard, best),
        ),
        Claim(
            "a strong soft constraint needs a smaller step",
            "Figure 4.5: stiffness, needing the stepsize to be lowered to allow for larger penalty strengths",
            f"λ = {stiff:g}: h = {large:g} {plus_minus(cells[large, stiff])} (largest |QᵀQ − I| {gaps[0]:.2g}), "
            f"h = {small:g} {plus_minus(cells[small, stiff])} ({gaps[1]:.2g})",
            *less(cells[large, stiff], cells[small, stiff]),
        ),
    ]


def warm_claim(results: Results, config: Config) -> Claim:
    """Figure 4.8: the mean accuracy over training is higher where training is faster."""
    cold, warm = (results[f"{name}, {config.deep}"]["curve"].mean(0) for name in ("o-CoLA-od", "warm"))
    ends = [results[f"{name}, {config.deep}"]["accuracy"] for name in ("warm", "o-CoLA-od")]
    return Claim(
        "a small temperature speeds up training",
        f"Figure 4.8, τ = {config.temperature:g}: speeds up training and often slightly increases the test accuracies",
        f"mean accuracy over training {plus_minus(warm)} against {plus_minus(cold)}, in the end {plus_minus(ends[0])} "
        f"against {plus_minus(ends[1])} ({config.deep} layers)",
        *more(warm, cold),
    )


def tables(results: Results, config: Config) -> list[Table]:
    by_depth = [
        [depth, *(plus_minus(results[f"{method}, {depth}"]["accuracy"]) for method in METHODS)]
        for depth in config.depths
    ]
    by_strength = [
        [f"h = {h:g}", *(plus_minus(results[f"h={h}, λ={s}"]["accuracy"]) for s in config.strengths)]
        for h in config.step_sizes
    ]
    ends = f"Test accuracy in per cent after {config.steps:,} steps, mean ± standard error"
    return [
        Table(["hidden layers", *METHODS], by_depth, f"{ends} over {', '.join(map(str, config.runs))} runs"),
        Table(
            ["soft constraint", *(f"λ = {s:g}" for s in config.strengths)],
            by_strength,
            f"{ends} over {config.soft_runs} runs, {config.deep} hidden layers",
        ),
    ]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(2, 2, figsize=(7.5, 6), sharex=True, sharey=True)
    for panel, method in zip(panels.flat, METHODS, strict=True):
        for i, depth in enumerate(config.depths):
            draw_curve(panel, results[f"{method}, {depth}"], f"{depth}", f"C{i}")
        panel.set(title=method, ylim=(45, 101))
    label(panels, "test accuracy, %")
    panels[-1, -1].legend(title="hidden layers", frameon=False, fontsize=8)
    count = len(config.step_sizes) + 1
    columns = 3 if count % 3 == 0 else 2
    rows = -(-count // columns)
    size = (3 * columns, 3 * rows)
    soft, panels = subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for panel, h in zip(panels.flat, config.step_sizes, strict=False):
        for i, s in enumerate(config.strengths):
            draw_curve(panel, results[f"h={h}, λ={s}"], f"λ = {s:g}", f"C{i}")
        panel.set(title=f"soft constraint, h = {h:g}", ylim=(45, 101))
    hard = panels.flat[len(config.step_sizes)]
    draw_curve(hard, results[f"o-CoLA-od, {config.deep}"], "τ = 0", "C0")
    draw_curve(hard, results[f"warm, {config.deep}"], f"τ = {config.temperature:g}", "C1")
    hard.set(title="o-CoLA-od, h = 0.1")
    for panel in (panels[0, 0], hard):
        panel.legend(frameon=False, fontsize=8)
    label(panels, f"test accuracy, %, {config.deep} layers")
    return {"depth": figure, "soft": soft}


def label(panels: Any, title: str) -> None:
    for panel in panels[-1]:
        panel.set_xlabel("epochs")
    for panel in panels[:, 0]:
        panel.set_ylabel(title)


def draw_curve(axis: Any, found: Results, label: str, colour: Any) -> None:
    """Mean over runs, and a band of one standard error."""
    epochs, curve = found["steps"] * SPIRAL.batch / SPIRAL.train, found["curve"]
    mean, error = curve.mean(1), curve.std(1, ddof=1) / np.sqrt(curve.shape[1]) if curve.shape[1] > 1 else 0
    axis.plot(epochs, mean, color=colour, label=label, lw=1.4)
    axis.fill_between(epochs, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
