"""Quantities: what is measured of every run, from which texts, judgements and tables follow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tether_studies.judges import Judgement, every, less, more, plus_minus
from tether_studies.study import Results, Table

__all__ = ["Quantity", "against", "at_end", "crossed", "given", "listed", "of_key", "tabulated", "within"]

Names = str | Sequence[str]


@dataclass(frozen=True)
class Quantity:
    """A number that every run has.

    Args:
        name: as it stands above its column.
        take: what a piece found → a value for each run.
        digits: after the point, of mean and standard error.
        unit: as it stands behind a number in a text.
        show: a cell of a table from the values; else their mean ± standard error.
    """

    name: str
    take: Callable[[Results], Any]
    digits: int = 1
    unit: str = ""
    show: Callable[[Any], Any] | None = None

    def of(self, results: Mapping[Any, Results], names: Iterable[str] = ()) -> dict[str, Any]:
        """The values of the runs, by the names of pieces."""
        return {name: self.take(results[name]) for name in names or results}

    def text(self, values: Any) -> str:
        """Mean ± standard error."""
        return plus_minus(values, self.digits)

    def listed(self, results: Mapping[str, Results], *names: str) -> str:
        """Mean ± standard error of each, by name."""
        return listed(self.of(results, names), self.digits, self.unit)

    def cell(self, found: Results) -> Any:
        """What a table has of a piece."""
        values = self.take(found)
        return self.text(values) if self.show is None else self.show(values)

    def more(self, results: Mapping[str, Results], a: Names, b: Names, **options: Any) -> tuple[str, Judgement]:
        """Is it more in a than in b, in every one of a than in every one of b? What was measured, and the judgement.

        Options are those of the judge, `told`, what stands before the numbers, and `names`, those of the numbers.
        """
        return self._pairs(more, ">", results, a, b, **options)

    def less(self, results: Mapping[str, Results], a: Names, b: Names, **options: Any) -> tuple[str, Judgement]:
        """Is it less in a than in b, in every one of a than in every one of b?"""
        return self._pairs(less, "<", results, a, b, **options)

    def _pairs(
        self, judge: Any, sign: str, results: Any, a: Names, b: Names, told: str = "", names: Any = (), **options: Any
    ) -> tuple[str, Judgement]:
        ours, others = ([one] if isinstance(one, str) else one for one in (a, b))
        of = self.of(results, dict.fromkeys([*ours, *others]))
        judged = {f"{x} {sign} {y}": judge(of[x], of[y], **options) for x in ours for y in others if x != y}
        text = told + self.listed(results, *(names or of))
        return text, every(judged) if len(judged) > 1 else next(iter(judged.values()))


def of_key(key: str, name: str, digits: int = 1, unit: str = "") -> Quantity:
    """What was found under a key."""
    return Quantity(name, lambda found: found[key], digits, unit)


def given(key: str, name: str) -> Quantity:
    """What stands under a key, shown as it is: a published number, for example."""
    return Quantity(name, lambda found: found[key], show=lambda values: values)


def at_end(key: str, name: str, digits: int = 1, unit: str = "") -> Quantity:
    """The last of what was recorded under a key."""
    return Quantity(name, lambda found: np.ravel(found[key][-1]), digits, unit)


def listed(values: Mapping[str, Any], digits: int = 1, unit: str = "") -> str:
    """Means ± standard errors, by name.

    >>> listed({"SGD": [1.0, 2.0, 3.0], "Adam": [4.0, 4.0]}, unit=" %")
    'SGD 2.0 ± 0.6 %, Adam 4.0 ± 0.0 %'
    """
    return ", ".join(f"{name} {plus_minus(x, digits)}{unit}" for name, x in values.items())


def within(results: Mapping[Any, Results], *first: Any) -> dict[str, Results]:
    """The pieces whose names begin so, by the rest of their names.

    >>> within({("chess", "Adam"): {"x": 1}, ("poker", "Adam"): {"x": 2}}, "poker")
    {'Adam': {'x': 2}}
    """
    return {name[-1]: found for name, found in results.items() if name[: len(first)] == first}


def against(
    judge: Any, pairs: Mapping[str, Any], digits: int = 1, unit: str = "", **options: Any
) -> tuple[str, Judgement]:
    """A pair of runs under each name, set side by side and judged: what was measured, and the judgement."""
    texts = (f"{name} {plus_minus(a, digits)} against {plus_minus(b, digits)}" for name, (a, b) in pairs.items())
    judged = {name: judge(a, b, **options) for name, (a, b) in pairs.items()}
    return "; ".join(texts).strip() + unit, every(judged) if "" not in judged else judged[""]


def tabulated(labels: Names, rows: Mapping[Any, Results], columns: Sequence[Quantity], caption: str = "") -> Table:
    """A row for each piece, named by its label or labels, and a column for each quantity."""
    heads, tuples = ([labels], False) if isinstance(labels, str) else (list(labels), True)
    cells = [[*(label if tuples else [label]), *(one.cell(found) for one in columns)] for label, found in rows.items()]
    return Table([*heads, *(one.name for one in columns)], cells, caption)


def crossed(head: Sequence[str], rows: Mapping[Any, Any], caption: str = "") -> Table:
    """A row for each label: mean ± standard error of each of its cells."""
    return Table(head, [[label, *map(plus_minus, cells)] for label, cells in rows.items()], caption)
