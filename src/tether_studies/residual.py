import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, pad

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, recipe, study
from tether_studies.images import Pair, pictures, tested
from tether_studies.judges import POINT, less, more, plus_minus
from tether_studies.precision import casting, channels_last, in_bfloat16
from tether_studies.quantities import at_end

H, MOMENTUM, WARM = 0.1, 0.9, 3  # WARM: epochs in which the step size rises to H, as in the authors' program
OURS = "o-CoLA-ud"
METHODS: dict[
    str, tuple[Callable[[list[str]], Recipe], float]
] = {  # by what they leave free; and the factor of a decay of the step size
    "SGD-m": (lambda free: recipe("SGD", lr=H, momentum=MOMENTUM), 0.1),
    "SGD-m, WD": (lambda free: recipe("SGD", lr=H, momentum=MOMENTUM, weight_decay=5e-4), 0.1),
    OURS: (lambda free: recipe("orthogonal_cola_ud", lr=math.sqrt(H), friction=0.5, free=free), math.sqrt(0.1)),
    "SGD": (lambda free: recipe("SGD", lr=H), 1.0),
    "o-CoLA-od": (lambda free: recipe("orthogonal_cola_od", lr=H, free=free), 1.0),
}
TRAINING, LOSS = at_end("training loss", "training loss", 3), at_end("loss", "test loss", 3)
ACCURACY = at_end("accuracy", "test accuracy %", 3)


def normed(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """A convolution and BatchNorm."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*normed(inputs, outputs, 3, stride), nn.ReLU(), *normed(outputs, outputs, 3, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*normed(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Residual(nn.Module):
    """Stages of blocks, each with twice the channels and half the side of the one before; (3, 4, 6, 3) is ResNet-34."""

    def __init__(self, width: int, blocks: Sequence[int], precision: str = "float32") -> None:
        super().__init__()
        self.precision = precision
        layers: list[nn.Module] = [*normed(3, width, 3, 1), nn.ReLU()]
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for i in range(count):
                layers.append(Block(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, 10)
        if in_bfloat16(precision):
            channels_last(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits. Only here bfloat16 may be at work: surfaces need their products in full."""
        with casting(self.precision):
            return self.head(self.body(x)).float()


class Shifted:
    """Batches of images in random order, each shifted by up to an eighth of its side and mirrored half of the time."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, batch: int, seed: int) -> None:
        self.y, self.batch, self.side = y, batch, x.shape[-1]
        self.margin = self.side // 8
        self.padded = pad(x, [self.margin] * 4)
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[Pair]:
        draw, line = partial(torch.randint, generator=self.generator), torch.arange(self.side)
        for which in torch.randperm(len(self.y), generator=self.generator).split(self.batch):
            n = len(which)
            rows, columns = (draw(0, 2 * self.margin + 1, (n, 1)) + line for _ in range(2))
            mirrored = draw(0, 2, (n, 1)).bool()
            columns = torch.where(mirrored, columns.flip(1), columns)
            # indices apart from the channels' come first in the result
            x = self.padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            yield x.permute(0, 3, 1, 2).contiguous(), self.y[which]


@study("fig-4.6", "thesis, Figures 4.6, 4.9; ICML paper, Figures 6, D3", ("cifar10",))
class Orthogonal(Experiment):
    """orthogonal convolutions overfit less

    SGD with momentum 0.9 (h = 0.1, a tenth of it after a third and two thirds of the epochs), with weight decay and
    without, beside o-CoLA-ud with γ = 0.5, τ = 0 and its h² equal to SGD's step; and SGD without momentum beside
    o-CoLA-od, both with h = 0.1 throughout. All convolutions are kept orthogonal, the output layer is free.

    The thesis trains ResNet-34 on 50,000 images of 32 × 32 pixels for 150 epochs; by default this is a net of eight
    layers on images of 16 × 16 pixels. The weight decay (5e-4 here) and which layers are constrained are not given
    there. With γ = 0.5 the momentum exp(−γh) is 0.85 at first, and rises when h falls. The authors' program differs,
    and --long and --full follow it (`authors`): momentum 0.9 throughout, γ = −ln 0.9/h; three epochs in which the step
    size rises; every weight orthogonal but those of the first convolution; colours normalised one by one.
    """

    says = """
        o-CoLA-ud ends with higher test accuracy than SGD-m, both without weight decay
            | Figure 4.6: o-CoLA-ud without weight decay strongly outperforms SGD-m without weight decay
        … and with lower test loss
            | Figure 4.6: o-CoLA-ud without weight decay strongly outperforms SGD-m without weight decay
        o-CoLA-od ends with higher test accuracy than SGD | Figure 4.9: modestly higher test accuracy
        … and has lower test loss throughout training
            | Figure 4.9: lower test loss throughout training, inhibits overfitting
    """
    columns = (TRAINING, LOSS, ACCURACY)
    caption = "{runs} runs of {epochs} epochs on {images:,} images"
    runs: int = at(3, quick=2, long=5, full=5)
    epochs: int = at(24, quick=3, long=150, full=150)
    images: int = at(2000, quick=100, full=50_000)
    tests: int = at(2000, quick=100, full=10_000)
    precision: str = at("float32", long="auto", full="auto")  # of convolutions: bfloat16 where the processor has it
    authors: bool = at(False, long=True, full=True)  # the settings of their program
    size: int = at(16, quick=8, full=32)  # pixels along a side, means over squares of the originals
    width: int = at(16, quick=4, full=64)  # channels of the first stage
    blocks: tuple[int, ...] = at((1, 1, 1), full=(3, 4, 6, 3))  # in each stage

    def run(self, lab: Lab) -> Results:
        """Run i of every method has the same minibatches."""
        return lab.runs(METHODS, self.runs, self.piece)

    def piece(self, method: str, seed: int) -> Results:
        """Train once; training and test loss and test accuracy after every epoch."""
        sets = [pictures(train, count) for train, count in ((True, self.images), (False, self.tests))]
        (x, y), test = ((avg_pool2d(x, 32 // self.size), y) for x, y in sets)
        if self.authors:
            mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
            x, test = (x - mean) / deviation, ((test[0] - mean) / deviation, test[1])
        torch.manual_seed(seed)
        net = Residual(self.width, self.blocks, self.precision)
        batch = min(128, len(y))
        per_epoch = -(-len(y) // batch)  # of the images that are here
        opt = METHODS[method][0](["body.0.*"] if self.authors else ["head.*"])(net, seed)

        def epoch(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, float]:
            self.pace(opt, method, step // per_epoch)
            (loss, _), (test_loss, accuracy) = tested(net, x, y), tested(net, *test)
            return {"training loss": loss, "loss": test_loss, "accuracy": accuracy}

        data, steps = Shifted(x, y, batch, seed), self.epochs * per_epoch
        self.pace(opt, method, 0)
        record = tether.train(net, opt, data, cross_entropy, steps, log_every=per_epoch, callbacks=[epoch])
        return {"epochs": np.array(record.steps) / per_epoch, **record.metrics}

    def pace(self, opt: torch.optim.Optimizer, method: str, epoch: int) -> None:
        """Set the step size from this epoch on; with it the friction, if the momentum shall stay."""
        factor, warm = METHODS[method][1], self.authors and epoch < WARM
        part = (epoch + 1) / (WARM + 1) if warm else factor ** sum(epoch >= drop for drop in self.drops())
        h = (math.sqrt(H * part) if warm else math.sqrt(H) * part) if method == OURS else H * part
        for group in opt.param_groups:
            group["lr"] = h
            if self.authors and method == OURS:
                group["friction"] = -math.log(MOMENTUM) / h

    def drops(self) -> list[int]:
        """The epochs after which step sizes fall."""
        return [self.epochs * k // 3 for k in (1, 2)]

    def claims(self, results: Results) -> Found:
        accuracy, loss = ACCURACY.of(results), LOSS.of(results)
        said = {m: f"{m} {plus_minus(accuracy[m])} %, loss {LOSS.text(loss[m])}" for m in METHODS}
        texts = f"{said['o-CoLA-ud']}; {said['SGD-m']}"
        yield f"{texts}; {said['SGD-m, WD']}", more(accuracy["o-CoLA-ud"], accuracy["SGD-m"], least=POINT)
        yield texts, less(loss["o-CoLA-ud"], loss["SGD-m"])
        yield f"{said['o-CoLA-od']}; {said['SGD']}", more(accuracy["o-CoLA-od"], accuracy["SGD"], least=POINT)
        ours, free = (results[method]["loss"].mean(0) for method in ("o-CoLA-od", "SGD"))
        yield f"mean over epochs {ours.mean():.3f} against {free.mean():.3f}", less(ours, free)

    def draw(self, results: Results) -> Figures:
        falls = {m: results[m] for m, (_, factor) in METHODS.items() if factor < 1}
        groups = {"Figure 4.6": falls, "Figure 4.9": {m: results[m] for m in METHODS if m not in falls}}
        keys = {"training loss": "training loss", "loss": "test loss", "accuracy": "test accuracy, %"}
        figure, panels = curves(groups, keys, "epochs", across=True, band="")
        for axis in panels[0]:
            for epoch in self.drops():
                axis.axvline(epoch, color="0.6", lw=0.8, ls=":")
        return {"residual": figure}
