"""Muon beside torch's: a step of 24 matrices of 256 × 256.

    python benchmarks/muon.py                       # one thread
    python benchmarks/muon.py --count 8 --size 512 --rounds 3 --threads 2

torch computes UVᵀ in bfloat16, matrix by matrix; `tether.methods.muon` in float32, all of one shape together. "one by
one" is ours on each matrix alone, so that the gain of the batch and that of the dtype can be told apart. Each round
times every candidate once, in turn; figures are medians over rounds, ratios medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import nn

import tether
from step import Candidates, interleave, ratio
from tether.metrics.spectral import orthogonalised


def matrices(count: int, size: int) -> nn.ParameterList:
    torch.manual_seed(0)
    found = nn.ParameterList([nn.Parameter(torch.randn(size, size)) for _ in range(count)])
    for w in found:
        w.grad = torch.randn(size, size)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, theirs = matrices(args.count, args.size), matrices(args.count, args.size)
    stack = torch.stack([w.grad for w in ours])
    candidates: Candidates = {
        "torch.optim.Muon": torch.optim.Muon(theirs.parameters(), lr=1e-3).step,
        "methods.muon": tether.methods.muon(ours, lr=1e-3).step,
        "UVᵀ, all together": lambda: orthogonalised(stack),
        "UVᵀ, one by one": lambda: [orthogonalised(x) for x in stack.split(1)],
    }
    times = interleave(candidates, args.rounds, "muon")
    first = times["torch.optim.Muon"]
    print(f"{args.count} × {args.size}², {args.threads} thread(s)   ms   × torch")
    for label, series in times.items():
        print(f"{label:<20} {1e3 * statistics.median(series):>10.1f} {ratio(series, first):>8.3f}")


if __name__ == "__main__":
    main()
