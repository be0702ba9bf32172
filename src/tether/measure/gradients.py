"""Norms of the gradient, layer by layer: do they vanish or explode with depth?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.batches import Loss, batches, loss_of
from tether.measure.each import each
from tether.measure.hessian import trained
from tether.measure.untouched import untouched

__all__ = ["GradientNorms", "gradient_norms"]


@dataclass(frozen=True)
class GradientNorms:
    """‖∂L/∂θ_ℓ‖ by the names of layers or tensors, in the order of the network."""

    norms: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.norms[name]

    @property
    def total(self) -> float:
        """The norm of the whole gradient."""
        return math.sqrt(sum(x * x for x in self.norms.values()))

    @property
    def per_layer(self) -> float:
        """The factor by which the norm changes from a layer to the one before it, by least squares on its logarithm.

        Less than 1: gradients vanish on their way back. More: they explode. nan if a norm is 0 or there is only one.
        """
        logs = [math.log(x) if x > 0 else -math.inf for x in self.norms.values()]
        if len(logs) < 2 or not all(map(math.isfinite, logs)):
            return math.nan
        middle = (len(logs) - 1) / 2
        slope = sum((i - middle) * y for i, y in enumerate(logs)) / sum((i - middle) ** 2 for i in range(len(logs)))
        return math.exp(-slope)

    def __str__(self) -> str:
        first, last = next(iter(self.norms)), list(self.norms)[-1]
        ends = f"{self.norms[first]:.3g} in {first!r}, {self.norms[last]:.3g} in {last!r}"
        return f"gradient of {len(self.norms)} layers: {ends}, times {self.per_layer:.3g} per layer back"

    def plot(self, ax: Any = None) -> Any:
        """The norm of every layer."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        places = range(len(self.norms))
        ax.semilogy(places, list(self.norms.values()), marker="o", markersize=4)
        ax.set_xticks(list(places), list(self.norms), rotation=45, ha="right")
        ax.set(xlabel="layer", ylabel="norm of the gradient")
        return ax


@each()
def gradient_norms(
    model: nn.Module, data: Any, loss: Loss | None = None, *, where: str = "*", per: str = "layer"
) -> GradientNorms:
    """The norm of the gradient of the mean loss in every layer (CoLA poster).

    ∂L/∂W_ℓ holds the product F W F W … of all layers after ℓ. If that product shrinks or grows, so does the norm from
    layer to layer: vanishing and exploding gradients.

    >>> net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(4)])
    >>> for layer in net:
    ...     _ = layer.weight.data.fill_(0.5)
    >>> found = gradient_norms(net, (torch.ones(1, 1), torch.zeros(1, 1)), loss=lambda y, t: y.sum())
    >>> found.norms, found.per_layer  # every derivative is the product of the three others
    ({'0': 0.125, '1': 0.125, '2': 0.125, '3': 0.125}, 1.0)

    Args:
        model: a module, in eval mode.
        data: as for every measure.
        loss: cross-entropy unless given.
        where: a glob on parameter names, e.g. ``"*.weight"``.
        per: ``"layer"`` joins the parameters of a module, ``"tensor"`` does not.
    """
    if per not in ("layer", "tensor"):
        raise ValueError(f"per={per!r} must be 'layer' or 'tensor'")
    chosen = trained(model, where)
    sums: dict[str, torch.Tensor] = {}
    count = 0
    with untouched(model), torch.enable_grad():
        for batch in batches(data):
            found = torch.autograd.grad(
                loss_of(model, batch, loss) * batch.rows, list(chosen.values()), allow_unused=True
            )
            count += batch.rows
            for name, g in zip(chosen, found, strict=True):
                if g is not None:
                    sums[name] = sums[name] + g if name in sums else g
    squares: dict[str, float] = {}
    for name in chosen:
        layer = (name.rpartition(".")[0] or name) if per == "layer" else name
        square = float((sums[name] / count).double().square().sum()) if name in sums else 0.0
        squares[layer] = squares.get(layer, 0.0) + square
    return GradientNorms({name: math.sqrt(x) for name, x in squares.items()})
