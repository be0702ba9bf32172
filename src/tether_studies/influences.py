"""Figures 6.6 to 6.10 and Table 6.2: what data, optimizer and model do to the line from start to end.

The small residual network of Figure 6.2 on CIFAR-10 again, one thing changed at a time: fewer pictures, no
augmentation, other weight decays, step sizes that stay, smaller ones in some blocks, no BatchNorm, more blocks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tether_studies.blocks import BLOCKS, Recipe, halved, lines, residual, train
from tether_studies.drawing import subplots
from tether_studies.judges import UNDECIDED, every, less, more, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.lines import all_are, counted, draw_lines
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-6.6",
    "data, optimizer and model shape the line, which does not tell the accuracy",
    "thesis, Figures 6.1B, 6.6–6.10, 6.19, Tables 6.1, 6.2",
    data=("cifar10",),
    notes="The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs; here a network with four blocks sees "
    "10,000 pictures of 16 × 16 pixels for three epochs. Blocks with barriers are those whose lines have one in most "
    "runs or, if none has, the two whose lines climb highest above their ends. VGG-11 (Tables 6.2, 6.4) is left out.",
)


DECAYS = (0.0, 1e-4, 5e-4, 5e-3)
RATES = (0.1, 0.01, 0.001)
CONVOLUTIONAL = BLOCKS[:4]


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=10)
    width: int = at(8, quick=2, full=64)
    images: int = at(10_000, quick=300)
    fewer: int = at(1000, quick=100)
    test: int = at(2000, quick=100, full=5000)
    steps: int = at(450, quick=4, full=15_600)
    points: int = at(26, quick=4, full=51)
    depth: int = at(2, full=4)  # blocks in each group of the deeper network


@dataclass(frozen=True)
class Case:
    """A way to train: what differs from the base."""

    recipe: Recipe
    images: int
    depth: int = 1
    norm: bool = True
    blocks: bool = True  # also the lines of single blocks


BASE = "base"


def cases(config: Config) -> dict[str, Case]:
    """All but those of Table 6.2, which depend on where barriers are."""
    base = Case(Recipe(config.steps), config.images)
    found = {BASE: base, "fewer pictures": replace(base, images=config.fewer)}
    found["no augmentation"] = replace(base, recipe=replace(base.recipe, augment=False))
    for decay in DECAYS:
        if decay != base.recipe.decay:
            found[f"decay {decay:g}"] = replace(base, recipe=replace(base.recipe, decay=decay), blocks=False)
    for rate in RATES:
        fixed = replace(base.recipe, lr=rate, drops=False)
        found[f"fixed h = {rate:g}"] = replace(base, recipe=fixed, blocks=False)
    found["h = 0.01"] = replace(base, recipe=replace(base.recipe, lr=0.01))
    found["no BatchNorm"] = replace(base, recipe=replace(base.recipe, lr=0.02), norm=False)
    found["deeper"] = replace(base, depth=config.depth)
    return found


def run(config: Config, lab: Lab) -> Results:
    """Every case, run by run; then smaller steps for the blocks whose lines resist most, and for the others."""
    work = {
        f"{name}, {i}": partial(trained, case, config, lab.named_seed(f"run {i}"))
        for name, case in cases(config).items()
        for i in range(config.runs)
    }
    results = lab.pieces(work)
    high = resisting(results, config)
    base = cases(config)[BASE]
    for name, slow in (("resisting", high), ("others", [block for block in BLOCKS if block not in high])):
        recipe = replace(base.recipe, rates=tuple((block, 0.01) for block in slow))
        for i in range(config.runs):
            case = replace(base, recipe=recipe)
            work[f"h = 0.01 for {name}, {i}"] = partial(trained, case, config, lab.named_seed(f"run {i}"))
    return lab.pieces(work)


def trained(case: Case, config: Config, seed: int) -> Results:
    """Lines, accuracy and distance of one run; run i of all cases has the same start and minibatches."""
    torch.manual_seed(seed)
    net = residual(config.width, case.depth, case.norm)
    start = copy.deepcopy(net.state_dict())
    end = train(net, halved(True, 0, case.images), case.recipe, seed)
    return lines(net, start, end, halved(False, 0, config.test), config.points, case.blocks)


def gathered(results: Results, name: str, key: str, config: Config) -> np.ndarray:
    """What all runs of a case found."""
    return np.concatenate([np.atleast_1d(results[f"{name}, {i}"][key]) for i in range(config.runs)])


def rise(results: Results, name: str, block: str, config: Config) -> np.ndarray:
    """How far the line of a block climbs above its end, run by run."""
    losses = gathered(results, name, f"{block}: losses", config)
    return losses.max(1) - losses[:, -1]


def resisting(results: Results, config: Config) -> list[str]:
    """The blocks whose lines have barriers in most runs; if none has, the two whose lines climb highest."""
    barred = [b for b in BLOCKS if (gathered(results, BASE, f"{b}: shapes", config) == "barrier").mean() > 0.5]
    heights = {block: rise(results, BASE, block, config).mean() for block in CONVOLUTIONAL}
    return barred or sorted(sorted(heights, key=lambda block: -heights[block])[:2])


def layer_barriers(results: Results, name: str, config: Config) -> np.ndarray:
    """The mean height of the barriers of the four blocks, run by run."""
    return np.mean([gathered(results, name, f"{block}: barriers", config) for block in CONVOLUTIONAL], axis=0)


def claims(results: Results, config: Config) -> list[Claim]:
    names = [*cases(config), "h = 0.01 for resisting", "h = 0.01 for others"]
    accuracy = {name: gathered(results, name, "accuracy", config) for name in names}
    shapes = {name: gathered(results, name, "net: shapes", config) for name in names}
    far = {rate: gathered(results, f"fixed h = {rate:g}", "distance", config) for rate in RATES}
    fixed = {rate: accuracy[f"fixed h = {rate:g}"] for rate in RATES}
    high = resisting(results, config)
    base, told = accuracy[BASE], {name: counted(shapes[name]) for name in names}
    barriers = {
        name: layer_barriers(results, name, config) for name in (BASE, "fewer pictures", "no augmentation", "deeper")
    }
    right = {name: plus_minus(x) for name, x in accuracy.items()}
    tall = {name: plus_minus(x, 2) for name, x in barriers.items()}
    return [
        Claim(
            "the loss of the whole network stays on a plateau until near the end",
            "Figure 6.1B: plateau at the level of chance, 92.2 % accuracy",
            f"{told[BASE]}; accuracy {right[BASE]} %",
            *all_are("plateau", shapes[BASE]),
        ),
        Claim(
            "its blocks take a variety of shapes",
            "Figure 6.1B: barriers, monotone decay",
            "; ".join(f"{b}: {counted(gathered(results, BASE, f'{b}: shapes', config))}" for b in BLOCKS),
            *varied(results, config),
        ),
        Claim(
            "fewer pictures make the line monotone and lower accuracy",
            "Figure 6.6: monotone decay, lower accuracy",
            f"{told['fewer pictures']}; {right['fewer pictures']} against {right[BASE]} %",
            *every({
                "accuracy": less(accuracy["fewer pictures"], base, paired=True),
                "monotone": all_are("monotone", shapes["fewer pictures"]),
            }),
        ),
        Claim(
            "without augmentation barriers of blocks and accuracy are lower",
            "Figure 6.6: lower layer-wise barriers, lower accuracy",
            f"{right['no augmentation']} against {right[BASE]} %, barriers {tall['no augmentation']} "
            f"against {tall[BASE]}",
            *every({
                "accuracy": less(accuracy["no augmentation"], base, paired=True),
                "barriers": less(barriers["no augmentation"], barriers[BASE], paired=True),
            }),
        ),
        Claim(
            "large weight decay makes a plateau with a sudden drop",
            "Figure 6.7: monotone at 1e-4, plateau at 5e-4 and beyond",
            f"1e-4: {told['decay 0.0001']}; 5e-4: {told[BASE]}; 5e-3: {told['decay 0.005']}",
            *every({
                "1e-4": all_are("monotone", shapes["decay 0.0001"]),
                "5e-4": all_are("plateau", shapes[BASE]),
                "5e-3": all_are("plateau", shapes["decay 0.005"]),
            }),
        ),
        Claim(
            "larger step sizes go farther",
            "distance 1.03, 0.88, 0.22 for h = 0.1, 0.01, 0.001",
            ", ".join(f"{plus_minus(far[rate], 2)} for {rate:g}" for rate in RATES),
            *every({
                "0.1, 0.01": more(far[0.1], far[0.01], paired=True),
                "0.01, 0.001": more(far[0.01], far[0.001], paired=True),
            }),
        ),
        Claim(
            "the middle step size is the most accurate, and the one whose line is not monotone",
            "Figure 6.8: h = 0.01 has a plateau and the highest accuracy, 0.1 and 0.001 are monotone",
            "; ".join(f"{x:g}: {plus_minus(fixed[x])} %, {told[f'fixed h = {x:g}']}" for x in RATES),
            *every({
                "above 0.1": more(fixed[0.01], fixed[0.1], paired=True),
                "above 0.001": more(fixed[0.01], fixed[0.001], paired=True),
                "0.1": all_are("monotone", shapes["fixed h = 0.1"]),
                "0.001": all_are("monotone", shapes["fixed h = 0.001"]),
            }),
        ),
        Claim(
            "blocks with barriers need the large step size, the others do not",
            "Table 6.2: 91.8 ± 0.2 % with 0.1 for blocks with barriers, 90.1 ± 0.2 % with 0.1 for the others",
            f"{right['h = 0.01 for others']} % with 0.1 for {', '.join(high)}, "
            f"{right['h = 0.01 for resisting']} % with 0.1 for the others; all 0.1: {right[BASE]}, all 0.01: "
            f"{right['h = 0.01']} %",
            *more(accuracy["h = 0.01 for others"], accuracy["h = 0.01 for resisting"], paired=True),
        ),
        Claim(
            "depth raises the barriers of blocks and accuracy",
            "Figure 6.10: higher barriers, better accuracy",
            f"{right['deeper']} against {right[BASE]} %, barriers {tall['deeper']} against "
            f"{tall[BASE]}",
            *every({
                "accuracy": more(accuracy["deeper"], base, paired=True),
                "barriers": more(barriers["deeper"], barriers[BASE], paired=True),
            }),
        ),
        Claim(
            "without BatchNorm the line is monotone",
            "Section 6.1.10.6: monotone decay, lower accuracy",
            f"{told['no BatchNorm']}; {right['no BatchNorm']} against {right[BASE]} %",
            *every({
                "monotone": all_are("monotone", shapes["no BatchNorm"]),
                "accuracy": less(accuracy["no BatchNorm"], base, paired=True),
            }),
        ),
        Claim(
            "the shape of the line does not tell the test accuracy",
            "not a reliable indicator of test accuracy (6.1.9)",
            by_shape(accuracy, shapes),
            *unreliable(accuracy, shapes),
        ),
    ]  # fmt: skip


def varied(results: Results, config: Config) -> tuple[str, str]:
    """Do the blocks' lines have more than one shape, barriers among them?"""
    found = {str(x) for block in BLOCKS for x in gathered(results, BASE, f"{block}: shapes", config)}
    return yes("barrier" in found and len(found) > 1, ", ".join(sorted(found)))


def by_shape(accuracy: dict[str, np.ndarray], shapes: dict[str, np.ndarray]) -> str:
    """The range of accuracies of each shape, over all cases."""
    said, right = np.concatenate(list(shapes.values())), np.concatenate(list(accuracy.values()))
    ranges = {shape: right[said == shape] for shape in np.unique(said)}
    return ", ".join(f"{shape}: {x.min():.1f} to {x.max():.1f} % ({len(x)} lines)" for shape, x in ranges.items())


def unreliable(accuracy: dict[str, np.ndarray], shapes: dict[str, np.ndarray]) -> tuple[str, str]:
    """Do the accuracies of two shapes overlap, each spread over more than the other's worst?"""
    said, right = np.concatenate(list(shapes.values())), np.concatenate(list(accuracy.values()))
    ranges = [right[said == shape] for shape in np.unique(said) if (said == shape).sum() > 1]
    if len(ranges) < 2:
        return UNDECIDED, "all lines have one shape"
    overlap = max(x.min() for x in ranges) < min(x.max() for x in ranges)
    return yes(bool(overlap), f"ranges of accuracy {'' if overlap else 'do not '}overlap")


def tables(results: Results, config: Config) -> list[Table]:
    rows = [
        (
            name,
            counted(gathered(results, name, "net: shapes", config)),
            plus_minus(gathered(results, name, "accuracy", config)),
            plus_minus(gathered(results, name, "distance", config), 2),
        )
        for name in [*cases(config), "h = 0.01 for resisting", "h = 0.01 for others"]
    ]
    caption = f"Resisting blocks: {', '.join(resisting(results, config))}. Means ± standard errors"
    return [Table(("case", "shapes", "test accuracy (%)", "distance"), rows, caption)]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(2, 3, figsize=(11, 7))
    shades = ("#c2452d", "#d99a1c", "#3a8f4d", "#7a5aa6", "#888888")
    titles = {BASE: "base (6.1B)", "fewer pictures": "fewer pictures (6.6)", "no augmentation": "no augmentation (6.6)"}
    for axis, (name, title) in zip(panels.flat, {**titles, "deeper": "deeper (6.10)"}.items(), strict=False):
        for block, colour in zip(BLOCKS, shades, strict=True):
            draw_lines(axis, gathered(results, name, f"{block}: losses", config), colour, block, mean=True)
        whole = gathered(results, name, "net: losses", config)
        draw_lines(axis, whole, "#1f5fa8", "network", mean=True, ls="--")
        axis.set(title=title, ylabel="test loss")
        axis.legend(frameon=False, fontsize=7)
    several = {
        "weight decay (6.7)": {f"{x:g}": BASE if x == 5e-4 else f"decay {x:g}" for x in DECAYS},
        "fixed step size (6.8)": {f"h = {x:g}": f"fixed h = {x:g}" for x in RATES},
    }
    for axis, (title, kinds) in zip(panels.flat[4:], several.items(), strict=True):
        for colour, (label, name) in zip(shades, kinds.items(), strict=False):
            draw_lines(axis, gathered(results, name, "net: losses", config), colour, label)
        axis.set(title=title, ylabel="test loss")
        axis.legend(frameon=False, fontsize=8)
    return {"influences": figure}
