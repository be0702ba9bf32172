"""Slow biases: a perceptron whose biases move every k steps, after Figures 5.9 to 5.11 of the thesis.

    python examples/slow_biases.py

One hidden layer of ReLU nodes on the four-turn spiral, 500 points, 25 at a time. Multirate SGD (Algorithm 5.1, k =
5, h = 1, no momentum): weights every step with h/k = 0.2, biases every five steps with h, spread over them. Beside
it plain SGD with h = 0.2, and what is not it: biases with a larger step at every step, biases frozen for k steps
without the larger one, only the input biases, only the output bias. The thesis: slow biases win clearly, by those
of the input layer.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tether

K, H = 5, 1.0
SLOW = {"lr": H, "every": K, "drift": True}
VARIANTS: dict[str, list[tether.Part]] = {
    "SGD, h = 0.2": [],
    "slow biases (5.1)": [tether.Part("*.bias", **SLOW)],
    "slow input biases": [tether.Part("0.bias", **SLOW)],
    "slow output bias": [tether.Part("2.bias", **SLOW)],
    "biases with h = 1 at every step": [tether.Part("*.bias", lr=H)],
    "biases frozen for k, then h = 0.2": [tether.Part("*.bias", lr=H / K, every=K, drift=False)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = ((0, 500), (1, 1000))
    sets = [[tether.data.spiral(n, turns=4, seed=2 * i + k) for i in range(options.runs)] for k, n in sizes]
    (x, y), (x_test, y_test) = (
        (torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]).float().unsqueeze(-1)) for pairs in sets
    )
    began = time.perf_counter()
    print(f"{'':<36} {'test accuracy %':>16} {'worst':>7} {'best':>7}")
    for name, parts in VARIANTS.items():
        nets = tether.Replicas(
            lambda n=options.nodes: nn.Sequential(nn.Linear(2, n), nn.ReLU(), nn.Linear(n, 1)), options.runs
        )
        opt = tether.Optimizer(nets, [*parts, tether.Part("*")], lr=H / K, word="MS", friction=math.inf)
        tether.train(nets, opt, (x, y), binary_cross_entropy_with_logits, options.steps, batch=25, each=True)
        with torch.no_grad():
            right = 100 * ((nets(x_test, each=True) > 0) == (y_test > 0.5)).float().mean((1, 2))
        values = right.tolist()
        mean = f"{statistics.fmean(values):.1f} ± {statistics.stdev(values) / math.sqrt(len(values)):.1f}"
        print(f"{name:<36} {mean:>16} {min(values):>7.1f} {max(values):>7.1f}", flush=True)
    settings = f"{options.runs} × {options.steps:,} steps, {options.nodes} nodes"
    print(f"Mean ± standard error; {settings}. Took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
