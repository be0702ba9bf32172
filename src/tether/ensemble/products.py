"""Many networks of Linear and elementwise layers at once, by batched matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from tether.ensemble.hooks import hooked

__all__ = ["Layer", "Stage", "each_by_layer", "products", "stages_of", "suits"]

Stage = tuple[str, nn.Module]
ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Hardtanh, nn.Sigmoid, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Softplus, nn.Softsign),
)
CONVOLUTIONS: dict[int, tuple[type[nn.Module], ...]] = {  # by the dimensions of their batches
    3: (nn.Conv1d, nn.ConvTranspose1d),
    4: (nn.Conv2d, nn.ConvTranspose2d),
    5: (nn.Conv3d, nn.ConvTranspose3d),
}
# Exact types: a subclass may compute something else.
KINDS: dict[type[nn.Module], str] = {
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
    nn.Linear: "linear",
    nn.Dropout: "dropout",
    nn.Flatten: "flatten",
}


class Layer(NamedTuple):
    """One stage of a net of Linear and elementwise layers, on values of shape (n, batch, features)."""

    kind: str  # "linear", "elementwise", "dropout" or "flatten"
    module: nn.Module  # what computes it; a Linear holds the stacked tensors
    weight: str | None = None  # names of the stacked parameters, as in named_parameters()
    bias: str | None = None


def stages_of(module: nn.Module) -> list[Stage] | None:
    """The network as a list of Linear and elementwise layers; None for other networks, or if it has hooks."""
    stages: list[Stage] = []
    found = flatten(module, stages)
    return stages if found and any(kind == "linear" for kind, _ in stages) else None


def flatten(module: nn.Module, stages: list[Stage]) -> bool:
    if hooked(module):
        return False
    if type(module) is nn.Sequential:
        return all(flatten(child, stages) for child in module)
    kind = KINDS.get(type(module))
    if kind is None or (isinstance(module, nn.Flatten) and not (module.start_dim == 1 and module.end_dim == -1)):
        return False
    stages.append((kind, module))
    return True


def suits(x: torch.Tensor, stages: list[Stage], each: bool) -> bool:
    """Is x a batch of vectors of the right length? Other inputs are left to the module itself."""
    at = next(i for i, (kind, _) in enumerate(stages) if kind == "linear")
    first = stages[at][1]
    flattened = any(kind == "flatten" for kind, _ in stages[:at])
    if not flattened and x.ndim > each and x.shape[-1] != first.in_features:
        raise ValueError(
            f"an input of shape {tuple(x.shape)} does not fit {first}: its last dimension must be {first.in_features}"
        )
    return takes(first, x.shape[each:], flattened)


def products(x: torch.Tensor, stages: list[Stage], each: bool, n: int) -> torch.Tensor:
    """The outputs, by batched products. A shared input is multiplied by the weights of all replicas in one product."""
    shared = not each
    for kind, layer in stages:
        if kind == "linear":
            W: torch.Tensor = layer.weight  # type: ignore[assignment]
            b: torch.Tensor | None = layer.bias  # type: ignore[assignment]
            if shared:
                x = nn.functional.linear(x, W.flatten(0, 1), None if b is None else b.flatten())
                x, shared = x.view(len(x), *W.shape[:2]).transpose(0, 1), False
            else:
                # W on the left: its gradient then comes in W's own layout and need not be copied
                y = torch.bmm(W, x.mT) if b is None else torch.baddbmm(b.unsqueeze(2), W, x.mT)
                x = y.mT
        elif kind == "flatten":
            x = x.flatten(1 if shared else 2)
        elif kind == "dropout":
            if shared and layer.training:
                x, shared = x.expand(n, *x.shape), False
            x = nn.functional.dropout(x, layer.p, layer.training)  # type: ignore[arg-type]
        else:
            x = layer(x)
    return x


def each_by_layer(module: nn.Module, x: torch.Tensor) -> bool | None:
    """Does the first layer with parameters take x as a batch for each replica? None if its shape does not tell."""
    flattened = False
    for layer in module.modules():
        flattened = flattened or isinstance(layer, nn.Flatten)
        if layer._parameters:
            shared, each = takes(layer, x.shape, flattened), takes(layer, x.shape[1:], flattened)
            return None if shared == each else each
    return None


def takes(layer: nn.Module, shape: Sequence[int], flattened: bool) -> bool:
    """Is this the shape of a batch for this layer?"""
    if isinstance(layer, nn.Linear):
        return len(shape) > 1 and math.prod(shape[1:]) == layer.in_features and (flattened or len(shape) == 2)
    if isinstance(layer, nn.Embedding):
        return len(shape) == 2
    return isinstance(layer, CONVOLUTIONS.get(len(shape), ()))
