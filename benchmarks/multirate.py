"""What slow layers save: multirate SGD beside full training, against the bound from the step's own parts.

    make bench-multirate             # benchmarks/results/multirate.json; a minute
    python benchmarks/multirate.py --only encoder --out out/bench

An encoder of the shape of MiniLM-L6 (6 layers of 384, batch 16, 64 tokens) and a CNN of the shape of ResNet-34 (32 × 32
pixels, batch 32), only the head fast, k = 5. A cycle of multirate is one full step and four that need a forward pass
and the head's gradient; the bound is [full + 4 (forward and head)]/5, from the times of the same round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from nets import Encoder, resnet34
from timing import Candidates, Run, arguments, interleave

K = 5
FULL, HEAD = "full step", "forward and head"
OPTIONS: dict[str, dict[str, bool]] = {
    "multirate": {},
    "multirate, no drift": {"drift": False},
    "multirate, slow part in eval": {"slow_eval": True},
}


def problem(case: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    if case == "encoder":
        return Encoder(), torch.randint(0, 30522, (16, 64)), torch.randint(0, 2, (16,))
    return resnet34(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def measured(case: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step, round by round."""
    model, x, y = problem(case)

    def trained(net: nn.Module, opt: torch.optim.Optimizer, steps: int = 1) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                opt.zero_grad()
                cross_entropy(net(x), y).backward()
                opt.step()

        return run

    full, head, *rest = (copy.deepcopy(model) for _ in range(2 + len(OPTIONS)))
    for name, param in head.named_parameters():
        param.requires_grad_(name.startswith("head"))
    sgd = {"lr": 0.01, "momentum": 0.9, "foreach": True}
    calls: Candidates = {
        FULL: trained(full, torch.optim.SGD(full.parameters(), **sgd)),
        HEAD: trained(head, torch.optim.SGD(head.head.parameters(), **sgd)),
    }
    for net, (label, fields) in zip(rest, OPTIONS.items(), strict=True):
        calls[label] = trained(net, tether.methods.multirate_sgd(net, fast="head.*", k=K, lr=0.05, **fields), K)
    times = interleave(calls, rounds, case, warm=1)
    times |= {label: [t / K for t in times[label]] for label in OPTIONS}
    return times | {"bound": [(a + (K - 1) * b) / K for a, b in zip(times[FULL], times[HEAD], strict=True)]}


def main() -> None:
    options = arguments(__doc__, rounds=6, quick=2, threads=(2,), cases=("encoder", "ResNet-34"))
    run = Run("multirate", "What slow layers save", options)
    for _ in run.threads():
        table = run.table("a step, only the head fast, k = 5", FULL)
        for case in options.only:
            table.add(case, measured(case, options.rounds))
    run.write()


if __name__ == "__main__":
    main()
