"""The table of parts as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tether.engine.references import cited
from tether.words import parse

__all__ = ["CITATIONS", "COLUMNS", "NEUTRAL", "table"]

CITATIONS: dict[str, str] = {}  # method → key of references.bib; `tether.methods` fills it
# column, field, the symbol that a word must use for the field to matter
COLUMNS = (
    ("lr", "lr", "h"),
    ("friction", "friction", "γ"),
    ("temperature", "temperature", "τ"),
    ("coupling", "coupling", "ε"),
    ("noise", "noise", "σ"),
    ("thermostat", "thermostat", "ξ"),
    ("weight decay", "weight_decay", "g"),
    ("mass", "mass", "m"),
)
NEUTRAL = {"mass": 1.0}  # values that do nothing and are not shown
CLOCKS = ("metric", "every", "asleep", "merge", "rhythm")


def table(
    groups: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    method: str | None,
    skipped: int,
    fallbacks: int,
    replicas: int = 0,
) -> str:
    """One line per part; a dot where a field does not enter the part's word."""
    rows = [["part", "parameters", "word", "on", *(column for column, _, _ in COLUMNS), *CLOCKS]]
    for label, group in zip(labels, groups, strict=True):
        needs = parse(group["word"]).uses
        numbers = [_shown(group, field) if symbol in needs else "·" for _, field, symbol in COLUMNS]
        on = "·" if group["on"] == "Free()" else group["on"]
        label = label if len(label) <= 32 or "|" not in label else f"{label.split('|')[0]}|…|{label.split('|')[-1]}"
        rows.append(
            [
                label,
                f"{sum(p.numel() for p in group['params']) // max(replicas, 1):,}",
                group["word"],
                on,
                *numbers,
                group["metric"] or "·",
                _every(group, needs),
                f"{group['asleep']:g} for {group['nap']}" if group["asleep"] else "·",
                str(group["merge"]) if group["merge"] > 1 else "·",
                _own_rhythm(group),
            ]
        )
    used = [i for i in range(len(rows[0])) if i < 3 or any(row[i] not in ("·", "0") for row in rows[1:])]
    widths = [max(len(row[i]) for row in rows) for i in used]
    lines = ["  ".join(row[i].ljust(width) for i, width in zip(used, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    step = int(groups[0]["step"])
    stopped = groups[0].get("stopped", ())
    lines.append(
        f"step {step}, seed {groups[0]['seed']}"
        + (f", {replicas} replicas" if replicas else "")
        + (f", {len(stopped)} of them stopped ({', '.join(map(str, stopped))})" if stopped else "")
        + (f", {skipped} skipped (non-finite)" if skipped else "")
    )
    if fallbacks:
        lines.append(f"{fallbacks} projections by polar factor or nearest point: the steps were too long, lower lr")
    if method:
        lines.append(f"{method}: {cited(CITATIONS[method])}")
    return "\n".join(lines)


def _every(group: Mapping[str, Any], needs: frozenset[str]) -> str:
    if group["every"] == 1:
        return "·"
    return f"{group['every']}, drifting" if group["drift"] and "p" in needs else str(group["every"])


def _own_rhythm(group: Mapping[str, Any]) -> str:
    """A rhythm that has no short form, and so no column of its own."""
    shown = any((group["every"] > 1, group["asleep"], group["merge"] > 1))
    name = str(group["rhythm"])
    return "·" if shown or name.startswith(("Always(", "None")) else name


def _shown(group: Mapping[str, Any], field: str) -> str:
    value = group[field]
    return "·" if field in NEUTRAL and not getattr(value, "ndim", 0) and value == NEUTRAL[field] else _number(value)


def _number(value: Any) -> str:
    if getattr(value, "ndim", 0):
        return f"{float(value.min()):.4g} … {float(value.max()):.4g}"
    return f"{float(value):.4g}"
