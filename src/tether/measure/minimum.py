"""The minimum-norm solution of a linear problem, and what training keeps of its start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.affine import augmented, has_bias, linear_map
from tether.measure.each import each

__all__ = ["MinimumNorm", "minimum_norm"]


@dataclass(frozen=True)
class MinimumNorm:
    """The least-squares solution of least norm X⁺y, or the ridge solution, and the distance of a model from it.

    Attributes:
        weight: the solution, as a Linear layer holds it: (features,) or (outputs, features).
        bias: its bias, or None.
        norm: |w*|, bias included.
        rank: of X (with a column of ones for the bias).
        null: the dimension of the null space of X.
        error: |Xw* − y|, 0 if the data can be fitted.
        distance: |w − w*| of the model. This and the following are None without a model.
        in_span: the part of this distance in the span of the data.
        in_null: the part in the null space, |P w|: gradient descent never changes it.
        drift: |P(w − w0)|, how far the null space part moved since the start; None without a start.
        from_limit: |w − (w* + P w0)|, the distance to where gradient descent from w0 ends (with λ > 0, from w*).
        singular: singular values of X, of the directions of `along`.
        along: |v_iᵀ(w − w*)| for every right singular vector v_i of X.
        regularization: λ of (XᵀX + λI)⁻¹ Xᵀy.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    norm: float
    rank: int
    null: int
    error: float
    distance: float | None
    in_span: float | None
    in_null: float | None
    drift: float | None
    from_limit: float | None
    singular: torch.Tensor
    along: torch.Tensor | None
    regularization: float

    def __str__(self) -> str:
        what = f"ridge solution (λ = {self.regularization:g})" if self.regularization else "minimum-norm solution"
        parts = [f"{what}: norm {self.norm:.4g}, rank {self.rank}, {self.null} null directions"]
        if self.distance is not None:
            parts.append(f"the model is {self.distance:.3g} off, {self.in_null:.3g} of it in the null space")
        if self.drift is not None:
            parts.append(f"{self.drift:.3g} of which came since the start")
        return ", ".join(parts)

    def plot(self, ax: Any = None) -> Any:
        """How far the model is from the solution along every singular direction, and in the null space."""
        import matplotlib.pyplot as plt

        if self.along is None:
            raise ValueError("there is no model to compare: minimum_norm(X, y, model).plot()")
        ax = plt.subplots()[1] if ax is None else ax
        floor = 1e-12 * max(self.norm, 1e-12)
        ax.loglog(self.singular, self.along.clamp_min(floor), "o", ms=4, label="span of the data")
        if self.null:
            ax.axhline(max(self.in_null or 0.0, floor), color="C3", label=f"null space ({self.null})")
        ax.set_xlabel("singular value of the data")
        ax.set_ylabel("|w − w*|")
        ax.legend()
        return ax


def minimum_norm(
    X: torch.Tensor,
    y: torch.Tensor,
    model: Any = None,
    start: Any = None,
    *,
    regularization: float = 0.0,
    bias: bool | None = None,
) -> MinimumNorm | list[MinimumNorm]:
    """w* = X⁺y, the solution of least norm, and how far a linear model is from it.

    Gradient descent on the square loss moves w only in the span of the data: from w0 it ends in X⁺y + P w0, where P is
    the projection onto the null space of X; from 0 it ends in X⁺y. With ½λ|w|² added to the loss it ends in (XᵀX +
    λI)⁻¹Xᵀy from every start.

    >>> X, y = torch.tensor([[3.0, 4.0]]), torch.tensor([10.0])
    >>> minimum_norm(X, y).weight  # y x/|x|²
    tensor([1.2000, 1.6000], dtype=torch.float64)
    >>> print(minimum_norm(X, y, model=torch.tensor([2.0, 1.0])))  # fits too
    minimum-norm solution: norm 2, rank 1, 1 null directions, the model is 1 off, 1 of it in the null space

    Args:
        X: inputs, (points, features).
        y: targets, (points,) or (points, outputs).
        model: a model that is linear in its input, `tether.Replicas` of such models, or a weight as in `nn.Linear`.
        start: the start of the training: a model, its state dict or a weight.
        regularization: λ. Weight decay ω with torch's `mse_loss` is λ = ω·y.numel()/2.
        bias: fit a constant too; by default if the model has a bias.
    """
    if not (math.isfinite(regularization) and regularization >= 0):
        raise ValueError(f"regularization={regularization!r} must be finite and ≥ 0, e.g. regularization=0.1")
    bias = has_bias(model) if bias is None else bias
    X, y = augmented(X, y, bias)
    start = start.state_dict() if isinstance(start, nn.Module) else start
    return _compared(model, X, y, start, regularization, bias)


@each("start")
def _compared(
    model: Any, X: torch.Tensor, y: torch.Tensor, start: Any, regularization: float, bias: bool
) -> MinimumNorm:
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    rank = int((s > s.max() * max(X.shape) * torch.finfo(torch.float64).eps).sum())
    U, s, Vh = U[:, :rank], s[:rank], Vh[:rank]
    targets = y[:, None] if y.dim() == 1 else y
    solution = Vh.mT @ ((s / (s.square() + regularization))[:, None] * (U.mT @ targets))

    def null(w: torch.Tensor) -> torch.Tensor:
        return w - Vh.mT @ (Vh @ w)

    distance = in_span = in_null = drift = from_limit = along = None
    if model is not None:
        w = linear_map(model, X, bias)
        if w.shape != solution.shape:
            raise ValueError(f"the model has {w.shape[1]} outputs, y {solution.shape[1]}: they must be as many")
        along = (Vh @ (w - solution)).norm(dim=1)
        distance, in_span, in_null = (w - solution).norm().item(), along.norm().item(), null(w).norm().item()
        limit = solution
        if start is not None:
            module = isinstance(model, nn.Module) and not isinstance(start, torch.Tensor)
            first = linear_map(model, X, bias, start) if module else linear_map(start, X, bias)
            drift = null(w - first).norm().item()
            limit = solution if regularization else solution + null(first)
        from_limit = (w - limit).norm().item()
    features = len(solution) - bias
    weight = solution[:features].mT
    return MinimumNorm(
        weight[0] if y.dim() == 1 else weight,
        solution[features] if bias else None,
        solution.norm().item(),
        rank,
        len(solution) - rank,
        (X @ solution - targets).norm().item(),
        distance,
        in_span,
        in_null,
        drift,
        from_limit,
        s,
        along,
        float(regularization),
    )
