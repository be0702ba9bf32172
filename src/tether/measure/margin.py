"""Margins of networks, normalised by the norms of their layers (GD-dynamics slides)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import softplus

from tether.measure.batches import Loss, batches, loss_of, outputs
from tether.measure.each import each
from tether.measure.homogeneity import Homogeneity, check_homogeneity, layer_weights, parameter
from tether.measure.separator import signs
from tether.measure.untouched import untouched

__all__ = ["Margin", "margin"]


@dataclass(frozen=True)
class Margin:
    """Margins of a network on its points, normalised for the size of its weights.

    Attributes:
        margins: y f(x) of each point, or f_y − max over j ≠ y of f_j; positive if the answer is right.
        margin: the smallest.
        normalised: the smallest, over the product of the layers' norms.
        product: Π ρ_k.
        norms: ρ_k = |W_k| of each layer (Frobenius).
        directions: W_k/ρ_k of each layer.
        growth: dρ_k/dt = −⟨W_k/ρ_k, ∂L/∂W_k⟩ under gradient flow; 0 for frozen layers.
        turning: |d(W_k/ρ_k)/dt| under gradient flow, the speed of the direction on the sphere.
        errors: how many points have no positive margin.
        homogeneity: measured on the first batch; `normalised` is meaningful only for a homogeneous network.
    """

    margins: torch.Tensor
    margin: float
    normalised: float
    product: float
    norms: dict[str, float]
    directions: dict[str, torch.Tensor]
    growth: dict[str, float]
    turning: dict[str, float]
    errors: int
    homogeneity: Homogeneity

    def __str__(self) -> str:
        text = f"margin {self.margin:.4g}, normalised {self.normalised:.4g} (Π ρ = {self.product:.4g})"
        wrong = f", {self.errors} of {len(self.margins)} points wrong" if self.errors else ""
        off = self.homogeneity.error
        flag = "" if self.homogeneity.holds else f"; not homogeneous (off by {off:.1e}): it depends on the scale"
        return text + wrong + flag

    def plot(self, ax: Any = None) -> Any:
        """Normalised margins of all points, in order."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        values = self.margins.sort().values / self.product
        ax.plot(torch.arange(1, len(values) + 1) / len(values), values)
        ax.axhline(0, color="0.6", lw=1)
        ax.set_xlabel("fraction of points")
        ax.set_ylabel("normalised margin")
        return ax


@each()
def margin(model: nn.Module, data: Any, loss: Loss | None = None) -> Margin:
    """Margins of a classifier on data, normalised by the product of its layers' norms.

    For a homogeneous network (`homogeneity`) the normalised margin does not change when its layers are scaled. `growth`
    and `turning` are the two parts of gradient flow in the slides: of the norms and of the directions.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> net.weight.data = torch.tensor([[3.0, 4.0]])
    >>> result = margin(net, (torch.tensor([[2.0, 1.0], [0.0, -1.0]]), torch.tensor([1, -1])))
    >>> result.margins.tolist(), result.margin, result.normalised
    ([10.0, 4.0], 4.0, 0.8)

    Args:
        model: a classifier, measured in eval mode. One output means two classes.
        data: a pair (inputs, labels), a loader or an iterable of batches. Labels of one output are 1 and −1, or 1
            and 0.
        loss: the loss of `growth` and `turning`; by default cross-entropy, or log(1 + exp(−y f)) for a single output.
    """
    with untouched(model), torch.enable_grad():
        found = batches(data)
        margins, gradients = _pass(model, found, loss)
        homogeneous = check_homogeneity(model, [next(iter(found))])
    weights = {name: x.double() for name, x in layer_weights(model).items()}
    norms = {name: x.norm().item() for name, x in weights.items()}
    flat = next((name for name, x in norms.items() if x == 0), None)
    if flat is not None:
        raise ValueError(f"layer {flat!r} is zero: it has no direction, and the normalised margin is 0/0")
    directions = {name: x / norms[name] for name, x in weights.items()}
    radial = {name: (x * gradients[name]).sum().item() for name, x in directions.items()}
    across = {name: gradients[name] - radial[name] * x for name, x in directions.items()}
    product = math.prod(norms.values())
    return Margin(
        margins,
        margins.min().item(),
        margins.min().item() / product,
        product,
        norms,
        directions,
        {name: -x for name, x in radial.items()},
        {name: x.norm().item() / norms[name] for name, x in across.items()},
        int((margins <= 0).sum()),
        homogeneous,
    )


def _pass(model: nn.Module, data: Any, loss: Loss | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Margins of all points, and the gradient of the mean loss for each layer."""
    named = dict(model.named_parameters())
    state = {name: x.detach() for name, x in named.items()}
    weights = layer_weights(model)
    gradients = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in weights.items()}
    moving = [name for name in weights if named[parameter(name, named)].requires_grad]
    leaves = [state[parameter(name, state)].requires_grad_() for name in moving]
    margins, rows = [], 0
    for batch in data:
        out = functional_call(model, state, batch.args, batch.kwargs)
        f = outputs(out)
        if batch.targets is None:
            raise ValueError("a batch without 'labels' has no margin: add them, or pass pairs (inputs, targets)")
        margins.append(_margins(f.detach(), batch.targets))
        own = _logistic if loss is None and batch.args and f[0].numel() == 1 else loss
        value = loss_of(lambda *_, out=out, **__: out, batch, own)
        if not math.isfinite(value.item()):
            raise ValueError(f"the loss is {value.item()}, not finite: check the parameters and the data")
        rows += batch.rows
        if leaves:
            got = torch.autograd.grad(value, leaves, materialize_grads=True)
            for name, g in zip(moving, got, strict=True):
                gradients[name].lerp_(g.double(), batch.rows / rows)
    return torch.cat(margins), gradients


def _margins(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y f, or f_y − max over j ≠ y of f_j."""
    f = f.double()
    if f[0].numel() == 1:
        return signs(y).reshape(-1) * f.reshape(-1)
    if f.dim() != 2 or y.shape != f.shape[:1] or y.is_floating_point():
        raise ValueError(
            f"outputs of shape {tuple(f.shape)} with {y.dtype} labels of shape {tuple(y.shape)}: margins take "
            "(points, classes) with one whole number for each point, or one output and labels 1 and −1"
        )
    own = f.gather(1, y[:, None])[:, 0]
    return own - f.scatter(1, y[:, None], -math.inf).max(1).values


def _logistic(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return softplus(-signs(y).to(f).reshape(-1) * f.reshape(-1)).mean()
