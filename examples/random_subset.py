"""Random subsets of the weights asleep for k steps, after Figure 5.7 of the thesis.

    TETHER_DATA=... python examples/random_subset.py           curves in out/random_subset.png
    TETHER_DATA=... python examples/random_subset.py --quick

A perceptron with one hidden layer of ReLU nodes on MNIST, SGD with h = 0.1. Random subset (5.5.1): weights of the input
and of the hidden layer are 0 for k steps with probability 0.8 and 0.5, then woken and moved with h·k. Beside it plain
SGD, SGD with dropout, and what is left without the clock: another subset is 0 at every step and stays where it was.
The thesis states neither k, nodes, batch nor numbers of images and steps, and gives its accuracies as curves alone:
random subset above SGD, the variant without the clock below random subset. Test accuracies are those of all weights
awake. Few images and many steps, so that plain SGD overfits; every replica has its own start, subsets and images.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import results
import tether

SHARES = {"0.weight": 0.8, "2.weight": 0.5}
DROPOUT = {"dropout 0.2, 0.5": (0.2, 0.5)}  # of pixels, of hidden nodes
Pair = tuple[torch.Tensor, torch.Tensor]


class Forgetful:
    """A random subset of the weights is 0 for one step and stays where it was: no clock, no long step."""

    def __init__(self, nets: nn.Module, seed: int = 0) -> None:
        named = dict(nets.named_parameters())
        self.params = {named[name]: share for name, share in SHARES.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.held: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = {}

    @torch.no_grad()
    def sleep(self, *_: Any) -> None:
        self.wake()
        for param, share in self.params.items():
            mask = torch.rand(param.shape, generator=self.generator) < share
            self.held[param] = (mask, param.detach().clone())
            param.masked_fill_(mask, 0.0)

    @torch.no_grad()
    def wake(self) -> None:
        for param, (mask, values) in self.held.items():
            param.copy_(torch.where(mask, values, param))
        self.held = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--quick", action="store_true", help="2 replicas, 20 nodes, 500 images, 10 epochs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/random_subset.png"))
    parser.add_argument("--json", type=Path, default=Path("out/random_subset.json"))
    options = parser.parse_args()
    if options.quick:
        options.runs, options.nodes, options.images, options.epochs = 2, 20, 500, 10
    torch.set_num_threads(options.threads)
    data, test = images(options.runs, options.images)
    began, rows = time.perf_counter(), []
    methods = ["SGD", *DROPOUT, "without the clock"]
    methods += [f"random subset, k = {k}" for k in options.k]
    columns = ("training error %", "test accuracy %", "best on the way", "minus SGD")
    print(f"{'':<24} " + " ".join(f"{name:>16}" for name in columns))
    for method in methods:
        rows.append({"method": method} | train(method, data, test, options))
        gains = [a - b for a, b in zip(rows[-1]["accuracy"], rows[0]["accuracy"], strict=True)]  # on the same images
        values = [*(rows[-1][name] for name in ("training error", "accuracy", "best")), gains]
        print(f"{method:<24} " + " ".join(f"{spread(x):>16}" for x in values), flush=True)
        results.write(options.json, options, rows)
    setting = f"{options.runs} runs, {options.nodes} nodes, {options.images:,} images, {options.epochs} epochs"
    print(f"Mean ± standard error; {setting}, h = {options.lr:g}. Took {time.perf_counter() - began:.0f} s.")
    draw(rows, f"MNIST, {options.nodes} nodes, {options.images:,} images, h = {options.lr:g}", options.out)
    print(f"Curves: {options.out}")


def images(runs: int, count: int) -> tuple[tuple[torch.Tensor, torch.Tensor], Pair]:
    """A training set for each replica, without overlap where there are enough images, and the test set."""
    (x, y), (x_test, y_test) = (tether.data.mnist(train=train) for train in (True, False))
    rows = torch.arange(runs * count).remainder(len(x)).view(runs, count)
    return (x.flatten(1)[rows].float() / 255, y[rows]), (x_test.flatten(1).float() / 255, y_test)


def train(method: str, data: Pair, test: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Per cent for each replica at the end, and the test accuracies on the way."""
    torch.manual_seed(0)  # dropout draws from torch's own generator
    nets = tether.Replicas(lambda: perceptron(options.nodes, DROPOUT.get(method)), options.runs)
    k = int(method.rpartition(" ")[2]) if method.startswith("random") else 0
    if k:
        opt = tether.methods.random_subset(nets, lr=options.lr, k=k, probabilities=SHARES)
    else:
        opt = tether.methods.sgd(nets, lr=options.lr)
    forgetful = Forgetful(nets) if method == "without the clock" else None
    if forgetful:
        opt.register_step_post_hook(forgetful.sleep)
        forgetful.sleep()
    steps = options.epochs * math.ceil(options.images / options.batch)
    every = max(1, steps // 25 // (k + 1)) * (k + 1)
    last = steps // (k + 1) * (k + 1) - 1 if k else steps
    marks: list[int] = []

    def look(step: int, *_: Any) -> Mapping[str, Any]:
        awake = (step + 1) % every == 0 if k else step % every == 0  # of k + 1 steps after the one before the last
        if not awake and step != last:
            return {}
        marks.append(step)
        if forgetful:
            forgetful.wake()
        found = {"accuracy": 100 - errors(nets, *test)}
        if step == last:
            found["training error"] = errors(nets, *data)
        if forgetful:
            forgetful.sleep()
        return found

    record = tether.train(nets, opt, data, cross_entropy, last, options.batch, 1, [look], each=True)
    if record.stopped:
        raise SystemExit(f"{method}: replicas {list(record.stopped)} diverged; use a smaller --lr")
    accuracies = record.metrics["accuracy"]
    return {
        "training error": record.metrics["training error"][-1].tolist(),
        "accuracy": accuracies[-1].tolist(),
        "best": accuracies.max(0).values.tolist(),
        "steps": marks,
        "mean accuracy": [round(x, 3) for x in accuracies.mean(1).tolist()],
    }


def perceptron(nodes: int, dropout: tuple[float, float] | None) -> nn.Sequential:
    """One hidden layer; with dropout of the pixels and of the hidden nodes."""
    layers = [nn.Linear(784, nodes), nn.ReLU(), nn.Linear(nodes, 10)]
    if dropout is not None:
        layers = [nn.Dropout(dropout[0]), *layers[:2], nn.Dropout(dropout[1]), layers[2]]
    return nn.Sequential(*layers)


@torch.no_grad()
def errors(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Per cent of wrong answers of each replica, on images that all share or on its own."""
    nets.eval()
    wrong = 100 * (nets(x, each=y.dim() == 2).argmax(-1) != y).double().mean(1)
    nets.train()
    return wrong


def spread(values: list[float]) -> str:
    x = torch.tensor(values, dtype=torch.float64)
    return f"{float(x.mean()):.2f} ± {float(x.std()) / math.sqrt(len(x)):.2f}"


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    for row in rows:
        axis.plot(row["steps"], row["mean accuracy"], label=row["method"])
    ends = [row["accuracy"] for row in rows]
    low, high = min(min(x) for x in ends), max(max(x) for x in ends)
    axis.set(xlabel="step", ylabel="test accuracy %", title=title, ylim=(low - 2, high + 0.5))
    axis.legend(loc="center right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
