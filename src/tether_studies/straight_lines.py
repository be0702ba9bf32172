"""Figures 3.3 to 3.5, 6.1A and 6.17: the loss along straight lines from start to end, for digits and spirals."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

import tether
from tether.measure import linear_path, surface
from tether_studies.drawing import WHOLE, lines
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, recipe, study
from tether_studies.images import Pair, first_digits, perceptron
from tether_studies.judges import chosen, every, judging, less, more, near, plus_minus, yes
from tether_studies.lines import (
    BARRIER,
    RISE,
    SHAPES,
    SLACK,
    TENTH,
    TOLERANCE,
    UPTURN,
    all_are,
    by_layer,
    counted,
    line_of,
    packed,
    shapes_of,
    state_of,
)
from tether_studies.quantities import Quantity, of_key

Loss = Callable[..., torch.Tensor]
ADAM = recipe("Adam", lr=5e-4)
HEIGHT = Quantity("barrier", BARRIER.take, show=lambda x: f"{x.mean():.3g}")
WAY = Quantity(
    *("loss: start → top → end", lambda one: [one[key].mean() for key in ("start", "top", "end")]),
    show=lambda levels: " → ".join(f"{level:.3g}" for level in levels),
)


def spirals(count: int, seed: int, turns: int = 4) -> Pair:
    """A spiral, of four turns in (4.58), with targets for one logit."""
    x, y = tether.data.spiral(count, turns=turns, seed=seed)
    return x, y.float().unsqueeze(1)


def trained(nets: tether.Replicas, made: Recipe, data: Pair, loss: Loss, steps: int, batch: int, **options: Any) -> Any:
    """Train some networks where they stand; returns the states in which they begin and end."""
    start = state_of(nets)
    seed = options["seed"]
    tether.train(nets, made(nets, seed), data, loss, steps, batch, progress=False, **options)
    return start, nets.state_dict()


LINES = ("θ_i → θ_f", "θ'_i → θ_f", "θ_i → θ'_i")
LAYERS = ("layer 0", "layer 2", "layer 4")
SETS = ("MNIST", "spiral")


@study("fig-6.1", "thesis, Figure 6.1A", ("mnist",))
class StraightLines(Experiment):
    """from start to end the loss falls for digits and meets barriers on the spiral

    The network has two hidden layers of 50 ReLU nodes, trained by Adam with step size 5e-4 from torch's own start: on
    MNIST in batches of 128, on the spiral of four turns, of 10,000 points and 5,000 to test with, in batches of 500
    (§6.1.10.1). Lines of test loss run from each run's start θ_i to its end θ_f, from another start θ'_i to θ_f, and
    between the two starts; and one layer at a time goes from start to end with the others at their end (6.2).

    The thesis does not say how long these networks were trained: here ten epochs of MNIST, and the spiral until its
    test accuracy is 100 %. After half as many steps, at 99.8 %, one line in ten has no barrier yet.
    """

    says = """
        on MNIST the loss falls monotonically from start to end | Figure 6.1A, left: no barrier in 10 runs (blue)
        and so it does from any random initialization | Figure 6.1A, left: no barrier in 10 runs (green)
        the same network on the spiral meets barriers | Figure 6.1A, right: barriers (blue)
        which rise above the loss at initialization
            | Figure 6.1A, right: rising above the level of loss at initialization
        and even higher to other initializations | Figure 6.1A, right: green above blue
    """
    label = ("data", "line")
    columns = (SHAPES, TENTH, RISE, HEIGHT, UPTURN, WAY)
    caption = "Means over the runs"
    runs: int = at(10, quick=2)
    steps: int = at(4690, quick=100, full=46_900)  # on MNIST: ten epochs
    spiral_steps: int = at(40_000, quick=200, full=100_000)
    points: int = at(51, quick=11)  # of a line
    test: int = at(10_000, quick=500)  # images of MNIST

    def run(self, lab: Lab) -> Results:
        return lab.each(SETS, lambda name: self.piece(name, lab))

    def piece(self, name: str, lab: Lab) -> Results:
        """The lines of every run, by what they join and by layer."""
        seed, place = lab.named_seed(name), lab.checkpoint(name)
        loss: Loss
        if name == "MNIST":
            sizes, loss, batch, steps = (784, 50, 50, 10), cross_entropy, 128, self.steps
            data, test = first_digits(True, 60_000), first_digits(False, self.test)
        else:
            sizes, loss, batch, steps = (2, 50, 50, 1), bce, 500, self.spiral_steps
            data, test = spirals(10_000, seed), spirals(5_000, seed + 1)
        nets, others = (tether.Replicas(lambda: perceptron(*sizes), self.runs, seed=seed + k) for k in (0, 1))
        start, end = trained(nets, ADAM, data, loss, steps, batch, seed=seed, checkpoint=place)
        results, other = by_layer(nets, start, end, test, self.points, loss), others.state_dict()
        for line, ends in zip(LINES, ((start, end), (other, end), (start, other)), strict=True):
            results |= packed(line, linear_path(nets, *ends, test, self.points, loss=loss))
        return results

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        return {(name, line): line_of(results[name], line) for name, line in product(SETS, LINES + LAYERS)}

    def claims(self, results: Results) -> Found:
        found, (own, other, _) = self.tabled(results), LINES
        count = f"{self.runs} runs; {TOLERANCE}"
        for name, line, shape in (("MNIST", own, "monotone"), ("MNIST", other, "monotone"), ("spiral", own, "barrier")):
            one = found[name, line]
            accuracy = f"; test accuracy {one['accuracies'].mean():.1f} %" if line == own else ""
            yield counted(one["shapes"]) + accuracy, all_are(shape, one["shapes"], count)
        rises = RISE.take(found["spiral", own])
        said = f"by {rises.mean():.2f}, from {rises.min():.2f} to {rises.max():.2f}"
        yield said, more(rises, 0.0)
        near, far = (found["spiral", line]["barriers"] for line in (own, other))
        yield f"barriers of {far.mean():.2f} instead of {near.mean():.2f}", less(near, far)

    def draw(self, results: Results) -> Figures:
        """Figure 6.1A, and the layers below it."""
        layers = dict(zip(LAYERS, ("first layer", "second layer", "third layer"), strict=True))
        groups = {name: {line: results[name][f"{line}: losses"] for line in LINES} for name in SETS}
        for name in SETS:
            groups[f"{name}, by layer"] = {label: results[name][f"{x}: losses"] for x, label in layers.items()}
        return {"lines": lines(groups, 2)[0]}


EARLY, HIDDEN = 4, 6
SEVEN = tuple(f"layer {2 * i}" for i in range(HIDDEN + 1))


def barred(found: Results, layers: tuple[str, ...]) -> Any:
    """Of each run: on how many of these layers' lines there is a barrier, as a fraction."""
    return np.mean([shapes_of(found[f"{layer}: losses"]) == "barrier" for layer in layers], axis=0)


@study("fig-6.17", "thesis, Figure 6.17")
class Widths(Experiment):
    """wide layers remove the barriers of deep perceptrons on the spiral

    Six hidden layers of ReLU nodes, trained by Adam as in Figure 6.1A: all narrow, all wide, and wide where the narrow
    network's layers meet barriers (1 to 4) with the last ones narrower still.

    The thesis's wide layers have 500 nodes, its batches 500 points; it does not say how long it trains. A barrier is a
    rise of more than 2 % of the largest loss on the line. It is gone where its mean height is less than 2 % of the loss
    of a guess.
    """

    says = """
        all three networks learn the spiral | 100 % test accuracy
        early layers meet barriers, later ones fall monotonically
            | Figure 6.17, left: barriers in layers 1 to 4, none in layers 5 to 8
        the narrow network as a whole meets a barrier | Figure 6.17, left: a barrier for 50 nodes
        more nodes in all layers remove it | Figure 6.17, middle: none for 500 nodes
        and so do more nodes where barriers are, with fewer elsewhere
            | Figure 6.17, right: none for 500-500-500-500-25-25
    """
    label = ("network", "line")
    columns = (
        *(SHAPES, TENTH, RISE, HEIGHT, UPTURN),
        Quantity("loss at the start", lambda one: one["start"], show=lambda x: f"{x.mean():.3g}"),
    )
    caption = "Means over the runs"
    runs: int = at(20, quick=2)
    narrow: int = at(50, quick=20)
    wide: int = at(150, quick=40, full=500)
    last: int = at(25, quick=10)  # nodes of the last hidden layers of the third network
    steps: int = at(8000, quick=100, full=20_000)
    train: int = at(10_000, quick=1000)
    test: int = at(2000, quick=300, full=5000)
    batch: int = at(100, full=500)
    lr: float = 5e-4
    points: int = at(26, quick=11, full=51)

    def widths(self) -> dict[str, tuple[int, ...]]:
        """The nodes of the hidden layers of the three networks."""
        both = (self.wide,) * EARLY + (self.last,) * (HIDDEN - EARLY)
        return {"narrow": (self.narrow,) * HIDDEN, "wide": (self.wide,) * HIDDEN, "wide, then narrow": both}

    def run(self, lab: Lab) -> Results:
        """Lines of the whole network and of each layer; run i of the three networks sees the same minibatches."""
        return lab.each(self.widths(), lambda name: self.piece(name, lab))

    def piece(self, name: str, lab: Lab) -> Results:
        seed, place = lab.named_seed("data"), lab.checkpoint(name)
        data, test = spirals(self.train, seed), spirals(self.test, seed + 1)
        nets = tether.Replicas(lambda: perceptron(2, *self.widths()[name], 1), self.runs, seed=seed)
        adam = recipe("Adam", lr=self.lr)
        start, end = trained(nets, adam, data, bce, self.steps, self.batch, seed=seed, checkpoint=place)
        whole = packed("net", linear_path(nets, start, end, test, self.points, loss=bce))
        return whole | by_layer(nets, start, end, test, self.points, bce)

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        labels = {"net": "net"} | {layer: f"layer {i + 1}" for i, layer in enumerate(SEVEN)}
        return {(name, label): line_of(found, x) for name, found in results.items() for x, label in labels.items()}

    def claims(self, results: Results) -> Found:
        nets = {name: line_of(found, "net") for name, found in results.items()}
        widths = {name: "-".join(map(str, nodes)) for name, nodes in self.widths().items()}
        said = ", ".join(f"{name}: {line['accuracies'].mean():.1f} %" for name, line in nets.items())
        yield said, every({name: near(line["accuracies"], 100, 0.5) for name, line in nets.items()})
        early, late = (barred(results["narrow"], layers) for layers in (SEVEN[:EARLY], SEVEN[EARLY:]))
        said = f"barriers on {100 * early.mean():.0f} % of the lines of layers 1 to 4 and {100 * late.mean():.0f} % of"
        judged = {"more of the early ones": more(early, late)}
        for i, layer in enumerate(SEVEN, 1):
            share = float(barred(results["narrow"], (layer,)).mean())
            told = f"barriers in {100 * share:.0f} % of the runs"
            judged[f"layer {i}"] = yes(share > 0.5 if i <= EARLY else share < 0.5, told)
        yield f"{said} later ones ({widths['narrow']})", every(judged)
        shapes, height = nets["narrow"]["shapes"], nets["narrow"]["barriers"]
        often = bool((shapes == "barrier").mean() > 0.5)
        yield counted(shapes), yes(often, f"more than half of {self.runs} runs")
        for name, tail in (("wide", f", {height.mean():.2f} in the narrow one"), ("wide, then narrow", "")):
            told, barriers = counted(nets[name]["shapes"]), nets[name]["barriers"]
            judged = {"lower": less(barriers, height), "gone": less(barriers, SLACK * math.log(2))}
            yield f"{told}: {barriers.mean():.2f} high{tail} ({widths[name]})", every(judged)

    def draw(self, results: Results) -> Figures:
        groups = {}
        for name, widths in self.widths().items():
            shown = {f"layer {i + 1}": results[name][f"{layer}: losses"] for i, layer in enumerate(SEVEN)}
            groups["-".join(map(str, widths))] = {**shown, WHOLE: results[name]["net: losses"]}
        figure, panels = lines(groups, 3, mean=True, sharey=True)
        for axis in panels.flat:
            axis.set_yscale("symlog", linthresh=1.0)
            axis.set_ylim(0, None)
        return {"widths": figure}


adlala = partial(recipe, "adlala", lr=0.25, friction=0.5, coupling=0.1, per="tensor")
METHODS = {"Adam": recipe("Adam", lr=0.005), "AdLaLa": adlala(temperature=1e-4, noise=0.01)}
GENTLE = "AdLaLa, less noise"
ON_IMAGES = METHODS | {GENTLE: adlala(temperature=1e-6, noise=1e-3)}
RIGHT, END = of_key("accuracies", "test accuracy (%)", 2), of_key("end", "test loss", 3)
MNIST, ONE, TWO = THREE = ("MNIST", "spiral, 1 turn", "spiral, 2 turns")


@study("fig-3.3", "thesis, Figures 3.3–3.5", ("mnist",))
class Planes(Experiment):
    """barriers lie between start and end on spirals, not on MNIST, and AdLaLa crosses higher ones

    One hidden layer of ReLU nodes: 100 for MNIST (128 images at a time), 20 for the spirals of one and two turns (500
    points, 25 at a time). Both methods begin at the same states, torch's own. Lines (3.34) are of test loss; a plane
    (§3.4) lies between a start and two ends of AdLaLa, which saw other minibatches and other noise.

    The thesis does not give the parameters of these runs: Adam has step size 0.005, AdLaLa h = 0.25, γ = 0.5, τ = 1e-4,
    σ = 0.01, ε = 0.1 on weights and biases by themselves. On MNIST AdLaLa is also run with τ = 1e-6, σ = 0.001; the
    better of both on half of the runs is judged by the others. MNIST is seen for two epochs, in --long for ten.
    """

    says = """
        no barrier from start to end: MNIST | Figure 3.3, left: no evidence of a loss-barrier
        no barrier from start to end: spiral, 1 turn | Figure 3.3, right: no evidence of a loss-barrier
        on MNIST both end with a similar test loss | Figure 3.3, left: final test loss is similar
        on the spiral of two turns there typically is a barrier | Figure 3.4: barriers for both methods
        which is higher for AdLaLa | Figure 3.4: consistently significantly higher for AdLaLa than for Adam
        and leads to lower test loss and higher accuracy
            | Figure 3.4: AdLaLa 99 and 98 %, Adam 91 and 94 % test accuracy in two runs
        in planes the loss of MNIST falls monotonically, that of the spiral has saddles
            | Figure 3.5: monotonic decline for MNIST, saddle points for two turns
    """
    label = ("data", "method")
    columns = (SHAPES, TENTH, RISE, BARRIER, UPTURN, RIGHT, END)
    runs: int = at(10, quick=2, long=100)
    steps: int = at(20_000, quick=60)
    images_runs: int = at(4, quick=2, long=10, full=10)  # on MNIST
    images_steps: int = at(1000, quick=20, long=4690, full=4690)
    test: int = at(10_000, quick=300)  # images
    points: int = at(51, quick=7)
    side: int = at(31, quick=4, full=51)  # points along a side of a plane

    def run(self, lab: Lab) -> Results:
        """Lines by method and set; run i of all methods begins at the same state, and on spirals has its own points."""
        return lab.each(THREE, lambda name: self.piece(name, lab.named_seed(name)))

    def piece(self, name: str, seed: int) -> Results:
        """Train by all methods, once more by AdLaLa, and measure between."""
        loss: Loss
        own = name != MNIST
        if own:
            sizes, loss, batch, steps, runs = (2, 20, 1), bce, 25, self.steps, self.runs
            turns = 1 if name == ONE else 2
            pairs = [spirals(500, seed + i, turns) for i in range(2 * runs)]
            data, tests = (
                (torch.stack([p[0] for p in pairs[:runs]]), torch.stack([p[1] for p in pairs[:runs]])),
                pairs[runs:],
            )
        else:
            sizes, loss, batch, steps, runs = (784, 100, 10), cross_entropy, 128, self.images_steps, self.images_runs
            data, tests = first_digits(True, 60_000), [first_digits(False, self.test)] * runs
        results, ends = dict[str, Any](), []
        for method, other in [*((method, 0) for method in self.methods(name)), ("AdLaLa", 1)]:
            nets = tether.Replicas(lambda: perceptron(*sizes), runs, seed=seed)
            options: dict[str, Any] = {"seed": seed + other, "each": own}
            start, end = trained(nets, ON_IMAGES[method], data, loss, steps, batch, **options)
            starts, arrived = ([{key: x[i] for key, x in one.items()} for i in range(runs)] for one in (start, end))
            if method == "AdLaLa":
                ends.append(arrived[0])
            if not other:
                lined = zip(nets, starts, arrived, tests, strict=True)
                results |= packed(method, [linear_path(*one, self.points, loss=loss) for one in lined])
        first, second = ends
        plane = surface(nets[0], starts[0], first, second, tests[0], self.side, self.side, loss=loss)
        return {**results, "plane": plane.losses, "alphas": plane.alphas, "betas": plane.betas}

    def methods(self, name: str) -> dict[str, Recipe]:
        return ON_IMAGES if name == MNIST else METHODS

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        return {(name, x): line_of(results[name], x) for name in THREE for x in self.methods(name)}

    def claims(self, results: Results) -> Found:
        lines = {name: {method: line_of(results[name], method) for method in self.methods(name)} for name in THREE}
        two = lines[TWO]
        told = {name: "; ".join(f"{m} {counted(x['shapes'])}" for m, x in of.items()) for name, of in lines.items()}
        barred = {name: [(x["shapes"] == "barrier").mean() for x in of.values()] for name, of in lines.items()}
        for name in (MNIST, ONE):
            count = f"{len(lines[name]['Adam']['shapes'])} starts; {TOLERANCE}"
            yield told[name], yes(max(barred[name]) == 0, count)
        adam, *adlalas = END.of(lines[MNIST]).values()
        best = adlalas[chosen(dict(enumerate(adlalas)), min)]
        yield END.listed(lines[MNIST]), near(judging(best), judging(adam), 0.05)
        yield told[TWO], yes(min(barred[TWO]) > 0.5, f"in more than half of {self.runs} runs of each")
        yield BARRIER.more(two, "AdLaLa", "Adam", names=METHODS)
        lower = {"loss": END.less(two, "AdLaLa", "Adam")[1]}
        lower["accuracy"] = RIGHT.more(two, "AdLaLa", "Adam")[1]
        texts = (f"{m} {plus_minus(x['accuracies'])} %, loss {END.cell(x)}" for m, x in two.items())
        yield ", ".join(texts), every(lower)
        across = {name: float((shapes_of(results[name]["plane"].T) == "barrier").mean()) for name in (MNIST, TWO)}
        said = ", ".join(f"{name}: barriers on {100 * x:.0f} % of the lines across" for name, x in across.items())
        yield said, yes(across[MNIST] == 0 < across[TWO], "one plane for each set")

    def draw(self, results: Results) -> Figures:
        """Figures 3.3 and 3.4 above, 3.5 below."""
        groups = {name: {x: results[name][f"{x}: losses"] for x in self.methods(name)} for name in THREE}
        figure, panels = lines(groups | {f"{name}, a plane": {} for name in THREE}, 3)
        for axis, name in zip(panels[1], THREE, strict=True):
            found = results[name]
            plane = np.log10(np.maximum(found["plane"].T, 1e-6))
            mesh = axis.contourf(found["alphas"], found["betas"], plane, levels=30)
            figure.colorbar(mesh, ax=axis, label="log₁₀ of the test loss")
            axis.set(xlabel="α (0 start, 1 ends)", ylabel="β (1 one end, 0 the other)")
        return {"planes": figure}
