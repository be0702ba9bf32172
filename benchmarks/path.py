"""What the path metric costs, beside the forward pass and the training step that it rides on.

    python benchmarks/path.py                       # 784-1000-1000-10 and a small CNN, 1 and 2 threads
    python benchmarks/path.py --rounds 200 --threads 1

The first table has path_norm beside a forward pass of batch size 1. The second has γ and its application beside a
training step of batch size 100 by torch's SGD: "γ" is the cost of the factors of γ alone, "γ + step" with the update
w −= η/γ·g in place of SGD's, and "more than SGD" what a whole step of Path-SGD takes longer than one of SGD. Each round
times every candidate once, in turn; figures are medians over rounds, ratios medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import nn

from step import Candidates, interleave, mlp, ratio
from tether.measure import path_norm
from tether.metrics.path import Path


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


NETS = {"784-1000-1000-10": (lambda: mlp(784, 1000, 1000, 10), (784,)), "conv 32-64-128": (cnn, (3, 32, 32))}


def norms(rounds: int, p: float) -> None:
    print(f"{'batch 1':<18} {'':<14} {'µs':>8} {'× forward':>10}")
    for name, (build, shape) in NETS.items():
        net, x = build().eval(), torch.randn(1, *shape)
        candidates: Candidates = {
            "forward": torch.no_grad()(lambda net=net, x=x: net(x)),
            "path_norm": lambda net=net, shape=shape: path_norm(net, p, shape),
        }
        times = interleave(candidates, rounds, name)
        for label, series in times.items():
            row = f"{name:<18} {label:<14} {1e6 * statistics.median(series):>8.0f}"
            print(f"{row} {ratio(series, times['forward']):>10.2f}", flush=True)


def steps(rounds: int, p: float) -> None:
    print(f"\n{'batch 100':<18} {'':<14} {'µs':>8} {'% of the step':>14}")
    for name, (build, shape) in NETS.items():
        x, y = torch.randn(100, *shape), torch.randint(0, 10, (100,))
        metric, plain, net = Path(p), build(), build()
        sgd = torch.optim.SGD(plain.parameters(), lr=1e-5)

        def gradient(net: nn.Module, x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            net.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()

        def train(plain: nn.Module = plain, sgd: torch.optim.Optimizer = sgd, gradient=gradient) -> None:
            gradient(plain)
            sgd.step()

        @torch.no_grad()
        def update(net: nn.Module = net, shape=shape, metric: Path = metric) -> None:
            γ = metric.factors(net, shape)
            for key, w in net.named_parameters():
                metric.divide(w.grad, γ[key], w, times=-1e-9, keep=1.0)

        def path_train(net: nn.Module = net, gradient=gradient, update=update) -> None:
            gradient(net)
            update()

        candidates: Candidates = {
            "SGD": train,
            "Path-SGD": path_train,
            "γ": lambda net=net, shape=shape, metric=metric: metric.factors(net, shape),
            "γ + step": update,
        }
        times = interleave(candidates, max(20, rounds // 4), name)
        for label, series in times.items():
            row = f"{name:<18} {label:<14} {1e6 * statistics.median(series):>8.0f}"
            print(f"{row} {100 * ratio(series, times['SGD']):>14.1f}", flush=True)
        more = 100 * ratio(times["Path-SGD"], times["SGD"], times["SGD"])
        print(f"{name:<18} {'more than SGD':<14} {'':>8} {more:>14.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--p", type=float, default=2)
    arguments = parser.parse_args()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print(
            f"\n=== torch {torch.__version__}, {threads} thread(s), p = {arguments.p:g}, {arguments.rounds} rounds ==="
        )
        norms(arguments.rounds, arguments.p)
        steps(arguments.rounds, arguments.p)


if __name__ == "__main__":
    main()
