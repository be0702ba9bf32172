"""Values for the fields of a config, held to the types that the fields declare."""

import operator
import shlex
from types import UnionType
from typing import Any, Union, get_args, get_origin

__all__ = ["fitted", "mistake"]

PLAIN = (bool, int, float, str, type(None))


def fitted(value: Any, kind: Any) -> Any:
    """The value as its field declares it; ValueError if it cannot be that.

    A whole number may be written as 1e4 and a tuple as a list; text is never taken for a number.

    >>> fitted(1e4, int), fitted(2, float), fitted([1, 2], tuple[float, ...])
    (10000, 2.0, (1.0, 2.0))
    """
    if get_origin(kind) in (Union, UnionType):
        return _first(value, get_args(kind))
    if get_origin(kind) is tuple:
        return _tuple(value, get_args(kind))
    if kind is int and not isinstance(value, bool):
        return int(value) if isinstance(value, float) and value.is_integer() else _index(value)
    if kind is float and not isinstance(value, bool | str):
        return _float(value)
    if kind in PLAIN and type(value) is kind:
        return value
    raise ValueError(value)


def mistake(field: str, value: Any, kind: Any, example: Any) -> str:
    """What is wrong with a value, and a call that would be right."""
    if get_origin(kind) is None and kind not in PLAIN:
        return f"{field}={value!r} is no plain value: use numbers, text and tuples of them"
    wanted = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
    call = shlex.quote(f"{field}={example}")
    return f"{field}={value!r} must be of type {wanted}: for example --set {call}"


def _first(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return fitted(value, kind)
        except ValueError:
            continue
    raise ValueError(value)


def _tuple(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(value)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    return tuple(fitted(x, kind) for x, kind in zip(value, kinds, strict=True))


def _index(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(value) from None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, OverflowError):
        raise ValueError(value) from None
