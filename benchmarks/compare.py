"""Two runs side by side: what got slower by more than its spread.

    python benchmarks/compare.py OLD.json NEW.json        # or two folders of them
    make bench-quick OUT=out/before      # then the change, and the same with OUT=out/after
    python benchmarks/compare.py out/before out/after

A row got slower if the middle halves of its ratios do not overlap and its median grew by more than 5 % (`--more`). Then
the exit code is 1. Ratios are compared, not times, so that a busier machine does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

Key = tuple[str, int, str, str]


class Change(NamedTuple):
    """A row of both runs: what it is, and its ratios as (lower quartile, median, upper quartile)."""

    key: Key
    old: list[float]
    new: list[float]

    @property
    def factor(self) -> float:
        return self.new[1] / self.old[1]

    def slower(self, more: float) -> bool:
        return self.new[0] > self.old[2] and self.factor > 1 + more

    def faster(self, more: float) -> bool:
        return self.new[2] < self.old[0] and self.factor < 1 / (1 + more)

    def __str__(self) -> str:
        title, threads, case, of = self.key
        old, new = (f"{median:.3g} ({low:.3g} to {high:.3g})" for low, median, high in (self.old, self.new))
        return f"{of}: {old} → {new}, × {self.factor:.2f}   [{title}; {case}; threads: {threads}]"


def ratios(run: dict[str, Any]) -> dict[Key, list[float]]:
    """The rows of a run that are measured against another."""
    return {
        (table["title"], table["threads"], str(row["case"]), row["of"]): row["ratio"]
        for table in run["tables"]
        for row in table["rows"]
        if "ratio" in row and row["of"] != table["base"]
    }


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """The rows that both runs have."""
    before, after = ratios(old), ratios(new)
    return [Change(key, before[key], after[key]) for key in before if key in after]


def pairs(old: Path, new: Path) -> list[tuple[Path, Path]]:
    """Two files, or the files of the same names in two folders."""
    if old.is_dir() != new.is_dir():
        raise SystemExit(f"{old} and {new}: give two files or two folders")
    if not old.is_dir():
        return [(old, new)]
    found = [(path, new / path.name) for path in sorted(old.glob("*.json")) if (new / path.name).exists()]
    if not found:
        raise SystemExit(f"{old} and {new} have no JSON file of the same name")
    return found


def compared(old: Path, new: Path, more: float) -> bool:
    """Say what changed from one file to the other; whether anything got slower."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (old, new)]
    found = changes(*runs)
    slower = [one for one in found if one.slower(more)]
    faster = [one for one in found if one.faster(more)]
    print(f"{runs[1]['name']}: of {len(found)} rows {len(slower)} slower, {len(faster)} faster")
    for what in ("machine", "versions"):
        if runs[0][what] != runs[1][what]:
            print(f"  not the same {what}: {runs[0][what]} and {runs[1][what]}")
    for word, ones in (("slower", slower), ("faster", faster)):
        for one in sorted(ones, key=lambda one: -abs(one.factor - 1)):
            print(f"  {word}: {one}")
    return bool(slower)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--more", type=float, default=0.05, help="by how much a median may grow: 0.05 is 5 %%")
    options = parser.parse_args(words)
    found = [compared(*pair, options.more) for pair in pairs(options.old, options.new)]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
