"""Host: which numbers Python may look at during a step, and small tensors that it hands over once.

To look at a number of an accelerator is to wait for everything that the accelerator has been asked to do. A step that
asks for none is queued while the backward pass still runs. Nor can a traced step look at a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

__all__ = ["indices", "reads", "wide"]


def reads(device: torch.device) -> bool:
    """May the host look at a number there and decide by it?"""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def indices(chosen: Sequence[int], device: torch.device) -> torch.Tensor:
    """Some indices as a tensor, which is copied to the device once."""
    return _indices(tuple(chosen), device)


@lru_cache(maxsize=64)
def _indices(chosen: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(chosen, dtype=torch.int64, device=device)


def wide(device: torch.device) -> torch.dtype:
    """The dtype of single numbers, such as a thermostat: float64 on the CPU; some accelerators have none."""
    return torch.float64 if device.type == "cpu" else torch.float32
