"""Sphere: the norm of the incoming weights of every unit, or of a whole weight, is bounded or fixed."""

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

    With ``per="tensor"`` the whole weight lies on one sphere, |θ| = r: only its direction is learned.

    >>> opt = tether.Optimizer(net, on=Sphere(per="tensor"), lr=0.1)
    >>> round(net.weight.norm().item(), 5)
    1.0

    Args:
        radius: a number, or a tensor with one radius per row. None keeps the norm that each sphere's weights have at
            the start; it is part of the state, so that a checkpoint restores it.
        slack: False leaves out ξ: every row has norm r exactly. The default is True for rows with a radius, else False.
        per: ``"row"``, or ``"tensor"``: one sphere for all entries of a parameter, biases included.
    """

    reversible = True

    def __init__(self, radius: float | torch.Tensor | None = 1.0, slack: bool | None = None, per: str = "row") -> None:
        if per not in ("row", "tensor"):
            raise SurfaceError(f"Sphere: per={per!r} must be 'row' or 'tensor'")
        if radius is None and slack:
            raise SurfaceError(
                "Sphere(None, slack=True): radius=None keeps the norm, so there is no slack; leave it out"
            )
        self.per = per
        self.keeps = radius is None  # a norm of its own, held as the last coordinate of the point
        self.bounds = self.per == "row" and not self.keeps if slack is None else slack
        self.slack = self.keeps or self.bounds
        self.radius = 1.0 if radius is None else positive("Sphere", radius)
        if per == "tensor" and isinstance(self.radius, torch.Tensor):
            raise SurfaceError("Sphere(per='tensor') has one radius: give a number, e.g. Sphere(0.5, per='tensor')")

    def __repr__(self) -> str:
        radius = "None" if self.keeps else shown(self.radius)
        usual = self.bounds == (self.per == "row" and not self.keeps)
        slack = "" if usual else f", slack={self.bounds}"
        return f"Sphere({radius}{slack}{'' if self.per == 'row' else ', per=' + repr(self.per)})"

    def rows(self, θ: torch.Tensor) -> torch.Tensor:
        """The vectors that lie on spheres: tensors × rows × columns, or tensors × entries."""
        return θ.flatten(2 if self.per == "row" else 1)

    def parts(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The vectors of points on the spheres, and their radii."""
        return (q[..., :-1], q[..., -1:]) if self.keeps else (q, self.r(q))

    def point(self, w: torch.Tensor, r: torch.Tensor | float) -> torch.Tensor:
        """The points of such vectors."""
        return torch.cat((w, r), dim=-1) if self.keeps and isinstance(r, torch.Tensor) else w

    def r(self, q: torch.Tensor) -> torch.Tensor | float:
        return self.radius.to(q).unsqueeze(-1) if isinstance(self.radius, torch.Tensor) else self.radius

    def restricted(self, shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int]) -> Sphere | None:
        if self.per == "tensor" or tuple(sizes[1:]) != tuple(shape[1:]):
            return None
        if not isinstance(self.radius, torch.Tensor):
            return self
        return Sphere(self.radius.expand(shape[0])[offset[0] : offset[0] + sizes[0]], self.bounds)

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Bounded | None:
        if not self.bounds or self.per == "tensor":  # else the point is the parameter itself, and its norm
            return None
        rows = shape[0]
        radii = self.radius.expand(rows).tolist() if isinstance(self.radius, torch.Tensor) else [self.radius] * rows
        return native.Bounded(rows, math.prod(shape[1:]), 1, array("d", radii))

    def check(self, name: str, shape: Sequence[int]) -> None:
        if self.per == "tensor":
            if math.prod(shape) + self.bounds < 2:
                raise SurfaceError(
                    f"{self!r} on {name!r}: a parameter of shape {tuple(shape)} has no direction to learn; constrain "
                    "weights, e.g. Part('*.weight', on=...)"
                )
            return
        if len(shape) < 2:
            raise SurfaceError(
                f"{self!r} on {name!r}: a parameter of shape {tuple(shape)} has no rows; constrain weights, e.g. "
                "Part('*.weight', on=...), and leave biases free"
            )
        fits(self, name, shape, self.radius, shape[:1])

    def extent(self) -> tuple[str, float | torch.Tensor]:
        return "radius", self.radius

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        lead = tuple(shape[:1]) if self.per == "row" else ()
        return *lead, math.prod(shape[len(lead) :]) + self.slack

    def dimension(self, shape: Sequence[int]) -> int:
        return math.prod(shape) - (0 if self.bounds else shape[0] if self.per == "row" else 1)

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """Rows that are too long are shortened to just below r, where ξ > 0 and they can move in all directions."""
        rows = self.rows(θ)
        if self.keeps:
            length = norm(rows)
            if normals is not None and not bool((length > 0).all()):  # at the start, when one may look
                raise SurfaceError(
                    f"{self!r}: weights of norm 0 have no direction, and no step can leave 0; initialise them, or "
                    f"choose the radius, e.g. Sphere(1.0, slack=False, per={self.per!r})"
                )
            return torch.cat((rows, length), dim=-1)
        if not self.bounds:
            length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            north = torch.zeros_like(rows)
            north[..., 0] = 1.0
            return self.r(rows) * torch.where(length > 0, rows / length.clamp_min(torch.finfo(rows.dtype).tiny), north)
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
        rows = self.rows(θ)
        r, norm = self.parts(q)[1], torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        low = 0.0 if self.bounds else 1 - 8 * eps
        held = (norm >= r * low) & (norm <= r * (1 + 8 * eps))
        return held.view(*held.shape[:-1], *[1] * (θ.dim() - held.dim() + 1))

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        rows = self.rows(θ)
        near = ((q[..., :-1] - rows).abs() <= eps * rows.abs()).all(-1, keepdim=True)
        if host.reads(q.device) and bool(near.all()):
            return q
        if self.keeps:  # weights that somebody wrote are brought to the norm that was kept
            return torch.where(near, q, self.normalise(torch.cat((rows, q[..., -1:]), dim=-1)))
        rows, ξ = self.above(rows)
        return torch.where(near, q, self.normalise(torch.cat((rows, torch.copysign(ξ, q[..., -1:])), dim=-1)))

    def normalise(self, q: torch.Tensor) -> torch.Tensor:
        w, r = self.parts(q)
        w = w / largest(w)
        return self.point(w * (r / torch.linalg.vector_norm(w, dim=-1, keepdim=True)), r)

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return (q[..., :-1] if self.slack else q).reshape(-1, *shape)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        if θ is None:
            return q
        return torch.cat((self.rows(θ), q[..., -1:]), dim=-1) if self.slack else self.rows(θ)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        rows = self.rows(v)
        return torch.nn.functional.pad(rows, (0, 1)) if self.slack else rows

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Orthogonal projection: along the radius."""
        return self.normalise(self.point(self.parts(point)[0], self.parts(start)[1]))

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """v − q (q·v)/r²."""
        (w, r), u = self.parts(q), self.parts(v)[0]
        u = u - w * ((w * u).sum(-1, keepdim=True) / (r * r))
        return torch.nn.functional.pad(u, (0, 1)) if self.keeps else u

    def shadow_(self, q: torch.Tensor, v: torch.Tensor) -> None:
        """The same of the rows alone: what lies in parameter space has no part along the slack variable."""
        w, r, u = q[..., :-1] if self.slack else q, self.parts(q)[1], self.rows(v)
        u.addcmul_(w, (w * u).sum(-1, keepdim=True) / (r * r), value=-1)

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """Great circle: rotation in the plane of q and p by |p|h/r."""
        (w, r), u = self.parts(q), self.parts(p)[0]
        speed = norm(u)
        angle = speed * (h / r)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        along = h * torch.sinc(angle / math.pi)  # r sin(angle)/speed, also for speed 0
        moved = self.normalise(self.point(cosine * w + along * u, r))
        turned = cosine * u - sine * (speed / r) * w
        return moved, self.tangent(moved, self.point(turned, r))

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        w, r = self.parts(point)
        return (w.square().sum(-1, keepdim=True) - r * r).abs().amax() if point.numel() else point.new_zeros(())


def largest(v: torch.Tensor) -> torch.Tensor:
    """The largest |entry| of each row. Rows are divided by it, since squares of large numbers overflow."""
    return v.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)


def norm(v: torch.Tensor) -> torch.Tensor:
    """|row|, also if its square overflows."""
    top = largest(v)
    return top * torch.linalg.vector_norm(v / top, dim=-1, keepdim=True)
