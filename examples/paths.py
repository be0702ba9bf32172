"""Path-SGD beside SGD and AdaGrad from balanced and unbalanced starts, after the experiment of the slides (002).

    TETHER_DATA=... python examples/paths.py --set mnist       curves in out/paths-mnist.png
    TETHER_DATA=... python examples/paths.py --set cifar10
    TETHER_DATA=... python examples/paths.py --quick

Ten thousand images, two hidden layers of ReLU (H each), batch 100, with and without dropout of one half after each. The
unbalanced start computes the same function as the balanced one: each hidden unit has its incoming weights multiplied
and its outgoing ones divided by a factor between 1/100 and 100. Step sizes by search: the powers of ten from 1e-5 to 1
by the training loss of a short run, then whole runs of the best and of half a power to either side, by the training
loss at their end. The slides have H = 4000 and all images.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import results
import tether
from tether.train import Minibatches

METHODS: dict[str, Callable[[nn.Module, float], torch.optim.Optimizer]] = {
    "SGD": lambda net, h: tether.methods.sgd(net, lr=h),
    "AdaGrad": lambda net, h: torch.optim.Adagrad(net.parameters(), lr=h),
    "Path-SGD": lambda net, h: tether.methods.path_sgd(net, lr=h),
}
MEASURES = ("training cross-entropy", "training error %", "test error %")
Pair = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--search", type=int, default=2, help="epochs for each step size tried")
    parser.add_argument("--quick", action="store_true", help="32 units, 500 images, 2 epochs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="picture; out/paths-SET.png")
    parser.add_argument("--json", type=Path, help="results; out/paths-SET.json")
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.images, options.epochs, options.search = 32, 500, 2, 1
    torch.set_num_threads(options.threads)
    pairs = images(options.set, options.images)
    began, runs = time.perf_counter(), []
    print(
        f"{'dropout':<8} {'start':<11} {'method':<9} {'step size':>9} | {MEASURES[0]} | {MEASURES[1]} | {MEASURES[2]}"
    )
    for dropout in (0.0, 0.5):
        torch.manual_seed(0)
        balanced = perceptron(pairs[0][0].shape[1], options.hidden, dropout)
        starts = {"balanced": balanced, "unbalanced": tether.measure.rescale(balanced, seed=0, spread=100.0)}
        for start, model in starts.items():
            for method, build in METHODS.items():
                h, curve, tried = search(model, build, pairs, options.search, options.epochs)
                runs.append({"dropout": dropout, "start": start, "method": method, "step size": h})
                runs[-1] |= {"tried": tried, "curve": curve}
                last = f"{curve[-1][0]:>22.4f} | {curve[-1][1]:>16.2f} | {curve[-1][2]:>12.2f}"
                print(f"{dropout:<8} {start:<11} {method:<9} {h:>9.2g} | {last}", flush=True)
                results.write(options.json or Path(f"out/paths-{options.set}.json"), options, runs)
    setting = f"{options.set}, {len(pairs[0][0]):,} images, {options.hidden} units in each hidden layer"
    print(f"{setting}, {options.epochs} epochs. Took {time.perf_counter() - began:.0f} s.")
    picture = options.out or Path(f"out/paths-{options.set}.png")
    draw(runs, setting, picture)
    print(f"Curves: {picture}")


def images(name: str, count: int) -> tuple[Pair, Pair]:
    """Training and test images as vectors, without the mean of the training images."""
    (x, y), (x_test, y_test) = (getattr(tether.data, name)(train=train) for train in (True, False))
    x, x_test = (pixels.flatten(1).float() / 255 for pixels in (x[:count], x_test))
    mean = x.mean(0)
    return (x - mean, y[:count]), (x_test - mean, y_test)


def perceptron(inputs: int, H: int, dropout: float) -> nn.Sequential:
    """Two hidden layers, each followed by dropout, which the path metric does not see."""
    hidden = [[nn.Linear(n, H), nn.ReLU(), nn.Dropout(dropout)] for n in (inputs, H)]
    return nn.Sequential(*hidden[0], *hidden[1], nn.Linear(H, 10))


def train(model: nn.Module, build: Any, h: float, pairs: tuple[Pair, Pair], epochs: int) -> list[list[float]]:
    """The three measures before training and after each epoch; it ends early when a loss is not finite."""
    net = copy.deepcopy(model)
    (x, y), test = pairs
    opt, stream = build(net, h), Minibatches(len(x), 100, None, seed=0)
    torch.manual_seed(1)  # the same dropout for all
    curve = [measure(net, (x, y), test)]
    for epoch in range(epochs):
        for step in range(epoch * stream.per_epoch, (epoch + 1) * stream.per_epoch):
            rows = stream(step)[0]
            opt.zero_grad()
            loss = cross_entropy(net(x[rows]), y[rows])
            if not loss.isfinite():
                return curve
            loss.backward()
            if not all(param.grad.isfinite().all() for param in net.parameters()):
                return curve
            opt.step()
        curve.append(measure(net, (x, y), test))
    return curve


def search(
    model: nn.Module, build: Any, pairs: tuple[Pair, Pair], short: int, epochs: int
) -> tuple[float, list[list[float]], dict[str, float | None]]:
    """The step size with the lowest training loss at the end, its curve, and the losses of all that ran to the end."""

    def losses(sizes: list[float], length: int) -> dict[float, tuple[float, list[list[float]]]]:
        curves = {h: train(model, build, h, pairs, length) for h in sizes}
        ends = {h: curve[-1][0] if len(curve) == length + 1 else math.inf for h, curve in curves.items()}
        return {h: (end if math.isfinite(end) else math.inf, curves[h]) for h, end in ends.items()}

    powers = losses([10.0**power for power in range(-5, 1)], short)
    middle = min(powers, key=lambda h: powers[h][0])
    found = losses([middle * 10**half for half in (-0.5, 0, 0.5)], epochs)
    best = min(found, key=lambda h: found[h][0])
    return best, found[best][1], {f"{h:.2g}": end if end < math.inf else None for h, (end, _) in found.items()}


@torch.no_grad()
def measure(net: nn.Module, training: Pair, test: Pair) -> list[float]:
    net.eval()
    (out, y), (out_test, y_test) = ((net(x), y) for x, y in (training, test))
    net.train()
    errors = [100 * float((o.argmax(1) != labels).float().mean()) for o, labels in ((out, y), (out_test, y_test))]
    return [round(value, 5) for value in (float(cross_entropy(out, y)), *errors)]


def draw(runs: list[dict[str, Any]], setting: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = [(dropout, start) for dropout in (0.0, 0.5) for start in ("balanced", "unbalanced")]
    figure, axes = pyplot.subplots(3, 4, figsize=(12, 7.5), sharex=True, sharey="row", layout="constrained")
    for j, (dropout, start) in enumerate(columns):
        for run in runs:
            if (run["dropout"], run["start"]) == (dropout, start):
                for i in range(3):
                    values = [row[i] for row in run["curve"]]
                    style = "--" if run["method"] == "Path-SGD" else "-"
                    axes[i, j].plot(values, style, label=f"{run['method']}, h = {run['step size']:.2g}")
        axes[0, j].set_title(f"{'dropout' if dropout else 'no dropout'}, {start}")
        axes[0, j].legend(fontsize=8)
        axes[2, j].set_xlabel("epoch")
    axes[0, 0].set_yscale("log")
    lowest = min(row[0] for run in runs for row in run["curve"])
    axes[0, 0].set_ylim(max(lowest, 1e-4) / 1.5, 5)
    for i, name in enumerate(MEASURES):
        axes[i, 0].set_ylabel(name)
    worst = max(run["curve"][-1][2] for run in runs if run["method"] == "Path-SGD")
    for i in (1, 2):
        axes[i, 0].set_ylim(0, min(100, 3 * worst))
    figure.suptitle(setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
