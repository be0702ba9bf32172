"""Six ways to train a small network on the two-turn spiral, after Figure 3.8 of the thesis (T. Vlaar, 2022).

    python examples/spiral.py              a hundred runs of each method, a table and out/spiral.png
    python examples/spiral.py --quick      a first look, in seconds

The network has one hidden layer of 20 ReLU nodes and a logistic output. It sees 500 points, 25 at a time, for 10,000
steps. The runs of a method are replicas, trained together; every run has its own data, start and minibatches, the same
for all methods. `tether run fig-3.8` is the same as a study, with the weights.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import tether
from tether_studies.weights import METHODS, PUBLISHED, TASK


def run(method, runs, steps, sets):
    """Train all runs of a method; returns their test accuracies in per cent, the seconds and the networks."""
    x, y, x_test, y_test = sets
    nets = tether.Replicas(TASK.network, runs)
    opt = METHODS[method](nets, 0)
    began = time.perf_counter()
    tether.train(nets, opt, (x, y), binary_cross_entropy_with_logits, steps, batch=25, each=True, log_every=100)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        right = (nets(x_test, each=True) > 0) == (y_test > 0.5)
    return (100 * right.float().mean((1, 2))).tolist(), seconds, nets


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="Train on the two-turn spiral by six methods.")
    parser.add_argument("--runs", type=at_least_one, metavar="N", help="runs of each method (100)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="steps of each run (10000)")
    parser.add_argument("--out", type=Path, default=Path("out/spiral.png"), metavar="FILE", help="the picture")
    parser.add_argument("--threads", type=at_least_one, default=2, metavar="N", help="of torch (2)")
    parser.add_argument("--quick", action="store_true", help="10 runs of 1000 steps, unless told otherwise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs, steps = options.runs or (10 if options.quick else 100), options.steps or (1000 if options.quick else 10_000)
    began, sets, results = time.perf_counter(), TASK.sets(runs, seed=0), {}
    for method in METHODS:
        print(f"{method}: {runs} runs of {steps:,} steps ...", file=sys.stderr, flush=True)
        results[method] = run(method, runs, steps, sets)
    show_table(results)
    draw(results, sets, options.out)
    print(
        f"Mean ± standard error; {runs} × {steps:,} steps. The thesis (Figure 3.8): 100 × 10,000 steps.\n"
        f"Decision boundaries: {options.out}. Took {time.perf_counter() - began:.0f} s."
    )


# ---- the table and the picture --------------------------------------------------------------------------------


def show_table(results):
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    header = ["method", "test accuracy %", "worst", "best", "s", "thesis %"]
    rows = []
    for method, (accuracies, seconds, _) in results.items():
        n = len(accuracies)
        error = f"{statistics.stdev(accuracies) / math.sqrt(n):.1f}" if n > 1 else "–"
        rows.append([
            method,
            f"{statistics.fmean(accuracies):.1f} ± {error}",
            f"{min(accuracies):.1f}",
            f"{max(accuracies):.1f}",
            f"{seconds:.1f}",
            f"{PUBLISHED[method]:.1f}" if method in PUBLISHED else "–",
        ])  # fmt: skip
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in [header, *rows]:
            print(row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True)), sep="   ")
        return
    table = Table(box=SIMPLE_HEAD)
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def draw(results, sets, path):
    """One panel per method: the class probability its median run has learnt, under that run's test points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.lines import Line2D

    colours = ("#1f5fa8", "#c2452d")
    shades = LinearSegmentedColormap.from_list("classes", ["#8db5de", "#f8f7f4", "#eeab99"])
    extent = 2.2
    axis = torch.linspace(-extent, extent, 400)
    grid = torch.cartesian_prod(axis, axis).flip(1)
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, panels = plt.subplots(2, 3, figsize=(8.4, 6.0), layout="constrained")
    for panel, (method, (accuracies, _, nets)) in zip(panels.flat, results.items(), strict=True):
        middle = sorted(range(len(accuracies)), key=accuracies.__getitem__)[(len(accuracies) - 1) // 2]
        net, x, y, accuracy = nets[middle], sets[2][middle], sets[3][middle, :, 0], accuracies[middle]
        with torch.no_grad():
            field, wrong = net(grid).sigmoid().view(400, 400), (net(x)[:, 0] > 0) != (y > 0.5)
        area = (-extent, extent, -extent, extent)
        image = panel.imshow(field, extent=area, origin="lower", cmap=shades, vmin=0, vmax=1, interpolation="bilinear")
        panel.contour(axis, axis, field, levels=[0.5], colors="#222222", linewidths=0.9)
        for label, colour in enumerate(colours):
            points, missed = x[(y == label) & ~wrong], x[(y == label) & wrong]
            panel.scatter(*points.T, s=3, color=colour, linewidths=0)
            panel.scatter(*missed.T, s=8, color=colour, edgecolors="#111111", linewidths=0.5, zorder=3)
        name, _, setting = method.partition(" ")
        panel.set_title(rf"$\bf{{{name}}}$ {setting}   {accuracy:.1f} %".replace("    ", "   "), fontsize=10)
        panel.set(xticks=[], yticks=[], xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal")
        panel.spines[:].set(color="#aaaaaa", linewidth=0.6)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    bar = figure.colorbar(image, ax=panels, shrink=0.6, aspect=28, pad=0.02, ticks=[0, 0.5, 1])
    bar.set_label("probability of class 1")
    bar.outline.set_visible(False)
    dot = {"linestyle": "none", "marker": "o", "markeredgewidth": 0}
    figure.legend(
        handles=[
            Line2D([], [], color=colours[0], markersize=3.5, label="class 0", **dot),
            Line2D([], [], color=colours[1], markersize=3.5, label="class 1", **dot),
            Line2D(
                [],
                [],
                color="#bbbbbb",
                markersize=4.5,
                label="misclassified",
                **(dot | {"markeredgecolor": "#111111", "markeredgewidth": 0.5}),
            ),
            Line2D([], [], color="#222222", linewidth=0.9, label="decision boundary"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        title=f"Test points and classifier of the median of {len(accuracies)} runs",
        title_fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
