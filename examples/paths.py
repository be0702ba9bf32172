"""Path-SGD beside SGD and AdaGrad from balanced and unbalanced starts, after the experiment of the slides (002).

    TETHER_DATA=... python examples/paths.py

MNIST, 10,000 images, 784-H-H-10 with ReLU, batch 100; every method with the best of a few step sizes by training
loss. The unbalanced start computes the same function as the balanced one: each hidden unit has its incoming weights
multiplied and its outgoing ones divided by a factor between 1/100 and 100.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether.train import Minibatches

METHODS: dict[str, tuple[tuple[float, ...], Callable[[nn.Module, float], torch.optim.Optimizer]]] = {
    "SGD": ((0.01, 0.03, 0.1, 0.3, 1.0), lambda net, h: tether.methods.sgd(net, lr=h)),
    "AdaGrad": ((0.003, 0.01, 0.03, 0.1), lambda net, h: torch.optim.Adagrad(net.parameters(), lr=h)),
    "Path-SGD": ((0.001, 0.003, 0.01, 0.03, 0.1), lambda net, h: tether.methods.path_sgd(net, lr=h)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    (x, y), (x_test, y_test) = (tether.data.mnist(train=train) for train in (True, False))
    x, y, x_test = x[:10_000].flatten(1) / 255, y[:10_000], x_test.flatten(1) / 255
    H = options.hidden
    torch.manual_seed(0)
    balanced = nn.Sequential(nn.Linear(784, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 10))
    starts = {"balanced": balanced, "unbalanced": tether.measure.rescale(balanced, seed=0, spread=100.0)}
    began = time.perf_counter()
    print(f"{'start':<12} {'method':<10} {'step size':>10} {'training loss':>14} {'test error %':>13}")
    for start, model in starts.items():
        for method, (sizes, build) in METHODS.items():
            found = []
            for h in sizes:
                net = copy.deepcopy(model)
                opt, stream = build(net, h), Minibatches(10_000, 100, None, seed=0)
                for step in range(100 * options.epochs):
                    rows = stream(step)[0]
                    opt.zero_grad()
                    loss = cross_entropy(net(x[rows]), y[rows])
                    if not loss.isfinite():
                        break
                    loss.backward()
                    opt.step()
                with torch.no_grad():
                    training = float(cross_entropy(net(x), y))
                    error = 100 * float((net(x_test).argmax(1) != y_test).float().mean())
                found.append((training if math.isfinite(training) else math.inf, error, h))
            training, error, h = min(found)
            print(f"{start:<12} {method:<10} {h:>10g} {training:>14.4f} {error:>13.2f}", flush=True)
    print(f"{options.epochs} epochs, {H} units in each hidden layer. Took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
