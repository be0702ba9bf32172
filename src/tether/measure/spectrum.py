"""The curvature of a loss at the parameters: eigenvalues of its Hessian."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tether.measure.batches import Loss
from tether.measure.each import each
from tether.measure.hessian import hessian, trained
from tether.measure.lanczos import Unconverged, extremes

__all__ = ["Spectrum", "Unconverged", "hessian_spectrum"]

ZERO = {torch.float64: 1e-8, torch.float32: 1e-5}  # what counts as zero, relative to the largest |λ|


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a Hessian, ascending, and how many are negative, zero and positive.

    Attributes:
        eigenvalues: all of them if `exact`; else the `bottom` smallest, then the largest.
        residuals: bounds on the error of each (0 if `exact`).
        negative: how many are below −cutoff; None if the known eigenvalues do not determine it.
        zero: how many are within ±cutoff, or None.
        positive: how many are above cutoff, or None.
        cutoff: what counts as zero: `zero` times the largest |λ| without regularization.
        parameters: how many in all.
        regularization: the λ of H + λI.
        loss: the mean loss, without ½λ|θ|².
        exact: from the whole matrix.
        bottom: how many of `eigenvalues` are the smallest of all.
        products: how many products with the Hessian it took.
    """

    eigenvalues: torch.Tensor
    residuals: torch.Tensor
    negative: int | None
    zero: int | None
    positive: int | None
    cutoff: float
    parameters: int
    regularization: float
    loss: float
    exact: bool
    bottom: int
    products: int

    @property
    def trace(self) -> float | None:
        """Sum of all eigenvalues if `exact`; `hessian_trace` estimates it where they are not all known."""
        return self.eigenvalues.sum().item() if self.exact else None

    @property
    def kind(self) -> str:
        """Is it the Hessian of a minimum or of a saddle, degenerate (zero eigenvalues) or hyperbolic (none)?"""
        signs = {_sign(x, self.cutoff) for x in self.eigenvalues.tolist()}
        shape = "saddle" if signs >= {-1, 1} else "minimum" if self.negative == 0 else "?"
        zeros = "degenerate" if self.zero or 0 in signs else "hyperbolic" if self.zero == 0 else "?"
        return f"{shape}, {zeros}"

    def regularized(self, regularization: float) -> Spectrum:
        """The spectrum of H + λI with another λ, with new counts."""
        shifted = self.eigenvalues + (regularization - self.regularization)
        negative, zero, positive = count(shifted, self.bottom, self.parameters, self.cutoff)
        return replace(
            self,
            eigenvalues=shifted,
            negative=negative,
            zero=zero,
            positive=positive,
            regularization=float(regularization),
        )

    def __str__(self) -> str:
        counts = {"negative": self.negative, "zero": self.zero, "positive": self.positive}
        known = [f"{x} {name}" for name, x in counts.items() if x is not None]
        low, high = (0.0 if abs(x) <= self.cutoff else x for x in self.eigenvalues[[0, -1]].tolist())
        shift = f" + {self.regularization:g} I" if self.regularization else ""
        span = f"{low:.4g} … {high:.4g}" if self.bottom else f"up to {high:.4g}"
        counted = ", ".join(known) or "counts not known"
        return f"Hessian{shift} of {self.parameters} parameters: λ {span}; {counted} ({self.kind})"

    def plot(self, ax: Any = None) -> Any:
        """Eigenvalues by rank, the largest first; what counts as zero is shaded."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        values = self.eigenvalues.flip(0)
        top = len(values) - self.bottom
        ranks = [*range(1, top + 1), *range(self.parameters - self.bottom + 1, self.parameters + 1)]
        ax.axhspan(-self.cutoff, self.cutoff, color="0.85")
        for sign, color in ((1, "C0"), (0, "0.5"), (-1, "C3")):
            chosen = [(i, x) for i, x in zip(ranks, values.tolist(), strict=True) if _sign(x, self.cutoff) == sign]
            if chosen:
                ax.plot(*zip(*chosen, strict=True), "o", ms=3, color=color, label={1: "> 0", 0: "0", -1: "< 0"}[sign])
        ax.set_yscale("symlog", linthresh=max(self.cutoff, 1e-12))
        ax.set_xlabel("rank")
        ax.set_ylabel("eigenvalue of the Hessian")
        ax.legend()
        return ax


@each()
def hessian_spectrum(
    model: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    top: int = 1,
    bottom: int = 1,
    regularization: float = 0.0,
    where: str = "*",
    dense: int = 2000,
    zero: float | None = None,
    tolerance: float = 1e-4,
    iterations: int = 1000,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    cache: bool | None = None,
    chunk: int | None = None,
) -> Spectrum:
    """Eigenvalues of the Hessian of the mean loss: is this point degenerate or hyperbolic?

    For small models the whole matrix is computed in double precision, and the counts are exact. For others Lanczos
    finds the ends of the spectrum, or raises `Unconverged`. A count is then given only if these ends determine it (if
    the smallest eigenvalue is positive, all are), and is None otherwise; `spectral_density` estimates it.

    >>> net = nn.Linear(3, 1, bias=False)
    >>> X = torch.tensor([[1.0, 2.0, 2.0]])
    >>> half_square = lambda output, target: (output - target).square().sum() / 2
    >>> print(hessian_spectrum(net, (X, torch.zeros(1, 1)), half_square))  # x xᵀ: one eigenvalue |x|² = 9
    Hessian of 3 parameters: λ 0 … 9; 0 negative, 2 zero, 1 positive (minimum, degenerate)
    >>> print(hessian_spectrum(net, (X, torch.zeros(1, 1)), half_square, regularization=0.1))
    Hessian + 0.1 I of 3 parameters: λ 0.1 … 9.1; 0 negative, 0 zero, 3 positive (minimum, hyperbolic)

    Args:
        model: measured in eval mode; frozen parameters do not count.
        data: a pair (inputs, targets), a loader or an iterable of batches; the same points at every pass.
        loss: ``loss(output, target)``, a mean over the batch; cross-entropy, or the model's own for dictionaries.
        top: how many of the largest eigenvalues, where the matrix is not computed.
        bottom: how many of the smallest.
        regularization: λ of H + λI, the Hessian with ½λ|θ|² added to the loss, as weight decay λ does.
        where: glob on parameter names, several joined by ``|``.
        dense: compute the whole matrix of up to so many parameters.
        zero: eigenvalues within ±zero·max|λ| of H count as zero; 1e-8 of the whole matrix, else the larger of
            1e-5 and the tolerance.
        tolerance: Lanczos stops when all residuals are below tolerance·max|λ|. The error of an isolated eigenvalue is
            of the order of its square.
        iterations: the largest number of products before `Unconverged` is raised.
        seed: the seed of the first vector; the global random state is not used.
        dtype: precision to compute in; float64 for the whole matrix, else the model's own, float32 at least.
        cache: keep the graph of the gradient of every batch; by default if there is only one batch.
        chunk: split a pair into batches of so many rows, to save memory.
    """
    check_counts(top=top, bottom=bottom, iterations=iterations, dense=dense)
    for name, x in (("tolerance", tolerance), ("zero", zero or 0.0), ("regularization", regularization)):
        if not (math.isfinite(x) and x >= 0):
            raise ValueError(f"{name}={x!r} must be finite and ≥ 0, e.g. {name}=1e-4")
    size = sum(x.numel() for x in trained(model, where).values())
    exact = size <= dense
    if not (exact or top + bottom):
        raise ValueError("top=0 and bottom=0 ask for no eigenvalue: e.g. top=1")
    dtype = torch.float64 if exact and dtype is None else dtype
    with hessian(model, data, loss, where=where, dtype=dtype, cache=cache, chunk=chunk) as H:
        if exact:
            values = torch.linalg.eigvalsh(H.matrix()).cpu().double()
            residuals, bottom, scale = torch.zeros_like(values), size, values.abs().max().item()
            zero = ZERO[H.dtype] if zero is None else zero
        else:
            like = torch.empty(size, dtype=H.dtype, device=H.device)
            generator = torch.Generator().manual_seed(seed)
            found = extremes(H, like, top, bottom, tolerance=tolerance, iterations=iterations, generator=generator)
            values, residuals, scale = found.values.cpu(), found.residuals.cpu(), found.scale
            zero = max(ZERO[torch.float32] if zero is None else zero, tolerance)
    values = values + regularization
    counts = count(values, bottom, size, zero * scale)
    return Spectrum(
        values, residuals, *counts, zero * scale, size, float(regularization), H.loss, exact, bottom, H.products
    )


def count(values: torch.Tensor, bottom: int, n: int, cutoff: float) -> tuple[int | None, int | None, int | None]:
    """How many of n eigenvalues are negative, zero and positive, as far as the known ones determine it.

    `values` are ascending: the `bottom` smallest of all, then the largest. The unknown ones lie between them.
    """
    signs = [_sign(x, cutoff) for x in values.tolist()]
    between = n - len(signs)
    low = signs[bottom - 1] if bottom else -1
    high = signs[bottom] if bottom < len(signs) else 1
    known = [signs.count(sign) + (between if low == sign == high else 0) for sign in (-1, 0, 1)]
    unsure = [between > 0 and low <= sign <= high and low != high for sign in (-1, 0, 1)]
    negative, zero, positive = (None if u else x for u, x in zip(unsure, known, strict=True))
    return negative, zero, positive


def _sign(x: float, cutoff: float) -> int:
    return 0 if abs(x) <= cutoff else 1 if x > 0 else -1


def check_counts(**counts: int) -> None:
    """Raise unless all are whole numbers, 0 or more."""
    for name, x in counts.items():
        if isinstance(x, bool) or not isinstance(x, int) or x < 0:
            raise ValueError(f"{name}={x!r} must be a whole number, 0 or more; e.g. {name}=1")
