"""How gradient descent behaves around a minimum (GD-dynamics slides): step sizes, local rates, small starts, kinks."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, hessian
from torch.nn.functional import softplus

import tether
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import more, yes

POWERS = (0.5, 1.0, 1.5, 2.0)  # γ(t) = ½ (1 + t)^−a
Energy = Callable[[torch.Tensor], torch.Tensor]


def falling(t: int, power: float) -> float:
    """(1 + t)^−a."""
    return (1.0 + t) ** -power


def settle(energy: Energy, θ: torch.Tensor, steps: int) -> torch.Tensor:
    """A minimum near θ by L-BFGS, off every saddle on the way; in the end by Newton's method."""
    for _ in range(20):
        θ = descended(energy, θ, steps)
        values, vectors = torch.linalg.eigh(hessian(energy)(θ))
        if values[0] > -1e-8:
            break
        θ = θ + 0.1 * vectors[:, 0]
    for _ in range(20):
        values, vectors = torch.linalg.eigh(hessian(energy)(θ))
        step = vectors @ ((vectors.T @ grad(energy)(θ)) / values)
        if values[0] <= 0 or grad(energy)(θ - step).norm() >= grad(energy)(θ).norm():
            break
        θ = θ - step
    return θ


def descended(energy: Energy, θ: torch.Tensor, steps: int) -> torch.Tensor:
    x = θ.clone().requires_grad_()
    limits: dict[str, Any] = {"tolerance_grad": 1e-12, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    opt = torch.optim.LBFGS([x], max_iter=steps, **limits)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        value = energy(x)
        value.backward()
        return value

    opt.step(closure)
    return x.detach()


def unfolded(net: nn.Module, θ: torch.Tensor) -> dict[str, torch.Tensor]:
    """A vector as the parameters of a network."""
    shapes = {name: p.shape for name, p in net.named_parameters()}
    pieces = θ.split([math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


class Smooth(nn.Module):
    """softplus(βz)/β, which is a ReLU for β → ∞."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return softplus(self.sharpness * z) / self.sharpness


def perceptron(nodes: int, activation: nn.Module, inputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, nodes), activation, nn.Linear(nodes, 1)).double()


def energy_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor, decay: float) -> Energy:
    """½ Σ (f − y)² + ½ λ |θ|²."""

    def energy(θ: torch.Tensor) -> torch.Tensor:
        f = functional_call(net, unfolded(net, θ), (x,))
        return 0.5 * (f - y).square().sum() + 0.5 * decay * θ.square().sum()

    return energy


def on_kinks(x: torch.Tensor, state: dict[str, torch.Tensor], near: float) -> int:
    """At how many points a unit switches: its input is `near` 0. Units whose weights decay to nothing are left out."""
    z, v = x @ state["0.weight"].T + state["0.bias"], state["2.weight"][0].abs()
    return int((z.abs() < near)[:, v > 0.01 * v.max()].sum())


@study("local-rates", "GD-dynamics slides, learning rate; Hartman–Grobman; deep networks")
class LocalRates(Experiment):
    """near a hyperbolic minimum gradient descent is its linear part; elsewhere it is not

    Step sizes γ(t) = ½ (1 + t)^−a on ½x², with and without noise. A tanh perceptron with weight decay: its minimum, the
    eigenvalues there, and how fast gradient descent comes back along each eigenvector; the flattest direction without
    decay. Tanh perceptrons from small starts on four points, beside those trained with a little decay. A perceptron
    with softplus(βz)/β and decay, followed from β = 1 to a ReLU.

    The slides have no numbers of an experiment. Minima are found by L-BFGS and Newton's method, in double precision.
    The least norm is not known: the reference is the lowest of all that were trained with decay, which is that or more.
    """

    says = """
        x goes to 0 if and only if the integral of γ is infinite | for convergence to minimum we need ∫γ(t)dt → ∞
        against noise γ must go to 0 as well | for robustness against noise we also need γ(t) → 0
        perturbations of a hyperbolic minimum die out at the rates of the Hessian's eigenvalues
            | Hartman–Grobman: the flow is topologically conjugate to u̇ = −Hu
        those of a degenerate minimum persist | perturbations during GD will change final W
        small starts of a nonlinear network do not end at the least norm
            | unlike the linear case we cannot guarantee that starting with W ≈ 0 the solution will be min. norm
        weight decay makes minima of a ReLU network hyperbolic
            | regularization can transform degenerate Hessian at a min into hyperbolic min
    """
    entries: int = at(1000, quick=100)
    long: int = at(5_000, quick=200)  # steps with γ(t)
    runs: int = at(8, quick=1, full=50)
    nodes: int = at(4, quick=2)
    decay: float = 0.05
    steps: int = at(2000, quick=30)  # of L-BFGS
    back: int = at(200, quick=5)  # steps, at the most, over which a rate is measured
    small_runs: int = at(40, quick=4, full=200)
    small_steps: int = at(50_000, quick=20)
    spread: float = 0.01  # of small starts; 0.5 with decay
    sharp: tuple[float, ...] = at((1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0), quick=(1.0, 10.0))

    def run(self, lab: Lab) -> Results:
        work: dict[Any, Any] = {"clock": self.clock}
        for i in range(self.runs):
            seed = lab.named_seed(f"run {i}")
            work |= {("rates", i): partial(self.rates, seed), ("kinks", i): partial(self.kinks, seed)}
        return lab.pieces({**work, "small": partial(self.small, lab.named_seed("small"))})

    def clock(self) -> Results:
        """After a tenth of the steps and all: |x| for each a, and the spread with noise, γ = ½ and γ = 1/(1 + t)."""
        falls = {f"{a}": self.descend(partial(falling, power=a), 0.0) for a in POWERS}
        found: Results = {name: [x.abs().mean().item() for x in both] for name, both in falls.items()}
        for name, factor in (("constant", lambda t: 1.0), ("falling", lambda t: 2.0 / (1 + t))):
            found[name] = [x.std().item() for x in self.descend(factor, 1.0)]
        return found

    def descend(self, factor: Callable[[int], float], noise: float) -> list[torch.Tensor]:
        """x ← x − γ(t) (x + u) from 1, u normal: x after a tenth of the steps and in the end."""
        x, found = nn.Parameter(torch.ones(self.entries, dtype=torch.float64)), []
        opt = tether.Optimizer([("x", x)], lr=0.5)
        clock = tether.Schedule(opt, "lr", factor)
        g = torch.Generator().manual_seed(0)
        for step in range(self.long):
            x.grad = x.detach() + noise * torch.randn(self.entries, dtype=torch.float64, generator=g)
            opt.step()
            clock.step()
            if step + 1 in (self.long // 10, self.long):
                found.append(x.detach().clone())
        return found

    def task(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(6, 2, dtype=torch.float64, generator=g)
        return x, torch.sin(2 * x[:, :1]) * x[:, 1:]

    def rates(self, seed: int) -> Results:
        """Measured rates of return along each eigenvector over 1 − hλ, with decay; what is left of them without."""
        torch.manual_seed(seed)
        x, y = self.task(seed)
        net = perceptron(self.nodes, nn.Tanh())
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        energy = energy_of(net, x, y, self.decay)
        θ = settle(energy, start, self.steps)
        values, vectors = torch.linalg.eigh(hessian(energy)(θ))
        measured = self.returns(net, x, y, self.decay, θ, values, vectors)
        wide = perceptron(4 * self.nodes, nn.Tanh())  # more parameters than points: degenerate without decay
        first = torch.cat([p.detach().flatten() for p in wide.parameters()])
        free = energy_of(wide, x, y, 0.0)
        φ = settle(free, first, self.steps)
        flat, along = torch.linalg.eigh(hessian(free)(φ))
        left = self.returns(wide, x, y, 0.0, φ, flat, along, 1)[0]
        slope = grad(energy)(θ).norm()
        return {
            "eigenvalues": values,
            "rates": measured,
            "slope": slope,
            "flat": flat[0].abs() / flat[-1],
            "left": left,
        }

    def returns(
        self, net: nn.Module, x: Any, y: Any, decay: float, θ: Any, values: Any, vectors: Any, most: int | None = None
    ) -> torch.Tensor:
        """The factor by which a step of gradient descent shortens a small perturbation, for each eigenvector."""
        h, found = 0.5 / values[-1].item(), []
        for value, vector in zip(values[:most], vectors.T[:most], strict=True):
            steps = int(min(self.back, max(2, 1 / (h * abs(value.item()) + 1e-12))))
            with torch.no_grad():
                for name, p in unfolded(net, θ + 1e-5 * vector).items():
                    net.get_parameter(name).copy_(p)
            opt = tether.methods.sgd(net, lr=h, weight_decay=decay)
            for _ in range(steps):
                opt.zero_grad()
                (0.5 * (net(x) - y).square().sum()).backward()
                opt.step()
            now = torch.cat([p.detach().flatten() for p in net.parameters()]) - θ
            found.append(((now @ vector) / 1e-5).abs() ** (1 / steps))
        return torch.stack(found)

    def small(self, seed: int) -> Results:
        """|θ| and loss of networks from small starts without decay, and of networks trained with a little."""
        x = torch.tensor([[-1.5], [-0.5], [0.5], [1.5]], dtype=torch.float64)
        y = torch.tensor([[1.0], [-1.0], [0.0], [1.0]], dtype=torch.float64)
        found: Results = {}
        for name, scale, decay in (("small", self.spread, 0.0), ("decayed", 0.5, 1e-4)):
            torch.manual_seed(seed)
            shapes = {"W": 10, "b": 10, "V": 10, "c": 1}  # networks side by side
            net = nn.ParameterDict(
                {key: nn.Parameter(scale * torch.randn(self.small_runs, n).double()) for key, n in shapes.items()}
            )
            opt = tether.methods.sgd(net, lr=0.1, weight_decay=decay, batch_dims=1)
            for _ in range(self.small_steps):
                opt.zero_grad()
                hidden = torch.tanh(x * net["W"].unsqueeze(1) + net["b"].unsqueeze(1))
                squares = ((hidden * net["V"].unsqueeze(1)).sum(2) + net["c"] - y.T).square().mean(1)
                squares.sum().backward()
                opt.step()
            norms = torch.cat([p.detach() for p in net.parameters()], 1).norm(dim=1)
            found |= {f"{name} norm": norms, f"{name} loss": squares.detach()}
        return found

    def kinks(self, seed: int) -> Results:
        """The minimum with decay for each β: smallest eigenvalue, slope, and how many inputs of units lie on a kink."""
        torch.manual_seed(seed)
        x, y = self.task(seed)
        θ = torch.cat([p.detach().flatten() for p in perceptron(self.nodes, nn.ReLU()).parameters()])
        found: dict[str, list[float]] = {"eigenvalue": [], "slope": [], "energy": [], "on kinks": []}
        for β in self.sharp:
            net = perceptron(self.nodes, Smooth(β))
            energy = energy_of(net, x, y, self.decay)
            θ = settle(energy, θ, self.steps)
            found["eigenvalue"].append(torch.linalg.eigvalsh(hessian(energy)(θ))[0].item())
            found["slope"].append(grad(energy)(θ).norm().item())
            found["energy"].append(energy(θ).item())
            found["on kinks"].append(float(on_kinks(x, unfolded(net, θ), 5 / β)))
        return dict(found)

    def claims(self, results: Results) -> Found:
        clock = results["clock"]
        ratios = {a: float(clock[f"{a}"][1] / max(clock[f"{a}"][0], 1e-300)) for a in POWERS}
        said = ", ".join(f"a = {a:g}: {clock[f'{a}'][1]:.2g}" for a in POWERS)
        held = all(ratios[a] < 0.5 if a <= 1 else ratios[a] > 0.9 for a in POWERS)
        more_steps = ", ".join(f"{x:.2g}" for x in ratios.values())
        yield f"|x| after {self.long:,} steps, {said}", yes(held, f"over that after a tenth of the steps: {more_steps}")
        kept, gone = clock["constant"], clock["falling"]
        said = f"spread {kept[1]:.3f} with γ = ½, {gone[1]:.4f} with γ = 1/(1 + t), after {self.long:,} steps"
        yield said, yes(bool(kept[1] > 0.9 * kept[0] and gone[1] < 0.5 * gone[0]), f"{self.entries} entries")
        yield self.conjugate(results)
        left = np.array([float(results["rates", i]["left"]) for i in range(self.runs)])
        flat = max(float(results["rates", i]["flat"]) for i in range(self.runs))
        said = f"a step leaves {left.min():.6f} of it in the flattest direction, of {flat:.0e} the largest eigenvalue"
        yield said, yes(bool(left.min() > 0.999), f"{self.runs} networks")
        small = results["small"]
        fits = small["small loss"] < 1e-3
        good = small["decayed norm"][small["decayed loss"] < 0.05]
        if not fits.any() or not len(good):
            yield f"{int(fits.sum())} small starts and {len(good)} with decay fit the points", more([0.0], 0.0)
        else:
            over = small["small norm"][fits] / good.min()
            said = f"|θ| is {over.mean():.3f} times that of the lowest with decay, {over.min():.3f} to {over.max():.3f}"
            yield f"{said}, {int(fits.sum())} of {len(fits)} fit the points", more(over, 1.0)
        yield self.hyperbolic(results)

    def conjugate(self, results: Results) -> tuple[str, Any]:
        worst, least, steepest = 0.0, math.inf, 0.0
        for i in range(self.runs):
            found = results["rates", i]
            expected = 1 - 0.5 * found["eigenvalues"] / found["eigenvalues"][-1]
            worst = max(worst, float(np.abs(found["rates"] - expected).max()))
            least = min(least, float(found["eigenvalues"][0]))
            steepest = max(steepest, float(found["slope"]))
        said = f"factors of a step off 1 − hλ by {worst:.0e} at the most; eigenvalues {least:.2g} or more"
        return said, yes(worst < 1e-3 and least > 0, f"{self.runs} networks, all eigenvectors; slope {steepest:.0e}")

    def hyperbolic(self, results: Results) -> tuple[str, Any]:
        found = [results["kinks", i] for i in range(self.runs)]
        eigenvalues = np.array([one["eigenvalue"] for one in found])  # runs × β
        kinks = np.array([one["on kinks"][-1] for one in found])
        slopes = max(one["slope"][-1] for one in found)
        texts = ", ".join(f"{x.min():.2g} at β = {β:g}" for x, β in zip(eigenvalues.T, self.sharp, strict=True))
        said = f"smallest eigenvalue {texts}; in {(kinks > 0).sum()} of {self.runs} networks units switch at points"
        return said, yes(bool((eigenvalues > 1e-6).all()), f"λ = {self.decay}, slopes below {slopes:.0e}")

    def tables(self, results: Results) -> list[Table]:
        found = [results["kinks", i] for i in range(self.runs)]
        keys = ("eigenvalue", "energy", "on kinks", "slope")
        means = {β: [np.mean([one[key][j] for one in found]) for key in keys] for j, β in enumerate(self.sharp)}
        rows = [[f"{β:g}", *(f"{x:.3g}" for x in row)] for β, row in means.items()]
        head = ["β", "smallest eigenvalue", "energy", "points on kinks", "slope"]
        return [Table(head, rows, f"means over {self.runs} networks of {self.nodes} nodes, λ = {self.decay}")]

    def draw(self, results: Results) -> Figures:
        figure, (left, right) = subplots(1, 2, figsize=(9, 3.8))
        for i in range(self.runs):
            one = results["rates", i]
            left.plot(1 - 0.5 * one["eigenvalues"] / one["eigenvalues"][-1], one["rates"], ".", color="#1f5fa8")
            right.plot(self.sharp, np.maximum(results["kinks", i]["eigenvalue"], 1e-12), "o-", color="#c2452d", lw=0.7)
        left.plot([0.4, 1], [0.4, 1], "k--", lw=0.8)
        left.set(xlabel="1 − hλ", ylabel="factor of a step", title="return to a hyperbolic minimum")
        right.set(xscale="log", yscale="log", xlabel="β", ylabel="smallest eigenvalue", title="softplus(βz)/β → ReLU")
        return {"local-rates": figure}
