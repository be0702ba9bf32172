"""What a step would cost at scale, on paper: the tables of docs/sharded.md.

    python benchmarks/sharded_cost.py

Attention weights are orthogonal, the weights of the MLPs are bounded by circles, everything else is free; all of them
move by Langevin dynamics with noise, under `fully_shard`. Nothing is run: `tether.sharded.cost` counts from shapes,
and the rates below turn its counts into times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

import tether
from tether.sharded import Cost, cost

TRAINING = 400e12  # operations a second of forward and backward, in bfloat16
PRODUCTS = 60e12  # of the products of orthogonal matrices, in float32
ELEMENTS = 10e12  # of everything that goes entry by entry: bound by memory, about 2 TB/s
NEAR, FAR = 300e9, 50e9  # bytes a second and rank: up to 8 ranks, and beyond
LATENCY = 20e-6  # seconds of a collective, and
EACH = 1e-6  # for each rank of an all-to-all
NOTICED = 0.05  # of a training step


class Shape(NamedTuple):
    """A transformer: width, layers, width of keys and values, of the MLP, its matrices, and the vocabulary."""

    width: int
    layers: int
    keys: int
    hidden: int
    gates: int
    words: int


MODELS = {
    "1.3B": Shape(2048, 24, 2048, 8192, 2, 50257),
    "70B": Shape(8192, 80, 1024, 28672, 3, 32000),
}
PARTS = [
    tether.Part("*.attention.*", on=tether.Orthogonal()),
    tether.Part("*.mlp.*", on=tether.Circle(1.0)),
    tether.Part("*"),
]


def parameters(shape: Shape) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and shapes; the meta device holds no numbers."""

    def empty(*sizes: int) -> torch.Tensor:
        return torch.nn.Parameter(torch.empty(*sizes, device="meta"))

    d, _, k, f, gates, words = shape
    yield "embedding", empty(words, d)
    for i in range(shape.layers):
        for name, rows in (("q", d), ("k", k), ("v", k)):
            yield f"{i}.attention.{name}", empty(rows, d)
        yield f"{i}.attention.o", empty(d, d)
        for j in range(gates - 1):
            yield f"{i}.mlp.in{j}", empty(f, d)
        yield f"{i}.mlp.out", empty(d, f)
        yield f"{i}.norm", empty(d)


def seconds(rows: list[Cost], ranks: int) -> tuple[float, float]:
    """Of a step of one rank: what it computes, and what it waits for messages."""
    rate = NEAR if ranks <= 8 else FAR
    computing = waiting = 0.0
    for row in rows:
        computing += row.operations / (PRODUCTS if "attention" in row.part else ELEMENTS)
        exchange = "attention" in row.part
        waiting += row.bytes * (ranks - 1) / ranks / rate + row.messages * (LATENCY + EACH * ranks * exchange)
    return computing, waiting


def main() -> None:
    columns = ["model", "ranks", "products, Gop", "entries, Gop", "MB", "messages", "computing, ms", "messages, ms"]
    print("| " + " | ".join([*columns, "bound by", "tokens"]) + " |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, shape in MODELS.items():
        named = list(parameters(shape))
        size = sum(param.numel() for _, param in named)
        for ranks in (8, 64, 1024):
            rows = cost(named, PARTS, ranks, word="BAOAB", temperature=1e-6)
            computing, waiting = seconds(rows, ranks)
            # 6 operations for each parameter and token
            tokens = (computing + waiting) * (1 / NOTICED - 1) * ranks * TRAINING / (6 * size)
            products, entries = rows[0].operations / 1e9, sum(row.operations for row in rows[1:]) / 1e9
            sent, messages = sum(row.bytes for row in rows) / 1e6, sum(row.messages for row in rows)
            bound = (
                "messages"
                if waiting > computing
                else "products"
                if products / PRODUCTS > entries / ELEMENTS
                else "entries"
            )
            cells = [name, f"{ranks:,}", f"{products:,.0f}", f"{entries:,.1f}", f"{sent:,.0f}", f"{messages}"]
            cells += [f"{computing * 1e3:,.1f}", f"{waiting * 1e3:,.1f}", bound, f"{tokens:,.0f}"]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
