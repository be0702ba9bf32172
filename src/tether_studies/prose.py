"""What chapter 3 says in its text, without a figure: equipartition, inside and outside of the spiral, batch sizes."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether.measure import gradient_noise, linear_path, thermometer
from tether_studies.drawing import draw_curves, draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, recipe, study
from tether_studies.judges import POINT, every, less, more, near, plus_minus
from tether_studies.lines import SLACK, state_of
from tether_studies.planar import Sets, Task, each, learn, outputs, scores, starts
from tether_studies.quantities import against, crossed, listed, within

LAST = 10  # steps over which classifiers are averaged
INNER, OUTER = 0.5, 0.75  # of the radius: the inner quarter of the area, and the outer seven sixteenths
HOT = {"LOL": 1e-3, "AdLaLa": 1e-4}  # methods with a temperature
NOISY = {"LOL": ("0", 0.1, 0.01), "AdLaLa": ("2", 0.25, 0.5)}  # layers under Langevin dynamics, h and γ
METHODS = {
    "SGD": recipe("sgd", lr=0.1),
    "SGLD": recipe("sgld", lr=0.1, noise=0.01),
    "Adam": recipe("Adam", lr=0.005),
    "LOL": recipe("lol", lr=0.1, friction=0.01, temperature=HOT["LOL"]),
    "AdLaLa": recipe("adlala", lr=0.25, friction=0.5, noise=0.01, coupling=0.1, temperature=HOT["AdLaLa"]),
}
SIZES = {"SGD": (0.05, 0.1, 0.2), "SGLD": (0.05, 0.1, 0.2), "Adam": (0.002, 0.005, 0.01)}
LINES = {"spiral": ("spiral", {"turns": 2.0}), "sine against cosine": ("trig", {"scale": 6.0, "frequency": 6.0})}
LINED = ("Adam", "AdLaLa")


def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which points lie in the inner and in the outer part of a spiral of radius 2."""
    radius = x.norm(dim=-1) / 2
    return radius < INNER, radius > OUTER


@torch.no_grad()
def pushes(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How far a step of SGD with each single point would move the parameters, over h: the norm of its gradient.

    With a = ReLU(Wx + b), f = Va + c and δ = s(f) − y, the gradient has δa, δ, δV∘a′ and δV∘a′ xᵀ.
    """
    W, b, V, _ = nets.parameters()
    found = []
    for i in range(len(nets)):
        hidden = torch.addmm(b[i], x[i], W[i].T)
        back = (V[i] * (hidden > 0)).square().sum(1)
        size = 1 + hidden.relu().square().sum(1) + back * (1 + x[i].square().sum(1))
        found.append(size.sqrt())
    return torch.stack(found) * (outputs(nets, x).sigmoid() - y)[..., 0].abs()


def masked(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The mean over the chosen points of each replica."""
    return (values * chosen).sum(1) / chosen.sum(1)


def ahead(found: Results) -> np.ndarray:
    """Accuracy outside minus inside, averaged over training, of each run."""
    return (found["outer"] - found["inner"]).mean(0)


def pulled(found: Results, first: float, last: float) -> np.ndarray:
    """Push of an outer point over that of an inner one, geometric mean over the records of these steps, by run."""
    chosen = (found["steps"] > first) & (found["steps"] <= last)
    return np.exp(np.log(found["outer push"][chosen] / found["inner push"][chosen]).mean(0))


@study("fig-3.prose", "thesis, sections 3.4–3.6")
class Prose(Experiment):
    """what chapter 3 says without a figure: equipartition, the spiral from outside to inside, batch sizes

    Spirals of two turns, 20 ReLU nodes, 500 points, 25 at a time (as Figures 3.4 and 3.8): momenta, accuracy and
    pushes of single points inside and outside, lines from start to end. Spirals of three turns, 100 nodes, 1000 points
    (as Figure 3.10), with batches of 1 to 10 %.

    None of this has a figure or settings of its own: these are those of the figures nearby. Inside is the inner half
    of the radius, outside the outer quarter. LOL runs with h = 0.1: at 0.25, as in Figure 3.14, some of its weights
    grow to 100. The momenta are those of the second half of training; controlled means within half of τ, and σ² is the
    noise of minibatches in the end (3.8). The step sizes of SGD, SGLD and Adam are the best of three for each size of
    batches, chosen by the runs that are judged, in their favour. Sine against cosine has three periods (a = 6).
    """

    says = """
        the momenta have the temperature that was set, in AdLaLa
            | the magnitude of the squared momenta are approximately controlled by the set temperature value
        the momenta have the temperature that was set, in LOL
            | the magnitude of the squared momenta are approximately controlled by the set temperature value
        whatever the optimizer, the outer part of the spirals is learnt first
            | all of the classifiers tend to distinguish the outer part of the two spirals first
        with SGD outer points move the weights more than inner ones, at first
            | caused a larger change (at least initially, it typically changes after 2000 steps or so)
        and less later | it typically changes after 2000 steps or so
        with AdLaLa inner and outer points move the weights more or less equally
            | more or less equally from the outset
        barriers are lower for sine against cosine than for two turns
            | generally similar, although the height of the barrier is typically lower
        three turns: AdLaLa is ahead of SGD, SGLD and Adam as on four
            | easier 3-turn spiral data: similar trends
        with every size of batches
            | the amount of subsampling did not seem to affect the results much
        AdLaLa is less sensitive to the size of batches than SGD and Adam
            | our methods appear less sensitive to the subsampling batchsize
    """
    runs: int = at(20, quick=2, full=100)
    steps: int = at(10_000, quick=100, full=20_000)
    turn: int = at(2_000, quick=50)  # until when outer points move the weights more
    records: int = at(100, quick=10)
    line_runs: int = at(20, quick=2, long=2000, full=2000)
    line_steps: int = at(20_000, quick=50)
    points: int = at(51, quick=11)  # of a line
    batch_runs: int = at(6, quick=2, long=100, full=100)
    batch_steps: int = at(20_000, quick=20, full=50_000)
    nodes: int = at(100, quick=10)
    batches: tuple[int, ...] = at((10, 20, 50, 100), quick=(10, 50))

    def run(self, lab: Lab) -> Results:
        seed = lab.named_seed("runs")
        work: dict[Any, Any] = {("two turns", name): partial(self.grow, lab, name, seed) for name in METHODS}
        work |= {("line", *both): partial(self.line, *both, seed) for both in product(LINES, LINED)}
        for name, b in product((*SIZES, "AdLaLa"), self.batches):
            work["three turns", name, b] = partial(self.compare, lab, name, b, seed)
        return lab.pieces(work)

    def grow(self, lab: Lab, name: str, seed: int) -> Results:
        """Train some runs and watch them; in the end, what averaging their last classifiers does."""
        task = Task("spiral", {"turns": 2.0}, nodes=20, train=500, batch=25)
        nets, sets = starts(task, self.runs, seed), task.sets(self.runs, seed)
        opt = METHODS[name](nets, seed)
        options: dict[str, Any] = {"each": True, "seed": seed, "progress": False}
        calls: list[Any] = [partial(self.look, sets), *([thermometer] if name in HOT else [])]
        every = max(1, self.steps // self.records)
        path = lab.checkpoint(("two turns", name))
        log = tether.train(nets, opt, sets[:2], bce, self.steps, task.batch, every, calls, checkpoint=path, **options)
        noise = self.noise(nets, sets, task.batch)
        answers: list[torch.Tensor] = []
        keep = lambda step, model, opt: answers.append(outputs(nets, sets[2]).sigmoid())  # noqa: E731
        tether.train(nets, opt, sets[:2], bce, LAST, task.batch, 1, [keep], **options)
        mean, y = torch.stack(answers).mean(0), sets[3]
        averaged = {"averaged loss": torch.nn.functional.binary_cross_entropy(mean, y, reduction="none").mean((1, 2))}
        averaged["averaged accuracy"] = 100 * ((mean > 0.5) == (y > 0.5)).float().mean((1, 2))
        ends = {f"last {key}": x for key, x in scores(nets, *sets[2:]).items()}
        return {**log.metrics, **noise, **averaged, **ends}

    def look(self, sets: Sets, step: int, nets: Any, opt: Any) -> Results:
        """Accuracy inside and outside of the spiral, and how far single points would move the parameters."""
        _, _, x, y = sets
        right = 100.0 * ((outputs(nets, x) > 0) == (y > 0.5))[..., 0]
        push, (inner, outer) = pushes(nets, x, y), parts(x)
        found = {"steps": step, "inner": masked(right, inner), "outer": masked(right, outer)}
        return found | {"inner push": masked(push, inner), "outer push": masked(push, outer)}

    def noise(self, nets: tether.Replicas, sets: Sets, batch: int) -> Results:
        """The strength of the minibatches' noise per parameter of each layer, in the end (3.8)."""
        found = [gradient_noise(net, (x, y), batch, bce) for net, x, y in zip(nets, *sets[:2], strict=True)]
        return {f"noise {layer}": [one.noise[layer] / one.sizes[layer] for one in found] for layer in ("0", "2")}

    def line(self, data: str, name: str, seed: int) -> Results:
        """Barriers between start and end, of test loss."""
        kind, options = LINES[data]
        task = Task(kind, options, nodes=20, train=500, test=500, batch=25)
        nets, sets = starts(task, self.line_runs, seed), task.sets(self.line_runs, seed)
        start = state_of(nets)
        learn(task, METHODS[name], self.line_steps, self.line_runs, seed, nets=nets, sets=sets)
        heights, tops = [], []
        for i, net in enumerate(nets):
            state = {key: x[i] for key, x in start.items()}
            path: Any = linear_path(net, state, net.state_dict(), (sets[2][i], sets[3][i]), self.points, loss=bce)
            heights.append(path.barrier.height if path.barrier else 0.0)
            tops.append(float(path.losses.max() - path.losses[0]))
        return {"height": heights, "above the start": tops, **scores(nets, *sets[2:])}

    def compare(self, lab: Lab, name: str, batch: int, seed: int) -> Results:
        """Three turns: the test accuracy of the runs, for each step size."""
        sizes = SIZES.get(name, (0.25,))
        task = Task("spiral", {"turns": 3.0}, self.nodes, batch=batch)
        path = lab.checkpoint(("three turns", name, batch))
        size: dict[str, Any] = {"steps": self.batch_steps, "runs": self.batch_runs, "seed": seed, "checkpoint": path}
        if name == "Adam":  # torch's own has one step size
            few = {key: x for key, x in size.items() if key != "checkpoint"}
            found = [learn(task, recipe("Adam", lr=h), **few)["accuracy"][-1, 0] for h in sizes]
            return {"accuracy": torch.stack(found)}
        made = {
            "SGD": recipe("sgd", lr=each(sizes, self.batch_runs)),
            "SGLD": recipe("sgld", lr=each(sizes, self.batch_runs), noise=0.01),
            "AdLaLa": recipe("adlala", lr=0.25, friction=0.1, coupling=0.05, noise=0.01, temperature=1e-4),
        }[name]
        return {"accuracy": learn(task, made, cells=len(sizes), **size)["accuracy"][-1]}

    def best(self, results: Results, name: str, batch: int) -> np.ndarray:
        """The accuracies of the best step size."""
        cells = results["three turns", name, batch]["accuracy"]
        return cells[cells.mean(1).argmax()]

    def warm(self, found: Results, name: str) -> dict[str, np.ndarray]:
        """⟨p²⟩/τ of each tensor, by run, in the second half of training."""
        late, prefix = found["steps"] > self.steps / 2, "kinetic temperature of "
        return {
            key.removeprefix(prefix): found[key][late].mean(0) / HOT[name] for key in found if key.startswith(prefix)
        }

    def claims(self, results: Results) -> Found:
        two = within(results, "two turns")
        for name in ("AdLaLa", "LOL"):
            ratios = {key: x for key, x in self.warm(two[name], name).items() if x.mean() > 0}
            layer, h, γ = NOISY[name]
            heated = 1 + h * two[name][f"noise {layer}"].mean() / (2 * γ * HOT[name])
            said = (
                f"⟨p²⟩/τ: {listed(ratios, 2)}; in layer {layer} minibatches alone make it 1 + hσ²/(2γτ) = {heated:.2f}"
            )
            yield said, every({key: near(x, 1.0, 0.5) for key, x in ratios.items()})
        gaps = {name: ahead(found) for name, found in two.items()}
        said = f"accuracy outside minus inside, mean over training: {listed(gaps, 1, ' points')}"
        yield said, every({name: more(gap, 0.0) for name, gap in gaps.items()})
        early, late = pulled(two["SGD"], 0, self.turn), pulled(two["SGD"], self.turn, self.steps)
        yield f"{plus_minus(early, 2)} times as far, until step {self.turn:,}", more(early, 1.0)
        yield f"{plus_minus(late, 2)} times as far, after step {self.turn:,}", less(late, 1.0)
        equal = pulled(two["AdLaLa"], 0, self.turn)
        yield f"{plus_minus(equal, 2)} times as far outside, until step {self.turn:,}", near(equal, 1.0, 0.25)
        heights = {name: [results["line", data, name]["height"] for data in reversed(LINES)] for name in LINED}
        yield against(less, heights, 3, apart="the data differ", least=SLACK * math.log(2))
        ours = self.batches[1 if len(self.batches) > 2 else 0]
        said, judged = self.leads(results, ours)
        yield said, judged
        verdicts = {f"batches of {b}": self.leads(results, b)[1] for b in self.batches}
        means = {b: f"{self.best(results, 'AdLaLa', b).mean():.1f} %" for b in self.batches}
        yield f"AdLaLa {', '.join(f'{x} with {b}' for b, x in means.items())}", every(verdicts)
        yield self.spreads(results)

    def leads(self, results: Results, batch: int) -> tuple[str, Any]:
        """Is AdLaLa ahead of the others' best step sizes, run by run?"""
        found = {name: self.best(results, name, batch) for name in ("AdLaLa", *SIZES)}
        judged = {name: more(found["AdLaLa"], found[name], least=POINT) for name in SIZES}
        return f"batches of {batch}: {listed(found, 1, ' %')}", every(judged)

    def spreads(self, results: Results) -> tuple[str, Any]:
        """The range of accuracies over the sizes of batches, run by run."""
        found = {}
        for name in ("AdLaLa", "SGD", "Adam"):
            cells = np.stack([self.best(results, name, b) for b in self.batches])
            found[name] = cells.max(0) - cells.min(0)
        judged = {name: less(found["AdLaLa"], found[name], least=POINT) for name in ("SGD", "Adam")}
        return f"range over the sizes: {listed(found, 1, ' points')}", every(judged)

    def tables(self, results: Results) -> list[Table]:
        two = within(results, "two turns")
        rows = {
            name: [found[key] for key in ("last loss", "averaged loss", "last accuracy", "averaged accuracy")]
            for name, found in two.items()
        }
        head = [
            "method",
            "test loss, last step",
            f"mean of the last {LAST} classifiers",
            "accuracy %",
            f"mean of {LAST}",
        ]
        ends = [[name, *(plus_minus(x, 3 if i < 2 else 1) for i, x in enumerate(row))] for name, row in rows.items()]
        noise = [
            [name, *(f"{found[f'noise {layer}'].mean():.2g}" for layer in ("0", "2"))] for name, found in two.items()
        ]
        cells = {name: [self.best(results, name, b) for b in self.batches] for name in (*SIZES, "AdLaLa")}
        return [
            Table(head, ends, f"two turns, {self.runs} runs of {self.steps:,} steps"),
            Table(
                ["method", "hidden layer", "output layer"],
                noise,
                "variance of a minibatch's gradient per parameter (3.8)",
            ),
            crossed(["method", *(f"{b} points" for b in self.batches)], cells, "three turns, test accuracy %"),
        ]

    def draw(self, results: Results) -> Figures:
        two = within(results, "two turns")
        figure, panels = subplots(2, 2, figsize=(10, 7.4))
        (left, right), (low, last) = panels
        for style, key in (("-", "outer"), (":", "inner")):
            draw_curves(left, two if key == "outer" else {f"_{name}": one for name, one in two.items()}, key, ls=style)
        left.set(title="outer (full) and inner part (dotted)", xlabel="steps", ylabel="test accuracy %", xscale="log")
        left.legend()
        for i, (name, found) in enumerate(two.items()):
            ratio = found["outer push"] / found["inner push"]
            right.plot(found["steps"], np.exp(np.log(ratio).mean(1)), color=f"C{i}", label=name)
        right.axhline(1, color="k", lw=0.8)
        right.set(title="push of an outer point over that of an inner one", xlabel="steps", xscale="log", yscale="log")
        for i, name in enumerate(HOT):
            for key, style in (("0.weight", "-"), ("0.bias", ":")):
                series = two[name].get(f"kinetic temperature of {key}")
                if series is not None:
                    low.plot(
                        two[name]["steps"], series.mean(1) / HOT[name], style, color=f"C{3 + i}", label=f"{name}, {key}"
                    )
        low.axhline(1, color="k", lw=0.8)
        low.set(title="kinetic temperature over τ", xlabel="steps", ylabel="⟨p²⟩/τ", yscale="log")
        low.legend()
        for name in (*SIZES, "AdLaLa"):
            colour = f"C{list(METHODS).index(name)}"  # as in the other panels
            accuracies = [self.best(results, name, b) for b in self.batches]
            draw_means(last, self.batches, accuracies, label=name, color=colour)
        last.set(title="three turns", xlabel="points in a batch", ylabel="test accuracy %", xscale="log")
        last.legend()
        return {"prose": figure}
