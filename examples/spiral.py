"""Six ways to train one small network: a hundred runs of each, after Figure 3.8 of T. Vlaar's thesis (2022).

    python examples/spiral.py              a table, and a picture in out/spiral.png: about a minute on two cores
    python examples/spiral.py --quick      10 runs of 1,000 steps: a few seconds

Points of two classes lie on two interleaved spirals. The network has one hidden layer of 20 nodes, which is just
enough. Whether it finds the spirals depends on the dynamics that moves its weights.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether
from picture import draw


def network():
    return nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1))


# A method is a function of the networks that returns their optimizer. One of torch's own will do as well.
METHODS = {
    "SGD": lambda nets: tether.methods.sgd(nets, lr=0.1),
    "SGLD": lambda nets: tether.methods.sgld(nets, lr=0.1, noise=0.1),
    "Adam": lambda nets: torch.optim.Adam(nets.parameters(), lr=0.005),
    "AdLaLa γ=10": lambda nets: tether.methods.adlala(nets, lr=0.25, friction=10.0),
    "AdLaLa γ=0.5": lambda nets: tether.methods.adlala(nets, lr=0.25, friction=0.5),
    "LOL": lambda nets: tether.methods.lol(nets, lr=0.25, friction=0.01, temperature=1e-3),
}
THESIS = {"SGD": 79.0, "SGLD": 78.0, "Adam": 83.7, "AdLaLa γ=10": 85.5, "AdLaLa γ=0.5": 93.4}  # mean accuracies, %


def points(runs, count, first_seed):
    """Points and classes of their own for each run: tensors of shape (runs, count, 2) and (runs, count, 1)."""
    sets = [tether.data.spiral(count, turns=2.0, seed=first_seed + 2 * i) for i in range(runs)]
    return torch.stack([x for x, _ in sets]), torch.stack([y for _, y in sets]).unsqueeze(-1).float()


def run(method, runs, steps, train_set, test_set):
    """Train all runs of a method; returns the networks and their test accuracies in per cent."""
    nets = tether.Replicas(network, runs)  # all networks in one object, so that one pass serves them all
    opt = METHODS[method](nets)
    tether.train(nets, opt, train_set, loss, steps, batch=25, each=True)  # each=True: every network has its own data
    x, y = test_set
    with torch.no_grad():
        right = (nets(x, each=True) > 0) == (y > 0.5)
    return nets, (100 * right.float().mean((1, 2))).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train on the two-turn spiral by six methods.")
    parser.add_argument("--quick", action="store_true", help="10 runs of 1,000 steps")
    parser.add_argument("--runs", type=int, help="runs of each method (100)")
    parser.add_argument("--steps", type=int, help="steps of each run (10,000)")
    parser.add_argument("--out", type=Path, default=Path("out/spiral.png"), help="the picture")
    options = parser.parse_args()
    runs = options.runs or (10 if options.quick else 100)
    steps = options.steps or (1_000 if options.quick else 10_000)
    # The same data for all methods, so that they differ in nothing else.
    train_set, test_set = points(runs, 500, first_seed=0), points(runs, 1000, first_seed=1)

    print(f"{runs} runs of {steps:,} steps of each method")
    row = "{:<14}{:>18}{:>9}{:>9}{:>9}{:>11}"
    print(row.format("method", "test accuracy %", "worst", "best", "seconds", "thesis %"), flush=True)
    panels = []
    for method in METHODS:
        began = time.perf_counter()
        nets, accuracies = run(method, runs, steps, train_set, test_set)
        seconds = time.perf_counter() - began
        error = statistics.stdev(accuracies) / math.sqrt(runs) if runs > 1 else math.nan
        mean = f"{statistics.fmean(accuracies):.1f} ± {error:.1f}"
        extremes = [f"{min(accuracies):.1f}", f"{max(accuracies):.1f}"]
        print(row.format(method, mean, *extremes, f"{seconds:.1f}", THESIS.get(method, "–")), flush=True)
        i = accuracies.index(statistics.median_low(accuracies))
        panels.append((f"{method}   {accuracies[i]:.1f} %", nets[i], test_set[0][i], test_set[1][i, :, 0]))
    print("Mean ± standard error over the runs.")
    draw(options.out, panels, f"Test points and classifier of the median of {runs} runs")


if __name__ == "__main__":
    main()
