"""Which algorithm finds which solution (Path-SGD slides): the geometry of steps, a loss that ends, AdaGrad by paths."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import more, near, yes
from tether_studies.path_adagrad import PathAdaGrad

ALGORITHMS = ("gradient descent", "coordinate descent", "exponentiated gradient", "Newton's method", "metric D")
NORMS = ("ℓ2", "ℓ1", "entropic", "Hessian", "D")


def truncated_cross_entropy(output: torch.Tensor, target: torch.Tensor, enough: float = 0.05) -> torch.Tensor:
    """The mean of max(ℓ − enough, 0), ℓ the softmax cross-entropy of a point: points that are sure have no gradient."""
    return (cross_entropy(output, target, reduction="none") - enough).clamp_min(0).mean()


def least(X: np.ndarray, y: np.ndarray, D: np.ndarray | None = None) -> np.ndarray:
    """argmin wᵀDw with Xw = y, problem by problem: D⁻¹Xᵀ(XD⁻¹Xᵀ)⁻¹y."""
    back = X.swapaxes(1, 2) if D is None else np.linalg.solve(D, X.swapaxes(1, 2))
    return (back @ np.linalg.solve(X @ back, y[..., None]))[..., 0]


def least_l1(X: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
    """argmin ‖w‖₁ with Xw = y, by the alternating direction method of multipliers."""
    inverse = np.linalg.pinv(X)

    def onto(v: np.ndarray) -> np.ndarray:
        return v - apply(inverse, apply(X, v) - y)

    z = u = np.zeros(X.shape[::2])
    for _ in range(steps):
        w = onto(z - u)
        z = np.sign(w + u) * np.maximum(np.abs(w + u) - 0.1, 0)
        u = u + w - z
    return onto(z)


def least_divergence(X: np.ndarray, y: np.ndarray, start: float, steps: int = 200) -> np.ndarray:
    """argmin Σ w log(w/w₀) − w + w₀ with Xw = y: w = w₀ exp(Xᵀν), ν by Newton's method with short steps."""
    ν = np.zeros_like(y)
    for _ in range(steps):
        w = start * np.exp(apply(X.swapaxes(1, 2), ν))
        H = (X * w[:, None, :]) @ X.swapaxes(1, 2)
        way = np.linalg.solve(H, (y - apply(X, w))[..., None])[..., 0]
        ν = ν + way / (1 + np.abs(apply(X.swapaxes(1, 2), way)).max(1, keepdims=True))
    return start * np.exp(apply(X.swapaxes(1, 2), ν))


def apply(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (A @ v[..., None])[..., 0]


@study("geometry", "Path-SGD slides, geometry of optimization, Figure 1")
class Geometry(Experiment):
    """each algorithm finds the solution that is least in its own geometry

    Underdetermined regression Xw = y, y of a sparse positive w. From 0: gradient descent; coordinate descent, which
    moves the coordinate of the largest slope by a small step; Newton's method with the Hessian XᵀX + 0.1; descent
    measured by a fixed matrix D. From 0.1: exponentiated gradient, w ← w exp(−h∇L). A linear classifier with the
    truncated softmax loss; a perceptron by Path-SGD with AdaGrad from rescaled starts.

    The slides have no experiment of their own on this. The truncated loss is not defined there: ours is
    max(ℓ − 0.05, 0). The loss is quadratic, so that a positive definite Hessian must come from the 0.1. Path-SGD with
    AdaGrad is a question on the last slide; ours is AdaGrad in the coordinates √γ w, which a rescaling does not change.
    """

    says = """
        gradient descent finds the solution of least ℓ2 norm | steepest descent w.r.t. ℓ2 norm ⟹ gradient descent
        coordinate descent finds the solution of least ℓ1 norm | steepest descent w.r.t. ℓ1 norm ⟹ coordinate descent
        exponentiated gradient finds the solution of least entropic divergence
            | mirror descent w.r.t. entropic divergence ⟹ exponentiated gradient descent
        Newton's method finds the solution of least norm in its Hessian
            | steepest descent w.r.t. quadratic norm measured by the local (PD) Hessian ⟹ Newton's method
        each is least in its own geometry
            | different optimization algorithms ⟹ different implicit regularization
        with the truncated loss training ends at finite weights | truncated softmax cross entropy loss
        Path-SGD with AdaGrad makes the same steps from rescaled starts, AdaGrad does not
            | combine Path-SGD with AdaGrad?
    """
    problems: int = at(40, quick=3, full=200)
    points: int = 20
    features: int = 60
    sparse: int = 3
    steps: int = at(20_000, quick=300)
    step: float = at(0.02, quick=0.5)  # of coordinate descent
    start: float = 0.1  # of exponentiated gradient
    path_runs: int = at(4, quick=2)
    path_steps: int = at(200, quick=5)

    def run(self, lab: Lab) -> Results:
        seed = lab.named_seed("problems")
        work = {"regression": self.regression, "truncated": self.truncated, "paths": self.paths}
        return lab.pieces({name: partial(todo, seed) for name, todo in work.items()})

    def drawn(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, y and D of each problem."""
        draw = np.random.default_rng(seed)
        X = draw.normal(size=(self.problems, self.points, self.features)) / np.sqrt(self.points)
        w = np.zeros((self.problems, self.features))
        w[:, : self.sparse] = draw.uniform(0.5, 1.5, size=(self.problems, self.sparse))
        D = np.stack([np.diag(d) for d in np.exp(draw.normal(size=(self.problems, self.features)))])
        return X, apply(X, w), D

    def regression(self, seed: int) -> Results:
        """Where each algorithm ends, the solution that should be there, and the norms of all in all geometries."""
        X, y, D = self.drawn(seed)
        Xt, eye = X.swapaxes(1, 2), np.eye(self.features)
        largest = np.linalg.norm(X, 2, axis=(1, 2))[:, None] ** 2
        H, stiff = Xt @ X + 0.1 * eye, np.linalg.norm(X @ np.linalg.inv(D) @ Xt, 2, axis=(1, 2))[:, None]
        zero, inverse = np.zeros((self.problems, self.features)), 1 / np.diagonal(D, axis1=1, axis2=2)
        ways = [w.copy() for w in (zero, zero, zero + self.start, zero, zero)]
        rows = np.arange(self.problems)
        for _ in range(self.steps):
            slopes = [apply(Xt, apply(X, w) - y) for w in ways]
            ways[0] = ways[0] - slopes[0] / largest
            j = np.abs(slopes[1]).argmax(1)
            ways[1][rows, j] -= self.step * slopes[1][rows, j]
            ways[2] = ways[2] * np.exp(-np.clip(0.5 / largest * slopes[2], -1, 1))
            ways[4] = ways[4] - inverse * slopes[4] / stiff
        for _ in range(100):
            ways[3] = ways[3] - np.linalg.solve(H, apply(Xt, apply(X, ways[3]) - y)[..., None])[..., 0]
        known = [least(X, y), least_l1(X, y, self.steps), least_divergence(X, y, self.start), least(X, y, H)]
        known.append(least(X, y, D))
        away = [np.linalg.norm(w - v, axis=1) / np.linalg.norm(v, axis=1) for w, v in zip(ways, known, strict=True)]
        norms = np.stack([self.norms(w, H, D) for w in ways])
        return {"away": np.stack(away), "norms": norms, "known": np.stack([self.norms(w, H, D) for w in known])}

    def norms(self, w: np.ndarray, H: np.ndarray, D: np.ndarray) -> np.ndarray:
        """Of one solution of each problem, in every geometry; infinite where there is none."""
        ratio = np.where(w > 0, w, 1) / self.start
        divergence = np.where((w > 0).all(1), (w * np.log(ratio) - w + self.start).sum(1), np.inf)
        squares = [np.sqrt((w * apply(A, w)).sum(1)) for A in (H, D)]
        return np.stack([np.linalg.norm(w, axis=1), np.abs(w).sum(1), divergence, *squares])

    def truncated(self, seed: int) -> Results:
        """Norms of a linear classifier of three classes over time, with both losses, and the last gradients."""
        torch.manual_seed(seed)
        centres = torch.tensor([[3.0, 0.0], [-1.5, 2.6], [-1.5, -2.6]])
        y = torch.arange(60) % 3
        x = centres[y] + 0.3 * torch.randn(60, 2)
        found: Results = {}
        for name, loss in (("plain", cross_entropy), ("truncated", truncated_cross_entropy)):
            net = nn.Linear(2, 3)
            opt, norms, gradient = tether.methods.sgd(net, lr=0.5), [], torch.zeros(())
            for _ in range(min(self.steps, 5000)):
                opt.zero_grad()
                loss(net(x), y).backward()
                gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).norm()
                opt.step()
                norms.append(net.weight.norm().item())
            found |= {f"{name} norms": norms, f"{name} gradient": gradient.item()}
        return found

    def paths(self, seed: int) -> Results:
        """Losses over time of a perceptron and of one that computes the same, by AdaGrad and by paths."""
        found: dict[str, list[Any]] = {"AdaGrad": [], "Path-SGD with AdaGrad": []}
        for run in range(self.path_runs):
            torch.manual_seed(seed + run)
            x, y = tether.data.spiral(100, turns=1, seed=seed + run)
            net = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)).double()
            for name, losses in found.items():
                pair = []
                for one in (tether.measure.rescale(net, {}), tether.measure.rescale(net, seed=run, spread=10.0)):
                    opt: Any = torch.optim.Adagrad(one.parameters(), lr=0.05)
                    opt = PathAdaGrad(one, lr=0.05) if name.startswith("Path") else opt
                    series = []
                    for _ in range(self.path_steps):
                        opt.zero_grad()
                        loss = bce(one(x.double())[:, 0], y.double())
                        loss.backward()
                        opt.step()
                        series.append(loss.item())
                    pair.append(series)
                losses.append(pair)
        return {name: np.moveaxis(np.array(losses), 0, -1) for name, losses in found.items()}  # starts × steps × runs

    def claims(self, results: Results) -> Found:
        found, count = results["regression"], f"{self.problems} problems"
        away = dict(zip(ALGORITHMS, found["away"], strict=True))
        exact = {
            name: (f"{x.max():.0e} of its norm away at the most", yes(bool(x.max() < 1e-4), count))
            for name, x in away.items()
        }
        yield exact["gradient descent"]
        excess = found["norms"][1, 1] / found["known"][1, 1]
        same = int((away["coordinate descent"] < 1e-3).sum())
        said = f"its ℓ1 norm is {excess.mean():.4f} times the least, {excess.max():.3f} at the most"
        yield f"{said}; the same solution in {same} of {count}", near(excess, 1.0, 0.01)
        yield exact["exponentiated gradient"]
        same_as = np.linalg.norm(found["norms"][3, 0] - found["norms"][0, 0]) / np.linalg.norm(found["norms"][0, 0])
        said, judgement = exact["Newton's method"]
        yield f"{said}; on these data that is the one of least ℓ2 norm (to {same_as:.0e})", judgement
        own = np.stack([found["norms"][i, i] <= (1 + 1e-6) * found["norms"][:, i].min(0) for i in range(len(NORMS))])
        said = ", ".join(f"{name} {int(x.sum())}" for name, x in zip(ALGORITHMS, own, strict=True))
        yield f"least of the five in its own geometry, of {count}: {said}", yes(bool(own.all()), count)
        one = results["truncated"]
        plain, cut = one["plain norms"], one["truncated norms"]
        said = f"‖w‖ {cut[-1]:.2f} with gradient {one['truncated gradient']:.0e}; plain {plain[-1]:.2f}, still growing"
        ended = bool(one["truncated gradient"] == 0 and plain[-1] > plain[len(plain) // 2])
        yield said, yes(ended, f"{len(plain):,} steps")
        apart = {name: self.apart(x) for name, x in results["paths"].items()}
        said = ", ".join(f"{name} {x.max():.0e}" for name, x in apart.items())
        judged = more(np.log10(apart["AdaGrad"] + 1e-16), np.log10(apart["Path-SGD with AdaGrad"] + 1e-16), by=4.0)
        yield f"largest difference of the losses: {said}", judged

    def apart(self, losses: np.ndarray) -> np.ndarray:
        """The largest difference over time between the losses of both starts, by run."""
        return np.abs(losses[0] - losses[1]).max(0)

    def tables(self, results: Results) -> list[Table]:
        found = results["regression"]
        rows = [[name, *(f"{x:.3f}" for x in found["norms"][i].mean(1))] for i, name in enumerate(ALGORITHMS)]
        rows.append(["the least there is", *(f"{found['known'][i, i].mean():.3f}" for i in range(len(NORMS)))])
        return [Table(["algorithm", *NORMS], rows, f"means over {self.problems} problems, each norm of each solution")]

    def draw(self, results: Results) -> Figures:
        figure, (left, right) = subplots(1, 2, figsize=(10, 4))
        for i, name in enumerate(ALGORITHMS):
            left.semilogy(np.sort(results["regression"]["away"][i]) + 1e-17, label=name)
        left.set(xlabel="problem, sorted", ylabel="distance to the solution of least norm, relative")
        left.legend()
        for name, losses in results["paths"].items():
            for series, style in zip(losses, ("-", "--"), strict=True):
                right.plot(series.mean(1), style, label=f"{name}{', rescaled' if style == '--' else ''}")
        right.set(xlabel="steps", ylabel="training loss")
        right.legend()
        return {"geometry": figure}
