"""Where gradient flow on the exponential loss goes (GD-dynamics slides): the direction of the hard-margin separator.

Separable points, of which two features are always 0. The flow ẇ = Σ x e^{−w·x} (labels taken into x) never ends: the
weights grow like log t, turn to the separator of largest margin like 1/log t from every start, and those of the unseen
features stay. With ½λ|w|² there is one minimum, with a positive definite Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.measure import hard_margin, hessian_spectrum, homogeneity
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, near, yes
from tether_studies.lab import Lab
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "max-margin",
    "gradient flow on the exponential loss turns to the hard-margin separator",
    "GD-dynamics slides, exponential loss, linear networks; homogeneity",
    notes="The slides have no numbers of an experiment. The minima with λ are found by Newton's method: they are "
    "unique, so the way there does not matter.",
)
DECADE = 4  # readings
MARGIN = 0.2  # at least


@dataclass(frozen=True)
class Config:
    problems: int = at(20, quick=3, full=100)
    points: int = 30
    features: int = 4
    unseen: int = 2
    starts: int = at(4, quick=2)
    decades: int = at(12, quick=6, full=16)  # of time
    stride: float = at(0.02, quick=0.1, full=0.01)  # the longest step of the weights
    decays: tuple[float, ...] = (1e-2, 1e-4, 1e-8, 1e-12)
    widths: tuple[int, ...] = (10, 30, 20, 5)  # of the ReLU network that is stretched


def run(config: Config, lab: Lab) -> Results:
    """Angles and norms along the flow; the minima with λ; what stretching does to a network."""
    Z, start = problems(config, lab.named_seed("problems"))
    return lab.pieces(
        {
            "flow": lambda: flow(Z, start, config),
            "regularized": lambda: regularized(Z, start, config),
            "stretched": lambda: stretched(config),
        }
    )


def problems(config: Config, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points times their labels, problems × points × features; and starts, problems × starts × features."""
    noise = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, dtype=torch.float64, generator=noise)
    X, normal = draw(config.problems, config.points, config.features), draw(config.problems, 1, config.features)
    Z = X * (X * normal).sum(2, keepdim=True).sign() + MARGIN * normal / normal.norm(dim=2, keepdim=True)
    start = draw(config.problems, config.starts, config.features + config.unseen)
    return torch.cat((Z, torch.zeros(config.problems, config.points, config.unseen).double()), 2), start


def flow(Z: torch.Tensor, w: torch.Tensor, config: Config) -> Results:
    """Gradient flow, by steps as long as its speed and its stiffness allow; every net has a clock of its own."""
    steepness = Z.square().sum(2).amax(1)[:, None]
    t = torch.zeros(w.shape[:2], dtype=torch.float64)
    times = [10 ** (k / DECADE) for k in range(config.decades * DECADE + 1)]
    found = []
    for end in times:
        while bool((t < end).any()):
            pull = torch.exp(-w @ Z.mT)
            force = pull @ Z
            longest = torch.minimum(config.stride / force.norm(dim=2), 0.5 / (steepness * pull.sum(2)))
            h = torch.minimum(longest, end - t)
            # A step that rounding would leave short of the end would be taken for ever.
            t = torch.where(longest >= end - t, end, t + h)
            w = w + h.unsqueeze(2) * force
        found.append(w)
    path = torch.stack(found)
    angles, growth = to_separators(Z, path, config.features)
    half = config.decades // 2 * DECADE
    return {
        "times": times,
        "angles": angles,
        "growth": growth,
        "norms": path[..., : config.features].norm(dim=-1),
        "sideways": sideways(Z, path[-1] - path[half]),
        "between": between(path),
        "moved": (path - path[0])[..., config.features :].norm(dim=-1).max(),
        "unseen": path[..., config.features :].norm(dim=-1) / path.norm(dim=-1),
    }


def hardest(Z: torch.Tensor) -> list[Any]:
    """The hard-margin separator of every problem."""
    return [hard_margin(points, torch.ones(len(points))) for points in Z]


def sideways(Z: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """How far the weights went beside the separator's direction, over how far they went along it."""
    separators = torch.stack([one.weight for one in hardest(Z)])[:, None]
    along = separators / separators.norm(dim=2, keepdim=True)
    forward = (way * along).sum(2, keepdim=True)
    return (way - forward * along).norm(dim=2) / forward[..., 0]


def to_separators(Z: torch.Tensor, path: torch.Tensor, features: int) -> tuple[torch.Tensor, list[float]]:
    """Degrees between the seen weights and the separator, times × problems × starts; and |w| of the separators."""
    found = hardest(Z)
    separators = torch.stack([one.weight for one in found])[:, None]
    return degrees(path[..., :features], separators[..., :features]), [one.growth for one in found]


def between(path: torch.Tensor) -> torch.Tensor:
    """The largest angle between two starts of a problem, in degrees: times × problems."""
    pairs = combinations(range(path.shape[2]), 2)
    return torch.stack([degrees(path[:, :, i], path[:, :, j]) for i, j in pairs]).amax(0)


def degrees(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The angle between vectors, exact also where it is small."""
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)))


def regularized(Z: torch.Tensor, start: torch.Tensor, config: Config) -> Results:
    """Minima of Σ e^{−w·x} + ½λ|w|² by Newton's method, and the smallest eigenvalues there without and with λ."""
    reach = Z.norm(dim=2).amax(1)[:, None, None]
    results: dict[str, list[Any]] = {"spread": [], "slope": [], "angles": [], "plain": [], "with decay": []}
    for decay in config.decays:
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
        results["angles"].append(to_separators(Z, w[None, :, :1], config.features)[0][0, :, 0].tolist())
        for name, extra in (("plain", 0.0), ("with decay", decay)):
            results[name].append([smallest(points, one[0], extra) for points, one in zip(Z, w, strict=True)])
    return dict(results)


def smallest(points: torch.Tensor, w: torch.Tensor, decay: float) -> float:
    """The smallest eigenvalue of the Hessian of Σ e^{−w·x} + ½λ|w|²."""
    net = nn.Linear(len(w), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(w)
    loss = lambda output, target: torch.exp(-output).sum()  # noqa: E731
    return float(hessian_spectrum(net, (points, points), loss, regularization=decay).eigenvalues[0])


def stretched(config: Config) -> Results:
    """|Σ W ∂f/∂W − f| of every layer of a ReLU network, and |f(W) − Π ρ f(W/ρ)|, relative to the largest |f|."""
    layers: list[nn.Module] = []
    for a, b in pairwise(config.widths):
        layers += [nn.Linear(a, b, bias=False, dtype=torch.float64), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    x = torch.randn(50, config.widths[0], dtype=torch.float64)
    errors = homogeneity(net, (x, x)).errors
    with torch.no_grad():
        f, product = net(x), 1.0
        for W in net.parameters():
            product *= W.norm().item()
            W.div_(W.norm())
        off = (product * net(x) - f).abs().max() / f.abs().max()
    return {"errors": list(errors.values()), "off": off}


def claims(results: Results, config: Config) -> Claims:
    found, minima, net = results["flow"], results["regularized"], results["stretched"]
    half, late = config.decades // 2 * DECADE, len(found["times"]) - 1
    expected = math.log(found["times"][half]) / math.log(found["times"][late])
    angles, between = found["angles"], found["between"]
    beside = found["sideways"].mean(1)
    meet = between[late] / between[half]
    span = math.log(found["times"][late] / found["times"][half])
    pace = (found["norms"][late] - found["norms"][half]).mean(1) / span / found["growth"]
    fading = np.array(minima["angles"])
    plain, firm = np.array(minima["plain"]), np.array(minima["with decay"])
    ratio = (firm / np.array(config.decays)[:, None]).min()
    end, middle = f"t = 10^{config.decades}", f"t = 10^{config.decades // 2}"
    count = f"{config.problems} problems of {config.points} points, {config.starts} starts each"
    yield Claim(
        "the weights turn to the direction of the hard-margin separator",
        "w(t) = w̃ log t + g(t), g bounded: the direction tends to w̃/|w̃|",
        f"angle {angles[0].mean():.1f}° at t = 1, {angles[half].mean():.2f}° at {middle}, "
        f"{angles[late].mean():.2f}° at {end}; w went {100 * beside.mean():.1f} % as far sideways as along w̃",
        *every(
            {
                "angle": less(angles[late].mean(1), angles[half].mean(1), paired=True),
                "sideways": near(beside, 0.0, 0.05),
            }
        ),
    )
    yield Claim(
        "their norm grows like log t, with the slope |w̃| = 1/margin",
        "w(t) = w̃ log t + g(t)",
        f"slope {pace.mean():.3f} |w̃| from {middle} to {end}",
        *near(pace, 1.0, 0.05),
    )
    yield Claim(
        "from every start",
        "the convergence is independent of initial conditions",
        f"largest angle between two starts {between[0].mean():.0f}° at t = 1, {between[half].mean():.1f}° at "
        f"{middle}, {between[late].mean():.2f}° at {end}: to {meet.mean():.2f} of it",
        *near(meet, expected, 0.1),
    )
    yield Claim(
        "weights of unseen features are not changed, and normalization makes them vanish",
        "degenerate components are not changed; normalization sets them to zero asymptotically",
        f"they moved by {found['moved']:.0e}; their share of |w| is {found['unseen'][0].mean():.2f} at t = 1 and "
        f"{found['unseen'][late].mean():.3f} at {end}",
        *yes(
            bool(found["moved"] == 0 and (found["unseen"][late] < found["unseen"][half]).all()),
            f"smaller at {end} than at {middle} in each run; {count}",
        ),
    )
    yield Claim(
        "λ > 0 gives one finite minimum with a positive definite Hessian",
        "regularization restores hyperbolicity for linear nets",
        f"minima from all starts equal to {max(minima['spread']):.0e}; smallest eigenvalue {ratio:.3f} λ or more, "
        f"without λ {np.abs(plain).max():.0e}",
        *yes(
            bool(max(minima["spread"]) < 1e-6 and ratio > 0.99 and np.abs(plain).max() < 1e-12),
            f"{count}, λ from {config.decays[-1]:g} to {config.decays[0]:g}",
        ),
    )
    yield Claim(
        "for λ → 0 this minimum points to the hard-margin separator",
        "recovers the gist of Srebro's result for λ → 0",
        ", ".join(f"{x.mean():.2f}° at λ = {y:g}" for x, y in zip(fading, config.decays, strict=True)),
        *less(fading[-1], fading[0], paired=True),
    )
    yield Claim(
        "a ReLU network is homogeneous in every layer",
        "f(W; x) = Π ρ_k f(W̃; x), Σ W ∂f/∂W = f for all k",
        f"off by {max(net['errors']):.0e} in the worst of {len(net['errors'])} layers, Π ρ f(W̃) {net['off']:.0e}",
        *yes(bool(max(net["errors"]) < 1e-12 and net["off"] < 1e-12), "relative to the largest |f| of 50 points"),
    )


def tables(results: Results, config: Config) -> list[Table]:
    found = results["flow"]
    rows = [
        (
            f"10^{k // DECADE}",
            f"{found['angles'][k].mean():.3f}",
            f"{found['angles'][k].max():.3f}",
            f"{(found['norms'][k].mean(1) / found['growth']).mean():.2f}",
            f"{found['unseen'][k].mean():.3f}",
        )
        for k in range(0, len(found["times"]), DECADE)
    ]
    return [Table(("t", "angle (°)", "largest", "|w| / |w̃|", "share of unseen weights"), rows)]


def draw(results: Results, config: Config) -> Figures:
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
    right.plot(config.decays, angles, color="#c2452d", lw=0.7, alpha=0.6)
    right.plot(config.decays, angles.mean(1), "o-", color="#c2452d", lw=2)
    right.set(xscale="log", title="minimum with ½λ|w|²", xlabel="λ", ylabel="angle to the separator (°)")
    return {"max-margin": figure}
