"""Rhythms: what a part does over several steps. One file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tether.rhythms.every import Every
from tether.rhythms.merge import Merge
from tether.rhythms.metropolis import Metropolis
from tether.rhythms.pace import Pace
from tether.rhythms.rhythm import Always, Rhythm, RhythmError
from tether.rhythms.sleep import Sleep

__all__ = ["SHORT", "Always", "Every", "Merge", "Metropolis", "Pace", "Rhythm", "RhythmError", "Sleep", "rhythm_of"]

SHORT: dict[str, Any] = {"every": 1, "drift": True, "asleep": 0.0, "nap": 5, "merge": 1}  # short forms and defaults


def rhythm_of(part: str, row: Mapping[str, Any]) -> Rhythm:
    """The rhythm that a row asks for: by ``rhythm=``, or by its short forms."""
    given = row.get("rhythm")
    if isinstance(given, Rhythm):
        fields = {**SHORT, **given.fields()}
        other = [name for name, value in SHORT.items() if row[name] not in (value, fields[name])]
        if other:
            raise RhythmError(
                f"{part}: rhythm={given!r} and {other[0]}={row[other[0]]!r} do not go together: choose one"
            )
        return given
    if not isinstance(row["drift"], bool):
        raise TypeError(f"{part}: drift={row['drift']!r} must be True or False")
    try:
        short = Every(row["every"], row["drift"]), Sleep(row["asleep"], row["nap"]), Merge(row["merge"])
    except RhythmError as error:
        raise RhythmError(f"{part}: {error}") from None
    found: list[Rhythm] = [
        x for x, used in zip(short, (short[0].every > 1, short[1].share, short[2].k > 1), strict=True) if used
    ]
    if len(found) > 1:
        given = " and ".join(
            f"{name}={row[name]!r}" for name in ("every", "asleep", "merge") if row[name] != SHORT[name]
        )
        raise RhythmError(f"{part}: {given} do not go together: choose one")
    return found[0] if found else Always()
