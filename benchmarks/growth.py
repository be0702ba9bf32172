"""How the cost of an update grows: with parameters, layers, replicas and parts.

    make bench-growth                # benchmarks/results/growth.json; two minutes
    python benchmarks/growth.py --only parts --out out/bench

The update alone, on gradients that stay, beside torch's SGD with momentum. Parameters are square matrices, of side 1000
from a million on. Layers and parts have weights of 16 × 16, replicas are of 2-20-1. "free" is BAOAB at τ = 0, "noise"
the same at τ > 0, "circle" BAOAB with every weight on a circle, "orthogonal" o-CoLA-od with orthogonal weights. Its
arithmetic grows like the number of entries; for an orthogonal matrix of side n like n³, the power 1.5 of its entries.

The last table has 200 weights, each in a part of its own with equal settings, beside the same weights in one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

import tether
from timing import Candidates, Run, arguments, interleave

SGD = "torch SGD, momentum, foreach"
KINDS = ("free", "noise", "circle", "orthogonal")
PARAMETERS = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)
MOST = {"orthogonal": 10**7}  # parameters: beyond, a step takes ten seconds
LAYERS, REPLICAS, PARTS = (2, 20, 200, 2000), (1, 10, 100, 1000, 10_000), (1, 2, 20, 200)
Named = list[tuple[str, nn.Parameter]]


def weights(shapes: Sequence[tuple[int, ...]]) -> Callable[[], Named]:
    """Makes parameters of these shapes. All that are made share their gradients."""
    grads = [1e-3 * torch.randn(shape) for shape in shapes]

    def make() -> Named:
        named = [(f"w{i}", nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1))) for i, shape in enumerate(shapes)]
        for (_, param), grad in zip(named, grads, strict=True):
            param.grad = grad
        return named

    return make


def fields(kind: str) -> dict[str, object]:
    """The dynamics of a kind."""
    if kind == "orthogonal":
        return {"lr": 1e-2, "word": "X", "on": tether.Orthogonal()}
    on = {"on": tether.Circle(1.0)} if kind == "circle" else {}
    return {"lr": 1e-2, "word": "BAOAB", "temperature": 1e-8 if kind == "noise" else 0.0, **on}


def ours(named: Named, kind: str, parts: int = 1, **more: object) -> tether.Optimizer:
    """Parts of as many weights each."""
    chosen = fields(kind)
    on = chosen.pop("on", None)
    share = len(named) // parts
    where = ["|".join(name for name, _ in named[i * share : (i + 1) * share]) for i in range(parts)]
    rows = [tether.Part(one, **({} if on is None else {"on": on})) for one in where]
    return tether.Optimizer(named, rows, **chosen, **more)  # type: ignore[arg-type]


def beside_sgd(make: Callable[[], Named], kinds: Sequence[str], parts: int = 1, **more: object) -> Candidates:
    calls: Candidates = {SGD: torch.optim.SGD([param for _, param in make()], lr=1e-3, momentum=0.9, foreach=True).step}
    return calls | {kind: ours(make(), kind, parts, **more).step for kind in kinds}


def parameters(run: Run) -> None:
    table = run.table("update against parameters", SGD, "µs", axis="parameters")
    for count in PARAMETERS[: 4 if run.options.quick else None]:
        side = min(1000, round(count**0.5))
        make = weights([(side, side)] * max(1, round(count / side**2)))
        kinds = [kind for kind in KINDS if count <= MOST.get(kind, count)]
        rounds = run.options.rounds if count < 10**6 else max(3, run.options.rounds // (count // 10**5))
        table.add(count, interleave(beside_sgd(make, kinds), rounds, f"{count:,}", warm=1))


def layers(run: Run) -> None:
    table = run.table("update against layers of 16 × 16", SGD, "µs", axis="layers")
    for count in LAYERS:
        rounds = max(5, run.options.rounds // (1 + count // 100))
        table.add(count, interleave(beside_sgd(weights([(16, 16)] * count), KINDS), rounds, f"{count} layers", warm=1))


def replicas(run: Run) -> None:
    table = run.table("update against replicas of 2-20-1", SGD, "µs", axis="replicas")
    for count in REPLICAS:
        shapes = [(count, 20, 2), (count, 1, 20)]
        calls = beside_sgd(weights(shapes), KINDS, batch_dims=1)
        table.add(
            count, interleave(calls, max(5, run.options.rounds // (1 + count // 1000)), f"{count} replicas", warm=1)
        )


def parts(run: Run) -> None:
    make = weights([(16, 16)] * PARTS[-1])
    table = run.table("update of 200 weights against parts", SGD, "µs", axis="parts")
    for count in PARTS:
        calls = beside_sgd(make, KINDS, count)
        table.add(count, interleave(calls, max(5, run.options.rounds // 3), f"{count} parts", warm=1))
    table = run.table("200 weights, a part for each", "one part", "µs")
    for kind in KINDS:
        calls = {"one part": ours(make(), kind).step, "200 parts": ours(make(), kind, PARTS[-1]).step}
        table.add(kind, interleave(calls, run.options.rounds, kind, warm=1))


SECTIONS = {one.__name__: one for one in (parameters, layers, replicas, parts)}


def main() -> None:
    options = arguments(__doc__, rounds=40, quick=15, threads=(1,), cases=tuple(SECTIONS))
    run = Run("growth", "How the cost grows", options)
    for _ in run.threads():
        torch.manual_seed(0)
        for name in options.only:
            SECTIONS[name](run)
    run.write()


if __name__ == "__main__":
    main()
