"""Waiting: parameters of a slow part require no gradient between its steps, so the backward pass stops early.

An optimizer that lets a parameter wait must give it back at the end of the run. A mark on the parameter distinguishes
it from one that the user froze: the next optimizer trains the first and leaves the second frozen.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["give_back", "left_waiting", "wait"]


def wait(params: Iterable[torch.Tensor]) -> None:
    """Let parameters require no gradient until they are given back."""
    for param in params:
        # by the property, which also works if the garbage collector calls this inside a functorch transform
        param.requires_grad = False
        param.waits = True  # type: ignore[attr-defined]


def give_back(params: Iterable[torch.Tensor]) -> None:
    """Let parameters require gradients again."""
    for param in params:
        param.requires_grad = True
        param.waits = False  # type: ignore[attr-defined]


def left_waiting(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that an earlier optimizer let wait and did not give back."""
    return [param for param in params if getattr(param, "waits", False)]
