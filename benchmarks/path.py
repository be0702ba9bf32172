"""What the path metric costs, beside the forward pass and the training step that it rides on.

    make bench-path                  # benchmarks/results/path.json; half a minute

`path_norm` beside a forward pass of batch size 1. Then γ and its application beside a training step of batch size 100
by torch's SGD: "γ" is the cost of the factors of γ alone, "γ and update" with the update w −= η/γ·g in place of SGD's,
and "Path-SGD" a whole training step with them.
"""

from __future__ import annotations

import torch
from torch import nn

from nets import mlp
from tether.measure import path_norm
from tether.metrics.path import Path
from timing import Candidates, Run, arguments, interleave

P = 2.0
SGD = "SGD, whole step"


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


NETS = {"784-1000-1000-10": (lambda: mlp(784, 1000, 1000, 10), (784,)), "conv 32-64-128": (cnn, (3, 32, 32))}


def norms(case: str) -> Candidates:
    build, shape = NETS[case]
    net, x = build().eval(), torch.randn(1, *shape)
    return {"forward": torch.no_grad()(lambda: net(x)), "path_norm": lambda: path_norm(net, P, shape)}


def steps(case: str) -> Candidates:
    build, shape = NETS[case]
    x, y = torch.randn(100, *shape), torch.randint(0, 10, (100,))
    metric, plain, net = Path(P), build(), build()
    sgd = torch.optim.SGD(plain.parameters(), lr=1e-5)

    def gradient(net: nn.Module) -> None:
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()

    def train() -> None:
        gradient(plain)
        sgd.step()

    @torch.no_grad()
    def update() -> None:
        γ = metric.factors(net, shape)
        for key, w in net.named_parameters():
            metric.divide(w.grad, γ[key], w, times=-1e-9, keep=1.0)

    def path_train() -> None:
        gradient(net)
        update()

    return {
        SGD: train,
        "Path-SGD, whole step": path_train,
        "γ": lambda: metric.factors(net, shape),
        "γ and update": update,
    }


def main() -> None:
    options = arguments(__doc__, rounds=100, quick=40, threads=(1, 2), cases=tuple(NETS))
    run = Run("path", "What the path metric costs", options)
    for _ in run.threads():
        table = run.table("path norm, batch 1", "forward", "µs")
        for case in options.only:
            table.add(case, interleave(norms(case), options.rounds, case))
        table = run.table("Path-SGD, batch 100", SGD, "ms")
        for case in options.only:
            table.add(case, interleave(steps(case), max(7, options.rounds // 5), case))
    run.write()


if __name__ == "__main__":
    main()
