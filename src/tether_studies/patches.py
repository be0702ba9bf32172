"""Figure 5.1: two time scales for two kinds of features, images and patches."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, recipe, study
from tether_studies.images import Pair, pictures, tested
from tether_studies.judges import POINT, undecided
from tether_studies.precision import channels_last
from tether_studies.quantities import at_end

SMALL, LARGE, BOTH, TWINS, READING = "small step", "large step", "composite", "composite, every batch", "patches only"
SLOW, FAST, K = 0.1, 0.004, 25
CLEAN, PATCHED, ALONE = SETS = ("clean", "with patches", "patches alone")
SIDE = 7  # of the patch, in the middle
AT_END = {kind: at_end(kind, kind, unit=" %") for kind in SETS}
SEEN = 20.0  # per cent of patches that must be read where nothing else is shown; chance is 10
METHODS: dict[str, Callable[..., Recipe]] = {
    SMALL: partial(recipe, "SGD", lr=FAST, momentum=0.9),
    LARGE: partial(recipe, "SGD", lr=SLOW, momentum=0.9),
    BOTH: partial(recipe, "composite_sgd", lr=SLOW, k=K, momentum=0.9),
    TWINS: lambda **options: partial(twins, momentum=0.9, **options),
    READING: partial(recipe, "SGD", lr=FAST, momentum=0.9),
}


class Twins(nn.Module):
    """Two copies of a network on the same batches; in eval mode it is the fast one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.fast, self.slow = net, copy.deepcopy(net)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack((self.fast(x), self.slow(x))) if self.training else self.fast(x)

    @torch.no_grad()
    def merge(self) -> None:
        """Set both to their mean, running statistics too."""
        pairs = zip(self.fast.state_dict().values(), self.slow.state_dict().values(), strict=True)
        for a, b in pairs:
            a.copy_((a + b) / 2 if a.is_floating_point() else a)
            b.copy_(a)


def twins(net: nn.Module, seed: int, **options: Any) -> torch.optim.Optimizer:
    """SGD with a small step for one copy and a large one for the other, both at every batch, merged every k steps."""
    assert isinstance(net, Twins)
    groups = [{"params": list(one.parameters()), "lr": h} for one, h in ((net.fast, FAST), (net.slow, SLOW))]
    opt, steps = torch.optim.SGD(groups, **options), count(1)
    opt.register_step_post_hook(lambda *_: None if next(steps) % K else net.merge())
    return opt


def loss_of_both(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of both copies, so that each has its own gradient."""
    return sum((cross_entropy(one, y) for one in out), torch.zeros(()))


class WideBlock(nn.Module):
    """Two convolutions, each after BatchNorm and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)])
        shapes = ((inputs, outputs, 3, stride, 1), (outputs, outputs, 3, 1, 1))
        self.convolutions = nn.ModuleList([nn.Conv2d(*shape, bias=False) for shape in shapes])
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ready = torch.relu(self.norms[0](x))
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(ready)
        return shortcut + self.convolutions[1](torch.relu(self.norms[1](self.convolutions[0](ready))))


def wide_resnet(width: int) -> nn.Sequential:
    """WideResNet-16: three groups of two blocks; of width 16 it is WRN-16-1, of 64 WRN-16-4."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    inputs = 16
    for i, outputs in enumerate((width, 2 * width, 4 * width)):
        layers += [WideBlock(inputs, outputs, 1 if i == 0 else 2), WideBlock(outputs, outputs, 1)]
        inputs = outputs
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers)


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
    at = (x.shape[-1] - SIDE) // 2
    x[:, :, at : at + SIDE, at : at + SIDE] += z + sign * size * ζ[y]
    return x


@study("fig-5.1", "thesis, Figure 5.1", ("cifar10",))
class Patches(Experiment):
    """two time scales learn both images and patches

    A fifth of the training images of CIFAR-10 is as it is; of the others a fifth is nothing but a patch of 7 × 7 pixels
    in the middle that tells the class, the rest has both. A small step memorizes the patches, a large one learns the
    images; a composite network, one copy fast and one slow, merged every k steps, shall do both (5.9.3).

    The thesis has a WideResNet-16 and all of CIFAR-10, and does not say for how many epochs; here WRN-16 with 8
    channels sees 10,000 pictures of 16 × 16 pixels (--full: WRN-16-4, 32 × 32). "Two parts on two time scales" can be
    read in two ways: the slow copy of the composite network steps once in k batches, or at every batch. A further
    network sees nothing but patches: where it does not learn to read them, or neither of two methods does, nothing is
    said about them. Patches of two classes differ by 0.1, and bfloat16 has steps of 0.01 there: all is in float32.
    """

    says = """
        a large step is better on clean images than a small one | Figure 5.1, left: higher accuracy
        a small step memorizes the patches, a large one does not
            | Figure 5.1, right: the small step learns them quickly
        the composite network memorizes the patches as the large step cannot | Figure 5.1, right
        and is better on clean images than the small step | Figure 5.1, left: as high as the large step
        one whose slow copy steps at every batch memorizes them too | Figure 5.1, right
        and is better on clean images too | Figure 5.1, left: as high as the large step
    """
    label = "test accuracy %"
    columns = tuple(AT_END.values())
    caption = "{runs} runs, {epochs} epochs"
    runs: int = at(4, quick=2, long=12, full=5)
    images: int = at(10_000, quick=140, full=50_000)
    test: int = at(2000, quick=40, full=10_000)
    epochs: int = at(12, quick=1, full=150)
    size: int = at(16, full=32)  # pixels of a side
    width: int = at(8, quick=4, full=64)
    methods: tuple[str, ...] = tuple(METHODS)
    decay: float = 5e-4

    def run(self, lab: Lab) -> Results:
        """Run i of all methods has the same start and minibatches."""
        return lab.runs(self.methods, self.runs, partial(self.piece, lab.named_seed("patches")))

    def averaged(self, train: bool, count: int) -> Pair:
        """Pictures of the study's size."""
        x, y = pictures(train, count)
        return avg_pool2d(x, x.shape[-1] // self.size), y

    def training_set(self, seed: int, only: bool = False) -> Pair:
        """A fifth clean; of the rest a fifth patches alone and four fifths both. Or nothing but patches."""
        x, y = self.averaged(True, self.images)
        draw, clean = torch.Generator().manual_seed(seed + 1), 0 if only else len(y) // 5
        alone = (torch.rand(len(y) - clean, generator=draw) < 0.2) | only
        return torch.cat((x[:clean], patched(x[clean:], y[clean:], alone, seed, draw))), y

    def test_sets(self, seed: int) -> dict[str, Pair]:
        """The same images clean, with patches, and as patches alone."""
        x, y = self.averaged(False, self.test)
        draw = torch.Generator().manual_seed(seed + 2)
        seen = [patched(x.clone(), y, torch.full((len(x),), alone), seed, draw) for alone in (False, True)]
        return {name: (images, y) for name, images in zip(SETS, (x, *seen), strict=True)}

    def piece(self, data_seed: int, name: str, seed: int) -> Results:
        """Accuracies on the three kinds of test images, epoch by epoch."""
        data, tests = self.training_set(data_seed, only=name == READING), self.test_sets(data_seed)
        torch.manual_seed(seed)
        net: nn.Module = wide_resnet(self.width)
        channels_last(net)
        loss: Callable[..., torch.Tensor] = cross_entropy
        if name == TWINS:
            net, loss = Twins(net), loss_of_both
        opt = METHODS[name](weight_decay=self.decay)(net, seed)
        per_epoch = -(-len(data[1]) // 128)  # of the images that are here

        def look(step: int, net: Any, opt: Any) -> dict[str, Any]:
            return {kind: torch.tensor(tested(net, *pair)[1]) for kind, pair in tests.items()}

        options: dict[str, Any] = {"log_every": per_epoch, "callbacks": [look], "seed": seed, "progress": False}
        return dict(tether.train(net, opt, data, loss, self.epochs * per_epoch, batch=128, **options).metrics)

    def claims(self, results: Results) -> Found:
        read = {name: float(AT_END[ALONE].take(found).mean()) for name, found in results.items()}
        pairs = [(CLEAN, LARGE, SMALL), (ALONE, SMALL, LARGE)]
        for one in (BOTH, TWINS):
            pairs += [(ALONE, one, LARGE), (CLEAN, one, SMALL)]
        for kind, a, b in pairs:
            if not {a, b} <= set(self.methods):
                yield None
                continue
            said, judgement = AT_END[kind].more(results, a, b, names=self.methods, least=POINT)
            if kind == ALONE and read.get(READING, 100.0) < SEEN:
                judgement = undecided(f"of nothing but patches {read[READING]:.1f} % are read")
            elif kind == ALONE and max(read[a], read[b]) < SEEN:
                judgement = undecided(f"neither reads {SEEN:.0f} % of the patches after {self.epochs} epochs")
            yield said, judgement

    def draw(self, results: Results) -> Figures:
        found = {name: {**one, "epochs": range(1, self.epochs + 1)} for name, one in results.items()}
        return {"patches": curves({"test accuracy %": found}, {x: x for x in SETS}, "epochs", across=True, band="")[0]}
