"""The interface of a metric, in which the gradient and the noise of a part are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from tether.engine.blocks import Block
    from tether.engine.commit import Write

__all__ = ["Metric", "MetricError", "setting"]


class MetricError(ValueError):
    """A word, a surface or a network that a metric does not support."""


def setting(where: str, value: Any, rule: str, holds: Callable[[float], bool], example: float) -> float:
    """A setting as a float; `where` is its name. Raises unless it is a number that keeps the rule."""
    try:
        found = float("nan") if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if not holds(found):
        raise MetricError(f"{where}={value!r} must be {rule}, e.g. {where.split()[-1]}={example:g}")
    return found


class Metric(ABC):
    """Base class of metrics.

    A step is made in coordinates of the metric: `enter` transforms into them and plans the way back. A metric that
    needs to see where the word led says ``leaves = True`` and plans the way back in `leave`.
    """

    leaves: bool = False
    guides: bool = False  # does it lead along ``block.surface`` itself? Then bodies are free tensors
    entrywise: bool = False  # is each entry measured by itself? Then no network is needed, and shards will do
    keeps: Sequence[str] = ()  # what it remembers of each entry: in ``block.notes`` and ``opt.state``

    def __repr__(self) -> str:
        """Name and settings. Two of equal text are the same."""
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"

    @abstractmethod
    def check(self, part: str, row: Mapping[str, Any]) -> None:
        """Raise unless the metric supports the row's word and surface."""

    def measure(self, model: nn.Module) -> Mapping[str, Any]:
        """What the metric needs to know of each parameter, by name. It is called once per step for all parts."""
        return {}

    def mass(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The mass of momenta as they are kept, for the state of a parameter; 1 for those in coordinates."""
        return 1.0

    @abstractmethod
    def enter(self, block: Block, measured: Mapping[str, Any], whole: bool) -> Block | None:
        """Transform the gradients of a block; if `whole`, also its parameters, for momenta and noise.

        Replace ``block.g`` and ``block.θ`` by new tensors, and put the writes that transform back into ``block.after``;
        or return another block, ``block.beside(θ, p)``, that takes its place in this step.
        """
        return None

    def leave(self, block: Block, h: Any) -> list[Write]:
        """What the commit must do for a block that was given to `enter`, after a word of step size h."""
        return block.writes()
