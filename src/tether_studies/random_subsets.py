"""Figure 5.7: random subsets of the weights asleep for k steps, on MNIST.

A perceptron with one hidden layer of ReLU nodes, SGD with h = 0.1. Random subset (5.5.1): weights of the input and of
the hidden layer are 0 for k steps with probability 0.8 and 0.5, then woken and moved with h·k. Beside it plain SGD, SGD
with dropout, and what is left without the clock: another subset is 0 at every step and stays where it was. Test
accuracies are those of all weights awake. Few images and many steps, so that plain SGD overfits; every replica has its
own start, subsets and images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.digits import digits, errors
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import every, more
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, at_end, tabulated
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-5.7",
    "random subsets of the weights asleep for k steps keep a perceptron from overfitting",
    "thesis, Figure 5.7",
    data=("mnist",),
    notes="The thesis gives neither k, nodes, batch nor numbers of images and steps, and its accuracies as curves "
    "alone. Dropout is not in its figure. Without the clock no weight is scaled for the test as dropout does, which is "
    "how the thesis describes it but makes that comparison an easy one. Few images and long "
    "training, so that SGD overfits: else random subsets are behind.",
)
SHARES = {"0.weight": 0.8, "2.weight": 0.5}
SGD, DROPOUT, FORGETFUL = "SGD", "SGD with dropout", "without the clock"
ACCURACY = at_end("accuracy", "test accuracy %", 2)
KNOWN = Quantity("training error %", lambda one: one["training error"], 2)


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=20)
    nodes: int = at(100, quick=10, full=500)
    images: int = at(2000, quick=200)  # for each
    tests: int = at(10_000, quick=500)
    epochs: int = at(200, quick=10, full=400)
    batch: int = 50
    lr: float = 0.1
    naps: tuple[int, ...] = at((5, 10), quick=(3,))  # k
    dropout: tuple[float, float] = (0.2, 0.5)  # of pixels, of hidden nodes


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


def run(config: Config, lab: Lab) -> Results:
    """Replica i of every method has the same images."""
    methods = {SGD: 0, DROPOUT: 0, FORGETFUL: 0, **{subset(k): k for k in config.naps}}
    return lab.pieces({name: partial(piece, name, k, config, lab.named_seed("start")) for name, k in methods.items()})


def subset(k: int) -> str:
    return f"random subset, k = {k}"


def piece(method: str, k: int, config: Config, seed: int) -> Results:
    """Per cent for each replica at the end, and the test accuracies on the way."""
    data, test = digits(config.runs, config.images, config.tests)
    torch.manual_seed(seed)  # dropout draws from torch's own generator
    dropout = config.dropout if method == DROPOUT else None
    nets = tether.Replicas(lambda: perceptron(config.nodes, dropout), config.runs, seed=seed)
    if k:
        opt = tether.methods.random_subset(nets, lr=config.lr, k=k, probabilities=SHARES, seed=seed)
    else:
        opt = tether.methods.sgd(nets, lr=config.lr, seed=seed)
    forgetful = Forgetful(nets, seed) if method == FORGETFUL else None
    if forgetful:
        opt.register_step_post_hook(forgetful.sleep)
        forgetful.sleep()
    steps = config.epochs * math.ceil(config.images / config.batch)
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

    record = tether.train(nets, opt, data, cross_entropy, last, config.batch, 1, [look], each=True, seed=seed)
    return {
        "steps": marks,
        "accuracy": record.metrics["accuracy"],
        "training error": record.metrics["training error"][-1],
    }


def perceptron(nodes: int, dropout: tuple[float, float] | None) -> nn.Sequential:
    """One hidden layer; with dropout of the pixels and of the hidden nodes."""
    layers = [nn.Linear(784, nodes), nn.ReLU(), nn.Linear(nodes, 10)]
    if dropout is not None:
        layers = [nn.Dropout(dropout[0]), *layers[:2], nn.Dropout(dropout[1]), layers[2]]
    return nn.Sequential(*layers)


def claims(results: Results, config: Config) -> Claims:
    ends = ACCURACY.of(results)
    ours = {f"k = {k}": ends[subset(k)] for k in config.naps}
    texts = ", ".join(f"{k}: {ACCURACY.text(x)}" for k, x in ours.items())
    for other, text in (
        (SGD, "random subsets reach a higher test accuracy than SGD"),
        (FORGETFUL, "and than their variant without the clock"),
    ):
        judged = every({k: more(x, ends[other], paired=True) for k, x in ours.items()})
        yield Claim(text, "Figure 5.7: higher", f"{texts} against {ACCURACY.text(ends[other])} %", *judged)


def tables(results: Results, config: Config) -> list[Table]:
    sgd = ACCURACY.take(results[SGD])
    best = Quantity("best on the way", lambda one: one["accuracy"].max(0), 2)
    gain = Quantity("minus SGD, same images", lambda one: ACCURACY.take(one) - sgd, 2)
    table = tabulated("method", results, [KNOWN, ACCURACY, best, gain])
    rows = [[*row[:-1], "" if row[0] == SGD else row[-1]] for row in table.rows]
    caption = f"{config.nodes} nodes, {config.images:,} images, {config.epochs} epochs; mean ± standard error"
    return [Table(table.head, rows, caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, axis = subplots(figsize=(6, 4.2))
    draw_curves(axis, results, "accuracy", band="")
    ends = list(ACCURACY.of(results).values())
    low, high = min(x.min() for x in ends), max(x.max() for x in ends)
    axis.set(xlabel="step", ylabel="test accuracy, %", title="MNIST, one hidden layer", ylim=(low - 2, high + 0.5))
    axis.legend(loc="center right")
    return {"random_subsets": figure}
