"""The pictures of the pages on ideas, drawn by the library itself when the site is built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import tether

__all__ = ["PICTURES", "picture"]

FOLDER = Path(__file__).resolve().parents[1] / "_pictures"  # not committed
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito: told apart by everybody


def picture(arguments: str) -> str:
    """The Markdown of a picture, `NAME what it shows`, which is drawn if it is not there yet."""
    name, _, what = arguments.partition(" ")
    path = FOLDER / f"{name}.svg"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        with plt.rc_context({"svg.hashsalt": name, "font.size": 9, "axes.prop_cycle": plt.cycler(color=COLOURS)}):
            figure = PICTURES[name]()
            figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
            plt.close(figure)
    return f"![{what}](/_pictures/{name}.svg)"


def particles(energy: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int, **fields: Any) -> Any:
    """Points that move by a word, and the states after each step."""
    q = nn.Parameter(start.clone())
    opt, states = tether.Optimizer([("q", q)], **fields), []
    for _ in range(steps):
        opt.zero_grad()
        energy(q).sum().backward()
        opt.step()
        states.append(q.detach().clone())
    return torch.stack(states)


def double_well(q: torch.Tensor) -> torch.Tensor:
    """Minima at −1 and 1, a barrier of 1."""
    return (q**2 - 1) ** 2


def density(energy: Callable[[torch.Tensor], torch.Tensor], τ: float, x: torch.Tensor) -> torch.Tensor:
    """exp(−U/τ), with integral 1 over x."""
    ρ = torch.exp(-energy(x) / τ)
    return ρ / torch.trapezoid(ρ, x)


def rough_well(q: torch.Tensor) -> torch.Tensor:
    """A parabola with ripples: |U″| ≤ 5.5."""
    return q**2 / 2 + torch.cos(3 * q) / 2


def words() -> plt.Figure:
    """⟨q²⟩ against the step size."""
    figure, axis = plt.subplots(figsize=(5, 3.2))
    x = torch.linspace(-8, 8, 4001)
    exact = float(torch.trapezoid(x**2 * density(rough_well, 1.0, x), x))
    sizes = (0.2, 0.3, 0.45, 0.7)
    for word, mark in (("X", "s"), ("OBA", "^"), ("ABOBA", "v"), ("BAOAB", "o")):
        averages = []
        for h in sizes:
            step = h**2 / 2 if word == "X" else h  # the same way in a step, in the limit of large friction
            count = int(60 / h)
            q = particles(rough_well, torch.zeros(20_000), 2 * count, lr=step, word=word, temperature=1.0)
            averages.append(float(q[count:].square().mean()))
        axis.plot(sizes, averages, marker=mark, label=word)
    axis.axhline(exact, color="k", ls="--", label="exact")
    axis.set(xlabel="step size h", ylabel="⟨q²⟩", title="U = q²/2 + cos(3q)/2, τ = 1")
    axis.legend()
    return figure


def parts() -> plt.Figure:
    """Two layers of one network at two temperatures."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 200), nn.Tanh(), nn.Linear(200, 1))
    x, y = tether.data.spiral(200, turns=1.0, seed=0)
    hot, cold = tether.Part("0.*", temperature=1e-3), tether.Part("2.*", temperature=1e-5)
    opt = tether.Optimizer(net, [hot, cold], lr=0.1, word="BAOAB", friction=10.0)
    seen = []
    for _ in range(600):
        opt.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y.float()).backward()
        opt.step()
        seen.append(opt.temperature())
    figure, axis = plt.subplots(figsize=(5, 3))
    for i, (where, τ) in enumerate((("0.*", 1e-3), ("2.*", 1e-5))):
        axis.semilogy([float(one[where]) for one in seen], color=COLOURS[i], lw=0.6, label=f"part {where}, τ = {τ:g}")
        axis.axhline(τ, color=COLOURS[i], ls="--")
    axis.set(xlabel="step", ylabel="kinetic temperature", title="One network, two temperatures")
    axis.legend()
    return figure


def temperature() -> plt.Figure:
    """Histograms of a double well at three temperatures, and exp(−U/τ)."""
    figure, axis = plt.subplots(figsize=(5, 3))
    x = torch.linspace(-2, 2, 400)
    for i, τ in enumerate((0.05, 0.3, 1.0)):
        start = torch.cat([torch.ones(4000), -torch.ones(4000)])
        q = particles(double_well, start, 200, lr=0.2, word="BAOAB", temperature=τ)[100::20].flatten()
        axis.hist(q.numpy(), bins=80, range=(-2, 2), density=True, alpha=0.4, color=COLOURS[i])
        axis.plot(x, density(double_well, τ, x), color=COLOURS[i], label=f"exp(−U/τ), τ = {τ:g}")
    axis.set(xlabel="q", title="BAOAB in a double well (bars) and what it should sample (lines)")
    axis.legend()
    return figure


def surfaces() -> plt.Figure:
    """A Langevin path on a sphere, on a torus by its equation, and of bounded weights."""
    figure = plt.figure(figsize=(9, 3))
    torch.manual_seed(0)
    sphere = particles(
        lambda q: -q[:, 2], torch.tensor([[0.0, 1.0, 0.0]]), 1500,
        lr=0.05, word="BAOAB", temperature=0.3, on=tether.Sphere(slack=False),
    )[:, 0]  # fmt: skip

    def torus(q: torch.Tensor) -> torch.Tensor:
        return ((q[0] ** 2 + q[1] ** 2).sqrt() - 2) ** 2 + q[2] ** 2 - 0.64

    ring = particles(
        lambda q: q[2],
        torch.tensor([2.8, 0.0, 0.0]),
        300,
        lr=0.2,
        word="BAOAB",
        temperature=0.5,
        on=tether.Level(torus),
    )
    angles = torch.linspace(0, 2 * torch.pi, 60)
    for i, (path, what) in enumerate(((sphere, "Sphere(slack=False)"), (ring, "Level(torus)"))):
        axis = figure.add_subplot(1, 3, i + 1, projection="3d")
        axis.plot(*path.T.numpy(), lw=0.6, color=COLOURS[i])
        for r, z in (
            ((2.8, 0.0), (2.0, 0.8), (1.2, 0.0), (2.0, -0.8)) if i else ((1.0, 0.0), (0.866, 0.5), (0.866, -0.5))
        ):
            axis.plot(r * angles.cos(), r * angles.sin(), z, color="0.7", lw=0.5)
        axis.set_box_aspect((1, 1, 0.35 if i else 1))
        axis.set(title=what, xticks=[], yticks=[], zticks=[])
    axis = figure.add_subplot(1, 3, 3)
    bounded = particles(lambda q: -q, torch.zeros(3), 200, lr=0.05, temperature=0.01, on=tether.Circle(1.0))
    free = particles(lambda q: -q, torch.zeros(3), 200, lr=0.05, temperature=0.01)
    axis.plot(free, color="0.7")
    axis.plot(bounded, color=COLOURS[2])
    axis.axhline(1, color="k", ls="--")
    axis.set(title="Circle(1), and free (grey)", xlabel="step", ylabel="weight", ylim=(-0.2, 2))
    figure.tight_layout()
    return figure


def metrics() -> plt.Figure:
    """Two starts that compute the same function: SGD tells them apart, Path-SGD does not."""
    x, y = tether.data.spiral(300, turns=1.0, seed=0)
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
    for axis, (name, lr) in zip(axes, (("sgd", 0.02), ("path_sgd", 0.02)), strict=True):
        torch.manual_seed(0)
        balanced = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
        twin = tether.measure.rescale(balanced, seed=0, spread=30.0)
        for net, style, what in ((balanced, "-", "balanced start"), (twin, "--", "rescaled start")):
            opt, losses = getattr(tether.methods, name)(net, lr=lr), []
            for _ in range(300):
                opt.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y.float())
                loss.backward()
                opt.step()
                losses.append(min(float(loss.detach()), 3.0))
            axis.plot(losses, style, label=what)
        axis.set(title=name, xlabel="step")
    axes[0].set_ylabel("training loss")
    axes[0].legend()
    return figure


def rhythms() -> plt.Figure:
    """How far a weight moves at each step, by five rhythms."""
    rows = {
        "every step": {},
        "every=5": {"every": 5, "drift": False},
        "every=5, drift": {"every": 5, "drift": True},
        "asleep=0.5, nap=5": {"asleep": 0.5, "nap": 5},
        "merge=5": {"merge": 5},
    }
    figure, axes = plt.subplots(len(rows), 1, figsize=(6, 4), sharex=True)
    for i, (axis, (name, fields)) in enumerate(zip(axes, rows.items(), strict=True)):
        q, fast = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(1))  # some part moves at every step
        rows_of = [tether.Part("q", **fields), tether.Part("fast")]
        opt, seen = (
            tether.Optimizer([("q", q), ("fast", fast)], rows_of, lr=0.02, word="MS", friction=0.7),
            [q.detach().clone()],
        )
        for _ in range(25):
            opt.zero_grad()
            ((q**2).sum() + fast.sum()).backward()
            opt.step()
            seen.append(q.detach().clone())
        axis.plot(torch.stack(seen), color=COLOURS[i], marker=".", lw=0.8)
        axis.set_ylabel(name, rotation=0, ha="right", va="center")
    axes[-1].set_xlabel("step (six weights, L = q²)")
    return figure


def replicas() -> plt.Figure:
    """A hundred networks in one run, each at a temperature of its own."""
    τ = torch.logspace(-7, -2, 100)
    ens = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1)), n=100)
    opt = tether.methods.langevin(ens, lr=0.2, temperature=τ, friction=1.0)
    bce = nn.functional.binary_cross_entropy_with_logits
    tether.train(ens, opt, tether.data.spiral(500, turns=2.0, seed=0), bce, steps=5000, batch=25)
    x, y = tether.data.spiral(1000, turns=2.0, seed=1)
    with torch.no_grad():
        right = ((ens(x)[..., 0] > 0) == (y > 0.5)).float().mean(1)
    figure, axis = plt.subplots(figsize=(5, 3))
    axis.semilogx(τ, 100 * right, ".")
    axis.set(xlabel="temperature", ylabel="test accuracy %", title="100 replicas, 100 temperatures, one run")
    return figure


def sharding() -> plt.Figure:
    """The same noise in every sharding: a parameter of 12 rows, cut for one to four ranks."""
    whole = tether.noise.at(torch.arange(48), tether.noise.key(0, "w"), 0, 0, torch.float32).view(12, 4)
    figure, axes = plt.subplots(1, 4, figsize=(6, 3))
    for ranks, axis in zip((1, 2, 3, 4), axes, strict=True):
        axis.imshow(whole, cmap="RdBu", vmin=-2, vmax=2)
        for cut in range(1, ranks):
            axis.axhline(12 // ranks * cut - 0.5, color="k", lw=2)
        axis.set(title=f"{ranks} rank{'s' * (ranks > 1)}", xticks=[], yticks=[])
    return figure


PICTURES: dict[str, Callable[[], plt.Figure]] = {
    one.__name__: one for one in (words, parts, temperature, surfaces, metrics, rhythms, replicas, sharding)
}
