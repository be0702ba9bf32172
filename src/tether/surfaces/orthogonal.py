"""Orthogonal: weight matrices with orthonormal columns, or orthonormal rows if there are fewer rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from tether import native
from tether.engine import host
from tether.surfaces.surface import Surface, SurfaceError, Time, index, inverse

__all__ = ["Orthogonal", "matrix_only", "polar", "polar_by_products"]

LONG = 256  # from so many rows on, sums are in double precision: of the squares, which do not cancel,
NARROW = 16  # and, up to so many columns, of all products
SLOWEST = 0.7  # the slowest contraction that the number of iterations provides for
LOOSE = 1e-2  # of |QᵀQ/c² − I|: with a fixed number of iterations, weights as near as this are left as they are
FLATTEST = 1e-4  # the smallest singular value, relative to the largest, that `polar_by_products` provides for


class Orthogonal(Surface):
    """The Stiefel manifold (4.4): QᵀQ = c² I, Q = W where W is tall, Wᵀ where it is wide (4.49).

    Conv weights are flattened to out × (in · kernel). A point is Q itself, of shape (…, r, s) with r ≥ s.

    A weight is flattened after its first axis, for every kind of layer. The weights of an LSTM or GRU hold all gates,
    stacked: ``weight_hh`` of an LSTM, 4h × h, has orthonormal columns as a whole, but no single gate is orthogonal. The
    weight of a transposed convolution, (in, out, …), is flattened to in × (out · kernel).

    Args:
        tolerance: largest allowed |QᵀQ/c² − I|, entry by entry; None chooses 3e-7 for float32, 3e-14 for float64.
        iterations: bound on the quasi-Newton iteration. Beyond it, or if the step is too long for it, the polar factor
            is taken instead, and `fallbacks` counts how often.
        scale: c.
        start: ``"project"`` takes the nearest orthogonal matrix (for trained weights), ``"random"`` a uniformly random
            one (Haar), as in the papers.
        fixed: K, for exactly K iterations as in Algorithms 1 and 2 of the ICML paper: no tolerance, no polar factor.
            Points are then near Σ only, and `opt.violation()` says how near. Π follows every letter, as it is printed.
    """

    def __init__(
        self,
        tolerance: float | None = None,
        iterations: int = 60,
        scale: float = 1.0,
        start: str = "project",
        fixed: int | None = None,
    ) -> None:
        if tolerance is not None and not (math.isfinite(tolerance) and tolerance > 0):
            raise SurfaceError(f"Orthogonal: tolerance={tolerance!r} must be finite and > 0; e.g. tolerance=1e-6")
        if index(iterations) < 1:
            raise SurfaceError(f"Orthogonal: iterations={iterations!r} must be 1 or more; e.g. iterations=60")
        if not (math.isfinite(scale) and scale > 0):
            raise SurfaceError(f"Orthogonal: scale={scale!r} must be finite and > 0; e.g. scale=1.0")
        if start not in ("project", "random"):
            raise SurfaceError(f"Orthogonal: start={start!r} must be 'project' or 'random'")
        if fixed is not None and index(fixed) < 1:
            raise SurfaceError(f"Orthogonal: fixed={fixed!r} must be a number of iterations, 1 or more; e.g. fixed=3")
        if fixed is not None and tolerance is not None:
            raise SurfaceError(
                f"Orthogonal: fixed={fixed!r} iterations look at no tolerance, and tolerance={tolerance!r} was given: "
                "leave one of them out"
            )
        self.tolerance, self.iterations, self.scale, self.start = tolerance, index(iterations), scale, start
        self.fixed = None if fixed is None else index(fixed)
        self.absorbs, self.prompt = fixed is None, fixed is not None
        self._hard: int | torch.Tensor = 0

    def __repr__(self) -> str:
        settings = [] if self.tolerance is None else [f"tolerance={self.tolerance!r}"]
        settings += [] if self.scale == 1 else [f"scale={self.scale!r}"]
        settings += [] if self.fixed is None else [f"fixed={self.fixed}"]
        return f"Orthogonal({', '.join(settings)})"

    @property
    def fallbacks(self) -> int:
        """How often the polar factor was taken; waits for the device that has counted."""
        return int(self._hard)

    def count(self, hard: torch.Tensor) -> None:
        """So many matrices took the polar factor."""
        self._hard = self._hard + (int(hard.sum()) if host.reads(hard.device) else hard.sum())

    def kernel(self, shape: Sequence[int], dtype: torch.dtype) -> native.Stiefel | None:
        if native.product(dtype) is None or self.fixed is not None:
            return None
        tall = shape[0] >= math.prod(shape[1:])
        return native.Stiefel(*self.sizes(shape), tall, self.tolerance_for(dtype), self.scale, self.iterations)

    def check(self, name: str, shape: Sequence[int]) -> None:
        matrix_only(self, name, shape)

    def extent(self) -> tuple[str, float | torch.Tensor]:
        return "scale", self.scale

    def dimension(self, shape: Sequence[int]) -> int:
        r, s = self.sizes(shape)
        return r * s - s * (s + 1) // 2

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.sizes(shape)

    @staticmethod
    def sizes(shape: Sequence[int]) -> tuple[int, int]:
        rows, columns = shape[0], math.prod(shape[1:])
        return max(rows, columns), min(rows, columns)

    def tall(self, θ: torch.Tensor) -> torch.Tensor:
        """W as a tall matrix."""
        m = θ.flatten(2)
        return m if m.shape[-2] >= m.shape[-1] else m.mT

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        if self.start == "random" and normals is not None:
            q, upper = torch.linalg.qr(self.tall(normals))
            # the signs make the factorisation unique and Q uniformly distributed
            return self.scale * q * torch.sign(torch.diagonal(upper, dim1=-2, dim2=-1)).unsqueeze(-2)
        return self.scale * polar(self.tall(θ))

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        limit = max(4 * self.tolerance_for(θ.dtype), 2 * eps) if self.fixed is None else LOOSE
        held = self.excess(self.tall(θ)).abs().amax((-2, -1)) <= limit
        return held.view(-1, *[1] * (θ.dim() - 1))

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return (q if shape[0] >= math.prod(shape[1:]) else q.mT).reshape(-1, *shape)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        return q if θ is None else self.tall(θ)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        return self.tall(v)

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """(4.53): the point of Σ on the normal through `start`, Q = Q̄ − Q_n Λ with Λ symmetric.

        The part of the step across Σ is taken off first. It leads to the same point, by more iterations.
        """
        if self.fixed is not None:
            return self.iterate(point, start, self.fixed)[0]
        return self.solve(start + self.tangent(start, point - start), start, point)[0]

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(4.15): V − ½ Q (VᵀQ + QᵀV)/c²."""
        s = self.product(q, v)
        return torch.baddbmm(v, q, s + s.mT, alpha=-0.5 / self.scale**2)

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """RATTLE (4.57): Q̄ = Q + hP, Q₁ = Q̄ − QΛ on Σ, P̄ = P − QΛ/h, P₁ = Π P̄ at Q₁."""
        if isinstance(h, float) and h == 0:
            return q, p
        moved, normal = self.solve(q + h * p, q)
        return moved, self.tangent(moved, p - inverse(h) * normal)

    def solve(
        self, point: torch.Tensor, start: torch.Tensor, led: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The projected point Q̄ − Q_nΛ and the correction Q_nΛ, by quasi-Newton (4.55).

        Q ← Q − Q_n Λ, Λ = ½(QᵀQ/c² − I). One iteration leaves an excess with entries of at most a(2v + a), with a the
        longest row of Λ and v the longest column of (Q − Q_n)/c. If that is below the tolerance, the Gram matrix of the
        last iterate is not needed. Matrices that are not there after `most` iterations take the polar factor instead;
        the excess of some grows, and nobody waits for them. It is that of the point where the step `led`.
        """
        led = point if led is None else led
        if self.fixed is not None:
            return self.iterate(point, start, self.fixed)
        if not host.reads(point.device):
            return self.solve_by_count(point, start, led)
        tolerance, floor = (
            self.tolerance_for(point.dtype),
            4 * torch.finfo(point.dtype).eps * math.sqrt(point.shape[-1]),
        )
        v = self.longest(point - start) / self.scale
        normal: torch.Tensor | None = None
        q, before = point, torch.full((), math.inf, device="cpu")
        for _ in range(self.most(point.dtype)):
            Λ = self.excess(q, 0.5)
            rows = Λ.square().sum(-1).amax(-1).sqrt_()
            a = rows.amax().item()
            # Rounding errors keep the rows of a large matrix from shrinking; the largest entry shows whether that is
            # the reason.
            size = 2 * max(map(abs, torch.stack(torch.aminmax(Λ)).tolist())) if tolerance < 2 * a < 1e-3 else 2 * a
            if normal is not None and size <= 2 * tolerance:
                return q, normal
            if not a < before.amax().item():
                if a <= floor and normal is not None:
                    return q, normal
                return self.apart(point, start, ~(rows < before) & ~(rows <= floor), led)
            step = start @ Λ
            q = q - step
            normal = step if normal is None else normal.add_(step)
            if size <= tolerance or a * (2 * v + a) <= tolerance:
                return q, normal
            v, before = v + a, rows
        hard = self.missed(q)
        if bool(hard.any()):
            return self.apart(point, start, hard.view(-1), led)
        return q, point - q

    def iterate(self, point: torch.Tensor, start: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The lines of Algorithm 1: for k = 0 to K − 1, Q ← Q − ½ Q_n (QᵀQ/c² − I)."""
        q = point
        for _ in range(count):
            q = q - start @ self.excess(q, 0.5)
        if host.reads(q.device) and not self.finite(q):
            raise SurfaceError(
                f"{self!r}: the step is too long, and {count} iterations lead to inf or nan; lower lr, or leave out "
                "fixed= for a step of any length"
            )
        return q, point - q

    def most(self, dtype: torch.dtype) -> int:
        """How many iterations there are for a matrix before it takes the polar factor, on every device.

        With c = 1, E = QᵀQ − I, Λ = E/2 and D = Q − Q_n, an iteration leaves E' = Λ² − DᵀQ_nΛ − ΛQ_nᵀD, so that
        ‖E'‖ ≤ (‖D‖ + ‖E‖/4)‖E‖. A step along Σ of length ‖D‖ = d begins with ‖E‖ = d². If the factor is at most 0.7, a
        tolerance t is reached after log(1/t)/log(1/0.7) iterations: 43 in float32, 60, the default bound, in float64.
        """
        enough = math.log(min(self.tolerance_for(dtype), SLOWEST)) / math.log(SLOWEST)
        return min(self.iterations, math.ceil(enough))

    def missed(self, q: torch.Tensor) -> torch.Tensor:
        """Which matrices are not on Σ."""
        limit = max(4 * self.tolerance_for(q.dtype), 4 * torch.finfo(q.dtype).eps * math.sqrt(q.shape[-1]))
        return ~(self.excess(q).abs().amax((-2, -1), keepdim=True) <= limit)

    def solve_by_count(
        self, point: torch.Tensor, start: torch.Tensor, led: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same without a look at any number: all iterations, then a choice by a mask.

        A matrix that has no polar factor, or is not finite, stays where it was.
        """
        q = point
        for _ in range(self.most(point.dtype)):
            q = torch.baddbmm(q, start, self.excess(q, 0.5), alpha=-1)
        hard = self.missed(q)
        nearest = self.scale * polar_by_products(led, self.product)
        found = ~self.missed(nearest)
        q = torch.where(hard, torch.where(found, nearest, start), q)
        if not torch.compiler.is_compiling():
            self.count(hard)
        return q, torch.where(hard & ~found, 0.0, point - q)

    def apart(
        self, point: torch.Tensor, start: torch.Tensor, hard: torch.Tensor, led: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Polar factors for the hard matrices of a stack; the others are solved without them."""
        if not self.finite(point):
            raise SurfaceError(f"{self!r}: the step leads to inf or nan; lower lr, or clip the gradient")
        q, easy = torch.empty_like(point), ~hard
        q[hard] = self.nearest(led[hard])
        self.count(hard)
        if bool(easy.any()):
            q[easy] = self.solve(point[easy], start[easy], led[easy])[0]
        return q, point - q

    # what looks at all rows of a matrix, some of which may be elsewhere

    def product(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """QᵀV."""
        return q.mT @ v

    def longest(self, v: torch.Tensor) -> float:
        """The norm of the longest column."""
        return math.sqrt(v.square().sum(-2).amax().item())

    def finite(self, point: torch.Tensor) -> bool:
        return bool(point.isfinite().all())

    def nearest(self, point: torch.Tensor) -> torch.Tensor:
        """The nearest point of Σ."""
        return self.scale * polar(point)

    def excess(self, q: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        """QᵀQ/c² − I."""
        long = q.dtype is torch.float32 and q.shape[-2] >= LONG
        x = q.double() if long and q.shape[-1] <= NARROW else q
        eye = identity(x.shape[-1], x.dtype, x.device)
        excess = torch.baddbmm(eye, x.mT, x, beta=-times, alpha=times / self.scale**2).to(q.dtype)
        if long and x is q:
            squares = q.double().square_().sum(-2)
            torch.diagonal(excess, dim1=-2, dim2=-1).copy_(times * (squares / self.scale**2 - 1))
        return excess

    def tolerance_for(self, dtype: torch.dtype) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 3e-7 if dtype is not torch.float64 else 3e-14

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        return self.excess(point.double()).abs().amax()


@lru_cache(maxsize=64)
def identity(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.eye(size, dtype=dtype, device=device)


def polar(x: torch.Tensor) -> torch.Tensor:
    """The nearest matrix with orthonormal columns, X(XᵀX)^(−½).

    By the eigenvalues of XᵀX, which are found in less time than singular values; of a matrix whose smallest singular
    value they do not tell well, by the singular value decomposition.
    """
    root = inverse_root(x.mT @ x)
    if root is None:
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        q = u @ v
    else:
        q = x @ root
    gram = (q.mT.double() @ q.double()).to(q)
    return 1.5 * q - 0.5 * q @ gram  # a step of Newton–Schulz corrects the last digits


def inverse_root(gram: torch.Tensor) -> torch.Tensor | None:
    """G^(−½) of positive definite matrices; None if one of them is too flat for its eigenvalues to tell."""
    try:
        values, vectors = torch.linalg.eigh(gram)
    except RuntimeError:  # LinAlgError, also where squares overflow
        return None
    if not bool((values[..., 0] > 1e-2 * values[..., -1]).all()):
        return None
    return vectors @ (values.rsqrt().unsqueeze(-1) * vectors.mT)


def polar_by_products(x: torch.Tensor, product: Callable[..., torch.Tensor] = lambda x, y: x.mT @ y) -> torch.Tensor:
    """The same by matrix products alone, their number known beforehand: Newton–Schulz, scaled (Chen, Chow 2014).

    x ← αx(3 − α²xᵀx)/2 takes singular values in [l, 1] to those in [l', 1], where l' is the smaller one of what l and 1
    become. α² = 3/(1 + l + l²) makes both equal. It is not larger than 1.5², since small differences of large numbers
    would lose digits. l begins with 1e-4; a matrix with a smaller singular value is not there at the end.
    """
    info = torch.finfo(x.dtype)
    norm = product(x, x).abs().sum(-1, keepdim=True).amax(-2, keepdim=True).clamp_min(info.tiny).sqrt()
    x, low = x / norm, FLATTEST
    while low < 1 - info.eps:
        α = min(1.5, math.sqrt(3 / (1 + low + low * low)))
        x = torch.baddbmm(x, x, product(x, x), beta=1.5 * α, alpha=-0.5 * α**3)
        low = min(1.0, *(α * end * (3 - (α * end) ** 2) / 2 for end in (low, 1.0)))
    return torch.baddbmm(x, x, product(x, x), beta=1.5, alpha=-0.5)


def matrix_only(surface: Surface, name: str, shape: Sequence[int]) -> None:
    """Raise for a parameter that is no matrix, or an empty one."""
    if len(shape) < 2 or 0 in shape:
        raise SurfaceError(
            f"{surface!r} on {name!r}: a parameter of shape {tuple(shape)} is no matrix; constrain weights, e.g. "
            "Part('*.weight', on=...), and leave biases free"
        )
