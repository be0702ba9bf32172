"""Commit: the writes of a step, planned first and then carried out together.

Python looks for signals between its own instructions, never inside a call into C. So a write is a partial call of a C
function, and one C loop carries out all of them: an interrupt comes before the first write or after the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from tether import native

__all__ = ["NOTED", "Write", "commit", "local", "write"]

Write = partial[Any]
write = partial
_call = partial.__call__
NOTED = torch._C._increment_version  # tells autograd that tensors were written to past its eyes


def commit(writes: Iterable[Write]) -> None:
    """Carry out all writes; nothing can come between them."""
    for code in list(map(_call, writes)):
        if type(code) is int and code < 0:
            raise native.refused(code)


def local(x: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor that this process holds, and may write: all of them, unless the tensor is sharded."""
    found: torch.Tensor = x.to_local() if hasattr(x, "to_local") else x
    return found
