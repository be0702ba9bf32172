"""What measures of a network cost, beside the loop one would write by hand, interleaved in one run.

    make bench-measure
    python benchmarks/measure.py lines --rounds 5 --threads 1

`lines`: losses of 784-500-300-10 on 10,000 rows at 51 points of a line, of everything and of one layer at a time. The
loop mixes the two state dicts, loads them and runs the network on all rows, point by point. Each round times every
candidate once, in turn; figures are medians over rounds, ratios medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from torch import nn

from step import Candidates, interleave, mlp, ratio
from tether.measure import layer_paths, linear_path

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


SECTIONS = {"lines": lines}


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
