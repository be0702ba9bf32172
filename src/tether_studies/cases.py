"""One thing is changed at a time: how a small network is trained or built, and what that does to lines of loss."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tether_studies.blocks import Training, halved, lines, train
from tether_studies.drawing import WHOLE
from tether_studies.experiment import Experiment, Lab, Results
from tether_studies.judges import POINT, Judgement, more
from tether_studies.lines import ACCURACY, LOW, gathered, graded, state_of
from tether_studies.quantities import within

__all__ = ["BARE_HIGH", "BARE_LOW", "SLOW_HIGH", "SLOW_LOW", "Case", "Cases", "by_block", "higher", "split", "walls"]
__all__ += ["resisting", "taller"]

SLOW_HIGH, SLOW_LOW = "h = 0.01 for resisting", "h = 0.01 for others"
BARE_HIGH, BARE_LOW = "no decay for resisting", "no decay for others"


@dataclass(frozen=True)
class Case:
    """A network, how and on how many pictures it is trained, and of which groups of tensors lines are taken."""

    build: Callable[[], nn.Sequential]
    training: Training
    images: int
    groups: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    chosen: Sequence[str] = ()  # the blocks that earlier runs chose for it: its pieces are called after them


class Cases(Experiment):
    """Runs of several cases; run i of all of them has the same seed of start and minibatches."""

    runs: int
    test: int
    points: int
    precision: str

    def done(self, lab: Lab, cases: Mapping[str, Case]) -> Results:
        """All runs of all cases, by (name, run).

        More runs may choose other blocks. Then pieces that were done for the earlier choice are not taken for theirs.
        """
        called = {
            (name, i): (name, *(["+".join(case.chosen)] if case.chosen else []), i)
            for name, case in cases.items()
            for i in range(self.runs)
        }
        work = {called[name, i]: partial(self.piece, lab.named_seed(f"run {i}"), cases[name]) for name, i in called}
        found = lab.pieces(work)
        return {pair: found[called[pair]] for pair in called}

    def piece(self, seed: int, case: Case) -> Results:
        """Lines, accuracy and distance of one run."""
        torch.manual_seed(seed)
        net = case.build()
        start = state_of(net)
        end = train(net, halved(True, 0, case.images), replace(case.training, precision=self.precision), seed)
        test = halved(False, 0, self.test)
        return lines(net, start, end, test, self.points, case.groups, self.precision)

    def tabled(self, results: Results) -> dict[str, Results]:
        """What the runs of every case found, that of the whole network also by itself."""
        cases = {name: within(results, name) for name, _ in results}
        keys = {name: next(iter(runs.values())) for name, runs in cases.items()}
        return {x: graded({key.removeprefix("net: "): gathered(cases[x], key) for key in keys[x]}) for x in cases}


def higher(found: Mapping[str, Results], a: str, b: str, least: float = POINT) -> Judgement:
    """Has a the higher accuracy? `least` is that of the judge."""
    return ACCURACY.more(found, a, b, least=least)[1]


def resisting(base: Results, blocks: Sequence[str]) -> list[str]:
    """The blocks whose lines have barriers in most runs; if none has, the two whose lines are highest above the end."""
    barred = [block for block in blocks if (base[f"{block}: shapes"] == "barrier").mean() > 0.5]
    lines = {block: base[f"{block}: losses"] for block in blocks}
    heights = {block: float((losses.max(1) - losses[:, -1]).mean()) for block, losses in lines.items()}
    return barred or sorted(sorted(heights, key=lambda block: -heights[block])[:2], key=blocks.index)


def split(base: Case, high: Sequence[str], blocks: Iterable[str]) -> dict[str, Case]:
    """Table 6.2: a tenth of the step size, or no weight decay, in blocks with barriers or in all others."""
    low = [block for block in blocks if block not in high]
    found = {}
    for slow, bare, chosen in ((SLOW_HIGH, BARE_HIGH, high), (SLOW_LOW, BARE_LOW, low)):
        rates = tuple((block, base.training.lr / 10) for block in chosen)
        found[slow] = replace(base, training=replace(base.training, rates=rates), chosen=high)
        decays = tuple((block, 0.0) for block in chosen)
        found[bare] = replace(base, training=replace(base.training, decays=decays), groups={}, chosen=high)
    return found


def walls(found: Results, blocks: Sequence[str]) -> np.ndarray:
    """The mean height of the blocks' barriers, run by run."""
    return np.mean([found[f"{block}: barriers"] for block in blocks], axis=0)


def taller(a: Results, b: Results, blocks: Sequence[str]) -> Judgement:
    """Are the blocks' barriers higher in a? Not held where they differ by less than what counts as a barrier."""
    return more(walls(a, blocks), walls(b, blocks), least=LOW)


def by_block(found: Results, blocks: Sequence[str]) -> dict[str, Any]:
    """Lines of single blocks and of the whole network, to be drawn."""
    return {**{block: found[f"{block}: losses"] for block in blocks}, WHOLE: found["losses"]}
