"""Figures 4.7 and 4.10, Table 4.3: bounded weights against overfitting on Fashion-MNIST.

A perceptron with 1000 hidden ReLU nodes sees 10,000 of the training images, 128 at a time; it is tested on all others
and on the test set, 60,000 in all. Pixels are between 0 and 1. c-CoLA-ud (h = 0.3, γ = 1, |θ| ≤ 0.05 and 0.1, τ = 0)
beside SGD with momentum, with weight decay and without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.digits import perceptron
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import less, more
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, at_end, tabulated
from tether_studies.recipes import Recipe, recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-4.7",
    "bounded weights do not overfit Fashion-MNIST",
    "thesis, Figures 4.7, 4.10, Table 4.3; ICML paper, Figure 7",
    data=("fashion-mnist",),
    notes="The thesis trains for 400 epochs and has five runs. It does not say how pixels are scaled; divided by 255 "
    "they give its figures for SGD. Bands in the figure are the least and the largest of the runs.",
)
COLA = "c-CoLA-ud"
BEST = (0.1, 0.8)  # step size and momentum of SGD that the thesis found best
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
ACCURACY, LOSS = at_end("accuracy", "test accuracy %", 2, " %"), at_end("loss", "test loss", 3)
LARGEST = at_end("largest", "largest |output weight|", 3)
KNOWN = Quantity("training accuracy %", lambda one: one["training accuracy"], show=lambda x: f"{x.mean():.1f}")


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=5)
    epochs: int = at(100, quick=2, full=400)
    nodes: int = at(1000, quick=30)
    images: int = at(10_000, quick=500)  # to train on
    tests: int = at(60_000, quick=1000)
    settings: tuple[tuple[float, float], ...] = at((BEST,), full=tuple(PUBLISHED))  # step sizes and momenta of SGD
    decay: float = 1e-4


def name(h: float, momentum: float, decay: float) -> str:
    """Of a setting of SGD."""
    return f"SGD-m h={h:g} mom={momentum:g}" + (f" WD={decay:g}" if decay else "")


def methods(config: Config) -> dict[str, Recipe]:
    made = {COLA: recipe("circle_cola_ud", lr=0.3, friction=1.0, radius=(0.05, 0.1))}
    for h, momentum in config.settings:
        for decay in (0.0, config.decay):
            made[name(h, momentum, decay)] = recipe("SGD", lr=h, momentum=momentum, weight_decay=decay)
    return made


def run(config: Config, lab: Lab) -> Results:
    """Run i of every method has the same images, start and minibatches."""
    return lab.runs(methods(config), config.runs, partial(piece, config))


def piece(config: Config, method: str, seed: int) -> Results:
    """Train once; test loss, accuracy and the largest output weight at eight times."""
    images, labels = everything()
    shuffled = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))
    order = torch.cat((shuffled, torch.arange(60_000, 70_000)))
    mine, others = order[: config.images], order[config.images :][: config.tests]
    torch.manual_seed(seed)
    net = perceptron(784, config.nodes, 10)

    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
        loss, accuracy = tested(net, images, labels, others)
        return {"loss": loss, "accuracy": accuracy, "largest": net.get_parameter("2.weight").detach().abs().max()}

    pairs, steps = (images[mine].float() / 255, labels[mine]), config.epochs * -(-config.images // 128)
    batch, every, opt = min(128, config.images), max(steps // 8, 1), methods(config)[method](net, seed)
    record = tether.train(net, opt, pairs, cross_entropy, steps, batch, every, [test], seed=seed)
    found = {"epochs": np.array(record.steps) * config.epochs / steps, **record.metrics}
    return found | {"training accuracy": tested(net, images, labels, mine)[1]}


@lru_cache(1)
def everything() -> tuple[torch.Tensor, torch.Tensor]:
    """The training images and behind them those of the test set, as bytes, and their labels."""
    parts = [tether.data.fashion_mnist(train=train) for train in (True, False)]
    return torch.cat([x for x, _ in parts]).flatten(1), torch.cat([y for _, y in parts])


@torch.no_grad()
def tested(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, which: torch.Tensor) -> tuple[float, float]:
    """Mean loss, and accuracy in per cent."""
    logits = torch.cat([net(images[part].float() / 255) for part in which.split(10_000)])
    right = logits.argmax(1) == labels[which]
    return float(cross_entropy(logits, labels[which])), 100 * float(right.float().mean())


def claims(results: Results, config: Config) -> Claims:
    free, decayed = (name(*config.settings[0], decay) for decay in (0.0, config.decay))
    loss, accuracy, largest = LOSS.of(results), ACCURACY.of(results), LARGEST.of(results)
    after = f"after {config.epochs} epochs"
    yield Claim(
        "the test loss of bounded weights is lower than that of SGD-m",
        "Table 4.3: 0.386 against 0.824 after 400 epochs",
        f"{LOSS.text(loss[COLA])} against {LOSS.text(loss[free])} {after}",
        *less(loss[COLA], loss[free], paired=True),
    )
    yield Claim(
        "… and than that of SGD-m with weight decay",
        "Table 4.3: 0.386 against 0.531 after 400 epochs",
        f"{LOSS.text(loss[COLA])} against {LOSS.text(loss[decayed])} {after}",
        *less(loss[COLA], loss[decayed], paired=True),
    )
    rises = [results[method]["loss"][-1] - results[method]["loss"].min(0) for method in (COLA, free)]
    yield Claim(
        "they show less overfitting",
        "Figure 4.10: the test loss remains small and stable; in contrast SGD shows clear signs of overfitting",
        f"test loss in the end above its least by {rises[0].mean():.3f} against {rises[1].mean():.3f}",
        *less(rises[0], rises[1], paired=True),
    )
    yield Claim(
        "their test accuracy is higher",
        "87.63 ± 0.04 % against 87.39 ± 0.06 % after 400 epochs",
        f"{ACCURACY.text(accuracy[COLA])} % against {ACCURACY.text(accuracy[free])} % {after}",
        *more(accuracy[COLA], accuracy[free], paired=True),
    )
    yield Claim(
        "the weights of the output layer stay small",
        "Figure 4.10: small and stable with constraints, growing without",
        f"largest |weight| {LARGEST.text(largest[COLA])} against {LARGEST.text(largest[free])}",
        *less(largest[COLA], largest[free], paired=True),
    )


def tables(results: Results, config: Config) -> list[Table]:
    thesis = {COLA: "87.63 %, 0.386"}
    for setting, (accuracy, loss, accuracy_decayed, loss_decayed) in PUBLISHED.items():
        thesis[name(*setting, 0.0)] = f"{accuracy} %, {loss}"
        thesis[name(*setting, 1e-4)] = f"{accuracy_decayed} %, {loss_decayed}"
    rows = {method: found | {"thesis": thesis.get(method, "")} for method, found in results.items()}
    published = Quantity("thesis, 400 epochs", lambda one: one["thesis"], show=str)
    caption = f"{config.runs} runs of {config.epochs} epochs, mean ± standard error"
    return [tabulated("method", rows, [ACCURACY, LOSS, KNOWN, published], caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(1, 3, figsize=(9, 3.2))
    titles = {"loss": "test loss", "accuracy": "test accuracy, %", "largest": LARGEST.name}
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        draw_curves(panel, results, key, "epochs", band="range")
        panel.set(title=title, xlabel="epochs")
    panels[0].legend()
    return {"fashion": figure}
