"""Pieces: what this process holds of the tensors of a body, and what all processes agree on.

On one process every tensor is whole, and this file is all there is. `tether.sharded` has the same two for parameters
that are spread over several processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tether.noise import Normals

if TYPE_CHECKING:
    from tether.surfaces import Surface

__all__ = ["WHOLE", "Ranks", "Whole"]

Tensors = list[torch.Tensor]


class Whole:
    """Tensors that this process holds whole."""

    sharded = False
    share = 1.0  # of a sum over this process's numbers in the sum over all processes
    contiguous = True  # does each piece hold consecutive entries of its parameter?

    def tensors(self, params: Tensors) -> Tensors:
        """The numbers to be moved."""
        return params

    def gradients(self, params: Tensors) -> list[torch.Tensor | None]:
        """The gradients of those numbers."""
        return [param.grad for param in params]

    def read(self, i: int, kept: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """What the state of tensor i holds for this process; `like` is of the shape it must have here."""
        return kept

    def keep(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """A tensor of this process as state of tensor i."""
        return x

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of parameters that have this shape here."""
        return tuple(shape)

    def kept_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of state that has this shape here."""
        return tuple(shape)

    def restricted(self, surface: Surface) -> Surface:
        """The surface of the numbers held here."""
        return surface

    def first(self, which: Sequence[int]) -> list[int] | None:
        """The index in the whole parameter of the first entry of each tensor; None where that is 0."""
        return None

    def counts(self, params: Tensors) -> list[int]:
        """How many numbers the whole parameters hold."""
        return [param.numel() for param in params]

    def normals(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]], places: tuple[Any, ...], rest: tuple[Any, ...]
    ) -> Normals:
        """Normals for tensors of these shapes; `places` are sizes, offsets and total, `rest` is dtype and so on."""
        return Normals(names, *places, *rest)


WHOLE = Whole()


class Ranks(Protocol):
    """The processes that share the parameters of an optimizer. All of them call each method, in the same order."""

    def usable(self, opt: Any) -> Sequence[int] | None:
        """Are the gradients finite everywhere? None skips the step."""

    def place(self, named: Any, surface: Any, seed: int, lanes: Any) -> list[Any]:
        """Where parameters start on their surface."""

    def bodies(self, row: Any, chosen: Sequence[tuple[torch.Tensor, str]], momenta: bool) -> list[Any]:
        """The bodies of a row."""

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sums over all processes."""

    def worst(self, numbers: torch.Tensor) -> torch.Tensor:
        """The largest numbers of all processes."""

    def share(self, param: torch.Tensor) -> float:
        """The share of this process's sum over a parameter in that of all."""

    def violation(
        self, moving: Sequence[tuple[str, torch.Tensor]], surface: Any, lanes: Any, state: Any
    ) -> torch.Tensor:
        """The largest violation of these parameters, on all processes."""

    def block(self, param: torch.Tensor) -> tuple[slice, ...]:
        """What this process holds of a parameter, as an index of the whole."""
