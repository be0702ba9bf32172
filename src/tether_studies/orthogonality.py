"""Figures 4.4, 4.5 and 4.8: deep perceptrons with orthogonal weights on the four-turn spiral.

Hidden layers of 100 ReLU nodes see the 500 points of (4.58), 25 at a time. o-CoLA-od keeps the weights between hidden
layers orthogonal; beside it SGD from torch's start, SGD from an orthogonal start, and SGD with the soft constraint
λ‖QᵀQ − I‖² added to the loss, which is stiff: stable only for h < 1/(4λ).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import every, less, more, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.planar import Sets, Task
from tether_studies.quantities import Quantity
from tether_studies.recipes import Recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-4.4",
    "beyond three hidden layers orthogonal weights win",
    "thesis, Figures 4.4, 4.5, 4.8; ICML paper, Figures 4, 5, D2",
    notes="The thesis does not give the number of epochs (here 1000), nor the strengths and step sizes of Figure 4.5; "
    "its caption names the method there o-CoLA-ud, its text o-CoLA-od, which is taken here.",
)
__all__ = ["METHODS", "SPIRAL", "Method", "learn", "network"]

SPIRAL = Task(options={"turns": 4}, train=500, test=1000, batch=25)
NODES = 100
ACCURACY = Quantity("test accuracy %", lambda one: one["accuracy"])


@dataclass(frozen=True)
class Method:
    """How the weights between hidden layers begin, and the recipe that moves them."""

    made: Recipe
    orthogonal_start: bool = False


def sgd(lr: float = 0.1, strength: float = 0.0) -> Recipe:
    """SGD; with a strength λ the soft constraint is added to the loss."""

    def made(nets: tether.Replicas, seed: int) -> torch.optim.Optimizer:
        opt = tether.methods.sgd(nets, lr=lr, seed=seed)
        if strength:
            penalise(opt, between(nets), strength)
        return opt

    return made


def cola(temperature: float = 0.0) -> Recipe:
    """o-CoLA-od on the weights between hidden layers."""
    return lambda nets, seed: tether.methods.orthogonal_cola_od(
        nets, lr=0.1, free=["0.*", f"{2 * hidden_layers(nets)}.*"], temperature=temperature, seed=seed
    )


SOFT = 0.05  # the paper's best λ
METHODS = {
    "SGD": Method(sgd()),
    "SGD, orthogonal start": Method(sgd(), orthogonal_start=True),
    "SGD, soft constraint": Method(sgd(strength=SOFT)),
    "o-CoLA-od": Method(cola()),
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
    seed, runs, deep = lab.named_seed("data"), dict(zip(config.depths, config.runs, strict=True)), config.deep
    work = {f"{name}, {d}": (method, d, runs[d]) for d in config.depths for name, method in METHODS.items()}
    work[f"warm, {deep}"] = (Method(cola(config.temperature)), deep, runs[deep])
    for h, λ in product(config.step_sizes, config.strengths):
        work[f"h={h}, λ={λ}"] = (Method(sgd(h, λ)), deep, config.soft_runs)
    return lab.pieces({name: partial(piece, *todo, config.steps, seed) for name, todo in work.items()})


def piece(method: Method, hidden: int, runs: int, steps: int, seed: int) -> Results:
    """Steps, test accuracies in per cent as times × runs, and the largest |QᵀQ − I| in the end."""
    return learn(method, hidden, SPIRAL.sets(runs, seed), steps, seed)[0]


def network(hidden: int, orthogonal: bool = False) -> nn.Sequential:
    """So many hidden layers of ReLU nodes; on request the weights between them start orthogonal."""
    layers: list[nn.Module] = [nn.Linear(2, NODES), nn.ReLU()]
    for _ in range(hidden - 1):
        linear = nn.Linear(NODES, NODES)
        if orthogonal:
            nn.init.orthogonal_(linear.weight)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(NODES, 1))


def hidden_layers(nets: nn.Module) -> int:
    return len([name for name, _ in nets.named_parameters() if name.endswith("weight")]) - 1


def between(nets: nn.Module) -> list[nn.Parameter]:
    """The weights between hidden layers."""
    return [nets.get_parameter(f"{2 * i}.weight") for i in range(1, hidden_layers(nets))]


def learn(method: Method, hidden: int, sets: Sets, steps: int, seed: int) -> tuple[Results, tether.Replicas]:
    """Train a network on each of the sets."""
    x, y, x_test, y_test = sets
    nets = tether.Replicas(lambda: network(hidden, method.orthogonal_start), len(x), seed=seed)
    opt = method.made(nets, seed)

    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            right = (nets(x_test, each=True) > 0) == (y_test > 0.5)
        return {"accuracy": 100 * right.float().mean((1, 2))}

    every = max(steps // 40, 1)
    with warnings.catch_warnings():  # a constraint too stiff for its step may blow up, and ends where it does
        warnings.filterwarnings("ignore", r"replica .* is stopped")
        record = tether.train(nets, opt, (x, y), bce, steps, SPIRAL.batch, every, [test], each=True, seed=seed)
    with torch.no_grad():
        gap = max(float((w.mT @ w - torch.eye(NODES)).abs().max()) for w in between(nets))
    curve = record.metrics["accuracy"]
    return {"steps": record.steps, "curve": curve, "accuracy": curve[-1], "gap": gap}, nets


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


def claims(results: Results, config: Config) -> Claims:
    ends, deep = ACCURACY.of(results), config.deep
    for other, published in (
        ("SGD", "Figure 4.4: it significantly outperforms unconstrained SGD"),
        ("SGD, orthogonal start", "Figure 4.4: it clearly outperforms all of these variants"),
        ("SGD, soft constraint", "Figure 4.4: it significantly outperforms SGD with a soft constraint, λ = 0.05"),
    ):
        beyond = [d for d in config.depths if d > 3]
        pairs = {f"{d} layers": (ends[f"o-CoLA-od, {d}"], ends[f"{other}, {d}"]) for d in beyond}
        yield Claim(
            f"beyond three hidden layers o-CoLA-od ends higher than {other}",
            published,
            "; ".join(f"{name} {plus_minus(a)} against {plus_minus(b)}" for name, (a, b) in pairs.items()),
            *every({name: more(a, b) for name, (a, b) in pairs.items()}),
        )
    gap = max(float(results[f"o-CoLA-od, {depth}"]["gap"]) for depth in config.depths)
    yield Claim(
        "its weights stay orthogonal",
        "(4.53)–(4.55): by construction, to the tolerance of the iteration",
        f"largest entry of |QᵀQ − I| in the end {gap:.1e}",
        *yes(gap < 1e-5, "single precision; all layers, depths and runs"),
    )
    yield from soft_claims(ends, results, config)
    cold, warm = (results[f"{name}, {deep}"]["curve"].mean(0) for name in ("o-CoLA-od", "warm"))
    texts = [plus_minus(ends[f"{name}, {deep}"]) for name in ("warm", "o-CoLA-od")]
    yield Claim(
        "a small temperature speeds up training",
        f"Figure 4.8, τ = {config.temperature:g}: speeds up training and often slightly increases the test accuracies",
        f"mean accuracy over training {plus_minus(warm)} against {plus_minus(cold)}, in the end {texts[0]} "
        f"against {texts[1]} ({deep} layers)",
        *more(warm, cold),
    )


def soft_claims(ends: dict[str, Any], results: Results, config: Config) -> Claims:
    """Figure 4.5."""
    d, hard, (large, *_, small) = config.deep, ends[f"o-CoLA-od, {config.deep}"], config.step_sizes
    cells = {(h, s): ends[f"h={h}, λ={s}"] for h, s in product(config.step_sizes, config.strengths)}
    cells[0.1, SOFT] = ends[f"SGD, soft constraint, {d}"]
    (h, s), best = max(cells.items(), key=lambda cell: cell[1].mean())
    yield Claim(
        "no step size and strength of the soft constraint reach o-CoLA-od",
        "Figure 4.5: the soft constraint is unable to reach the same performance",
        f"best of {len(cells)} pairs, h = {h:g}, λ = {s:g}: {plus_minus(best)}; o-CoLA-od {plus_minus(hard)} "
        f"({d} layers)",
        *more(hard, best),
    )
    stiff = max(config.strengths)
    gaps = [float(results[f"h={x}, λ={stiff}"]["gap"]) for x in (large, small)]
    yield Claim(
        "a strong soft constraint needs a smaller step",
        "Figure 4.5: stiffness, needing the stepsize to be lowered to allow for larger penalty strengths",
        f"λ = {stiff:g}: h = {large:g} {plus_minus(cells[large, stiff])} (largest |QᵀQ − I| {gaps[0]:.2g}), "
        f"h = {small:g} {plus_minus(cells[small, stiff])} ({gaps[1]:.2g})",
        *less(cells[large, stiff], cells[small, stiff]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    def cells(names: Iterable[str]) -> list[str]:
        return [ACCURACY.cell(results[name]) for name in names]

    by_depth = [[depth, *cells(f"{method}, {depth}" for method in METHODS)] for depth in config.depths]
    by_strength = [[f"h = {h:g}", *cells(f"h={h}, λ={s}" for s in config.strengths)] for h in config.step_sizes]
    ends = f"Test accuracy in per cent after {config.steps:,} steps, mean ± standard error"
    soft = f"{ends} over {config.soft_runs} runs, {config.deep} hidden layers"
    return [
        Table(["hidden layers", *METHODS], by_depth, f"{ends} over {', '.join(map(str, config.runs))} runs"),
        Table(["soft constraint", *(f"λ = {s:g}" for s in config.strengths)], by_strength, soft),
    ]


def draw(results: Results, config: Config) -> Figures:
    found = {name: {**one, "epochs": one["steps"] * SPIRAL.batch / SPIRAL.train} for name, one in results.items()}
    figure, panels = subplots(2, 2, figsize=(7.5, 6), sharex=True, sharey=True)
    for panel, method in zip(panels.flat, METHODS, strict=True):
        draw_curves(panel, {str(d): found[f"{method}, {d}"] for d in config.depths}, "curve", "epochs")
        panel.set(title=method, ylim=(45, 101))
    figure.supxlabel("epochs")
    figure.supylabel("test accuracy, %")
    panels[-1, -1].legend(title="hidden layers")
    count = len(config.step_sizes) + 1
    soft, panels = subplots(1, count, figsize=(3 * count, 3), sharey=True)
    for panel, h in zip(panels, config.step_sizes, strict=False):
        draw_curves(panel, {f"λ = {s:g}": found[f"h={h}, λ={s}"] for s in config.strengths}, "curve", "epochs")
        panel.set(title=f"soft constraint, h = {h:g}", ylim=(45, 101))
    hard = {"τ = 0": found[f"o-CoLA-od, {config.deep}"], f"τ = {config.temperature:g}": found[f"warm, {config.deep}"]}
    draw_curves(panels[-1], hard, "curve", "epochs")
    panels[-1].set(title="o-CoLA-od, h = 0.1")
    for panel in (panels[0], panels[-1]):
        panel.legend()
    soft.supxlabel("epochs")
    panels[0].set_ylabel(f"test accuracy, %, {config.deep} layers")
    return {"depth": figure, "soft": soft}
