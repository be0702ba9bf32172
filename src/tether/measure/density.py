"""The spectral density and the trace of a Hessian that is too large to compute, from random probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.batches import Loss
from tether.measure.each import each
from tether.measure.hessian import hessian, trained
from tether.measure.lanczos import quadrature
from tether.measure.spectrum import ZERO, check_counts

__all__ = ["Density", "Trace", "hessian_trace", "spectral_density"]


@dataclass(frozen=True)
class Density:
    """The density of the eigenvalues of a Hessian, and the fractions that are negative, zero and positive.

    Attributes:
        grid: the points at which the density is given.
        density: of an eigenvalue drawn at random, broadened by a Gaussian of standard deviation `width`.
        standard_error: of the density, over probes (0 if `exact`).
        negative: fraction of eigenvalues below −cutoff; an estimate unless `exact`.
        zero: fraction within ±cutoff.
        positive: fraction above cutoff.
        errors: the standard errors of these three fractions.
        cutoff: what counts as zero.
        width: of the Gaussian.
        parameters: how many eigenvalues there are.
        exact: from all eigenvalues.
        probes: the number of random vectors (0 if `exact`).
    """

    grid: torch.Tensor
    density: torch.Tensor
    standard_error: torch.Tensor
    negative: float
    zero: float
    positive: float
    errors: tuple[float, ...]
    cutoff: float
    width: float
    parameters: int
    exact: bool
    probes: int

    def __str__(self) -> str:
        values = {"negative": self.negative, "zero": self.zero, "positive": self.positive}
        errors = ["" if self.exact else f" ± {100 * error:.1g}" for error in self.errors]
        parts = [f"{100 * x:.3g}{error} % {name}" for (name, x), error in zip(values.items(), errors, strict=True)]
        source = "exact" if self.exact else f"estimated from {self.probes} probes"
        return f"Hessian of {self.parameters} parameters: {', '.join(parts)} ({source}; zero is ±{self.cutoff:.1g})"

    def plot(self, ax: Any = None) -> Any:
        """The density on a logarithmic scale, with its standard error."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        low, high = self.density - self.standard_error, self.density + self.standard_error
        floor = 1e-3 / self.parameters / self.width
        ax.fill_between(self.grid, low.clamp_min(floor), high.clamp_min(floor), color="C0", alpha=0.3, lw=0)
        ax.semilogy(self.grid, self.density.clamp_min(floor), color="C0")
        ax.set_ylim(bottom=floor)
        ax.set_xlabel("eigenvalue of the Hessian")
        ax.set_ylabel("density" if self.exact else f"density ({self.probes} probes)")
        return ax


@dataclass(frozen=True)
class Trace:
    """The trace of a Hessian: the sum of its eigenvalues.

    Attributes:
        value: the trace, or its estimate.
        standard_error: of the estimate; 0 if `exact`.
        parameters: how many eigenvalues it is the sum of.
        exact: from the whole matrix.
        samples: vᵀHv of each probe (none if `exact`).
    """

    value: float
    standard_error: float
    parameters: int
    exact: bool
    samples: torch.Tensor

    def __str__(self) -> str:
        value = f"{self.value:.6g}" if self.exact else f"{self.value:.4g} ± {self.standard_error:.2g}"
        return f"trace of the Hessian of {self.parameters} parameters: {value}"

    def plot(self, ax: Any = None) -> Any:
        """The running mean of the probes with its standard error; a line if the trace is exact."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.axhline(self.value, color="0.5", lw=1)
        if not self.exact:
            counts = torch.arange(1, len(self.samples) + 1)
            means, errors = self.samples.cumsum(0) / counts, self.samples.std() / counts.sqrt()
            ax.errorbar(counts, means, errors, color="C0", capsize=2)
        ax.set_xlabel("probes")
        ax.set_ylabel("trace of the Hessian")
        return ax


@each()
def spectral_density(
    model: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    probes: int = 8,
    steps: int = 80,
    width: float | None = None,
    points: int = 400,
    where: str = "*",
    dense: int = 2000,
    zero: float | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    cache: bool | None = None,
    chunk: int | None = None,
) -> Density:
    """Density of the eigenvalues of the Hessian of the mean loss, by stochastic Lanczos quadrature.

    For a random vector v, vᵀf(H)v/|v|² = Σ τ f(θ) with the nodes θ and weights τ of Lanczos from v; its mean is the
    mean of f over the eigenvalues. For small models all eigenvalues are computed instead.

    Args:
        model: measured in eval mode; frozen parameters do not count.
        data: a pair (inputs, targets), a loader or an iterable of batches; the same points at every pass.
        loss: ``loss(output, target)``, a mean over the batch; cross-entropy, or the model's own for dictionaries.
        probes: how many random vectors, 2 or more.
        steps: steps of Lanczos for each; more of them resolve closer eigenvalues.
        width: standard deviation of the Gaussian that represents an eigenvalue; by default 1 % of the range.
        points: the number of points of the grid.
        where: glob on parameter names, several joined by ``|``.
        dense: compute all eigenvalues of up to so many parameters.
        zero: eigenvalues within ±zero·max|λ| count as zero; 1e-8 if all are computed, else 1e-3.
        seed: the seed of the probes; the global random state is not used.
        dtype: precision to compute in; float64 for the whole matrix, else the model's own, float32 at least.
        cache: keep the graph of the gradient of every batch; by default if there is only one batch.
        chunk: split a pair into batches of so many rows, to save memory.
    """
    check_counts(probes=probes, steps=steps, points=points, dense=dense)
    if width is not None and not (math.isfinite(width) and width > 0):
        raise ValueError(f"width={width!r} must be finite and > 0, e.g. width=0.1")
    size = sum(x.numel() for x in trained(model, where).values())
    exact = size <= dense
    if not exact and (probes < 2 or steps < 2):
        raise ValueError(f"probes={probes} and steps={steps} must be 2 or more, e.g. probes=8, steps=80")
    dtype = torch.float64 if exact and dtype is None else dtype
    with hessian(model, data, loss, where=where, dtype=dtype, cache=cache, chunk=chunk) as H:
        if exact:
            nodes = torch.linalg.eigvalsh(H.matrix()).cpu().double()
            rules = [(nodes, torch.full_like(nodes, 1 / size))]
        else:
            generator = torch.Generator().manual_seed(seed)
            starts = (torch.randn(size, generator=generator).to(H.device, H.dtype) for _ in range(probes))
            rules = [(θ.cpu(), τ.cpu()) for θ, τ in (quadrature(H, v, steps) for v in starts)]
    low, high = (pick(torch.stack([pick(θ) for θ, _ in rules])).item() for pick in (torch.min, torch.max))
    scale = max(abs(low), abs(high))
    cutoff = scale * (zero if zero is not None else ZERO[H.dtype] if exact else 1e-3)
    width = width or 0.01 * ((high - low) or scale) or 1.0
    grid = torch.linspace(low - 5 * width, high + 5 * width, points, dtype=torch.float64)

    def mean(f: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean of f over the eigenvalues, with its standard error."""
        found = torch.stack([f(θ) @ τ for θ, τ in rules])
        spread = torch.zeros_like(found[0]) if exact else found.std(0) / math.sqrt(probes)
        return found.mean(0), spread

    def bell(θ: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * ((grid[:, None] - θ) / width) ** 2) / (width * math.sqrt(2 * math.pi))

    def fraction(sign: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda θ: (torch.where(θ.abs() <= cutoff, 0, θ.sign()) == sign).double()

    density, standard_error = mean(bell)
    (negative, zeros, positive), errors = torch.tensor([mean(fraction(sign)) for sign in (-1, 0, 1)]).mT.tolist()
    return Density(
        grid,
        density,
        standard_error,
        negative,
        zeros,
        positive,
        tuple(errors),
        cutoff,
        width,
        size,
        exact,
        0 if exact else probes,
    )


@each()
def hessian_trace(
    model: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    probes: int = 32,
    where: str = "*",
    dense: int = 2000,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    cache: bool | None = None,
    chunk: int | None = None,
) -> Trace:
    """Trace of the Hessian of the mean loss: the mean of vᵀHv over random signs v (Hutchinson).

    Args:
        model: measured in eval mode; frozen parameters do not count.
        data: a pair (inputs, targets), a loader or an iterable of batches; the same points at every pass.
        loss: ``loss(output, target)``, a mean over the batch; cross-entropy, or the model's own for dictionaries.
        probes: how many random vectors, 2 or more.
        where: glob on parameter names, several joined by ``|``.
        dense: compute the diagonal itself of up to so many parameters.
        seed: the seed of the probes; the global random state is not used.
        dtype: precision to compute in; float64 for the whole matrix, else the model's own, float32 at least.
        cache: keep the graph of the gradient of every batch; by default if there is only one batch.
        chunk: split a pair into batches of so many rows, to save memory.
    """
    check_counts(probes=probes, dense=dense)
    size = sum(x.numel() for x in trained(model, where).values())
    exact = size <= dense
    if not exact and probes < 2:
        raise ValueError(f"probes={probes} must be 2 or more to have a standard error, e.g. probes=32")
    dtype = torch.float64 if exact and dtype is None else dtype
    with hessian(model, data, loss, where=where, dtype=dtype, cache=cache, chunk=chunk) as H:
        if exact:
            return Trace(H.matrix().trace().item(), 0.0, size, True, torch.empty(0, dtype=torch.float64))
        generator = torch.Generator().manual_seed(seed)
        signs = (2 * torch.randint(2, (size,), generator=generator).to(H.device, H.dtype) - 1 for _ in range(probes))
        samples = torch.stack([torch.dot(v, H(v)) for v in signs]).double().cpu()
    return Trace(samples.mean().item(), samples.std().item() / math.sqrt(probes), size, False, samples)
