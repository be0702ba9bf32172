"""Turns: what puts other tensors into a module for a moment lets one thread after the other in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

__all__ = ["Turns", "in_turns"]

Method = TypeVar("Method", bound=Callable[..., Any])


class Turns:
    """A lock for an object that is copied and pickled: each copy has its own.

    >>> import copy
    >>> mine = Turns()
    >>> copy.deepcopy(mine).lock is mine.lock
    False
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()


def in_turns(method: Method) -> Method:
    """A method for one thread at a time, by the `_turns` of its object. Compiled code changes no module: it needs none.

    >>> class Counter:
    ...     _turns = Turns()
    ...     n = 0
    ...     @in_turns
    ...     def count(self): self.n += 1; return self.n
    >>> Counter().count()
    1
    """

    @wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        with self._turns.lock:
            return method(self, *args, **kwargs)

    return cast("Method", alone)
