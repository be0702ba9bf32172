"""The interface of a surface: the maps that turn a free dynamics into one that stays on Σ.

A surface acts on a stack of tensors of one shape; the first axis runs over the tensors. It represents a point q of Σ in
its own coordinates (`place` makes a point, `lower` returns the parameter) and momenta p in the cotangent space at q.
Vectors of the surrounding space, such as gradients and noise, are projected by `tangent`.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from tether import native

__all__ = ["Surface", "SurfaceError", "Time", "inverse"]

Time = float | torch.Tensor  # of a drift: one for all, or one for each tensor of the stack, shaped to broadcast


class SurfaceError(ValueError):
    """A surface with invalid settings, or a parameter that it cannot hold.

    `which` are the tensors of the stack that a step could not move, as a mask; None if that is not known.
    """

    def __init__(self, message: str, which: torch.Tensor | None = None) -> None:
        super().__init__(message)
        self.which = which


def inverse(h: Time) -> Time:
    """1/h; 0 where h is 0, for a drift that does not move."""
    return torch.where(h == 0, 0.0, 1 / h) if isinstance(h, torch.Tensor) else 1 / h


def index(value: object) -> int:
    """A whole number as an int; numpy's integers are accepted. −1 for anything else."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return -1


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest number of a dtype whose square is in range where points are computed."""
    own, wide = torch.finfo(dtype), torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32)
    return max(own.tiny, math.sqrt(wide.tiny)), min(own.max, math.sqrt(wide.max))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Surface(ABC):
    """A constraint manifold Σ, for a stack of tensors."""

    slack: bool = False  # does a point hold more than the parameter? Then it is kept as state.
    looks: bool = False  # does it decide by its numbers, on the host? Then a step on it cannot be traced.
    together: bool = False  # does it constrain all parameters of a part together?
    separate: bool = False  # does every entry move by itself? Then each may have its own mass and friction.
    intrinsic: bool = False  # is noise drawn along Σ, one number per coordinate, without a projection?
    reversible: bool = False  # is the drift a geodesic at any length, so that −p leads back?
    absorbs: bool = False  # does the drift remove the normal part of momenta? Then they need no projection before it.
    prompt: bool = False  # is Π applied to momenta after every letter? For points that are only near Σ.

    def __repr__(self) -> str:
        """Name and settings. Two of equal text are the same."""
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"

    def bind(self, shapes: Sequence[Sequence[int]]) -> Surface:
        """The surface for parameters of these shapes."""
        return self

    def restricted(self, shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int]) -> Surface | None:
        """The surface of a block of a parameter of this shape; None unless its blocks move independently."""
        return None

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Bounded | native.Stiefel | None:
        """What the compiled path needs to know; None if there is no compiled path."""
        return None

    @abstractmethod
    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raise unless a parameter of this shape can lie on the surface."""

    @abstractmethod
    def dimension(self, shape: Sequence[int]) -> int:
        """Degrees of freedom of one tensor: coordinates minus constraints."""

    def extent(self) -> tuple[str, float | torch.Tensor] | None:
        """The name of its size, e.g. radius, and the value; None if it has no size."""
        return None

    def admit(self, name: str, start: torch.Tensor) -> None:
        """Raise unless a parameter starts from finite numbers, in a dtype that can hold points of the surface."""
        bad = start.numel() - int(start.isfinite().sum())
        if bad:
            raise SurfaceError(
                f"{self!r} on {name!r}: the start holds {bad} inf or nan among {start.numel()} numbers; initialise the "
                "parameter, or load a checkpoint from before it diverged"
            )
        named = self.extent()
        if named is not None:
            least, most = limits(start.dtype)
            sizes = torch.as_tensor(named[1], dtype=torch.float64, device="cpu").flatten()
            outside = sizes[~((sizes >= least) & (sizes <= most))]
            if len(outside):
                raise SurfaceError(
                    f"{self!r} on {name!r}: the {named[0]} {outside[0].item():g} or its square is out of the range of "
                    f"{_name(start.dtype)} parameters; choose one between {least:.2g} and {most:.2g}, or another dtype"
                )

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a point, and of a momentum."""
        return tuple(shape)

    @abstractmethod
    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """A point of Σ to start from, near the parameters; `normals` are used if the start is random."""

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        """Which parameters are on Σ already, up to rounding errors of size eps; `q` is what `place` returns for them.

        Such parameters are left as they are, bit for bit: a restored weight must not be moved.
        """
        moved = (self.lower(q, θ.shape[1:]) - θ).flatten(1).abs().amax(1)
        held = moved <= 8 * eps * θ.flatten(1).abs().amax(1)
        return held.view(-1, *[1] * (θ.dim() - 1))

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        """The point of these parameters: q if it is theirs up to rounding, else a new one with the sign of q's slack.

        The sign matters because on the other side of Σ the same momenta would point back. Only surfaces with slack need
        this.
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
        """The part along Σ of a vector of the surrounding space, as a vector in parameter space."""
        return self.lower(self.tangent(q, v), shape)

    def shadow_(self, q: torch.Tensor, v: torch.Tensor) -> None:
        """Leave of contiguous vectors in parameter space their part along Σ, seen there, in place."""
        v.copy_(self.along(q, self.lift(v), v.shape[1:]))

    @abstractmethod
    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """The letter A: dq = p dt along Σ for a time h."""

    def shift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """The letter S: dq = −p dt along Σ for a time h, which carries momenta along."""
        return self.drift(q, p, -h)

    def vector(self, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Momenta as vectors of the surrounding space."""
        return p

    def turn(self, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Momenta of another point moved to q: their part along Σ there."""
        return self.tangent(q, p)

    @abstractmethod
    def violation(self, point: torch.Tensor) -> torch.Tensor:
        """The largest |g| at a point of the surrounding space."""
