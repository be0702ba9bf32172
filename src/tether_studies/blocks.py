"""Small convolutional networks on CIFAR-10, for the studies of lines: the thesis's ResNet-18 and VGG-11 scaled down.

Pictures are averaged to 16 × 16. The residual network has four groups of blocks and a linear layer on their mean; the
other one has VGG-11's eight convolutions and three linear layers.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

from tether.measure import distance, layer_paths, linear_path
from tether_studies.images import Pair, pictures, tested
from tether_studies.lines import State, packed, state_of
from tether_studies.precision import casting, channels_last
from tether_studies.residual import Block, Shifted, normed
from tether_studies.study import Results

__all__ = ["BATCH", "BLOCKS", "LAYERS", "Training", "halved", "lines", "norm_groups", "residual", "train", "unnormed"]
__all__ += ["vgg"]

BATCH = 128
BLOCKS = ("B1", "B2", "B3", "B4", "fc")
LAYERS = tuple(f"L{i}" for i in range(1, 12))  # of VGG-11
CHANNELS = (1, 2, 4, 4, 8, 8, 8, 8, 8, 8)  # of its layers but the last, as multiples of the width
POOLED = (1, 2, 4, 6, 8)  # the layers that end with a pool


@dataclass(frozen=True)
class Training:
    """SGD with momentum 0.9 in batches of 128; after some parts of the epochs the step size is dropped tenfold."""

    epochs: int
    lr: float = 0.1
    decay: float = 5e-4
    drops: tuple[float, ...] = (0.33, 0.66)
    augment: bool = True
    brightness: float = 0.0  # pixels are multiplied by up to 1 ± this
    rates: tuple[tuple[str, float], ...] = ()  # step sizes of single blocks
    decays: tuple[tuple[str, float], ...] = ()  # weight decays of single blocks
    batch: int = BATCH
    precision: str = "auto"


def residual(width: int, depth: int = 1) -> nn.Sequential:
    """Four groups of so many blocks, B1 to B4, after a first convolution."""
    parts: list[tuple[str, nn.Module]] = [("conv", nn.Sequential(*normed(3, width, 3, 1), nn.ReLU()))]
    inputs = width
    for i, (outputs, stride) in enumerate(((width, 2), (2 * width, 2), (4 * width, 2), (4 * width, 1)), 1):
        rest = [Block(outputs, outputs, 1) for _ in range(depth - 1)]
        parts.append((f"B{i}", nn.Sequential(Block(inputs, outputs, stride), *rest)))
        inputs = outputs
    parts += [("mean", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())), ("fc", nn.Linear(inputs, 10))]
    return nn.Sequential(OrderedDict(parts))


def vgg(width: int, narrowed: Sequence[str] = ()) -> nn.Sequential:
    """VGG-11 with BatchNorm, its layers L1 to L11; those named have half the outputs. The thesis's has width 64."""
    outputs = [width * many // (2 if name in narrowed else 1) for name, many in zip(LAYERS, CHANNELS, strict=False)]
    parts: list[tuple[str, nn.Module]] = []
    for i, (name, a, b) in enumerate(zip(LAYERS, [3, *outputs], [*outputs, 10], strict=True), 1):
        if i <= 8:
            # A picture of 16 pixels is one number before the last pool, which then does nothing.
            pool = [nn.MaxPool2d(2, ceil_mode=True)] if i in POOLED else []
            layers = [*normed(a, b, 3, 1), nn.ReLU(), *pool]
        else:
            layers = [nn.Linear(a, b), *([nn.ReLU()] if i < 11 else [])]
        parts.append((name, nn.Sequential(*layers, *([nn.Flatten()] if i == 8 else []))))
    return nn.Sequential(OrderedDict(parts))


def unnormed(net: nn.Sequential) -> nn.Sequential:
    """The network itself, without BatchNorm: with biases in its place and weights from Kaiming's normal start."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
        if isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return net


def norm_groups(net: nn.Module, block: str) -> dict[str, list[str]]:
    """The tensors of a block in the groups of Figure 6.18, by name."""
    found: dict[str, list[str]] = {"convolutions": [], "BatchNorm weights": [], "running statistics": []}
    for place, module in net.get_submodule(block).named_modules(prefix=block):
        norm = isinstance(module, nn.BatchNorm2d)
        names = [f"{place}.{name}" for name, _ in module.named_parameters(recurse=False)]
        found["BatchNorm weights" if norm else "convolutions"] += names
        found["running statistics"] += [f"{place}.{name}" for name, _ in module.named_buffers(recurse=False)]
    return found


def halved(train: bool, first: int, last: int) -> Pair:
    """CIFAR-10's pictures from the first to the last, 16 × 16."""
    x, y = pictures(train, last)
    return avg_pool2d(x[first:last], 2), y[first:last]


def minibatches(data: Pair, training: Training, seed: int) -> Iterator[Pair]:
    """Epoch after epoch, in random order; augmented by shifts and mirrors, and by brightness."""
    x, y = data
    shifted = Shifted(x, y, training.batch, seed)
    draws = torch.Generator().manual_seed(seed)
    while True:
        if not training.augment:
            for chosen in torch.randperm(len(x), generator=draws).split(training.batch):
                yield x[chosen], y[chosen]
            continue
        for images, labels in shifted:
            yield (brightened(images, training.brightness, draws) if training.brightness else images), labels


def brightened(x: torch.Tensor, by: float, draws: torch.Generator) -> torch.Tensor:
    """Each picture multiplied by a number from 1 − by to 1 + by, within black and white: pixels p are 4p − 2 here."""
    factor = 1 + by * (2 * torch.rand(len(x), 1, 1, 1, generator=draws) - 1)
    return ((x + 2) * factor - 2).clamp_(-2, 2)


def train(net: nn.Module, data: Pair, training: Training, seed: int) -> State:
    """Train a network where it stands; returns the state it ends in. The seed names minibatches and augmentation."""
    groups, rates, decays = [], dict(training.rates), dict(training.decays)
    for name, part in net.named_children():
        own = {"lr": rates.get(name, training.lr), "weight_decay": decays.get(name, training.decay)}
        groups.append({"params": list(part.parameters()), **own})
    channels_last(net)
    opt = torch.optim.SGD(groups, momentum=0.9)
    steps = training.epochs * -(-len(data[0]) // training.batch)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [max(1, int(part * steps)) for part in training.drops], 0.1)
    batches = minibatches(data, training, seed)
    net.train()
    for _ in range(steps):
        x, y = next(batches)
        opt.zero_grad()
        with casting(training.precision):
            loss = cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        schedule.step()
    net.eval()
    return state_of(net)


def lines(
    net: nn.Module,
    start: Mapping[str, Any],
    end: Mapping[str, Any],
    test: Pair,
    points: int,
    groups: Mapping[str, str | Sequence[str]] | None = None,
    precision: str = "auto",
) -> Results:
    """The line from start to end and those of single groups of tensors (6.2); test accuracy and distance (6.3)."""
    with casting(precision):
        results = packed("net", [linear_path(net, start, end, test, points)])
        for name, path in layer_paths(net, start, end, test, points, groups or {}).items():
            results |= packed(name, [path])
        net.load_state_dict(end)
        accuracy = tested(net, *test)[1]
    return {**results, "accuracy": accuracy, "distance": distance(start, end)}
