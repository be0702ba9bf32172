import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, recipe, study
from tether_studies.images import Pair, tested
from tether_studies.judges import Judgement, every, no_worse, yes
from tether_studies.quantities import Quantity, within

OURS = "Path-SGD"
MARGIN = 0.5  # points of test error
DOUBLE = "double precision"
METHODS = {  # of a step size
    "SGD": partial(recipe, "sgd"),
    "AdaGrad": partial(recipe, "Adagrad"),
    OURS: partial(recipe, "path_sgd"),
}
STARTS = ("balanced", "unbalanced")
DROPOUTS = {"no dropout": 0.0, "dropout": 0.5}
MEASURES = ("training loss", "training error, %", "test error, %")
LOSS = Quantity(MEASURES[0], lambda one: one["curve"][-1, 0], 4)
ERROR = Quantity(MEASURES[2], lambda one: one["curve"][-1, 2], 2)
CURVE = Quantity("test error, mean over all epochs, %", lambda one: one["curve"][1:, 2].mean(0), 2)
SIZES = Quantity(
    "step sizes", lambda one: sorted(set(one["step size"])), show=lambda x: ", ".join(f"{h:.2g}" for h in x)
)
Curve = list[list[float]]  # the three measures before training and after each epoch


def network(inputs: int, nodes: int, dropout: float) -> nn.Sequential:
    """Two hidden layers, each followed by dropout, which the path metric does not see."""
    hidden = [[nn.Linear(n, nodes), nn.ReLU(), nn.Dropout(dropout)] for n in (inputs, nodes)]
    return nn.Sequential(*hidden[0], *hidden[1], nn.Linear(nodes, 10))


def search(trained: Callable[[float, int], Curve], short: int, epochs: int) -> tuple[float, Curve]:
    """The best of three step sizes around the best power of ten; a run that ended early is no good."""

    def best(sizes: Sequence[float], length: int) -> tuple[float, Curve]:
        curves = {h: trained(h, length) for h in sizes}
        ends = {h: curve[-1][0] if len(curve) == length + 1 else math.inf for h, curve in curves.items()}
        h = min(ends, key=lambda h: ends[h] if math.isfinite(ends[h]) else math.inf)
        return h, curves[h]

    middle, _ = best([10.0**power for power in range(-5, 1)], short)
    return best([middle * 10**half for half in (-0.5, 0.0, 0.5)], epochs)


def train(model: nn.Module, made: Any, pairs: tuple[Pair, Pair], seed: int, h: float, epochs: int) -> Curve:
    """The curve of a run; that of a run that was stopped, for its loss was not finite, is short."""
    net, (data, test) = copy.deepcopy(model), pairs

    def measure(*_: Any) -> None:
        (loss, right), (__, right_test) = tested(net, *data), tested(net, *test)
        curve.append([loss, 100 - right, 100 - right_test])

    curve: Curve = []
    measure()
    batch = min(100, len(data[0]))
    per_epoch = -(-len(data[0]) // batch)
    torch.manual_seed(seed)  # the same dropout for all
    options: dict[str, Any] = {"seed": seed, "progress": False, "compiled": False, "callbacks": [measure]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".* is stopped")
        opt = made(lr=h)(net, seed)
        log = tether.train(net, opt, data, cross_entropy, epochs * per_epoch, batch, per_epoch, **options)
    return curve[:1] if log.stopped else curve


@study("path-sgd", "Path-SGD slides, experiments without and with dropout", ("mnist",))
class PathSGD(Experiment):
    """Path-SGD is invariant to rescaling and works well from an unbalanced start

    Two hidden layers of ReLU nodes, batch 100, with and without dropout of one half after each. The unbalanced start
    computes the same function as the balanced one: each hidden node has its incoming weights multiplied and its
    outgoing ones divided by a factor between 1/100 and 100. Step sizes are searched for in every run of every method:
    the powers of ten from 1e-5 to 1 by the training loss of a short run, then whole runs of the best and of half a
    power to either side, by the training loss at their end.

    The slides have 4000 nodes in each hidden layer, all images, and MNIST, CIFAR-10, CIFAR-100 and SVHN, one curve
    each; --set data=cifar10 tests=5000 has the second. Their unbalanced start is not described; its factors here are
    1/100 to 100. Of the curves of test error the means over all epochs are judged, against SGD and AdaGrad each: no
    worse than both is no worse than the better. The invariance is judged over an epoch in double precision: in single
    precision rounding grows from epoch to epoch.
    """

    says = """
        Path-SGD goes the same way from both starts: it is invariant to rescaling | a property of the update rule
        from an unbalanced start Path-SGD works well: no worse than SGD and AdaGrad by half a point of test error
            | “seems to work well compared to constant step size SGD and AdaGrad”; given as curves
        and from a balanced start too
            | “seems to work well compared to constant step size SGD and AdaGrad”; given as curves
    """
    label = ("", "start", "method")
    columns = (LOSS, ERROR, CURVE, SIZES)
    caption = "{data}, {images:,} images, {nodes} nodes, {epochs} epochs, {runs} runs"
    runs: int = at(3, quick=2, long=6, full=6)
    data: str = "mnist"  # or cifar10
    nodes: int = at(200, quick=16, full=4000)  # in each hidden layer
    images: int = at(5000, quick=100, full=60_000)
    tests: int = at(10_000, quick=200)
    epochs: int = at(12, quick=2, full=100)
    short: int = at(2, quick=1, full=2)  # epochs for each power of ten
    spread: float = 100.0  # of the factors of the unbalanced start

    def run(self, lab: Lab) -> Results:
        """Run i of every method has the same images, start, minibatches and dropout."""
        found = lab.runs(list(product(DROPOUTS, STARTS, METHODS)), self.runs, self.piece)
        seed = lab.named_seed(DOUBLE)
        return found | lab.each([(DOUBLE, start) for start in STARTS], lambda name: self.exact(name[1], seed))

    def model(
        self, start: str, inputs: int, dropout: float, seed: int, dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        """A network at its start: balanced, or rescaled to the same function."""
        torch.manual_seed(seed)
        net = network(inputs, self.nodes, dropout).to(dtype)
        return tether.measure.rescale(net, seed=seed, spread=self.spread) if start == "unbalanced" else net

    def exact(self, start: str, seed: int) -> Results:
        """The losses of all minibatches of an epoch of Path-SGD in double precision, without dropout."""
        (x, y), _ = self.sets(seed)
        net = self.model(start, x.shape[1], 0.0, seed, torch.float64)
        batch = min(100, len(x))
        options: dict[str, Any] = {"seed": seed, "progress": False, "compiled": False}
        opt = METHODS[OURS](lr=0.1)(net, seed)
        log = tether.train(net, opt, (x.double(), y), cross_entropy, len(x) // batch, batch, 1, **options)
        return {"losses": log.losses}

    def piece(self, cell: tuple[str, str, str], seed: int) -> Results:
        """The step size with the lowest training loss at the end, and its curve."""
        dropout, start, method = cell
        pairs = self.sets(seed)
        model = self.model(start, pairs[0][0].shape[1], DROPOUTS[dropout], seed)
        h, curve = search(partial(train, model, METHODS[method], pairs, seed), self.short, self.epochs)
        return {"step size": h, "curve": curve}

    @lru_cache(2)  # noqa: B019 (a config is a value)
    def sets(self, seed: int) -> tuple[Pair, Pair]:
        """Training images of this seed and test images as vectors, without the mean of the training images."""
        (x, y), (x_test, y_test) = (getattr(tether.data, self.data)(train=train) for train in (True, False))
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: self.images]
        x, x_test = (pixels.flatten(1).float() / 255 for pixels in (x[rows], x_test[: self.tests]))
        mean = x.mean(0)
        return (x - mean, y[rows]), (x_test - mean, y_test[: self.tests])

    def claims(self, results: Results) -> Found:
        pairs = [[results[x, start, OURS]["curve"][:, 0] for start in STARTS] for x in DROPOUTS]
        apart = max(float(np.abs(b / a - 1).max()) for a, b in pairs)
        evidence = f"{self.runs} runs with and without dropout, {self.epochs} epochs in single precision"
        a, b = (results[DOUBLE, start]["losses"] for start in STARTS)
        exact = float(np.abs(b / a - 1).max())
        said = f"training losses of all epochs differ by at most {100 * apart:.2g} %"
        double = f"those of {len(a)} steps in double precision by at most {exact:.0e}"
        yield f"{said}, {double} of their size", yes(exact < 1e-9, evidence)
        for start in reversed(STARTS):
            texts, judged = [], dict[str, Judgement]()
            for dropout in DROPOUTS:
                found = within(results, dropout, start)
                of = CURVE.of(found)
                texts.append(f"{dropout}: {CURVE.listed(found)} (in the end {ERROR.listed(found)})")
                for x in METHODS:
                    if x != OURS:
                        judged[f"{dropout}, {x}"] = no_worse(-of[OURS], -of[x], within=MARGIN)
            yield "test error in %, mean over all epochs, " + "; ".join(texts), every(judged)

    def tabled(self, results: Results) -> Results:
        return {name: one for name, one in results.items() if name[0] != DOUBLE}

    def draw(self, results: Results) -> Figures:
        """As on the slides: a row for each measure, a column for each start, without dropout and with it."""
        figure, axes = subplots(3, 4, figsize=(10, 7.5), sharex=True, sharey="row")
        for column, cell in zip(axes.T, product(DROPOUTS, STARTS), strict=True):
            for method, found in within(results, *cell).items():
                for axis, values in zip(column, found["curve"].mean(2).T, strict=True):
                    axis.plot(values, "--" if method == OURS else "-", label=method)
            column[0].set_title(", ".join(cell), fontsize=10)
            column[2].set_xlabel("epoch")
        worst = max(one["curve"][-1, 2].mean() for name, one in results.items() if name[-1] == OURS)
        for axis, name in zip(axes[:, 0], MEASURES, strict=True):
            axis.set_ylabel(name)
            axis.set(
                **{"ylim": (0, min(100, 3 * worst))} if name != MEASURES[0] else {"yscale": "log", "ylim": (None, 5)}
            )
        axes[0, 0].legend()
        return {"path_sgd": figure}
