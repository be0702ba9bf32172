import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.images import digits, errors
from tether_studies.judges import every, more
from tether_studies.quantities import Quantity, at_end, of_key

SHARES = {"0.weight": 0.8, "2.weight": 0.5}
SGD, DROPOUT, FORGETFUL = "SGD", "SGD with dropout", "without the clock"
ACCURACY = at_end("accuracy", "test accuracy %", 2)
BEST = Quantity("best on the way", lambda one: one["accuracy"].max(0), 2)


class Forgetful:
    """A random subset of the weights is 0 for one step and stays where it was: no clock, no long step."""

    def __init__(self, nets: nn.Module, seed: int = 0) -> None:
        named = dict(nets.named_parameters())
        self.params = {named[name]: share for name, share in SHARES.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.held: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = {}

    @torch.no_grad()
    def sleep(self, *_: Any) -> None:
        self.wake()
        for param, share in self.params.items():
            mask = torch.rand(param.shape, generator=self.generator) < share
            self.held[param] = (mask, param.detach().clone())
            param.masked_fill_(mask, 0.0)

    @torch.no_grad()
    def wake(self) -> None:
        for param, (mask, values) in self.held.items():
            param.copy_(torch.where(mask, values, param))
        self.held = {}


def perceptron(nodes: int, dropout: tuple[float, float] | None) -> nn.Sequential:
    """One hidden layer; with dropout of the pixels and of the hidden nodes."""
    layers = [nn.Linear(784, nodes), nn.ReLU(), nn.Linear(nodes, 10)]
    if dropout is not None:
        layers = [nn.Dropout(dropout[0]), *layers[:2], nn.Dropout(dropout[1]), layers[2]]
    return nn.Sequential(*layers)


@study("fig-5.7", "thesis, Figure 5.7", ("mnist",))
class RandomSubsets(Experiment):
    """random subsets of the weights asleep for k steps keep a perceptron from overfitting

    A perceptron with one hidden layer of ReLU nodes, SGD with h = 0.1. Random subset (5.5.1): weights of the input and
    of the hidden layer are 0 for k steps with probability 0.8 and 0.5, then woken and moved with h·k. Beside it plain
    SGD, SGD with dropout, and what is left without the clock: another subset is 0 at every step and stays where it was.
    Test accuracies are those of all weights awake. Few images and many steps, so that plain SGD overfits; every replica
    has its own start, subsets and images.

    The thesis gives neither k, nodes, batch nor numbers of images and steps, and its accuracies as curves alone.
    Dropout is not in its figure. There is no momentum. Without the clock no weight is scaled for the test as dropout
    does, which is how the thesis describes it but makes that comparison an easy one. Few images and long training, so
    that SGD overfits: else random subsets are behind.
    """

    says = """
        random subsets reach a higher test accuracy than SGD | Figure 5.7: higher
        and than their variant without the clock | Figure 5.7: higher
    """
    columns = (
        of_key("training error", "training error %", 2),
        ACCURACY,
        BEST,
        of_key("gain", "minus SGD, same images", 2),
    )
    caption = "{nodes} nodes, {images:,} images, {epochs} epochs; mean ± standard error"
    runs: int = at(4, quick=2, full=20)
    nodes: int = at(100, quick=10, full=500)
    images: int = at(2000, quick=200)  # for each
    tests: int = at(10_000, quick=500)
    epochs: int = at(200, quick=10, full=400)
    batch: int = 50
    lr: float = 0.1
    naps: tuple[int, ...] = at((5, 10), quick=(3,))  # k
    dropout: tuple[float, float] = (0.2, 0.5)  # of pixels, of hidden nodes

    def run(self, lab: Lab) -> Results:
        """Replica i of every method has the same images."""
        methods = {SGD: 0, DROPOUT: 0, FORGETFUL: 0, **{f"random subset, k = {k}": k for k in self.naps}}
        return lab.pieces({name: partial(self.piece, name, k, lab.named_seed("start")) for name, k in methods.items()})

    def piece(self, method: str, k: int, seed: int) -> Results:
        """Per cent for each replica at the end, and the test accuracies on the way."""
        data, test = digits(self.runs, self.images, self.tests)
        torch.manual_seed(seed)  # dropout draws from torch's own generator
        dropout = self.dropout if method == DROPOUT else None
        nets = tether.Replicas(lambda: perceptron(self.nodes, dropout), self.runs, seed=seed)
        if k:
            opt = tether.methods.random_subset(nets, lr=self.lr, k=k, probabilities=SHARES, seed=seed)
        else:
            opt = tether.methods.sgd(nets, lr=self.lr, seed=seed)
        forgetful = Forgetful(nets, seed) if method == FORGETFUL else None
        if forgetful:
            opt.register_step_post_hook(forgetful.sleep)
            forgetful.sleep()
        steps = self.epochs * math.ceil(self.images / self.batch)
        often = max(1, steps // 25 // (k + 1)) * (k + 1)
        last = steps // (k + 1) * (k + 1) - 1 if k else steps
        marks: list[int] = []

        def look(step: int, *_: Any) -> Mapping[str, Any]:
            awake = (step + 1) % often == 0 if k else step % often == 0  # of k + 1 steps after the one before the last
            if not awake and step != last:
                return {}
            marks.append(step)
            if forgetful:
                forgetful.wake()
            found = {"accuracy": 100 - errors(nets, *test)}
            if step == last:
                found["training error"] = errors(nets, *data)
            if forgetful:
                forgetful.sleep()
            return found

        record = tether.train(nets, opt, data, cross_entropy, last, self.batch, 1, [look], each=True, seed=seed)
        return {"steps": marks, **record.metrics, "training error": record.metrics["training error"][-1]}

    def claims(self, results: Results) -> Found:
        ends = ACCURACY.of(results)
        ours = {f"k = {k}": ends[f"random subset, k = {k}"] for k in self.naps}
        texts = ", ".join(f"{k}: {ACCURACY.text(x)}" for k, x in ours.items())
        for other in (SGD, FORGETFUL):
            judged = every({k: more(x, ends[other]) for k, x in ours.items()})
            yield f"{texts} against {ACCURACY.text(ends[other])} %", judged

    def tabled(self, results: Results) -> Results:
        sgd = ACCURACY.take(results[SGD])
        return {name: found | {"gain": ACCURACY.take(found) - sgd} for name, found in results.items()}

    def draw(self, results: Results) -> Figures:
        title, ends = "MNIST, one hidden layer", list(ACCURACY.of(results).values())
        figure, panels = curves({title: results}, {"accuracy": "test accuracy, %"}, band="")
        panels[0, 0].set_ylim(min(x.min() for x in ends) - 2, max(x.max() for x in ends) + 0.5)
        return {"random_subsets": figure}
