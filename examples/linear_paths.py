"""Loss along straight lines between initial and final states, after Figure 6.1A of the thesis (T. Vlaar, 2022).

    python examples/linear_paths.py              10 runs on MNIST and on the spiral, a table and out/linear_paths.png
    python examples/linear_paths.py --quick      a first look, in seconds

The network has two hidden layers of 50 ReLU nodes, trained by Adam with step size 5e-4 and torch's own start: on MNIST
in batches of 128 with cross-entropy, on the four-turn spiral (4.58), of 10,000 points and 5,000 to test with, in
batches of 500 with binary cross-entropy (§6.1.10.1). Lines of test loss run from each run's start θ_i to its end θ_f,
from another start θ'_i to θ_f, and between the two starts; below them one layer at a time goes from start to end with
the others at their end (6.2).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import tether
from tether.measure import layer_paths, linear_path

LINES = {"θ_i → θ_f": "#1f5fa8", "θ'_i → θ_f": "#3a8f4d", "θ_i → θ'_i": "#222222"}
LAYERS = ("#c2452d", "#d99a1c", "#7a5aa6")


def network(inputs, outputs):
    sizes = (inputs, 50, 50, outputs)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def mnist(steps):
    def pair(train):
        x, y = tether.data.mnist(train)
        return x.flatten(1).float() / 255, y

    return (784, 10), pair(True), pair(False), cross_entropy, 128, steps or 4690


def spiral(steps):
    def pair(n, seed):
        x, y = tether.data.spiral(n, turns=4, seed=seed)
        return x, y.float().unsqueeze(1)

    return (2, 1), pair(10_000, 0), pair(5_000, 1), binary_cross_entropy_with_logits, 500, steps or 40_000


def study(problem, runs, steps, points):
    """The lines of every run, by what they join; and for every run its lines by layer."""
    sizes, data, test, loss, batch, steps = problem(steps)
    nets = tether.Replicas(lambda: network(*sizes), runs)
    start = copy.deepcopy(nets.state_dict())
    other = tether.Replicas(lambda: network(*sizes), runs, seed=1).state_dict()
    optimizer = torch.optim.Adam(nets.parameters(), lr=5e-4)
    tether.train(nets, optimizer, data, loss, steps, batch)
    end = nets.state_dict()
    ends = {"θ_i → θ_f": (start, end), "θ'_i → θ_f": (other, end), "θ_i → θ'_i": (start, other)}
    lines = {name: linear_path(nets, *pair, test, points, loss=loss) for name, pair in ends.items()}
    return lines, layer_paths(nets, start, end, test, points, loss=loss)


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="Loss along lines between states, on MNIST and on the spiral.")
    parser.add_argument("--runs", type=at_least_one, metavar="N", help="runs on each data set (10)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="steps of each run (4690 and 40000)")
    parser.add_argument("--points", type=at_least_one, default=51, metavar="N", help="points of each line (51)")
    parser.add_argument("--out", type=Path, default=Path("out/linear_paths.png"), metavar="FILE", help="the picture")
    parser.add_argument("--threads", type=at_least_one, default=2, metavar="N", help="of torch (2)")
    parser.add_argument("--quick", action="store_true", help="2 runs of 300 steps, unless told otherwise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs, steps = options.runs or (2 if options.quick else 10), options.steps or (300 if options.quick else None)
    began, results = time.perf_counter(), {}
    for name, problem in {"MNIST": mnist, "spiral, 4 turns": spiral}.items():
        print(f"{name}: {runs} runs ...", file=sys.stderr, flush=True)
        results[name] = study(problem, runs, steps, options.points)
    show_table(results)
    draw(results, options.out)
    print(f"{runs} runs; the picture: {options.out}. Took {time.perf_counter() - began:.0f} s.")


# ---- the table and the picture --------------------------------------------------------------------------------


def show_table(results):
    rows = [("data", "line", "test accuracy %", "shapes", "barrier", "at α", "start → top → end")]
    for data, (lines, layers) in results.items():
        named = dict(lines)
        named.update({f"layer {key}": [paths[key] for paths in layers] for key in layers[0]})
        rows += [(data, name, *row(paths)) for name, paths in named.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def row(paths):
    """What the runs have in common."""
    shapes = Counter(path.shape for path in paths)
    over = [path.barrier for path in paths if path.barrier > 0]
    mean = statistics.fmean
    levels = [mean(float(path.losses[0]) for path in paths), mean(float(path.losses.max()) for path in paths)]
    levels.append(mean(float(path.losses[-1]) for path in paths))
    return (
        f"{100 * mean(float(path.accuracies[-1]) for path in paths):.1f}",
        ", ".join(f"{count} {shape}" for shape, count in shapes.most_common()),
        f"{mean(over):.3g}" if over else "–",
        f"{mean(barrier.alpha for barrier in over):.2f}" if over else "–",
        " → ".join(f"{level:.3g}" for level in levels),
    )


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, panels = plt.subplots(2, 2, figsize=(8.4, 6.4), layout="constrained", sharex=True)
    for column, (name, (lines, layers)) in enumerate(results.items()):
        for label, paths in lines.items():
            for one in paths:
                one.plot(panels[0, column], color=LINES[label], linewidth=0.8, alpha=0.7)
        colours = dict(zip(layers[0], LAYERS, strict=True))
        for key, colour in colours.items():
            for paths in layers:
                paths[key].plot(panels[1, column], color=colour, linewidth=0.8, alpha=0.7)
        panels[0, column].set_title(name, fontsize=10)
        for panel in panels[:, column]:
            panel.set(xlim=(0, 1), xlabel="", ylabel="" if column else "test loss")
            panel.spines[["top", "right"]].set_visible(False)
        panels[1, column].set_xlabel("α")
        for panel, entries in ((panels[0, column], LINES), (panels[1, column], colours)):
            words = {"0": "first layer", "2": "second layer", "4": "third layer"}
            handles = [Line2D([], [], color=colour, label=words.get(key, key)) for key, colour in entries.items()]
            panel.legend(handles=handles, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
