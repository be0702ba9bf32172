"""Figures 5.9 to 5.12: biases on the slow time scale.

One hidden layer of ReLU nodes on the four-turn spiral. Multirate SGD (Algorithm 5.1, k = 5, h = 1, no momentum): the
weights every step with h/k = 0.2, biases every five steps with h, spread over them. Beside it plain SGD with h = 0.2,
and what is not it: biases with a larger step at every step, biases frozen for k steps without the larger one, only the
input biases, only the output bias. And a convolutional network on CIFAR-10 with slow biases (k = 10) in its last layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import tether
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import more
from tether_studies.lab import Lab
from tether_studies.pictures import Convolutional, accuracy, pictures
from tether_studies.planar import Task, learn
from tether_studies.quantities import Quantity, tabulated
from tether_studies.recipes import Recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-5.9",
    "biases on the slow time scale generalize better",
    "thesis, Figures 5.9–5.12",
    data=("cifar10",),
    notes="The thesis has 5 runs on the spiral, and a ResNet-34 on all of CIFAR-10 for Figure 5.12; here a network of "
    "three convolutions on 5,000 images. The number of nodes and steps of Figure 5.9 is not given.",
)
K, H = 5, 1.0
SLOW: dict[str, Any] = {"lr": H, "every": K, "drift": True}


def sgd(*parts: tether.Part, lr: float = H / K, momentum: float = 0.0) -> Recipe:
    """SGD in which some parts differ from the rest."""
    friction = -math.log(momentum) if momentum else math.inf
    table = [*parts, tether.Part("*")]
    return lambda nets, seed: tether.Optimizer(nets, table, lr=lr, word="MS", friction=friction, seed=seed)


SPIRAL = {
    "SGD, h = 0.2": sgd(),
    "slow biases": sgd(tether.Part("*.bias", **SLOW)),
    "slow input biases": sgd(tether.Part("0.bias", **SLOW)),
    "slow output bias": sgd(tether.Part("2.bias", **SLOW)),
    "biases with h = 1 at every step": sgd(tether.Part("*.bias", lr=H)),
    "biases frozen for k, then h = 0.2": sgd(tether.Part("*.bias", lr=H / K, every=K, drift=False)),
}
late = tether.Part("head.bias", lr=1.0, every=10, drift=True)
IMAGES = {  # with momentum, as the thesis has it where nothing else is said
    "CIFAR-10, SGD, h = 0.1": sgd(lr=0.1, momentum=0.9),
    "CIFAR-10, slow output biases, k = 10": sgd(late, lr=0.1, momentum=0.9),
}
ACCURACY = Quantity("test accuracy %", lambda one: one["accuracy"], unit=" %")
WORST, BEST = (Quantity(name, ACCURACY.take, show=show) for name, show in (("worst", min), ("best", max)))


@dataclass(frozen=True)
class Config:
    runs: int = at(20, quick=2)
    steps: int = at(20_000, quick=100, full=100_000)
    nodes: int = at(100, quick=20, full=500)
    image_runs: int = at(4, quick=2, full=10)
    images: int = at(5000, quick=256, full=50_000)
    epochs: int = at(8, quick=1, full=100)


def run(config: Config, lab: Lab) -> Results:
    """Test accuracies in per cent, one for each run; of the spiral also over time."""
    seed = lab.named_seed("spiral")
    spirals = lab.pieces({name: partial(spiral, config, made, seed) for name, made in SPIRAL.items()})
    return spirals | lab.runs(IMAGES, config.image_runs, partial(images, config))


def spiral(config: Config, made: Recipe, seed: int) -> Results:
    """All runs at once, each with points of its own."""
    task = Task("spiral", {"turns": 4}, config.nodes, train=500, test=1000, batch=25)
    found = learn(task, made, config.steps, config.runs, seed, records=40)
    curve = found["accuracy"][:, 0]
    return {"steps": found["steps"], "curve": curve, "accuracy": curve[-1]}


def images(config: Config, name: str, seed: int) -> Results:
    """One run of a small convolutional network; the same start and minibatches for both methods."""
    data, test = (pictures(train, config.images) for train in (True, False))
    torch.manual_seed(seed)
    net = Convolutional()
    steps = config.epochs * -(-config.images // 128)
    tether.train(net, IMAGES[name](net, seed), data, steps=steps, batch=128, seed=seed, progress=False)
    return {"accuracy": accuracy(net, *test)}


def claims(results: Results, config: Config) -> Claims:
    of = ACCURACY.of(results)
    text = {name: ACCURACY.text(x) for name, x in of.items()}
    others = {
        "SGD, h = 0.2": (
            "slow biases improve the test accuracy on the four-turn spiral",
            "Figure 5.9: clearly higher",
        ),
        "biases with h = 1 at every step": (
            "it is the slow biases: a larger step for them at every step does not do it",
            "Figure 5.10: no such improvement",
        ),
        "biases frozen for k, then h = 0.2": (
            "nor does freezing them for k steps without the larger step",
            "Figure 5.10: no such improvement",
        ),
    }
    for name, (claim, published) in others.items():
        measured = f"{text['slow biases']} against {text[name]} %"
        yield Claim(claim, published, measured, *more(of["slow biases"], of[name]))
    yield Claim(
        "it is the biases of the input layer that matter",
        "Figure 5.11: input alone as good as all, output alone not",
        f"input {text['slow input biases']}, output {text['slow output bias']} %",
        *more(of["slow input biases"], of["slow output bias"]),
    )
    base, slow = IMAGES
    yield Claim(
        "slow biases of the last layer help a convolutional network on CIFAR-10 a little",
        "Figure 5.12: small improvement (ResNet-34)",
        f"{text[slow]} against {text[base]} %",
        *more(of[slow], of[base]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    return [tabulated("", results, [ACCURACY, WORST, BEST], f"{config.runs} runs of {config.steps:,} steps")]


def draw(results: Results, config: Config) -> Figures:
    figure, axis = subplots(figsize=(7, 4.5))
    draw_curves(axis, {name: results[name] for name in SPIRAL}, "curve")
    axis.set(xlabel="steps", ylabel="test accuracy %", title="Slow biases on the four-turn spiral (Figures 5.9–5.11)")
    axis.legend()
    return {"spiral": figure}
