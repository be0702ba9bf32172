from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

import tether
from tether.measure import minimum_norm
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.judges import near, yes
from tether_studies.quantities import Quantity

EXACT = 1e-8  # of |w*|: what counts as arrived, in double precision
DESCENTS = ("square", "ridge", "square, pushed", "ridge, pushed")
draw_normal = partial(torch.randn, dtype=torch.float64)


def half_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """½ Σ (f − y)² over the points."""
    return 0.5 * (output - target).square().sum()


def compared(w: torch.Tensor, start: torch.Tensor, X: torch.Tensor, y: torch.Tensor, decay: float) -> list[list[float]]:
    """|w − w*|, the drift in the null space and the distance to the limit from w₀, of every net, over |w*|."""
    i = [k // (len(w) // len(X)) for k in range(len(w))]
    found: list[Any] = [minimum_norm(X[i[k]], y[i[k]], w[k], start[k], regularization=decay) for k in range(len(w))]
    return [[getattr(one, name) / one.norm for one in found] for name in ("distance", "drift", "from_limit")]


def ratios(values: tuple[float, ...], distances: np.ndarray) -> str:
    """Means at the first and the last value."""
    return f"{distances[0].mean():.2g} at {values[0]:g} and {distances[-1].mean():.2g} at {values[-1]:g}"


@study("min-norm", "GD-dynamics slides, square loss, linear networks")
class MinimumNorms(Experiment):
    """gradient descent on the square loss finds the solution of least norm, if it starts at 0

    Ten points in thirty dimensions can be fitted in many ways. Descent moves the weights only in the span of the data:
    from 0 it ends in the solution of least norm y X⁺, from w₀ it keeps the part of w₀ in the null space, and a push as
    well. With ½λ|w|² added it ends in the ridge solution from everywhere and after every push. The inputs are scaled to
    |X| = 1, so that the step size 1 suits every problem.

    The slides prove and draw; they have no numbers of an experiment. Random Gaussian problems stand in.
    """

    says = """
        gradient descent from 0 ends in the solution of least norm | w = y X⁺
        weights in the null space of the data do not change, so that the end depends on the start
            | only the weights in the span of the xⁿ change
        with ½λ|w|² it ends in the ridge solution, from everywhere
            | w = y Xᵀ(X Xᵀ + λI)⁻¹, independent of initial conditions
        as λ → 0 regularization has the same solution as descent from 0 | same solution as λ → 0
        a push during training changes the end without λ, and dies out with it
            | perturbations during GD will change final W; with λ one gets back to the same W
        multilayer linear networks that start near 0 find it too
            | a similar situation holds for multilayer linear networks
    """
    label = ("descent", "|w₀| ×")
    columns = (
        Quantity("|w − w*| / |w*|", lambda one: one["distance"], show=lambda x: f"{x.mean():.1e}"),
        Quantity("drift in the null space", lambda one: one["drift"], show=lambda x: f"{x.mean():.1e}"),
    )
    caption = "Means over the problems"
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

    def run(self, lab: Lab) -> Results:
        """Distances to the solutions; problem i is the same throughout."""
        seed = lab.named_seed("problems")
        decays = {"square": 0.0, "ridge": self.decay}
        work: dict[str, Any] = {x: partial(self.descend, seed, decays[x.split(",")[0]], "," in x) for x in DESCENTS}
        return lab.pieces(
            {**work, "towards no decay": partial(self.faded, seed), "two layers": partial(self.two_layers, seed)}
        )

    def drawn(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs with the largest singular value 1, and targets."""
        noise = torch.Generator().manual_seed(seed)
        X = draw_normal(self.problems, self.points, self.features, generator=noise)
        y = draw_normal(self.problems, self.points, 1, generator=noise)
        return X / torch.linalg.matrix_norm(X, 2)[:, None, None], y

    def descend(self, seed: int, decay: float, push: bool) -> Results:
        """Gradient descent on ½|Xw − y|² + ½λ|w|²: distances as times × problems × starts, relative to |w*|."""
        count, (X, y) = len(self.starts), self.drawn(seed)
        noise = torch.Generator().manual_seed(seed + 1)
        first, kick = draw_normal(2, self.problems, 1, 1, self.features, generator=noise)
        start = (first * torch.tensor(self.starts).double()[:, None, None]).view(-1, 1, self.features)
        linear = partial(nn.Linear, self.features, 1, bias=False, dtype=torch.float64)
        nets = tether.Replicas(linear, self.problems * count)
        nets.load_state_dict({"weight": start})
        times = {round(1.3**k) for k in range(60) if 1.3**k < self.steps} | {self.steps // 2 + 1, self.steps}
        found = []

        def kicked(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> None:
            if push and step == self.steps // 2:
                with torch.no_grad():
                    next(nets.parameters()).add_(kick.expand(-1, count, 1, -1).reshape(start.shape))
            if step in times:
                found.append(compared(next(nets.parameters()).detach(), start, X, y, decay))

        opt = tether.Optimizer(nets, lr=1.0, weight_decay=decay, batch_dims=1)
        data = X.repeat_interleave(count, 0), y.repeat_interleave(count, 0)
        tether.train(nets, opt, data, half_square, self.steps, None, 1, [kicked], each=True, progress=False)
        shape = (len(found), self.problems, count)
        distance, drift, from_limit = (torch.tensor(x).view(shape) for x in zip(*found, strict=True))
        return {"times": sorted(times), "distance": distance, "drift": drift, "from_limit": from_limit}

    def faded(self, seed: int) -> Results:
        """|w − y X⁺| over |y X⁺| where descent from |w₀| × 1 ends, for smaller and smaller λ: decays × problems."""
        X, y = self.drawn(seed)
        w = draw_normal(len(self.decays), self.problems, self.features, 1)
        decays = torch.tensor(self.decays).double()[:, None, None, None]
        for _ in range(8 * self.steps):
            w = w - 0.9 * (X.mT @ (X @ w - y) + decays * w)
        solution = torch.linalg.pinv(X) @ y
        return {"distance": (w - solution).norm(dim=(2, 3)) / solution.norm(dim=(1, 2))}

    def two_layers(self, seed: int) -> Results:
        """The same for f = W₂W₁x from starts of several sizes: |W₂W₁ − y X⁺| over |y X⁺|, and the misfit."""
        count, (X, y) = len(self.small), self.drawn(seed)
        linear = partial(nn.Linear, bias=False, dtype=torch.float64)
        layers = lambda: nn.Sequential(linear(self.features, self.hidden), linear(self.hidden, 1))  # noqa: E731
        nets = tether.Replicas(layers, self.problems * count)
        sizes = torch.tensor(self.small).double().repeat(self.problems)[:, None, None]
        with torch.no_grad():
            for parameter in nets.parameters():
                parameter.copy_(draw_normal(parameter.shape) * sizes)
        data = X.repeat_interleave(count, 0), y.repeat_interleave(count, 0)
        opt = tether.Optimizer(nets, lr=0.1, batch_dims=1)
        tether.train(nets, opt, data, half_square, self.deep_steps, None, each=True, progress=False)
        first, second = (x.detach() for x in nets.parameters())
        w, solution = (second @ first).mT, torch.linalg.pinv(data[0]) @ data[1]
        distance = (w - solution).norm(dim=(1, 2)) / solution.norm(dim=(1, 2))
        misfit = (data[0] @ w - data[1]).norm(dim=(1, 2)) / data[1].norm(dim=(1, 2))
        return {"distance": distance.view(-1, count), "misfit": misfit.view(-1, count)}

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        cells = product(DESCENTS, enumerate(self.starts))
        keys = ("distance", "drift")
        return {(name, f"{size:g}"): {key: results[name][key][-1, :, i] for key in keys} for name, (i, size) in cells}

    def claims(self, results: Results) -> Found:
        square, zero = results["square"], self.starts.index(0.0)
        count = f"{self.problems} problems of {self.points} points in {self.features} dimensions"
        arrived, kept = square["distance"][-1, :, zero].max(), square["from_limit"][-1].max()
        said = f"|w − y X⁺| ≤ {arrived:.1e} |y X⁺| after {self.steps:,} steps"
        yield said, yes(arrived < EXACT, f"largest of {count}")
        moved = square["drift"].max()
        apart = square["distance"][-1][:, [i for i, size in enumerate(self.starts) if size]].min()
        said = f"they moved by {moved:.1e}, the end is y X⁺ + P w₀ to {kept:.1e}, {apart:.2g} or more from y X⁺"
        yield said, yes(moved < EXACT and kept < EXACT < apart, f"in units of |y X⁺|, {count}, all starts")
        anywhere = results["ridge"]["distance"][-1].max()
        said = f"|w − w_λ| ≤ {anywhere:.1e} |w_λ| from all starts, λ = {self.decay:g}"
        yield said, yes(anywhere < EXACT, f"largest of {count}, {len(self.starts)} starts each")
        faded = results["towards no decay"]["distance"]
        slope = np.log(faded[-2] / faded[-1]) / np.log(self.decays[-2] / self.decays[-1])
        said = f"|w − y X⁺| ∝ λ^{slope.mean():.2f} in the end, {ratios(self.decays, faded)}"
        yield said, near(slope, 1.0, 0.25)
        free, held = (results[f"{name}, pushed"]["distance"][-1, :, zero] for name in ("square", "ridge"))
        said = f"distance left: {free.min():.2g} or more without, {held.max():.1e} or less with λ"
        yield said, yes(free.min() > 1e-2 and held.max() < EXACT, f"pushed by N(0, I) halfway, {count}")
        deep, misfit = (results["two layers"][name] for name in ("distance", "misfit"))
        smaller = np.polyfit(np.log(self.small), np.log(deep.T), 1)[0]
        found = bool(misfit.max() < 1e-4 and (np.diff(deep.mean(0)) < 0).all() and deep[:, -1].max() < 0.05)
        said = f"|W₂W₁ − y X⁺| ∝ size^{smaller.mean():.2f}, {ratios(self.small, deep.T)}; misfit {misfit.max():.0e}"
        worst = f"largest at the smallest start {deep[:, -1].max():.2g}"
        yield said, yes(found, f"{worst}, {count}, {self.hidden} hidden units")

    def draw(self, results: Results) -> Figures:
        figure, panels = subplots(2, 2, figsize=(9, 7), sharey=True)
        titles = ("only from 0 to y X⁺", "from everywhere to w_λ", "a push stays", "a push dies out")
        for axis, name, title in zip(panels.flat, DESCENTS, titles, strict=True):
            found, decay = results[name], 0.0 if name.startswith("square") else self.decay
            for i, size in enumerate(self.starts):
                values = np.exp(np.log(np.maximum(found["distance"][:, :, i], 1e-16)).mean(1))
                axis.loglog(found["times"], values, label=f"|w₀| × {size:g}")
            axis.set(title=f"λ = {decay:g}: {title}", xlabel="step", ylabel="|w − w*| / |w*|")
            axis.legend()
        return {"minimum-norm": figure}
