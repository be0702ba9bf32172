from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether import measure
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import every, less, more, near, plus_minus
from tether_studies.orthogonality import METHODS, NODES, SPIRAL, network

START = {"SGD": 1 / 6, "SGD, orthogonal start": 1 / 2}  # of mean σ², for each ReLU layer


def hidden_map(net: nn.Sequential, hidden: int) -> nn.Module:
    """From the first hidden layer to the last: (F W) … (F W), NODES × NODES."""
    return net[2 : 2 * hidden]


def looked_at(nets: tether.Replicas, hidden: int, x: torch.Tensor, y: torch.Tensor, points: int) -> Results:
    """Of every network: mean σ² of the hidden map, its root for a layer, the norm of the first weight's gradient."""
    squares, norms = [], []
    for i in range(len(x)):
        net: Any = nets[i]
        with torch.no_grad():
            inner = net[:2](x[i, :points])
        found = measure.jacobian_spectrum(hidden_map(net, hidden), inner)
        squares.append(found.values.square().mean().item())
        norms.append(measure.gradient_norms(net, (x[i], y[i]), bce, where="2.weight").total)
    each = np.asarray(squares) ** (1 / (hidden - 1))
    return {"square": np.asarray(squares), "layer": each, "gradient": np.asarray(norms)}


@study("isometry", "CoLA poster, Constraints for neural networks; thesis, 4.3")
class Isometry(Experiment):
    """orthogonal weights keep the gradient's length through depth

    The gradient of a layer holds the product F W F W … of the layers behind it, F the masks of ReLU. Its singular
    values are computed for the map between the first and the last hidden layer, at some points of the spiral, before,
    during and after training; beside it the norm of the gradient of the first weight behind all of them. The networks
    and the four methods are those of fig-4.4.

    At the start mean σ² is known: ReLU lets half of the units pass, and torch's start has entries of variance
    1/(3·100), so that it is 1/6 for each layer, ½ with orthogonal weights. The poster shows no such numbers: it states
    the aim.
    """

    says = """
        at the start mean σ² is 1/6 per layer with torch's start, and 1/2 with orthogonal weights
            | CoLA poster: the gradient is a product F W F W …
        orthogonal weights keep mean σ² at 1/2 per layer during training
            | CoLA poster: to control the above expressions, we may impose constraints
        an orthogonal start alone does not keep it | CoLA poster, middle panel
        in deep networks gradients are smaller at torch's start than with orthogonal weights
            | thesis, 4.3: orthogonality mitigates the vanishing/exploding gradient problem
    """
    depths: tuple[int, ...] = at((4, 8), quick=(3,), full=(3, 4, 6, 8, 12))  # hidden layers
    steps: int = at(2000, quick=8, full=20_000)
    looks: int = at(4, quick=2, full=20)  # during training
    runs: int = at(6, quick=2, full=16)
    points: int = at(16, quick=4, full=64)  # of the data, at which Jacobians are taken

    def run(self, lab: Lab) -> Results:
        names = product(self.depths, METHODS)
        return lab.pieces({(str(hidden), name): partial(self.piece, name, hidden, lab) for hidden, name in names})

    def piece(self, name: str, hidden: int, lab: Lab) -> Results:
        """Train a network on each of so many spirals, and look at it."""
        seed, method = lab.named_seed(str(hidden)), METHODS[name]
        x, y, _, _ = SPIRAL.sets(self.runs, lab.named_seed("data"))
        nets = tether.Replicas(lambda: network(hidden, method.orthogonal_start), self.runs, seed=seed)
        opt = method.made(nets, seed)
        found = [looked_at(nets, hidden, x, y, self.points)]
        for look in range(self.looks):
            tether.train(nets, opt, (x, y), bce, self.steps // self.looks, SPIRAL.batch, each=True, seed=seed + look)
            found.append(looked_at(nets, hidden, x, y, self.points))
        steps = np.arange(self.looks + 1) * (self.steps // self.looks)
        return {"steps": steps, **{key: np.stack([one[key] for one in found]) for key in found[0]}}

    def deepest(self, results: Results, key: str, look: int) -> dict[str, Any]:
        """Of the deepest networks, by method."""
        return {name: results[str(self.depths[-1]), name][key][look] for name in METHODS}

    def claims(self, results: Results) -> Found:
        first = {name: results[str(hidden), name]["layer"][0] for hidden in self.depths[:1] for name in START}
        judged = {name: near(first[name], START[name], within=0.15 * START[name]) for name in START}
        yield ", ".join(f"{name} {plus_minus(x, 3)}" for name, x in first.items()), every(judged)
        end, begin = self.deepest(results, "layer", -1), self.deepest(results, "layer", 0)
        kept, lost = end["o-CoLA-od"], end["SGD, orthogonal start"]
        yield f"{plus_minus(kept, 3)} per layer in the end", near(kept, 0.5, within=0.1)
        text = f"{plus_minus(begin['SGD, orthogonal start'], 3)} at the start, {plus_minus(lost, 3)} in the end"
        yield text, more(np.abs(lost - 0.5), np.abs(kept - 0.5))
        begin = self.deepest(results, "gradient", 0)
        text = ", ".join(f"{name} {plus_minus(1e3 * begin[name], 2)}e-3" for name in ("SGD", "o-CoLA-od"))
        yield text, less(begin["SGD"], begin["o-CoLA-od"])

    def tables(self, results: Results) -> list[Table]:
        rows = [
            [
                *name,
                plus_minus(found["layer"][0], 3),
                plus_minus(found["layer"][-1], 3),
                plus_minus(1e3 * found["gradient"][0], 2),
                plus_minus(1e3 * found["gradient"][-1], 2),
            ]
            for name, found in results.items()
        ]
        head = ["hidden layers", "method", "σ² per layer, start", "end", "10³ times the gradient's norm, start", "end"]
        return [Table(head, rows, f"{NODES} nodes, {self.steps} steps, {self.runs} runs")]

    def draw(self, results: Results) -> Figures:
        figure, (left, right) = subplots(1, 2, figsize=(10, 4))
        for name in METHODS:
            found = results[str(self.depths[-1]), name]
            left.plot(found["steps"], found["layer"].mean(1), marker="o", ms=3, label=name)
            right.plot(found["steps"], found["gradient"].mean(1), marker="o", ms=3, label=name)
        left.axhline(0.5, color="0.7", lw=0.8, zorder=0)
        left.set(title="mean σ² per layer of the hidden map", xlabel="step", ylim=(0, None))
        right.set(title="norm of the first hidden weight's gradient", xlabel="step", yscale="log")
        left.legend(fontsize=7)
        return {"isometry": figure}
