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

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import mean_error, more
from tether_studies.lab import Lab
from tether_studies.pictures import Convolutional, accuracy, pictures
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-5.9",
    "biases on the slow time scale generalize better",
    "thesis, Figures 5.9–5.12",
    data=("cifar10",),
    notes="The thesis has 5 runs on the spiral, and a ResNet-34 on all of CIFAR-10 for Figure 5.12; here a network of "
    "three convolutions on 5,000 images. The number of nodes and steps of Figure 5.9 is not given.",
)


K, H = 5, 1.0
MOMENTUM = 0.9  # on CIFAR-10, as the thesis has it where nothing else is said
SLOW: dict[str, Any] = {"lr": H, "every": K, "drift": True}
SPIRAL: dict[str, list[tether.Part]] = {
    "SGD, h = 0.2": [],
    "slow biases": [tether.Part("*.bias", **SLOW)],
    "slow input biases": [tether.Part("0.bias", **SLOW)],
    "slow output bias": [tether.Part("2.bias", **SLOW)],
    "biases with h = 1 at every step": [tether.Part("*.bias", lr=H)],
    "biases frozen for k, then h = 0.2": [tether.Part("*.bias", lr=H / K, every=K, drift=False)],
}
IMAGES: dict[str, list[tether.Part]] = {
    "SGD, h = 0.1": [],
    "slow output biases, k = 10": [tether.Part("head.bias", lr=1.0, every=10, drift=True)],
}


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
    work: dict[str, Any] = {name: partial(spiral, config, parts) for name, parts in SPIRAL.items()}
    for i in range(config.image_runs):
        for name, parts in IMAGES.items():
            work[f"CIFAR-10, {name}, run {i}"] = partial(images, config, parts, i)
    return lab.pieces(work)


def spiral(config: Config, parts: list[tether.Part]) -> Results:
    """All runs at once, each with points of its own."""
    sets = [
        [tether.data.spiral(n, turns=4, seed=2 * i + k) for i in range(config.runs)] for k, n in ((0, 500), (1, 1000))
    ]
    (x, y), (x_test, y_test) = (
        (torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]).float().unsqueeze(-1)) for pairs in sets
    )
    n = config.nodes
    nets = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, n), nn.ReLU(), nn.Linear(n, 1)), config.runs)
    opt = tether.Optimizer(nets, [*parts, tether.Part("*")], lr=H / K, word="MS", friction=math.inf)

    def look(step: int, nets: Any, opt: Any) -> dict[str, Any]:
        with torch.no_grad():
            right = (nets(x_test, each=True) > 0) == (y_test > 0.5)
        return {"accuracy": 100 * right.float().mean((1, 2))}

    record = tether.train(
        nets,
        opt,
        (x, y),
        binary_cross_entropy_with_logits,
        config.steps,
        batch=25,
        each=True,
        log_every=max(config.steps // 40, 1),
        callbacks=[look],
        progress=False,
    )
    curve = record.metrics["accuracy"]
    return {"steps": record.steps, "curve": curve, "accuracy": curve[-1]}


def images(config: Config, parts: list[tether.Part], i: int) -> Results:
    """One run of a small convolutional network; the same start and minibatches for both methods."""
    (x, y), (x_test, y_test) = (pictures(train, config.images) for train in (True, False))
    torch.manual_seed(i)
    net = Convolutional()
    opt = tether.Optimizer(net, [*parts, tether.Part("*")], lr=0.1, word="MS", friction=-math.log(MOMENTUM))
    steps = config.epochs * -(-config.images // 128)
    tether.train(net, opt, (x, y), steps=steps, batch=128, seed=i, progress=False)
    return {"accuracy": accuracy(net, x_test, y_test)}


def cifar(results: Results, name: str) -> list[float]:
    """The accuracies of a method's runs."""
    return [float(piece["accuracy"]) for key, piece in results.items() if key.startswith(f"CIFAR-10, {name},")]


def claims(results: Results, config: Config) -> list[Claim]:
    of = {name: results[name]["accuracy"] for name in SPIRAL}
    plain, slow = of["SGD, h = 0.2"], of["slow biases"]
    larger, frozen = of["biases with h = 1 at every step"], of["biases frozen for k, then h = 0.2"]
    base, late = (cifar(results, name) for name in IMAGES)
    return [
        Claim(
            "slow biases improve the test accuracy on the four-turn spiral",
            "Figure 5.9: clearly higher",
            f"{text(slow)} against {text(plain)} %",
            *more(slow, plain),
        ),
        Claim(
            "it is the slow biases: a larger step for them at every step does not do it",
            "Figure 5.10: no such improvement",
            f"{text(slow)} against {text(larger)} %",
            *more(slow, larger),
        ),
        Claim(
            "nor does freezing them for k steps without the larger step",
            "Figure 5.10: no such improvement",
            f"{text(slow)} against {text(frozen)} %",
            *more(slow, frozen),
        ),
        Claim(
            "it is the biases of the input layer that matter",
            "Figure 5.11: input alone as good as all, output alone not",
            f"input {text(of['slow input biases'])}, output {text(of['slow output bias'])} %",
            *more(of["slow input biases"], of["slow output bias"]),
        ),
        Claim(
            "slow biases of the last layer help a convolutional network on CIFAR-10 a little",
            "Figure 5.12: small improvement (ResNet-34)",
            f"{text(late)} against {text(base)} %",
            *more(late, base),
        ),
    ]


def text(values: Any) -> str:
    """Mean and standard error."""
    mean, error = mean_error(values)
    return f"{mean:.1f} ± {error:.1f}"


def tables(results: Results, config: Config) -> list[Table]:
    rows = [[name, text(x := results[name]["accuracy"]), float(x.min()), float(x.max())] for name in SPIRAL]
    rows += [[f"CIFAR-10, {name}", text(x := cifar(results, name)), min(x), max(x)] for name in IMAGES]
    return [Table(["", "test accuracy %", "worst", "best"], rows, f"{config.runs} runs of {config.steps:,} steps")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, axes = subplots(figsize=(7, 4.5))
    for name in SPIRAL:
        curve = results[name]["curve"]
        line = axes.plot(results[name]["steps"], curve.mean(1), label=name)[0]
        error = curve.std(1, ddof=1) / np.sqrt(curve.shape[1])
        axes.fill_between(
            results[name]["steps"], curve.mean(1) - error, curve.mean(1) + error, color=line.get_color(), alpha=0.2
        )
    axes.set(xlabel="steps", ylabel="test accuracy %", title="Slow biases on the four-turn spiral (Figures 5.9–5.11)")
    axes.legend(frameon=False, fontsize=8)
    return {"spiral": figure}
