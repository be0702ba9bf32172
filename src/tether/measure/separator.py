"""The hard-margin separator, the limit direction of gradient descent on separable data (GD-dynamics slides)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tether.measure.affine import augmented, has_bias, linear_map
from tether.measure.each import each

__all__ = ["HardMargin", "NotSeparable", "hard_margin", "signs"]


class NotSeparable(ValueError):
    """No hyperplane separates the classes; a weighted mean of `points` proves it."""

    def __init__(self, message: str, points: torch.Tensor, weights: torch.Tensor) -> None:
        super().__init__(message)
        self.points, self.weights = points, weights


@dataclass(frozen=True)
class HardMargin:
    """The separator of largest margin, and the angle of a model to it.

    Attributes:
        weight: w of least norm with y_n w·x_n ≥ 1 for all n.
        bias: its bias, or None.
        margin: 1/|w|, the distance of the nearest point from the hyperplane.
        growth: |w|, the slope of the norm of the weights in log t under gradient flow on the exponential loss.
        support: indices of the points that w is a sum of, w = Σ α_n y_n x_n.
        multipliers: their α_n > 0.
        angle: between the model's weights and w, in radians; None without a model.
        separates: does the model have all points on the right side?
        norm: of the model's weights.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    margin: float
    growth: float
    support: torch.Tensor
    multipliers: torch.Tensor
    angle: float | None
    separates: bool | None
    norm: float | None

    def __str__(self) -> str:
        text = f"hard margin {self.margin:.4g}, {len(self.support)} support vectors"
        if self.angle is None:
            return text
        side = "separates" if self.separates else "does not separate"
        return f"{text}; the model is {math.degrees(self.angle):.3g}° off and {side} the data"

    def plot(self, ax: Any = None) -> Any:
        """The multipliers of the support vectors, the largest first."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        order = self.multipliers.argsort(descending=True)
        ax.bar(range(1, len(order) + 1), self.multipliers[order].tolist())
        ax.set_xlabel("support vector, by rank")
        ax.set_ylabel("multiplier")
        ax.set_title(str(self), fontsize="small")
        return ax


def hard_margin(
    X: torch.Tensor,
    y: torch.Tensor,
    model: Any = None,
    *,
    bias: bool | None = None,
) -> HardMargin | list[HardMargin]:
    """The hard-margin separator argmin |w|² with y_n w·x_n ≥ 1, and the angle of a linear model to it.

    On separable data the direction of gradient descent with the exponential or logistic loss converges to w like 1/log
    t, from every start, while its norm grows like |w| log t. Raises `NotSeparable` if no hyperplane separates the
    classes.

    >>> X = torch.tensor([[1.0, 1.0], [3.0, -1.0], [-1.0, -1.0]])
    >>> result = hard_margin(X, torch.tensor([1, 1, -1]), model=torch.tensor([1.0, 0.0]))
    >>> print(result)
    hard margin 1.414, 1 support vectors; the model is 45° off and separates the data

    Args:
        X: inputs, (points, features).
        y: labels, 1 and −1, or 1 and 0.
        model: a linear model with one output, `tether.Replicas` of such models, or a weight as in `nn.Linear`.
        bias: whether the hyperplane has an offset; by default if the model has a bias. The offset is treated as the
            weight of a feature that is 1, as in gradient descent.
    """
    bias = has_bias(model) if bias is None else bias
    X, labels = augmented(X, signs(torch.as_tensor(y)), bias)
    return _compared(model, X, labels.reshape(len(X)), bias)


@each()
def _compared(model: Any, X: torch.Tensor, y: torch.Tensor, bias: bool) -> HardMargin:
    α = multipliers(y[:, None] * X, bias)
    w = (α * y) @ X
    angle = separates = norm = None
    if model is not None:
        v = linear_map(model, X, bias)
        if v.shape[1] != 1:
            raise ValueError(f"the model has {v.shape[1]} outputs: a separator of two classes has one")
        v = v[:, 0]
        along = (v @ w) / w.norm()
        angle = math.atan2((v - along * w / w.norm()).norm().item(), along.item())
        separates, norm = bool((y * (X @ v) > 0).all()), v.norm().item()
    support = α.nonzero()[:, 0]
    features = len(w) - bias
    length = w.norm().item()
    return HardMargin(
        w[:features],
        w[features] if bias else None,
        1 / length,
        length,
        support,
        α[support],
        angle,
        separates,
        norm,
    )


def signs(y: torch.Tensor) -> torch.Tensor:
    """Labels of two classes as 1 and −1."""
    values = set(y.flatten().tolist())
    if values <= {0, 1} and 0 in values:
        return 2 * y.double() - 1
    if values <= {-1, 1}:
        return y.double()
    raise ValueError(f"labels {sorted(values)[:6]} are not those of two classes: they must be 1 and −1, or 1 and 0")


def multipliers(Z: torch.Tensor, bias: bool = False) -> torch.Tensor:
    """α ≥ 0 with w = Zᵀα of least norm among all with Zw ≥ 1 (least distance programming, Lawson and Hanson).

    Let u ≥ 0 be the best approximation to Zᵀu = 0, Σu = 1. Then α = u/(1 − Σu). If u solves it exactly, there is no
    such w, and u gives a weighted mean of the points that is 0.
    """
    scale = Z.norm(dim=1).max().item() or 1.0
    E = torch.cat([Z.mT / scale, torch.ones(1, len(Z), dtype=Z.dtype)])
    target = torch.zeros(len(E), dtype=Z.dtype)
    target[-1] = 1
    u = nonnegative(E, target)
    room = 1 - u.sum().item()
    mean = (E[:-1] @ u).norm().item() / u.sum().item()
    if mean <= 1e-7 or room <= 0:
        points = u.nonzero()[:, 0]
        weights = u[points] / u.sum()
        shown = ", ".join(map(str, points[:8].tolist())) + (", …" if len(points) > 8 else "")
        raise NotSeparable(
            f"no hyperplane{'' if bias else ' through 0'} separates the classes: a weighted mean of y_n x_n over the "
            f"{len(points)} points {shown} is 0 (to {mean:.0e} of the largest |x|)"
            + ("" if bias else "; with an offset there may be one: bias=True"),
            points,
            weights,
        )
    α = u / room / scale**2
    slack = (Z @ (Z.mT @ α)).min().item()
    if slack < 1 - 1e-6:
        raise RuntimeError(f"a point is left at {slack:.6g} of the margin: the data are too ill-conditioned")
    return α


def nonnegative(E: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """u ≥ 0 with |Eu − f| least, by the active set method of Lawson and Hanson."""
    n = E.shape[1]
    u = torch.zeros(n, dtype=E.dtype)
    free = torch.zeros(n, dtype=torch.bool)
    norms = E.norm(dim=0).clamp_min(1e-300)
    for _ in range(10 * n + 100):
        slope = (E.mT @ (f - E @ u)) / norms
        slope[free] = -math.inf
        if bool(free.all()) or slope.max().item() <= 1e-12 * f.norm().item():
            return u
        free[slope.argmax()] = True
        while True:
            s = torch.zeros_like(u)
            s[free] = torch.linalg.lstsq(E[:, free], f[:, None], driver="gelsy").solution[:, 0]
            negative = free & (s <= 0)
            if not bool(negative.any()):
                break
            # move u towards s as far as it stays nonnegative
            step = (u[negative] / (u[negative] - s[negative])).min()
            u = u + step * (s - u)
            gone = free & (u <= 1e-15 * u.max())
            u[gone], free = 0.0, free & ~gone
        u = s
    raise RuntimeError(f"least squares with {n} nonnegative unknowns did not end: are there many equal points?")
