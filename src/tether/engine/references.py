"""The sources of the methods, from references.bib: the citations of `describe()`, and the bibliography of the site."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

__all__ = ["cited", "references"]

FILE = Path(__file__).with_name("references.bib")
ENTRY = re.compile(r"^@(\w+)\{(\w+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)


@lru_cache
def references() -> dict[str, dict[str, str]]:
    """Every entry by its key; ``type`` is its kind."""
    text = FILE.read_text(encoding="utf-8")
    return {key: {"type": kind.lower(), **dict(FIELD.findall(body))} for kind, key, body in ENTRY.findall(text)}


def cited(key: str) -> str:
    """An entry on one line.

    >>> cited("welling2011")
    'M. Welling, Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML 2011'
    """
    entry = references()[key]
    authors = ", ".join(_short(name) for name in entry["author"].split(" and "))
    where = entry.get("journal") or entry.get("booktitle") or entry.get("school", "")
    when = f"{entry['volume']} ({entry['year']})" if "volume" in entry else entry["year"]
    return f"{authors}. {entry['title']}. {where} {when}".replace(".. ", ". ")


def _short(name: str) -> str:
    """J. Doe for Doe, Jane."""
    family, _, given = name.partition(", ")
    return " ".join([*(f"{one[0]}." for one in given.split()), family])
