import math
from functools import partial
from itertools import pairwise

import numpy as np

from tether.measure import boundary_curvature, prediction_gradient
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, Table, at, recipe, study
from tether_studies.judges import POINT, every, less, more, no_worse
from tether_studies.lab import called
from tether_studies.planar import ACCURACY, LOSS, Task, draw_classifier, learn, scores, starts
from tether_studies.quantities import Quantity, listed, of_key

H, RADII, WARM = 0.05, (1.0, 5.0), 5e-5
SPIRAL = Task(options={"turns": 2, "scale": 1.0, "noise": 0.05}, nodes=500, train=100, test=2000, batch=2)
bounded = partial(recipe, "circle_cola_od", lr=H)
METHODS = {
    "SGD": recipe("sgd", lr=H),
    "SGD with WD": recipe("sgd", lr=H, weight_decay=1e-4),
    "C-SGD": bounded(radius=RADII),
    "SGLD": recipe("sgld", lr=H, temperature=WARM),
    "C-SGLD": bounded(radius=RADII, temperature=WARM),
}
FREE, OURS = ("SGD", "SGD with WD"), ("C-SGD", "C-SGLD")
PUBLISHED = {"SGD": 519, "SGD with WD": 51.1, "C-SGD": 9.38, "SGLD": 8.73, "C-SGLD": 6.08}  # (4.60) in Table 4.1
BY_TEMPERATURE = {0: 9.38, 1e-6: 9.01, 5e-6: 7.75, 1e-5: 7.06, 5e-5: 6.08, 1e-4: 7.62, 5e-4: 15.9}  # Table 4.5
MANY = (1e-6, 5e-6, 1e-5, 1e-4, 5e-4)
FURTHER, AT_ONCE = "further runs", 100  # of these in a piece
CURVATURE, STEEPNESS = of_key("curvature mean", "curvature"), of_key("steepness", "steepness", 3)


def pooled(found: Results, kind: str) -> tuple[float, float, float]:
    """Mean, standard deviation and maximum over all runs, each an equal part of the whole."""
    means, stds = found[f"{kind} mean"], found[f"{kind} std"]
    mean = float(means.mean())
    return mean, math.sqrt(float(np.mean(stds**2 + (means - mean) ** 2))), float(found[f"{kind} max"].max())


@study("fig-4.1", "thesis, Figures 4.1–4.3, 4.11, Tables 4.1, 4.5; ICML paper, Figures 1–3, Table 1")
class BoundedWeights(Experiment):
    """bounded weights and noise make classifiers smoother and better

    One hidden layer of 500 ReLU nodes learns the spirals of (4.59) from 100 points, two at a time. SGD and SGLD, free
    and with every weight bounded (|θ| ≤ 1 in the first layer, 5 in the second), are compared by test loss and accuracy,
    by the curvature of the decision boundary and by how steep the prediction is along y = 0 and x = 0.

    The thesis trains for 10,000 epochs; overfitting, and with it curvature, grows with time. Its estimate (4.60) does
    not converge as the grid gets finer, so the claims are judged by the curvature of the smoothed boundary; the tables
    have both. The radii of Figure 4.3 are not given. Two temperatures whose curvatures are close, 5e-5 and the highest,
    have further runs with data of their own (`further`), which judge the claims about temperatures alone.
    """

    says = """
        constraints raise the test accuracy, with noise and without
            | Figure 4.1, a run each: C-SGLD 91.7 %, SGD 81 %; Figure 4.2: over 100 runs both clearly outperform
        constraints keep the test loss low
            | Figure 4.2: C-SGD and C-SGLD clearly outperform SGD and SGD with WD in test loss
        weight decay does not raise the test accuracy
            | Figure 4.1: WD can stabilize the test loss, it does not improve test accuracy
        constraints and noise make the boundary less curved
            | Table 4.1: SGD 519 > SGD with WD 51.1 > C-SGD 9.38 > C-SGLD 6.08
        constraints make the transition between the classes less sharp
            | Figure 4.3: C-SGLD exhibits less sharp transitions between classes than SGD
        the radius of the first layer controls it
            | Figure 4.3, left: the size of the constraint directly controls this property
        of the temperatures τ = 5e-05 has the least curved boundary
            | Table 4.5: τ = 0 9.38, 5e-06 7.75, 5e-05 6.08, 5e-04 15.9
        … and the highest test accuracy | Figure 4.11: the best performance is obtained using temperature τ = 5e-5
        … and the lowest test loss | Figure 4.11: the best performance is obtained using temperature τ = 5e-5
    """
    runs: int = at(12, quick=2, long=100, full=100)
    epochs: int = at(4000, quick=4, long=10_000, full=10_000)  # of 50 steps
    grid: int = at(500, quick=100, full=1000)  # points along each side for the curvature
    smoothing: float = at(0.01, quick=0.03)  # of the boundary: a hundredth of the spiral's size
    temperatures: tuple[float, ...] = at((5e-6, 5e-4), quick=(5e-4,), full=MANY)  # of C-SGLD, beside 0 and 5e-5
    radii: tuple[float, ...] = at((0.5,), full=(0.5, 2.0, 5.0))  # of the first layer, beside 1
    further: int = at(0, quick=2, long=200, full=200)  # runs of two temperatures, beside `runs`

    def run(self, lab: Lab) -> Results:
        """Run i of every method has the same data, start and minibatches."""
        made = dict(METHODS)
        made |= {f"τ = {τ:g}": bounded(radius=RADII, temperature=τ) for τ in self.temperatures}
        made |= {f"r₀ = {r:g}": bounded(radius=(r, RADII[1]), temperature=WARM) for r in self.radii}
        asked = {name: partial(self.piece, one, self.runs, lab.named_seed("data")) for name, one in made.items()}
        close = ["C-SGLD", *(f"τ = {τ:g}" for τ in sorted(self.temperatures)[-1:])]
        for first in range(0, self.further, AT_ONCE):
            seed, runs = lab.named_seed(called("further data", first=first)), min(AT_ONCE, self.further - first)
            for name in close:
                asked[called(name, FURTHER, first=first)] = partial(self.piece, made[name], runs, seed)
        return lab.pieces(asked)

    def piece(self, made: Recipe, runs: int, seed: int) -> Results:
        """Train, then measure every run."""
        nets, steps = starts(SPIRAL, runs, seed), self.epochs * SPIRAL.train // SPIRAL.batch
        sets = SPIRAL.sets(runs, seed)
        found = learn(SPIRAL, made, steps, runs, seed, nets=nets, sets=sets, records=40, portraits=True)
        results = {key: found[key] for key in ("steps", "classifier", "points", "classes", "median")}
        results |= {"loss": found["loss"].squeeze(1), "accuracy": found["accuracy"].squeeze(1)}
        results["training loss"] = scores(nets, *sets[:2])["loss"]
        bent = boundary_curvature(nets, SPIRAL.frame, smoothing=self.smoothing, grid=self.grid)
        steep = prediction_gradient(nets, SPIRAL.frame)
        for name in ("mean", "std", "max"):
            results[f"curvature {name}"] = [getattr(one, name) for one in bent]
            results[f"contour {name}"] = [getattr(one.contour, name) for one in bent]
        results["steepness"] = [one.mean for one in steep]
        for line in ("y = 0", "x = 0"):
            results[f"gradient along {line}"] = np.mean([np.abs(one[line].gradients) for one in steep], axis=0)
        return results | {"positions": steep[0]["y = 0"].positions}

    def by_temperature(self, results: Results) -> dict[float, Results]:
        """The pieces of C-SGLD."""
        others = {τ: results[f"τ = {τ:g}"] for τ in self.temperatures}
        return dict(sorted({0.0: results["C-SGD"], WARM: results["C-SGLD"], **others}.items()))

    def by_radius(self, results: Results) -> Results:
        """The same by the radius of the first layer."""
        radii = sorted((RADII[0], *self.radii))
        return {f"r₀ = {r:g}": results["C-SGLD" if r == RADII[0] else f"r₀ = {r:g}"] for r in radii}

    def claims(self, results: Results) -> Found:
        ends, radii = ACCURACY.of(results), self.by_radius(results)
        yield ACCURACY.more(results, OURS, "SGD", names=("SGD", *OURS), least=POINT)
        yield LOSS.less(results, OURS, FREE, names=METHODS)
        yield ACCURACY.listed(results, *FREE), no_worse(ends["SGD"], ends["SGD with WD"], POINT)
        pairs = {f"{a} > {b}": CURVATURE.more(results, a, b)[1] for a, b in pairwise((*FREE, *OURS))}
        yield f"smoothed over {self.smoothing}: {CURVATURE.listed(results, *METHODS)}", every(pairs)
        said = "mean |gradient| of the prediction along y = 0 and x = 0: "
        yield STEEPNESS.less(results, "C-SGLD", "SGD", told=said, names=("SGD", "C-SGLD"))
        pairs = {f"{a} < {b}": STEEPNESS.less(radii, a, b)[1] for a, b in pairwise(radii)}
        yield f"mean |gradient| of C-SGLD: {STEEPNESS.listed(radii)}", every(pairs)
        for quantity, judge in ((CURVATURE, less), (ACCURACY, more), (LOSS, less)):
            found = self.at_temperatures(results, quantity)
            best = found[f"τ = {WARM:g}"]
            judged = {x: judge(best[: len(other)], other) for x, other in found.items() if x != f"τ = {WARM:g}"}
            yield listed(found, quantity.digits, quantity.unit), every(judged)

    def at_temperatures(self, results: Results, quantity: Quantity) -> dict[str, np.ndarray]:
        """Of the runs at each temperature, the further ones behind the others."""
        found = {}
        for τ, one in self.by_temperature(results).items():
            late = called("C-SGLD" if τ == WARM else f"τ = {τ:g}", FURTHER)
            pieces = [one, *(x for name, x in results.items() if name.startswith(late))]
            found[f"τ = {τ:g}"] = np.concatenate([quantity.take(x) for x in pieces])
        return found

    def tables(self, results: Results) -> list[Table]:
        """Tables 4.1 and 4.5 over all runs together, with our own measure beside the thesis's estimate."""

        def row(label: str, found: Results, published: float | str) -> list[object]:
            numbers = [*pooled(found, "curvature"), *pooled(found, "contour")]
            return [label, ACCURACY.cell(found), *(f"{x:.3g}" for x in numbers), published]

        measures = [f"{kind} {name}" for kind in ("curvature", "(4.60)") for name in ("mean", "std", "max")]
        head = ["test accuracy %", *measures, "(4.60), thesis"]
        caption = (
            f"{self.runs} runs of {self.epochs:,} epochs. Curvature is of the boundary smoothed over "
            f"{self.smoothing}; (4.60) is the thesis's estimate, here on {self.grid} × {self.grid} points, there on "
            "1000 × 1000."
        )
        warm = [row(f"{τ:g}", one, BY_TEMPERATURE.get(τ, "")) for τ, one in self.by_temperature(results).items()]
        cold = [row(name, results[name], PUBLISHED[name]) for name in METHODS]
        return [Table(["method", *head], cold, caption), Table(["τ of C-SGLD", *head], warm)]

    def draw(self, results: Results) -> Figures:
        figure, panels = subplots(3, 5, figsize=(9, 6), sharey="row")
        for k, (name, (top, middle, below)) in enumerate(zip(METHODS, panels.T, strict=True)):
            found = results[name]
            title = f"{name}\n{found['median'][0]:.1f} %"
            draw_classifier(top, found["classifier"][0], SPIRAL, found["points"][0], found["classes"][0], title)
            epochs = found["steps"] * SPIRAL.batch / SPIRAL.train
            for panel, key in ((middle, "loss"), (below, "accuracy")):
                panel.plot(epochs, found[key], color="0.75", lw=0.6)
                panel.plot(epochs, found[key].mean(1), color=f"C{k}", lw=1.6)
            below.set(xlabel="epochs")
        panels[1, 0].set(ylabel="test loss", ylim=(0, None))
        panels[2, 0].set_ylabel("test accuracy, %")
        steep, panels = subplots(1, 3, figsize=(9, 3), sharey=True)
        both = {name: results[name] for name in ("SGD", "C-SGLD")}
        shown = {"C-SGLD, along y = 0": self.by_radius(results), "along y = 0": both, "along x = 0": both}
        for panel, (title, pieces) in zip(panels, shown.items(), strict=True):
            for label, one in pieces.items():
                panel.plot(one["positions"], one[f"gradient along {title[-5:]}"], lw=0.9, label=label)
            panel.set(title=title, xlabel="x" if title.endswith("y = 0") else "y")
            panel.legend()
        panels[0].set_ylabel("|gradient of prediction|")
        return {"classifiers": figure, "gradients": steep}
