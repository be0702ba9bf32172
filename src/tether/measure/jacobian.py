"""Singular values of the input–output map: is it an isometry, or does it shrink and stretch?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.batches import outputs
from tether.measure.each import each
from tether.measure.lanczos import extremes
from tether.measure.score import whole
from tether.measure.untouched import untouched

__all__ = ["JacobianSpectrum", "jacobian_spectrum"]

DENSE = 1 << 26  # numbers of all Jacobians together that are held at once


@dataclass(frozen=True)
class JacobianSpectrum:
    """The singular values of ∂(outputs)/∂(inputs), a row for each input, descending."""

    values: torch.Tensor
    shape: tuple[int, int]  # of each Jacobian: outputs × inputs
    exact: bool  # all of them, by the decomposition of the whole matrix

    @property
    def largest(self) -> float:
        """The mean of the largest one over inputs."""
        return float(self.values[:, 0].mean())

    @property
    def mean_square(self) -> float:
        """The mean of σ² over those that were found. It is 1 for an isometry, and 0 where signals vanish."""
        return float(self.values.square().mean())

    @property
    def condition(self) -> float:
        """The median over inputs of σ_max/σ_min; inf where a direction is lost. nan unless all were found."""
        if not self.exact:
            return math.nan
        return float((self.values[:, 0] / self.values[:, -1]).median())

    def __str__(self) -> str:
        what = f"Jacobians of {self.shape[0]} × {self.shape[1]} at {len(self.values)} inputs"
        if not self.exact:
            return f"{what}: the {self.values.shape[1]} largest singular values, the largest {self.largest:.4g}"
        return f"{what}: mean σ² {self.mean_square:.4g}, largest {self.largest:.4g}, condition {self.condition:.3g}"

    def plot(self, ax: Any = None) -> Any:
        """All singular values, as a histogram over log σ; those that are 0 are left out."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        positive = self.values[self.values > 0].log10()
        ax.hist(positive.tolist(), bins=40)
        ax.axvline(0.0, color="#c2452d", linewidth=0.9)
        ax.set(xlabel="log₁₀ of a singular value", ylabel="count")
        return ax


@each()
def jacobian_spectrum(
    model: nn.Module, inputs: torch.Tensor, top: int | None = None, *, tolerance: float = 1e-6, iterations: int = 2000
) -> JacobianSpectrum:
    """Singular values of the Jacobian of a network's outputs by its inputs, input by input (CoLA poster).

    By the chain rule it is the product F W F W …; its singular values say how much a gradient shrinks or grows on its
    way back. Those of a network whose singular values are all 1 keep their length (dynamical isometry). The network is
    in eval mode, so that inputs do not see one another.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> net[0].weight.data, net[1].weight.data = torch.diag(torch.tensor([3.0, 1.0])), torch.eye(2) / 2
    >>> print(jacobian_spectrum(net, torch.ones(4, 2)))
    Jacobians of 2 × 2 at 4 inputs: mean σ² 1.25, largest 1.5, condition 3

    Args:
        model: a module; a slice ``net[:k]`` of a Sequential is a part of the way.
        inputs: a batch.
        top: how many of the largest ones, by Lanczos with products J v and Jᵀu; None computes the whole matrix and
            all of them.
        tolerance: of Lanczos, relative to σ_max².
        iterations: the largest number of its products.
    """
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point() or not len(inputs):
        raise TypeError("inputs must be a batch of real numbers: a derivative by words or labels does not exist")
    if top is not None:
        whole("top", top, 1)
    with untouched(model), torch.enable_grad():
        x = inputs.detach().clone().requires_grad_()
        y = outputs(model(x)).flatten(1)
        if not y.requires_grad:
            raise ValueError("the outputs do not depend on the inputs by differentiable operations")
        shape = y.shape[1], x[0].numel()
        if top is not None:
            values = torch.stack([_largest(model, one, min(top, *shape), tolerance, iterations) for one in inputs])
            return JacobianSpectrum(values, shape, top >= min(shape))
        if len(x) * math.prod(shape) > DENSE:
            raise ValueError(
                f"{len(x)} Jacobians of {shape[0]} × {shape[1]} are {len(x) * math.prod(shape):,} numbers: ask for the "
                "largest singular values, e.g. top=10, or for fewer inputs"
            )
        rows = [torch.autograd.grad(y[:, j].sum(), x, retain_graph=True)[0].flatten(1) for j in range(shape[0])]
        J = torch.stack(rows, 1)
    wide = J.double() if J.device.type != "mps" else J
    return JacobianSpectrum(torch.linalg.svdvals(wide), shape, True)


def _largest(model: nn.Module, one: torch.Tensor, top: int, tolerance: float, iterations: int) -> torch.Tensor:
    """The largest singular values at one input: roots of eigenvalues of JJᵀ or JᵀJ, whichever is smaller."""
    x = one.detach().clone().unsqueeze(0).requires_grad_()
    y = outputs(model(x)).flatten()
    u = torch.zeros_like(y, requires_grad=True)
    (back,) = torch.autograd.grad(y, x, u, create_graph=True)  # Jᵀu, whose derivative by u is J

    def transposed(u: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, u.view_as(y), retain_graph=True)[0].flatten()

    def forward(v: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(back, u, v.view_as(back), retain_graph=True, allow_unused=True)[0]
        return torch.zeros_like(y) if found is None else found

    tall = y.numel() >= x.numel()
    generator = torch.Generator().manual_seed(0)
    found = extremes(
        lambda v, out: out.copy_((transposed(forward(v)) if tall else forward(transposed(v))).flatten()),
        (x.detach() if tall else y.detach()).flatten(),
        top,
        0,
        tolerance=tolerance,
        iterations=iterations,
        generator=generator,
    )
    return found.values.clamp_min(0).sqrt().flip(0).double()
