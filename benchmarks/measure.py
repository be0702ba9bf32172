"""What measures of a network cost, beside the loop one would write by hand, interleaved in one run.

    make bench-measure
    python benchmarks/measure.py lines --rounds 5 --threads 1

`lines`: losses of 784-500-300-10 on 10,000 rows at 51 points of a line, of everything and of one layer at a time. The
loop mixes the two state dicts, loads them and runs the network on all rows, point by point. Each round times every
candidate once, in turn; figures are medians over rounds, ratios medians of the rounds' ratios.

`curvature`: the largest eigenvalue of the Hessian of 784-1000-10 on 2,048 rows, at the start and after 100 steps,
beside curvlinops' Hessian with scipy's `eigsh` (by default with 20 vectors, and with 10). Errors are relative to
Lanczos in double precision to a residual of 1e-9; all are to be below 1e-5.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from torch import nn

from step import Candidates, interleave, mlp, ratio
from tether.measure import hessian_spectrum, layer_paths, linear_path

POINTS = 51


def loop(net: nn.Module, start: dict, end: dict, data: tuple, moving: str = "") -> list[float]:
    """The literal line: only tensors whose names begin with `moving` go along it."""
    losses = []
    with torch.no_grad():
        for a in torch.linspace(0, 1, POINTS).tolist():
            goes = {name: (1 - a) * start[name] + a * x for name, x in end.items() if name.startswith(moving)}
            net.load_state_dict({**end, **goes})
            losses.append(nn.functional.cross_entropy(net(data[0]), data[1]).item())
    return losses


def lines(rounds: int) -> None:
    torch.manual_seed(0)
    net, ends = mlp(784, 500, 300, 10), [mlp(784, 500, 300, 10).state_dict() for _ in range(2)]
    data = torch.rand(10_000, 784), torch.randint(0, 10, (10_000,))
    scratch = copy.deepcopy(net)
    layers = ["0", "2", "4"]
    candidates: dict[str, Candidates] = {
        "line": {
            "loop": lambda: [loop(scratch, *ends, data)],
            "linear_path": lambda: [linear_path(net, *ends, data, POINTS).losses.tolist()],
        },
        "layers": {
            "loop": lambda: [loop(scratch, *ends, data, layer) for layer in layers],
            "layer_paths": lambda: [path.losses.tolist() for path in layer_paths(net, *ends, data, POINTS).values()],
        },
    }
    print(f"{'':<8} {'':<12} {'s':>7} {'× faster':>9} {'largest difference':>19}")
    for name, pair in candidates.items():
        slow, fast = (torch.tensor(call()) for call in pair.values())
        apart = (slow - fast).abs().max().item()
        times = interleave(pair, rounds, name, warm=0)
        base = times["loop"]
        for label, series in times.items():
            told = "" if label == "loop" else f"{ratio(base, series):>9.2f} {apart:>19.1e}"
            print(f"{name:<8} {label:<12} {statistics.median(series):>7.2f} {told}".rstrip(), flush=True)


def curvature(rounds: int) -> None:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    torch.manual_seed(0)
    net, loss = mlp(784, 1000, 10), nn.CrossEntropyLoss()
    x, y = torch.randn(2048, 784), torch.randint(0, 10, (2048,))
    products: dict[str, int] = {}

    def ours(tolerance: float) -> float:
        result = hessian_spectrum(net, (x, y), top=1, bottom=0, tolerance=tolerance)
        products["hessian_spectrum"] = result.products
        return result.eigenvalues[-1].item()

    def theirs(name: str, tolerance: float, vectors: int | None) -> float:
        H = HessianLinearOperator(net, loss, list(net.parameters()), [(x, y)], check_deterministic=False).to_scipy()
        products[name] = 0

        def product(v):  # counted
            products[name] += 1
            return H @ v

        counted = LinearOperator(H.shape, product, dtype=H.dtype)
        return eigsh(counted, k=1, which="LA", tol=tolerance, ncv=vectors, return_eigenvectors=False)[-1]

    candidates: Candidates = {
        "eigsh": lambda: theirs("eigsh", 1e-3, None),
        "eigsh, 10": lambda: theirs("eigsh, 10", 1e-3, 10),
        "hessian_spectrum": lambda: ours(1e-3),
    }
    print(f"{'':<9} {'':<17} {'s':>7} {'products':>9} {'error':>8} {'× faster':>9} {'than 10':>8}")
    for where, steps in (("start", 0), ("100 steps", 100)):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            opt.zero_grad()
            loss(net(x), y).backward()
            opt.step()
        exact = hessian_spectrum(net, (x, y), bottom=0, tolerance=1e-9, dtype=torch.float64).eigenvalues[-1].item()
        errors = {name: abs(call() / exact - 1) for name, call in candidates.items()}
        times = interleave(candidates, rounds, where, warm=0)
        for name, series in times.items():
            row = f"{where:<9} {name:<17} {statistics.median(series):>7.2f} {products[name]:>9} {errors[name]:>8.0e}"
            faster = "".join(f"{ratio(times[peer], series):>9.2f}" for peer in ("eigsh", "eigsh, 10"))
            print(row + (faster if name == "hessian_spectrum" else ""), flush=True)


SECTIONS = {"lines": lines, "curvature": curvature}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"{', '.join(sorted(unknown))}: sections are {', '.join(SECTIONS)}")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print(f"\n=== torch {torch.__version__}, {threads} thread(s), {arguments.rounds} rounds ===")
        for section in arguments.sections:
            SECTIONS[section](arguments.rounds)


if __name__ == "__main__":
    main()
