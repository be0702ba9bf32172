"""Figures 6.1B, 6.6 to 6.10, 6.14 to 6.16, 6.18 and Table 6.2: what data, optimizer and model do to lines of loss.

A small residual network with BatchNorm on CIFAR-10, SGD with momentum.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tether_studies import drawing
from tether_studies.blocks import BLOCKS, Training, norm_groups, residual, unnormed
from tether_studies.cases import (
    BARE_HIGH,
    BARE_LOW,
    SLOW_HIGH,
    SLOW_LOW,
    Case,
    Cases,
    by_block,
    higher,
    resisting,
    split,
    taller,
    walls,
)
from tether_studies.experiment import Figures, Found, Lab, Results, at, study
from tether_studies.judges import Judgement, every, less, plus_minus, undecided, yes
from tether_studies.lines import ACCURACY, DISTANCE, SHAPES, all_are, counted

__all__ = ["ALL", "DEEPER", "FEWER", "STILL", "UNNORMED", "Influences"]

CONVOLUTIONAL = BLOCKS[:4]
DECAYS, RATES = (0.0, 1e-4, 5e-4, 5e-3), (0.1, 0.01, 0.001)
ALL, FEWER, STILL, DEEPER, UNNORMED = "base", "fewer pictures", "no augmentation", "deeper", "no BatchNorm"
BOTH, BRIGHTER, SLOW = "fewer pictures, no augmentation", "more augmentation", "h = 0.01"
GROUPS = ("convolutions", "BatchNorm weights", "running statistics")  # of the third block
THIRD = "B3"
PUBLISHED = {  # accuracies in Table 6.2, and their ±
    SLOW_LOW: (91.8, 0.2),
    SLOW_HIGH: (90.1, 0.2),
    BARE_LOW: (91.5, 0.2),
    BARE_HIGH: (90.1, 0.3),
    "decay 0": (90.1, 0.4),
}


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


def gap(found: Results, group: str) -> np.ndarray:
    """How far the line of a group of tensors lies from that of its whole block, on the mean, run by run."""
    return np.abs(found[f"{group}: losses"] - found[f"{THIRD}: losses"]).mean(1)


@study("fig-6.6", "thesis, Figures 6.1B, 6.6–6.10, 6.14–6.16A, 6.18, Table 6.2 (ResNet-18)", ("cifar10",))
class Influences(Cases):
    """data, optimizer and model shape the line, which does not tell the accuracy

    One thing is changed at a time: fewer pictures (for as many epochs), no augmentation or more, other weight decays,
    step sizes that stay, smaller ones or no decay in some blocks, no BatchNorm, more blocks. In the third block the
    running statistics, the other tensors of BatchNorm and the convolutions are also varied by themselves.

    The thesis trains a ResNet-18 on 50,000 pictures for 100 epochs; here a network with four blocks sees 2,500 pictures
    of 16 × 16 pixels for 30 epochs, in batches of 128. Blocks with barriers are those whose lines have one in most runs
    or, if none has, the two whose lines climb highest above their ends. Without BatchNorm convolutions have biases and
    Kaiming's start, and h = 0.05. More augmentation is brightness between 95 and 105 %, as in the thesis. Barriers that
    differ by less than 2 % of the loss of a guess, which is no barrier, do not differ. Convolutions compute in bfloat16
    where the processor does (`precision`), with weights and momenta in float32.
    """

    says = """
        the loss of the whole network stays on a plateau until near the end
            | Figure 6.1B: plateau at the level of chance, 92.2 % accuracy
        its blocks take a variety of shapes | Figure 6.1B: barriers, monotone decay
        fewer pictures make the line monotone and lower accuracy | Figure 6.6: monotone decay, lower accuracy
        without augmentation barriers of blocks and accuracy are lower
            | Figure 6.6: lower layer-wise barriers, lower accuracy
        fewer pictures without augmentation lower accuracy and barriers of blocks further
            | Figure 6.14: further reduces the test accuracy and presence of block-wise barriers
        more augmentation raises the barriers of blocks B2 and B3
            | Figure 6.15: the height of layer-wise barriers slightly increases (for B2 and B3)
        large weight decay makes a plateau with a sudden drop
            | Figure 6.7: monotone at 1e-4, plateau at 5e-4 and beyond
        larger step sizes go farther | distance 1.03, 0.88, 0.22 for h = 0.1, 0.01, 0.001
        the middle step size is the most accurate, and the one whose line is not monotone
            | Figure 6.8: h = 0.01 has a plateau and the highest accuracy, 0.1 and 0.001 are monotone
        a small step size in blocks with barriers removes these and lowers accuracy
            | Figures 6.9, 6.16A: removes those barriers, but also substantially lowers the test accuracy
        blocks with barriers need the large step size, the others do not
            | Table 6.2: 91.8 ± 0.2 % with 0.1 for blocks with barriers, 90.1 ± 0.2 % with 0.1 for the others
        blocks with barriers need weight decay, the others do not
            | Table 6.2: 91.5 ± 0.2 % with decay for blocks with barriers, 90.1 ± 0.3 % with decay for the others,
            90.1 ± 0.4 % without
        depth raises the barriers of blocks and accuracy | Figure 6.10: higher barriers, better accuracy
        without BatchNorm the line is monotone | Section 6.1.10.6: monotone decay, lower accuracy
        BatchNorm's running statistics govern the line of a block
            | Figure 6.18: appear to govern the behaviour of the full convolutional block
        the shape of the line does not tell the test accuracy | not a reliable indicator of test accuracy (6.1.9)
    """
    label = "case"
    columns = (SHAPES, ACCURACY, DISTANCE)
    caption = "Means ± standard errors"
    runs: int = at(4, quick=2, long=20, full=20)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=128, full=50_000)
    fewer: int = at(500, quick=64, full=5000)
    test: int = at(1000, quick=50, full=5000)
    epochs: int = at(30, quick=1, full=100)
    points: int = at(26, quick=4, full=51)
    depth: int = at(2, full=4)  # blocks in each group of the deeper network
    precision: str = "auto"

    def cases(self) -> dict[str, Case]:
        """All but those of Table 6.2, which depend on where barriers are."""
        build, blocks = partial(residual, self.width), {block: f"{block}.*" for block in BLOCKS}
        base = Case(build, Training(self.epochs), self.images, blocks)
        third = norm_groups(build(), THIRD)
        found = {ALL: replace(base, groups={**blocks, **third}), FEWER: replace(base, images=self.fewer)}

        def changed(case: Case = base, **changes: Any) -> Case:
            return replace(case, training=replace(case.training, **changes))

        found |= {STILL: changed(augment=False), BOTH: changed(found[FEWER], augment=False)}
        found[BRIGHTER] = changed(brightness=0.05)
        for decay in DECAYS:
            if decay != base.training.decay:
                found[f"decay {decay:g}"] = replace(changed(decay=decay), groups={})
        for rate in RATES:
            found[f"fixed h = {rate:g}"] = replace(changed(lr=rate, drops=()), groups={})
        found[SLOW] = replace(changed(lr=0.01), groups={})
        found[UNNORMED] = replace(changed(lr=0.05), build=lambda: unnormed(residual(self.width)))
        found[DEEPER] = replace(base, build=partial(residual, self.width, self.depth))
        return found

    def run(self, lab: Lab) -> Results:
        """Every case, run by run; then other settings for the blocks whose lines resist most, and for the others."""
        cases = self.cases()
        high = resisting(self.tabled(self.done(lab, cases))[ALL], CONVOLUTIONAL)
        return self.done(lab, cases | split(replace(cases[FEWER], images=self.images), high, BLOCKS))

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        yield from self.of_data(found)
        yield from self.of_the_optimizer(found)
        yield from self.of_the_model(found)
        yield unreliable(found)

    def of_data(self, found: dict[str, Results]) -> Found:
        told, right = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY))
        yield f"{told[ALL]}; accuracy {right[ALL]} %", all_are("plateau", found[ALL]["shapes"])
        of_blocks = {block: found[ALL][f"{block}: shapes"] for block in BLOCKS}
        seen = {str(x) for one in of_blocks.values() for x in one}
        said = "; ".join(f"{block}: {counted(x)}" for block, x in of_blocks.items())
        yield said, yes("barrier" in seen and len(seen) > 1, ", ".join(sorted(seen)))
        judged = {"accuracy": higher(found, ALL, FEWER), "monotone": all_are("monotone", found[FEWER]["shapes"])}
        yield f"{told[FEWER]}; {right[FEWER]} against {right[ALL]} %", every(judged)
        for name, other in ((STILL, ALL), (BOTH, FEWER)):
            lower = taller(found[other], found[name], CONVOLUTIONAL)
            yield against(found, name, other), every({"accuracy": higher(found, other, name), "barriers": lower})
        pairs = {block: [walls(found[name], [block]) for name in (BRIGHTER, ALL)] for block in ("B2", "B3")}
        said = ", ".join(f"{block} {plus_minus(a, 2)} against {plus_minus(b, 2)}" for block, (a, b) in pairs.items())
        yield f"barriers {said}", every({block: taller(found[BRIGHTER], found[ALL], [block]) for block in pairs})

    def of_the_optimizer(self, found: dict[str, Results]) -> Found:
        told, right, far = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY, DISTANCE))
        shape = {name: one["shapes"] for name, one in found.items()}
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
        high = resisting(found[ALL], CONVOLUTIONAL)
        gone = taller(found[ALL], found[SLOW_HIGH], high)
        yield against(found, SLOW_HIGH, ALL, high), every({"barriers": gone, "accuracy": higher(found, ALL, SLOW_HIGH)})
        yield table_of_two(found, high, SLOW_LOW, SLOW_HIGH, {"all 0.1": ALL, "all 0.01": SLOW}, "0.1")
        yield table_of_two(found, high, BARE_LOW, BARE_HIGH, {"decay in all": ALL, "in none": "decay 0"}, "decay")

    def of_the_model(self, found: dict[str, Results]) -> Found:
        told, right = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY))
        raised = taller(found[DEEPER], found[ALL], CONVOLUTIONAL)
        yield against(found, DEEPER, ALL), every({"accuracy": higher(found, DEEPER, ALL), "barriers": raised})
        judged = {"monotone": all_are("monotone", found[UNNORMED]["shapes"]), "accuracy": higher(found, ALL, UNNORMED)}
        yield f"{told[UNNORMED]}; {right[UNNORMED]} against {right[ALL]} %", every(judged)
        gaps = {group: gap(found[ALL], group) for group in GROUPS}
        nearer = {group: less(gaps[GROUPS[-1]], gaps[group]) for group in GROUPS[:-1]}
        said = ", ".join(f"{group} {plus_minus(x, 3)}" for group, x in gaps.items())
        yield f"mean distance from the line of the third block: {said}", every(nearer)

    def draw(self, results: Results) -> Figures:
        """Lines of blocks in Figures 6.6, 6.10, 6.14 to 6.16, of the whole network in 6.7, 6.8, of groups in 6.18."""
        found = self.tabled(results)
        shown = {ALL: "6.1B", FEWER: "6.6", STILL: "6.6", BOTH: "6.14", BRIGHTER: "6.15", SLOW_HIGH: "6.16A"}
        groups = {f"{x} ({number})": by_block(found[x], BLOCKS) for x, number in {**shown, DEEPER: "6.10"}.items()}
        decays = {f"{x:g}": ALL if x == 5e-4 else f"decay {x:g}" for x in DECAYS}
        rates = {f"h = {x:g}": f"fixed h = {x:g}" for x in RATES}
        for title, names in (("weight decay (6.7)", decays), ("fixed step size (6.8)", rates)):
            groups[title] = {label: found[name]["losses"] for label, name in names.items()}
        groups["third block (6.18)"] = {x: found[ALL][f"{x}: losses"] for x in (THIRD, *GROUPS)}
        accuracies = drawing.beside(PUBLISHED, ACCURACY.of(found, PUBLISHED), ACCURACY.name)
        return {"influences": drawing.lines(groups, 4, mean=True)[0], "accuracies": accuracies}


def against(found: dict[str, Results], name: str, other: str, blocks: Any = CONVOLUTIONAL) -> str:
    """Accuracies and barriers of blocks, side by side."""
    heights = [plus_minus(walls(found[x], blocks), 2) for x in (name, other)]
    right = [ACCURACY.cell(found[x]) for x in (name, other)]
    return f"{' against '.join(right)} %, barriers {' against '.join(heights)}"


def table_of_two(
    found: dict[str, Results], high: list[str], low: str, bare: str, rest: dict[str, str], what: str
) -> tuple[str, Judgement]:
    """Table 6.2: blocks with barriers trained as before and the others not, against the others as before."""
    right = {name: ACCURACY.cell(one) for name, one in found.items()}
    said = f"{right[low]} % with {what} for {', '.join(high)}, {right[bare]} % with {what} for the others; "
    said += ", ".join(f"{label}: {right[name]} %" for label, name in rest.items())
    return said, higher(found, low, bare, least=(PUBLISHED[low][0] - PUBLISHED[bare][0]) / 2)
