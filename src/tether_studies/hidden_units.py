"""Test error against the number of hidden nodes: implicit regularization, after the Path-SGD slides.

One hidden layer of H ReLU nodes on MNIST, SGD with momentum 0.9 and a step size that falls linearly to 0, without
dropout, weight decay or early stopping, to a training error of (nearly) zero. The step size, 0.1 at the start, is the
same for every H. Every replica has its own start and images that no other sees, the same ones at every H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy

import tether
from tether_studies.digits import digits, errors, perceptron
from tether_studies.drawing import subplots
from tether_studies.judges import UNDECIDED, less, mean_error, plus_minus
from tether_studies.lab import Lab
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "hidden-units",
    "test error goes on falling with more hidden nodes than it takes to fit the images",
    "Path-SGD slides, Implicit Regularization – Experiment",
    data=("mnist",),
    notes="The slides' loss is truncated, ours is the plain cross-entropy. They do not give the step size "
    "nor the numbers of images and epochs.",
)


@dataclass(frozen=True)
class Config:
    powers: tuple[int, int] = at((3, 12), quick=(6, 8))  # H from 2^a to 2^b
    runs: int = at(8, quick=4, full=12)  # up to H = 256; half as many to 1024, a quarter beyond
    images: int = at(5000, quick=100)  # for each
    tests: int = at(10_000, quick=500)
    epochs: int = at(25, quick=60, full=100)
    lr: float = 0.1


def run(config: Config, lab: Lab) -> Results:
    """A piece for each H."""
    sizes = [2**power for power in range(config.powers[0], config.powers[1] + 1)]
    return lab.pieces({f"H = {H}": partial(piece, H, config, lab.named_seed("start")) for H in sizes})


def piece(H: int, config: Config, seed: int) -> Results:
    """Errors in per cent at the end, the lowest test error on the way, and the path norm, for each replica."""
    runs = config.runs if H <= 256 else max(2, config.runs // 2 if H <= 1024 else config.runs // 4)
    (x, y), test = digits(config.runs, config.images, config.tests)
    data = (x[:runs], y[:runs])
    nets = tether.Replicas(lambda: perceptron(784, H, 10), runs, seed=seed)
    opt = tether.Optimizer(nets, lr=config.lr, word="MS", friction=-math.log(0.9), seed=seed)
    anneal = tether.Schedule(opt, "lr", lambda epoch: 1 - epoch / config.epochs)
    per_epoch = math.ceil(config.images / 100)

    def each_epoch(step: int, *_: Any) -> Mapping[str, Any]:
        anneal.step()
        epoch = step // per_epoch
        looks = epoch == config.epochs or epoch % max(1, config.epochs // 5) == 0
        return {"test": errors(nets, *test)} if looks else {}

    steps, options = per_epoch * config.epochs, {"log_every": per_epoch, "callbacks": [each_epoch]}
    record = tether.train(nets, opt, data, cross_entropy, steps, 100, each=True, **options)  # type: ignore[arg-type]
    return {
        "training": errors(nets, *data),
        "test": record.metrics["test"][-1],
        "best": record.metrics["test"].min(0).values,
        "path norm": [tether.measure.path_norm(nets[i]) for i in range(runs)],
    }


def claims(results: Results, config: Config) -> Claims:
    """From the first H that fits the images to the largest."""
    fits = next((name for name, one in results.items() if one["training"].mean() < 0.05), "")
    last = list(results)[-1]
    published = {
        "test": (
            "test error goes on falling when there are more hidden nodes than it takes to fit the images",
            "expected: falls at first, then rises; found, as a picture: goes on falling",
            "%",
        ),
        "path norm": (
            "the larger network finds a solution of smaller complexity",
            "“Increasing the network size might help lower this complexity”",
            "path norm",
        ),
    }
    for key, (text, number, unit) in published.items():
        if not fits or fits == last:
            yield Claim(text, number, "no two sizes that fit the images", UNDECIDED)
            continue
        a, b = results[last][key], results[fits][key][: len(results[last][key])]  # on the same images
        measured = f"{plus_minus(b, 2)} {unit} at {fits}, {plus_minus(a, 2)} at {last}, on the same images"
        yield Claim(text, number, measured, *less(a, b, paired=True))


def tables(results: Results, config: Config) -> list[Table]:
    """A row for each H; the change is that of networks trained on the same images."""
    rows, before = [], np.array([])
    for name, one in results.items():
        test, n = one["test"], min(len(before), len(one["test"]))
        change = plus_minus(test[:n] - before[:n], 2) if n else ""
        both = (plus_minus(one[key], 2) for key in ("training", "test"))
        rows.append([name, len(test), *both, change, plus_minus(one["path norm"], 1)])
        before = test
    head = ["", "replicas", "training error %", "test error %", "change, same images", "path norm"]
    caption = f"{config.images:,} images, {config.epochs} epochs, h = {config.lr:g}; mean ± standard error"
    return [Table(head, rows, caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, axis = subplots(figsize=(6, 4.2))
    curves = {"training": "training", "test": "test, at the end", "best": "test, best on the way"}
    sizes = [int(name.rpartition(" ")[2]) for name in results]
    for (key, label), style in zip(curves.items(), ("o-", "s-", "^:"), strict=True):
        means, bars = zip(*(mean_error(one[key]) for one in results.values()), strict=True)
        axis.errorbar(sizes, means, bars, fmt=style, label=label)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="hidden nodes H", ylabel="error, %", title="MNIST, one hidden layer", ylim=(0, None))
    axis.legend()
    return {"hidden_units": figure}
