"""Writes the numbers of benchmarks/results into the sentences that quote them, in README.md and docs.

    python benchmarks/quote.py

A quoted number stands between two comments: ``<!-- step · update alone · 2-500-1 · BAOAB, τ = 0 -->1.01<!-- / -->``,
with the file, the table's title, the case and the candidate. It is the ratio at the table's smallest number of threads;
with ``· µs`` or another unit at the end, the time.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
MARK = re.compile(r"<!-- ((?:(?!-->).)+?(?: · (?:(?!-->).)+?){3,4}) -->([^<]*)<!-- / -->")


@cache
def run(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def number(mark: str) -> str:
    """The number that a mark names, to three digits."""
    name, title, case, of, *unit = mark.split(" · ")
    tables = sorted((one for one in run(name)["tables"] if one["title"] == title), key=lambda one: one["threads"])
    rows = [row for one in tables for row in one["rows"] if (str(row["case"]), row["of"]) == (case, of)]
    if not rows:
        raise LookupError(f"<!-- {mark} -->: benchmarks/results/{name}.json has no such row")
    value = UNITS[unit[0]] * rows[0]["seconds"][1] if unit else rows[0]["ratio"][1]
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def quoted(text: str) -> str:
    """A page with its numbers as they are in the results."""
    return MARK.sub(lambda found: f"<!-- {found[1]} -->{number(found[1])}<!-- / -->", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if quoted(text) != text:
            page.write_text(quoted(text), encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
