from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether.measure import Agreement, agreement, morph
from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.image_networks import CODE, dcgan, network
from tether_studies.images import Pair
from tether_studies.judges import Judgement, every, less, more, plus_minus, undecided, yes
from tether_studies.precision import casting

__all__ = ["KINDS", "POINTS", "WAYS", "BetweenClasses", "Verdict", "percentages"]

WAYS = [(i, i + 1) for i in range(9)] + [(0, 9)] + [(i, i + 5) for i in range(5)]
POINTS = 11
KINDS = ("MLP", "CNN", "ViT")
NEAR, CLOSE = 1.0, 5  # points from a target at which accuracy is looked at every so many steps
PAST, LOOKS = 2.0, 3  # a network so many points above all that it missed, so often in a row, will not come back


@lru_cache(2)
def digits(train: bool, count: int) -> Pair:
    """MNIST as 1 × 28 × 28 numbers from −1 to 1."""
    x, y = tether.data.mnist(train)
    return x[:count].float().view(-1, 1, 28, 28) / 127.5 - 1, y[:count]


def optimizer(kind: str, variant: int, parameters: Any, lr: float) -> tuple[torch.optim.Optimizer, int]:
    """The three ways to train of §6.2.6.1, and their batch sizes."""
    if variant == 0:
        return torch.optim.Adam(parameters, lr=lr), 128
    if variant == 2 and kind == "MLP":
        return torch.optim.AdamW(parameters, lr=2 * lr, weight_decay=1e-5), 256
    decay = 5e-5 if variant == 2 and kind == "ViT" else 0.0 if variant == 2 else 1e-5
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay), 128


def shifted(x: torch.Tensor) -> torch.Tensor:
    """All moved by up to two pixels."""
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return x.roll((down, right), (2, 3))


@torch.no_grad()
def predicted(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Logits, in eval mode: without dropout, and with BatchNorm's running statistics."""
    net.eval()
    logits = torch.cat([net(part) for part in x.split(1000)])
    net.train()
    return logits


def percentages(values: list[float]) -> str:
    return ", ".join(f"{x:.1f}" for x in values)


class Verdict(NamedTuple):
    """What the networks that reached a target say of the images between digits, and of the test set."""

    between: Agreement
    test: Agreement
    accuracy: float


@study("table-6.5", "thesis, Tables 6.5, 6.6, Figures 6.20–6.22", ("mnist",))
class BetweenClasses(Experiment):
    """networks of one test accuracy disagree on images between two digits

    A small DCGAN learns MNIST; straight ways between the codes of ten digits give 15 × 11 images (6.4). Perceptrons,
    convolutional networks and vision transformers as in §6.2.6.1, three of each, are trained until their test accuracy
    is near a target, and judge the images. What needs people who judge them too is table-6.7. The labels of MNIST's own
    test images, on which people agree, tell how often one network errs and how often any of nine.

    The networks are the thesis's but for sizes that it does not give, or that are smaller here: 8 channels, doubled
    once, and linear layers of 128 and 64 nodes; transformers 64 wide on patches of 7 × 7 pixels. Targets are lower (97
    % at most), step sizes twice as large, the DCGAN has 16 features for 64. Groups of one kind have 2 networks for 10.
    Accuracy is that on 2,000 test images for 10,000, and near is within 0.15 points for 0.05. Convolutional
    networks compute in bfloat16 where the processor does (`precision`), with weights in float32.
    """

    says = """
        two networks of one accuracy disagree on far fewer images than nine do
            | 11.3, 8.5, 7.4 % of images for two, 28.5, 21.8, 18.2 % for nine (97.5, 98, 98.5 %; Table 6.6)
        they err on different images: nine together on far more than each alone
            | 5.9, 4.3, 3.5 % each, 15.2, 11.5, 7.3 % together, of images between digits (Table 6.6)
        with higher test accuracy networks disagree on fewer images | 28.5, 21.8, 18.2 % (Table 6.7)
        where networks disagree their largest probabilities are smaller
            | 0.83 to 0.89 where they disagree, 0.96 to 0.99 where they agree (Table 6.8)
        at one accuracy, perceptrons disagree less than convolutional networks
            | an MLP misclassifies the lowest number of images and is most certain (Figure 6.21)
    """
    targets: tuple[float, ...] = at(  # test accuracies
        (96.0, 96.5, 97.0), quick=(15.0, 30.0), full=(97.5, 98.0, 98.5)
    )
    within: float = at(0.15, quick=15.0, full=0.05)  # points of a target
    seeds: int = at(2, quick=2, full=10)  # networks in a group of one kind (Figure 6.21)
    groups: int = at(4, quick=2, long=16, full=10)
    kinds: tuple[str, ...] = at(("MLP", "CNN"), full=KINDS)  # in Figure 6.21
    gan_steps: int = at(1500, quick=4, full=20_000)
    features: int = at(16, quick=2, full=64)  # of generator and discriminator
    tries: int = at(3000, quick=100)  # codes to choose ten from
    images: int = at(60_000, quick=500)  # to train on
    test: int = at(2000, quick=100, full=10_000)
    lr: float = at(1e-3, full=5e-4)
    patience: int = at(6000, quick=4, full=50_000)  # steps of a network, at most
    every: int = at(40, quick=2, full=10)  # steps between two looks at the test accuracy
    hidden: int = at(500, quick=20)  # nodes of each hidden layer of the perceptrons
    channels: int = at(8, quick=2, full=32)  # of the first two convolutions
    patch: int = at(7, quick=14, full=4)  # pixels of a side of the transformers' patches
    width: int = at(64, quick=8)  # of the transformers
    precision: str = "auto"

    def run(self, lab: Lab) -> Results:
        """The images first; then networks that judge them at each target accuracy."""
        work: dict[str, Any] = {"images": self.made}
        images = torch.from_numpy(lab.pieces(work)["images"]["images"])
        for kind in KINDS:
            for i in range(3):
                work[f"{kind}{i + 1}"] = partial(self.judged, kind, i, 1, lab.named_seed(f"{kind}, {i}"), images)
        for kind in self.kinds:
            for group in range(self.groups):
                seed = lab.named_seed(f"{kind}, group {group}")
                work[f"{kind}s, group {group + 1}"] = partial(self.judged, kind, 0, self.seeds, seed, images)
        return lab.pieces(work)

    def made(self) -> Results:
        """Fifteen ways between ten codes: of each digit the one of which a perceptron apart is surest."""
        x, y = digits(True, self.images)
        critic = tether.Replicas(partial(network, "MLP", self.hidden), 1)
        opt = torch.optim.Adam(critic.parameters(), lr=5e-4)
        tether.train(critic, opt, (x, y), cross_entropy, min(1500, self.gan_steps), 128, progress=False)
        make = dcgan(x, self.features, self.gan_steps)
        with torch.no_grad():
            codes = torch.randn(self.tries, CODE)
            sure = torch.cat([critic[0](make(part)).softmax(-1) for part in codes.split(500)])
        chosen = codes[sure.argmax(0)]
        ways = [morph(make, chosen[i], chosen[j], points=POINTS).images for i, j in WAYS]
        return {"images": torch.cat(ways), "sure": sure.amax(0)}

    def judged(self, kind: str, variant: int, count: int, seed: int, images: torch.Tensor) -> Results:
        """Train some networks; each judges images and test set when it is first within reach of a target accuracy.

        Probabilities are networks × targets × images × classes, nan where a target was not reached.
        """
        (x, y), (x_test, y_test) = digits(True, self.images), digits(False, self.test)
        shape = (count, len(self.targets))
        probabilities = torch.full((*shape, len(images), 10), float("nan"))
        labels = torch.full((*shape, len(x_test)), -1, dtype=torch.int8)
        steps, accuracies = torch.full(shape, -1), torch.full(shape, float("nan"))
        targets, precision = torch.tensor(self.targets), self.precision if kind == "CNN" else "float32"
        for i in range(count):
            torch.manual_seed(seed + i)
            net = network(kind, self.hidden, self.channels, self.patch, self.width)
            opt, batch = optimizer(kind, variant, net.parameters(), self.lr)
            near, past = False, 0
            for step in range(1, self.patience + 1):
                chosen = torch.randint(len(x), (batch,))
                shown = shifted(x[chosen]) if kind == "CNN" and variant == 2 else x[chosen]
                opt.zero_grad()
                with casting(precision):
                    loss = cross_entropy(net(shown), y[chosen])
                loss.backward()
                opt.step()
                if step % min(self.every, CLOSE if near else self.every):
                    continue
                said = predicted(net, x_test).argmax(1)
                right = 100 * float((said == y_test).float().mean())
                reached = (targets - right).abs() <= self.within + 1e-4  # accuracies are hundredths
                near = bool(((steps[i] < 0) & ((targets - right).abs() < NEAR)).any())
                for k in ((steps[i] < 0) & reached).nonzero()[:, 0].tolist():
                    probabilities[i, k], labels[i, k] = predicted(net, images).softmax(1), said
                    steps[i, k], accuracies[i, k] = step, right
                past = past + 1 if bool((right - targets[steps[i] < 0] > PAST).all()) else 0
                if past == LOOKS or bool((steps[i] >= 0).all()):
                    break
        answers = {"probabilities": probabilities, "labels": labels, "truth": y_test.to(torch.int8)}
        return answers | {"steps": steps, "accuracies": accuracies}

    def verdict(self, results: Results, names: list[str], k: int, people: Any = None) -> Verdict | None:
        """Of the networks of these pieces at target k; None if one of them did not reach it."""
        found = [results[name] for name in names]
        if any((one["steps"][:, k] < 0).any() for one in found):
            return None
        probabilities, labels, right = (
            np.concatenate([one[key][:, k] for one in found]) for key in ("probabilities", "labels", "accuracies")
        )
        between = agreement(probabilities.argmax(-1), people, probabilities)
        return Verdict(between, agreement(labels, found[0]["truth"][None]), float(right.mean()))

    def verdicts(self, results: Results, people: Any = None) -> dict[str, list[Verdict | None]]:
        """At every target: of the nine different networks, and of each group of equal ones; against people if given."""
        groups = {"nine": [f"{kind}{i + 1}" for kind in KINDS for i in range(3)]}
        groups |= {name: [name] for kind in self.kinds for name in self.groups_of(kind)}
        targets = range(len(self.targets))
        return {name: [self.verdict(results, names, k, people) for k in targets] for name, names in groups.items()}

    def groups_of(self, kind: str) -> list[str]:
        return [f"{kind}s, group {i + 1}" for i in range(self.groups)]

    def shares(self, found: dict[str, list[Verdict | None]], kind: str, k: int) -> list[float]:
        """Per cent of the images on which not all networks of a group agree, group by group."""
        groups = [found[name][k] for name in self.groups_of(kind)]
        return [100 * one.between.models.disagreement for one in groups if one is not None] or [float("nan")]

    def common(self, found: dict[str, list[Verdict | None]]) -> list[int]:
        """The targets that all groups of equal networks have reached."""
        groups = [found[name] for kind in self.kinds for name in self.groups_of(kind)]
        return [k for k in range(len(self.targets)) if all(one[k] is not None for one in groups)]

    def claims(self, results: Results) -> Found:
        found = self.verdicts(results)
        nine = [one for one in found["nine"] if one is not None]
        if not nine:
            yield from [("not all nine networks reached a target accuracy", undecided("they did not"))] * 5
            return
        two = [100 * v.between.disagreement.mean for v in nine]
        any_two = [100 * v.between.models.disagreement for v in nine]
        one, any_one = [100 * v.test.error.mean for v in nine], [100 * v.test.group_error for v in nine]
        levels = ", ".join(f"{v.accuracy:.1f} %" for v in nine)
        said = f"{percentages(two)} % for two, {percentages(any_two)} % for nine, at test accuracies {levels}"
        yield said, yes(all(b > 2 * a for a, b in zip(two, any_two, strict=True)), "more than twice as many")
        said = f"{percentages(one)} % each, {percentages(any_one)} % together, of MNIST's test images"
        yield said, yes(all(b > 2 * a for a, b in zip(one, any_one, strict=True)), "more than twice as many")
        falls = {"nine": yes(any_two == sorted(any_two, reverse=True), percentages(any_two))}
        common = self.common(found)
        ends = {kind: [self.shares(found, kind, k) for k in (common[0], common[-1])] for kind in self.kinds if common}
        falls |= {kind: less(b, a) for kind, (a, b) in ends.items() if len(common) > 1}
        if len(common) < 2:
            falls["equal ones"] = undecided(f"{len(common)} of the targets were reached by all of them")
        said = "; ".join(f"{kind}s {plus_minus(a)} to {plus_minus(b)} %" for kind, (a, b) in ends.items())
        yield f"{percentages(any_two)} % for nine; equal ones: {said or 'none'}", every(falls)
        yield self.sure(nine[-1].between)
        kinds = {kind: b for kind, (_, b) in ends.items()}
        said = ", ".join(f"{kind}s {plus_minus(x)} %" for kind, x in kinds.items())
        fewer = less(kinds["MLP"], kinds["CNN"], apart="other networks") if kinds else undecided("no common target")
        yield said or "none", fewer

    def sure(self, top: Agreement) -> tuple[str, Judgement]:
        """How sure the networks are where they agree and where they do not."""
        apart, sure = ~top.models.agree, top.probabilities
        if sure is None or not apart.any() or apart.all():
            return "none", undecided("they agree on all images, or on none")
        text = f"{sure[:, apart].mean():.2f} and {sure[:, ~apart].mean():.2f}"
        return text, more(sure[:, ~apart].mean(1), sure[:, apart].mean(1))

    def tables(self, results: Results) -> list[Table]:
        rows: list[tuple[Any, ...]] = []
        for name, levels in self.verdicts(results).items():
            for target, one in zip(self.targets, levels, strict=True):
                if one is None:
                    rows.append((name, f"{target:g}", *("–",) * 5))
                    continue
                models, two = one.between.models, one.between.disagreement
                errors = f"{100 * one.test.error.mean:.2f}", f"{100 * one.test.group_error:.1f}"
                apart = f"{100 * two.mean:.1f} ± {100 * two.std:.1f}, {100 * models.disagreement:.1f}"
                rows.append((name, f"{target:g}", f"{one.accuracy:.2f}", len(models.labels), *errors, apart))
        head = ("networks", "target", "reached", "how many", "errors of each", "of any", "two disagree, any two")
        text = "Per cent; errors on MNIST's test images, disagreement on the 165 images between digits"
        return [Table(head, rows, text)]

    def draw(self, results: Results) -> Figures:
        found = self.verdicts(results)
        images = results["images"]["images"][:, 0]
        last = next((one for one in reversed(found["nine"]) if one is not None), None)
        said = last.between.models.labels.T if last is not None else []
        texts = [",".join(map(str, np.unique(x))) if len(np.unique(x)) > 1 else "✓" for x in said]
        sheet = tiled(images, texts)
        curves, axis = subplots(figsize=(5, 3.6))
        for kind in self.kinds:
            values = [self.shares(found, kind, k) for k in range(len(self.targets))]
            draw_means(axis, self.targets, values, label=f"{self.seeds} {kind}s of one kind")
        nine = [(x, 100 * v.between.models.disagreement) for x, v in zip(self.targets, found["nine"], strict=True) if v]
        if nine:
            axis.plot(*zip(*nine, strict=True), "s--", color="#222222", label="nine of three kinds")
        axis.set(xlabel="test accuracy (%)", ylabel="images on which not all agree (%)", ylim=(0, None))
        axis.legend()
        return {"between": sheet, "disagreement": curves, "for-people": shuffled(images)}


def shuffled(images: np.ndarray) -> Any:
    """A sheet for people: the images in random order, each with the number by which a file of labels calls it."""
    order = np.random.default_rng(0).permutation(len(images))
    return tiled(images[order], [f"{k + 1}" for k in order])


def tiled(images: np.ndarray, texts: Sequence[str]) -> Any:
    """Rows of eleven images, each with a text above it."""
    figure, panel = subplots(figsize=(7.5, 12))
    cells = np.full((len(WAYS), 36, POINTS, 30), 1.0)  # a frame around every image, with room for texts above it
    cells[:, 8:, :, 1:29] = images.reshape(len(WAYS), POINTS, 28, 28).transpose(0, 2, 1, 3)
    panel.imshow(cells.reshape(len(WAYS) * 36, POINTS * 30), cmap="gray")
    panel.set_axis_off()
    for k, text in enumerate(texts):
        panel.text(k % POINTS * 30 + 15, k // POINTS * 36 + 4, text, ha="center", va="center", fontsize=7)
    return figure
