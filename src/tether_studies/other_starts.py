"""Figures 6.2 to 6.5 and Table 6.3: what another start does to the line from start to end and to test accuracy.

A small residual network with BatchNorm on CIFAR-10, SGD with momentum. Starts: torch's own; a network trained on other
pictures; one trained on random labels; states on the line of a first run, at the top of its barrier, before and after;
a trained network with one block as it began; and a fresh one with one block trained on random labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure import between, random_labels, transplant
from tether_studies.blocks import BLOCKS, Training, halved, lines, residual, train
from tether_studies.drawing import subplots
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED, Judgement, every, less, more, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.lines import (
    ACCURACY,
    BARRIER,
    DISTANCE,
    SHAPES,
    State,
    all_are,
    counted,
    draw_lines,
    gathered,
    state_of,
)
from tether_studies.quantities import tabulated
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-6.2",
    "where training starts changes the line and the accuracy",
    "thesis, Figures 6.2–6.5, 6.12, Tables 6.1, 6.3",
    data=("cifar10",),
    notes="The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs and pre-trains on ImageNet. Here a network "
    "with four blocks learns 2,500 pictures of 16 × 16 pixels without augmentation; pre-training is on 7,500 others of "
    "the same set. Where no line has a barrier, its top is the highest point of the line.",
)
CONVOLUTIONAL = BLOCKS[:4]
BASE, PLAIN = "scratch", "scratch, no decay"
PRETRAINED, RANDOM = "pre-trained", "random labels, no decay"
TOP, BEFORE, AFTER = "top", "before the top", "after the top"
PARTIAL = {block: f"trained but {block}" for block in CONVOLUTIONAL}
ADVERSE = {block: f"random labels in {block}, no decay" for block in CONVOLUTIONAL}
NAMES = [BASE, PLAIN, PRETRAINED, RANDOM, TOP, BEFORE, AFTER, *PARTIAL.values(), *ADVERSE.values()]


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=10)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=300, full=5000)
    other: int = at(7500, quick=300, full=5000)  # pictures to pre-train on
    test: int = at(2000, quick=100, full=5000)
    steps: int = at(400, quick=6, full=7800)
    long: int = at(1200, quick=6, full=20_000)  # steps on random labels
    points: int = at(26, quick=4)
    decay: float = 5e-4


def run(config: Config, lab: Lab) -> Results:
    """All starts of a run in one piece: most of them need the first ones' ends."""
    return lab.pieces({f"run {i}": partial(trained, config, lab.named_seed(f"run {i}")) for i in range(config.runs)})


def trained(config: Config, seed: int) -> Results:
    """Train from every start; lines, accuracies and distances by the name of the start."""
    torch.manual_seed(seed)
    net = residual(config.width)
    fresh = state_of(net)
    data, test = halved(True, 0, config.images), halved(False, 0, config.test)
    decayed, plain = (Training(config.steps, decay=x, augment=False) for x in (config.decay, 0.0))
    found: Results = {}

    def learn(name: str, start: State, training: Training = decayed) -> State:
        net.load_state_dict(start)
        end = train(net, data, training, seed)
        whole = lines(net, start, end, test, config.points, blocks=False)
        found.update({f"{name}: {key.removeprefix('net: ')}": value for key, value in whole.items()})
        return end

    end = learn(BASE, fresh)
    without = learn(PLAIN, fresh, plain)
    learn(PRETRAINED, elsewhere(net, fresh, config, seed))
    noisy = scrambled(net, fresh, data, config, seed, found)
    learn(RANDOM, noisy, plain)
    top = float(np.argmax(found[f"{PLAIN}: losses"][0])) / (config.points - 1)
    found["alpha"] = top
    for name, shift in ((TOP, 0.0), (BEFORE, -0.1), (AFTER, 0.1)):
        learn(name, between(fresh, without, min(1.0, max(0.0, top + shift))), plain)
    for block in CONVOLUTIONAL:
        learn(PARTIAL[block], transplant(end, fresh, f"{block}.*"))
        learn(ADVERSE[block], transplant(fresh, noisy, f"{block}.*"), plain)
    return found


def elsewhere(net: nn.Sequential, fresh: State, config: Config, seed: int) -> State:
    """A state trained on other pictures, with a fresh last layer as for another task."""
    net.load_state_dict(fresh)
    other = halved(True, config.images, config.images + config.other)
    return transplant(train(net, other, Training(2 * config.steps), seed + 1), fresh, "fc.*")


def scrambled(net: nn.Sequential, fresh: State, data: Any, config: Config, seed: int, found: Results) -> State:
    """A state trained on random labels; `found` is told how many of them it knows."""
    net.load_state_dict(fresh)
    labels = random_labels(data[1], 10, seed=seed)
    state = train(net, (data[0], labels), Training(config.long, lr=0.05, decay=0.0, augment=False), seed + 2)
    with torch.no_grad():
        found["random labels known"] = 100 * float((net(data[0]).argmax(1) == labels).float().mean())
    return state


def claims(results: Results, config: Config) -> Claims:
    accuracy, barrier, shapes = (
        {name: gathered(results, f"{name}: {key}") for name in NAMES} for key in ("accuracy", "barriers", "shapes")
    )
    right = {name: plus_minus(x) for name, x in accuracy.items()}
    tall = {name: plus_minus(x, 2) for name, x in barrier.items()}
    told = {name: counted(x) for name, x in shapes.items()}

    def higher(a: str, b: str) -> Judgement:
        return more(accuracy[a], accuracy[b], paired=True)

    yield Claim(
        "pre-training improves test accuracy and leaves no barrier or plateau",
        "Figure 6.2A: monotone decay, higher accuracy (ImageNet)",
        f"{told[PRETRAINED]}; {right[PRETRAINED]} against {right[BASE]} % ({told[BASE]})",
        *every({"accuracy": higher(PRETRAINED, BASE), "monotone": all_are("monotone", shapes[PRETRAINED])}),
    )
    known = np.mean([float(one["random labels known"]) for one in results.values()])
    judged = {"accuracy": higher(PLAIN, RANDOM), "barrier": more(barrier[RANDOM], barrier[PLAIN], paired=True)}
    yield Claim(
        "a start on random labels lowers accuracy and raises the barrier",
        "Figure 6.2B: lower accuracy, higher barriers (no weight decay)",
        f"{right[RANDOM]} against {right[PLAIN]} %, barrier {tall[RANDOM]} against "
        f"{tall[PLAIN]}; {known:.0f} % of the random labels known",
        *every(judged),
    )
    barred = int((barrier[PLAIN] > 0).sum())
    yield Claim(
        "without weight decay some lines have barriers",
        "Figures 6.3, 6.7: barriers for some random seeds",
        f"{told[PLAIN]}, the highest rises by {barrier[PLAIN].max():.2f}",
        *(yes(True, f"{barred} of {config.runs} runs") if barred else (UNDECIDED, "in no run")),
    )
    yield Claim(
        "a start at the top of the barrier has none, and improves accuracy",
        "Figure 6.3, Table 6.3: 91.12 ± 0.18 % against 90.01 ± 0.39 %, monotone decay",
        f"{right[TOP]} against {right[PLAIN]} %; {told[TOP]}",
        *every({"accuracy": higher(TOP, PLAIN), "no barrier": less(barrier[TOP], barrier[PLAIN], paired=True)}),
    )
    yield Claim(
        "and so do starts before and after it",
        "Table 6.3: 91.05 ± 0.21 % and 90.85 ± 0.17 %",
        ", ".join(f"{name} {right[name]} %" for name in (BEFORE, AFTER)),
        *every({name: higher(name, PLAIN) for name in (BEFORE, AFTER)}),
    )
    yield Claim(
        "partial training often lowers test accuracy",
        "Figure 6.4: 91.79, 91.83, 92.35, 90.97 % with block 1 to 4 reset, 92.2 % from scratch",
        ", ".join(f"{block} {right[name]}" for block, name in PARTIAL.items()) + f" %, {right[BASE]} % from scratch",
        *often({block: higher(BASE, name) for block, name in PARTIAL.items()}),
    )
    yield Claim(
        "one early block from random labels lowers accuracy",
        "Figure 6.5: lower for the first blocks, slightly higher for block 4",
        ", ".join(f"{block} {right[name]}" for block, name in ADVERSE.items()) + f" %, {right[PLAIN]} % from scratch",
        *every({block: higher(PLAIN, ADVERSE[block]) for block in CONVOLUTIONAL[:3]}),
    )


def often(judged: dict[str, Judgement]) -> Judgement:
    """Held if most judgements are, not held if most are not."""
    verdicts = [verdict for verdict, _ in judged.values()]
    found = next((one for one in (HELD, NOT_HELD) if verdicts.count(one) > len(verdicts) / 2), UNDECIDED)
    return found, every(judged)[1]


def tables(results: Results, config: Config) -> list[Table]:
    keys = ("shapes", "barriers", "accuracy", "distance")
    rows = {name: {key: gathered(results, f"{name}: {key}") for key in keys} for name in NAMES}
    return [tabulated("start", rows, [SHAPES, BARRIER, ACCURACY, DISTANCE], "Means ± standard errors")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(2, 2, figsize=(9, 7.2))
    shades = ("#1f5fa8", "#d9822b", "#3a8f4d", "#c2452d", "#7a5aa6")
    shown: dict[str, Sequence[str]] = {
        "pre-training, random labels (Figure 6.2)": (BASE, PRETRAINED, PLAIN, RANDOM),
        "starts on the line (Figures 6.3, 6.12)": (PLAIN, TOP, BEFORE, AFTER),
        "all but one block trained (Figure 6.4)": (BASE, *PARTIAL.values()),
        "one block from random labels (Figure 6.5)": (PLAIN, *ADVERSE.values()),
    }
    for axis, (title, kinds) in zip(panels.flat, shown.items(), strict=True):
        for name, colour in zip(kinds, shades, strict=False):
            draw_lines(axis, gathered(results, f"{name}: losses"), colour, name, mean=True)
        axis.set(title=title, ylabel="test loss")
        axis.legend()
    return {"starts": figure}
