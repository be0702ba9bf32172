"""How smooth are classifiers trained with constraints and noise? After Table 4.1, Figures 4.1 and 4.3 of the thesis.

    python examples/boundaries.py              ten runs of each method, two tables and out/boundaries.png (25 minutes)
    python examples/boundaries.py --quick      a first look, in a minute

One hidden layer of 500 ReLU nodes learns the spirals of (4.59) from 100 points, two at a time, h = 0.05. The thesis has
100 runs of 10,000 epochs; every run here has its own data, start and minibatches, the same for all methods.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tether

EXTENT = (-1.25, 1.25, -1.25, 1.25)
SMOOTHING = 0.01  # a hundredth of the spiral's size
METHODS = {
    "SGD": lambda nets: tether.methods.sgd(nets, lr=0.05),
    "SGD with WD": lambda nets: tether.methods.sgd(nets, lr=0.05, weight_decay=1e-4),
    "C-SGD": lambda nets: tether.methods.circle_cola_od(nets, lr=0.05, radius=(1, 5)),
    "SGLD": lambda nets: tether.methods.sgld(nets, lr=0.05, temperature=5e-5),
    "C-SGLD": lambda nets: tether.methods.circle_cola_od(nets, lr=0.05, radius=(1, 5), temperature=5e-5),
}
THESIS = {  # Table 4.1: mean, standard deviation and maximum of (4.60) over 100 runs
    "SGD": (519, 4.33e4, 3.26e8),
    "SGD with WD": (51.1, 3.80e3, 1.14e7),
    "C-SGD": (9.38, 317, 5.58e5),
    "SGLD": (8.73, 189, 6.27e5),
    "C-SGLD": (6.08, 40.8, 1.43e5),
}


def network():
    return nn.Sequential(nn.Linear(2, 500), nn.ReLU(), nn.Linear(500, 1))


def data(runs):
    """100 points to train on and 2000 to test with, for each run (4.59)."""
    spirals = {"turns": 2, "scale": 1.0, "noise": 0.05}
    sets = [
        (tether.data.spiral(100, seed=2 * i, **spirals), tether.data.spiral(2000, seed=2 * i + 1, **spirals))
        for i in range(runs)
    ]
    (x, y), (x_test, y_test) = (
        (torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]).float().unsqueeze(-1))
        for pairs in zip(*sets, strict=True)
    )
    return x, y, x_test, y_test


def run(method, runs, epochs, sets, folder, grid):
    """Train all runs of a method and measure each; returns what the tables and the picture need."""
    x, y, x_test, y_test = sets
    nets = tether.Replicas(network, runs)
    began = time.process_time()
    saved = None if folder is None else folder / f"{method}.pt"
    loss, steps = binary_cross_entropy_with_logits, 50 * epochs
    tether.train(nets, METHODS[method](nets), (x, y), loss, steps, batch=2, each=True, checkpoint=saved)
    with torch.no_grad():
        outputs = nets(x_test, each=True)
    accuracies = (100 * ((outputs > 0) == (y_test > 0.5)).float().mean((1, 2))).tolist()
    trained = time.process_time()
    curvatures = tether.measure.boundary_curvature(nets, EXTENT, smoothing=SMOOTHING, grid=grid)
    gradients = tether.measure.prediction_gradient(nets, EXTENT)
    return {
        "accuracies": accuracies,
        "curvatures": curvatures,
        "gradients": gradients,
        "seconds": (trained - began, time.process_time() - trained),
    }


def pooled(readings):
    """Mean, standard deviation and maximum over all runs, each as a part of the whole."""
    mean = statistics.fmean(r.mean for r in readings)
    spread = math.sqrt(statistics.fmean(r.std**2 + (r.mean - mean) ** 2 for r in readings))
    return mean, spread, max(r.max for r in readings)


def show_tables(results):
    level, contour = f"curvature, smoothed over {SMOOTHING}", "contour estimate (4.60)"
    print(f"{'':<14}{'test accuracy %':>18}{level:>36}{contour:>30}{'thesis':>12}")
    print(
        f"{'':<14}{'mean ± s.e.':>18}"
        + "".join(f"{x:>{w}}" for w in (12, 10) for x in ("mean", "std", "max"))
        + f"{'mean':>12}"
    )
    for method, found in results.items():
        accuracies, n = found["accuracies"], len(found["accuracies"])
        error = f"{statistics.stdev(accuracies) / math.sqrt(n):.1f}" if n > 1 else "–"
        there = [c for c in found["curvatures"] if c.exists]
        if not there:
            print(f"{method:<14}{'no run has a boundary':>30}")
            continue
        level, contour = pooled(there), pooled([c.contour for c in there])
        text = f"{method:<14}{f'{statistics.fmean(accuracies):.1f} ± {error}':>18}"
        text += "".join(f"{value:>12.4g}" for value in level) + "".join(f"{value:>10.3g}" for value in contour)
        print(text + f"{THESIS[method][0]:>12g}")
    print()
    print(f"{'|gradient of the prediction|':<30}{'along y = 0':>20}{'along x = 0':>24}{'seconds':>22}")
    print(f"{'':<30}{'mean':>10}{'max':>10}{'mean':>14}{'max':>10}{'training':>12}{'measuring':>12}")
    for method, found in results.items():
        text = f"{method:<30}"
        for line, width in (("y = 0", 10), ("x = 0", 14)):
            text += f"{statistics.fmean(g[line].mean for g in found['gradients']):>{width}.3g}"
            text += f"{statistics.fmean(g[line].max for g in found['gradients']):>10.3g}"
        print(text + "".join(f"{seconds:>12.1f}" for seconds in found["seconds"]))


def draw(results, sets, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 8})
    figure, panels = plt.subplots(2, len(results), figsize=(11, 4.6), layout="constrained", sharey="row")
    for k, (method, found) in enumerate(results.items()):
        accuracies = found["accuracies"]
        middle = sorted(range(len(accuracies)), key=accuracies.__getitem__)[(len(accuracies) - 1) // 2]
        top, bottom = panels[:, k]
        curvature = found["curvatures"][middle]
        points = (sets[0][middle], sets[1][middle])
        curvature.boundary.plot(top, data=points)
        top.set(xlabel="", ylabel="", xticks=[], yticks=[])
        top.set_title(f"{method}   {accuracies[middle]:.1f} %\nmean curvature {curvature.mean:.3g}", fontsize=9)
        lines = [g["y = 0"] for g in found["gradients"]]
        mean = np.mean([np.abs(line.gradients) for line in lines], axis=0)
        bottom.plot(lines[0].positions, mean, color="#444444", linewidth=0.9)
        bottom.set(xlabel="x", ylim=(0, None))
    panels[1, 0].set_ylabel("|gradient of the prediction|\nalong y = 0, mean of the runs")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="Curvature of decision boundaries by five methods.")
    parser.add_argument("--runs", type=at_least_one, metavar="N", help="runs of each method (10)")
    parser.add_argument("--epochs", type=at_least_one, metavar="N", help="of 50 steps each (10000)")
    parser.add_argument("--grid", type=at_least_one, default=1000, metavar="N", help="points along each side (1000)")
    parser.add_argument("--out", type=Path, default=Path("out/boundaries.png"), metavar="FILE", help="the picture")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="save runs there and go on from there")
    parser.add_argument("--quick", action="store_true", help="3 runs of 300 epochs, unless told otherwise")
    options = parser.parse_args()
    runs = options.runs or (3 if options.quick else 10)
    epochs = options.epochs or (300 if options.quick else 10_000)
    sets, results = data(runs), {}
    for method in METHODS:
        print(f"{method}: {runs} runs of {epochs:,} epochs ...", file=sys.stderr, flush=True)
        results[method] = run(method, runs, epochs, sets, options.checkpoints, options.grid)
    show_tables(results)
    draw(results, sets, options.out)
    print(f"\n{runs} runs of {epochs:,} epochs; the thesis (Table 4.1) has 100 of 10,000. Pictures: {options.out}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
