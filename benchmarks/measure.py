"""What measures of a network cost, beside the loop one would write by hand and the peers, interleaved in one run.

    make bench-measure               # benchmarks/results/measure.json; two minutes
    python benchmarks/measure.py --only lines --out out/bench

`lines`: losses of 784-500-300-10 on 3,000 rows at 51 points of a line, of everything and of one layer at a time. The
loop mixes the two state dicts, loads them and runs the network on all rows, point by point.

`curvature`: the largest eigenvalue of the Hessian of 784-1000-10 on 2,048 rows, at the start and after 100 steps,
beside curvlinops' Hessian with scipy's `eigsh` (by default with 20 vectors, and with 10). Errors are relative to
Lanczos in double precision to a residual of 1e-9.

`chains`: the local learning coefficient of 2-20-20-2 on 300 rows by 16 chains of 1,250 steps, stacked, beside a loop
over the chains. Both are `measure.llc`; the loop calls it with one chain at a time.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn

from nets import mlp
from tether.data import spiral
from tether.measure import hessian_spectrum, layer_paths, linear_path, llc
from timing import Candidates, Run, arguments, interleave

POINTS = 51
OURS, NAIVE = "tether", "a loop"


def loop(net: nn.Module, start: dict, end: dict, data: tuple, moving: str = "", points: int = POINTS) -> list[float]:
    """The literal line: only tensors whose names begin with `moving` go along it."""
    losses = []
    with torch.no_grad():
        for a in torch.linspace(0, 1, points).tolist():
            goes = {name: (1 - a) * start[name] + a * x for name, x in end.items() if name.startswith(moving)}
            net.load_state_dict({**end, **goes})
            losses.append(nn.functional.cross_entropy(net(data[0]), data[1]).item())
    return losses


def lines(run: Run) -> None:
    torch.manual_seed(0)
    net, ends = mlp(784, 500, 300, 10), [mlp(784, 500, 300, 10).state_dict() for _ in range(2)]
    data = torch.rand(3000, 784), torch.randint(0, 10, (3000,))
    scratch, layers = copy.deepcopy(net), ["0", "2", "4"]
    cases: dict[str, Candidates] = {
        "everything": {
            OURS: lambda: [linear_path(net, *ends, data, POINTS).losses.tolist()],
            NAIVE: lambda: [loop(scratch, *ends, data)],
        },
        "three layers, one at a time": {
            OURS: lambda: [path.losses.tolist() for path in layer_paths(net, *ends, data, POINTS).values()],
            NAIVE: lambda: [loop(scratch, *ends, data, layer) for layer in layers],
        },
    }
    table = run.table("line of 784-500-300-10, 51 points", OURS, "s")
    for case, pair in cases.items():
        fast, slow = (torch.tensor(call()) for call in pair.values())
        difference = {NAIVE: (slow - fast).abs().max().item()}
        times = interleave(pair, min(3, run.options.rounds), case, warm=0)
        table.add(case, times, largest_difference=difference)


def curvature(run: Run) -> None:
    torch.manual_seed(0)
    net, loss = mlp(784, 1000, 10), nn.CrossEntropyLoss()
    x, y = torch.randn(2048, 784), torch.randint(0, 10, (2048,))
    products: dict[str, float] = {}

    def ours() -> float:
        result = hessian_spectrum(net, (x, y), top=1, bottom=0, tolerance=1e-3)
        products[OURS] = result.products
        return result.eigenvalues[-1].item()

    calls: Candidates = {OURS: ours}
    if run.options.peers:
        calls |= by_curvlinops(net, loss, x, y, products)
    table = run.table("largest eigenvalue of the Hessian of 784-1000-10", OURS, "s")
    for case, steps in (("start", 0), ("after 100 steps", 100)):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            opt.zero_grad()
            loss(net(x), y).backward()
            opt.step()
        exact = hessian_spectrum(net, (x, y), bottom=0, tolerance=1e-9, dtype=torch.float64).eigenvalues[-1].item()
        errors = {name: abs(call() / exact - 1) for name, call in calls.items()}
        times = interleave(calls, min(3, run.options.rounds), case, warm=0)
        table.add(case, times, products=products, error=errors)


def by_curvlinops(
    net: nn.Module, loss: nn.Module, x: torch.Tensor, y: torch.Tensor, products: dict[str, float]
) -> Candidates:
    """curvlinops' Hessian and scipy's eigsh, with 20 and with 10 vectors; nothing if it is not installed."""
    try:
        from curvlinops import HessianLinearOperator
    except ImportError:
        return {}
    from scipy.sparse.linalg import LinearOperator, eigsh

    def found(name: str, vectors: int) -> float:
        H = HessianLinearOperator(net, loss, list(net.parameters()), [(x, y)], check_deterministic=False).to_scipy()
        products[name] = 0

        def product(v):  # counted
            products[name] += 1
            return H @ v

        counted = LinearOperator(H.shape, product, dtype=H.dtype)
        return eigsh(counted, k=1, which="LA", tol=1e-3, ncv=vectors, return_eigenvectors=False)[-1]

    names = {f"curvlinops, eigsh with {vectors} vectors": vectors for vectors in (20, 10)}
    return {name: lambda name=name, vectors=vectors: found(name, vectors) for name, vectors in names.items()}


def chains(run: Run) -> None:
    torch.manual_seed(0)
    net, data = mlp(2, 20, 20, 2), spiral(300, seed=0)
    settings = {"lr": 0.1, "word": "BAOAB", "draws": 100, "localisation": 100.0}
    calls: Candidates = {
        OURS: lambda: llc(net, data, chains=16, **settings),
        NAIVE: lambda: [llc(net, data, chains=1, seed=seed, **settings) for seed in range(16)],
    }
    table = run.table("local learning coefficient of 2-20-20-2, 16 chains", OURS, "s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this network is not trained
        table.add("1,250 steps", interleave(calls, min(3, run.options.rounds), "chains", warm=0))


SECTIONS = {"lines": lines, "curvature": curvature, "chains": chains}


def main() -> None:
    options = arguments(__doc__, rounds=5, quick=2, threads=(1,), cases=tuple(SECTIONS))
    run = Run("measure", "What instruments cost", options, ("curvlinops-for-pytorch",))
    for _ in run.threads():
        for name in options.only:
            SECTIONS[name](run)
    run.write()


if __name__ == "__main__":
    main()
