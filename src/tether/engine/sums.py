"""Formal sums: run on symbols instead of tensors, a linear letter yields its coefficients.

>>> from tether.letters import LETTERS
>>> coefficients(LETTERS["B"], {"h": 0.1})
(('p', {'p': 1.0, 'g': -0.1}),)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from tether.engine.formulas import Formula
from tether.letters import LETTERS, VECTORS, Letter

__all__ = ["Scalar", "Sum", "Terms", "coefficients", "is_number", "per_replica", "steady_coefficients"]

Scalar = Any  # a float, a formula where the thermostat enters, or a tensor with one number for each replica
Terms = dict[str, Scalar]  # symbol → coefficient


class Sum:
    """A formal sum of symbols with scalar coefficients: ``Sum({"p": 0.9, "R": 0.3})`` is 0.9 p + 0.3 R."""

    __array_priority__ = 1000
    __slots__ = ("terms",)

    def __init__(self, terms: dict[str, Scalar]) -> None:
        self.terms = terms

    def __add__(self, other: Sum) -> Sum:
        if not isinstance(other, Sum):
            return NotImplemented
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            terms[symbol] = terms[symbol] + coefficient if symbol in terms else coefficient
        return Sum(terms)

    def __mul__(self, factor: Scalar) -> Sum:
        if isinstance(factor, Sum):
            return NotImplemented
        return Sum({symbol: factor * coefficient for symbol, coefficient in self.terms.items()})

    __rmul__ = __mul__

    def __truediv__(self, divisor: Scalar) -> Sum:
        return Sum({symbol: coefficient / divisor for symbol, coefficient in self.terms.items()})

    def __neg__(self) -> Sum:
        return self * -1.0

    def __sub__(self, other: Sum) -> Sum:
        return self + -other


UNITS = {symbol: Sum({symbol: 1.0}) for symbol in VECTORS}


def coefficients(letter: Letter, scalars: Mapping[str, Scalar]) -> tuple[tuple[str, Any], ...] | None:
    """What the letter does to each symbol it changes, as terms, to ξ as a formula; None where it is not linear."""
    try:
        result = letter.at(lambda s: UNITS[s] if s in UNITS else scalars[s])
        results = result if len(letter.changes) > 1 else (result,)
        if letter.changes == ("ξ",):
            return (("ξ", result),) if isinstance(result, Formula) else None
        terms = {
            symbol: {s: c for s, c in value.terms.items() if isinstance(c, torch.Tensor) or c != 0}
            for symbol, value in zip(letter.changes, results, strict=True)
        }
    except (TypeError, AttributeError):
        return None
    if "θ" in terms and "θ" in terms.get("p", {}):
        return None  # p needs the old θ: no order of the two updates would do
    return tuple(sorted(terms.items(), reverse=True))  # θ before p, which may overwrite what θ needs


@lru_cache(maxsize=1024)
def steady_coefficients(name: str, values: tuple[float, ...]) -> tuple[tuple[str, Any], ...] | None:
    """The same for a letter without the thermostat, kept: they change only when a field does."""
    letter = LETTERS[name]
    return coefficients(letter, dict(zip(letter.scalars, values, strict=True)))


def is_number(x: Scalar, value: float) -> bool:
    return not isinstance(x, torch.Tensor) and x == value


def per_replica(x: Scalar) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() == 1
