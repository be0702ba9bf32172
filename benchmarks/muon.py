"""Muon beside torch's: a step of matrices of equal shape.

    make bench-muon                  # benchmarks/results/muon.json; half a minute

torch computes UVᵀ in bfloat16, matrix by matrix; `tether.methods.muon` in float32, all of one shape together. "one by
one" is ours on each matrix alone, so that the gain of the batch and that of the dtype can be told apart.
"""

from __future__ import annotations

import torch
from torch import nn

import tether
from tether.metrics.spectral import orthogonalised
from timing import Candidates, Run, arguments, interleave

TORCH = "torch.optim.Muon"
CASES = {"24 × 256²": (24, 256), "96 × 32²": (96, 32)}


def matrices(count: int, size: int) -> nn.ParameterList:
    torch.manual_seed(0)
    found = nn.ParameterList([nn.Parameter(torch.randn(size, size)) for _ in range(count)])
    for w in found:
        w.grad = torch.randn(size, size)
    return found


def candidates(count: int, size: int, peers: bool) -> Candidates:
    ours, theirs = matrices(count, size), matrices(count, size)
    stack = torch.stack([w.grad for w in ours])
    calls: Candidates = {
        "methods.muon": tether.methods.muon(ours, lr=1e-3).step,
        "UVᵀ, all together": lambda: orthogonalised(stack),
        "UVᵀ, one by one": lambda: [orthogonalised(x) for x in stack.split(1)],
    }
    return calls | ({TORCH: torch.optim.Muon(theirs.parameters(), lr=1e-3).step} if peers else {})


def main() -> None:
    options = arguments(__doc__, rounds=5, quick=5, threads=(1,), cases=tuple(CASES))
    run = Run("muon", "What Muon costs", options)
    for _ in run.threads():
        table = run.table("update of equal matrices", "methods.muon")
        for case in options.only:
            table.add(case, interleave(candidates(*CASES[case], options.peers), options.rounds, case, warm=1))
    run.write()


if __name__ == "__main__":
    main()
