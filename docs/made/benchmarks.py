"""The tables of the benchmarks, from benchmarks/results/*.json as the programs of benchmarks/ write them.

A file holds ``name``, ``title``, ``command``, ``machine``, ``threads``, ``versions`` (a dictionary), ``unit`` and
``rows``: dictionaries with the same keys. ``median`` with ``low`` and ``high`` is one cell; other keys are columns.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["shown", "tables"]

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NEEDED = {"name": str, "title": str, "command": str, "machine": str, "threads": int, "versions": dict, "rows": list}


def tables(_: str) -> str:
    """A section for each file, in the order of their names."""
    return "\n\n".join(shown(path) for path in sorted(RESULTS.glob("*.json")))


def shown(path: Path) -> str:
    """A run as a section: its command, where it ran, and its table."""
    run = json.loads(path.read_text(encoding="utf-8"))
    for key, kind in NEEDED.items():
        if not isinstance(run.get(key), kind):
            raise ValueError(
                f"{path.name}: {key!r} is {run.get(key)!r}, not a {kind.__name__}; docs/made/benchmarks.py"
            )
    cells = [_cells(row) for row in run["rows"]]
    head = list(dict.fromkeys(key for row in cells for key in row))
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    where = f"{run['machine']}, {run['threads']} thread{'s' * (run['threads'] != 1)}, {versions}."
    lines = [f"## {run['title']}", "", f"`{run['command']}`; {where}" + _unit(run), ""]
    lines += [_line(head), _line(["---"] * len(head)), *(_line([row.get(key, "") for key in head]) for row in cells)]
    return "\n".join(lines)


def _unit(run: dict[str, Any]) -> str:
    return f" Medians in {run['unit']}, with the middle half of the rounds." if run.get("unit") else ""


def _cells(row: dict[str, Any]) -> dict[str, str]:
    shown = {key: f"{x:.3g}" if isinstance(x, float) else str(x) for key, x in row.items()}
    if {"median", "low", "high"} <= set(shown):
        shown["median"] += f" ({shown.pop('low')} to {shown.pop('high')})"
    return shown


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
