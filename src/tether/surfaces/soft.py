"""Soft: penalties, the counterparts of surfaces that the papers compare with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tether.ensemble.replicas import Replicas
from tether.part import matches
from tether.surfaces.level import arguments

__all__ = ["orthogonal_penalty", "soft"]


def soft(g: Callable[..., torch.Tensor], strength: float, where: str = "*") -> Callable[..., torch.Tensor]:
    """The penalty strength·|g|² as a function, to be added to the loss: the soft counterpart of ``Level(g)``.

    The thesis writes the strength as 1/ε². The minimum with the penalty has g ≠ 0, of the order of 1/strength, and the
    step size must shrink like 1/strength.

    >>> penalty = soft(lambda w: w.square().sum() - 1, strength=0.5)
    >>> penalty(torch.tensor([1.0, 2.0]))  # 0.5 · (5 − 1)²
    tensor(8.)
    >>> model = torch.nn.Linear(3, 2)
    >>> loss = model(torch.ones(1, 3)).square().mean() + soft(lambda b: b, 0.1, where="bias")(model)

    Args:
        g: a function that returns constraints as a tensor of any shape; Σ g² is penalised.
        strength: 0 or more.
        where: a glob on parameter names, for a penalty of a module. A g of one argument is taken of each parameter that
            matches, one of several arguments takes all of them, in their order. With `tether.Replicas` the result has
            one value for each.

    Returns:
        a function of a module, or of the tensors that g takes.
    """
    if not callable(g):
        raise TypeError(f"soft: g={g!r} is not a function; e.g. soft(lambda w: w.square().sum() - 1, strength=0.1)")
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"soft: strength={strength!r} must be finite and ≥ 0, e.g. strength=0.1")

    def square(*tensors: torch.Tensor) -> torch.Tensor:
        found = g(*tensors)
        if not (isinstance(found, torch.Tensor) and found.is_floating_point()):
            kind = str(found.dtype) if isinstance(found, torch.Tensor) else type(found).__name__
            raise TypeError(f"soft: g returned {kind}; it must return a tensor of real constraints, to be 0")
        return strength * found.square().sum()

    def penalty(*at: torch.nn.Module | torch.Tensor) -> torch.Tensor:
        model, *rest = at
        if not isinstance(model, torch.nn.Module) or rest:
            return square(*at)  # type: ignore[arg-type]
        found = [param for name, param in model.named_parameters() if matches(name, where)]
        if not found:
            raise ValueError(f"soft: {where!r} matches no parameter of the model")
        groups = [found] if arguments(g) > 1 else [[param] for param in found]
        each = torch.func.vmap(square) if isinstance(model, Replicas) else square
        terms = [each(*group) for group in groups]
        return sum(terms[1:], terms[0])

    return penalty


def orthogonal_penalty(model: torch.nn.Module, where: str = "*.weight") -> torch.Tensor:
    """Σ ‖QᵀQ − I‖² over the matching weight matrices, Q the tall one of W and Wᵀ: the soft counterpart of `Orthogonal`.

    Add ``strength * orthogonal_penalty(model)`` to the loss; the papers' best strength is 0.05. With replicas the
    result has one value for each.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> net[0].weight.data = 2 * torch.eye(2)  # QᵀQ − I = 3 I
    >>> orthogonal_penalty(net).item()
    18.0
    """
    replicas = isinstance(model, Replicas)
    terms: list[torch.Tensor] = []
    for name, param in model.named_parameters():
        if param.dim() > 1 + replicas and matches(name, where):
            m = param.flatten(1 + replicas)
            m = m if m.shape[-2] >= m.shape[-1] else m.mT
            excess = m.mT @ m - torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
            terms.append(excess.square().sum((-2, -1)))
    if not terms:
        raise ValueError(f"{where!r} matches no weight matrix of the model")
    return sum(terms[1:], terms[0])
