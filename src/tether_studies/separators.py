import math
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure import hard_margin, hessian_spectrum, homogeneity
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import every, less, near, yes

DECADE = 4  # readings
MARGIN = 0.2  # at least


def separators(Z: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """The hard-margin separator of every problem, and its |w|."""
    found: list[Any] = [hard_margin(points, torch.ones(len(points))) for points in Z]
    return torch.stack([one.weight for one in found])[:, None], [one.growth for one in found]


def sideways(Z: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """How far the weights went beside the separator's direction, over how far they went along it."""
    along = nn.functional.normalize(separators(Z)[0], dim=2)
    forward = (way * along).sum(2, keepdim=True)
    return (way - forward * along).norm(dim=2) / forward[..., 0]


def between(path: torch.Tensor) -> torch.Tensor:
    """The largest angle between two starts of a problem, in degrees: times × problems."""
    pairs = combinations(range(path.shape[2]), 2)
    return torch.stack([degrees(path[:, :, i], path[:, :, j]) for i, j in pairs]).amax(0)


def degrees(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The angle between vectors, exact also where it is small."""
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)))


def smallest(points: torch.Tensor, w: torch.Tensor, decay: float) -> float:
    """The smallest eigenvalue of the Hessian of Σ e^{−w·x} + ½λ|w|²."""
    net = nn.Linear(len(w), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(w)
    loss = lambda output, target: torch.exp(-output).sum()  # noqa: E731
    return float(hessian_spectrum(net, (points, points), loss, regularization=decay).eigenvalues[0])


@study("max-margin", "GD-dynamics slides, exponential loss, linear networks; homogeneity")
class Separators(Experiment):
    """gradient flow on the exponential loss turns to the hard-margin separator

    Separable points, of which two features are always 0. The flow ẇ = Σ x e^{−w·x} (labels taken into x) never ends:
    the weights grow like log t, turn to the separator of largest margin like 1/log t from every start, and those of the
    unseen features stay. With ½λ|w|² there is one minimum, with a positive definite Hessian.

    The slides have no numbers of an experiment. The minima with λ are found by Newton's method: they are unique, so the
    way there does not matter.
    """

    says = """
        the weights turn to the direction of the hard-margin separator
            | w(t) = w̃ log t + g(t), g bounded: the direction tends to w̃/|w̃|
        their norm grows like log t, with the slope |w̃| = 1/margin | w(t) = w̃ log t + g(t)
        from every start | the convergence is independent of initial conditions
        weights of unseen features are not changed, and normalization makes them vanish
            | degenerate components are not changed; normalization sets them to zero asymptotically
        λ > 0 gives one finite minimum with a positive definite Hessian
            | regularization restores hyperbolicity for linear nets
        for λ → 0 this minimum points to the hard-margin separator | recovers the gist of Srebro's result for λ → 0
        a ReLU network is homogeneous in every layer | f(W; x) = Π ρ_k f(W̃; x), Σ W ∂f/∂W = f for all k
    """
    problems: int = at(20, quick=3, full=100)
    points: int = 30
    features: int = 4
    unseen: int = 2
    starts: int = at(4, quick=2)
    decades: int = at(12, quick=6, full=16)  # of time
    stride: float = at(0.02, quick=0.1, full=0.01)  # the longest step of the weights
    decays: tuple[float, ...] = (1e-2, 1e-4, 1e-8, 1e-12)
    widths: tuple[int, ...] = (10, 30, 20, 5)  # of the ReLU network that is stretched

    def run(self, lab: Lab) -> Results:
        """Angles and norms along the flow; the minima with λ; what stretching does to a network."""
        drawn = self.drawn(lab.named_seed("problems"))
        work: dict[str, Any] = {"flow": partial(self.flow, *drawn), "regularized": partial(self.regularized, *drawn)}
        return lab.pieces({**work, "stretched": self.stretched})

    def drawn(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Points times their labels, problems × points × features; and starts, problems × starts × features."""
        draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        X, normal = draw(self.problems, self.points, self.features), draw(self.problems, 1, self.features)
        Z = X * (X * normal).sum(2, keepdim=True).sign() + MARGIN * normal / normal.norm(dim=2, keepdim=True)
        start = draw(self.problems, self.starts, self.features + self.unseen)
        return torch.cat((Z, torch.zeros(self.problems, self.points, self.unseen).double()), 2), start

    def flow(self, Z: torch.Tensor, w: torch.Tensor) -> Results:
        """Gradient flow, by steps as long as its speed and its stiffness allow; every net has a clock of its own."""
        steepness = Z.square().sum(2).amax(1)[:, None]
        t = torch.zeros(w.shape[:2], dtype=torch.float64)
        times = [10 ** (k / DECADE) for k in range(self.decades * DECADE + 1)]
        found = []
        for end in times:
            while bool((t < end).any()):
                pull = torch.exp(-w @ Z.mT)
                force = pull @ Z
                longest = torch.minimum(self.stride / force.norm(dim=2), 0.5 / (steepness * pull.sum(2)))
                h = torch.minimum(longest, end - t)
                # A step that rounding would leave short of the end would be taken for ever.
                t = torch.where(longest >= end - t, end, t + h)
                w = w + h.unsqueeze(2) * force
            found.append(w)
        path, (hardest, growth) = torch.stack(found), separators(Z)
        seen, unseen = path.split([self.features, path.shape[3] - self.features], -1)
        return {
            "times": times,
            "angles": degrees(seen, hardest[..., : self.features]),
            "growth": growth,
            "norms": seen.norm(dim=-1),
            "sideways": sideways(Z, path[-1] - path[self.decades // 2 * DECADE]),
            "between": between(path),
            "moved": (unseen - unseen[0]).norm(dim=-1).max(),
            "unseen": unseen.norm(dim=-1) / path.norm(dim=-1),
        }

    def regularized(self, Z: torch.Tensor, start: torch.Tensor) -> Results:
        """Minima of Σ e^{−w·x} + ½λ|w|² by Newton's method, and the smallest eigenvalues there without and with λ."""
        reach, hardest = Z.norm(dim=2).amax(1)[:, None, None], separators(Z)[0][:, 0, : self.features]
        results: dict[str, list[Any]] = {"spread": [], "slope": [], "angles": [], "plain": [], "with decay": []}
        for decay in self.decays:
            w = start
            for _ in range(5000):
                pull = torch.exp(-w @ Z.mT)
                slope = decay * w - pull @ Z
                H = torch.einsum("psn,pni,pnj->psij", pull, Z, Z) + decay * torch.eye(w.shape[2]).double()
                way = torch.linalg.solve(H, slope.unsqueeze(3)).squeeze(3)
                w = w - way / (1 + reach * way.norm(dim=2, keepdim=True))
                if way.norm(dim=2).max() < 1e-12:
                    break
            results["spread"].append(float(((w - w[:, :1]).norm(dim=2) / w.norm(dim=2)).max()))
            results["slope"].append(float((slope.norm(dim=2) / (decay * w.norm(dim=2))).max()))
            results["angles"].append(degrees(w[:, 0, : self.features], hardest).tolist())
            for name, extra in (("plain", 0.0), ("with decay", decay)):
                results[name].append([smallest(points, one[0], extra) for points, one in zip(Z, w, strict=True)])
        return dict(results)

    def stretched(self) -> Results:
        """|Σ W ∂f/∂W − f| of every layer of a ReLU network, and |f(W) − Π ρ f(W/ρ)|, relative to the largest |f|."""
        linear = partial(nn.Linear, bias=False, dtype=torch.float64)
        layers = [layer for a, b in pairwise(self.widths) for layer in (linear(a, b), nn.ReLU())]
        net = nn.Sequential(*layers[:-1])
        x = torch.randn(50, self.widths[0], dtype=torch.float64)
        errors = homogeneity(net, (x, x)).errors
        with torch.no_grad():
            f, product = net(x), 1.0
            for W in net.parameters():
                product *= W.norm().item()
                W.div_(W.norm())
            off = (product * net(x) - f).abs().max() / f.abs().max()
        return {"errors": list(errors.values()), "off": off}

    def claims(self, results: Results) -> Found:
        found, minima, net = results["flow"], results["regularized"], results["stretched"]
        half, late, times = self.decades // 2 * DECADE, self.decades * DECADE, found["times"]
        end, middle = f"t = 10^{self.decades}", f"t = 10^{self.decades // 2}"
        count = f"{self.problems} problems of {self.points} points, {self.starts} starts each"
        first, then, last = (found["angles"][i].mean(1) for i in (0, half, late))
        beside = found["sideways"].mean(1)
        said = f"angle {first.mean():.1f}° at t = 1, {then.mean():.2f}° at {middle}, {last.mean():.2f}° at {end}"
        turns = {"angle": less(last, then), "sideways": near(beside, 0.0, 0.05)}
        yield f"{said}; w went {100 * beside.mean():.1f} % as far sideways as along w̃", every(turns)
        grown = (found["norms"][late] - found["norms"][half]).mean(1)
        pace = grown / math.log(times[late] / times[half]) / found["growth"]
        yield f"slope {pace.mean():.3f} |w̃| from {middle} to {end}", near(pace, 1.0, 0.05)
        first, then, last = (found["between"][i] for i in (0, half, late))
        meet = last / then
        said = f"largest angle between two starts {first.mean():.0f}° at t = 1, {then.mean():.1f}° at {middle}"
        expected = math.log(times[half]) / math.log(times[late])
        yield f"{said}, {last.mean():.2f}° at {end}: to {meet.mean():.2f} of it", near(meet, expected, 0.1)
        first, then, last = (found["unseen"][i] for i in (0, half, late))
        vanish = bool(found["moved"] == 0 and (last < then).all())
        said = f"their share of |w| is {first.mean():.2f} at t = 1 and {last.mean():.3f} at {end}"
        evidence = f"smaller at {end} than at {middle} in each run; {count}"
        yield f"they moved by {found['moved']:.0e}; {said}", yes(vanish, evidence)
        spread, plain = max(minima["spread"]), np.abs(minima["plain"]).max()
        ratio = (minima["with decay"] / np.array(self.decays)[:, None]).min()
        said = f"smallest eigenvalue {ratio:.3f} λ or more, without λ {plain:.0e}"
        evidence = f"{count}, λ from {self.decays[-1]:g} to {self.decays[0]:g}"
        one = bool(spread < 1e-6 and ratio > 0.99 and plain < 1e-12)
        yield f"minima from all starts equal to {spread:.0e}; {said}", yes(one, evidence)
        fading = np.array(minima["angles"])
        said = ", ".join(f"{x.mean():.2f}° at λ = {y:g}" for x, y in zip(fading, self.decays, strict=True))
        yield said, less(fading[-1], fading[0])
        worst, off = max(net["errors"]), net["off"]
        said = f"off by {worst:.0e} in the worst of {len(net['errors'])} layers, Π ρ f(W̃) {off:.0e}"
        yield said, yes(bool(worst < 1e-12 and off < 1e-12), "relative to the largest |f| of 50 points")

    def tables(self, results: Results) -> list[Table]:
        found, rows = results["flow"], []
        for k in range(0, len(found["times"]), DECADE):
            angles, grown = found["angles"][k], (found["norms"][k].mean(1) / found["growth"]).mean()
            numbers = (
                f"{angles.mean():.3f}",
                f"{angles.max():.3f}",
                f"{grown:.2f}",
                f"{found['unseen'][k].mean():.3f}",
            )
            rows.append((f"10^{k // DECADE}", *numbers))
        return [Table(("t", "angle (°)", "largest", "|w| / |w̃|", "share of unseen weights"), rows)]

    def draw(self, results: Results) -> Figures:
        found = results["flow"]
        times, late = found["times"], len(found["times"]) // 2
        figure, (left, middle, right) = subplots(1, 3, figsize=(11, 3.6))
        flat = found["angles"].reshape(len(times), -1)
        left.plot(times, flat, color="#1f5fa8", lw=0.5, alpha=0.3)
        left.plot(times, flat.mean(1), color="#1f5fa8", lw=2, label="mean over problems and starts")
        scale = flat.mean(1)[late] * math.log(times[late])
        left.plot(times[DECADE:], scale / np.log(times[DECADE:]), "k--", lw=1, label="∝ 1/log t")
        left.set(xscale="log", yscale="log", title="direction", xlabel="t", ylabel="angle to the separator (°)")
        left.set_ylim(max(flat[late:].min(), 1e-2) / 2, 180)
        left.legend()
        norms = found["norms"].mean(2) / found["growth"]
        middle.plot(times, norms, color="#1f5fa8", lw=0.7, alpha=0.6)
        middle.plot(times, norms[-1].mean() + np.log(times / times[-1]), "k--", lw=1, label="slope 1/margin")
        middle.set(xscale="log", title="norm", xlabel="t", ylabel="|w| × margin", ylim=(0, None))
        middle.legend()
        angles = np.array(results["regularized"]["angles"])
        right.plot(self.decays, angles, color="#c2452d", lw=0.7, alpha=0.6)
        right.plot(self.decays, angles.mean(1), "o-", color="#c2452d", lw=2)
        right.set(xscale="log", title="minimum with ½λ|w|²", xlabel="λ", ylabel="angle to the separator (°)")
        return {"max-margin": figure}
