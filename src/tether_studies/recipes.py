"""Recipes: a recipe makes the optimizer of some networks, with the noise that a seed names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tether

__all__ = ["Recipe", "recipe"]

Recipe = Callable[[Any, int], torch.optim.Optimizer]  # networks, or one, and a seed


def recipe(method: str, **settings: Any) -> Recipe:
    """A function of `tether.methods`, or else a class of `torch.optim`, with its settings."""

    def made(nets: Any, seed: int) -> torch.optim.Optimizer:
        if hasattr(tether.methods, method):
            return getattr(tether.methods, method)(nets, seed=seed, **settings)
        return getattr(torch.optim, method)(nets.parameters(), **settings)

    return made
