"""The spectral norm of matrices: the direction of a step has all its singular values near 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import Write, write
from tether.engine.flat import unless
from tether.engine.sums import per_replica
from tether.metrics.aligned import aligned
from tether.metrics.metric import Metric, MetricError, setting
from tether.surfaces import Orthogonal, Surface
from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.blocks import Block

__all__ = ["Spectral", "orthogonalised"]

EPS = 1e-7
COEFFICIENTS = (3.4445, -4.775, 2.0315)
SCALES = ("original", "match_rms_adamw", "none")


class Spectral(Metric):
    """Steepest descent in the spectral norm (Bernstein and Newhouse, 2024): θ ← (1 − hλ)θ − h s UVᵀ.

    The step −hv that a word would make, v = UΣVᵀ, becomes the matrix of spectral norm h s that is most aligned with it.
    With the word MV it is Muon (Jordan et al., 2024), with X it has no momentum. UVᵀ comes from `orthogonalised`, in
    float32 or wider, for all matrices of one shape at once. It does not depend on the length of v, unless that is below
    10⁻⁷. Weights of convolutions are matrices out × (in · kernel).

    On `Orthogonal` it is manifold Muon (Bernstein, 2025): the step is the tangent matrix of spectral norm h s that is
    most aligned with v, found by at most ten matrix signs (`tether.metrics.aligned`), and the projection of the surface
    follows. Momenta are those of the surrounding space.

    A word with noise is refused: the noise would be orthogonalised too. So is a parameter without two axes; give it a
    part of its own, as `tether.methods.muon` does.

    >>> import tether
    >>> net = torch.nn.Linear(4, 2, bias=False)
    >>> opt = tether.Optimizer(net, lr=0.5, metric=Spectral(steps=12, coefficients=(1.5, -0.5, 0.0)))
    >>> start = net.weight.detach().clone()
    >>> net(torch.eye(4)).square().sum().backward()
    >>> opt.step()
    >>> [round(value, 3) for value in torch.linalg.svdvals(net.weight.detach() - start).tolist()]
    [0.5, 0.5]

    Args:
        steps: of the iteration; 5 in the publications, which leaves singular values between about 0.7 and 1.2.
        scale: s for a matrix of A rows and B columns: ``"original"`` is √max(1, A/B), ``"match_rms_adamw"`` is
            0.2 √max(A, B), ``"none"`` is 1.
        decay: λ, a weight decay that is no part of the gradient.
        coefficients: a, b, c of the iteration X ← aX + bXXᵀX + c(XXᵀ)²X.
    """

    leaves = True
    guides = True

    def __init__(
        self,
        steps: int = 5,
        scale: str = "original",
        decay: float = 0.0,
        coefficients: tuple[float, float, float] = COEFFICIENTS,
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise MetricError(f"Spectral: steps={steps!r} must be a whole number, 1 or more; e.g. steps=5")
        if scale not in SCALES:
            raise MetricError(f"Spectral: scale={scale!r} must be one of {', '.join(map(repr, SCALES))}")
        self.decay = setting("Spectral: decay", decay, "finite and ≥ 0", lambda x: 0 <= x < math.inf, 0.1)
        self.steps, self.scale, self.coefficients = steps, scale, tuple(coefficients)

    def __repr__(self) -> str:
        """Name and settings, those that are not the usual ones."""
        usual = {"scale": "original", "decay": 0.0, "coefficients": COEFFICIENTS}
        more = [f", {name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value]
        return f"Spectral({self.steps}{''.join(more)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spectral) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        word, τ = parse(row["word"]), row["temperature"]
        if word.needs_closure:
            raise MetricError(f"{part}: {self!r} needs a word with one gradient per step, not {row['word']!r}")
        if isinstance(row["on"], Surface) and not isinstance(row["on"], Orthogonal):
            raise MetricError(
                f"{part}: {self!r} and {row['on']!r} cannot be combined: choose one of metric= and on=, or "
                "on=tether.Orthogonal()"
            )
        if isinstance(row["on"], Surface) and self.decay:
            raise MetricError(
                f"{part}: {self!r} would shrink weights, and {row['on']!r} keeps their length: use Spectral(decay=0)"
            )
        if "σ" in word.needs or ("R" in word.needs and (isinstance(τ, torch.Tensor) or τ != 0)):
            raise MetricError(
                f"{part}: {self!r} would turn the noise of {row['word']!r} into a part of the direction: use "
                "temperature=0, or a word without noise such as 'MV'"
            )

    def enter(self, block: Block, measured: Mapping[str, Any], whole: bool) -> Block:
        """Let the word move a copy that starts at 0: what it arrives at is the step."""
        thin = [name for name, x in zip(block.names, block.params, strict=True) if x.dim() < 2 + block.lanes.batched]
        if thin:
            raise MetricError(
                f"{self!r} measures matrices, and {thin[0]!r} is none: give it a part of its own without metric=, as "
                "tether.methods.muon does"
            )
        return block.beside([torch.zeros_like(x) for x in block.θ], [p.clone() for p in block.p])

    def leave(self, block: Block, h: Any) -> list[Write]:
        """The writes that make this step with its singular values at h s; momenta are those of the word."""
        for one in block.writes():  # to copies alone
            one()
        home, momenta = block.pick(block.params), block.pick(block.momenta)
        start = [x.detach() for x in home]
        if isinstance(block.surface, Orthogonal):
            return self.along(block, block.surface, h)
        steps = self.directions(block.θ, h, block.lanes.batched)
        if self.decay:
            left = 1 - h * self.decay
            shares = [left.to(x).view(-1, *[1] * (x.dim() - 1)) if per_replica(h) else left for x in start]
            start = [x * share for x, share in zip(start, shares, strict=True)]
        values = [*torch._foreach_add(start, steps), *block.p] if start else []
        both = [*home, *momenta]
        return [write(torch._foreach_copy_, both, unless(block.bad, both, values))] if home else []

    def directions(self, steps: Sequence[torch.Tensor], h: Any, batched: bool) -> list[torch.Tensor]:
        """hs UVᵀ for each step, those of one shape together; if `batched`, the first axis is the replica."""
        found = list(steps)
        for which in same_shape(steps):
            first = steps[which[0]]
            wide = as_matrices([steps[i] for i in which], batched)
            each = h.to(wide).repeat(len(which)).view(-1, 1, 1) if per_replica(h) else h
            flat = orthogonalised(wide, self.steps, self.coefficients, EPS * each)
            flat = (flat * (self.factor(*flat.shape[1:]) * each)).to(first.dtype)
            for i, step in zip(which, flat.view(len(which), *first.shape), strict=True):
                found[i] = step
        return found

    def along(self, block: Block, surface: Orthogonal, h: Any) -> list[Write]:
        """The writes of a step along the surface, weights of one shape together; duals are where the next begins."""
        home, momenta, batched = block.pick(block.params), block.pick(block.momenta), block.lanes.batched
        owners = block.pick(block.home)
        writes: list[Write] = []
        new = [x.detach() for x in home]
        for which in same_shape(new):
            start, steps = (as_matrices([xs[i] for i in which], batched) for xs in (new, block.θ))
            each = h.to(start).repeat(len(which)).view(-1, 1, 1) if per_replica(h) else h
            w, v = surface.tall(start), surface.tall(steps)
            duals = [self.dual(block, owners[i], w) for i in which]
            dual = torch.stack(duals).view(-1, *w.shape[-1:] * 2)
            a, dual, _ = aligned(w / surface.scale, v, dual)
            length = torch.linalg.matrix_norm(v, keepdim=True)
            a = a * (length / torch.as_tensor(EPS * each).clamp_min(torch.finfo(a.dtype).tiny)).clamp_max(1.0)
            moved = surface.project(w + self.factor(*start.shape[1:]) * each * a, w)
            values = surface.lower(moved, home[which[0]].shape[batched:]).view(len(which), *home[which[0]].shape)
            for i, value, one, kept in zip(which, values, dual.view(len(which), *duals[0].shape), duals, strict=True):
                new[i] = value.to(home[i].dtype)
                writes.append(write(kept.copy_, unless(block.bad, [kept], [one])[0]))
        both = [*home, *momenta]
        return [write(torch._foreach_copy_, both, unless(block.bad, both, [*new, *block.p])), *writes] if home else []

    def dual(self, block: Block, owner: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Λ of the last step, from the state; zeros to begin with."""
        lead = owner.shape[: block.lanes.batched]
        shape = (*lead, *w.shape[-1:] * 2)
        own = block.kept.state[owner]
        if own.get("dual") is None or own["dual"].shape != shape:
            own["dual"] = torch.zeros(shape, dtype=w.dtype, device=w.device)
        found: torch.Tensor = own["dual"]
        return found

    def factor(self, rows: int, columns: int) -> float:
        """s."""
        if self.scale == "original":
            return math.sqrt(max(1.0, rows / max(columns, 1)))
        return 0.2 * math.sqrt(max(rows, columns)) if self.scale == "match_rms_adamw" else 1.0


def same_shape(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of tensors of one shape and dtype, together."""
    found: dict[Any, list[int]] = {}
    for i, x in enumerate(tensors):
        found.setdefault((x.shape, x.dtype), []).append(i)
    return list(found.values())


def as_matrices(tensors: Sequence[torch.Tensor], batched: bool) -> torch.Tensor:
    """Weights of one shape as matrices, number × rows × columns, in float32 or wider; replicas one after the other."""
    x = torch.stack(list(tensors))
    x = (x.flatten(0, 1) if batched else x).flatten(2)
    return x.to(torch.promote_types(x.dtype, torch.float32))


def orthogonalised(
    matrices: torch.Tensor, steps: int = 5, coefficients: Sequence[float] = COEFFICIENTS, least: Any = 0.0
) -> torch.Tensor:
    """UVᵀ of each matrix UΣVᵀ, roughly, by the iteration X ← aX + bXXᵀX + c(XXᵀ)²X from X = M/‖M‖ on.

    The iteration maps every singular value σ to aσ + bσ³ + cσ⁵ and needs nothing but products (Jordan et al., 2024).
    With (1.5, −0.5, 0) it is that of Newton and Schulz, which converges to UVᵀ. A matrix of zeros stays one.

    >>> matrices = torch.tensor([[[3.0, 0.0], [0.0, 2.0]]])
    >>> orthogonalised(matrices, steps=10, coefficients=(1.5, -0.5, 0.0)).round(decimals=4)
    tensor([[[1., 0.],
             [0., 1.]]])

    Args:
        matrices: number × rows × columns.
        steps: how many iterations.
        coefficients: a, b, c.
        least: matrices of a smaller norm are divided by this instead of their norm; a number, or one for each.
    """
    a, b, c = coefficients
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    if not x.numel():
        return matrices
    tiny = torch.finfo(x.dtype).tiny
    top = x.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)  # squares of large or small numbers leave the range
    norm = torch.linalg.matrix_norm(x / top, keepdim=True).clamp_min(tiny)
    least = torch.as_tensor(least, dtype=x.dtype, device=x.device).view(-1, 1, 1).clamp_min(tiny)
    x = x / top * ((top * norm / least).clamp_max(1.0) / norm)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
