"""Figure 5.1: two time scales learn two kinds of features, on CIFAR-10 with patches.

A fifth of the training images is as it is; of the others a fifth is nothing but a patch of 7 × 7 pixels in the middle
that tells the class, the rest has both. A small step memorizes the patches, a large one learns the images; a composite
network, one copy fast and one slow, merged every k steps, shall do both (5.9.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import tether
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import more
from tether_studies.lab import Lab
from tether_studies.pictures import Convolutional, accuracy, pictures
from tether_studies.quantities import at_end, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-5.1",
    "two time scales learn both images and patches",
    "thesis, Figure 5.1",
    data=("cifar10",),
    notes="The thesis has a WideResNet-16 and all of CIFAR-10; here three convolutions and 8,000 images.",
)
METHODS = {
    "small step": partial(recipe, "SGD", lr=0.004, momentum=0.9),
    "large step": partial(recipe, "SGD", lr=0.1, momentum=0.9),
    "composite": partial(recipe, "composite_sgd", lr=0.1, k=25, momentum=0.9),
}
SETS = ("clean", "with patches", "patches alone")
ACCURACY = {kind: at_end(kind, kind) for kind in SETS}
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
    """Accuracies on the three kinds of test images, epoch by epoch; run i of all methods has the same seed."""
    return lab.runs(METHODS, config.runs, partial(train, config, lab.named_seed("patches")))


def patched(x: torch.Tensor, y: torch.Tensor, alone: torch.Tensor, seed: int, draw: torch.Generator) -> torch.Tensor:
    """Images with z ± ζ of their class added in the middle, or z ± 1.75 a ζ on black, a uniform in [0, 1].

    The seed is that of z, of variance 1.5625, and of ζ_i in [−0.1, 0.1] for each class.
    """
    same = torch.Generator().manual_seed(seed)
    z = 1.25 * torch.randn(3, SIDE, SIDE, generator=same)
    ζ = 0.2 * torch.rand(10, 3, SIDE, SIDE, generator=same) - 0.1
    sign = 2.0 * torch.randint(2, (len(x), 1, 1, 1), generator=draw) - 1
    a = torch.rand(len(x), 1, 1, 1, generator=draw)
    size = torch.where(alone.view(-1, 1, 1, 1), 1.75 * a, torch.ones(()))
    x = torch.where(alone.view(-1, 1, 1, 1), torch.zeros(()), x)
    x[:, :, AT : AT + SIDE, AT : AT + SIDE] += z + sign * size * ζ[y]
    return x


def training_set(config: Config, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A fifth clean; of the rest a fifth patches alone and four fifths both."""
    x, y = pictures(True, config.images)
    draw, clean = torch.Generator().manual_seed(seed + 1), config.images // 5
    alone = torch.rand(config.images - clean, generator=draw) < 0.2
    return torch.cat((x[:clean], patched(x[clean:], y[clean:], alone, seed, draw))), y


def test_sets(config: Config, seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The same images clean, with patches, and as patches alone."""
    x, y = pictures(False, config.test)
    draw = torch.Generator().manual_seed(seed + 2)
    seen = [patched(x.clone(), y, torch.full((len(x),), alone), seed, draw) for alone in (False, True)]
    return {name: (images, y) for name, images in zip(SETS, (x, *seen), strict=True)}


def train(config: Config, data_seed: int, name: str, seed: int) -> Results:
    """One run; the same start and minibatches for all methods."""
    data, tests = training_set(config, data_seed), test_sets(config, data_seed)
    torch.manual_seed(seed)
    net = Convolutional(config.width)
    opt = METHODS[name](weight_decay=config.decay)(net, seed)
    per_epoch = -(-config.images // 128)

    def look(step: int, net: Any, opt: Any) -> dict[str, Any]:
        return {kind: torch.tensor(accuracy(net, *pair)) for kind, pair in tests.items()}

    options: dict[str, Any] = {"log_every": per_epoch, "callbacks": [look], "seed": seed, "progress": False}
    record = tether.train(net, opt, data, steps=config.epochs * per_epoch, batch=128, **options)
    return {kind: record.metrics[kind] for kind in SETS}


def claims(results: Results, config: Config) -> Claims:
    of = {kind: ACCURACY[kind].of(results) for kind in SETS}
    clean, alone = of["clean"], of["patches alone"]
    said = {kind: ", ".join(f"{name} {x.mean():.1f}" for name, x in of[kind].items()) + " %" for kind in SETS}
    yield Claim(
        "a large step is better on clean images than a small one",
        "Figure 5.1, left: higher accuracy",
        said["clean"],
        *more(clean["large step"], clean["small step"]),
    )
    yield Claim(
        "a small step memorizes the patches, a large one does not",
        "Figure 5.1, right: the small step learns them quickly",
        said["patches alone"],
        *more(alone["small step"], alone["large step"]),
    )
    yield Claim(
        "the composite network memorizes the patches as the large step cannot",
        "Figure 5.1, right",
        said["patches alone"],
        *more(alone["composite"], alone["large step"]),
    )
    yield Claim(
        "and is better on clean images than the small step",
        "Figure 5.1, left: as high as the large step",
        said["clean"],
        *more(clean["composite"], clean["small step"]),
    )


def tables(results: Results, config: Config) -> list[Table]:
    caption = f"{config.runs} runs, {config.epochs} epochs"
    return [tabulated("test accuracy %", results, list(ACCURACY.values()), caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, axes = subplots(1, 3, figsize=(11, 3.6), sharey=True)
    times = {"epochs": range(1, config.epochs + 1)}
    for axis, kind in zip(axes, SETS, strict=True):
        draw_curves(axis, {name: found | times for name, found in results.items()}, kind, "epochs", band="")
        axis.set(title=kind, xlabel="epoch")
    axes[0].set(ylabel="test accuracy %")
    axes[0].legend()
    return {"patches": figure}
