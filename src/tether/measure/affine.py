"""A linear model as its matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from tether.measure.untouched import untouched

__all__ = ["augmented", "has_bias", "linear_map"]


def has_bias(model: Any) -> bool:
    """Does a linear model add a constant?"""
    if not isinstance(model, nn.Module):
        return False
    return any(name.rpartition(".")[2] == "bias" for name, _ in model.named_parameters())


def augmented(X: Any, y: Any, bias: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, with a column of ones for the bias, and targets, as matrices in double precision."""
    X, y = torch.as_tensor(X).detach().double().cpu(), torch.as_tensor(y).detach().double().cpu()
    if X.dim() != 2 or y.dim() not in (1, 2) or len(X) != len(y) or not len(X):
        raise ValueError(
            f"X has shape {tuple(X.shape)} and y {tuple(y.shape)}: X must be (points, features), y (points,) or "
            "(points, outputs), e.g. X.flatten(1)"
        )
    if not bool(torch.isfinite(X).all() and torch.isfinite(y).all()):
        raise ValueError("X and y must be finite: leave out the points that are not, X[X.isfinite().all(1)]")
    X = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], dim=1) if bias else X
    return X, y


@torch.no_grad()
def linear_map(model: Any, X: torch.Tensor, bias: bool, state: Any = None) -> torch.Tensor:
    """The matrix of a linear model, a row for each feature and one for the bias, a column for each output.

    Args:
        model: a module that is linear in its input, also a network of linear layers; or a weight of shape (features,)
            or (outputs, features).
        X: inputs, as `augmented` returns them.
        bias: whether their last column represents the bias.
        state: a state dict to use instead of the model's own.
    """
    if not isinstance(model, nn.Module):
        w = torch.as_tensor(model).detach().double().cpu()
        w = w[:, None] if w.dim() == 1 else w.mT
        if len(w) != X.shape[1]:
            raise ValueError(f"the weight has {len(w)} features, X {X.shape[1]}: they must be as many")
        return w
    like = next(model.parameters())
    features = X.shape[1] - bias
    probes = X.new_zeros(1, features), torch.eye(features, dtype=X.dtype), X[:, :features]
    points = torch.cat(probes).to(like)
    with untouched(model):
        out = functional_call(model, dict(state), (points,)) if isinstance(state, Mapping) else model(points)
    out = out.detach().double().cpu().reshape(len(points), -1)
    constant, W, seen = out[0], out[1 : features + 1] - out[0], out[features + 1 :]
    inputs = points[features + 1 :].double().cpu()
    off = (inputs @ W + constant - seen).abs().max().item() / (seen.abs().max().item() or 1.0)
    if off > 1e3 * features * torch.finfo(like.dtype).eps:
        raise ValueError(
            f"{type(model).__name__} is not linear in its input: it is off its linear map by {off:.1e} of its output; "
            "minimum norms and hard margins are those of linear models"
        )
    return torch.cat([W, constant[None]]) if bias else W
