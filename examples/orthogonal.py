"""One line changed: deep networks on the four-turn spiral with orthogonal weights, after Figure 4.4 of the thesis.

    python examples/orthogonal.py                           five hidden layers, a table and out/orthogonal.png
    python examples/orthogonal.py --layers 3 4 5 6 --soft   all of the figure

An MLP with hidden layers of 100 ReLU nodes sees 500 points, 25 at a time, with step size 0.1. The hidden weights are
kept orthogonal by o-CoLA-od (τ = 0), the input and output layers are free; beside it plain SGD from torch's start, SGD
from an orthogonal start, and SGD with the soft constraint. The paper: the constrained net wins beyond three hidden
layers.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tether
from tether.train import Minibatches

METHODS = ("SGD", "SGD, orthogonal start", "SGD, soft constraint", "o-CoLA-od")
STRENGTH = 0.05  # of the soft constraint, the paper's best


def network(hidden: int, orthogonal: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(2, 100), nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [nn.Linear(100, 100), nn.ReLU()]
        if orthogonal:
            nn.init.orthogonal_(layers[-2].weight)
    return nn.Sequential(*layers, nn.Linear(100, 1))


def data(runs: int) -> list[torch.Tensor]:
    """500 points to train on and 1000 to test with, for each run."""
    pairs = [
        tether.data.spiral(size, turns=4, seed=2 * i + k) for i in range(runs) for k, size in enumerate((500, 1000))
    ]
    stacked = [torch.stack([pair[k] for pair in pairs[part::2]]) for part in (0, 1) for k in (0, 1)]
    return [x if k % 2 == 0 else x.float().unsqueeze(-1) for k, x in enumerate(stacked)]


def run(
    method: str, hidden: int, runs: int, steps: int, sets: list[torch.Tensor]
) -> tuple[list[float], float, tether.Replicas]:
    """Train all runs of a method; test accuracies in per cent, the largest |QᵀQ − I| of a hidden weight, the nets."""
    x, y, x_test, y_test = sets
    nets = tether.Replicas(lambda: network(hidden, "orthogonal" in method), runs)
    inner = "|".join(f"{2 * i}.weight" for i in range(1, hidden))
    if method == "o-CoLA-od":
        opt = tether.methods.orthogonal_cola_od(nets, lr=0.1, free=["0.*", f"{2 * hidden}.*"])
    else:
        opt = tether.methods.sgd(nets, lr=0.1)
    if "soft" in method:
        stream, rows = Minibatches(500, 25, range(runs), seed=0), torch.arange(runs).unsqueeze(1)
        for step in range(steps):
            batch = stream(step)
            opt.zero_grad()
            out = nets(x[rows, batch], each=True)
            fit = runs * binary_cross_entropy_with_logits(out, y[rows, batch])
            (fit + STRENGTH * tether.orthogonal_penalty(nets, inner).sum()).backward()
            opt.step()
    else:
        tether.train(nets, opt, (x, y), binary_cross_entropy_with_logits, steps, batch=25, each=True)
    with torch.no_grad():
        accuracies = 100 * ((nets(x_test, each=True) > 0) == (y_test > 0.5)).float().mean((1, 2))
        weights = [nets.get_parameter(f"{2 * i}.weight") for i in range(1, hidden)]
        gap = max(float((w.mT @ w - torch.eye(100)).abs().max()) for w in weights)
    return accuracies.tolist(), gap, nets


def picture(nets: dict[str, tuple[float, nn.Module, torch.Tensor, torch.Tensor]], hidden: int, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(nets), figsize=(4 * len(nets), 4.4), layout="constrained")
    line = torch.linspace(-2.3, 2.3, 300)
    grid = torch.cartesian_prod(line, line)
    for axis, (method, (accuracy, net, x, y)) in zip(axes, nets.items(), strict=True):
        with torch.no_grad():
            field = torch.sigmoid(net(grid)[:, 0]).view(300, 300).T
        axis.imshow(field, origin="lower", extent=(-2.3, 2.3, -2.3, 2.3), cmap="RdBu_r", alpha=0.55, vmin=0, vmax=1)
        axis.contour(line, line, field, levels=[0.5], colors="k", linewidths=0.8)
        axis.scatter(x[:, 0], x[:, 1], s=3, c=["#1a5ea8" if label == 0 else "#c0392b" for label in y[:, 0]])
        axis.set(title=f"{method}\n{accuracy:.1f} %", xticks=[], yticks=[])
    figure.suptitle(f"{hidden} hidden layers of 100: the median run of each method")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="*", default=[5], help="how many hidden layers")
    parser.add_argument("--runs", type=int, default=3, help="of each method")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--soft", action="store_true", help="the soft constraint too, which takes most of the time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/orthogonal.png"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    began, sets = time.perf_counter(), data(options.runs)
    print(
        f"{'hidden layers':<14} {'method':<24} {'test accuracy %':>16} {'worst':>7} {'violation':>10} {'s':>6}",
        flush=True,
    )
    for hidden in options.layers:
        medians = {}
        for method in METHODS:
            if "soft" in method and not options.soft:
                continue
            print(f"{method}: {options.runs} runs of {options.steps:,} steps ...", file=sys.stderr, flush=True)
            start = time.perf_counter()
            accuracies, gap, nets = run(method, hidden, options.runs, options.steps, sets)
            error = statistics.stdev(accuracies) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else math.nan
            mean = f"{statistics.fmean(accuracies):.1f} ± {error:.1f}"
            row = f"{hidden:<14} {method:<24} {mean:>16} {min(accuracies):>7.1f} {gap:>10.1e}"
            print(f"{row} {time.perf_counter() - start:>6.0f}", flush=True)
            middle = sorted(range(len(accuracies)), key=accuracies.__getitem__)[(len(accuracies) - 1) // 2]
            medians[method] = (accuracies[middle], nets[middle], sets[2][middle], sets[3][middle])
        picture(medians, hidden, options.out)
    print(
        f"Mean ± standard error; {options.runs} × {options.steps:,} steps. Boundaries of median runs: {options.out}. "
        f"Took {time.perf_counter() - began:.0f} s."
    )


if __name__ == "__main__":
    main()
