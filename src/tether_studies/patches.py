"""Figure 5.1: two time scales learn two kinds of features, on CIFAR-10 with patches.

A fifth of the training images is as it is; of the others a fifth is nothing but a patch of 7 × 7 pixels in the middle
that tells the class, the rest has both. A small step memorizes the patches, a large one learns the images; a composite
network, one copy fast and one slow, merged every k steps, shall do both (5.9.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import mean_error, more
from tether_studies.lab import Lab
from tether_studies.pictures import Convolutional, accuracy, pictures
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-5.1",
    "two time scales learn both images and patches",
    "thesis, Figure 5.1",
    data=("cifar10",),
    notes="The thesis has a WideResNet-16 and all of CIFAR-10; here three convolutions and 8,000 images.",
)


SMALL, LARGE, K = 0.004, 0.1, 25
METHODS = {"small step": SMALL, "large step": LARGE, "composite": None}
SETS = ("clean", "with patches", "patches alone")
SIDE, AT = 7, 12  # the patch, in the middle of 32 × 32


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=5)
    images: int = at(8000, quick=300, full=50_000)
    test: int = at(2000, quick=100, full=10_000)
    epochs: int = at(20, quick=1, full=150)
    width: int = at(16, quick=4, full=64)
    decay: float = 5e-4


def run(config: Config, lab: Lab) -> Results:
    """Accuracies on the three kinds of test images, epoch by epoch."""
    return lab.pieces(
        {f"{name}, run {i}": partial(train, config, name, i) for i in range(config.runs) for name in METHODS}
    )


@lru_cache(1)
def patches(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """z, of variance 1.5625, and ζ_i in [−0.1, 0.1] for each class."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.25 * torch.randn(3, SIDE, SIDE, generator=generator)
    return z, 0.2 * torch.rand(10, 3, SIDE, SIDE, generator=generator) - 0.1


def patched(x: torch.Tensor, y: torch.Tensor, alone: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images with z ± ζ of their class added in the middle, or z ± 1.75 a ζ on black, a uniform in [0, 1]."""
    z, ζ = patches(0)
    sign = 2.0 * torch.randint(2, (len(x), 1, 1, 1), generator=generator) - 1
    a = torch.rand(len(x), 1, 1, 1, generator=generator)
    size = torch.where(alone.view(-1, 1, 1, 1), 1.75 * a, torch.ones(()))
    x = torch.where(alone.view(-1, 1, 1, 1), torch.zeros(()), x)
    x[:, :, AT : AT + SIDE, AT : AT + SIDE] += z + sign * size * ζ[y]
    return x


def training_set(config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """A fifth clean; of the rest a fifth patches alone and four fifths both."""
    x, y = pictures(True, config.images)
    generator = torch.Generator().manual_seed(1)
    clean = config.images // 5
    alone = torch.rand(config.images - clean, generator=generator) < 0.2
    return torch.cat((x[:clean], patched(x[clean:], y[clean:], alone, generator))), y


def test_sets(config: Config) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The same images clean, with patches, and as patches alone."""
    x, y = pictures(False, config.test)
    generator = torch.Generator().manual_seed(2)
    none, all_of_them = torch.zeros(len(x), dtype=torch.bool), torch.ones(len(x), dtype=torch.bool)
    sets = (x, patched(x.clone(), y, none, generator), patched(x.clone(), y, all_of_them, generator))
    return {name: (images, y) for name, images in zip(SETS, sets, strict=True)}


def train(config: Config, name: str, i: int) -> Results:
    """One run; the same start and minibatches for all methods."""
    x, y = training_set(config)
    tests = test_sets(config)
    torch.manual_seed(i)
    net = Convolutional(config.width)
    h = METHODS[name]
    if h is None:
        opt: Any = tether.methods.composite_sgd(net, lr=LARGE, k=K, momentum=0.9, weight_decay=config.decay)
    else:
        opt = torch.optim.SGD(net.parameters(), lr=h, momentum=0.9, weight_decay=config.decay)
    per_epoch = -(-config.images // 128)

    def look(step: int, net: Any, opt: Any) -> dict[str, Any]:
        return {kind: torch.tensor(accuracy(net, *pair)) for kind, pair in tests.items()}

    record = tether.train(
        net,
        opt,
        (x, y),
        steps=config.epochs * per_epoch,
        batch=128,
        seed=i,
        log_every=per_epoch,
        callbacks=[look],
        progress=False,
    )
    return {kind: record.metrics[kind] for kind in SETS}


def ends(results: Results, name: str, kind: str) -> np.ndarray:
    """The last accuracies of all runs of a method."""
    return np.array([piece[kind][-1] for key, piece in results.items() if key.startswith(f"{name}, run")])


def claims(results: Results, config: Config) -> list[Claim]:
    of = {(name, kind): ends(results, name, kind) for name in METHODS for kind in SETS}

    def beside(kind: str) -> str:
        return ", ".join(f"{name} {mean_error(of[name, kind])[0]:.1f}" for name in METHODS) + " %"

    return [
        Claim(
            "a large step is better on clean images than a small one",
            "Figure 5.1, left: higher accuracy",
            beside("clean"),
            *more(of["large step", "clean"], of["small step", "clean"]),
        ),
        Claim(
            "a small step memorizes the patches, a large one does not",
            "Figure 5.1, right: the small step learns them quickly",
            beside("patches alone"),
            *more(of["small step", "patches alone"], of["large step", "patches alone"]),
        ),
        Claim(
            "the composite network memorizes the patches as the large step cannot",
            "Figure 5.1, right",
            beside("patches alone"),
            *more(of["composite", "patches alone"], of["large step", "patches alone"]),
        ),
        Claim(
            "and is better on clean images than the small step",
            "Figure 5.1, left: as high as the large step",
            beside("clean"),
            *more(of["composite", "clean"], of["small step", "clean"]),
        ),
    ]


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name in METHODS:
        found = (mean_error(ends(results, name, kind)) for kind in SETS)
        rows.append([name, *(f"{mean:.1f} ± {error:.1f}" for mean, error in found)])
    return [Table(["test accuracy %", *SETS], rows, f"{config.runs} runs, {config.epochs} epochs")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, axes = subplots(1, 3, figsize=(11, 3.6), sharey=True)
    for axis, kind in zip(axes, SETS, strict=True):
        for name in METHODS:
            curves = np.stack([piece[kind] for key, piece in results.items() if key.startswith(f"{name}, run")])
            axis.plot(np.arange(1, curves.shape[1] + 1), curves.mean(0), label=name)
        axis.set(title=kind, xlabel="epoch")
    axes[0].set(ylabel="test accuracy %")
    axes[0].legend(frameon=False)
    return {"patches": figure}
