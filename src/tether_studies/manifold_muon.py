"""Muon on the Stiefel manifold: does the spectral norm pay where weights are orthogonal, and the other way round?"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import less, more, plus_minus
from tether_studies.language import MATRICES, Reading, mean_loss, tested
from tether_studies.orthogonality import SPIRAL, hidden_layers, network
from tether_studies.quantities import Quantity, against

CELLS: dict[str, dict[str, Any]] = {  # what the hidden matrices have; everything else is SGD with momentum
    "SGD-m": {},
    "Muon": {"metric": tether.Spectral()},
    "o-CoLA": {"on": tether.Orthogonal()},
    "manifold Muon": {"metric": tether.Spectral(), "on": tether.Orthogonal()},
}
SPIRALS, TEXT = "spirals", "Penn Treebank"
LEAST = Quantity("least validation loss", lambda one: one["validation"].min(0), 3)


def made(net: nn.Module, where: str, lr: float, other: float, cell: str, seed: int) -> tether.Optimizer:
    """SGD with momentum 0.9 as torch has it, with a metric, a surface and a step of their own for some matrices."""
    parts = [tether.Part(where, lr=lr, **CELLS[cell]), tether.Part("*")]
    return tether.Optimizer(net, parts, lr=other, word="MS", friction=-math.log(0.9), seed=seed)


@study("manifold-muon", "Bernstein 2025; Jordan et al. 2024; thesis, Figure 4.4, Table 4.2", ("ptb",))
class ManifoldMuon(Reading):
    """spectral steps, orthogonal weights, and both

    Two choices for hidden matrices, two by two: free or orthogonal, and Euclidean or spectral steps. SGD with momentum
    0.9 is neither, Muon has spectral steps, o-CoLA orthogonal weights, manifold Muon both. Tasks: six hidden layers of
    100 ReLU nodes on the spirals of fig-4.4, and the transformer of table-4.2 on the first words of Penn Treebank,
    there for the matrices inside its layers. Every cell has the best of some step sizes for these matrices, chosen by
    runs on other seeds; all other parameters have one step size for all cells. A star marks a step size at the end of
    those that were tried: a better one may lie beyond.

    The sources make no such comparison. The networks are small, the runs short, and momentum is 0.9 everywhere, without
    Nesterov's step. The spirals are trained for fewer steps than in fig-4.4, so that its accuracies are not reached.
    """

    says = """
        on the spirals, spectral steps help orthogonal weights | a question of ours, not of the sources
        on the spirals, orthogonal weights help spectral steps | a question of ours
        on Penn Treebank, spectral steps help orthogonal weights | a question of ours
        on Penn Treebank, orthogonal weights help spectral steps | a question of ours
    """
    hidden: int = at(6, quick=3, full=6)
    steps: int = at(1000, quick=6, long=5000, full=20_000)
    runs: int = at(3, quick=2, long=6, full=16)
    epochs: int = at(4, quick=1, long=12, full=40)
    text_runs: int = at(2, quick=2, long=4, full=8)
    tokens: int = at(15_000, quick=1500, long=25_000, full=100_000)
    validation: int = at(7000, quick=700, full=300_000)
    words: int | None = at(2000, quick=100, full=10_000)
    width: int = at(64, quick=8, full=200)
    length: int = 35
    searches: int = at(1, quick=1, long=3, full=4)  # runs of each step size, on their own seeds
    # step sizes without the metric, and with it
    euclidean: tuple[float, ...] = at((0.01, 0.03, 0.1), quick=(0.1,), long=(0.01, 0.03, 0.1, 0.3))
    spectral: tuple[float, ...] = at((0.003, 0.01, 0.03), quick=(0.01,), long=(0.001, 0.003, 0.01, 0.03, 0.1))

    def sizes(self, cell: str) -> tuple[float, ...]:
        return self.spectral if "metric" in CELLS[cell] else self.euclidean

    def run(self, lab: Lab) -> Results:
        """First some runs of every step size, on seeds of their own; then the best of each cell."""
        work = {SPIRALS: (self.spiral, self.runs), TEXT: (self.text, self.text_runs)}
        tried = {
            (task, cell, f"h={h}"): partial(learn, cell, h, self.searches, lab.named_seed(f"search {task}"))
            for task, (learn, _) in work.items()
            for cell in CELLS
            for h in self.sizes(cell)
        }
        found = lab.pieces(tried)
        last = {}
        for task, (learn, many) in work.items():
            for cell in CELLS:
                last[task, cell] = partial(learn, cell, self.best(found, task, cell), many, lab.named_seed(task))
        return found | lab.pieces(last)

    def best(self, results: Results, task: str, cell: str) -> float:
        """The step size with the best end on the search's seeds."""
        ends = {h: self.end(results[task, cell, f"h={h}"]).mean() for h in self.sizes(cell)}
        return (max if task == SPIRALS else min)(ends, key=lambda h: ends[h])

    def named(self, h: float, sizes: tuple[float, ...]) -> str:
        """The step size, with a star at either end of those that were tried."""
        return f"{h:g}" + "*" * (h in (min(sizes), max(sizes)))

    def end(self, found: Results) -> Any:
        return found["accuracy"] if "accuracy" in found else LEAST.take(found)

    def spiral(self, cell: str, lr: float, runs: int, seed: int) -> Results:
        x, y, x_test, y_test = SPIRAL.sets(runs, seed)
        nets = tether.Replicas(lambda: network(self.hidden, orthogonal=True), runs, seed=seed)
        between = "|".join(f"{2 * i}.weight" for i in range(1, hidden_layers(nets)))
        opt = made(nets, between, lr, 0.02, cell, seed)

        def test(*_: Any) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                right = (nets(x_test, each=True) > 0) == (y_test > 0.5)
            return {"accuracy": 100 * right.float().mean((1, 2))}

        every = max(self.steps // 20, 1)
        record = tether.train(nets, opt, (x, y), bce, self.steps, SPIRAL.batch, every, [test], each=True, seed=seed)
        curve = record.metrics["accuracy"]
        return {"steps": record.steps, "curve": curve, "accuracy": curve[-1]}

    def text(self, cell: str, lr: float, runs: int, seed: int) -> Results:
        """Run after run, each with its own start."""
        data, held_out, make = self.texts(TEXT, 10)
        curves = []
        for i in range(runs):
            torch.manual_seed(seed + i)
            net = make()
            opt = made(net, MATRICES, lr, 0.1, cell, seed + i)
            test = lambda *_: {"validation": tested(net, held_out)}  # noqa: B023, E731
            steps = self.epochs * len(data)
            record = tether.train(net, opt, data, mean_loss, steps, log_every=len(data), callbacks=[test])
            curves.append(np.asarray(record.metrics["validation"]))
        return {"epochs": np.array(record.steps) / len(data), "validation": np.stack(curves, -1)}

    def claims(self, results: Results) -> Found:
        for task, judge, digits in ((SPIRALS, more, 1), (TEXT, less, 3)):
            ends = {cell: self.end(results[task, cell]) for cell in CELLS}
            for other in ("o-CoLA", "Muon"):
                yield against(judge, {"": (ends["manifold Muon"], ends[other])}, digits)

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for cell in CELLS:
            accuracy, loss = (self.end(results[task, cell]) for task in (SPIRALS, TEXT))
            h, k = (self.named(self.best(results, task, cell), self.sizes(cell)) for task in (SPIRALS, TEXT))
            rows.append([cell, plus_minus(accuracy), h, plus_minus(loss, 3), k])
        head = ["hidden matrices", "spirals, test accuracy %", "h", "Penn Treebank, least validation loss", "h"]
        longer = f"{self.text_runs} of {self.epochs} epochs of {self.tokens:,} words"
        return [Table(head, rows, f"{self.runs} runs of {self.steps} steps; {longer}")]

    def draw(self, results: Results) -> Figures:
        each = {task: {task: {cell: results[task, cell] for cell in CELLS}} for task in (SPIRALS, TEXT)}
        first, _ = curves(each[SPIRALS], {"curve": "test accuracy, %"}, "steps")
        second, _ = curves(each[TEXT], {"validation": "validation loss"}, "epochs")
        return {"spirals": first, "text": second}
