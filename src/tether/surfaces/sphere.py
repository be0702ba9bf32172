"""Sphere: the norm of the incoming weights of every unit is bounded, by means of a slack variable per unit."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch

from tether import native
from tether.engine import host
from tether.surfaces.circle import EDGE, SLIGHTLY, fits, positive, shown
from tether.surfaces.surface import Surface, SurfaceError, Time

__all__ = ["Sphere"]


class Sphere(Surface):
    """Each output row on a sphere with its slack (4.3): |row|² + ξ² = r², so that |row| ≤ r.

    A point is the rows with their slack appended, q of shape (…, rows, columns + 1); conv weights are flattened to
    rows. Geodesics are great circles.

    A row is what belongs to one index of the first axis. For linear and convolutional layers that is one output unit.
    The weights of an LSTM or GRU hold all gates, stacked, so a row is one gate of one unit. The weight of a transposed
    convolution is (in, out, …): there a row belongs to an input channel, and its outgoing weights are bounded.

    >>> import tether
    >>> net = torch.nn.Linear(3, 2)
    >>> opt = tether.Optimizer(net, [tether.Part("weight", on=Sphere(2.0, slack=False)), tether.Part("bias")], lr=0.1)
    >>> [round(norm, 5) for norm in net.weight.norm(dim=1).tolist()]
    [2.0, 2.0]

    Args:
        radius: a number, or a tensor with one radius per row.
        slack: False leaves out ξ: every row has norm r exactly.
    """

    reversible = True

    def __init__(self, radius: float | torch.Tensor = 1.0, slack: bool = True) -> None:
        self.radius = positive("Sphere", radius)
        self.slack = slack

    def __repr__(self) -> str:
        return f"Sphere({shown(self.radius)}{'' if self.slack else ', slack=False'})"

    def r(self, q: torch.Tensor) -> torch.Tensor | float:
        return self.radius.to(q).unsqueeze(-1) if isinstance(self.radius, torch.Tensor) else self.radius

    def restricted(self, shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int]) -> Sphere | None:
        if tuple(sizes[1:]) != tuple(shape[1:]):
            return None
        if not isinstance(self.radius, torch.Tensor):
            return self
        return Sphere(self.radius.expand(shape[0])[offset[0] : offset[0] + sizes[0]], self.slack)

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Bounded | None:
        if not self.slack:  # then the point is the parameter itself
            return None
        rows = shape[0]
        radii = self.radius.expand(rows).tolist() if isinstance(self.radius, torch.Tensor) else [self.radius] * rows
        return native.Bounded(rows, math.prod(shape[1:]), 1, array("d", radii))

    def check(self, name: str, shape: Sequence[int]) -> None:
        if len(shape) < 2:
            raise SurfaceError(
                f"{self!r} on {name!r}: a parameter of shape {tuple(shape)} has no rows; constrain weights, e.g. "
                "Part('*.weight', on=...), and leave biases free"
            )
        fits(self, name, shape, self.radius, shape[:1])

    def extent(self) -> tuple[str, float | torch.Tensor]:
        return "radius", self.radius

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0], math.prod(shape[1:]) + self.slack

    def dimension(self, shape: Sequence[int]) -> int:
        return math.prod(shape) - (0 if self.slack else shape[0])

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """Rows that are too long are shortened to just below r, where ξ > 0 and they can move in all directions."""
        rows = θ.flatten(2)
        r, norm = self.r(rows), torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        if not self.slack:
            north = torch.zeros_like(rows)
            north[..., 0] = 1.0
            return r * torch.where(norm > 0, rows / norm.clamp_min(torch.finfo(rows.dtype).tiny), north)
        return self.normalise(torch.cat(self.above(rows), dim=-1))

    def above(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows, shortened if they are too long, and their slack ξ > 0."""
        r, norm = self.r(rows), torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        info = torch.finfo(rows.dtype)
        inner, outer = rows.new_tensor(1 - 4 * info.eps), rows.new_tensor(EDGE)
        share = torch.where(norm > r * (1 + SLIGHTLY), outer, inner)
        rows = rows * (r * share / norm.clamp_min(info.tiny)).clamp_max(1.0)
        return rows, (r * r - rows.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        rows = θ.flatten(2)
        r, norm = self.r(rows), torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        low = 0.0 if self.slack else 1 - 8 * eps
        held = (norm >= r * low) & (norm <= r * (1 + 8 * eps))
        return held.view(*held.shape[:2], *[1] * (θ.dim() - 2))

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        rows = θ.flatten(2)
        near = ((q[..., :-1] - rows).abs() <= eps * rows.abs()).all(-1, keepdim=True)
        if host.reads(q.device) and bool(near.all()):
            return q
        rows, ξ = self.above(rows)
        return torch.where(near, q, self.normalise(torch.cat((rows, torch.copysign(ξ, q[..., -1:])), dim=-1)))

    def normalise(self, q: torch.Tensor) -> torch.Tensor:
        q = q / largest(q)
        return q * (self.r(q) / torch.linalg.vector_norm(q, dim=-1, keepdim=True))

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return (q[..., :-1] if self.slack else q).reshape(-1, *shape)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        if θ is None:
            return q
        return torch.cat((θ.flatten(2), q[..., -1:]), dim=-1) if self.slack else θ.flatten(2)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        rows = v.flatten(2)
        return torch.nn.functional.pad(rows, (0, 1)) if self.slack else rows

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Orthogonal projection: along the radius."""
        return self.normalise(point)

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """v − q (q·v)/r²."""
        r = self.r(q)
        return v - q * ((q * v).sum(-1, keepdim=True) / (r * r))

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """Great circle: rotation in the plane of q and p by |p|h/r."""
        r, speed = self.r(q), norm(p)
        angle = speed * (h / r)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        along = h * torch.sinc(angle / math.pi)  # r sin(angle)/speed, also for speed 0
        moved = self.normalise(cosine * q + along * p)
        turned = cosine * p - sine * (speed / r) * q
        return moved, self.tangent(moved, turned)

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        r = self.r(point)
        return (point.square().sum(-1, keepdim=True) - r * r).abs().amax() if point.numel() else point.new_zeros(())


def largest(v: torch.Tensor) -> torch.Tensor:
    """The largest |entry| of each row. Rows are divided by it, since squares of large numbers overflow."""
    return v.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)


def norm(v: torch.Tensor) -> torch.Tensor:
    """|row|, also if its square overflows."""
    top = largest(v)
    return top * torch.linalg.vector_norm(v / top, dim=-1, keepdim=True)
