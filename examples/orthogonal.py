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

from tether_studies.orthogonality import METHODS, SPIRAL, learn


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
    parser.add_argument("--soft", action="store_true", help="the soft constraint too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/orthogonal.png"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    began, sets = time.perf_counter(), SPIRAL.sets(options.runs, 0)
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
            found, nets = learn(METHODS[method], hidden, sets, options.steps, 0)
            accuracies, gap = found["accuracy"].tolist(), found["gap"]
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
