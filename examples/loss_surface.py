"""Loss from a start to where Adam and AdLaLa end, and over the plane of two ends, after Figures 3.3-3.5 of the thesis.

    python examples/loss_surface.py              10 starts for each problem, a table and out/loss_surface.png
    python examples/loss_surface.py --quick      a first look, in seconds

One hidden layer of ReLU nodes: 20 for the spirals of one and two turns (500 points, 25 at a time, 20,000 steps), 100
for MNIST (128 at a time, 4,690 steps). Adam and AdLaLa begin at the same states, torch's own. Lines (3.34) of test loss
are drawn for the first two starts; surfaces (§3.4) lie between a start and two ends of AdLaLa, which saw other
minibatches and other noise.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import tether
from tether.measure import linear_path, surface

ADLALA = {"lr": 0.25, "friction": 0.5, "temperature": 1e-4, "noise": 0.01, "coupling": 0.1, "per": "tensor"}
METHODS = {
    "Adam": lambda nets, seed: torch.optim.Adam(nets.parameters(), lr=0.005),
    "AdLaLa": lambda nets, seed: tether.methods.adlala(nets, seed=seed, **ADLALA),
}
COLOURS = {"Adam": "#1f5fa8", "AdLaLa": "#c2452d"}


def mnist():
    def pair(train):
        x, y = tether.data.mnist(train)
        return x.flatten(1).float() / 255, y

    return (784, 100, 10), pair(True), pair(False), cross_entropy, 128, 4690


def spiral(turns):
    def pair(seed):
        x, y = tether.data.spiral(500, turns=turns, seed=seed)
        return x, y.float().unsqueeze(1)

    return (2, 20, 1), pair(0), pair(1), binary_cross_entropy_with_logits, 25, 20_000


PROBLEMS = {"MNIST": mnist, "spiral, 1 turn": lambda: spiral(1), "spiral, 2 turns": lambda: spiral(2)}


def study(problem, runs, steps, points):
    """The lines of every run, by method; and the surface between the first start and two ends of AdLaLa."""
    (inputs, hidden, outputs), data, test, loss, batch, usual = problem()

    def network():
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    start = copy.deepcopy(tether.Replicas(network, runs).state_dict())

    def end(method, seed=0):
        nets = tether.Replicas(network, runs)
        tether.train(nets, METHODS[method](nets, seed), data, loss, steps or usual, batch, seed=seed)
        return nets

    lines, ends = {}, {}
    for method in METHODS:
        nets = end(method)
        ends[method] = nets.state_dict()
        lines[method] = linear_path(nets, start, ends[method], test, points, loss=loss)
    again = end("AdLaLa", seed=1)
    first, *two = ({name: x[0] for name, x in s.items()} for s in (start, ends["AdLaLa"], again.state_dict()))
    return lines, surface(again[0], first, *two, test, points, points, loss=loss)


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="Loss between a start and the ends of Adam and AdLaLa.")
    parser.add_argument("--runs", type=at_least_one, metavar="N", help="starts for each problem (10)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="steps of each run (20000; MNIST: 4690)")
    parser.add_argument("--points", type=at_least_one, default=51, metavar="N", help="of lines and sides (51)")
    parser.add_argument("--out", type=Path, default=Path("out/loss_surface.png"), metavar="FILE", help="the picture")
    parser.add_argument("--threads", type=at_least_one, default=2, metavar="N", help="of torch (2)")
    parser.add_argument("--quick", action="store_true", help="2 starts, 300 steps, 21 points, unless told otherwise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs, steps = options.runs or (2 if options.quick else 10), options.steps or (300 if options.quick else None)
    points = min(options.points, 21) if options.quick else options.points
    began, results = time.perf_counter(), {}
    for name, problem in PROBLEMS.items():
        print(f"{name}: {runs} runs of each method ...", file=sys.stderr, flush=True)
        results[name] = study(problem, runs, steps, points)
    show_table(results)
    draw(results, options.out)
    print(f"{runs} runs; the picture: {options.out}. Took {time.perf_counter() - began:.0f} s.")


# ---- the table and the picture --------------------------------------------------------------------------------


def show_table(results):
    rows = [("data", "method", "test accuracy %", "test loss", "shapes", "barrier", "highest", "at α")]
    mean = statistics.fmean
    for data, (lines, _) in results.items():
        for method, paths in lines.items():
            over = [path.barrier for path in paths if path.barrier > 0]
            rows.append((
                data,
                method,
                f"{100 * mean(float(path.accuracies[-1]) for path in paths):.1f}",
                f"{mean(float(path.losses[-1]) for path in paths):.3g}",
                ", ".join(f"{n} {shape}" for shape, n in Counter(path.shape for path in paths).most_common()),
                f"{mean(over):.3g}" if over else "–",
                f"{max(over):.3g}" if over else "–",
                f"{mean(barrier.alpha for barrier in over):.2f}" if over else "–",
            ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, panels = plt.subplots(2, 3, figsize=(10.2, 6.2), layout="constrained")
    for column, (name, (lines, plane)) in enumerate(results.items()):
        top, bottom = panels[:, column]
        for method, paths in lines.items():
            for one, dash in zip(paths[:2], ("-", "--"), strict=False):
                one.plot(
                    top, color=COLOURS[method], linestyle=dash, linewidth=1.2, label=method if dash == "-" else None
                )
        top.set(title=name, xlim=(0, 1), ylabel="" if column else "test loss", xlabel="α")
        top.legend(frameon=False, title="dashed: another start" if len(paths) > 1 else None, title_fontsize=8)
        top.spines[["top", "right"]].set_visible(False)
        plane.plot(bottom)
        bottom.contour(plane.alphas, plane.betas, plane.losses.T, levels=30, colors="white", linewidths=0.3, alpha=0.5)
        bottom.set(ylabel="" if column else "β (1 one end, 0 the other)", xlabel="α (0 start, 1 between the ends)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
