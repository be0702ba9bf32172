"""Figures 4.7 and 4.10, Table 4.3: bounded weights against overfitting on Fashion-MNIST.

A perceptron with 1000 hidden ReLU nodes sees 10,000 of the training images, 128 at a time; it is tested on all others
and on the test set, 60,000 in all. Pixels are between 0 and 1. c-CoLA-ud (h = 0.3, γ = 1, |θ| ≤ 0.05 and 0.1, τ = 0)
beside SGD with momentum, with weight decay and without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import less, mean_error, more
from tether_studies.lab import Lab, side_by_side
from tether_studies.study import Claim, Results, Study, Table, at

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
Build = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=5)
    epochs: int = at(100, quick=2, full=400)
    nodes: int = at(1000, quick=30)
    images: int = at(10_000, quick=500)  # to train on
    tests: int = at(60_000, quick=1000)
    settings: tuple[tuple[float, float], ...] = at((BEST,), full=tuple(PUBLISHED))  # step sizes and momenta of SGD
    decay: float = 1e-4


def run(config: Config, lab: Lab) -> Results:
    """Run i of every method has the same images, start and minibatches."""
    methods: dict[str, Build] = {COLA: cola}
    for h, momentum in config.settings:
        for decay in (0.0, config.decay):
            methods[name(h, momentum, decay)] = partial(sgd, h, momentum, decay)
    return lab.pieces(
        {
            f"{method}, run {i}": partial(piece, build, config, lab.named_seed(f"run {i}"))
            for i in range(config.runs)
            for method, build in methods.items()
        }
    )


def name(h: float, momentum: float, decay: float) -> str:
    """Of a setting of SGD."""
    return f"SGD-m h={h:g} mom={momentum:g}" + (f" WD={decay:g}" if decay else "")


def cola(net: nn.Module) -> torch.optim.Optimizer:
    """The circle-constrained method, as published."""
    return tether.methods.circle_cola_ud(net, lr=0.3, friction=1.0, radius=(0.05, 0.1))


def sgd(h: float, momentum: float, decay: float, net: nn.Module) -> torch.optim.Optimizer:
    """torch's own."""
    return torch.optim.SGD(net.parameters(), lr=h, momentum=momentum, weight_decay=decay)


def piece(build: Build, config: Config, seed: int) -> Results:
    """Train once; test loss, accuracy and the largest output weight at eight times."""
    images, labels = everything()
    shuffled = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))
    order = torch.cat((shuffled, torch.arange(60_000, 70_000)))
    mine, others = order[: config.images], order[config.images :][: config.tests]
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(784, config.nodes), nn.ReLU(), nn.Linear(config.nodes, 10))

    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
        loss, accuracy = tested(net, images, labels, others)
        return {"loss": loss, "accuracy": accuracy, "largest": net.get_parameter("2.weight").detach().abs().max()}

    pairs, steps = (images[mine].float() / 255, labels[mine]), config.epochs * -(-config.images // 128)
    batch, every = min(128, config.images), max(steps // 8, 1)
    record = tether.train(net, build(net), pairs, cross_entropy, steps, batch, every, [test], seed=seed)
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


def claims(results: Results, config: Config) -> list[Claim]:
    found = side_by_side(results)
    bounded, free, decayed = (
        found[m] for m in (COLA, name(*config.settings[0], 0.0), name(*config.settings[0], config.decay))
    )
    after = f"after {config.epochs} epochs"

    def end(one: Results, key: str = "loss", digits: int = 3) -> str:
        mean, error = mean_error(one[key][-1])
        return f"{mean:.{digits}f} ± {error:.{digits}f}"

    rises = [one["loss"][-1] - one["loss"].min(0) for one in (bounded, free)]
    return [
        Claim(
            "the test loss of bounded weights is lower than that of SGD-m",
            "Table 4.3: 0.386 against 0.824 after 400 epochs",
            f"{end(bounded)} against {end(free)} {after}",
            *less(bounded["loss"][-1], free["loss"][-1], paired=True),
        ),
        Claim(
            "… and than that of SGD-m with weight decay",
            "Table 4.3: 0.386 against 0.531 after 400 epochs",
            f"{end(bounded)} against {end(decayed)} {after}",
            *less(bounded["loss"][-1], decayed["loss"][-1], paired=True),
        ),
        Claim(
            "they show less overfitting",
            "Figure 4.10: the test loss remains small and stable; in contrast SGD shows clear signs of overfitting",
            f"test loss in the end above its least by {rises[0].mean():.3f} against {rises[1].mean():.3f}",
            *less(rises[0], rises[1], paired=True),
        ),
        Claim(
            "their test accuracy is higher",
            "87.63 ± 0.04 % against 87.39 ± 0.06 % after 400 epochs",
            f"{end(bounded, 'accuracy', 2)} % against {end(free, 'accuracy', 2)} % {after}",
            *more(bounded["accuracy"][-1], free["accuracy"][-1], paired=True),
        ),
        Claim(
            "the weights of the output layer stay small",
            "Figure 4.10: small and stable with constraints, growing without",
            f"largest |weight| {end(bounded, 'largest')} against {end(free, 'largest')}",
            *less(bounded["largest"][-1], free["largest"][-1], paired=True),
        ),
    ]


def tables(results: Results, config: Config) -> list[Table]:
    found = side_by_side(results)
    rows = []
    for method, one in found.items():
        published = "87.63 %, 0.386" if method == COLA else ""
        for (h, momentum), (accuracy, loss, accuracy_decayed, loss_decayed) in PUBLISHED.items():
            if method == name(h, momentum, 0.0):
                published = f"{accuracy} %, {loss}"
            elif method == name(h, momentum, 1e-4):
                published = f"{accuracy_decayed} %, {loss_decayed}"
        numbers = [mean_error(one[key][-1]) for key in ("accuracy", "loss")]
        text = [
            f"{mean:.{digits}f} ± {error:.{digits}f}" for (mean, error), digits in zip(numbers, (2, 3), strict=True)
        ]
        rows.append([method, *text, f"{one['training accuracy'].mean():.1f}", published])
    head = ["method", "test accuracy %", "test loss", "training accuracy %", "thesis, 400 epochs"]
    return [Table(head, rows, f"{config.runs} runs of {config.epochs} epochs, mean ± standard error")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(1, 3, figsize=(9, 3.2))
    titles = {"loss": "test loss", "accuracy": "test accuracy, %", "largest": "largest |output weight|"}
    for method, one in side_by_side(results).items():
        for panel, key in zip(panels, titles, strict=True):
            values = one[key]
            (line,) = panel.plot(one["epochs"][:, 0], values.mean(1), label=method)
            panel.fill_between(
                one["epochs"][:, 0], values.min(1), values.max(1), color=line.get_color(), alpha=0.2, lw=0
            )
    for panel, title in zip(panels, titles.values(), strict=True):
        panel.set(title=title, xlabel="epochs")
    panels[0].legend(frameon=False, fontsize=8)
    return {"fashion": figure}
