"""One line changed: a deep network with orthogonal weights, after Figure 4.4 of T. Vlaar's thesis (2022).

    python examples/orthogonal.py              a table, and a picture in out/orthogonal.png: about a minute on two cores
    python examples/orthogonal.py --layers 3   fewer hidden layers, where plain SGD is enough

Points of two classes lie on two spirals of four turns. Gradient descent finds them with three hidden layers of 100
nodes and not with five. It finds them again if the weights between hidden layers stay orthogonal: an orthogonal
matrix changes neither the length of a signal nor that of a gradient on its way back.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether
from picture import draw


def network(hidden, orthogonal_start):
    """A perceptron with `hidden` layers of 100 nodes. Its linear layers are called 0, 2, 4 and so on."""
    layers = [nn.Linear(2, 100), nn.ReLU()]
    for _ in range(hidden - 1):
        linear = nn.Linear(100, 100)
        if orthogonal_start:
            nn.init.orthogonal_(linear.weight)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, 1))


def optimizer(method, nets, hidden):
    """The line that changes. o-CoLA-od is gradient descent with orthogonal weights."""
    if method == "o-CoLA-od":
        return tether.methods.orthogonal_cola_od(nets, lr=0.1, free=["0.*", f"{2 * hidden}.*"])
    return tether.methods.sgd(nets, lr=0.1)


METHODS = ("SGD", "SGD, orthogonal start", "o-CoLA-od")


def points(runs, count, first_seed):
    """Points and classes of their own for each run: tensors of shape (runs, count, 2) and (runs, count, 1)."""
    sets = [tether.data.spiral(count, turns=4.0, seed=first_seed + 2 * i) for i in range(runs)]
    return torch.stack([x for x, _ in sets]), torch.stack([y for _, y in sets]).unsqueeze(-1).float()


def violation(nets, hidden):
    """The largest entry of |QᵀQ − I| over the weights between hidden layers."""
    weights = [nets.get_parameter(f"{2 * i}.weight") for i in range(1, hidden)]
    return max(float((w.mT @ w - torch.eye(100)).detach().abs().max()) for w in weights)


def main():
    parser = argparse.ArgumentParser(description="Train a deep network on the four-turn spiral.")
    parser.add_argument("--layers", type=int, default=5, help="hidden layers, 2 or more (5)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each method (3)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each run (20,000)")
    parser.add_argument("--out", type=Path, default=Path("out/orthogonal.png"), help="the picture")
    options = parser.parse_args()
    hidden, runs = options.layers, options.runs
    train_set, (x, y) = points(runs, 500, first_seed=0), points(runs, 1000, first_seed=1)

    print(f"{hidden} hidden layers, {runs} runs of {options.steps:,} steps of each method")
    row = "{:<24}{:>18}{:>9}{:>13}{:>9}"
    print(row.format("method", "test accuracy %", "worst", "violation", "seconds"), flush=True)
    panels = []
    for method in METHODS:
        began = time.perf_counter()
        nets = tether.Replicas(partial(network, hidden, "start" in method), runs)  # all runs in one object
        opt = optimizer(method, nets, hidden)
        tether.train(nets, opt, train_set, loss, options.steps, batch=25, each=True)
        with torch.no_grad():
            right = (nets(x, each=True) > 0) == (y > 0.5)
        accuracies = (100 * right.float().mean((1, 2))).tolist()
        numbers = [f"{statistics.fmean(accuracies):.1f}", f"{min(accuracies):.1f}", f"{violation(nets, hidden):.1e}"]
        print(row.format(method, *numbers, f"{time.perf_counter() - began:.1f}"), flush=True)
        i = accuracies.index(statistics.median_low(accuracies))
        panels.append((f"{method}   {accuracies[i]:.1f} %", nets[i], x[i], y[i, :, 0]))
    draw(options.out, panels, f"{hidden} hidden layers of 100: test points and classifier of the median of {runs} runs")


if __name__ == "__main__":
    main()
