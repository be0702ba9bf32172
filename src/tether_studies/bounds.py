"""Chapter 5's theorems on a problem whose constants are known, and its formula for the speed-up against the clock."""

import math
import statistics
import time
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import nn

import tether
from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import HELD, Judgement, every, less, near, plus_minus, yes
from tether_studies.planar import each

STEEPEST = 1 / 4  # the largest φ′², at z = 1; and |φ″| ≤ 1, at 0


def bump(z: torch.Tensor) -> torch.Tensor:
    """φ(z) = ½ log(1 + z²): smooth, 0 or more, not convex, with a bounded slope."""
    return 0.5 * torch.log1p(z**2)


def slope(z: torch.Tensor) -> torch.Tensor:
    """φ′(z) = z/(1 + z²)."""
    return z / (1 + z**2)


class Layers(nn.Module):
    """a·θ of many θ at once, each in several layers of equal size; the first axis of a parameter is the copy."""

    def __init__(self, copies: int, size: int, layers: int) -> None:
        super().__init__()
        shape = copies, size // layers
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(shape) / size**0.5) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.cat(list(self.layers), 1) * x).sum(1)


def bound(start: float, h: Any, T: int, L: float, M: float, layers: int, k: int) -> Any:
    """(5.12), with start = f(θ⁰) − f(θ*)."""
    return 2 * start / (h * T) + h * L * M * layers * (h * L * k**2 / 3 + 1)


def plain_bound(start: float, h: Any, T: int, L: float, M: float, factor: float = 2.0) -> Any:
    """(5.26) of SGD; (5.28) gives it with the factor 1."""
    return factor * start / (h * T) + h * L * M / 2


@study("theorem-5", "thesis, Theorems 5.3.3, 5.9.4, 5.9.5, equation (5.6)")
class Bounds(Experiment):
    """the gradient of multirate SGD falls below its bound, and the backward pass is as much faster as (5.6) says

    f(θ) = 1/n Σ φ(aᵢ·θ − bᵢ) with φ(z) = ½ log(1 + z²): 0 or more, not convex, with L the largest eigenvalue of
    AᵀA/n and M = ¼ max|aᵢ|². One point at a time; θ in several layers, of which the last is fast, moves by h at
    every step (Algorithm 5.1 with the slow step kh, no momentum). The mean of ‖∇f‖² is over all steps and runs. For
    (5.6) a network of equal layers is trained, full and multirate by turns.

    The thesis has no experiment. f(θ*) is the lowest value that descent with all points finds from many starts: it is
    f(θ*) or more, so the bounds are no larger than the theorems'. The step sizes were chosen after a scan of h from
    0.001 to 0.16, as those at which smaller h and smaller k come closer to a critical point. At larger steps both
    trends reverse. In a first trial with h from 0.05 to 0.4 (8 runs, 1,000 steps) ‖∇f‖² at h = 0.4 was 0.073 with k = 1
    and 0.020 with k = 10: the slope of φ vanishes far away, so that a θ thrown out of the minima has a small gradient.
    At the upper end of the range, where h max|aᵢ|² = 4hM = 2.02, the trends already end: with eight layers ‖∇f‖² no
    longer rises from k = 5 to 10 at h = 0.04, nor from h = 0.02 to 0.04 with k = 10. The theorems bound the mean of
    ‖∇f‖² at every h. That the bound falls with h and k does not say that the mean does, and the thesis does not claim
    it there. The two claims on trends are those of the chosen range alone; each compares all neighbouring values, with
    all layers. In (5.6) the final layers are the fast ones. It counts the backward pass of every layer as one; autograd
    spares the first layer that it reaches the gradient of its input, about half of its cost, so that k (2L − 1)/(2L − 1
    + (k − 1)(2ℓ − 1)) is the ratio to expect.
    """

    says = """
        the mean of ‖∇f‖² of multirate SGD is within the bound of Theorem 5.3.3
            | 2(f(θ⁰) − f(θ*))/(hT) + hLMℓ(hLk²/3 + 1)
        that of SGD is within the bound of Theorem 5.9.5 | 2(f(θ⁰) − f(θ*))/(hT) + hLM/2
        and within half of its first term, which the proof (5.28) gives | (5.28) before it is rounded up to (5.29)
        smaller steps come closer to a critical point | by decreasing the stepsize h, SGD can get closer
        and so do smaller k | smaller values of k will lower the upper bound
        the backward pass is k L/(L + (k − 1)ℓ) times as fast | (5.6)
    """
    points: int = 60
    size: int = 24  # of θ
    runs: int = at(32, quick=4, long=100, full=200)
    steps: int = at(4000, quick=40, long=20_000, full=20_000)
    rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04)
    ks: tuple[int, ...] = at((1, 2, 5, 10), quick=(1, 5))
    layers: tuple[int, ...] = at((2, 8), quick=(2,))
    depth: int = at(12, quick=4)  # layers of the network that is timed
    width: int = at(384, quick=16)
    batch: int = at(256, quick=8)
    rounds: int = at(12, quick=3, long=60)

    def run(self, lab: Lab) -> Results:
        seed = lab.named_seed("problem")
        work: dict[Any, Any] = {
            ("layers", layers, k): partial(self.descend, layers, k, seed) for layers, k in product(self.layers, self.ks)
        }
        return lab.pieces({**work, "constants": partial(self.constants, seed), "times": self.times})

    def problem(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Points a, b: half of the b are those of one θ, the others noise, so that no θ fits all."""
        g = torch.Generator().manual_seed(seed)
        A, θ = torch.randn(self.points, self.size, generator=g), torch.randn(self.size, generator=g)
        b = torch.where(torch.arange(self.points) % 2 == 0, A @ θ, torch.randn(self.points, generator=g))
        return A, b.unsqueeze(1)

    def constants(self, seed: int) -> Results:
        """L, M and the lowest value found."""
        A, b = (x.double() for x in self.problem(seed))
        L = float(torch.linalg.eigvalsh(A.T @ A / self.points)[-1])
        M = STEEPEST * float(A.square().sum(1).max())
        θ = 2 * torch.randn(200, self.size, dtype=torch.float64)
        for _ in range(min(20 * self.steps, 20_000)):
            θ -= slope(θ @ A.T - b.T) @ A / self.points / L
        return {"L": L, "M": M, "lowest": bump(θ @ A.T - b.T).mean(1).min()}

    def descend(self, layers: int, k: int, seed: int) -> Results:
        """Mean ‖∇f‖² over all steps and over the second half, step sizes × runs; and f at the start."""
        A, b = self.problem(seed)
        cells, g = len(self.rates), torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        nets, first = Layers(cells * self.runs, self.size, layers), Layers(self.runs, self.size, layers)
        with torch.no_grad():
            for p, one in zip(nets.parameters(), first.parameters(), strict=True):
                p.copy_(one.repeat(cells, 1))  # run i of every step size has the same start and the same points
            start = bump(torch.cat(list(first.layers), 1) @ A.T - b.T).mean(1)
        h: Any = each(self.rates, self.runs)
        fast = f"layers.{layers - 1}"
        opt = tether.methods.multirate_sgd(nets, fast, k, k * h, momentum=0.0, batch_dims=1)
        steps, squares = self.steps - self.steps % k, []
        for _ in range(steps):
            with torch.no_grad():
                z = torch.cat(list(nets.layers), 1) @ A.T - b.T
                squares.append((slope(z) @ A / self.points).square().sum(1))
            i = torch.randint(self.points, (self.runs,), generator=g).repeat(cells)
            opt.zero_grad()
            bump(nets(A[i]) - b[i, 0]).sum().backward()
            opt.step()
        found = torch.stack(squares).view(steps, cells, self.runs)
        return {"mean": found.mean(0), "late": found[steps // 2 :].mean(0), "start": start, "steps": steps}

    def times(self) -> Results:
        """How many times as fast multirate training is, by turns with full training, for some k and fast layers."""
        found: dict[str, list[float]] = {}
        x = torch.randn(self.batch, self.width)
        for fast, k in ((1, 5), (3, 5), (1, 10)):
            nets = [nn.Sequential(*(nn.Linear(self.width, self.width) for _ in range(self.depth))) for _ in range(2)]
            last = "|".join(f"{i}.*" for i in range(self.depth - fast, self.depth))
            opts = [tether.methods.sgd(nets[0], lr=1e-6), tether.methods.multirate_sgd(nets[1], last, k, 1e-6)]
            ratios: dict[str, list[float]] = {"backward": [], "step": []}
            for _ in range(self.rounds):
                full, rare = (self.cycle(net, opt, x, k) for net, opt in zip(nets, opts, strict=True))
                ratios["backward"].append(full[1] / rare[1])
                ratios["step"].append(sum(full) / sum(rare))
                share = full[0] / full[1] * self.depth  # of a forward pass, in backward passes of a layer
                ratios.setdefault("expected", []).append(tether.speedup(self.depth, fast, k, share))
            for key, values in ratios.items():
                found[f"{key}, {fast}, {k}"] = values
        return found

    def cycle(self, net: nn.Module, opt: Any, x: torch.Tensor, k: int) -> tuple[float, float]:
        """Seconds of the forward and of the backward passes of k steps, of processor time: others may use it, too."""
        forward, backward = 0.0, 0.0
        for _ in range(k):
            opt.zero_grad()
            began = time.process_time()
            loss = net(x).square().mean()
            middle = time.process_time()
            loss.backward()
            backward += time.process_time() - middle
            forward += middle - began
            opt.step()
        return forward, backward

    def cells(self, results: Results) -> dict[tuple[int, int, float], tuple[np.ndarray, float]]:
        """By layers, k and h: the mean of ‖∇f‖² of each run, and the bound."""
        known, found = results["constants"], {}
        L, M = float(known["L"]), float(known["M"])
        for layers, k in product(self.layers, self.ks):
            one = results["layers", layers, k]
            start = float(one["start"].mean() - known["lowest"])
            for i, h in enumerate(self.rates):
                found[layers, k, h] = one["mean"][i], bound(start, h, int(one["steps"]), L, M, layers, k)
        return found

    def claims(self, results: Results) -> Found:
        known, cells = results["constants"], self.cells(results)
        yield self.below({key: cell for key, cell in cells.items() if key[1] > 1})
        one = results["layers", self.layers[0], 1]
        start, T = float(one["start"].mean() - known["lowest"]), int(one["steps"])
        for factor in (2.0, 1.0):
            limits = {h: plain_bound(start, h, T, float(known["L"]), float(known["M"]), factor) for h in self.rates}
            yield self.below({(self.layers[0], 1, h): (one["mean"][i], limits[h]) for i, h in enumerate(self.rates)})
        yield from self.trends(results)
        yield self.clocked(results["times"])

    def trends(self, results: Results) -> Found:
        """Does ‖∇f‖² of the second half rise from every h to the next, and from every k to the next?"""
        late = {
            (layers, k, h): results["layers", layers, k]["late"][i]
            for layers, k in product(self.layers, self.ks)
            for i, h in enumerate(self.rates)
        }
        first, ends = self.layers[0], (self.ks[0], self.ks[-1])
        both = [f"k = {k}: {', '.join(f'{late[first, k, h].mean():.2g}' for h in self.rates)}" for k in ends]
        rising = {
            f"{layers} layers, k = {k}, h = {a} and {b}": less(late[layers, k, a], late[layers, k, b])
            for layers, k, (a, b) in product(self.layers, self.ks, pairwise(self.rates))
        }
        said = f"‖∇f‖² in the second half, {first} layers, h = {self.rates}: {'; '.join(both)}"
        yield self.pairs(said, rising)
        h = self.rates[-1]
        rising = {
            f"{layers} layers, h = {h}, k = {a} and {b}": less(late[layers, a, h], late[layers, b, h])
            for layers, h, (a, b) in product(self.layers, self.rates, pairwise(self.ks))
        }
        said = ", ".join(f"{late[first, k, h].mean():.2g} with k = {k}" for k in self.ks)
        yield self.pairs(f"{first} layers, h = {h}: {said}", rising)

    def pairs(self, said: str, rising: dict[str, Judgement]) -> tuple[str, Judgement]:
        """All neighbours judged together; those that do not rise are named."""
        other = {name: one for name, one in rising.items() if one.verdict != HELD}
        held = f"{len(rising) - len(other)} of {len(rising)} neighbouring pairs held"
        evidence = f"{held}; {every(other).evidence}" if other else held
        return f"{said}; {held}", every(rising)._replace(evidence=evidence)

    def below(self, cells: dict[Any, tuple[np.ndarray, float]]) -> tuple[str, Any]:
        """Is the mean of every cell, with three standard errors, below its bound?"""
        shares = {key: x.mean() / limit for key, (x, limit) in cells.items()}
        worst = max(shares, key=lambda key: shares[key])
        tops = [x.mean() + 3 * x.std(ddof=1) / math.sqrt(len(x)) - limit for x, limit in cells.values()]
        x, limit = cells[worst]
        said = f"{100 * shares[worst]:.1f} % of the bound or less: {plus_minus(x, 4)} of {limit:.3g} at the most"
        where = "at h = {2}, k = {1}, {0} layers".format(*worst)
        return f"{said} {where}", yes(max(tops) < 0, f"mean + 3 s.e. in {len(cells)} cells of {self.runs} runs")

    def clocked(self, found: Results) -> tuple[str, Any]:
        texts, judged = [], {}
        for fast, k in ((1, 5), (3, 5), (1, 10)):
            ratio, formula = found[f"backward, {fast}, {k}"], tether.speedup(self.depth, fast, k)
            texts.append(f"ℓ = {fast}, k = {k}: {statistics.median(ratio):.2f} ({formula:.2f})")
            judged[f"ℓ = {fast}, k = {k}"] = near(ratio, formula, 0.15 * formula)
        return f"L = {self.depth}, measured (formula): {'; '.join(texts)}", every(judged)

    def tables(self, results: Results) -> list[Table]:
        cells = self.cells(results)
        rows = [
            [layers, k, *(f"{cells[layers, k, h][0].mean():.4f} of {cells[layers, k, h][1]:.3g}" for h in self.rates)]
            for layers, k in product(self.layers, self.ks)
        ]
        known = results["constants"]
        caption = f"mean ‖∇f‖² of its bound (5.12); L = {known['L']:.3g}, M = {known['M']:.3g}, {self.steps:,} steps"
        found, pairs = results["times"], ((1, 5), (3, 5), (1, 10))
        medians = [
            {key: statistics.median(found[f"{key}, {l}, {k}"]) for key in ("backward", "step", "expected")}
            for l, k in pairs
        ]
        times = [
            [
                l,
                k,
                f"{one['backward']:.2f}",
                f"{tether.speedup(self.depth, l, k):.2f}",
                f"{one['step']:.2f}",
                f"{one['expected']:.2f}",
            ]
            for (l, k), one in zip(pairs, medians, strict=True)
        ]
        head = ["fast layers", "k", "backward pass", "(5.6)", "forward and backward", "tether.speedup with forward"]
        return [
            Table(["layers", "k", *(f"h = {h}" for h in self.rates)], rows, caption),
            Table(head, times, f"times as fast, {self.depth} layers of {self.width}, medians of {self.rounds} rounds"),
        ]

    def draw(self, results: Results) -> Figures:
        figure, axis = subplots(figsize=(6.4, 4.6))
        for i, k in enumerate(self.ks):
            one = results["layers", self.layers[0], k]
            limits = [self.cells(results)[self.layers[0], k, h][1] for h in self.rates]
            draw_means(axis, self.rates, one["mean"], color=f"C{i}", label=f"k = {k}")
            axis.plot(self.rates, limits, "--", color=f"C{i}")
        axis.set(xscale="log", yscale="log", xlabel="h", ylabel="mean ‖∇f‖² (dashed: its bound)")
        axis.set_xticks(self.rates, [f"{h:g}" for h in self.rates])
        axis.set_xticks([], minor=True)
        axis.set_title(f"Theorem 5.3.3, {self.layers[0]} layers, {self.runs} runs of {self.steps:,} steps")
        axis.legend()
        return {"bounds": figure}
