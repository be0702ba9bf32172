"""SpectralBall: no singular value of a weight matrix exceeds a radius, by means of a matrix of slack variables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tether.surfaces.circle import EDGE, SLIGHTLY, positive
from tether.surfaces.orthogonal import Orthogonal, matrix_only
from tether.surfaces.surface import Surface, SurfaceError, Time

__all__ = ["SpectralBall"]


class _Points(Orthogonal):
    """Where the points Q of a ball lie. Its errors name the ball."""

    def __repr__(self) -> str:
        return f"SpectralBall({self.scale!r})"


class SpectralBall(Surface):
    """Every singular value of W is at most r: WᵀW + SᵀS = r² I with a slack S, so that WᵀW ≤ r² I.

    It is to matrices what `Sphere` is to rows. W is tall, n × k (Wᵀ where the weight is wide; conv weights are
    flattened to out × (in · kernel)), and S is (k + 1) × k. A point is Q, W on top of S, and lies on the Stiefel
    manifold QᵀQ = r² I, whose maps move it (`Orthogonal`, with the scale r). So every word works, with noise too.

    The block W of a uniform Q has the density det(r² I − WᵀW)^{(d − k − 1)/2} where S has d rows (Khatri, 1970). With
    d = k + 1 that is constant: exp(−L/τ) is sampled with respect to the volume of the ball, and without a loss
    E W_ij² = r²/(n + k + 1). The price is a matrix of n + k + 1 rows instead of n.

    As on `Circle`, forces vanish at the bound with the slack: a singular value that has come near r leaves it slowly.
    At the start, singular values above r are cut to just below it.

    >>> import tether
    >>> net = torch.nn.Linear(6, 4)
    >>> opt = tether.Optimizer(net, [tether.Part("weight", on=SpectralBall(0.5)), tether.Part("bias")], lr=0.5)
    >>> for _ in range(20):
    ...     net.weight.grad, net.bias.grad = -torch.ones(4, 6), torch.ones(4)
    ...     opt.step()
    >>> bool(torch.linalg.svdvals(net.weight.detach())[0] <= 0.5 + 1e-5)
    True

    Args:
        radius: r, a number.
    """

    slack = True
    looks = True  # whether a point is that of the parameters
    absorbs = True

    def __init__(self, radius: float = 1.0) -> None:
        found = positive("SpectralBall", radius)
        if isinstance(found, torch.Tensor):
            raise SurfaceError("SpectralBall has one radius: give a number, e.g. SpectralBall(0.5)")
        self.radius = found
        self._stiefel = _Points(scale=found)

    def __repr__(self) -> str:
        return repr(self._stiefel)

    @property
    def fallbacks(self) -> int:
        """How often the polar factor was taken for a step that was too long."""
        return self._stiefel.fallbacks

    def check(self, name: str, shape: Sequence[int]) -> None:
        matrix_only(self, name, shape)

    def extent(self) -> tuple[str, float | torch.Tensor]:
        return "radius", self.radius

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, k = Orthogonal.sizes(shape)
        return n + k + 1, k

    def dimension(self, shape: Sequence[int]) -> int:
        return self._stiefel.dimension(self.coordinates(shape))

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """W, with singular values above r cut to just below it, and the slack that is nearest to r I."""
        w = self._stiefel.tall(θ)
        k = w.shape[-1]
        return self.completed(w, torch.eye(k + 1, k, dtype=w.dtype, device=w.device).expand(len(w), -1, -1))

    def completed(self, w: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
        """The points of these matrices whose slack S is nearest to the given one, SᵀS = r² I − WᵀW.

        With W = UΣVᵀ and C = V√(r² − Σ²)Vᵀ it is OC, with O the polar factor of the given slack times C. A matrix that
        is not finite has nan for a point.
        """
        near, lost = 1 - 4 * torch.finfo(w.dtype).eps, ~w.isfinite().flatten(1).all(1).view(-1, 1, 1)
        x = torch.where(lost, 0.0, w.double() / self.radius)  # no decomposition takes nan, and others stand beside it
        u, σ, v = torch.linalg.svd(x, full_matrices=False)
        cut = torch.where(σ > 1 + SLIGHTLY, σ.clamp_max(EDGE), σ.clamp_max(near))
        inside = (cut == σ).all(-1).view(-1, 1, 1)
        x = torch.where(inside, x, (u * cut.unsqueeze(-2)) @ v)
        root = v.mT @ ((1 - cut.square()).sqrt().unsqueeze(-1) * v)
        left, _, right = torch.linalg.svd(slack.double() @ root, full_matrices=False)
        points = torch.cat((x, left @ (right @ root)), dim=-2)
        return torch.where(lost, torch.nan, self.radius * points).to(w.dtype)

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        w = self._stiefel.tall(θ)
        n = w.shape[-2]
        near = (q[:, :n] - w).abs() <= eps * w.abs() + 8 * torch.finfo(q.dtype).eps * self.radius
        other = ~near.flatten(1).all(1)
        if not bool(other.any()):
            return q
        q = q.clone()
        q[other] = self.completed(w[other], q[other, n:])
        return q

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self._stiefel.lower(q[:, : Orthogonal.sizes(shape)[0]], shape)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        if θ is None:
            return q
        w = self._stiefel.tall(θ)
        return torch.cat((w, q[:, w.shape[-2] :]), dim=-2)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        """The loss does not depend on S."""
        w = self._stiefel.tall(v)
        return torch.nn.functional.pad(w, (0, 0, 0, w.shape[-1] + 1))

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return self._stiefel.project(point, start)

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._stiefel.tangent(q, v)

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        return self._stiefel.drift(q, p, h)

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        """The largest entry of |QᵀQ/r² − I|."""
        return self._stiefel.violation(point)
