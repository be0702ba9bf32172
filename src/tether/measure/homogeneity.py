"""How the output of a network changes when a layer is scaled (GD-dynamics slides)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from tether.measure.batches import Batch, batches, outputs
from tether.measure.each import each
from tether.measure.untouched import untouched

__all__ = ["Homogeneity", "check_homogeneity", "homogeneity", "layer_weights", "parameter"]


@dataclass(frozen=True)
class Homogeneity:
    """How the output changes when a layer is scaled: Σ W ∂f/∂W = f for every layer of a ReLU net without biases.

    Attributes:
        degrees: for each layer, the r for which Σ W ∂f/∂W = r f holds best; 1 in such a net.
        errors: for each layer, the largest |Σ W ∂f/∂W − f| over points and outputs, relative to the largest |f|.
        error: the largest of them.
    """

    degrees: dict[str, float]
    errors: dict[str, float]

    @property
    def error(self) -> float:
        """The largest of the errors."""
        return max(self.errors.values())

    @property
    def holds(self) -> bool:
        """Is the network homogeneous of degree 1 in every layer, to single precision?"""
        return self.error <= 1e-4

    def __str__(self) -> str:
        worst = max(self.errors, key=lambda name: self.errors[name])
        verdict = "homogeneous" if self.holds else "not homogeneous"
        return f"{verdict} in {len(self.errors)} layers: Σ W ∂f/∂W is off f by up to {self.error:.1e} (layer {worst!r})"

    def plot(self, ax: Any = None) -> Any:
        """The error of each layer."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.bar(list(self.errors), [max(x, 1e-17) for x in self.errors.values()])
        ax.set_yscale("log")
        ax.set_xlabel("layer")
        ax.set_ylabel("relative error of Σ W ∂f/∂W = f")
        return ax


@each()
def homogeneity(model: nn.Module, data: Any) -> Homogeneity:
    """Check Σ W ∂f/∂W = f for each layer: f(W; x) = Π ρ_k f(W/ρ; x) follows from it (GD-dynamics slides).

    It does not hold with biases before the last layer, nor with BatchNorm and its running statistics. A layer is a
    parameter of two or more dimensions.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> homogeneity(net, (torch.randn(5, 2), torch.zeros(5))).holds
    True

    Args:
        model: any network; it is measured in eval mode.
        data: a pair (inputs, targets), a loader or an iterable of batches; the targets are not used.
    """
    with untouched(model):
        return check_homogeneity(model, batches(data))


def check_homogeneity(model: nn.Module, data: Iterable[Batch]) -> Homogeneity:
    """As `homogeneity`, for a model that is in eval mode already."""
    state = {name: _wide(x.detach()) for name, x in (*model.named_parameters(), *model.named_buffers())}
    weights = {name: state[parameter(name, state)].requires_grad_() for name in layer_weights(model)}
    off, inner = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
    square = largest = 0.0
    for batch in data:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():  # fused attention has no second derivative
            given = tree_map(_wide, (batch.args, batch.kwargs))
            f = outputs(functional_call(model, state, *given))
            # the derivative of uᵀ∂f/∂W by u, applied to W, is that of f along W, for all points and outputs at once
            u = torch.zeros_like(f, requires_grad=True)
            gradients = torch.autograd.grad(f, list(weights.values()), u, create_graph=True, materialize_grads=True)
        if not bool(torch.isfinite(f).all()):
            raise ValueError("the network's answers are not finite: check its parameters and the data")
        answer = f.detach().double()
        square += answer.square().sum().item()
        largest = max(largest, answer.abs().max().item())
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            change = torch.zeros_like(f)
            if gradient.requires_grad:
                (change,) = torch.autograd.grad(gradient, u, weight, retain_graph=True, materialize_grads=True)
            off[name] = max(off[name], (change.double() - answer).abs().max().item())
            inner[name] += (change.double() * answer).sum().item()
    return Homogeneity(
        {name: x / (square or math.nan) for name, x in inner.items()},
        {name: x / (largest or 1.0) for name, x in off.items()},
    )


def _wide(x: Any) -> Any:
    """Half precision converted to single, since its rounding errors would be too large for the check."""
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x


def layer_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the layers, by the layers' names."""
    found = {name.removesuffix(".weight"): x.detach() for name, x in model.named_parameters() if x.dim() > 1}
    if not found:
        raise ValueError(f"{type(model).__name__} has no layer: none of its parameters has two dimensions")
    return found


def parameter(layer: str, state: Mapping[str, Any]) -> str:
    """The name of a layer's weight."""
    return layer if layer in state else f"{layer}.weight"
