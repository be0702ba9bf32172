"""Figures 6.1B to 6.10 and Tables 6.2, 6.3: what starts, data, optimizer and model do to the line from start to end.

A small residual network with BatchNorm on CIFAR-10, SGD with momentum.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure import between, random_labels, transplant
from tether_studies import drawing
from tether_studies.blocks import BLOCKS, Training, halved, lines, residual, train
from tether_studies.drawing import WHOLE
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED, Judgement, every, less, more, plus_minus, undecided, yes
from tether_studies.lines import (
    ACCURACY,
    BARRIER,
    DISTANCE,
    SHAPES,
    State,
    all_are,
    counted,
    gathered,
    graded,
    state_of,
)
from tether_studies.quantities import within

CONVOLUTIONAL = BLOCKS[:4]
BASE, PLAIN = "scratch", "scratch, no decay"
PRETRAINED, RANDOM = "pre-trained", "random labels, no decay"
TOP, BEFORE, AFTER = "top", "before the top", "after the top"
PARTIAL = {block: f"trained but {block}" for block in CONVOLUTIONAL}
ADVERSE = {block: f"random labels in {block}, no decay" for block in CONVOLUTIONAL}
STARTS = [BASE, PLAIN, PRETRAINED, RANDOM, TOP, BEFORE, AFTER, *PARTIAL.values(), *ADVERSE.values()]


def higher(found: Results, a: str, b: str) -> Judgement:
    """Has a the higher accuracy?"""
    return ACCURACY.more(found, a, b)[1]


def often(judged: dict[str, Judgement]) -> Judgement:
    """Held if most judgements are, not held if most are not."""
    verdicts, whole = [one.verdict for one in judged.values()], every(judged)
    found = next((one for one in (HELD, NOT_HELD) if verdicts.count(one) > len(verdicts) / 2), UNDECIDED)
    return whole._replace(verdict=found)


@study("fig-6.2", "thesis, Figures 6.2–6.5, 6.12, Tables 6.1, 6.3", ("cifar10",))
class OtherStarts(Experiment):
    """where training starts changes the line and the accuracy

    Starts: torch's own; a network trained on other pictures; one trained on random labels; states on the line of a
    first run, at the top of its barrier, before and after; a trained network with one block as it began; and a fresh
    one with one block trained on random labels.

    The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs and pre-trains on ImageNet. Here a network with four
    blocks learns 2,500 pictures of 16 × 16 pixels without augmentation; pre-training is on 7,500 others of the same
    set. Where no line has a barrier, its top is the highest point of the line.
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
        one early block from random labels lowers accuracy
            | Figure 6.5: lower for the first blocks, slightly higher for block 4
    """
    label = "start"
    columns = (SHAPES, BARRIER, ACCURACY, DISTANCE)
    caption = "Means ± standard errors"
    runs: int = at(4, quick=2, full=10)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=300, full=5000)
    other: int = at(7500, quick=300, full=5000)  # pictures to pre-train on
    test: int = at(2000, quick=100, full=5000)
    steps: int = at(400, quick=6, full=7800)
    long: int = at(1200, quick=6, full=20_000)  # steps on random labels
    points: int = at(26, quick=4)
    decay: float = 5e-4

    def run(self, lab: Lab) -> Results:
        """All starts of a run in one piece: most of them need the first ones' ends."""
        return lab.each([f"run {i}" for i in range(self.runs)], lambda name: self.piece(lab.named_seed(name)))

    def piece(self, seed: int) -> Results:
        """Train from every start; lines, accuracies and distances by the name of the start."""
        torch.manual_seed(seed)
        net = residual(self.width)
        fresh = state_of(net)
        data, test = halved(True, 0, self.images), halved(False, 0, self.test)
        decayed, plain = (Training(self.steps, decay=x, augment=False) for x in (self.decay, 0.0))
        found: Results = {}

        def learn(name: str, start: State, training: Training = decayed) -> State:
            net.load_state_dict(start)
            end = train(net, data, training, seed)
            whole = lines(net, start, end, test, self.points, blocks=False)
            found.update({f"{name}: {key.removeprefix('net: ')}": value for key, value in whole.items()})
            return end

        end = learn(BASE, fresh)
        without = learn(PLAIN, fresh, plain)
        learn(PRETRAINED, self.elsewhere(net, fresh, seed))
        noisy = self.scrambled(net, fresh, data, seed, found)
        learn(RANDOM, noisy, plain)
        top = float(np.argmax(found[f"{PLAIN}: losses"][0])) / (self.points - 1)
        found["alpha"] = top
        for name, shift in ((TOP, 0.0), (BEFORE, -0.1), (AFTER, 0.1)):
            learn(name, between(fresh, without, min(1.0, max(0.0, top + shift))), plain)
        for block in CONVOLUTIONAL:
            learn(PARTIAL[block], transplant(end, fresh, f"{block}.*"))
            learn(ADVERSE[block], transplant(fresh, noisy, f"{block}.*"), plain)
        return found

    def elsewhere(self, net: nn.Sequential, fresh: State, seed: int) -> State:
        """A state trained on other pictures, with a fresh last layer as for another task."""
        net.load_state_dict(fresh)
        other = halved(True, self.images, self.images + self.other)
        return transplant(train(net, other, Training(2 * self.steps), seed + 1), fresh, "fc.*")

    def scrambled(self, net: nn.Sequential, fresh: State, data: Any, seed: int, found: Results) -> State:
        """A state trained on random labels; `found` is told how many of them it knows."""
        net.load_state_dict(fresh)
        labels = random_labels(data[1], 10, seed=seed)
        state = train(net, (data[0], labels), Training(self.long, lr=0.05, decay=0.0, augment=False), seed + 2)
        with torch.no_grad():
            found["random labels known"] = 100 * float((net(data[0]).argmax(1) == labels).float().mean())
        return state

    def tabled(self, results: Results) -> dict[str, Results]:
        keys = ("losses", "accuracy", "distance")
        return {name: graded({key: gathered(results, f"{name}: {key}") for key in keys}) for name in STARTS}

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        told, right, tall = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY, BARRIER))
        better = {"accuracy": higher(found, PRETRAINED, BASE)}
        better["monotone"] = all_are("monotone", found[PRETRAINED]["shapes"])
        yield f"{told[PRETRAINED]}; {right[PRETRAINED]} against {right[BASE]} % ({told[BASE]})", every(better)
        known = np.mean([float(one["random labels known"]) for one in results.values()])
        worse = {"accuracy": higher(found, PLAIN, RANDOM)}
        worse["barrier"] = BARRIER.more(found, RANDOM, PLAIN)[1]
        said = f"{right[RANDOM]} against {right[PLAIN]} %, barrier {tall[RANDOM]} against {tall[PLAIN]}"
        yield f"{said}; {known:.0f} % of the random labels known", every(worse)
        heights = found[PLAIN]["barriers"]
        barred = int((heights > 0).sum())
        some = yes(True, f"{barred} of {self.runs} runs") if barred else undecided("in no run")
        yield f"{told[PLAIN]}, the highest rises by {heights.max():.2f}", some
        gone = {"accuracy": higher(found, TOP, PLAIN), "no barrier": BARRIER.less(found, TOP, PLAIN)[1]}
        yield f"{right[TOP]} against {right[PLAIN]} %; {told[TOP]}", every(gone)
        said = ", ".join(f"{name} {right[name]} %" for name in (BEFORE, AFTER))
        yield said, every({name: higher(found, name, PLAIN) for name in (BEFORE, AFTER)})
        said = ", ".join(f"{block} {right[name]}" for block, name in PARTIAL.items())
        lower = {block: higher(found, BASE, name) for block, name in PARTIAL.items()}
        yield f"{said} %, {right[BASE]} % from scratch", often(lower)
        said = ", ".join(f"{block} {right[name]}" for block, name in ADVERSE.items())
        lower = {block: higher(found, PLAIN, ADVERSE[block]) for block in CONVOLUTIONAL[:3]}
        yield f"{said} %, {right[PLAIN]} % from scratch", every(lower)

    def draw(self, results: Results) -> Figures:
        shown = {
            "pre-training, random labels (Figure 6.2)": [BASE, PRETRAINED, PLAIN, RANDOM],
            "starts on the line (Figures 6.3, 6.12)": [PLAIN, TOP, BEFORE, AFTER],
            "all but one block trained (Figure 6.4)": [BASE, *PARTIAL.values()],
            "one block from random labels (Figure 6.5)": [PLAIN, *ADVERSE.values()],
        }
        found = self.tabled(results)
        groups = {title: {name: found[name]["losses"] for name in names} for title, names in shown.items()}
        return {"starts": drawing.lines(groups, 2, mean=True)[0]}


DECAYS, RATES = (0.0, 1e-4, 5e-4, 5e-3), (0.1, 0.01, 0.001)
ALL, FEWER, STILL, DEEPER, UNNORMED = "base", "fewer pictures", "no augmentation", "deeper", "no BatchNorm"
SLOW_HIGH, SLOW_LOW = "h = 0.01 for resisting", "h = 0.01 for others"


def unreliable(found: dict[str, Results]) -> tuple[str, Judgement]:
    """The accuracies of each shape; do those of two overlap, each spread over more than the other's worst?"""
    said, right = (np.concatenate([one[key] for one in found.values()]) for key in ("shapes", "accuracy"))
    ranges = {shape: right[said == shape] for shape in np.unique(said)}
    text = ", ".join(f"{shape}: {x.min():.1f} to {x.max():.1f} % ({len(x)} lines)" for shape, x in ranges.items())
    several = [x for x in ranges.values() if len(x) > 1]
    if len(several) < 2:
        return text, undecided("all lines have one shape")
    overlap = max(x.min() for x in several) < min(x.max() for x in several)
    return text, yes(bool(overlap), f"ranges of accuracy {'' if overlap else 'do not '}overlap")


@study("fig-6.6", "thesis, Figures 6.1B, 6.6–6.10, 6.19, Tables 6.1, 6.2", ("cifar10",))
class Influences(Experiment):
    """data, optimizer and model shape the line, which does not tell the accuracy

    One thing is changed at a time: fewer pictures, no augmentation, other weight decays, step sizes that stay, smaller
    ones in some blocks, no BatchNorm, more blocks.

    The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs; here a network with four blocks sees 10,000
    pictures of 16 × 16 pixels for three epochs. Blocks with barriers are those whose lines have one in most runs or, if
    none has, the two whose lines climb highest above their ends. VGG-11 (Tables 6.2, 6.4) is left out.
    """

    says = """
        the loss of the whole network stays on a plateau until near the end
            | Figure 6.1B: plateau at the level of chance, 92.2 % accuracy
        its blocks take a variety of shapes | Figure 6.1B: barriers, monotone decay
        fewer pictures make the line monotone and lower accuracy | Figure 6.6: monotone decay, lower accuracy
        without augmentation barriers of blocks and accuracy are lower
            | Figure 6.6: lower layer-wise barriers, lower accuracy
        large weight decay makes a plateau with a sudden drop
            | Figure 6.7: monotone at 1e-4, plateau at 5e-4 and beyond
        larger step sizes go farther | distance 1.03, 0.88, 0.22 for h = 0.1, 0.01, 0.001
        the middle step size is the most accurate, and the one whose line is not monotone
            | Figure 6.8: h = 0.01 has a plateau and the highest accuracy, 0.1 and 0.001 are monotone
        blocks with barriers need the large step size, the others do not
            | Table 6.2: 91.8 ± 0.2 % with 0.1 for blocks with barriers, 90.1 ± 0.2 % with 0.1 for the others
        depth raises the barriers of blocks and accuracy | Figure 6.10: higher barriers, better accuracy
        without BatchNorm the line is monotone | Section 6.1.10.6: monotone decay, lower accuracy
        the shape of the line does not tell the test accuracy | not a reliable indicator of test accuracy (6.1.9)
    """
    label = "case"
    columns = (SHAPES, ACCURACY, DISTANCE)
    caption = "Means ± standard errors"
    runs: int = at(4, quick=2, full=10)
    width: int = at(8, quick=2, full=64)
    images: int = at(10_000, quick=300)
    fewer: int = at(1000, quick=100)
    test: int = at(2000, quick=100, full=5000)
    steps: int = at(450, quick=4, full=15_600)
    points: int = at(26, quick=4, full=51)
    depth: int = at(2, full=4)  # blocks in each group of the deeper network

    def cases(self) -> dict[str, tuple[Training, dict[str, Any]]]:
        """Ways to train, and what else differs from the base; those of Table 6.2 depend on where barriers are."""
        base = Training(self.steps)
        found: dict[str, tuple[Training, dict[str, Any]]] = {ALL: (base, {}), FEWER: (base, {"images": self.fewer})}
        found[STILL] = replace(base, augment=False), {}
        for decay in DECAYS:
            if decay != base.decay:
                found[f"decay {decay:g}"] = replace(base, decay=decay), {"blocks": False}
        for rate in RATES:
            found[f"fixed h = {rate:g}"] = replace(base, lr=rate, drops=False), {"blocks": False}
        found["h = 0.01"] = replace(base, lr=0.01), {}
        found[UNNORMED] = replace(base, lr=0.02), {"norm": False}
        found[DEEPER] = base, {"depth": self.depth}
        return found

    def run(self, lab: Lab) -> Results:
        """Every case, run by run; then smaller steps for the blocks whose lines resist most, and for the others."""

        def done(cases: dict[str, tuple[Training, dict[str, Any]]]) -> Results:
            pairs = [(name, i) for name in cases for i in range(self.runs)]
            return lab.each(pairs, lambda pair: self.piece(lab.named_seed(f"run {pair[1]}"), *cases[pair[0]]))

        cases = self.cases()
        high = self.resisting(self.tabled(done(cases)))
        for name, slow in ((SLOW_HIGH, high), (SLOW_LOW, [block for block in BLOCKS if block not in high])):
            cases[name] = replace(cases[ALL][0], rates=tuple((block, 0.01) for block in slow)), {}
        return done(cases)

    def piece(self, seed: int, training: Training, case: dict[str, Any]) -> Results:
        """Lines, accuracy and distance of one run; run i of all cases has the same start and minibatches."""
        torch.manual_seed(seed)
        net = residual(self.width, case.get("depth", 1), case.get("norm", True))
        start = state_of(net)
        end = train(net, halved(True, 0, case.get("images", self.images)), training, seed)
        return lines(net, start, end, halved(False, 0, self.test), self.points, case.get("blocks", True))

    def tabled(self, results: Results) -> dict[str, Results]:
        """What the runs of every case found, that of the whole network also by itself."""
        cases = {name: within(results, name) for name, _ in results}
        keys = {name: next(iter(runs.values())) for name, runs in cases.items()}
        return {x: graded({key.removeprefix("net: "): gathered(cases[x], key) for key in keys[x]}) for x in cases}

    def resisting(self, found: dict[str, Results]) -> list[str]:
        """The blocks whose lines have barriers in most runs; if none has, the two whose lines climb highest."""
        base = found[ALL]
        barred = [b for b in BLOCKS if (base[f"{b}: shapes"] == "barrier").mean() > 0.5]
        lines = {block: base[f"{block}: losses"] for block in CONVOLUTIONAL}
        heights = {block: (losses.max(1) - losses[:, -1]).mean() for block, losses in lines.items()}
        return barred or sorted(sorted(heights, key=lambda block: -heights[block])[:2])

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        told, right, far = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY, DISTANCE))
        shape = {name: one["shapes"] for name, one in found.items()}
        walls = {  # the mean over the four blocks, run by run
            name: np.mean([found[name][f"{block}: barriers"] for block in CONVOLUTIONAL], axis=0)
            for name in (ALL, FEWER, STILL, DEEPER)
        }

        def against(name: str) -> str:
            pairs = f"{right[name]} against {right[ALL]} %, barriers"
            return f"{pairs} {plus_minus(walls[name], 2)} against {plus_minus(walls[ALL], 2)}"

        yield f"{told[ALL]}; accuracy {right[ALL]} %", all_are("plateau", shape[ALL])
        of_blocks = {block: found[ALL][f"{block}: shapes"] for block in BLOCKS}
        seen = {str(x) for one in of_blocks.values() for x in one}
        said = "; ".join(f"{block}: {counted(x)}" for block, x in of_blocks.items())
        yield said, yes("barrier" in seen and len(seen) > 1, ", ".join(sorted(seen)))
        judged = {"accuracy": higher(found, ALL, FEWER), "monotone": all_are("monotone", shape[FEWER])}
        yield f"{told[FEWER]}; {right[FEWER]} against {right[ALL]} %", every(judged)
        judged = {"accuracy": higher(found, ALL, STILL), "barriers": less(walls[STILL], walls[ALL])}
        yield against(STILL), every(judged)
        decays = {"1e-4": ("decay 0.0001", "monotone"), "5e-4": (ALL, "plateau"), "5e-3": ("decay 0.005", "plateau")}
        said = "; ".join(f"{label}: {told[name]}" for label, (name, _) in decays.items())
        yield said, every({label: all_are(kind, shape[name]) for label, (name, kind) in decays.items()})
        fixed = {f"{rate:g}": f"fixed h = {rate:g}" for rate in RATES}
        large, middle, small = fixed.values()
        farther = {"0.1, 0.01": DISTANCE.more(found, large, middle)[1]}
        farther["0.01, 0.001"] = DISTANCE.more(found, middle, small)[1]
        yield ", ".join(f"{far[name]} for {rate}" for rate, name in fixed.items()), every(farther)
        judged = {"above 0.1": higher(found, middle, large), "above 0.001": higher(found, middle, small)}
        judged |= {"0.1": all_are("monotone", shape[large]), "0.001": all_are("monotone", shape[small])}
        said = "; ".join(f"{rate}: {right[name]} %, {told[name]}" for rate, name in fixed.items())
        yield said, every(judged)
        said = f"{right[SLOW_LOW]} % with 0.1 for {', '.join(self.resisting(found))}, {right[SLOW_HIGH]} % with 0.1 for"
        said += f" the others; all 0.1: {right[ALL]}, all 0.01: {right['h = 0.01']} %"
        yield said, higher(found, SLOW_LOW, SLOW_HIGH)
        judged = {"accuracy": higher(found, DEEPER, ALL), "barriers": more(walls[DEEPER], walls[ALL])}
        yield against(DEEPER), every(judged)
        judged = {"monotone": all_are("monotone", shape[UNNORMED]), "accuracy": higher(found, ALL, UNNORMED)}
        yield f"{told[UNNORMED]}; {right[UNNORMED]} against {right[ALL]} %", every(judged)
        yield unreliable(found)

    def draw(self, results: Results) -> Figures:
        """Figures 6.6 and 6.10 block by block, 6.7 and 6.8 for the whole network."""
        found = self.tabled(results)
        groups = {}
        for name, number in {ALL: "6.1B", FEWER: "6.6", STILL: "6.6", DEEPER: "6.10"}.items():
            blocks = {block: found[name][f"{block}: losses"] for block in BLOCKS}
            groups[f"{name} ({number})"] = {**blocks, WHOLE: found[name]["losses"]}
        decays = {f"{x:g}": ALL if x == 5e-4 else f"decay {x:g}" for x in DECAYS}
        rates = {f"h = {x:g}": f"fixed h = {x:g}" for x in RATES}
        for title, names in (("weight decay (6.7)", decays), ("fixed step size (6.8)", rates)):
            groups[title] = {label: found[name]["losses"] for label, name in names.items()}
        return {"influences": drawing.lines(groups, 3, mean=True)[0]}
