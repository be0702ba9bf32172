"""A temperature × noise grid of AdLaLa in one run, after Figure 3.16 of the thesis.

    python examples/grid.py              a heat map in out/grid.png
    python examples/grid.py --quick      fewer steps

A perceptron with 100 hidden nodes on the four-turn spiral (500 points, 25 at a time, h = 0.25, γ = 0.5). Every cell of
the grid is a few replicas with its own temperature τ and applied noise σ_A: fields that hold a number for each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tether


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=2, help="replicas of each cell")
    parser.add_argument("--quick", action="store_true", help="500 steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/grid.png"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps = 500 if options.quick else options.steps
    temperatures, noises = torch.logspace(-6, -2, 5), torch.logspace(-4, -1, 4)
    cells = torch.cartesian_prod(temperatures, noises).repeat_interleave(options.runs, 0)
    nets = tether.Replicas(lambda: nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1)), len(cells))
    opt = tether.methods.adlala(nets, lr=0.25, friction=0.5, temperature=cells[:, 0], noise=cells[:, 1])
    x, y = tether.data.spiral(500, turns=4, seed=0)
    x_test, y_test = tether.data.spiral(1000, turns=4, seed=1)
    began = time.perf_counter()
    tether.train(nets, opt, (x, y), binary_cross_entropy_with_logits, steps, batch=25)
    with torch.no_grad():
        right = (nets(x_test, each=False)[..., 0] > 0) == (y_test == 1)
    accuracy = 100 * right.float().mean(1).view(len(temperatures), len(noises), options.runs).mean(-1)
    print(f"test accuracy in per cent, {len(cells)} replicas, {steps:,} steps, {time.perf_counter() - began:.0f} s")
    print(f"{'τ':>8} | σ_A = " + " ".join(f"{float(s):>7.0e}" for s in noises))
    for τ, row in zip(temperatures, accuracy, strict=True):
        print(f"{float(τ):>8.0e} |       " + " ".join(f"{float(a):>7.1f}" for a in row))
    draw(temperatures, noises, accuracy, options.out)
    print(f"Heat map: {options.out}")


def draw(temperatures: torch.Tensor, noises: torch.Tensor, accuracy: torch.Tensor, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.2, 4.6), layout="constrained")
    image = axis.imshow(accuracy.numpy(), cmap="viridis", origin="lower", aspect="auto")
    axis.set_xticks(range(len(noises)), [f"{float(s):.0e}" for s in noises])
    axis.set_yticks(range(len(temperatures)), [f"{float(t):.0e}" for t in temperatures])
    axis.set(xlabel="applied noise σ_A", ylabel="temperature τ", title="AdLaLa, 100 nodes, 4-turn spiral")
    for i in range(len(temperatures)):
        for j in range(len(noises)):
            value = float(accuracy[i, j])
            shade = "w" if value < float(accuracy.mean()) else "k"
            axis.text(j, i, f"{value:.0f}", ha="center", va="center", color=shade)
    figure.colorbar(image, label="test accuracy %")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
