"""Generators: the states of all random generators that a run may use, saved as plain values and restored.

tether's own noise depends on names and seeds alone and needs none of this. Dropout, augmentation and a shuffled
DataLoader draw from the generators of torch, numpy and Python, or from one of their own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["found_in", "restore", "states"]


def found_in(data: Any) -> list[torch.Generator]:
    """The generators that a loader, its samplers or its data set hold as attributes."""
    places = [data, *(getattr(data, name, None) for name in ("dataset", "sampler", "batch_sampler"))]
    places.append(getattr(places[-1], "sampler", None))
    held = [value for place in places for value in getattr(place, "__dict__", {}).values()]
    return list({id(value): value for value in held if isinstance(value, torch.Generator)}.values())


def states(own: Sequence[torch.Generator]) -> dict[str, Any]:
    """The states of the generators of torch, numpy and Python, and of those in `own`."""
    arrays = np.random.get_state(legacy=False)
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {**arrays, "state": {"key": arrays["state"]["key"].tolist(), "pos": int(arrays["state"]["pos"])}},
        "python": random.getstate(),
        "own": [generator.get_state() for generator in own],
    }
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(saved: dict[str, Any], own: Sequence[torch.Generator]) -> None:
    """Restore all these states."""
    torch.set_rng_state(saved["torch"])
    np.random.set_state(saved["numpy"])
    random.setstate(saved["python"])
    for generator, state in zip(own, saved["own"], strict=True):
        generator.set_state(state)
    if "cuda" in saved:
        torch.cuda.set_rng_state_all(saved["cuda"])
