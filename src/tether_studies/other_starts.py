"""Figures 6.2 to 6.5, 6.12, 6.13 and Table 6.3: what the start of training does to the line from it to the end.

A small residual network with BatchNorm on CIFAR-10, SGD with momentum.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure import between, random_labels, transplant
from tether_studies import drawing
from tether_studies.blocks import BLOCKS, Training, halved, lines, residual, train
from tether_studies.cases import higher
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.images import Pair, tested
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED, Judgement, every, undecided, yes
from tether_studies.lines import (
    ACCURACY,
    BARRIER,
    DISTANCE,
    LOW,
    SHAPES,
    SLACK,
    State,
    all_are,
    climb,
    gathered,
    graded,
    state_of,
)
from tether_studies.precision import casting

__all__ = [
    "BARRED",
    "CONVOLUTIONAL",
    "PARTIAL",
    "PLAIN",
    "RANDOM",
    "SCRATCH",
    "TOP",
    "OtherStarts",
    "RandomBlocks",
    "often",
]

CONVOLUTIONAL = BLOCKS[:4]
BASE, PLAIN = "scratch", "scratch, no decay"
PRETRAINED, RANDOM = "pre-trained", "random labels, no decay"
TOP, BEFORE, AFTER = "top", "before the top", "after the top"
BARRED = "scratch, no decay, runs with a barrier"
PARTIAL = {block: f"trained but {block}" for block in CONVOLUTIONAL}
STARTS = [BASE, PLAIN, PRETRAINED, RANDOM, TOP, BEFORE, AFTER, *PARTIAL.values()]
PUBLISHED = {  # accuracies in Table 6.3, and their ±
    PLAIN: (90.01, 0.39),
    BEFORE: (91.05, 0.21),
    TOP: (91.12, 0.18),
    AFTER: (90.85, 0.17),
}
KEYS = ("losses", "accuracy", "distance")
KNOWN = 99.9  # per cent of random labels that are as good as all


def often(judged: dict[str, Judgement]) -> Judgement:
    """Held if most judgements are, not held if most are not."""
    verdicts, whole = [one.verdict for one in judged.values()], every(judged)
    found = next((one for one in (HELD, NOT_HELD) if verdicts.count(one) > len(verdicts) / 2), UNDECIDED)
    return whole._replace(verdict=found)


def top_of(losses: np.ndarray) -> float | None:
    """The α of the top of a line's barrier; None if it has none.

    >>> top_of(np.array([2.0, 1.0, 4.0, 0.5, 0.7])), top_of(np.array([2.0, 1.0, 0.5]))
    (0.5, None)
    """
    height = climb(losses[None])[0]
    if not height > SLACK * np.abs(losses).max():
        return None
    rises = losses - np.minimum.accumulate(losses)
    return float(np.argmax(np.isclose(rises, height))) / (len(losses) - 1)


class Starts(Experiment):
    """Runs of a small network from several starts, the run's own all in one piece: most need the ends of others."""

    runs: int
    width: int
    images: int
    test: int
    epochs: int
    noisy: int
    points: int
    precision: str

    def run(self, lab: Lab) -> Results:
        return lab.each([f"run {i}" for i in range(self.runs)], lambda name: self.piece(lab.named_seed(name)))

    def piece(self, seed: int) -> Results:
        """Train from every start; lines, accuracies and distances by the name of the start."""
        raise NotImplementedError

    def sets(self) -> tuple[Pair, Pair]:
        """Pictures to train on, and to test with."""
        return halved(True, 0, self.images), halved(False, 0, self.test)

    def usual(self, **changes: Any) -> Training:
        """How networks are trained if nothing is said."""
        return replace(Training(self.epochs, augment=False, precision=self.precision), **changes)

    def learn(self, net: nn.Sequential, start: State, training: Training, seed: int) -> tuple[State, Results]:
        """The end of a run, and what a table has of it."""
        data, test = self.sets()
        net.load_state_dict(start)
        end = train(net, data, training, seed)
        whole = lines(net, start, end, test, self.points, precision=self.precision)
        return end, {key.removeprefix("net: "): value for key, value in whole.items()}

    def scrambled(self, net: nn.Sequential, fresh: State, seed: int) -> tuple[State, float]:
        """A state trained on random labels until all are known or the time is over; how many are, in per cent."""
        (x, y), _ = self.sets()
        net.load_state_dict(fresh)
        data, known = (x, random_labels(y, 10, seed=seed)), 0.0
        few = self.usual(epochs=10, lr=0.05, decay=0.0, drops=())
        for i in range(max(1, self.noisy // 10)):
            last = i + 1 >= self.noisy // 10
            state = train(net, data, replace(few, lr=0.005) if last or known > 95 else few, seed + 2 + i)
            with casting(self.precision):
                known = tested(net, *data)[1]
            if known >= KNOWN:
                break
        return state, known


@study("fig-6.2", "thesis, Figures 6.2B, 6.3, 6.4 (T rows), 6.12, Table 6.3", ("cifar10",))
class OtherStarts(Starts):
    """where training starts changes the line and the accuracy

    Starts: torch's own; a network trained on other pictures; one trained on random labels; states on the line of a
    first run, at the top of its barrier, before and after; and a trained network with one block as it began. After
    pre-training h = 0.001, dropped once (§6.1.3.1).

    The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs and pre-trains on ImageNet (that is fig-6.4). Here a
    network with four blocks learns 2,500 pictures of 16 × 16 pixels without augmentation, in batches of 128;
    pre-training is on 7,500 others of the same set. As in the thesis only runs whose lines have a barrier start again
    from its top. Random labels are learnt until 99.9 % are known, or for 200 epochs. Convolutions compute in bfloat16
    where the processor does (`precision`), with weights and momenta in float32.
    """

    says = """
        pre-training improves test accuracy and leaves no barrier or plateau
            | Figure 6.2A: monotone decay, higher accuracy (ImageNet)
        a start on random labels lowers accuracy and raises the barrier
            | Figure 6.2B: lower accuracy, higher barriers (no weight decay)
        without weight decay some lines have barriers | Figures 6.3, 6.7: barriers for some random seeds
        a start at the top of the barrier has none, and improves accuracy
            | Figure 6.3, Table 6.3: 91.12 ± 0.18 % against 90.01 ± 0.39 %, monotone decay
        and so do starts before and after it | Table 6.3: 91.05 ± 0.21 % and 90.85 ± 0.17 %
        partial training often lowers test accuracy
            | Figure 6.4: 91.79, 91.83, 92.35, 90.97 % with block 1 to 4 reset, 92.2 % from scratch
    """
    label = "start"
    columns = (SHAPES, BARRIER, ACCURACY, DISTANCE)
    caption = "Means ± standard errors"
    runs: int = at(4, quick=2, long=20, full=20)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=128, full=40_000)
    other: int = at(7500, quick=128, full=10_000)  # pictures to pre-train on
    test: int = at(2000, quick=50, full=5000)
    epochs: int = at(30, quick=1, full=100)
    noisy: int = at(200, quick=10, full=500)  # epochs on random labels, at most
    points: int = at(26, quick=4, full=51)
    tuned: float = 0.001  # the step size after pre-training
    precision: str = "auto"

    def piece(self, seed: int) -> Results:
        torch.manual_seed(seed)
        net = residual(self.width)
        fresh, decayed, plain = state_of(net), self.usual(), self.usual(decay=0.0)
        found: Results = {}

        def learn(name: str, start: State, training: Training) -> State:
            end, line = self.learn(net, start, training, seed)
            found.update({f"{name}: {key}": value for key, value in line.items()})
            return end

        end = learn(BASE, fresh, decayed)
        without = learn(PLAIN, fresh, plain)
        learn(PRETRAINED, self.elsewhere(net, fresh, seed), self.usual(lr=self.tuned, drops=(0.3,)))
        noisy, found["random labels known"] = self.scrambled(net, fresh, seed)
        learn(RANDOM, noisy, plain)
        alpha = top_of(found[f"{PLAIN}: losses"][0])
        if alpha is not None:
            for name, shift in ((TOP, 0.0), (BEFORE, -0.1), (AFTER, 0.1)):
                learn(name, between(fresh, without, min(1.0, max(0.0, alpha + shift))), plain)
        for block in CONVOLUTIONAL:
            learn(PARTIAL[block], transplant(end, fresh, f"{block}.*"), decayed)
        return found

    def elsewhere(self, net: nn.Sequential, fresh: State, seed: int) -> State:
        """A state trained on other pictures, with a fresh last layer as for another task."""
        net.load_state_dict(fresh)
        other = halved(True, self.images, self.images + self.other)
        return transplant(train(net, other, self.usual(augment=True), seed + 1), fresh, "fc.*")

    def tabled(self, results: Results) -> dict[str, Results]:
        """By start, of the runs that have it: those from the top of a barrier are fewer and have their own base."""
        runs = {name: (name, [one for one in results.values() if f"{name}: accuracy" in one]) for name in STARTS}
        runs[BARRED] = PLAIN, runs[TOP][1]
        return {
            name: graded({key: gathered(having, f"{start}: {key}") for key in KEYS})
            for name, (start, having) in runs.items()
            if having
        }

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        told, right, tall = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY, BARRIER))
        better = {"accuracy": higher(found, PRETRAINED, BASE)}
        better["monotone"] = all_are("monotone", found[PRETRAINED]["shapes"])
        yield f"{told[PRETRAINED]}; {right[PRETRAINED]} against {right[BASE]} % ({told[BASE]})", every(better)
        known = np.mean([float(one["random labels known"]) for one in results.values()])
        worse = {"accuracy": higher(found, PLAIN, RANDOM)}
        worse["barrier"] = BARRIER.more(found, RANDOM, PLAIN, least=LOW)[1]
        said = f"{right[RANDOM]} against {right[PLAIN]} %, barrier {tall[RANDOM]} against {tall[PLAIN]}"
        yield f"{said}; {known:.0f} % of the random labels known", every(worse)
        heights, barred = found[PLAIN]["barriers"], int((found[PLAIN]["shapes"] == "barrier").sum())
        some = yes(True, f"{barred} of {self.runs} runs") if barred else undecided("in no run")
        yield f"{told[PLAIN]}, the highest rises by {heights.max():.2f}", some
        yield from self.on_the_line(found)
        said = ", ".join(f"{block} {right[name]}" for block, name in PARTIAL.items())
        lower = {block: higher(found, BASE, name) for block, name in PARTIAL.items()}
        yield f"{said} %, {right[BASE]} % from scratch", often(lower)

    def on_the_line(self, found: dict[str, Results]) -> Found:
        """Starts at, before and after the top of a barrier, against those runs from scratch that have one."""
        if TOP not in found:
            yield from [("no line has a barrier to start from", undecided("barriers in no run"))] * 2
            return
        right = {name: ACCURACY.cell(found[name]) for name in (BARRED, TOP, BEFORE, AFTER)}
        half = {name: (PUBLISHED[name][0] - PUBLISHED[PLAIN][0]) / 2 for name in (TOP, BEFORE, AFTER)}
        better = {name: higher(found, name, BARRED, least) for name, least in half.items()}
        gone = {"accuracy": better[TOP], "no barrier": BARRIER.less(found, TOP, BARRED, least=LOW)[1]}
        yield f"{right[TOP]} against {right[BARRED]} %; {SHAPES.cell(found[TOP])}", every(gone)
        said = ", ".join(f"{name} {right[name]} %" for name in (BEFORE, AFTER))
        yield said, every({name: better[name] for name in (BEFORE, AFTER)})

    def draw(self, results: Results) -> Figures:
        shown = {
            "pre-training, random labels (Figure 6.2)": [BASE, PRETRAINED, PLAIN, RANDOM],
            "starts on the line (Figures 6.3, 6.12)": [PLAIN, TOP, BEFORE, AFTER],
            "all but one block trained (Figure 6.4)": [BASE, *PARTIAL.values()],
        }
        found = self.tabled(results)
        groups = {
            title: {name: found[name]["losses"] for name in names if name in found} for title, names in shown.items()
        }
        printed = {name: both for name, both in PUBLISHED.items() if name in found}
        accuracies = drawing.beside(printed, ACCURACY.of(found, printed), ACCURACY.name)
        return {"starts": drawing.lines(groups, 3, mean=True)[0], "accuracies": accuracies}


SCRATCH = "scratch"


@study("fig-6.5", "thesis, Figures 6.5, 6.13", ("cifar10",))
class RandomBlocks(Starts):
    """a block that begins from random labels lowers accuracy, early in the network

    One block begins as it was trained on random labels, the others afresh; then the whole network is trained, without
    weight decay and with 1e-4 and 5e-4.

    The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs. Here a network with four blocks learns 2,500
    pictures of 16 × 16 pixels without augmentation, in batches of 128. Random labels are learnt until 99.9 % are known,
    or for 200 epochs. Convolutions compute in bfloat16 where the processor does (`precision`), with weights and momenta
    in float32.
    """

    says = """
        without weight decay one early block from random labels lowers accuracy, block 4 does not
            | Figure 6.5: lower for the first blocks, slightly higher for block 4
        and its line is monotone where those of other blocks have barriers
            | Figure 6.5: monotonic decay for block 4 while others settings exhibit barriers
        similar results are obtained for different levels of weight decay
            | Figure 6.13: lower for the first blocks, slightly higher for block 4
        with decay 5e-4 the line from block 4 has a barrier, the others a plateau
            | Figure 6.13: a barrier while other settings exhibit a plateau (WD = 5e-4)
    """
    label = ("decay", "block from random labels")
    columns = (SHAPES, BARRIER, ACCURACY, DISTANCE)
    caption = "Means ± standard errors"
    runs: int = at(4, quick=2, long=30, full=20)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=128, full=40_000)
    test: int = at(2000, quick=50, full=5000)
    epochs: int = at(30, quick=1, full=100)
    noisy: int = at(200, quick=10, full=500)  # epochs on random labels, at most
    points: int = at(26, quick=4, full=51)
    decays: tuple[float, ...] = (0.0, 1e-4, 5e-4)
    precision: str = "auto"

    def piece(self, seed: int) -> Results:
        torch.manual_seed(seed)
        net = residual(self.width)
        fresh = state_of(net)
        noisy, known = self.scrambled(net, fresh, seed)
        found: Results = {"random labels known": known}
        for decay, block in product(self.decays, (SCRATCH, *CONVOLUTIONAL)):
            start = fresh if block == SCRATCH else transplant(fresh, noisy, f"{block}.*")
            line = self.learn(net, start, self.usual(decay=decay), seed)[1]
            found.update({f"{decay:g}, {block}: {key}": value for key, value in line.items()})
        return found

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        names = product((f"{decay:g}" for decay in self.decays), (SCRATCH, *CONVOLUTIONAL))
        return {
            (decay, block): graded({key: gathered(results, f"{decay}, {block}: {key}") for key in KEYS})
            for decay, block in names
        }

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        by = {f"{d:g}": {block: found[f"{d:g}", block] for block in (SCRATCH, *CONVOLUTIONAL)} for d in self.decays}
        none, most = (f"{decay:g}" for decay in (self.decays[0], self.decays[-1]))
        yield ACCURACY.listed(by[none]), every(lowered(by[none]))
        yield shaped(by[none], "monotone", "barrier")
        judged = {f"{d}, {name}": one for d in list(by)[1:] for name, one in lowered(by[d]).items()}
        yield "; ".join(f"{d}: {ACCURACY.listed(by[d])}" for d in list(by)[1:]), every(judged)
        yield shaped(by[most], "barrier", "plateau")

    def draw(self, results: Results) -> Figures:
        found = self.tabled(results)
        groups = {
            f"weight decay {d:g} (Figure 6.13)": {x: found[f"{d:g}", x]["losses"] for x in (SCRATCH, *CONVOLUTIONAL)}
            for d in self.decays
        }
        return {"random-blocks": drawing.lines(groups, 3, mean=True)[0]}


def lowered(by: dict[str, Results]) -> dict[str, Judgement]:
    """Is accuracy lower from each of the first blocks, and higher from block 4 than from scratch?"""
    found = {block: higher(by, SCRATCH, block) for block in CONVOLUTIONAL[:2]}
    return found | {CONVOLUTIONAL[-1]: higher(by, CONVOLUTIONAL[-1], SCRATCH)}


def shaped(by: dict[str, Results], last: str, others: str) -> tuple[str, Judgement]:
    """Have lines from block 4 one shape, and those from all other blocks another?"""
    told = "; ".join(f"{block}: {SHAPES.cell(by[block])}" for block in CONVOLUTIONAL)
    judged = {block: all_are(others, by[block]["shapes"]) for block in CONVOLUTIONAL[:-1]}
    return told, every(judged | {CONVOLUTIONAL[-1]: all_are(last, by[CONVOLUTIONAL[-1]]["shapes"])})
