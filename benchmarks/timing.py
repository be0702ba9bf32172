"""Times of candidates, interleaved, and the JSON of a run: what every program of benchmarks/ shares.

Each round times every candidate once, in turn, so that a busy machine slows all of them alike. A ratio is the median of
the rounds' ratios to the table's base, and its spread is the middle half of them. A program makes a `Run`, adds tables
to it, and writes it to benchmarks/results/NAME.json. The pages of docs show these files, and compare.py compares two.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import tether
from tether_studies.precision import usable

if not usable():  # products in bfloat16 would end the process (docs/gotchas.md)
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

Candidates = dict[str, Callable[[], object]]
Times = Mapping[str, list[float]]
RESULTS = Path(__file__).parent / "results"
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
_clock = "wall"  # of this program: --clock
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}


def arguments(doc: str | None, rounds: int, quick: int, threads: tuple[int, ...], cases: tuple[str, ...] = ()) -> Any:
    """The options that all programs have. ``--quick``: fewer rounds, one thread, no peers, processor time."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"{rounds} by default, {quick} with --quick")
    parser.add_argument("--threads", type=int, nargs="+", help=f"{' '.join(map(str, threads))} by default")
    parser.add_argument("--quick", action="store_true", help="enough to see that a change made something slower")
    parser.add_argument(
        "--clock", choices=CLOCKS, help="wall by default; processor with --quick, and on a busy machine"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without other libraries")
    parser.add_argument("--only", nargs="+", choices=cases, default=list(cases), help="these cases alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    options = parser.parse_args()
    options.rounds = options.rounds or (quick if options.quick else rounds)
    options.threads = options.threads or ([1] if options.quick else list(threads))
    options.clock = options.clock or ("processor" if options.quick else "wall")
    global _clock
    _clock = options.clock
    options.peers = options.peers and not options.quick
    options.whole = len(options.only) == len(cases)
    return options


def interleave(candidates: Candidates, rounds: int, label: str, warm: int = 3) -> dict[str, list[float]]:
    """Seconds per call of each candidate, round by round."""
    now = CLOCKS[_clock]
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(warm):
        for call in candidates.values():
            call()
    for i in range(rounds):
        if sys.stderr.isatty() and i % 10 == 0:
            print(f"\r{label}: round {i}/{rounds} ", end="", file=sys.stderr)
        for name, call in candidates.items():
            begin = now()
            call()
            times[name].append(now() - begin)
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return times


def spread(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile, to four digits."""
    if len(values) < 2:
        return [_short(values[0])] * 3
    return [_short(x) for x in statistics.quantiles(values, n=4, method="inclusive")]


def ratio(times: list[float], base: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(t / b for t, b in zip(times, base, strict=True))


class Table:
    """Rows of candidates for one or more cases, at one number of threads."""

    def __init__(self, title: str, base: str, unit: str, shows: str, axis: str) -> None:
        self.title, self.base, self.unit, self.shows, self.axis = title, base, unit, shows, axis
        self.threads, self.rows = torch.get_num_threads(), list[dict[str, Any]]()

    def add(self, case: str | float, times: Times, **more: Mapping[str, float]) -> None:
        """The candidates of a case. ``more``: other numbers of the candidates, by name, such as violation={...}."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        print(f"\n{self.title}, {case}, {threads}; ratios to {self.base}", flush=True)
        for of, series in times.items():
            row: dict[str, Any] = {"case": case, "of": of, "rounds": len(series), "seconds": spread(series)}
            if self.base in times:
                row["ratio"] = spread([t / b for t, b in zip(series, times[self.base], strict=True)])
            row |= {name.replace("_", " "): _short(values[of]) for name, values in more.items() if of in values}
            self.rows.append(row)
            self._say(row, list(more))

    def _say(self, row: dict[str, Any], more: list[str]) -> None:
        middle = f"{UNITS[self.unit] * row['seconds'][1]:>10.4g} {self.unit}"
        low, median, high = row.get("ratio", [float("nan")] * 3)
        cells = f"{row['of']:<32} {middle} {median:>8.3g} ({low:.3g} to {high:.3g})"
        others = "".join(f"  {name} {row[name]:.3g}" for name in (one.replace("_", " ") for one in more) if name in row)
        print(cells + others, flush=True)


class Run:
    """One run of a program: where and with what it ran, and its tables."""

    def __init__(self, name: str, title: str, options: Any, packages: tuple[str, ...] = ()) -> None:
        self.name, self.options, self.began, self.tables = name, options, time.perf_counter(), list[Table]()
        self.about = {
            "name": name,
            "title": title,
            "command": f"make bench-{name}" if not options.quick else f"python benchmarks/{name}.py --quick",
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "machine": machine(),
            "clock": options.clock,
            "load": round(os.getloadavg()[0], 1),
            "versions": versions(("torch", *packages)),
        }

    def threads(self) -> Iterator[int]:
        """Set torch's number of threads to each one asked for, in turn."""
        for count in self.options.threads:
            torch.set_num_threads(count)
            yield count

    def table(self, title: str, base: str, unit: str = "ms", shows: str = "ratio", axis: str = "") -> Table:
        """A new table. ``shows``: ratio or time, for the pages of docs. ``axis``: what the cases count, for a plot."""
        self.tables.append(Table(title, base, unit, shows, axis))
        return self.tables[-1]

    def write(self) -> None:
        """NAME.json, unless it would be a part of the whole in the place of the whole."""
        seconds = time.perf_counter() - self.began
        print(f"\n{self.name}: {seconds:.0f} s", flush=True)
        if not self.options.whole and self.options.out == RESULTS:
            print("not written: with --only give a folder, such as --out out/bench")
            return
        tables = [vars(table) for table in self.tables]
        self.options.out.mkdir(parents=True, exist_ok=True)
        file = self.options.out / f"{self.name}.json"
        text = json.dumps(self.about | {"seconds": round(seconds), "tables": tables}, indent=1, ensure_ascii=False)
        file.write_text(_rows_on_lines(text) + "\n", encoding="utf-8")
        print(f"written: {file}", flush=True)


def machine() -> str:
    """The processor, its cores, and the instructions that the kernel uses: noise and sines depend on them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    used = re.search(r"^instructions +(.*?),", tether.native.describe(), re.MULTILINE)
    return f"{name}, {os.cpu_count()} cores" + (f", {used[1]}" if used else "")


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Those that are installed."""
    found = {"python": platform.python_version(), "tether": tether.__version__}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name} is not installed: left out")
    return found


def _short(x: float) -> float:
    return float(f"{x:.4g}")


def _rows_on_lines(text: str) -> str:
    """A row of a table on a line of its own, so that a diff of two files is read row by row."""
    lines: list[str] = []
    for line in text.splitlines():
        deep = len(line) - len(line.lstrip())
        if deep > 4 or (deep == 4 and line.strip(" ,") == "}"):
            lines[-1] += ("" if lines[-1].endswith(("{", "[")) or line.strip()[0] in "]}" else " ") + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)
