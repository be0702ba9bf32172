"""What slow layers save: multirate SGD beside full training, against the bound from the step's own parts.

    make bench-multirate
    python benchmarks/multirate.py --rounds 10 --only encoder

An encoder of the shape of MiniLM-L6 (6 layers of 384, batch 16, 64 tokens) and a CNN of the shape of ResNet-34 (32 × 32
pixels, batch 32), only the head fast, k = 5. A cycle of multirate is one full step and four that need a forward pass
and the head's gradient; the bound is full / [(full + 4 forward)/5], all timed in one run, interleaved; medians.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from step import interleave, ratio

K = 5


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30522, 384)
        layer = nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.1, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(384, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens)).mean(1))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        width = 64
        for outputs, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(count):
                layers.append(Block(width, outputs, 2 if i == 0 and outputs > 64 else 1))
                width = outputs
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def compare(name: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int) -> None:
    def trained(
        net: nn.Module, opt: torch.optim.Optimizer, steps: int = 1, between: list[float] | None = None
    ) -> Callable[[], None]:
        def run() -> None:
            for i in range(steps):
                opt.zero_grad()
                cross_entropy(net(x), y).backward()
                began = time.perf_counter()
                opt.step()
                if i and between is not None:
                    between.append(time.perf_counter() - began)

        return run

    full, head, *rest = (copy.deepcopy(model) for _ in range(5))
    for name_of, param in head.named_parameters():
        param.requires_grad_(name_of.startswith("head"))
    sgd = {"lr": 0.01, "momentum": 0.9, "foreach": True}
    calls = {
        "full step": trained(full, torch.optim.SGD(full.parameters(), **sgd)),
        "forward and head": trained(head, torch.optim.SGD(head.head.parameters(), **sgd)),
    }
    options = {
        "multirate": {},
        "multirate, no drift": {"drift": False},
        "multirate, slow part in eval": {"slow_eval": True},
    }
    between: dict[str, list[float]] = {label: [] for label in options}
    for net, (label, fields) in zip(rest, options.items(), strict=True):
        opt = tether.methods.multirate_sgd(net, fast="head.*", k=K, lr=0.05, **fields)
        calls[label] = trained(net, opt, K, between[label])
    times = interleave(calls, rounds, name)
    one = [(a + (K - 1) * b) / K for a, b in zip(times["full step"], times["forward and head"], strict=True)]
    bound = ratio(times["full step"], one)
    middle = {label: 1e3 * statistics.median(series) for label, series in times.items()}
    print(f"{name:<10} {'full step':<30} {middle['full step']:>8.1f} ms")
    print(f"{'':<10} {'forward and head':<30} {middle['forward and head']:>8.1f} ms   bound {bound:.2f}×")
    for label in options:
        gain = ratio(times["full step"], [t / K for t in times[label]])
        share = f"{gain:.2f}×, {100 * gain / bound:.0f} % of the bound"
        print(f"{'':<10} {label:<30} {middle[label] / K:>8.1f} ms   {share}", flush=True)
    drift, none = (1e3 * statistics.median(between[label]) for label in ("multirate", "multirate, no drift"))
    share = 100 * (drift - none) / middle["forward and head"]
    print(f"{'':<10} {'drift of the slow part':<30} {drift - none:>8.1f} ms   {share:.1f} % of a fast step", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=["encoder", "resnet"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {arguments.rounds} rounds, k = {K}, per step")
    if "encoder" in arguments.only:
        compare("encoder", Encoder(), torch.randint(0, 30522, (16, 64)), torch.randint(0, 2, (16,)), arguments.rounds)
    if "resnet" in arguments.only:
        compare("resnet", ResNet(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,)), arguments.rounds)


if __name__ == "__main__":
    main()
