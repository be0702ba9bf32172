"""What a metric is: how the gradient and the noise of a part are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from tether.engine.blocks import Block

__all__ = ["Metric", "MetricError"]


class MetricError(ValueError):
    """A word, a surface or a network that a metric does not go with."""


class Metric(ABC):
    """A step is taken in coordinates of the metric: `enter` goes there, and the writes it leaves behind come back."""

    @abstractmethod
    def check(self, part: str, row: Mapping[str, Any]) -> None:
        """Raise unless the metric goes with the row's word and surface."""

    @abstractmethod
    def measure(self, model: nn.Module) -> Mapping[str, Any]:
        """What the metric says of each parameter of the network as it is, by name; once per step for all parts."""

    @abstractmethod
    def enter(self, block: Block, measured: Mapping[str, Any], whole: bool) -> None:
        """Put the block's gradients into the metric; if `whole`, its parameters as well, for momenta and noise.

        New tensors take the places of ``block.g`` and ``block.θ``, and ``block.after`` gets the writes that leave.
        """
