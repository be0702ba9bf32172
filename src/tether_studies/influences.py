"""Figures 6.6 to 6.10 and Table 6.2: what data, optimizer and model do to the line from start to end.

The small residual network of Figure 6.2 on CIFAR-10 again, one thing changed at a time: fewer pictures, no
augmentation, other weight decays, step sizes that stay, smaller ones in some blocks, no BatchNorm, more blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tether_studies.blocks import BLOCKS, Training, halved, lines, residual, train
from tether_studies.drawing import subplots
from tether_studies.judges import UNDECIDED, Judgement, every, less, more, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.lines import ACCURACY, DISTANCE, SHAPES, all_are, counted, draw_lines, gathered, state_of
from tether_studies.quantities import tabulated
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

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
BASE, FEWER, PLAIN, DEEPER, UNNORMED = "base", "fewer pictures", "no augmentation", "deeper", "no BatchNorm"


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

    training: Training
    images: int
    depth: int = 1
    norm: bool = True
    blocks: bool = True  # also the lines of single blocks


def cases(config: Config) -> dict[str, Case]:
    """All but those of Table 6.2, which depend on where barriers are."""
    base = Case(Training(config.steps), config.images)
    found = {BASE: base, FEWER: replace(base, images=config.fewer)}
    found[PLAIN] = replace(base, training=replace(base.training, augment=False))
    for decay in DECAYS:
        if decay != base.training.decay:
            found[f"decay {decay:g}"] = replace(base, training=replace(base.training, decay=decay), blocks=False)
    for rate in RATES:
        fixed = replace(base.training, lr=rate, drops=False)
        found[f"fixed h = {rate:g}"] = replace(base, training=fixed, blocks=False)
    found["h = 0.01"] = replace(base, training=replace(base.training, lr=0.01))
    found[UNNORMED] = replace(base, training=replace(base.training, lr=0.02), norm=False)
    found[DEEPER] = replace(base, depth=config.depth)
    return found


def run(config: Config, lab: Lab) -> Results:
    """Every case, run by run; then smaller steps for the blocks whose lines resist most, and for the others."""
    seeds = {i: lab.named_seed(f"run {i}") for i in range(config.runs)}

    def work(found: dict[str, Case]) -> dict[str, Any]:
        return {f"{name}, {i}": partial(trained, x, config, seeds[i]) for name, x in found.items() for i in seeds}

    first = cases(config)
    high = resisting(lab.pieces(work(first)))
    for name, slow in (("resisting", high), ("others", [block for block in BLOCKS if block not in high])):
        slowed = replace(first[BASE].training, rates=tuple((block, 0.01) for block in slow))
        first[f"h = 0.01 for {name}"] = replace(first[BASE], training=slowed)
    return lab.pieces(work(first))


def trained(case: Case, config: Config, seed: int) -> Results:
    """Lines, accuracy and distance of one run; run i of all cases has the same start and minibatches."""
    torch.manual_seed(seed)
    net = residual(config.width, case.depth, case.norm)
    start = state_of(net)
    end = train(net, halved(True, 0, case.images), case.training, seed)
    return lines(net, start, end, halved(False, 0, config.test), config.points, case.blocks)


def by_case(results: Results) -> dict[str, list[Results]]:
    """What the runs of every case found."""
    found: dict[str, list[Results]] = {}
    for piece, one in results.items():
        found.setdefault(piece.rpartition(", ")[0], []).append(one)
    return found


def resisting(results: Results) -> list[str]:
    """The blocks whose lines have barriers in most runs; if none has, the two whose lines climb highest."""
    base = by_case(results)[BASE]
    barred = [b for b in BLOCKS if (gathered(base, f"{b}: shapes") == "barrier").mean() > 0.5]
    lines = {block: gathered(base, f"{block}: losses") for block in CONVOLUTIONAL}
    heights = {block: (losses.max(1) - losses[:, -1]).mean() for block, losses in lines.items()}
    return barred or sorted(sorted(heights, key=lambda block: -heights[block])[:2])


def claims(results: Results, config: Config) -> Claims:
    runs = by_case(results)
    accuracy, shapes, far = (
        {name: gathered(found, key) for name, found in runs.items()} for key in ("accuracy", "net: shapes", "distance")
    )
    told = {name: counted(x) for name, x in shapes.items()}
    right = {name: plus_minus(x) for name, x in accuracy.items()}
    barriers = {  # the mean over the four blocks, run by run
        name: np.mean([gathered(runs[name], f"{block}: barriers") for block in CONVOLUTIONAL], axis=0)
        for name in (BASE, FEWER, PLAIN, DEEPER)
    }
    tall = {name: plus_minus(x, 2) for name, x in barriers.items()}

    def higher(a: str, b: str) -> Judgement:
        return more(accuracy[a], accuracy[b], paired=True)

    def farther(a: str, b: str) -> Judgement:
        return more(far[a], far[b], paired=True)

    yield Claim(
        "the loss of the whole network stays on a plateau until near the end",
        "Figure 6.1B: plateau at the level of chance, 92.2 % accuracy",
        f"{told[BASE]}; accuracy {right[BASE]} %",
        *all_are("plateau", shapes[BASE]),
    )
    of_blocks = {block: gathered(runs[BASE], f"{block}: shapes") for block in BLOCKS}
    seen = {str(x) for one in of_blocks.values() for x in one}
    yield Claim(
        "its blocks take a variety of shapes",
        "Figure 6.1B: barriers, monotone decay",
        "; ".join(f"{block}: {counted(x)}" for block, x in of_blocks.items()),
        *yes("barrier" in seen and len(seen) > 1, ", ".join(sorted(seen))),
    )
    yield Claim(
        "fewer pictures make the line monotone and lower accuracy",
        "Figure 6.6: monotone decay, lower accuracy",
        f"{told[FEWER]}; {right[FEWER]} against {right[BASE]} %",
        *every({"accuracy": higher(BASE, FEWER), "monotone": all_are("monotone", shapes[FEWER])}),
    )
    yield Claim(
        "without augmentation barriers of blocks and accuracy are lower",
        "Figure 6.6: lower layer-wise barriers, lower accuracy",
        f"{right[PLAIN]} against {right[BASE]} %, barriers {tall[PLAIN]} against {tall[BASE]}",
        *every({"accuracy": higher(BASE, PLAIN), "barriers": less(barriers[PLAIN], barriers[BASE], paired=True)}),
    )
    decays = {"1e-4": ("decay 0.0001", "monotone"), "5e-4": (BASE, "plateau"), "5e-3": ("decay 0.005", "plateau")}
    yield Claim(
        "large weight decay makes a plateau with a sudden drop",
        "Figure 6.7: monotone at 1e-4, plateau at 5e-4 and beyond",
        "; ".join(f"{label}: {told[name]}" for label, (name, _) in decays.items()),
        *every({label: all_are(shape, shapes[name]) for label, (name, shape) in decays.items()}),
    )
    large, middle, small = (f"fixed h = {rate:g}" for rate in RATES)
    yield Claim(
        "larger step sizes go farther",
        "distance 1.03, 0.88, 0.22 for h = 0.1, 0.01, 0.001",
        ", ".join(f"{plus_minus(far[f'fixed h = {rate:g}'], 2)} for {rate:g}" for rate in RATES),
        *every({"0.1, 0.01": farther(large, middle), "0.01, 0.001": farther(middle, small)}),
    )
    yield Claim(
        "the middle step size is the most accurate, and the one whose line is not monotone",
        "Figure 6.8: h = 0.01 has a plateau and the highest accuracy, 0.1 and 0.001 are monotone",
        "; ".join(f"{x:g}: {right[f'fixed h = {x:g}']} %, {told[f'fixed h = {x:g}']}" for x in RATES),
        *every(
            {
                "above 0.1": higher(middle, large),
                "above 0.001": higher(middle, small),
                "0.1": all_are("monotone", shapes[large]),
                "0.001": all_are("monotone", shapes[small]),
            }
        ),
    )
    yield Claim(
        "blocks with barriers need the large step size, the others do not",
        "Table 6.2: 91.8 ± 0.2 % with 0.1 for blocks with barriers, 90.1 ± 0.2 % with 0.1 for the others",
        f"{right['h = 0.01 for others']} % with 0.1 for {', '.join(resisting(results))}, "
        f"{right['h = 0.01 for resisting']} % with 0.1 for the others; all 0.1: {right[BASE]}, all 0.01: "
        f"{right['h = 0.01']} %",
        *higher("h = 0.01 for others", "h = 0.01 for resisting"),
    )
    yield Claim(
        "depth raises the barriers of blocks and accuracy",
        "Figure 6.10: higher barriers, better accuracy",
        f"{right[DEEPER]} against {right[BASE]} %, barriers {tall[DEEPER]} against {tall[BASE]}",
        *every({"accuracy": higher(DEEPER, BASE), "barriers": more(barriers[DEEPER], barriers[BASE], paired=True)}),
    )
    yield Claim(
        "without BatchNorm the line is monotone",
        "Section 6.1.10.6: monotone decay, lower accuracy",
        f"{told[UNNORMED]}; {right[UNNORMED]} against {right[BASE]} %",
        *every({"monotone": all_are("monotone", shapes[UNNORMED]), "accuracy": higher(BASE, UNNORMED)}),
    )
    yield Claim(
        "the shape of the line does not tell the test accuracy",
        "not a reliable indicator of test accuracy (6.1.9)",
        *unreliable(accuracy, shapes),
    )


def unreliable(accuracy: dict[str, np.ndarray], shapes: dict[str, np.ndarray]) -> tuple[str, str, str]:
    """The accuracies of each shape; do those of two overlap, each spread over more than the other's worst?"""
    said, right = np.concatenate(list(shapes.values())), np.concatenate(list(accuracy.values()))
    ranges = {shape: right[said == shape] for shape in np.unique(said)}
    text = ", ".join(f"{shape}: {x.min():.1f} to {x.max():.1f} % ({len(x)} lines)" for shape, x in ranges.items())
    several = [x for x in ranges.values() if len(x) > 1]
    if len(several) < 2:
        return text, UNDECIDED, "all lines have one shape"
    overlap = max(x.min() for x in several) < min(x.max() for x in several)
    return text, *yes(bool(overlap), f"ranges of accuracy {'' if overlap else 'do not '}overlap")


def tables(results: Results, config: Config) -> list[Table]:
    keys = {"shapes": "net: shapes", "accuracy": "accuracy", "distance": "distance"}
    rows = {
        name: {key: gathered(runs, stored) for key, stored in keys.items()} for name, runs in by_case(results).items()
    }
    caption = f"Resisting blocks: {', '.join(resisting(results))}. Means ± standard errors"
    return [tabulated("case", rows, [SHAPES, ACCURACY, DISTANCE], caption)]


def draw(results: Results, config: Config) -> Figures:
    """Figures 6.6 and 6.10 block by block, 6.7 and 6.8 for the whole network."""
    runs = by_case(results)
    figure, panels = subplots(2, 3, figsize=(11, 7))
    shades = ("#c2452d", "#d99a1c", "#3a8f4d", "#7a5aa6", "#888888")
    numbers = {BASE: "6.1B", FEWER: "6.6", PLAIN: "6.6", DEEPER: "6.10"}
    for axis, (name, number) in zip(panels.flat, numbers.items(), strict=False):
        for block, colour in zip(BLOCKS, shades, strict=True):
            draw_lines(axis, gathered(runs[name], f"{block}: losses"), colour, block, mean=True)
        draw_lines(axis, gathered(runs[name], "net: losses"), "#1f5fa8", "network", mean=True, ls="--")
        axis.set_title(f"{name} ({number})")
    several = {
        "weight decay (6.7)": {f"{x:g}": BASE if x == 5e-4 else f"decay {x:g}" for x in DECAYS},
        "fixed step size (6.8)": {f"h = {x:g}": f"fixed h = {x:g}" for x in RATES},
    }
    for axis, (title, kinds) in zip(panels.flat[4:], several.items(), strict=True):
        for colour, (label, name) in zip(shades, kinds.items(), strict=False):
            draw_lines(axis, gathered(runs[name], "net: losses"), colour, label)
        axis.set_title(title)
    for axis in panels.flat:
        axis.set_ylabel("test loss")
        axis.legend(fontsize=7)
    return {"influences": figure}
