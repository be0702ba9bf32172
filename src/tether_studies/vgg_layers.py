"""Figures 6.16B, 6.19 and Tables 6.2, 6.4: the layers of VGG-11, with and without barriers on their lines."""

from dataclasses import replace
from functools import partial

from tether_studies import drawing
from tether_studies.blocks import LAYERS, Training, unnormed, vgg
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
from tether_studies.experiment import Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import every, more, plus_minus, yes
from tether_studies.lines import ACCURACY, DISTANCE, SHAPES
from tether_studies.quantities import tabulated

BASE, UNNORMED, SLOW, BARE = "standard", "no BatchNorm", "h = 0.01", "no decay"
NARROW_LOW, ONE, TWO = "narrow no-barrier layers", "narrow 1 barrier layer", "narrow 2 barrier layers"
NARROW_HIGH = "narrow all barrier layers"
PUBLISHED = {  # accuracies in Tables 6.2 and 6.4, and their ±
    BASE: (91.9, 0.2),
    SLOW_LOW: (92.0, 0.1),
    SLOW_HIGH: (90.4, 0.1),
    SLOW: (90.9, 0.1),
    BARE_LOW: (91.8, 0.1),
    BARE_HIGH: (90.2, 0.1),
    BARE: (90.4, 0.3),
    NARROW_LOW: (91.73, 0.19),
    ONE: (91.53, 0.20),
    TWO: (91.25, 0.12),
    NARROW_HIGH: (91.15, 0.13),
}


@study("table-6.4", "thesis, Figures 6.16B, 6.19, Tables 6.2 (VGG-11), 6.4", ("cifar10",))
class VGGLayers(Cases):
    """layers of VGG-11 whose lines have barriers need width, step size and weight decay

    VGG-11 with BatchNorm, its eight convolutions and three linear layers L1 to L11. Layers with barriers and the others
    are trained with a tenth of the step size or without weight decay, or made half as wide; and there is a network
    without BatchNorm.

    The thesis trains on 50,000 pictures of 32 × 32 pixels for 100 epochs, with 64 to 512 channels; here there are
    2,500 pictures of 16 × 16 pixels, 30 epochs, an eighth of the channels, and linear layers as wide as the last
    convolutions, without dropout. Layers with barriers are those whose lines have one in most runs or, if none has, the
    two whose lines climb highest above their ends. Without BatchNorm convolutions have biases and Kaiming's start, and
    h = 0.05. Convolutions compute in bfloat16 where the processor does (`precision`), with weights and momenta in
    float32.
    """

    says = """
        some layers have barriers, others do not | Figure 6.16B: barriers in layers 4–10
        BatchNorm often keeps the line of the network from being monotone
            | Figure 6.19: the use of batch normalization often leads to non-monotonic behaviour
        a small step size in layers with barriers removes these and lowers accuracy
            | Figure 6.16B, Table 6.2: can remove barriers, but lowers the test accuracy, 90.4 ± 0.1 against
            91.9 ± 0.2 %
        layers with barriers need the large step size, the others do not
            | Table 6.2: 92.0 ± 0.1 % with 0.1 for layers with barriers, 90.4 ± 0.1 % with 0.1 for the others
        layers with barriers need weight decay, the others do not
            | Table 6.2: 91.8 ± 0.1 % with decay for layers with barriers, 90.2 ± 0.1 % with decay for the others,
            90.4 ± 0.3 % without
        layers without barriers can be narrowed, those with barriers cannot
            | Table 6.4: 91.73 ± 0.19 % with no-barrier layers narrowed, 91.53, 91.25, 91.15 % with one, two and all
            barrier layers narrowed, 91.93 ± 0.19 % standard
    """
    label = "case"
    columns = (SHAPES, ACCURACY, DISTANCE)
    runs: int = at(4, quick=2, long=12, full=10)
    width: int = at(8, quick=2, full=64)
    images: int = at(2500, quick=128, full=50_000)
    test: int = at(1000, quick=50, full=5000)
    epochs: int = at(30, quick=1, full=100)
    points: int = at(26, quick=4, full=51)
    precision: str = "auto"

    def cases(self) -> dict[str, Case]:
        """Those that do not depend on where barriers are."""
        layers = {layer: f"{layer}.*" for layer in LAYERS}
        base = Case(partial(vgg, self.width), Training(self.epochs), self.images, layers)
        usual = base.training
        found = {BASE: base, SLOW: replace(base, training=replace(usual, lr=0.01), groups={})}
        found[BARE] = replace(base, training=replace(usual, decay=0.0), groups={})
        plain = replace(base, build=lambda: unnormed(vgg(self.width)), training=replace(usual, lr=0.05))
        return {**found, UNNORMED: plain}

    def run(self, lab: Lab) -> Results:
        """The network as it is first: its lines tell which layers have barriers."""
        cases = self.cases()
        high = resisting(self.tabled(self.done(lab, cases))[BASE], LAYERS)
        base = cases[BASE]
        low = [layer for layer in LAYERS if layer not in high]
        for name, narrow in ((NARROW_LOW, low), (ONE, high[:1]), (TWO, high[:2]), (NARROW_HIGH, high)):
            cases[name] = replace(base, build=partial(vgg, self.width, tuple(narrow)), groups={}, chosen=high)
        return self.done(lab, cases | split(base, high, LAYERS))

    def claims(self, results: Results) -> Found:
        found = self.tabled(results)
        told, right = ({x: one.cell(found[x]) for x in found} for one in (SHAPES, ACCURACY))
        barred = [x for x in LAYERS if (found[BASE][f"{x}: shapes"] == "barrier").mean() > 0.5]
        high = resisting(found[BASE], LAYERS)
        some = yes(0 < len(barred) < len(LAYERS), f"{len(barred)} of {len(LAYERS)} in most of {self.runs} runs")
        yield f"barriers in {', '.join(barred) or 'no layer'}", some
        bent = [100.0 * (found[name]["shapes"] != "monotone") for name in (BASE, UNNORMED)]
        yield f"{told[BASE]}; without BatchNorm {told[UNNORMED]}", more(*bent)
        heights = {name: walls(found[name], high) for name in (SLOW_HIGH, BASE)}
        said = " against ".join(plus_minus(x, 2) for x in heights.values())
        gone = {"barriers": taller(found[BASE], found[SLOW_HIGH], high), "accuracy": higher(found, BASE, SLOW_HIGH)}
        yield f"{right[SLOW_HIGH]} against {right[BASE]} %, barriers {said}", every(gone)
        for low, slow, none in ((SLOW_LOW, SLOW_HIGH, SLOW), (BARE_LOW, BARE_HIGH, BARE)):
            said = f"{right[low]} % with it for {', '.join(high)}, {right[slow]} % with it for the others"
            yield f"{said}, {right[none]} % without", higher(found, low, slow)
        names = (NARROW_LOW, ONE, TWO, NARROW_HIGH)
        judged = {name: higher(found, NARROW_LOW, name) for name in (TWO, NARROW_HIGH)}
        yield ACCURACY.listed(found, BASE, *names), every(judged)

    def tables(self, results: Results) -> list[Table]:
        made = tabulated(self.label, self.tabled(results), self.columns, f"Means ± standard errors, {self.runs} runs")
        thesis = {name: f"{mean} ± {deviation}" for name, (mean, deviation) in PUBLISHED.items()}
        rows = [[*row, thesis.get(row[0], "–")] for row in made.rows]
        return [Table([*made.head, "thesis, accuracy (%)"], rows, made.caption)]

    def draw(self, results: Results) -> Figures:
        found = self.tabled(results)
        shown = {BASE: "6.16B, 6.19", SLOW_HIGH: "6.16B", UNNORMED: "6.19"}
        groups = {f"{name} ({number})": by_block(found[name], LAYERS) for name, number in shown.items()}
        accuracies = drawing.beside(PUBLISHED, ACCURACY.of(found, PUBLISHED), ACCURACY.name)
        return {"vgg": drawing.lines(groups, 3, mean=True)[0], "accuracies": accuracies}
