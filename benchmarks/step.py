"""What a step costs, beside torch's SGD and the peer `posteriors`, interleaved in one run.

    make bench                       # both tables, 1 and 2 threads
    python benchmarks/step.py --rounds 300 --threads 1

Each round times every candidate once, in turn, so that a busy machine slows all of them alike; figures are
medians over rounds and ratios are medians of the rounds' ratios. "Noise" is the time of `normal_` for as many
numbers as there are parameters; the column "step − noise" takes it off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

import tether

Candidates = dict[str, Callable[[], object]]


class Transformer(nn.Module):
    """A small language model, 4.5 million parameters."""

    def __init__(self, vocabulary: int = 2000, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(tokens))).flatten(0, 1)


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def workloads() -> dict[str, tuple[Callable[[], nn.Module], torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]]:
    torch.manual_seed(0)
    tokens = torch.randint(0, 2000, (16, 64))
    squared = nn.functional.mse_loss
    entropy = nn.functional.cross_entropy
    return {
        "2-500-1": (lambda: mlp(2, 500, 1), torch.randn(20, 2), torch.randn(20, 1), squared),
        "784-1000-10": (lambda: mlp(784, 1000, 10), torch.randn(128, 784), torch.randint(0, 10, (128,)), entropy),
        "transformer": (Transformer, tokens, tokens.flatten(), entropy),
    }


def interleave(candidates: Candidates, rounds: int, label: str, warm: int = 3) -> dict[str, list[float]]:
    """Seconds per call of each candidate, round by round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(warm):
        for call in candidates.values():
            call()
    for i in range(rounds):
        if sys.stderr.isatty() and i % 10 == 0:
            print(f"\r{label}: round {i}/{rounds} ", end="", file=sys.stderr)
        for name, call in candidates.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return times


def ratio(times: list[float], base: list[float], minus: list[float] | None = None) -> float:
    minus = minus or [0.0] * len(times)
    return statistics.median((t - m) / b for t, m, b in zip(times, minus, base, strict=True))


COLD = {"OBA τ=0": "OBA", "BAOAB τ=0": "BAOAB"}
HOT = {"X τ>0": "X", "OBA τ>0": "OBA", "BAOAB τ>0": "BAOAB"}


def step_alone(rounds: int) -> None:
    """The optimizer step by itself, on gradients that stay."""
    print(f"{'step alone':<12} {'optimizer':<22} {'µs':>9} {'× SGD':>7} {'(step − noise) × SGD':>21}")
    for name, (build, *_) in workloads().items():
        candidates: Candidates = {}
        models = []

        def model(build: Callable[[], nn.Module] = build, models: list[nn.Module] = models) -> nn.Module:
            net = build()
            for param in net.parameters():
                param.grad = 1e-4 * torch.randn_like(param)
            models.append(net)
            return net

        sgd = torch.optim.SGD(model().parameters(), lr=1e-4, momentum=0.9, foreach=True)
        candidates["torch SGD foreach"] = sgd.step
        for label, word in (COLD | HOT).items():
            temperature = 1e-8 if label in HOT else 0.0
            candidates[label] = tether.Optimizer(model(), lr=1e-2, word=word, temperature=temperature).step
        numbers = torch.empty(sum(p.numel() for p in models[0].parameters()))
        generator = torch.Generator()
        candidates["normal_ alone"] = lambda numbers=numbers, generator=generator: numbers.normal_(generator=generator)
        times = interleave(candidates, rounds if numbers.numel() < 1e6 else max(20, rounds // 4), name)
        base, noise = times["torch SGD foreach"], times["normal_ alone"]
        for label, series in times.items():
            less = f"{ratio(series, base, noise):.2f}" if label in HOT else ""
            row = f"{name:<12} {label:<22} {1e6 * statistics.median(series):>9.0f}"
            print(f"{row} {ratio(series, base):>7.2f} {less:>21}", flush=True)


def whole_step(rounds: int) -> None:
    """Forward, backward and update: what a user waits for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensordict's, about posteriors' classes
        import posteriors

    print(f"\n{'whole step':<12} {'optimizer':<22} {'µs':>9} {'× SGD':>7} {'posteriors baoa ÷ this':>23}")
    for name, (build, x, y, loss) in workloads().items():
        candidates: Candidates = {}

        def train(model: nn.Module, opt: torch.optim.Optimizer, x=x, y=y, loss=loss) -> Callable[[], object]:
            def step() -> None:
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()

            return step

        model = build()
        sgd = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
        candidates["torch SGD foreach"] = train(model, sgd)
        for label, word in {"BAOAB τ=0": "BAOAB", "BAOAB τ>0": "BAOAB"}.items():
            model = build()
            temperature = 1e-8 if label.endswith(">0") else 0.0
            candidates[label] = train(model, tether.Optimizer(model, lr=1e-2, word=word, temperature=temperature))

        peer = build()
        params = {k: v.detach().clone() for k, v in peer.named_parameters()}

        def log_posterior(params, batch, peer=peer, loss=loss):  # type: ignore[no-untyped-def]
            return -loss(torch.func.functional_call(peer, params, batch[0]), batch[1]), torch.tensor([])

        transform = posteriors.sgmcmc.baoa.build(log_posterior, lr=1e-2, alpha=1.0, temperature=1e-8)
        state = [transform.init(params)]

        def peer_step(transform=transform, state=state, x=x, y=y) -> None:
            state[0] = transform.update(state[0], (x, y), inplace=True)[0]

        candidates["posteriors baoa"] = peer_step
        times = interleave(candidates, rounds if x.numel() < 1e4 else max(15, rounds // 8), name)
        for label, series in times.items():
            row = f"{name:<12} {label:<22} {1e6 * statistics.median(series):>9.0f}"
            gain = ratio(times["posteriors baoa"], series)
            print(f"{row} {ratio(series, times['torch SGD foreach']):>7.2f} {gain:>23.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print(f"\n=== torch {torch.__version__}, {threads} thread(s), {arguments.rounds} rounds ===")
        step_alone(arguments.rounds)
        whole_step(arguments.rounds)


if __name__ == "__main__":
    main()
