"""Figures 3.9, 3.10, 3.15 and 3.16: the four-turn spiral, with 1000 points, 20 at a time."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy

import tether
from tether.measure import boundary_curvature
from tether_studies.drawing import draw_bars, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, recipe, study
from tether_studies.judges import HELD, POINT, chosen, every, judging, less, more, near, plus_minus, yes
from tether_studies.planar import ACCURACY, LOSS, Task, draw_classifier, each, learn, on_grid, starts, todo
from tether_studies.quantities import at_end, crossed, tabulated

ADLALA: dict[str, Any] = {"temperature": 1e-4, "noise": 0.01}
CLASSIFIERS = {  # and the standard deviation of their starts
    "Adam": (recipe("Adam", lr=0.005), 0.5),
    "AdLaLa": (recipe("adlala", lr=0.1, coupling=0.1, friction=0.03, output_temperature=1e-5, **ADLALA), 0.01),
}
NOISES = (0.0, 0.005, 0.01, 0.05, 0.1)  # of SGLD; 0 is SGD
STEP_SIZES = (0.05, 0.1, 0.2, 0.3, 0.5)
ADAM = (0.001, 0.002, 0.005, 0.01, 0.02)
CURVATURE = at_end("curvature", "curvature")
LAST = 10  # steps whose classifiers are averaged
WEIGHTS = ("W", "b", "V", "c")  # of the logit V relu(Wx + b) + c


def weights(step: int, nets: tether.Replicas) -> dict[str, torch.Tensor]:
    """The weights of both layers as they are."""
    return {key: w.detach().clone() for key, w in zip(WEIGHTS, nets.parameters(), strict=True)}


def mean_classifier(kept: list[torch.Tensor], points: torch.Tensor) -> torch.Tensor:
    """The probability of class 1, a mean over networks, whose weights are stacked."""
    W, b, V, c = kept
    hidden = torch.baddbmm(b.unsqueeze(1), points.expand(len(W), *points.shape), W.mT).relu_()
    return torch.baddbmm(c.unsqueeze(1), hidden, V.mT).sigmoid().mean(0)


@study("fig-3.9", "thesis, Figures 3.9, 3.10")
class Classifiers(Experiment):
    """AdLaLa resolves the four-turn spiral better than Adam, SGD and SGLD

    Figure 3.9: 500 ReLU nodes on evenly spaced arms (p = 1), Adam with h = 0.005 from 0.5 N(0, 1) and AdLaLa from 0.01
    N(0, 1), seen after 20,000, 40,000 and 60,000 steps. Figure 3.10: 100 nodes; AdLaLa with one set of parameters
    against ranges of step sizes, and of noise for SGLD.

    Figure 3.9 shows one run; losses, accuracies and boundaries are those of the mean of the last 10 steps' classifiers,
    as there. The number of steps and the step sizes of Figure 3.10 are not given in the text: these are ours.
    """

    says = """
        higher test accuracy than Adam, 500 nodes | Figure 3.9, at 20,000, 40,000 and 60,000 steps: far better resolved
        lower test loss than Adam, 500 nodes | Figure 3.9, at 20,000, 40,000 and 60,000 steps: far better resolved
        AdLaLa's classifiers are smoother | Figure 3.9, in words
        with one set of parameters AdLaLa is ahead of SGD with any in the range, 100 nodes
            | Figure 3.10: consistently outperforms
        with one set of parameters AdLaLa is ahead of SGLD with any in the range, 100 nodes
            | Figure 3.10: consistently outperforms
        with one set of parameters AdLaLa is ahead of Adam with any in the range, 100 nodes
            | Figure 3.10: consistently outperforms
    """
    runs: int = at(4, quick=2, long=32, full=20)  # of Figure 3.9
    nodes: int = at(500, quick=40)
    times: tuple[int, ...] = at((20_000, 40_000, 60_000), quick=(20, 40, 60))
    sweep_runs: int = at(6, quick=2, long=24, full=20)  # of Figure 3.10
    sweep_nodes: int = at(100, quick=20)
    sweep_steps: int = at(20_000, quick=60, full=50_000)
    grid: int = at(300, quick=120, full=1000)  # points along a side, for the curvature

    def wide(self, start: float) -> Task:
        return Task("spiral", {"turns": 4.0, "power": 1.0}, self.nodes, spread=start)

    def run(self, lab: Lab) -> Results:
        """Classifiers over time, and accuracies over ranges of parameters."""
        work: dict[str, Any] = {f"classifier of {name}": partial(self.classify, lab, name) for name in CLASSIFIERS}
        task, size = Task("spiral", {"turns": 4.0}, self.sweep_nodes), (self.sweep_steps, self.sweep_runs)
        alone = {"AdLaLa": recipe("adlala", lr=0.25, friction=0.1, coupling=0.05, **ADLALA)}
        sizes = each(STEP_SIZES, self.sweep_runs)
        ranges = {f"SGLD {noise}": recipe("sgld", lr=sizes, noise=noise) for noise in NOISES}
        work |= todo(lab, task, alone | {f"Adam {h}": recipe("Adam", lr=h) for h in ADAM}, *size, records=5)
        return lab.pieces(work | todo(lab, task, ranges, *size, records=5, cells=len(STEP_SIZES)))

    def classify(self, lab: Lab, name: str) -> Results:
        """Of the mean classifier of the last steps before each time: test loss, accuracy, boundary, and its bends."""
        made, start = CLASSIFIERS[name]
        task, seed = self.wide(start), lab.named_seed("runs")
        steps = [time - k for time in self.times for k in reversed(range(LAST))]
        settings: dict[str, Any] = {"records": steps, "checkpoint": lab.checkpoint(f"classifier of {name}")}
        found = learn(task, made, self.times[-1], self.runs, seed, watch=weights, **settings)
        _, _, x, y = task.sets(self.runs, seed)
        results: Results = {"steps": list(self.times), "points": x[0], "classes": y[0, :, 0]}
        measured = dict[str, list[list[Any]]](accuracy=[], loss=[], curvature=[])
        shown = []
        for i in range(len(self.times)):
            kept = [found[key][i * LAST : (i + 1) * LAST] for key in WEIGHTS]
            means: list[Any] = [partial(mean_classifier, [w[:, j] for w in kept]) for j in range(self.runs)]
            chances = torch.stack([mean(points) for mean, points in zip(means, x, strict=True)])
            measured["loss"].append([binary_cross_entropy(p, q).item() for p, q in zip(chances, y, strict=True)])
            right = (chances > 0.5) == (y > 0.5)
            measured["accuracy"].append((100 * right.float().mean((1, 2))).tolist())
            bent = [boundary_curvature(f, task.frame, smoothing=0.05, grid=self.grid, level=0.5).mean for f in means]
            measured["curvature"].append(bent)
            shown.append(on_grid(means[0], task.frame))
        for key in ("accuracy", "loss"):
            results[key] = np.array(measured[key])[:, None]
        return results | {"curvature": measured["curvature"], "classifier": torch.stack(shown)}

    def claims(self, results: Results) -> Found:
        adam, adlala = results["classifier of Adam"], results["classifier of AdLaLa"]
        for key, unit, digits, judge in (("accuracy", " %", 1, more), ("loss", "", 3, less)):
            a, b = adlala[key][:, 0], adam[key][:, 0]
            texts = [", ".join(plus_minus(x, digits) + unit for x in values) for values in (a, b)]
            judged = {f"step {t:,}": judge(a[i], b[i]) for i, t in enumerate(self.times)}
            yield f"AdLaLa {texts[0]}; Adam {texts[1]}", every(judged)
        a, b = (x["curvature"][-1] for x in (adlala, adam))
        there = ~np.isnan(a) & ~np.isnan(b)  # a run without a boundary has no curvature
        a, b = a[there], b[there]
        said = f"mean curvature of the boundary in the end: AdLaLa {plus_minus(a)}, Adam {plus_minus(b)}"
        yield said, less(a, b)
        ours = ACCURACY.take(results["AdLaLa"])
        rivals = {"SGD": ["SGLD 0.0"], "SGLD": [f"SGLD {x}" for x in NOISES[1:]], "Adam": [f"Adam {h}" for h in ADAM]}
        for name, pieces in rivals.items():
            cells = {(x, i): runs for x in pieces for i, runs in enumerate(results[x]["accuracy"][-1])}
            piece, cell = chosen(cells)
            best = cells[piece, cell]
            value = piece.split()[1]
            setting = value if name == "Adam" else f"{STEP_SIZES[cell]}, σ = {value}"
            said = f"AdLaLa {plus_minus(ours)} %, the best of {name} {plus_minus(best)} % (h = {setting})"
            yield said, more(judging(ours), judging(best), least=POINT)

    def tables(self, results: Results) -> list[Table]:
        rows = {}
        for name, (i, t) in product(CLASSIFIERS, enumerate(self.times)):
            found = results[f"classifier of {name}"]
            rows[name, f"{t:,}"] = {key: found[key][: i + 1] for key in ("accuracy", "loss", "curvature")}
        sweep = {f"SGLD, σ = {x}" if x else "SGD": results[f"SGLD {x}"]["accuracy"][-1] for x in NOISES}
        caption = f"{self.sweep_runs} runs of {self.sweep_steps:,} steps, test accuracy %"
        others = {"AdLaLa": results["AdLaLa"]} | {f"Adam, h = {h}": results[f"Adam {h}"] for h in ADAM}
        return [
            tabulated(["method", "step"], rows, [ACCURACY, LOSS, CURVATURE], f"{self.runs} runs"),
            crossed(["method", *(f"h = {h}" for h in STEP_SIZES)], sweep, caption),
            tabulated("method", others, [ACCURACY], caption),
        ]

    def draw(self, results: Results) -> Figures:
        nine, panels = subplots(2, len(self.times), figsize=(7.6, 5.4))
        for row, (name, (_, start)) in zip(panels, CLASSIFIERS.items(), strict=True):
            found, task = results[f"classifier of {name}"], self.wide(start)
            for i, axis in enumerate(row):
                title = f"{name}, step {self.times[i]:,}\n{found['accuracy'][i, 0, 0]:.1f} %"
                draw_classifier(axis, found["classifier"][i], task, found["points"], found["classes"], title)
        nine.suptitle(f"Four turns, p = 1, {self.nodes} nodes, one run (Figure 3.9)", fontsize=11)
        ten, (left, right) = subplots(2, 1, figsize=(6.4, 7.2))
        draw_bars(left, {f"σ = {x}": results[f"SGLD {x}"]["accuracy"][-1] for x in NOISES}, STEP_SIZES)
        draw_bars(right, {"": np.stack([results[f"Adam {h}"]["accuracy"][-1, 0] for h in ADAM])}, ADAM)
        for axis, name in ((left, "SGLD (σ = 0: SGD)"), (right, "Adam")):
            axis.axhline(float(ACCURACY.take(results["AdLaLa"]).mean()), color="k", ls=":", label="AdLaLa")
            axis.set(ylim=(45, 100), xlabel=f"step size of {name}", ylabel="test accuracy %")
        left.legend(ncols=3, loc="upper left")
        ten.suptitle(f"Four turns, {self.sweep_nodes} nodes, {self.sweep_steps:,} steps (Figure 3.10)", fontsize=11)
        return {"classifiers": nine, "ranges": ten}


FIRST = (0.1, 0.2, 0.3, 0.4, 0.5)  # step sizes of DHSGD
THEN = (0.05, 0.1, 0.15, 0.2)  # of SGD
ALONE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
BOTH = "DHSGD, then SGD"


@study("fig-3.15", "thesis, Figure 3.15")
class Hybrid(Experiment):
    """DHSGD first, then SGD, beats SGD

    DHSGD for 2,500 steps, then SGD for 47,500, over step sizes of both; beside it SGD alone.

    The network is not given: 100 nodes, as in the other figures with four turns, from torch's own start. The step sizes
    of DHSGD are ours.
    """

    says = """
        SGD alone, with a tuned step size, stays at 70 % after 50,000 steps | 70 %
        2,500 steps of DHSGD first improve it significantly | significantly (Figure 3.15; no number in the text)
        and not for one pair of step sizes alone | Figure 3.15 shows a range of both step sizes
    """
    nodes: int = at(100, quick=20)
    first: int = at(2_500, quick=50)
    steps: int = at(50_000, quick=150)
    runs: int = at(4, quick=2, long=40, full=40)

    def run(self, lab: Lab) -> Results:
        """Test accuracies, step sizes × runs."""
        task, sgd = Task("spiral", {"turns": 4.0}, self.nodes), recipe("sgd", lr=each(ALONE, self.runs))
        alone = todo(lab, task, {"SGD alone": sgd}, self.steps, self.runs, cells=len(ALONE), records=20)
        return lab.pieces({BOTH: lambda: self.hybrid(task, lab), **alone})

    def hybrid(self, task: Task, lab: Lab) -> Results:
        """Every pair of step sizes at once; the accuracy after DHSGD and over time after that."""
        pairs, runs, seed = list(product(FIRST, THEN)), self.runs, lab.named_seed("runs")
        first, then = (each(sizes, runs) for sizes in zip(*pairs, strict=True))
        nets, sets = starts(task, runs, seed, len(pairs)), task.sets(runs, seed, len(pairs))
        before = learn(task, recipe("dhsgd", lr=first), self.first, runs, seed, nets=nets, sets=sets)
        place, rest, sgd = lab.checkpoint(BOTH), self.steps - self.first, recipe("sgd", lr=then)
        after = learn(task, sgd, rest, runs, seed + 1, nets=nets, sets=sets, records=20, checkpoint=place)
        return {"before": before["accuracy"][-1], **after, "steps": after["steps"] + self.first}

    def grid(self, results: Results) -> np.ndarray:
        """DHSGD's step size × SGD's × runs."""
        return results[BOTH]["accuracy"][-1].reshape(len(FIRST), len(THEN), -1)

    def claims(self, results: Results) -> Found:
        cells, both = results["SGD alone"]["accuracy"][-1], self.grid(results)
        h = chosen(dict(zip(ALONE, cells, strict=True)))
        alone = cells[ALONE.index(h)]
        yield f"{plus_minus(alone)} % with h = {h}, the best of {ALONE}", near(judging(alone), 70.0, within=5.0)
        i, j = chosen({(i, j): both[i, j] for i, j in np.ndindex(both.shape[:2])})
        said = f"{plus_minus(both[i, j])} % with h = {FIRST[i]} and then {THEN[j]}"
        yield said, more(judging(both[i, j]), judging(alone))
        ahead = [more(judging(both[k]), judging(alone)).verdict == HELD for k in np.ndindex(both.shape[:2])]
        said = f"{sum(ahead)} of {len(ahead)} pairs are ahead of the best of SGD alone, each by its own test"
        yield said, yes(np.mean(ahead) > 0.5, "more than half of them")

    def tables(self, results: Results) -> list[Table]:
        before = results[BOTH]["before"].reshape(len(FIRST), -1)
        rows = {h: [x, *y] for h, x, y in zip(FIRST, before, self.grid(results), strict=True)}
        head = ["h of DHSGD", "after DHSGD, %", *(f"then SGD {h}, %" for h in THEN)]
        alone = {h: [x] for h, x in zip(ALONE, results["SGD alone"]["accuracy"][-1], strict=True)}
        caption = f"{self.runs} runs, {self.first:,} of {self.steps:,} steps with DHSGD"
        return [crossed(head, rows, caption), crossed(["h of SGD alone", "test accuracy %"], alone)]

    def draw(self, results: Results) -> Figures:
        figure, axis = subplots(figsize=(6.4, 4.4))
        draw_bars(axis, {f"then SGD, h = {h}": self.grid(results)[:, j] for j, h in enumerate(THEN)}, FIRST)
        best = results["SGD alone"]["accuracy"][-1].mean(1).max()
        axis.axhline(best, color="k", ls="--", lw=1, label="SGD alone, best h")
        axis.set(xlabel="step size of DHSGD", ylabel="test accuracy %", ylim=(45, 100))
        axis.set_title(f"Four turns, {self.first:,} steps of DHSGD, then SGD (Figure 3.15)", fontsize=11)
        figure.legend(loc="outside lower center", ncols=2)
        return {"hybrid": figure}


APPLIED = (0.0, 1e-4, 1e-3, 5e-3, 1e-2, 2e-2, 4e-2, 1e-1)
GOOD = APPLIED.index(4e-2)
FEW, MANY = (1e-8, 1e-2), (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@study("fig-3.16", "thesis, Figure 3.16")
class AppliedNoise(Experiment):
    """applied noise helps AdLaLa find good minima

    100 ReLU nodes; h = 0.1, ε = 0.1, γ₂ = 0.03, τ₂ = 1e-8, 50,000 steps. Every cell of the heat map has its own
    temperature τ₁ and applied noise σ_A of the first layer.

    The figure averages ten runs. Its start is not given: all weights are 0 here, as section 3.7 says they often were, a
    start that only noise can leave. From another (--set start=0.01) AdLaLa learns a little without it.
    """

    says = """
        without applied noise the result is no better than chance | σ_A = 0 or below 1e-3: no better than random
        with σ_A = 0.04 the accuracy is near 100 % | near 100 %
        noise improves the classifier over at least an order of magnitude of σ_A | at least an order of magnitude
        provided it is small, the temperature τ₁ hardly matters | relatively agnostic
        too large a temperature gives poor accuracy | poor, in words
    """
    temperatures: tuple[float, ...] = at(
        (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2), quick=FEW, long=(1e-8, 1e-5, 1e-4, 1e-2), full=MANY
    )
    nodes: int = at(100, quick=20)
    steps: int = at(50_000, quick=150)
    runs: int = at(3, quick=2, long=10, full=10)
    start: float = 0.0  # standard deviation of the first weights

    def run(self, lab: Lab) -> Results:
        """A row of the map is a piece: all noises at one temperature."""
        task, noise = Task("spiral", {"turns": 4.0}, self.nodes, spread=self.start), each(APPLIED, self.runs)
        adlala = partial(recipe, "adlala", lr=0.1, friction=0.03, coupling=0.1, output_temperature=1e-8, noise=noise)
        rows = {f"temperature {τ:.0e}": adlala(temperature=τ) for τ in self.temperatures}
        return lab.pieces(todo(lab, task, rows, self.steps, self.runs, cells=len(APPLIED), records=5))

    def grid(self, results: Results) -> np.ndarray:
        """Temperature × noise × runs: test accuracies in the end."""
        return np.stack([found["accuracy"][-1] for found in results.values()])

    def claims(self, results: Results) -> Found:
        found = self.grid(results)
        cold = [i for i, τ in enumerate(self.temperatures) if τ <= 1e-4]
        cells = found[cold].mean(0)  # run i has the same data and start at every temperature
        none, few, good = (cells[j] for j in (0, 1, GOOD))
        chance = {f"σ_A = {APPLIED[j]:g}": near(cells[j], 50.0, within=10.0) for j in range(APPLIED.index(1e-3))}
        yield f"{plus_minus(none)} % at σ_A = 0 (τ₁ ≤ 1e-4), {plus_minus(few)} % at {APPLIED[1]:.0e}", every(chance)
        yield f"{plus_minus(good)} % (τ₁ ≤ 1e-4)", near(good, 100.0, within=5.0)
        helps = [noise for j, noise in enumerate(APPLIED) if more(cells[j], none).verdict == HELD]
        decades = np.log10(max(helps) / min(helps)) if helps else 0.0
        said = f"better than without for σ_A in {', '.join(f'{x:g}' for x in helps) or 'nothing tried'}"
        yield said, yes(decades >= 1, f"each by its own test over {none.size} runs")
        means = found[cold, GOOD].mean(1)
        judged = {f"{self.temperatures[i]:.0e}": near(found[i, GOOD], good, within=5.0) for i in cold}
        yield f"σ_A = 0.04: {means.min():.1f} to {means.max():.1f} % for τ₁ ≤ 1e-4", every(judged)
        hot = found[-1, GOOD]
        yield f"σ_A = 0.04, τ₁ = {self.temperatures[-1]:g}: {plus_minus(hot)} %", less(hot, good)

    def tables(self, results: Results) -> list[Table]:
        rows = {f"{τ:.0e}": cells for τ, cells in zip(self.temperatures, self.grid(results), strict=True)}
        caption = f"Test accuracy in per cent; {self.runs} runs of {self.steps:,} steps"
        return [crossed(["τ₁", *(f"σ_A = {noise:g}" for noise in APPLIED)], rows, caption)]

    def draw(self, results: Results) -> Figures:
        means = self.grid(results).mean(2)
        figure, axis = subplots(figsize=(6.4, 4.8))
        image = axis.imshow(means, cmap="viridis", origin="lower", aspect="auto", vmin=50, vmax=100)
        axis.set_xticks(range(len(APPLIED)), [f"{noise:g}" for noise in APPLIED])
        axis.set_yticks(range(len(self.temperatures)), [f"{τ:.0e}" for τ in self.temperatures])
        axis.set(xlabel="applied noise σ_A", ylabel="temperature τ₁")
        axis.set_title("AdLaLa, 100 nodes, four-turn spiral (Figure 3.16)", fontsize=11)
        for (i, j), value in np.ndenumerate(means):
            axis.text(j, i, f"{value:.0f}", ha="center", va="center", color="w" if value < 80 else "k")
        figure.colorbar(image, label="test accuracy %")
        return {"noise": figure}
