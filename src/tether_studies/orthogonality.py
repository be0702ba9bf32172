import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, Table, at, study
from tether_studies.judges import POINT, less, more, plus_minus, yes
from tether_studies.planar import Sets, Task
from tether_studies.quantities import against, crossed, of_key

SPIRAL = Task(options={"turns": 4}, train=500, test=1000, batch=25)
NODES = 100
SOFT = 0.05  # the paper's best λ
MANY = (0.01, 0.05, 0.1, 0.5, 1.0, 4.0)  # strengths of the soft constraint
ACCURACY = of_key("accuracy", "test accuracy %")
BEST = "best soft constraint"


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


METHODS = {
    "SGD": Method(sgd()),
    "SGD, orthogonal start": Method(sgd(), orthogonal_start=True),
    "SGD, soft constraint": Method(sgd(strength=SOFT)),
    "o-CoLA-od": Method(cola()),
}


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


@study("fig-4.4", "thesis, Figures 4.4, 4.5, 4.8; ICML paper, Figures 4, 5, D2")
class Orthogonality(Experiment):
    """beyond three hidden layers orthogonal weights win

    Hidden layers of 100 ReLU nodes see the 500 points of (4.58), 25 at a time. o-CoLA-od keeps the weights between
    hidden layers orthogonal; beside it SGD from torch's start, SGD from an orthogonal start, and SGD with the soft
    constraint λ‖QᵀQ − I‖² added to the loss, which is stiff: stable only for h < 1/(4λ).

    The thesis does not give the number of epochs (here 1000), nor the strengths and step sizes of Figure 4.5; its
    caption names the method there o-CoLA-ud, its text o-CoLA-od, which is taken here. By default few pairs of step size
    and strength are tried; --long has a grid of both. The best of them is run again, on the data of o-CoLA-od, which no
    pair was chosen on.
    """

    says = """
        beyond three hidden layers o-CoLA-od ends higher than SGD
            | Figure 4.4: it significantly outperforms unconstrained SGD
        beyond three hidden layers o-CoLA-od ends higher than SGD, orthogonal start
            | Figure 4.4: it clearly outperforms all of these variants
        beyond three hidden layers o-CoLA-od ends higher than SGD, soft constraint
            | Figure 4.4: it significantly outperforms SGD with a soft constraint, λ = 0.05
        its weights stay orthogonal | (4.53)–(4.55): by construction, to the tolerance of the iteration
        no step size and strength of the soft constraint reach o-CoLA-od
            | Figure 4.5: the soft constraint is unable to reach the same performance
        a strong soft constraint needs a smaller step
            | Figure 4.5: stiffness, needing the stepsize to be lowered to allow for larger penalty strengths
        a small temperature speeds up training
            | Figure 4.8, τ = {temperature:g}: speeds up training and often slightly increases the test accuracies
    """
    steps: int = at(20_000, quick=40, full=40_000)
    depths: tuple[int, ...] = at((3, 4, 6), quick=(3, 4), full=(3, 4, 5, 6))  # hidden layers
    runs: tuple[int, ...] = at(
        (5, 16, 5), quick=(2, 2), long=(5, 16, 16), full=(20,) * 4
    )  # at each depth; at four SGD's vary much
    deep: int = at(6, quick=4)  # of them in Figures 4.5 and 4.8
    soft_runs: int = at(3, quick=2, long=4, full=10)  # of each cell of Figure 4.5
    step_sizes: tuple[float, ...] = at((0.1, 0.02), long=(0.1, 0.05, 0.02), full=(0.1, 0.05, 0.02, 0.01))
    strengths: tuple[float, ...] = at((0.5, 4.0), long=MANY, full=MANY)
    temperature: float = 1e-6

    def run(self, lab: Lab) -> Results:
        """Test accuracies over time; run i of every method has the same data and minibatches."""
        runs, deep = dict(zip(self.depths, self.runs, strict=True)), self.deep
        work = {f"{name}, {d}": (method, d, runs[d]) for d in self.depths for name, method in METHODS.items()}
        work[f"warm, {deep}"] = (Method(cola(self.temperature)), deep, runs[deep])
        seed, other = lab.named_seed("data"), lab.named_seed("search")
        pieces = {name: partial(self.piece, *todo, seed) for name, todo in work.items()}
        for h, λ in self.cells():
            pieces[f"h={h}, λ={λ}"] = partial(self.piece, Method(sgd(h, λ)), deep, self.soft_runs, other)
        found = lab.pieces(pieces)
        winner = Method(sgd(*self.winner(found)))
        return found | lab.pieces({BEST: partial(self.piece, winner, deep, runs[deep], seed)})

    def cells(self) -> list[tuple[float, float]]:
        """Step sizes and strengths of the soft constraint."""
        return list(product(self.step_sizes, self.strengths))

    def winner(self, results: Results) -> tuple[float, float]:
        """The pair with the best mean over the runs of the search."""
        return max(self.cells(), key=lambda cell: results[f"h={cell[0]}, λ={cell[1]}"]["accuracy"].mean())

    def piece(self, method: Method, hidden: int, runs: int, seed: int) -> Results:
        return learn(method, hidden, SPIRAL.sets(runs, seed), self.steps, seed)[0]

    def claims(self, results: Results) -> Found:
        ends, deep = ACCURACY.of(results), self.deep
        for other in tuple(METHODS)[:3]:
            beyond = [d for d in self.depths if d > 3]
            yield against(more, {f"{d} layers": (ends[f"o-CoLA-od, {d}"], ends[f"{other}, {d}"]) for d in beyond})
        gap = max(float(results[f"o-CoLA-od, {depth}"]["gap"]) for depth in self.depths)
        said = f"largest entry of |QᵀQ − I| in the end {gap:.1e}"
        yield said, yes(gap < 1e-5, "single precision; all layers, depths and runs")
        hard, (large, *_, small), stiff = ends[f"o-CoLA-od, {deep}"], self.step_sizes, max(self.strengths)
        cells = {(h, s): ends[f"h={h}, λ={s}"] for h, s in self.cells()}
        h, s = self.winner(results)
        said = f"best of {len(cells)} pairs, h = {h:g}, λ = {s:g}, on other data: {plus_minus(ends[BEST])}"
        yield f"{said}; o-CoLA-od {plus_minus(hard)} ({deep} layers)", more(hard, ends[BEST])
        gaps = {h: f"largest |QᵀQ − I| {float(results[f'h={h}, λ={stiff}']['gap']):.2g}" for h in (large, small)}
        texts = ", ".join(f"h = {h:g} {plus_minus(cells[h, stiff])} ({gap})" for h, gap in gaps.items())
        yield f"λ = {stiff:g}: {texts}", less(cells[large, stiff], cells[small, stiff])
        cold, warm = (results[f"{name}, {deep}"]["curve"].mean(0) for name in ("o-CoLA-od", "warm"))
        said, judgement = against(more, {"": (warm, cold)}, least=POINT)
        end = f"{plus_minus(ends[f'warm, {deep}'])} against {plus_minus(hard)}"
        yield f"mean accuracy over training {said}, in the end {end} ({deep} layers)", judgement

    def tables(self, results: Results) -> list[Table]:
        ends = ACCURACY.of(results)
        by_depth = {d: [ends[f"{method}, {d}"] for method in METHODS] for d in self.depths}
        soft = {f"h = {h:g}": [ends[f"h={h}, λ={s}"] for s in self.strengths] for h in self.step_sizes}
        text = f"Test accuracy in per cent after {self.steps:,} steps, mean ± standard error over"
        below = f"{text} {self.soft_runs} runs, {self.deep} hidden layers"
        return [
            crossed(["hidden layers", *METHODS], by_depth, f"{text} {', '.join(map(str, self.runs))} runs"),
            crossed(["soft constraint", *(f"λ = {s:g}" for s in self.strengths)], soft, below),
        ]

    def draw(self, results: Results) -> Figures:
        found = {name: {**one, "epochs": one["steps"] * SPIRAL.batch / SPIRAL.train} for name, one in results.items()}
        depths = {method: {f"{d} hidden layers": found[f"{method}, {d}"] for d in self.depths} for method in METHODS}
        soft = {h: {f"λ = {s:g}": found[f"h={h}, λ={s}"] for s in self.strengths} for h in self.step_sizes}
        groups = {f"soft constraint, h = {h:g}": one for h, one in soft.items()}
        hard = {"τ = 0": found[f"o-CoLA-od, {self.deep}"], f"τ = {self.temperature:g}": found[f"warm, {self.deep}"]}
        groups["o-CoLA-od, h = 0.1"] = hard
        figure, panels = curves(depths, {"curve": "test accuracy, %"}, "epochs")
        below, others = curves(groups, {"curve": f"test accuracy, %, {self.deep} layers"}, "epochs")
        for axis in (*panels.flat, *others.flat):
            axis.set_ylim(45, 101)
        return {"depth": figure, "soft": below}
