"""Losses: recognised, checked against the outputs, and evaluated for each replica."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["LOSSES", "Loss", "as_function", "checked_loss", "enough_classes", "fitted", "mean_losses", "one_loss"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[Any, int] = {  # as in mlp.c: binary, square, classes
    functional.binary_cross_entropy_with_logits: 0,
    functional.mse_loss: 1,
    functional.cross_entropy: 2,
}
MODULES: dict[Any, Any] = {
    nn.BCEWithLogitsLoss: functional.binary_cross_entropy_with_logits,
    nn.MSELoss: functional.mse_loss,
    nn.CrossEntropyLoss: functional.cross_entropy,
}
# These compare outputs and targets number by number, and torch broadcasts where the shapes differ.
NUMBER_BY_NUMBER = (
    *(functional.binary_cross_entropy_with_logits, functional.binary_cross_entropy, functional.mse_loss),
    *(functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)


def as_function(loss: Any) -> Any:
    """The function that a module of torch stands for if its settings are the defaults; else the loss itself."""
    function = MODULES.get(type(loss))
    if function is None:
        return loss
    fresh: Any = type(loss)()
    settings = ("reduction", "weight", "pos_weight", "ignore_index", "label_smoothing")
    return function if all(_alike(getattr(loss, s, None), getattr(fresh, s, None)) for s in settings) else loss


def _alike(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and a == b)


def checked_loss(loss: Any) -> Any:
    """The loss as `as_function` returns it. Raises for what is not a function of outputs and targets."""
    if isinstance(loss, type):
        raise TypeError(f"loss={loss.__name__} is a class: make one of it, loss={loss.__name__}()")
    if not callable(loss):
        raise TypeError(f"loss={loss!r} must be a function loss(output, target), e.g. nn.functional.mse_loss")
    return loss.__call__ if loss.__hash__ is None else as_function(loss)  # a dataclass cannot be a key of a table


def _is_one_of(loss: Any, known: tuple[Any, ...]) -> bool:
    """Is the loss one of these functions or modules, with any settings?"""
    while isinstance(loss, partial):
        loss = loss.func
    return any(loss is x or type(loss) is x for x in known)


def enough_classes(loss: Any, shape: tuple[int, ...]) -> None:
    """Raise for the cross-entropy of a single output, which is always 0."""
    if _is_one_of(loss, (functional.cross_entropy, nn.CrossEntropyLoss)) and (len(shape) < 2 or shape[1] == 1):
        raise ValueError(
            f"cross-entropy needs a score for each class, and the output has shape {tuple(shape)}: use "
            "loss=nn.functional.binary_cross_entropy_with_logits for one output, or a last layer with an output "
            "for each class"
        )


def fitted(loss: Any, out: Any, target: Any, replicas: int = 0, own: int = 0) -> Any:
    """The target in the shape of the output, for a loss that compares the two number by number.

    Torch would broadcast outputs (N,) and targets (N, 1) to N × N pairs. Here axes of length 1 are added or dropped.
    Any other difference is an error.

    Args:
        loss: for a loss that is not known the target is returned unchanged.
        out: the outputs of the network.
        target: integers are converted to floating point.
        replicas: 1 where the first axis of the output holds replicas.
        own: 1 where the first axis of the target does.
    """
    if not isinstance(out, torch.Tensor) or not isinstance(target, torch.Tensor):
        return target
    shape = out.shape[replicas:]
    enough_classes(loss, shape)
    if not _is_one_of(loss, NUMBER_BY_NUMBER):
        return target
    if not target.is_floating_point():
        target = target.to(out.dtype)
    given = target.shape[own:]
    if given == shape:
        return target
    if [k for k in given if k != 1] != [k for k in shape if k != 1]:
        raise ValueError(
            f"the output has shape {tuple(shape)} and the target {tuple(given)}, and the loss compares them number by "
            "number: give targets of the output's shape, or a last layer with an output for each target"
        )
    return target.reshape(*target.shape[:own], *shape)


def mean_losses(loss: Loss, out: torch.Tensor, target: torch.Tensor, each: bool) -> torch.Tensor:
    """The loss of each replica, from outputs (n, batch, …) and targets that are shared or one batch for each."""
    loss = as_function(loss)
    target = fitted(loss, out, target, 1, int(each))
    if loss is functional.cross_entropy and target.dim() == 1 + each and not target.is_floating_point():
        target = target if each else target.expand(out.shape[:2])
        losses = functional.cross_entropy(out.flatten(0, 1), target.flatten(0, 1), reduction="none")
        return losses.view(*out.shape[:2], -1).flatten(1).mean(1)
    if loss in LOSSES and loss is not functional.cross_entropy:
        target = target if each else target.expand(out.shape)
        return loss(out, target, reduction="none").flatten(1).mean(1)  # type: ignore[call-arg]
    losses = torch.func.vmap(loss, in_dims=(0, 0 if each else None))(out, target)
    if losses.numel() != len(losses):
        raise _not_one(losses.shape[1:])
    return losses.reshape(-1)


def one_loss(loss: Any) -> torch.Tensor:
    """The loss of one network as a tensor without dimensions. Raises unless it is one number."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"the loss is {loss!r}, a {type(loss).__name__}: return a tensor, so that it has a gradient")
    if loss.numel() != 1:
        raise _not_one(loss.shape)
    return loss.reshape(()) if loss.dim() else loss


def _not_one(shape: Any) -> ValueError:
    return ValueError(
        f"the loss has shape {tuple(shape)}, not one number for a batch: return its mean, e.g. loss(...).mean(), or "
        "leave reduction='mean'"
    )
