"""Formulas: numbers that are known only while a step runs, as functions of the thermostat ξ and of pᵀp.

A letter that is run on symbols yields them as its coefficients. They are composed once; then the kernel, or torch,
works them out wherever the step has got to.

>>> ξ = Formula("ξ")
>>> (1 + 0.5 * ξ).at(2.0)
2.0
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tether import letters

__all__ = ["ENTRIES", "P2", "XI", "Formula", "worked_out"]

NONE: Mapping[str, Any] = {}
BINARY = {"+": operator.add, "*": operator.mul, "/": operator.truediv, "times": letters.times}
FUNCTIONS = {
    "exp": letters.exp,
    "expm1": letters.expm1,
    "sqrt": letters.sqrt,
    "shrink": letters.shrink,
    "lag": letters.lag,
}


class Formula:
    """A formula as the steps of a stack machine: numbers, ``"ξ"``, ``"p2"``, and operations on those before them."""

    __array_priority__ = 1000
    __slots__ = ("steps",)

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __add__(self, other: Any) -> Formula:
        return self._with(other, "+")

    def __mul__(self, other: Any) -> Any:
        return 0.0 if type(other) is float and other == 0 else self._with(other, "*")

    def __truediv__(self, other: Any) -> Formula:
        return self._with(other, "/")

    def _with(self, other: Any, operation: str) -> Formula:
        if isinstance(other, Formula):
            return Formula(*self.steps, *other.steps, operation)
        if isinstance(other, int | float | torch.Tensor):
            return Formula(*self.steps, other, operation)
        return NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other: Any) -> Formula:
        return Formula(other) / self

    def __neg__(self) -> Formula:
        return Formula(*self.steps, "-")

    def __sub__(self, other: Any) -> Formula:
        return self + -other

    def __rsub__(self, other: Any) -> Formula:
        return -self + other

    def exp(self) -> Formula:
        return Formula(*self.steps, "exp")

    def expm1(self) -> Formula:
        return Formula(*self.steps, "expm1")

    def sqrt(self) -> Formula:
        return Formula(*self.steps, "sqrt")

    def shrink(self) -> Formula:
        return Formula(*self.steps, "shrink")

    def lag(self) -> Formula:
        return Formula(*self.steps, "lag")

    def lasting(self, h: Any) -> Formula:
        """This times h, which is 0 where h is 0, even where this is ∞."""
        return Formula(*self.steps, h, "times")

    def times(self, γ: Any) -> Any:
        """γ times this, which is 0 where this is 0, even for γ = ∞."""
        return Formula(γ, *self.steps, "times") if not isinstance(γ, Formula) else γ.then(self, "times")

    def then(self, other: Formula, operation: str) -> Formula:
        return Formula(*self.steps, *other.steps, operation)

    @property
    def thermal(self) -> bool:
        """Does it depend on ξ or pᵀp?"""
        return any(isinstance(step, str) and step in ("ξ", "p2") for step in self.steps)

    @property
    def entrywise(self) -> bool:
        """Does it depend on a field that holds a number for each entry?"""
        return any(isinstance(step, str) and step in ENTRIES for step in self.steps)

    def put(self, change: Callable[[Any], Any]) -> Formula:
        """The same with other numbers and symbols; operations stay."""
        return Formula(*[change(step) for step in self.steps])

    def at(self, ξ: Any, p2: Any = 0.0, fields: Mapping[str, Any] = NONE) -> Any:
        """Its value: a number, or a tensor where ξ, pᵀp or a field is one. `fields` are those that it names."""
        stack: list[Any] = []
        for step in self.steps:
            if not isinstance(step, str):
                stack.append(step)
            elif step in ("ξ", "p2"):
                stack.append(ξ if step == "ξ" else p2)
            elif step in fields:
                stack.append(fields[step])
            elif step == "-":
                stack.append(-stack.pop())
            elif step in FUNCTIONS:
                stack.append(FUNCTIONS[step](stack.pop()))
            else:
                y, x = stack.pop(), stack.pop()
                stack.append(BINARY[step](x, y))
        return stack.pop()


XI: Final = Formula("ξ")
P2: Final = Formula("p2")
ENTRIES: Final = {symbol: Formula(symbol) for symbol in ("γ", "m")}  # fields that may hold a number for each entry


def worked_out(x: Any, ξ: Any, p2: Any = 0.0, fields: Mapping[str, Any] = NONE) -> Any:
    """The number itself, or the value of a formula."""
    return x.at(ξ, p2, fields) if isinstance(x, Formula) else x
