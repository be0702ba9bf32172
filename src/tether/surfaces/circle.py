"""Circle: every weight is bounded by a radius, by means of a slack variable."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

import torch

from tether import native
from tether.engine import host
from tether.surfaces.surface import Surface, SurfaceError, Time

__all__ = ["EDGE", "SLIGHTLY", "Circle", "positive"]

EDGE = 1 - 1e-3  # weights outside are placed at this share of the radius
SLIGHTLY = 1e-6  # outside by no more than this is a rounding error


class Circle(Surface):
    """Each weight on a circle with its slack (4.2): θ² + ξ² = r², so that |θ| ≤ r.

    A point is stored as one angle, θ = r sin q and ξ = r cos q, and its momentum as one number p = rω, the speed along
    the circle, with ω = (ξ p_θ − θ p_ξ)/r². These determine (θ, ξ, p_θ, p_ξ). So no point can leave the circle, and the
    rotation by ωh is exact.

    >>> import tether
    >>> net = torch.nn.Linear(3, 2)
    >>> opt = tether.Optimizer(net, [tether.Part("weight", on=Circle(0.1)), tether.Part("bias")], lr=0.5)
    >>> net(torch.ones(1, 3)).sum().backward()
    >>> opt.step()
    >>> bool(net.weight.abs().max() <= 0.1)
    True

    Args:
        radius: a number, or a tensor that broadcasts to the shape of the weights.
        projection: of X, and of every other step that leads off the circle. ``"orthogonal"`` (4.42) always exists.
            ``"oblique"`` (4.41) is along the normal at the start of the step, to the nearer of the two points. There is
            none if the step along the circle is longer than r; then the orthogonal one is taken, and `fallbacks` counts
            how often.
    """

    slack = True
    intrinsic = True
    separate = True
    reversible = True

    def __init__(self, radius: float | torch.Tensor = 1.0, projection: str = "orthogonal") -> None:
        self.radius, self.projection = positive("Circle", radius), projection
        if projection not in ("orthogonal", "oblique"):
            raise SurfaceError(f"Circle: projection={projection!r} must be 'orthogonal' or 'oblique'")
        self._missed: int | torch.Tensor = 0

    def __repr__(self) -> str:
        return f"Circle({shown(self.radius)}{', projection=' + repr(self.projection) if self.oblique else ''})"

    @property
    def oblique(self) -> bool:
        return self.projection == "oblique"

    @property
    def fallbacks(self) -> int:
        """How often an oblique projection did not exist; waits for the device that has counted."""
        return int(self._missed)

    def r(self, q: torch.Tensor) -> torch.Tensor | float:
        return self.radius.to(q) if isinstance(self.radius, torch.Tensor) else self.radius

    def restricted(self, shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int]) -> Circle:
        if not isinstance(self.radius, torch.Tensor):
            return self
        block = tuple(slice(first, first + size) for first, size in zip(offset, sizes, strict=True))
        return Circle(self.radius.expand(tuple(shape))[block], self.projection)

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Bounded | None:
        if isinstance(self.radius, torch.Tensor) or self.oblique:
            return None
        return native.Bounded(math.prod(shape), 0, 1, array("d", [self.radius]))

    def check(self, name: str, shape: Sequence[int]) -> None:
        fits(self, name, shape, self.radius, shape)

    def extent(self) -> tuple[str, float | torch.Tensor]:
        return "radius", self.radius

    def dimension(self, shape: Sequence[int]) -> int:
        return math.prod(shape)

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """q = arcsin(θ/r); weights outside are placed just below r.

        At ±π/2 the force g cos q would vanish and the weight would never move, so these points are avoided.
        """
        return torch.asin(self.sine(θ))

    def sine(self, θ: torch.Tensor) -> torch.Tensor:
        s, near = θ / self.r(θ), 1 - 4 * torch.finfo(θ.dtype).eps
        return torch.where(s.abs() > 1 + SLIGHTLY, s.clamp(-EDGE, EDGE), s.clamp(-near, near))

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        return θ.abs() <= self.r(θ) * (1 + 2 * eps)

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        s = self.sine(θ)
        anew = torch.atan2(s, torch.copysign((1 - s * s).sqrt(), torch.cos(q)))
        near = eps * θ.abs() + 8 * torch.finfo(q.dtype).eps * self.r(q)
        return torch.where((self.lower(q, ()) - θ).abs() <= near, q, anew)

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self.r(q) * torch.sin(q)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        """(θ, ξ)."""
        return torch.stack((self.r(q) * torch.sin(q) if θ is None else θ, self.r(q) * torch.cos(q)), dim=-1)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        """The loss does not depend on ξ."""
        return torch.stack((v, torch.zeros_like(v)), dim=-1)

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """(4.47), with the quadrant kept (errata 3).

        The oblique one (4.41): both roots of |q̄ − λ q_n|² = r² have the part t of q̄ along the circle at q_n, and the
        nearer one is at the angle arcsin(t/r) from there.
        """
        nearest = torch.atan2(point[..., 0], point[..., 1])
        if not self.oblique:
            return nearest
        t = self.tangent(start, point) / self.r(start)
        found = t.abs() <= 1
        if not torch.compiler.is_compiling():
            missed = (~found).sum()
            self._missed = self._missed + (int(missed) if host.reads(missed.device) else missed)
        return torch.where(found, one_turn(start + torch.asin(t.clamp(-1, 1))), nearest)

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The component along the circle, cos q v_θ − sin q v_ξ."""
        return torch.cos(q) * v[..., 0] - torch.sin(q) * v[..., 1]

    def vector(self, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """p times the unit vector along the circle."""
        return torch.stack((p * torch.cos(q), -p * torch.sin(q)), dim=-1)

    def turn(self, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """The speed along the circle is the same number at every point."""
        return p

    def along(self, q: torch.Tensor, v: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return torch.cos(q) * self.tangent(q, v)

    def shadow_(self, q: torch.Tensor, v: torch.Tensor) -> None:
        """cos² q v."""
        v.mul_(torch.cos(q).square_())

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotation by ωh = p h/r; the angle is kept within (−π, π]."""
        return one_turn(q + (h / self.r(q)) * p), p

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        r = self.r(point)
        return (point.square().sum(-1) - r * r).abs().amax() if point.numel() else point.new_zeros(())


def one_turn(angle: torch.Tensor) -> torch.Tensor:
    """The same angle within (−π, π]; 0 if its rounding error exceeds one turn, for then it has no meaning."""
    turns = torch.round(angle / (2 * math.pi))
    return torch.where(turns.abs() * torch.finfo(angle.dtype).eps < 1, angle - 2 * math.pi * turns, 0.0)


def positive(name: str, radius: float | torch.Tensor) -> float | torch.Tensor:
    """The radius as a float or tensor. Raises unless it is finite and positive."""
    if isinstance(radius, torch.Tensor) and radius.dim():
        if not (radius.is_floating_point() and bool(radius.isfinite().all()) and bool((radius > 0).all())):
            bad = radius[~((radius > 0) & radius.isfinite())]
            worst = bad[0].item() if bad.numel() else f"a tensor of {radius.dtype}"
            raise SurfaceError(f"{name}: every radius must be finite and > 0, found {worst}; e.g. {name}(0.5)")
        return radius.detach()
    try:
        if isinstance(radius, str | bool):  # which float() would take
            raise TypeError
        value = float(radius)
    except (TypeError, ValueError) as error:
        raise SurfaceError(f"{name}: radius={radius!r} is not a number; e.g. {name}(0.5)") from error
    if not (math.isfinite(value) and value > 0):
        raise SurfaceError(f"{name}: radius={radius!r} must be finite and > 0; e.g. {name}(0.5)")
    return value


def shown(radius: float | torch.Tensor) -> str:
    """A radius in a repr; a tensor by its shape and a checksum, so that different ones have different checkpoints."""
    if isinstance(radius, torch.Tensor):
        numbers = radius.detach().double().cpu().contiguous().numpy().tobytes()
        return f"tensor{tuple(radius.shape)} {hashlib.sha256(numbers).hexdigest()[:8]}"
    return f"{radius!r}"


def fits(surface: Surface, name: str, shape: Sequence[int], radius: float | torch.Tensor, to: Sequence[int]) -> None:
    """Raise unless the radius broadcasts to the given shape."""
    if isinstance(radius, torch.Tensor):
        try:
            fine = torch.broadcast_shapes(radius.shape, tuple(to)) == tuple(to)
        except RuntimeError:
            fine = False
        if not fine:
            raise SurfaceError(
                f"{surface!r} on {name!r}: the radius has shape {tuple(radius.shape)}, the parameter {tuple(shape)}; "
                f"it must broadcast to {tuple(to)}"
            )
