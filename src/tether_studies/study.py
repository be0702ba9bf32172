"""Study: a claim of a paper, an experiment that tests it, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from tether_studies.fields import fitted, mistake

if TYPE_CHECKING:
    from tether_studies.lab import Lab

__all__ = ["Claim", "Figures", "Results", "Study", "Table", "at"]

Results = dict[Any, Any]  # what pieces found by their names, texts or tuples; or what one found by keys
Figures = dict[str, Any]
T = TypeVar("T")


def at(default: T, **scales: Any) -> T:
    """Declare a field of a config whose value depends on the scale.

    ``runs: int = at(4, quick=2, full=20)`` is 4, but 2 in a quick run and 20 at the paper's scale.
    """
    return field(default=default, metadata=scales)


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it gives as its number, what was measured here, and whether that bears it out."""

    text: str
    published: str
    measured: str
    verdict: str
    evidence: str = ""  # the statistics behind the verdict
    source: str = ""
    provisional: bool = False  # from fewer than four runs


@dataclass(frozen=True)
class Table:
    """Rows of text or numbers under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


def no_figures(results: Results, config: Any) -> Mapping[str, Any]:
    """What a study draws that draws nothing."""
    return {}


@dataclass(frozen=True)
class Study:
    """An experiment by its name, at three scales.

    ``run(config, lab)`` returns results, plain values and arrays by name; ``claims(results, config)`` sets measured
    beside published; ``draw`` and ``tables`` show the numbers behind them. `config` is a frozen dataclass of plain
    values whose defaults end within ten minutes on two cores; fields that are declared by `at` have other values for a
    run of seconds (``quick``, which decides nothing) and for the paper's scale (``full``). `data` has the data sets it
    needs, by the names of their folders, and packages as ``pip:NAME`` or ``weights:NAME``; `notes` what differs from
    the paper, and why.
    """

    name: str
    title: str
    source: str
    config: type
    run: Callable[[Any, Lab], Results]
    claims: Callable[[Results, Any], Iterable[Claim]] = lambda results, config: ()
    draw: Callable[[Results, Any], Mapping[str, Any]] = no_figures
    tables: Callable[[Results, Any], Iterable[Table]] = lambda results, config: ()
    data: Sequence[str] = ()
    notes: str = ""

    def at(self, scale: str, **changes: Any) -> Any:
        """The config at a scale, ``default``, ``quick`` or ``full``, with some fields changed."""
        config = self.config()
        scaled = {one.name: one.metadata[scale] for one in fields(config) if scale in one.metadata}
        values = asdict(replace(config, **{**scaled, **changes}))
        kinds = get_type_hints(self.config)
        for name, value in values.items():
            try:
                values[name] = fitted(value, kinds[name])
            except ValueError:
                raise TypeError(f"{self.name}: {mistake(name, value, kinds[name], getattr(config, name))}") from None
        return replace(config, **values)

    def changed(self, scale: str, config: Any) -> dict[str, Any]:
        """The fields of a config that are not those of its scale."""
        own = asdict(self.at(scale))
        return {name: value for name, value in asdict(config).items() if value != own[name]}
