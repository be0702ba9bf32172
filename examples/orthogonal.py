"""One line changed: deep networks on the four-turn spiral with orthogonal weights, after Figure 4.4 of the thesis.

    python examples/orthogonal.py                 five hidden layers, a table and out/orthogonal.png
    python examples/orthogonal.py --layers 3 4 5 6 --seeds 5

An MLP with hidden layers of 100 ReLU nodes sees 500 points, 25 at a time, with step size 0.1. The hidden weights are
kept orthogonal by o-CoLA-od (τ = 0), the input and output layers are free; beside it plain SGD from torch's start, SGD
from an orthogonal start, and SGD with the soft constraint. The paper: the constrained net wins beyond three hidden
layers.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

import tether

METHODS = {
    "SGD": lambda net, hidden: tether.methods.sgd(net, lr=0.1),
    "SGD, orthogonal start": lambda net, hidden: tether.methods.sgd(net, lr=0.1),
    "SGD, soft constraint": lambda net, hidden: tether.methods.sgd(net, lr=0.1),
    "o-CoLA-od": lambda net, hidden: tether.methods.orthogonal_cola_od(net, lr=0.1, free=[f"0.*|{2 * hidden}.*"]),
}
STRENGTH = 0.05  # of the soft constraint, the paper's best


def network(hidden: int, orthogonal: bool, generator: torch.Generator) -> nn.Sequential:
    sizes = [2, *[100] * hidden, 1]
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        linear = nn.Linear(sizes[i], sizes[i + 1])
        bound = sizes[i] ** -0.5
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        if orthogonal and 0 < i < len(sizes) - 2:
            nn.init.orthogonal_(linear.weight, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def run(method: str, hidden: int, seed: int, steps: int) -> tuple[str, int, int, float, float, nn.Sequential]:
    """Train once; the test accuracy in per cent and the largest |QᵀQ − I| of a hidden weight."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    x, y = tether.data.spiral(500, turns=4, seed=2 * seed)
    x_test, y_test = tether.data.spiral(1000, turns=4, seed=2 * seed + 1)
    y = y.float()
    net = network(hidden, "orthogonal" in method, generator)
    opt = METHODS[method](net, hidden)
    inner = "|".join(f"{2 * i}.weight" for i in range(1, hidden))
    for _ in range(math.ceil(steps / 20)):
        for rows in torch.randperm(500, generator=generator).view(20, 25):
            opt.zero_grad()
            loss = loss_of(net(x[rows])[:, 0], y[rows])
            if "soft" in method:
                loss = loss + STRENGTH * tether.orthogonal_penalty(net, inner)
            loss.backward()
            opt.step()
    with torch.no_grad():
        accuracy = 100 * float(((net(x_test)[:, 0] > 0) == (y_test == 1)).float().mean())
        weights = [net[2 * i].weight for i in range(1, hidden)]
        gap = max(float((w.T @ w - torch.eye(100)).abs().max()) for w in weights)
    return method, hidden, seed, accuracy, gap, net


def picture(nets: dict[str, tuple[float, nn.Sequential]], hidden: int, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(nets), figsize=(4 * len(nets), 4.4), layout="constrained")
    line = torch.linspace(-2.3, 2.3, 300)
    grid = torch.cartesian_prod(line, line)
    x, y = tether.data.spiral(1000, turns=4, seed=1)
    for axis, (method, (accuracy, net)) in zip(axes, nets.items(), strict=True):
        with torch.no_grad():
            field = torch.sigmoid(net(grid)[:, 0]).view(300, 300).T
        axis.imshow(field, origin="lower", extent=(-2.3, 2.3, -2.3, 2.3), cmap="RdBu_r", alpha=0.55, vmin=0, vmax=1)
        axis.contour(line, line, field, levels=[0.5], colors="k", linewidths=0.8)
        axis.scatter(x[:, 0], x[:, 1], s=3, c=["#1a5ea8" if label == 0 else "#c0392b" for label in y])
        axis.set(title=f"{method}\n{accuracy:.1f} %", xticks=[], yticks=[])
    figure.suptitle(f"{hidden} hidden layers of 100: the median run of each method")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="*", default=[5])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("out/orthogonal.png"))
    arguments = parser.parse_args()
    tasks = [(m, n, s, arguments.steps) for n in arguments.layers for s in range(arguments.seeds) for m in METHODS]
    began, results = time.perf_counter(), []
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for result in [pool.apply_async(run, task) for task in tasks]:
            results.append(result.get())
            spent = time.perf_counter() - began
            left = spent / len(results) * (len(tasks) - len(results))
            print(f"\r{len(results)}/{len(tasks)} runs, about {left:.0f} s left   ", end="", flush=True)
    print(f"\r{'hidden layers':<14} {'method':<24} {'test accuracy %':>18} {'worst':>7} {'violation':>10}")
    for hidden in arguments.layers:
        nets = {}
        for method in METHODS:
            mine = sorted((r for r in results if r[0] == method and r[1] == hidden), key=lambda r: r[3])
            values = [r[3] for r in mine]
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            mean = f"{statistics.mean(values):.1f} ± {error:.1f}"
            print(f"{hidden:<14} {method:<24} {mean:>18} {values[0]:>7.1f} {max(r[4] for r in mine):>10.1e}")
            nets[method] = (mine[len(mine) // 2][3], mine[len(mine) // 2][5])
        picture(nets, hidden, arguments.out)
    print(f"Mean ± standard error over {arguments.seeds} runs of {arguments.steps:,} steps. {arguments.out}")


if __name__ == "__main__":
    main()
