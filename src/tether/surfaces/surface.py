"""What a surface is: the maps that turn a free dynamics into one that stays on Σ.

A surface acts on a stack of tensors of one shape, the first axis running over them. Each keeps a point q of Σ in
coordinates of its own choice (`place` makes it, `lower` gives the parameter back) and momenta p in the cotangent
space there. Vectors of the surrounding space, such as gradients and noise, come in through `tangent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from tether import native

__all__ = ["Surface", "SurfaceError", "Time", "inverse"]

Time = float | torch.Tensor  # of a drift: one for all, or one for each tensor of the stack, shaped to act on it


class SurfaceError(ValueError):
    """A surface that cannot be, or a parameter that it cannot hold."""


def inverse(h: Time) -> Time:
    """1/h; 0 where h is 0, for a drift that does not move."""
    return torch.where(h == 0, 0.0, 1 / h) if isinstance(h, torch.Tensor) else 1 / h


class Surface(ABC):
    """A constraint manifold Σ, for a stack of tensors."""

    slack: bool = False  # does a point hold more than the parameter, so that it must be kept as state?
    together: bool = False  # does it take all parameters of a part as one?
    intrinsic: bool = False  # do momenta take noise along Σ as it is drawn, one number per coordinate?
    absorbs: bool = False  # does the drift take out what momenta have across Σ, so that they may wait for it?

    def bind(self, shapes: Sequence[Sequence[int]]) -> Surface:
        """The surface for parameters of these shapes."""
        return self

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Bounded | native.Stiefel | None:
        """What the compiled path needs to know, where there is one."""
        return None

    @abstractmethod
    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raise unless a parameter of this shape can lie on the surface."""

    @abstractmethod
    def dimension(self, shape: Sequence[int]) -> int:
        """Degrees of freedom of one tensor: coordinates minus constraints."""

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a point, and of a momentum."""
        return tuple(shape)

    @abstractmethod
    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """A point of Σ to start from, near the parameters; `normals` where the start is random."""

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        """Which parameters lie on Σ already, up to rounding errors of size eps; `q` is where `place` puts them.

        Such parameters are left as they are, bit for bit: a restored weight must not be moved.
        """
        moved = (self.lower(q, θ.shape[1:]) - θ).flatten(1).abs().amax(1)
        held = moved <= 8 * eps * θ.flatten(1).abs().amax(1)
        return held.view(-1, *[1] * (θ.dim() - 1))

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        """The point of these parameters: q where it is theirs up to rounding, else a new one, its slack on q's side.

        Momenta belong to one side: on the other one they would point back. Only surfaces with slack need it.
        """
        return q

    @abstractmethod
    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """The parameters at a point."""

    @abstractmethod
    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        """The point in the surrounding space; with θ, that of these parameters and the slack of q."""

    @abstractmethod
    def lift(self, v: torch.Tensor) -> torch.Tensor:
        """A vector in parameter space, such as a gradient, as one of the surrounding space."""

    @abstractmethod
    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """The point of Σ that belongs to a point near it, reached by a step from `start`."""

    @abstractmethod
    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Π: the part of a vector of the surrounding space that lies along Σ."""

    def along(self, q: torch.Tensor, v: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """The part along Σ of a vector of the surrounding space, seen in parameter space."""
        return self.lower(self.tangent(q, v), shape)

    @abstractmethod
    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """The letter A: dq = p dt along Σ for a time h."""

    @abstractmethod
    def violation(self, point: torch.Tensor) -> torch.Tensor:
        """The largest |g| at a point of the surrounding space."""
