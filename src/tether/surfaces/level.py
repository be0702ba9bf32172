"""Level: the surface g = 0 for any smooth function g."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Sequence

import torch

from tether.surfaces.closest import closest
from tether.surfaces.normals import Dense, Normals, linearised, owner_of, values_of
from tether.surfaces.surface import Surface, SurfaceError, Time, index, inverse

__all__ = ["Level"]

SLOWEST = 0.98  # a projection is given up if |g|² does not shrink by this factor
STEADY = 0.5  # with fixed normals |g| must shrink by this factor, or Newton's method takes over


class Level(Surface):
    """Σ = {(θ, ξ) : g(θ, ξ) = 0} for a smooth g (4.1), its Jacobian J by autograd.

    A point is the parameter, flattened, with the slack appended. Projections follow the rows of J at the start of the
    step (4.41) by Newton's method with a line search, or at its end (4.42); Π = I − Jᵀ(JJᵀ)⁻¹J (4.43 with errata 5); A
    is RATTLE or SHAKE.

    >>> import tether
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = tether.Optimizer([("weight", weight)], lr=0.1, on=Level(lambda w: w.prod() - 1))  # w₀w₁ = 1
    >>> round(weight.prod().item(), 5), opt.violation() < 1e-6
    (1.0, True)

    Args:
        g: a function of the parameter (and of the slack, if there is any) that returns the constraints as a tensor. A g
            with several arguments constrains all parameters of its part together, in their order. Arguments with a
            default do not count.
        slack: how many slack variables g takes, as its last argument.
        along: the normals that X, and every other step that leads off Σ, is projected along. ``"start"`` (4.41): those
            where the step begins. ``"end"`` (4.42): those where it ends, so that the result is a point of Σ nearest to
            where the step led; it exists for longer steps. A follows those at the start in both cases.
        scheme: of the letter A. ``"rattle"`` (1.56) leaves momenta along Σ. ``"shake"`` does not project them at the
            end: the same points, and momenta with a part across Σ until the next drift absorbs it.
        tolerance: largest allowed |g|; None chooses 5e-7 for float32 and 1e-13 for float64, or eps·|J||q| if that is
            larger, which is the change of g by rounding the point q.
        iterations: bound on Newton's method.
    """

    shapes: tuple[tuple[int, ...], ...] = ()
    _last: tuple[torch.Tensor, int, Normals] | None = None  # a point, its version, its normals
    absorbs = True
    looks = True  # whether the iteration has converged

    def __init__(
        self,
        g: Callable[..., torch.Tensor],
        slack: int = 0,
        tolerance: float | None = None,
        iterations: int = 50,
        along: str = "start",
        scheme: str = "rattle",
    ) -> None:
        if not callable(g):
            raise SurfaceError(f"Level: g={g!r} is not a function; e.g. Level(lambda w: w.square().sum() - 1)")
        if index(slack) < 0:
            raise SurfaceError(f"Level: slack={slack!r} must be a number of variables, 0 or more")
        if along not in ("start", "end"):
            raise SurfaceError(f"Level: along={along!r} must be 'start' (4.41) or 'end' (4.42)")
        if scheme not in ("rattle", "shake"):
            raise SurfaceError(f"Level: scheme={scheme!r} must be 'rattle' or 'shake'")
        if tolerance is not None and not (math.isfinite(tolerance) and tolerance > 0):
            raise SurfaceError(f"Level: tolerance={tolerance!r} must be finite and > 0; e.g. tolerance=1e-6")
        if index(iterations) < 1:
            raise SurfaceError(f"Level: iterations={iterations!r} must be 1 or more; e.g. iterations=50")
        self.normals, self.scheme = along, scheme
        self.g, self.variables, self.tolerance, self.iterations = g, index(slack), tolerance, iterations
        self.constraints: dict[tuple[tuple[int, ...], ...], int] = {}  # components of g, by its shapes
        self.owner: dict[tuple[tuple[int, ...], ...], torch.Tensor | None] = {}  # of each coordinate, if g's share none
        self.slack = self.variables > 0
        self.together = arguments(g) - self.slack > 1

    def __repr__(self) -> str:
        name = getattr(self.g, "__name__", "g")
        name = f"lambda {fingerprint(self.g)}" if name == "<lambda>" else name
        settings = [name, *([f"slack={self.variables}"] if self.variables else [])]
        settings += [] if self.normals == "start" else [f"along={self.normals!r}"]
        settings += [] if self.scheme == "rattle" else [f"scheme={self.scheme!r}"]
        return f"Level({', '.join(settings)})"

    def bind(self, shapes: Sequence[Sequence[int]]) -> Level:
        bound = copy.copy(self)
        bound.shapes = tuple(tuple(shape) for shape in shapes)
        return bound

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Nothing to check yet: `place` finds out whether g fits."""

    def dimension(self, shape: Sequence[int]) -> int:
        size = math.prod(shape) + self.variables
        if self.shapes not in self.constraints:
            self.constraints[self.shapes] = len(self.value(torch.zeros(size)))
        return size - self.constraints[self.shapes]

    def coordinates(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (math.prod(shape) + self.variables,)

    def value(self, q: torch.Tensor) -> torch.Tensor:
        """g at one point."""
        size = q.numel() - self.variables
        if len(self.shapes) == 1:
            θ = [(q[:size] if self.variables else q).view(self.shapes[0])]
        else:
            pieces = q[:size].split([math.prod(shape) for shape in self.shapes])
            θ = [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        out = self.g(*θ, q[size:]) if self.variables else self.g(*θ)
        if not isinstance(out, torch.Tensor):
            raise SurfaceError(f"{self!r}: g returned {type(out).__name__}; it must return a tensor of constraints")
        if not (out.is_floating_point() and out.numel()):
            raise SurfaceError(
                f"{self!r}: g returned a tensor of {out.dtype} with shape {tuple(out.shape)}; it must return one or "
                "more real constraints, computed from the parameter"
            )
        return out.reshape(-1)

    def values(self, q: torch.Tensor) -> torch.Tensor:
        """g at a stack of points."""
        with torch.no_grad():
            return values_of(self.value, q)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_last"}

    def jacobian(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """g and J at a stack of points."""
        values, normals = linearised(self.value, q, None)
        self.check_finite(values, normals)
        return values, normals.whole()

    def normals_at(self, q: torch.Tensor) -> Normals:
        """The normals at a stack of points. Those of the last one are kept: letters ask for them by turns."""
        last = self._last
        if last is not None and last[0] is q and last[1] == q._version:
            return last[2]
        values, normals = linearised(self.value, q, self.owner.get(self.shapes))
        if isinstance(normals, Dense):
            self.owner[self.shapes] = None  # constraints share a coordinate: do not ask again
        self.check_finite(values, normals)
        self._last = q, q._version, normals
        return normals

    def check_finite(self, values: torch.Tensor, normals: Normals) -> None:
        """Raise unless g and its derivative are finite."""
        if not bool(normals.finite() & values.isfinite().all()):
            raise SurfaceError(
                f"{self!r}: g or its derivative is inf or nan; keep the parameters where g is smooth: start elsewhere, "
                "or lower lr"
            )

    def place(self, θ: torch.Tensor, normals: torch.Tensor | None = None) -> torch.Tensor:
        """Solve for the slack at fixed θ; if that is not enough, find the nearest feasible point by Gauss–Newton."""
        q = self.nearest(torch.nn.functional.pad(θ.flatten(1), (0, self.variables), value=1.0))
        values, J = self.jacobian(q)
        self.constraints[self.shapes] = J.shape[1]
        self.owner[self.shapes] = owner_of(self.jacobian(q + 1e-3 * torch.linspace(-1, 1, q.shape[1]).to(q))[1])
        if not self.met(q, values, J):
            worst = values.abs().amax().item()
            raise SurfaceError(
                f"{self!r}: no point with g = 0 found near the start, |g| stays at {worst:.3g}; start the parameter "
                "closer to the surface, or check that g can be 0"
            )
        if J.shape[1] and J.shape[1] > J.shape[2]:
            raise SurfaceError(f"{self!r}: g has {J.shape[1]} components for {J.shape[2]} variables; it needs fewer")
        _, singular, directions = torch.linalg.svd(J, full_matrices=False)
        # Along the weakest normal g must change as its derivative predicts. For a square, e.g., the derivative vanishes
        # on Σ.
        reach = 1e-2 * torch.linalg.vector_norm(q, dim=1, keepdim=True).clamp_min(1e-3)
        change = self.values(q + reach * directions[:, -1]) - values
        flat = change.norm(dim=1) > 5 * singular[:, -1] * reach[:, 0]
        if bool((flat | ~(singular[:, -1] > 1e-6 * singular[:, 0].clamp_min(1e-30))).any()):
            raise SurfaceError(
                f"{self!r}: the Jacobian of g is rank-deficient at the start (smallest singular value "
                f"{singular[:, -1].min().item():.3g}): drop redundant constraints, or start off the singular point"
            )
        return q

    def nearest(self, q: torch.Tensor) -> torch.Tensor:
        """A point with g = 0 near q, by a change of the slack alone if that is enough."""
        if self.variables:
            free = torch.zeros_like(q)
            free[:, -self.variables :] = 1.0
            q = self.newton(q, free)
        return self.newton(q, torch.ones_like(q))

    def holds(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        """Also true for parameters within the tolerance, so that those that a step has left there are not moved."""
        held = torch.zeros(len(θ), dtype=torch.bool, device=θ.device)
        for i, point in enumerate(self.embed(q, θ).split(1)):
            held[i] = self.met(point, *self.jacobian(point))
        return super().holds(θ, q, eps) | held.view(-1, *[1] * (θ.dim() - 1))

    def follow(self, θ: torch.Tensor, q: torch.Tensor, eps: float) -> torch.Tensor:
        flat = θ.flatten(1)
        near = ((q[:, : flat.shape[1]] - flat).abs() <= eps * flat.abs()).all(1, keepdim=True)
        return q if bool(near.all()) else torch.where(near, q, self.nearest(self.embed(q, θ)))

    def newton(self, q: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """Newton's method for g = 0 in the free coordinates, with steps of least norm, halved until |g| decreases."""
        for _ in range(self.iterations):
            values, J = self.jacobian(q)
            if self.met(q, values, J, 0.1):
                break
            J = J * free.unsqueeze(1)
            q = self.search(q, values, torch.linalg.pinv(J.double()).to(J) @ values.unsqueeze(-1))
        return q

    def search(self, q: torch.Tensor, values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """q − t·step, with t halved for each point of the stack until |g| decreases."""
        t = torch.ones(len(q), 1, dtype=q.dtype, device=q.device)
        size = values.square().sum(-1, keepdim=True)
        for _ in range(12):
            trial = q - t * step.squeeze(-1)
            worse = ~(self.values(trial).square().sum(-1, keepdim=True) <= size)
            if not bool(worse.any()):
                break
            t = torch.where(worse, t / 2, t)
        return trial

    def lower(self, q: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return q[:, : q.shape[1] - self.variables].reshape(-1, *shape)

    def embed(self, q: torch.Tensor, θ: torch.Tensor | None = None) -> torch.Tensor:
        if θ is None:
            return q
        return torch.cat((θ.flatten(1), q[:, q.shape[1] - self.variables :]), dim=1)

    def lift(self, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(v.flatten(1), (0, self.variables))

    def project(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """(4.41) or (4.42)."""
        if self.normals == "start":
            return self.from_start(point, start)
        q, rest = closest(point, self.value, self.jacobian, self.met, 4 * self.iterations)
        if rest is not None:
            raise self.too_long(f"{rest:.3g} from the nearest point")
        return q

    def from_start(self, point: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """(4.41): q̄ − Jₙᵀλ with λ such that g = 0.

        λ is corrected by (JₙJₙᵀ)⁻¹g, which needs no further derivative, as long as |g| shrinks fast.
        """
        normals = self.normals_at(start)
        solve, limit = normals.solver(), self.limit(start, normals.sizes())
        q, before = point, math.inf
        for _ in range(self.iterations):
            values = self.values(q)
            excess = (values.abs() / limit).amax().item()
            if excess <= 1:
                return q
            if not excess < STEADY * before:
                break
            before = excess
            q = q - normals.back(solve(values))
        return self.by_newton(point, normals.whole().mT)

    def by_newton(self, point: torch.Tensor, normals: torch.Tensor) -> torch.Tensor:
        """The same by Newton's method with a line search, for longer steps."""
        q, before = point, torch.full((), math.inf, device="cpu")
        for _ in range(self.iterations):
            values, J = self.jacobian(q)
            sizes = torch.linalg.vector_norm(J, dim=-1)
            missed, size = ~self.within(q, values, sizes), values.square().sum(-1)
            if not bool(missed.any()):
                return q
            if not bool((missed & (size < SLOWEST * before)).any()):
                break  # there is no root: |g| stays where it is
            before = size
            λ = torch.linalg.lstsq((J @ normals).double(), values.unsqueeze(-1).double()).solution.to(q)
            q = self.search(q, values, normals @ λ)
        values, J = self.jacobian(q)
        missed = ~self.within(q, values, torch.linalg.vector_norm(J, dim=-1), 100)
        if not bool(missed.any()):
            return q
        raise self.too_long(f"|g| = {values.abs().amax().item():.3g}", missed)

    def too_long(self, what: str, which: torch.Tensor | None = None) -> SurfaceError:
        return SurfaceError(
            f"{self!r}: the step is too long for the surface, {what} after at most {self.iterations} iterations; lower "
            "lr, or the temperature",
            which,
        )

    def tangent(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """v − Jᵀ(JJᵀ)⁻¹J v."""
        normals = self.normals_at(q)
        return v - normals.back(normals.solver()(normals.across(v)))

    def drift(self, q: torch.Tensor, p: torch.Tensor, h: Time) -> tuple[torch.Tensor, torch.Tensor]:
        """RATTLE: q̄ = q + hp projected along J at q, p̄ = (q₁ − q)/h projected at q₁. SHAKE leaves out the last."""
        if isinstance(h, float) and h == 0:
            return q, p
        trial = q + h * p
        moved = self.from_start(trial, q)
        p = p + inverse(h) * (moved - trial)
        return moved, p if self.scheme == "shake" else self.tangent(moved, p)

    def met(self, q: torch.Tensor, values: torch.Tensor, J: torch.Tensor, times: float = 1.0) -> bool:
        """Is every |g| at most `times` the tolerance?"""
        return bool(self.within(q, values, torch.linalg.vector_norm(J, dim=-1), times).all())

    def within(self, q: torch.Tensor, values: torch.Tensor, sizes: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        """The points whose every |g| is at most `times` the tolerance; `sizes` are the norms of the rows of J."""
        return (values.abs() <= times * self.limit(q, sizes)).all(-1)

    def limit(self, q: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        """The tolerance of each constraint."""
        if self.tolerance is not None:
            return torch.full_like(sizes, self.tolerance)
        least = 5e-7 if q.dtype is not torch.float64 else 1e-13
        rounding = sizes * torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        return (torch.finfo(q.dtype).eps * rounding).clamp_min(least)

    def violation(self, point: torch.Tensor) -> torch.Tensor:
        return self.values(point).abs().amax()


def arguments(g: Callable[..., torch.Tensor]) -> int:
    """The number of arguments that g requires."""
    try:
        parameters = inspect.signature(g).parameters.values()
    except ValueError as error:
        name = getattr(g, "__name__", "g")
        raise SurfaceError(
            f"Level: the built-in {name} does not say how many arguments it takes; put it in a lambda, e.g. "
            "Level(lambda w: torch.linalg.det(w) - 1)"
        ) from error
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in plain and p.default is p.empty for p in parameters)


def fingerprint(g: Callable[..., torch.Tensor]) -> str:
    """A hash that distinguishes lambdas in a checkpoint: of their code, names and plain values."""
    code = getattr(g, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(g, "__closure__", None) or ()]
    used = [*(code.co_names if code else ()), *(code.co_consts if code else ()), *cells, *(g.__defaults__ or ())]
    plain = repr([code.co_code if code else b"", *(x for x in used if isinstance(x, int | float | str | tuple))])
    return hashlib.sha256(plain.encode()).hexdigest()[:8]
