"""The papers' experiments: `tether list`, `tether run NAME`, `tether report`.

An `Experiment` that a module of this package declares with `@study(...)` is on the list.
"""

import pkgutil
import re
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module

from tether_studies.experiment import KNOWN
from tether_studies.study import Claim, Study, Table

__all__ = ["Claim", "Study", "Table", "find", "studies"]


@lru_cache
def studies() -> dict[str, Study]:
    """All studies by name, in the order of the papers."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return {name: KNOWN[name] for name in sorted(KNOWN, key=_order)}


def find(name: str) -> Study:
    """The study of this name; else an error with the nearest one."""
    known = studies()
    if name not in known:
        near = get_close_matches(name, known, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else "`tether list` shows them"
        raise KeyError(f"there is no study {name!r}: {hint}")
    return known[name]


def _order(name: str) -> tuple[int, list[int], str]:
    """Figures and tables by chapter and number, then the slides' by name."""
    numbers = [int(x) for x in re.findall(r"\d+", name)]
    return (0 if numbers else 1, numbers, name)
