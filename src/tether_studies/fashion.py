from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import beside, curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, recipe, study
from tether_studies.images import Pair, perceptron, tested
from tether_studies.quantities import Quantity, at_end, given, of_key

COLA, SPLIT = "c-CoLA-ud", "c-CoLA-ud, BAOAB"
PUBLISHED: dict[tuple[float, float], tuple[float, ...]] = {  # Table 4.3: accuracy and loss, without decay and with it
    (0.2, 0.8): (87.18, 1.06, 84.05, 0.696),
    (0.2, 0.7): (87.38, 0.890, 87.0, 0.547),
    (0.1, 0.9): (86.97, 1.133, 85.35, 0.634),
    (0.1, 0.8): (87.39, 0.824, 87.47, 0.531),
    (0.1, 0.7): (87.39, 0.750, 87.25, 0.517),
    (0.05, 0.95): (86.67, 1.226, 85.63, 0.623),
    (0.05, 0.9): (87.33, 0.837, 86.24, 0.569),
    (0.05, 0.8): (87.27, 0.719, 87.33, 0.511),
}
ACCURACY, LOSS = of_key("settled accuracy", "test accuracy %", 2, " %"), of_key("settled loss", "test loss", 3)
LARGEST = at_end("largest", "largest |output weight|", 3)
KNOWN = Quantity("training accuracy %", lambda one: one["training accuracy"], show=lambda x: f"{x.mean():.1f}")
RISE = Quantity("rise", lambda one: one["loss"][-1] - one["loss"].min(0), 3)


def name(h: float, momentum: float, decay: float) -> str:
    return f"SGD-m h={h:g} mom={momentum:g}" + (f" WD={decay:g}" if decay else "")


# In the text at Figure 4.7: means and standard deviations after 400 epochs
PRINTED = {COLA: (87.63, 0.04), name(0.1, 0.8, 0.0): (87.39, 0.06), name(0.1, 0.8, 1e-4): (87.47, 0.38)}


@lru_cache(1)
def everything() -> Pair:
    """The training images and behind them those of the test set, as bytes, and their labels."""
    parts = [tether.data.fashion_mnist(train=train) for train in (True, False)]
    return torch.cat([x for x, _ in parts]).flatten(1), torch.cat([y for _, y in parts])


@study("fig-4.7", "thesis, Figures 4.7, 4.10, Table 4.3; ICML paper, Figure 7", ("fashion-mnist",))
class Fashion(Experiment):
    """bounded weights do not overfit Fashion-MNIST

    A perceptron with 1000 hidden ReLU nodes sees 10,000 of the training images, 128 at a time; it is tested on all
    others and on the test set, 60,000 in all. Pixels are between 0 and 1. c-CoLA-ud (h = 0.3, γ = 1, |θ| ≤ 0.05 and
    0.1, τ = 0) beside SGD with momentum, with weight decay and without.

    The thesis trains for 400 epochs and has five runs. It does not say how pixels are scaled; divided by 255 they give
    its figures for SGD. Bands in the figure are the least and the largest of the runs. The word here is OBA; the
    authors' program has BAOAB as A½ O A½ B, which --long runs too. With `last` > 1 the mean of the last tests counts.
    """

    says = """
        the test loss of bounded weights is lower than that of SGD-m | Table 4.3: 0.386 against 0.824 after 400 epochs
        … and than that of SGD-m with weight decay | Table 4.3: 0.386 against 0.531 after 400 epochs
        they show less overfitting
            | Figure 4.10: the test loss remains small and stable; in contrast SGD shows clear signs of overfitting
        their test accuracy is higher | 87.63 ± 0.04 % against 87.39 ± 0.06 %, standard deviations, after 400 epochs
        the weights of the output layer stay small | Figure 4.10: small and stable with constraints, growing without
    """
    columns = (ACCURACY, LOSS, KNOWN, given("thesis", "thesis, 400 epochs"))
    caption = "{runs} runs of {epochs} epochs, mean ± standard error"
    runs: int = at(3, quick=2, long=4, full=5)
    epochs: int = at(100, quick=2, long=400, full=400)
    tested: int = at(8, long=40, full=40)  # times
    last: int = at(1, quick=2, long=5, full=5)  # tests whose mean counts
    split: bool = at(False, quick=True, long=True, full=True)  # BAOAB too
    nodes: int = at(1000, quick=30)
    images: int = at(10_000, quick=500)  # to train on
    tests: int = at(60_000, quick=1000)
    settings: tuple[tuple[float, float], ...] = at(
        ((0.1, 0.8),), full=tuple(PUBLISHED)
    )  # step sizes and momenta of SGD
    decay: float = 1e-4

    def methods(self) -> dict[str, Recipe]:
        cola = partial(recipe, "circle_cola_ud", lr=0.3, friction=1.0, radius=(0.05, 0.1))
        made = {COLA: cola()} | ({SPLIT: cola(word="BAOAB")} if self.split else {})
        for h, momentum in self.settings:
            for decay in (0.0, self.decay):
                made[name(h, momentum, decay)] = recipe("SGD", lr=h, momentum=momentum, weight_decay=decay)
        return made

    def run(self, lab: Lab) -> Results:
        """Run i of every method has the same images, start and minibatches."""
        return lab.runs(self.methods(), self.runs, self.piece)

    def piece(self, method: str, seed: int) -> Results:
        """Train once; test loss, accuracy and the largest output weight on the way."""
        images, labels = everything()
        shuffled = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))
        order = torch.cat((shuffled, torch.arange(60_000, 70_000)))
        mine, others = order[: self.images], order[self.images :][: self.tests]
        torch.manual_seed(seed)
        net = perceptron(784, self.nodes, 10)

        def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
            loss, accuracy = tested(net, images[others], labels[others])
            return {"loss": loss, "accuracy": accuracy, "largest": net.get_parameter("2.weight").detach().abs().max()}

        pairs, steps = (images[mine].float() / 255, labels[mine]), self.epochs * -(-self.images // 128)
        batch, often, opt = min(128, self.images), max(steps // self.tested, 1), self.methods()[method](net, seed)
        record = tether.train(net, opt, pairs, cross_entropy, steps, batch, often, [test], seed=seed)
        found = {"epochs": np.array(record.steps) * self.epochs / steps, **record.metrics}
        return found | {"training accuracy": tested(net, *pairs)[1]}

    def settled(self, results: Results) -> Results:
        """With the means of the last tests."""
        return {
            name: found | {f"settled {key}": found[key][-self.last :].mean(0) for key in ("loss", "accuracy")}
            for name, found in results.items()
        }

    def claims(self, results: Results) -> Found:
        results = self.settled(results)
        free, decayed = (name(*self.settings[0], decay) for decay in (0.0, self.decay))
        after = f"after {self.epochs} epochs "
        yield LOSS.less(results, COLA, free, told=after)
        yield LOSS.less(results, COLA, decayed, told=after)
        yield RISE.less(results, COLA, free, told="test loss in the end above its least: ")
        yield ACCURACY.more(results, COLA, free, told=after, least=(87.63 - 87.39) / 2)
        yield LARGEST.less(results, COLA, free, told=f"{LARGEST.name}: ")

    def tabled(self, results: Results) -> Results:
        results = self.settled(results)
        thesis = {COLA: "87.63 %, 0.386"}
        for setting, (accuracy, loss, accuracy_decayed, loss_decayed) in PUBLISHED.items():
            thesis[name(*setting, 0.0)] = f"{accuracy} %, {loss}"
            thesis[name(*setting, 1e-4)] = f"{accuracy_decayed} %, {loss_decayed}"
        return {method: found | {"thesis": thesis.get(method, "")} for method, found in results.items()}

    def draw(self, results: Results) -> Figures:
        keys = {"loss": "test loss", "accuracy": "test accuracy, %", "largest": LARGEST.name}
        figure = curves({"": results}, keys, "epochs", across=True, band="range")[0]
        printed = {x: both for x, both in PRINTED.items() if x in results}
        return {"fashion": figure, "accuracies": beside(printed, ACCURACY.of(self.settled(results)), ACCURACY.name)}
