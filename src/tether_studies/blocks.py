"""A small residual network with BatchNorm on CIFAR-10, for the studies of lines: the thesis's ResNet-18 scaled down.

Pictures are averaged to 16 × 16, there are four blocks of two convolutions each and a linear layer on their mean.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

from tether.measure import distance, layer_paths, linear_path
from tether_studies.images import Pair, pictures, tested
from tether_studies.lines import State, packed, state_of
from tether_studies.residual import Block, Shifted, normed
from tether_studies.study import Results

__all__ = ["BLOCKS", "Training", "halved", "lines", "residual", "train"]

BATCH = 64
BLOCKS = ("B1", "B2", "B3", "B4", "fc")


@dataclass(frozen=True)
class Training:
    """SGD with momentum 0.9 in batches of 64, the step size dropped tenfold after each third of the steps."""

    steps: int
    lr: float = 0.1
    decay: float = 5e-4
    drops: bool = True
    augment: bool = True
    rates: tuple[tuple[str, float], ...] = ()  # step sizes of single blocks


def residual(width: int, depth: int = 1, norm: bool = True) -> nn.Sequential:
    """Four groups of so many blocks, B1 to B4, after a first convolution; without `norm` no BatchNorm."""
    parts: list[tuple[str, nn.Module]] = [("conv", nn.Sequential(*normed(3, width, 3, 1), nn.ReLU()))]
    inputs = width
    for i, (outputs, stride) in enumerate(((width, 2), (2 * width, 2), (4 * width, 2), (4 * width, 1)), 1):
        rest = [Block(outputs, outputs, 1) for _ in range(depth - 1)]
        parts.append((f"B{i}", nn.Sequential(Block(inputs, outputs, stride), *rest)))
        inputs = outputs
    parts += [("mean", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())), ("fc", nn.Linear(inputs, 10))]
    net = nn.Sequential(OrderedDict(parts))
    for module in list(net.modules()) if not norm else ():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    return net


def halved(train: bool, first: int, last: int) -> Pair:
    """CIFAR-10's pictures from the first to the last, 16 × 16."""
    x, y = pictures(train, 50_000)
    return avg_pool2d(x[first:last], 2), y[first:last]


def minibatches(data: Pair, augment: bool, seed: int) -> Iterator[Pair]:
    """Epoch after epoch, in random order; augmented by shifts and mirrors."""
    x, y = data
    shifted = Shifted(x, y, BATCH, seed)
    order = torch.Generator().manual_seed(seed)
    while True:
        if augment:
            yield from shifted
        else:
            for chosen in torch.randperm(len(x), generator=order).split(BATCH):
                yield x[chosen], y[chosen]


def train(net: nn.Sequential, data: Pair, training: Training, seed: int) -> State:
    """Train a network where it stands; returns the state it ends in. The seed names minibatches and augmentation."""
    groups = []
    for name, part in net.named_children():
        groups.append({"params": list(part.parameters()), "lr": dict(training.rates).get(name, training.lr)})
    opt = torch.optim.SGD(groups, momentum=0.9, weight_decay=training.decay)
    third = max(1, training.steps // 3)
    schedule = torch.optim.lr_scheduler.StepLR(opt, third, 0.1 if training.drops else 1.0)
    batches = minibatches(data, training.augment, seed)
    net.train()
    for _ in range(training.steps):
        x, y = next(batches)
        opt.zero_grad()
        cross_entropy(net(x), y).backward()
        opt.step()
        schedule.step()
    net.eval()
    return state_of(net)


def lines(
    net: nn.Sequential, start: Mapping[str, Any], end: Mapping[str, Any], test: Pair, points: int, blocks: bool = True
) -> Results:
    """The line from start to end and, block by block, those of single blocks; test accuracy and distance (6.3)."""
    results = packed("net", [linear_path(net, start, end, test, points)])
    if blocks:
        globs = {name: f"{name}.*" for name in BLOCKS}
        for name, path in layer_paths(net, start, end, test, points, globs).items():
            results |= packed(name, [path])
    net.load_state_dict(end)
    return {**results, "accuracy": tested(net, *test)[1], "distance": distance(start, end)}
