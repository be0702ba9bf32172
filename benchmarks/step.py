"""What a step costs, beside torch's SGD with momentum and the peer `posteriors`, interleaved in one run.

    make bench-step                  # benchmarks/results/step.json; a minute
    python benchmarks/step.py --threads 1 --only 2-500-1 --out out/bench

"normal_ alone" is the time of drawing as many normal numbers as there are parameters, without any update.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import tether
from nets import Language, mlp
from timing import Candidates, Run, arguments, interleave

SGD = "torch SGD, momentum, foreach"
UPDATES = {"OBA, τ = 0": "OBA", "BAOAB, τ = 0": "BAOAB", "X, τ > 0": "X", "OBA, τ > 0": "OBA", "BAOAB, τ > 0": "BAOAB"}
WHOLE = ("BAOAB, τ = 0", "BAOAB, τ > 0")
CASES = ("2-500-1", "784-1000-10", "transformer, 4.5 M")
Work = tuple[Callable[[], nn.Module], torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]


def workloads() -> dict[str, Work]:
    """Model, batch and loss."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 2000, (16, 64))
    works: list[Work] = [
        (lambda: mlp(2, 500, 1), torch.randn(20, 2), torch.randn(20, 1), mse_loss),
        (lambda: mlp(784, 1000, 10), torch.randn(128, 784), torch.randint(0, 10, (128,)), cross_entropy),
        (Language, tokens, tokens.flatten(), cross_entropy),
    ]
    return dict(zip(CASES, works, strict=True))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)


def ours(model: nn.Module, label: str) -> torch.optim.Optimizer:
    return tether.Optimizer(model, lr=1e-2, word=UPDATES[label], temperature=1e-8 if ">" in label else 0.0)


def update_alone(build: Callable[[], nn.Module]) -> Candidates:
    """The optimizer's step by itself, on gradients that stay."""

    def model() -> nn.Module:
        net = build()
        for param in net.parameters():
            param.grad = 1e-4 * torch.randn_like(param)
        return net

    numbers, generator = torch.empty(sum(p.numel() for p in build().parameters())), torch.Generator()
    calls: Candidates = {SGD: sgd(model()).step}
    calls |= {label: ours(model(), label).step for label in UPDATES}
    return calls | {"normal_ alone": lambda: numbers.normal_(generator=generator)}


def whole_step(work: Work, peers: bool) -> Candidates:
    """Forward, backward and update: what a user waits for."""
    build, x, y, loss = work

    def train(model: nn.Module, opt: torch.optim.Optimizer) -> Callable[[], object]:
        def step() -> None:
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()

        return step

    model = build()
    calls: Candidates = {SGD: train(model, sgd(model))}
    for label in WHOLE:
        model = build()
        calls[label] = train(model, ours(model, label))
    return calls | (posteriors_baoa(work) if peers else {})


def posteriors_baoa(work: Work) -> Candidates:
    """The peer with the same dynamics, if it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensordict's, about posteriors' classes
            import posteriors
    except ImportError:
        return {}
    build, x, y, loss = work
    model = build()

    def log_posterior(params: Any, batch: Any) -> Any:
        return -loss(torch.func.functional_call(model, params, batch[0]), batch[1]), torch.tensor([])

    transform = posteriors.sgmcmc.baoa.build(log_posterior, lr=1e-2, alpha=1.0, temperature=1e-8)
    state = [transform.init({k: v.detach().clone() for k, v in model.named_parameters()})]

    def step() -> None:
        state[0] = transform.update(state[0], (x, y), inplace=True)[0]

    return {"posteriors baoa, τ > 0": step}


def main() -> None:
    options = arguments(__doc__, rounds=100, quick=40, threads=(1, 2), cases=CASES)
    run = Run("step", "What a step costs", options, ("posteriors",))
    works = {case: work for case, work in workloads().items() if case in options.only}
    for _ in run.threads():
        table = run.table("update alone", SGD, "µs")
        for case, work in works.items():
            table.add(case, interleave(update_alone(work[0]), options.rounds // (2 if "M" in case else 1), case))
        table = run.table("whole training step", SGD, "µs")
        for case, work in works.items():
            rounds = options.rounds // (1 if case == CASES[0] else 8)
            table.add(case, interleave(whole_step(work, options.peers), max(7, rounds), case))
    run.write()


if __name__ == "__main__":
    main()
