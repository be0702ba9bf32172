"""Waiting: parameters of a slow part ask for no gradient between its steps, so the backward pass stops early.

Whoever makes a parameter wait must give it back when the run ends. The mark on the parameter tells one that waits from
one that its user froze: the next optimizer takes the first and leaves the second alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["give_back", "left_waiting", "wait"]


def wait(params: Iterable[torch.Tensor]) -> None:
    """Let parameters ask for no gradient until they are given back."""
    for param in params:
        param.requires_grad = False  # by the property: a garbage collector may come inside a functorch transform
        param.waits = True  # type: ignore[attr-defined]


def give_back(params: Iterable[torch.Tensor]) -> None:
    """Let parameters ask for gradients again."""
    for param in params:
        param.requires_grad = True
        param.waits = False  # type: ignore[attr-defined]


def left_waiting(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that an earlier optimizer made wait and never gave back."""
    return [param for param in params if getattr(param, "waits", False)]
