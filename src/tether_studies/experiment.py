"""Experiment: how a study is written down, in a class that reads like the description of the experiment."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, ClassVar, TypeVar

import torch

import tether
from tether_studies.judges import Judgement, undecided
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, tabulated
from tether_studies.study import Claim, Figures, Results, Study, Table, at, no_figures

__all__ = ["KNOWN", "Experiment", "Figures", "Found", "Lab", "Recipe", "Results", "Table", "at", "recipe", "study"]

Recipe = Callable[[Any, int], torch.optim.Optimizer]  # of networks, or one, and a seed that names the noise
Found = Iterator[tuple[str, Judgement] | None]  # what was measured and its judgement, claim by claim
E = TypeVar("E", bound="Experiment")
KNOWN: dict[str, Study] = {}


class Experiment:
    """What a study declares: the fields of its config, what the paper says, how it is run, judged and shown.

    ``says`` has the paper's claims, each with what is published behind ``|``; indented lines go on, and ``{runs}``
    stands for that field. ``claims(results)`` yields, claim by claim, what was measured and its judgement, or None for
    a claim that this config does not test: it is not decided. ``columns`` are the quantities of the table, a row for
    each of `tabled`.
    """

    says: ClassVar[str] = ""
    label: ClassVar[str | Sequence[str]] = "method"
    columns: ClassVar[Sequence[Quantity]] = ()
    caption: ClassVar[str] = ""

    def run(self, lab: Lab) -> Results:
        raise NotImplementedError

    def claims(self, results: Results) -> Found:
        return iter(())

    def tabled(self, results: Results) -> Mapping[Any, Results]:
        return results

    def tables(self, results: Results) -> Iterable[Table]:
        if self.columns:
            values = {name: "all" if value is None else value for name, value in vars(self).items()}
            yield tabulated(self.label, self.tabled(results), self.columns, self.caption.format(**values))

    def draw(self, results: Results) -> Figures:
        return {}


def recipe(method: str, **settings: Any) -> Recipe:
    """A function of `tether.methods`, or else a class of `torch.optim`, with its settings."""

    def made(nets: Any, seed: int) -> torch.optim.Optimizer:
        if hasattr(tether.methods, method):
            return getattr(tether.methods, method)(nets, seed=seed, **settings)
        return getattr(torch.optim, method)(nets.parameters(), **settings)

    return made


def study(name: str, source: str, data: Sequence[str] = ()) -> Callable[[type[E]], type[E]]:
    """Put an experiment on the list. Its docstring has the title, the setting, and what differs from the paper."""

    def declared(kind: type[E]) -> type[E]:
        told = [" ".join(part.split()) for part in cleandoc(kind.__doc__ or "").split("\n\n", 2)]
        if len(told) < 3:
            rule = "title, setting, and what differs from the paper, with empty lines between"
            raise ValueError(f"{name}: the docstring of {kind.__name__} has {len(told)} of three paragraphs: {rule}")
        parts: dict[str, Any] = {"claims": judged, "tables": lambda results, config: config.tables(results)}
        parts["draw"] = no_figures if kind.draw is Experiment.draw else lambda results, config: config.draw(results)
        config: Any = dataclass(frozen=True)(kind)
        KNOWN[name] = Study(name, told[0], source, config, kind.run, data=data, notes=told[2], **parts)
        return config

    return declared


def judged(results: Results, config: Experiment) -> Iterator[Claim]:
    """What the paper says beside what was found."""
    claims, judgements = said(config), list(config.claims(results))
    if len(claims) != len(judgements):
        counts = f"{type(config).__name__} says {len(claims)} claims and judges {len(judgements)}"
        raise ValueError(f"{counts}: `claims` must yield for each what was measured and its judgement, or None")
    for (text, published), found in zip(claims, judgements, strict=True):
        measured, judgement = found or ("not run", undecided("this config does not test it"))
        yield Claim(text, published, measured, *judgement[:2], provisional=judgement.provisional)


def said(config: Experiment) -> list[tuple[str, str]]:
    """The claims, and what is published of each."""
    lines = re.sub(r"\n\s+", " ", cleandoc(config.says)).format(**vars(config)).splitlines()
    return [(text, published) for text, _, published in (line.partition(" | ") for line in lines)]
