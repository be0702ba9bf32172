"""Which solution of a linear problem gradient descent finds (GD-dynamics slides, square loss).

Ten points in thirty dimensions can be fitted in many ways. Descent moves the weights only in the span of the data:
from 0 it ends in the solution of least norm y X⁺, from w₀ it keeps the part of w₀ in the null space, and a push
as well. With ½λ|w|² added it ends in the ridge solution from everywhere and after every push. The inputs are scaled to
|X| = 1, so that the step size 1 suits every problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import tether
from tether.measure import minimum_norm
from tether_studies.drawing import subplots
from tether_studies.judges import mean_error, near, yes
from tether_studies.lab import Lab
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "min-norm",
    "gradient descent on the square loss finds the solution of least norm, if it starts at 0",
    "GD-dynamics slides, square loss, linear networks",
    notes="The slides prove and draw; they have no numbers of an experiment. Random Gaussian problems stand in.",
)
EXACT = 1e-8  # of |w*|: what counts as arrived, in double precision


@dataclass(frozen=True)
class Config:
    problems: int = at(20, quick=2, full=100)
    points: int = 10
    features: int = 30
    starts: tuple[float, ...] = (0.0, 1.0, 3.0)  # sizes of w₀, in one random direction for each problem
    steps: int = at(1000, quick=300)
    decay: float = at(0.1, quick=0.2)
    decays: tuple[float, ...] = at((0.1, 0.01, 0.003), quick=(0.3, 0.1, 0.05))  # on the way to λ = 0
    hidden: int = 20  # of the linear network with two layers
    small: tuple[float, ...] = (0.1, 0.03, 0.01)  # standard deviations of its starts
    deep_steps: int = at(4000, quick=300)


def run(config: Config, lab: Lab) -> Results:
    """Distances to the solutions; problem i is the same throughout."""
    seed = lab.named_seed("problems")
    work: dict[str, Any] = {
        "square": partial(descend, config, seed, 0.0),
        "ridge": partial(descend, config, seed, config.decay),
        "square, pushed": partial(descend, config, seed, 0.0, push=True),
        "ridge, pushed": partial(descend, config, seed, config.decay, push=True),
        "towards no decay": partial(towards_none, config, seed),
    }
    return lab.pieces({**work, "two layers": partial(two_layers, config, seed)})


def problems(config: Config, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with the largest singular value 1, and targets."""
    noise = torch.Generator().manual_seed(seed)
    X = torch.randn(config.problems, config.points, config.features, dtype=torch.float64, generator=noise)
    y = torch.randn(config.problems, config.points, 1, dtype=torch.float64, generator=noise)
    return X / torch.linalg.matrix_norm(X, 2)[:, None, None], y


def descend(config: Config, seed: int, decay: float, push: bool = False) -> Results:
    """Gradient descent on ½|Xw − y|² + ½λ|w|²: distances as times × problems × starts, relative to |w*|."""
    count = len(config.starts)
    X, y = problems(config, seed)
    noise = torch.Generator().manual_seed(seed + 1)
    first, kick = torch.randn(2, config.problems, 1, 1, config.features, dtype=torch.float64, generator=noise)
    start = (first * torch.tensor(config.starts).double()[:, None, None]).view(-1, 1, config.features)
    linear = partial(nn.Linear, config.features, 1, bias=False, dtype=torch.float64)
    nets = tether.Replicas(linear, config.problems * count)
    nets.load_state_dict({"weight": start})
    times = {round(1.3**k) for k in range(60) if 1.3**k < config.steps} | {config.steps // 2 + 1, config.steps}
    found = []

    def kicked(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> None:
        if push and step == config.steps // 2:
            with torch.no_grad():
                next(nets.parameters()).add_(kick.expand(-1, count, 1, -1).reshape(start.shape))
        if step in times:
            found.append(compared(next(nets.parameters()).detach(), start, X, y, decay))

    opt = tether.Optimizer(nets, lr=1.0, weight_decay=decay, batch_dims=1)
    data = X.repeat_interleave(count, 0), y.repeat_interleave(count, 0)
    tether.train(nets, opt, data, half_square, config.steps, None, 1, [kicked], each=True, progress=False)
    shape = (len(found), config.problems, count)
    distance, drift, from_limit = (torch.tensor(x).view(shape) for x in zip(*found, strict=True))
    return {"times": sorted(times), "distance": distance, "drift": drift, "from_limit": from_limit}


def half_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """½ Σ (f − y)² over the points."""
    return 0.5 * (output - target).square().sum()


def compared(
    w: torch.Tensor, start: torch.Tensor, X: torch.Tensor, y: torch.Tensor, decay: float
) -> tuple[list[float], list[float], list[float]]:
    """|w − w*|, the drift in the null space and the distance to the limit from w₀, of every net, over |w*|."""
    count = len(w) // len(X)
    found: list[Any] = [
        minimum_norm(X[i // count], y[i // count], w[i], start[i], regularization=decay) for i in range(len(w))
    ]
    return (
        [one.distance / one.norm for one in found],
        [one.drift / one.norm for one in found],
        [one.from_limit / one.norm for one in found],
    )


def towards_none(config: Config, seed: int) -> Results:
    """|w − y X⁺| over |y X⁺| where descent from |w₀| × 1 ends, for smaller and smaller λ: decays × problems."""
    X, y = problems(config, seed)
    w = torch.randn(len(config.decays), config.problems, config.features, 1, dtype=torch.float64)
    decays = torch.tensor(config.decays).double()[:, None, None, None]
    for _ in range(8 * config.steps):
        w = w - 0.9 * (X.mT @ (X @ w - y) + decays * w)
    solution = torch.linalg.pinv(X) @ y
    return {"distance": (w - solution).norm(dim=(2, 3)) / solution.norm(dim=(1, 2))}


def two_layers(config: Config, seed: int) -> Results:
    """The same for f = W₂W₁x from starts of several sizes: |W₂W₁ − y X⁺| over |y X⁺|, and the misfit."""
    X, y = problems(config, seed)

    def network() -> nn.Sequential:
        inputs = nn.Linear(config.features, config.hidden, bias=False, dtype=torch.float64)
        return nn.Sequential(inputs, nn.Linear(config.hidden, 1, bias=False, dtype=torch.float64))

    count = len(config.small)
    nets = tether.Replicas(network, config.problems * count)
    sizes = torch.tensor(config.small).double().repeat(config.problems)[:, None, None]
    with torch.no_grad():
        for parameter in nets.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * sizes)
    data = X.repeat_interleave(count, 0), y.repeat_interleave(count, 0)
    opt = tether.Optimizer(nets, lr=0.1, batch_dims=1)
    tether.train(nets, opt, data, half_square, config.deep_steps, None, each=True, progress=False)
    first, second = (x.detach() for x in nets.parameters())
    w, solution = (second @ first).mT, torch.linalg.pinv(data[0]) @ data[1]
    distance = (w - solution).norm(dim=(1, 2)) / solution.norm(dim=(1, 2))
    misfit = (data[0] @ w - data[1]).norm(dim=(1, 2)) / data[1].norm(dim=(1, 2))
    return {"distance": distance.view(-1, count), "misfit": misfit.view(-1, count)}


def claims(results: Results, config: Config) -> Claims:
    square, ridge = results["square"], results["ridge"]
    away = [i for i, size in enumerate(config.starts) if size]
    zero = config.starts.index(0.0)
    arrived, kept = square["distance"][-1, :, zero].max(), square["from_limit"][-1].max()
    moved = square["drift"].max()
    apart = square["distance"][-1][:, away]
    anywhere = ridge["distance"][-1].max()
    left = {name: results[f"{name}, pushed"]["distance"][-1, :, zero] for name in ("square", "ridge")}
    faded = results["towards no decay"]["distance"]
    slope = np.log(faded[-2] / faded[-1]) / np.log(config.decays[-2] / config.decays[-1])
    deep, misfit = (results["two layers"][name] for name in ("distance", "misfit"))
    smaller = np.polyfit(np.log(config.small), np.log(deep.T), 1)[0]
    count = f"{config.problems} problems of {config.points} points in {config.features} dimensions"
    yield Claim(
        "gradient descent from 0 ends in the solution of least norm",
        "w = y X⁺",
        f"|w − y X⁺| ≤ {arrived:.1e} |y X⁺| after {config.steps:,} steps",
        *yes(arrived < EXACT, f"largest of {count}"),
    )
    yield Claim(
        "weights in the null space of the data do not change, so that the end depends on the start",
        "only the weights in the span of the xⁿ change",
        f"they moved by {moved:.1e}, the end is y X⁺ + P w₀ to {kept:.1e}, {apart.min():.2g} or more from y X⁺",
        *yes(moved < EXACT and kept < EXACT < apart.min(), f"in units of |y X⁺|, {count}, all starts"),
    )
    yield Claim(
        "with ½λ|w|² it ends in the ridge solution, from everywhere",
        "w = y Xᵀ(X Xᵀ + λI)⁻¹, independent of initial conditions",
        f"|w − w_λ| ≤ {anywhere:.1e} |w_λ| from all starts, λ = {config.decay:g}",
        *yes(anywhere < EXACT, f"largest of {count}, {len(config.starts)} starts each"),
    )
    yield Claim(
        "as λ → 0 regularization has the same solution as descent from 0",
        "same solution as λ → 0",
        f"|w − y X⁺| ∝ λ^{slope.mean():.2f} in the end, {ratios(config.decays, faded)}",
        *near(slope, 1.0, 0.25),
    )
    yield Claim(
        "a push during training changes the end without λ, and dies out with it",
        "perturbations during GD will change final W; with λ one gets back to the same W",
        f"distance left: {left['square'].min():.2g} or more without, {left['ridge'].max():.1e} or less with λ",
        *yes(left["square"].min() > 1e-2 and left["ridge"].max() < EXACT, f"pushed by N(0, I) halfway, {count}"),
    )
    yield Claim(
        "multilayer linear networks that start near 0 find it too",
        "a similar situation holds for multilayer linear networks",
        f"|W₂W₁ − y X⁺| ∝ size^{smaller.mean():.2f}, {ratios(config.small, deep.T)}; misfit {misfit.max():.0e}",
        *yes(
            bool(misfit.max() < 1e-4 and (np.diff(deep.mean(0)) < 0).all() and deep[:, -1].max() < 0.05),
            f"largest at the smallest start {deep[:, -1].max():.2g}, {count}, {config.hidden} hidden units",
        ),
    )


def ratios(values: tuple[float, ...], distances: np.ndarray) -> str:
    """Means at the first and the last value."""
    return f"{distances[0].mean():.2g} at {values[0]:g} and {distances[-1].mean():.2g} at {values[-1]:g}"


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name in ("square", "ridge", "square, pushed", "ridge, pushed"):
        for i, size in enumerate(config.starts):
            ends = [results[name][key][-1, :, i] for key in ("distance", "drift")]
            rows.append((name, f"{size:g}", *(f"{mean_error(x)[0]:.1e}" for x in ends)))
    return [Table(("descent", "|w₀| ×", "|w − w*| / |w*|", "drift in the null space"), rows, "Means over the problems")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(2, 2, figsize=(9, 7), sharey=True)
    titles = {
        "square": "λ = 0: only from 0 to y X⁺",
        "ridge": f"λ = {config.decay:g}: from everywhere to w_λ",
        "square, pushed": "λ = 0: a push stays",
        "ridge, pushed": f"λ = {config.decay:g}: a push dies out",
    }
    for axis, (name, title) in zip(panels.flat, titles.items(), strict=True):
        found = results[name]
        for i, size in enumerate(config.starts):
            values = np.exp(np.log(np.maximum(found["distance"][:, :, i], 1e-16)).mean(1))
            axis.loglog(found["times"], values, label=f"|w₀| × {size:g}")
        axis.set(title=title, xlabel="step", ylabel="|w − w*| / |w*|")
        axis.legend()
    return {"minimum-norm": figure}
