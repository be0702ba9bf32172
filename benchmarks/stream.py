"""Are the numbers of `tether.noise` normal and independent? Two hundred million of them, along every way to name them.

    nice python benchmarks/stream.py            # 2·10⁸ numbers, about two minutes
    python benchmarks/stream.py --scale 0.01

Half of the numbers are neighbouring entries of one parameter. The others fix the entries and go through steps, draws,
names, seeds and replicas. Each line is a z-score, which should be a standard normal number itself, or the z-score of a
p-value. The largest |z| of all lines has to be one that so many honest tests would show once in a hundred runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

import torch
from scipy import stats

from tether.noise import Normals

CPU = torch.device("cpu")
MOMENTS = {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 15, 8: 105}
LAGS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 64, 256, 2048, 65536)
TAILS = (3.0, 4.0, 5.0, 5.5)
BINS = 1000
Line = tuple[str, float]


def factorial2(n: int) -> int:
    """E xⁿ of a standard normal for even n: (n − 1)!!."""
    return math.prod(range(1, n, 2))


class Sums:
    """Sums over pieces of a stream, from which z-scores follow at the end."""

    def __init__(self) -> None:
        self.n = 0
        self.powers = dict.fromkeys(MOMENTS, 0.0)
        self.bins = torch.zeros(BINS, dtype=torch.int64)
        self.beyond = dict.fromkeys(TAILS, 0)
        self.products: dict[str, list[float]] = {}
        self.edges = torch.from_numpy(stats.norm.ppf([i / BINS for i in range(1, BINS)])).float()

    def add(self, x: torch.Tensor) -> None:
        """The distribution of some numbers."""
        wide = x.double()
        self.n += x.numel()
        for power in MOMENTS:
            self.powers[power] += float(wide.pow(power).sum())
        self.bins += torch.bucketize(x, self.edges).bincount(minlength=BINS)
        for tail in TAILS:
            self.beyond[tail] += int((x.abs() > tail).sum())

    def pair(self, name: str, x: torch.Tensor, y: torch.Tensor) -> None:
        """Products of numbers that should know nothing of each other, of their squares, and of one with the other's."""
        x, y = x.double(), y.double()
        u, v = x.square() - 1, y.square() - 1
        for label, a, b, scale in (("", x, y, 1.0), ("²", u, v, 2.0), (" x·y²", x, v, math.sqrt(2))):
            held = self.products.setdefault(f"{name}{label}", [0.0, 0.0])
            held[0] += float((a * b).sum()) / scale
            held[1] += a.numel()

    def lines(self) -> Iterator[Line]:
        n = self.n
        for power, expected in MOMENTS.items():
            error = math.sqrt((factorial2(2 * power) - expected**2) / n)
            yield f"E x^{power}", (self.powers[power] / n - expected) / error
        square = float(((self.bins - n / BINS) ** 2).sum()) / (n / BINS)
        yield f"χ² of {BINS} bins", z_of(stats.chi2.sf(square, BINS - 1))
        distance = float((self.bins.cumsum(0) / n - torch.arange(1, BINS + 1) / BINS).abs().max())
        yield "Kolmogorov–Smirnov at their edges", z_of(stats.kstwobign.sf(distance * math.sqrt(n)))
        for tail, count in self.beyond.items():
            expected = n * math.erfc(tail / math.sqrt(2))
            yield f"|x| > {tail:g}: {count} for {expected:.1f}", (count - expected) / math.sqrt(expected)
        for name, (total, count) in self.products.items():
            yield name, total / math.sqrt(count)


def z_of(p: float) -> float:
    """The z-score of a p-value: large where p is small."""
    return float(stats.norm.isf(min(max(p, 1e-300), 1 - 1e-16)))


def along_entries(numbers: int) -> Sums:
    """Neighbouring entries of one parameter, a million at a time."""
    sums, size = Sums(), 1_000_000
    for piece in range(numbers // size):
        source = Normals(["w"], [size], [0], size, torch.float32, CPU, first=[piece * size])
        x = source.draw(0, 0, 0)
        sums.add(x)
        for lag in LAGS:
            sums.pair(f"lag {lag}", x[:-lag], x[lag:])
    return sums


def drawn(axis: str, values: int, entries: int, first: int) -> torch.Tensor:
    """values × entries numbers, neighbours along the axis in neighbouring rows."""
    numbers = range(first, first + values)
    if axis == "replicas":
        size = values * entries
        return (
            Normals(["w"], [size], [0], size, torch.float32, CPU, values, numbers).draw(1, 0, 0).view(values, entries)
        )
    if axis == "names":
        names = [f"layers.{i}.weight" for i in numbers]
        places = [entries] * values, range(0, values * entries, entries), values * entries
        return Normals(names, *places, torch.float32, CPU).draw(1, 0, 0).view(values, entries)
    source = Normals(["w"], [entries], [0], entries, torch.float32, CPU)
    named = {"steps": lambda i: (1, i, 0), "draws": lambda i: (1, 0, i), "seeds": lambda i: (i, 0, 0)}[axis]
    return torch.stack([source.draw(*named(i)).clone() for i in numbers])


def along(axis: str, numbers: int, entries: int = 1000) -> Sums:
    """The same entries under neighbouring steps, draws, names, seeds or replicas."""
    sums, values = Sums(), 1000
    for piece in range(max(1, numbers // (values * entries))):
        x = drawn(axis, values, entries, piece * values)
        sums.add(x.flatten())
        for lag in (1, 2, 3, 16, 256):
            sums.pair(f"{axis}, lag {lag}", x[:-lag], x[lag:])
        sums.pair(f"{axis}, lag 1, next entry", x[:-1, :-1], x[1:, 1:])
        sums.pair(f"{axis}, lag 1, next row of the tile", x[:-1, :-8], x[1:, 8:])
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 10⁸ entries and 2·10⁷ for each other axis")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scores, total = [], 0
    for axis in ("entries", "steps", "draws", "names", "seeds", "replicas"):
        whole = round(arguments.scale * (1e8 if axis == "entries" else 2e7))
        sums = along_entries(max(whole, 1_000_000)) if axis == "entries" else along(axis, whole)
        total += sums.n
        print(f"\nalong {axis}: {sums.n:,} numbers")
        for name, z in sums.lines():
            scores.append(z)
            print(f"  {name:<44}{z:8.2f}", flush=True)
    limit = float(stats.norm.isf(0.01 / 2 / len(scores)))
    worst = max(scores, key=abs)
    spread = math.sqrt(sum(z * z for z in scores) / len(scores))
    print(
        f"\n{total:,} numbers, {len(scores)} scores: largest |z| {abs(worst):.2f} (limit {limit:.2f}), rms {spread:.2f}"
    )
    return int(abs(worst) > limit)


if __name__ == "__main__":
    sys.exit(main())
