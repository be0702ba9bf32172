"""Which minimum does training find? The claims of the slides on gradient descent and norms (004), one panel each.

    python examples/which_minimum.py          a table and out/which_minimum.png, half a minute

Square loss, 10 points in 30 dimensions: descent from 0 ends in the minimum-norm solution X⁺y, from w0 it keeps the part
of w0 in the null space of the data, and so it keeps a push; with weight decay it ends in the ridge solution, from
everywhere and after every push. Exponential loss, separable points: the weights grow like log t and turn to the
hard-margin separator. A net with more weights than points: at a minimum of the square loss its Hessian has as many
positive eigenvalues as there are points, and zeros; λI makes it definite there. The minimum with weight decay has a
definite Hessian for a smooth net. That of a ReLU net lies on kinks, where there is none (its gradient never vanishes).
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tether
from tether.measure import HardMargin, Spectrum, hard_margin, hessian_spectrum, minimum_norm

STARTS = (0.0, 1.0, 3.0)
Curves = dict[str, tuple[list[float], list[float]]]


def linear_problem() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(10, 30, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)


def starts(features: int) -> tether.Replicas:
    """The same direction at three sizes, as three replicas."""
    nets = tether.Replicas(lambda: nn.Linear(features, 1, bias=False, dtype=torch.float64), len(STARTS))
    with torch.no_grad():
        nets.weight.copy_(torch.randn(1, 1, features) * torch.tensor(STARTS)[:, None, None])
    return nets


def descend(steps: int, decay: float, push: bool = False) -> tuple[Curves, list[Any]]:
    """Distance to the solution X⁺y, or the ridge solution, along gradient descent on ½|Xw − y|² + ½λ|w|²."""
    X, y = linear_problem()
    nets = starts(30)
    first = {name: x.clone() for name, x in nets.state_dict().items()}
    opt = tether.Optimizer(nets, lr=1 / torch.linalg.matrix_norm(X, 2).item() ** 2, weight_decay=decay, batch_dims=1)
    found: list[list[Any]] = []
    times = sorted({round(1.15**k) for k in range(1, 200) if 1.15**k < steps} | {steps, steps // 2 + 1})
    for step in range(1, steps + 1):
        if push and step == steps // 2:
            with torch.no_grad():
                nets.weight += torch.randn(30, generator=torch.Generator().manual_seed(1)).double()
        opt.zero_grad()
        (0.5 * (nets(X) - y).square().sum()).backward()
        opt.step()
        if step in times:
            found.append(minimum_norm(X, y, nets, start=first, regularization=decay))
    curves = {f"|w₀| × {s:g}": (times, [row[i].distance for row in found]) for i, s in enumerate(STARTS)}
    return curves, found[-1]


def separate(decades: int) -> list[tuple[float, HardMargin]]:
    """Gradient flow on Σ exp(−y w·x), by steps as long as its speed allows, read four times a decade."""
    torch.manual_seed(0)
    X, normal = torch.randn(30, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    y = (X @ normal).sign()
    Z = y[:, None] * X + 0.2 * normal / normal.norm()
    w, t = torch.tensor([1.0, -1.0, 1.0, 0.0], dtype=torch.float64), 0.0
    found = []
    for k in range(4 * decades + 1):
        end = 10 ** (k / 4)
        while t < end:
            gradient = torch.exp(-Z @ w) @ Z
            h = min(0.02 / gradient.norm().item(), end - t)
            w, t = w + h * gradient, t + h
        found.append((t, hard_margin(Z, torch.ones(len(Z)), w)))
    return found


def trained(net: nn.Module, x: torch.Tensor, y: torch.Tensor, decay: float, steps: int) -> float:
    """Bring a net to a minimum of the square loss with weight decay; the norm of the gradient there."""
    opt = torch.optim.LBFGS(
        net.parameters(), 1, steps, 4 * steps, 1e-14, 1e-30, history_size=100, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        opt.zero_grad()
        total = nn.functional.mse_loss(net(x), y) + 0.5 * decay * sum(p.square().sum() for p in net.parameters())
        total.backward()
        return total

    opt.step(closure)
    closure()
    return math.hypot(*[p.grad.norm().item() for p in net.parameters()])


def degenerate(steps: int, decay: float) -> dict[str, tuple[float, Spectrum]]:
    """The Hessian of nets with 120 weights at 12 points, at minima without and with weight decay."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64)
    found = {}
    for activation in (nn.ReLU(), nn.Tanh()):
        name = type(activation).__name__
        for rate in (0.0, decay):
            torch.manual_seed(1)
            net = nn.Sequential(nn.Linear(5, 20, bias=False), activation, nn.Linear(20, 1, bias=False)).double()
            gradient = trained(net, x, y, rate, steps)
            plain = hessian_spectrum(net, (x, y), nn.functional.mse_loss, zero=1e-6)
            where = f"{name}, minimum of L" + (" + ½λ|w|²" if rate else "")
            if not rate:
                found[where] = gradient, plain
            found[f"{where}, + λI"] = gradient, plain.regularized(decay)
    return found


def picture(panels: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for axis, title in zip(axes[0], ("square loss: |w − X⁺y|", "ridge: |w − w_λ|", "pushed halfway"), strict=True):
        for label, (times, values) in panels[title].items():
            axis.loglog(times, [max(x, 1e-15) for x in values], label=label)
        axis.set(title=title, xlabel="step", ylabel="distance")
        axis.legend()
    axes[0, 2].set_xscale("linear")
    flow = panels["flow"]
    times, angles = [t for t, _ in flow], [math.degrees(x.angle) for _, x in flow]
    axes[1, 0].plot(times, angles, "o-", ms=3, label="angle to the hard-margin separator")
    late = len(flow) // 2
    scale = angles[late] * math.log(times[late])
    axes[1, 0].plot(times[8:], [scale / math.log(t) for t in times[8:]], "k--", lw=1, label="∝ 1/log t")
    axes[1, 0].set(xscale="log", yscale="log", title="exponential loss: direction", xlabel="t", ylabel="degrees")
    axes[1, 0].legend()
    norms = [x.norm for _, x in flow]
    axes[1, 1].plot(times, norms, "o-", ms=3, label="|w|")
    line = [norms[-1] + flow[-1][1].growth * math.log(t / times[-1]) for t in times]
    axes[1, 1].plot(times[late:], line[late:], "k--", lw=1, label="slope 1/margin in log t")
    axes[1, 1].set(xscale="log", title="exponential loss: norm", xlabel="t", ylabel="|w|")
    axes[1, 1].legend()
    shown = ("ReLU, minimum of L", "ReLU, minimum of L, + λI", "Tanh, minimum of L + ½λ|w|², + λI")
    for label, size in zip(shown, (9, 5, 3), strict=True):
        _, result = panels["spectra"][label]
        counts = f"{result.negative}/{result.zero}/{result.positive}"
        axes[1, 2].plot(result.eigenvalues.flip(0), "o", ms=size, mew=0, label=f"{label}: {counts}")
        axes[1, 2].axhspan(-result.cutoff, result.cutoff, color="0.9")
    axes[1, 2].set_yscale("symlog", linthresh=1e-6)
    axes[1, 2].set(title="Hessian: negative/zero/positive", xlabel="rank", ylabel="eigenvalue", ylim=(-1e-3, 1e5))
    axes[1, 2].legend(fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--decades", type=int, default=7, help="of time on the exponential loss")
    parser.add_argument("--decay", type=float, default=1.0, help="λ of the linear problem")
    parser.add_argument("--out", type=Path, default=Path("out/which_minimum.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    panels: dict[str, Any] = {}
    print(f"{'linear, square loss':<28} {'start':>6} {'distance':>10} {'in null space':>14} {'drift there':>12}")
    for title, decay, push in (
        ("square loss: |w − X⁺y|", 0.0, False),
        ("ridge: |w − w_λ|", options.decay, False),
        ("pushed halfway, λ = 0", 0.0, True),
        (f"pushed halfway, λ = {options.decay:g}", options.decay, True),
    ):
        panels[title], ends = descend(options.steps, decay, push)
        for start, end in zip(STARTS, ends, strict=True):
            print(f"{title:<28} {start:>6g} {end.distance:>10.1e} {end.in_null:>14.1e} {end.drift:>12.1e}", flush=True)
    names = [title for title in panels if "pushed" in title]
    panels["pushed halfway"] = {name.partition(", ")[2]: panels[name]["|w₀| × 0"] for name in names}
    panels["flow"] = separate(options.decades)
    (t, last), (t0, half) = panels["flow"][-1], panels["flow"][-5]
    slope = (last.norm - half.norm) / math.log(t / t0)
    print(f"\nexponential loss, t = {t:.0e}: {last}")
    print(f"slope of |w| in log t over the last decade: {slope:.4g}; of the theory, 1/margin: {last.growth:.4g}")
    panels["spectra"] = degenerate(5 * options.steps, 1e-2)
    print()
    for label, (gradient, result) in panels["spectra"].items():
        print(f"{label}: |∇| {gradient:.0e}, L {result.loss:.0e}\n    {result}")
    picture(panels, options.out)
    print(f"Picture: {options.out}. Took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
