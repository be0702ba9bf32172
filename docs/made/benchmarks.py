"""The tables of the benchmarks, from benchmarks/results/*.json as benchmarks/timing.py writes them.

A file says what ran, where and with what, and holds tables. A table has ``title``, ``base``, ``unit``, ``shows`` (ratio
or time), ``threads``, ``axis`` and ``rows``. A row is a case and a candidate (``of``) with the quartiles of its seconds
and of its ratios to the base. Other numbers of a row become columns of their own.
"""

import json
import math
from pathlib import Path
from typing import Any

from made.growth import drawn, slope

__all__ = ["RESULTS", "shown", "table", "tables"]

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
NEEDED = {"name": str, "title": str, "command": str, "date": str, "machine": str, "versions": dict, "tables": list}
COMMON = {"case", "of", "rounds", "seconds", "ratio"}


def tables(name: str) -> str:
    """The runs of benchmarks/results with their headings, or the tables of one run, without: `NAME`, `NAME: title`."""
    if not name:
        return "\n\n".join(shown(path) for path in sorted(RESULTS.glob("*.json")))
    name, _, title = name.partition(": ")
    run = _read(RESULTS / f"{name}.json")
    wanted = [one for one in run["tables"] if title in ("", one["title"])]
    if not wanted:
        raise LookupError(f"benchmarks/results/{name}.json has no table {title!r}")
    return "\n\n".join([_where(run), *(table(one) for one in wanted)])


def shown(path: Path) -> str:
    """A run as a section."""
    run = _read(path)
    return "\n\n".join([f"## {run['title']}", _where(run), *(table(one) for one in run["tables"])])


def table(one: dict[str, Any]) -> str:
    """Candidates as rows, cases as columns; or a plot, if the cases count something."""
    if not one["rows"]:
        return ""
    if one["axis"]:
        return _growth(one)
    threads = f"{one['threads']} thread{'s' * (one['threads'] != 1)}"
    against = f"× {one['base']}" if one["shows"] == "ratio" else one["unit"]
    cases = list(dict.fromkeys(row["case"] for row in one["rows"]))
    more = {case: _more(one["rows"], case) for case in cases}
    head = [f"{one['title']}, {threads}; {against}"]
    for case in cases:
        head += [str(case), *(f"{case}: {name}" if len(cases) > 1 else name for name in more[case])]
    found = {(row["of"], row["case"]): row for row in one["rows"]}
    lines = [_line(head), _line(["---"] * len(head))]
    for of in dict.fromkeys(row["of"] for row in one["rows"]):
        cells = [of]
        for case in cases:
            row = found.get((of, case), {})
            cells += [_cell(row, one), *(_number(row.get(name)) for name in more[case])]
        lines.append(_line(cells))
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    run = json.loads(path.read_text(encoding="utf-8"))
    for key, kind in NEEDED.items():
        if not isinstance(run.get(key), kind):
            raise ValueError(
                f"{path.name}: {key!r} is {run.get(key)!r}, not a {kind.__name__}; docs/made/benchmarks.py"
            )
    return run


def _where(run: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    clock = "; processor time, because the machine was busy" if run.get("clock") == "processor" else ""
    return (
        f"`{run['command']}` ({run['seconds']} s), {run['date']}: {run['machine']}, load {run['load']} at the start, "
        f"{versions}. Medians of interleaved rounds, with the middle half of them{clock}."
    )


def _cell(row: dict[str, Any], one: dict[str, Any]) -> str:
    """The time of the base and where times are shown, else the ratio."""
    if not row:
        return ""
    if one["shows"] == "time" or row["of"] == one["base"]:
        low, median, high = (_number(UNITS[one["unit"]] * x) for x in row["seconds"])
        return f"{median} {one['unit']} ({low} to {high})"
    low, median, high = map(_number, row["ratio"])
    return f"**{median}** ({low} to {high})"


def _more(rows: list[dict[str, Any]], case: str) -> list[str]:
    return list(dict.fromkeys(key for row in rows if row["case"] == case for key in row if key not in COMMON))


def _number(x: float | None) -> str:
    if x is None:
        return ""
    return f"{x:,.0f}" if 1000 <= x < 1e7 else f"{x:.3g}"


def _growth(one: dict[str, Any]) -> str:
    """A plot, and the slopes of its lines: the power of the case by which the time grows, over its last decade."""
    threads = f"{one['threads']} thread{'s' * (one['threads'] != 1)}"
    lines = [drawn(one), "", _line([f"{one['title']}, {threads}", "slope at the end", "smallest", "largest"])]
    lines.append("|---|---|---|---|")
    for of in dict.fromkeys(row["of"] for row in one["rows"]):
        points = [(row["case"], row["seconds"][1]) for row in one["rows"] if row["of"] == of]
        ends = [f"{x:,.0f}: {_number(UNITS[one['unit']] * y)} {one['unit']}" for x, y in (points[0], points[-1])]
        steep = slope(points)
        lines.append(_line([of, "" if math.isnan(steep) else f"{steep:.2f}", *ends]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
