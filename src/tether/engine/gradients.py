"""Gradients as they come: which of them cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether import native
from tether.engine.given import named

__all__ = [
    "NonFiniteEnergy",
    "NonFiniteGradient",
    "check_kind",
    "check_shape",
    "faulty_gradients",
    "faulty_replicas",
    "finite",
]

Groups = list[dict[str, Any]]
SKIP = "Optimizer(..., on_nonfinite='skip')"


class NonFiniteGradient(RuntimeError):
    """A gradient holds inf or nan; nothing has been moved. `names` are the parameters concerned."""

    def __init__(self, found: Mapping[str, str], replicas: Sequence[int] = (), skip: str = SKIP) -> None:
        where = "; ".join(f"{name!r} ({what})" for name, what in found.items())
        where += f"; replica {', '.join(map(str, replicas))}" if replicas else ""
        super().__init__(
            f"non-finite gradient in {where}. No parameter was moved: lower lr or clip the gradient, "
            f"or skip such steps with {skip}"
        )
        self.names, self.replicas = tuple(found), tuple(replicas)


class NonFiniteEnergy(RuntimeError):
    """The energy where a proposal starts is inf or nan; nothing has been moved."""

    def __init__(self, energy: float, replicas: Sequence[int] = ()) -> None:
        where = f" of replica {', '.join(map(str, replicas))}" if replicas else ""
        super().__init__(
            f"the energy{where} is {energy} at the start of a proposal, so that nothing can be compared with it. No "
            "parameter was moved: start elsewhere, or skip such steps with Optimizer(..., on_nonfinite='skip')"
        )
        self.replicas = tuple(replicas)


def faulty_gradients(groups: Groups) -> dict[str, str]:
    """The non-finite gradients by name; a gradient of the wrong kind is an error at once."""
    alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    first = 0
    for group in groups:
        for i, param in enumerate(group["params"]):
            grad = param.grad
            if grad is None:
                continue
            check_kind(group, first, i)
            alike.setdefault((grad.dtype, grad.device), []).append(grad)
        first += len(group["params"])
    if all(finite(grads) for grads in alike.values()):
        return {}
    found, first = {}, 0
    for group in groups:
        for name, param in named(group, first):
            if param.grad is not None and not param.grad.isfinite().all():
                nan, inf = int(param.grad.isnan().sum()), int(param.grad.isinf().sum())
                found[name] = f"{nan} nan and {inf} inf of {param.numel()}"
        first += len(group["params"])
    return found


def check_kind(group: dict[str, Any], first: int, i: int) -> None:
    """Raise unless the gradient of parameter i of a group is dense, real and of its shape."""
    param = group["params"][i]
    grad = param.grad
    if grad.shape != param.shape:
        check_shape(named(group, first)[i][0], param)
    if grad.layout is not torch.strided or grad.dtype.is_complex:
        name = named(group, first)[i][0]
        kind = "complex" if grad.dtype.is_complex else "sparse"
        fix = "use nn.Embedding(..., sparse=False)" if kind == "sparse" else "use torch.view_as_real"
        raise TypeError(f"the gradient of {name!r} is {kind}; tether needs dense real gradients: {fix}")


def check_shape(name: str, param: torch.Tensor) -> None:
    """Raise for a gradient of another shape."""
    grad = param.grad
    if grad is not None and grad.shape != param.shape:
        raise ValueError(
            f"{name!r} has shape {tuple(param.shape)} and a gradient of shape {tuple(grad.shape)}: it was replaced "
            "after the backward pass; call backward() again"
        )


def faulty_replicas(groups: Groups) -> list[int]:
    """Those with a non-finite gradient, but for the stopped ones."""
    faulty: set[int] = set()
    for group in groups:
        for param in group["params"]:
            if param.grad is not None:
                rows = param.grad.reshape(len(param), -1).isfinite().all(1)
                faulty |= set((~rows).nonzero().flatten().tolist())
    return sorted(faulty - set(groups[0]["stopped"]))


def finite(grads: list[torch.Tensor]) -> bool:
    """Are these gradients, alike in dtype and device, finite? A sum that is not may be mere overflow."""
    answer = native.finite(grads)
    if answer is not None:
        return answer
    sums = torch.stack([grad.sum(dtype=torch.float32) for grad in grads])
    return bool(sums.isfinite().all()) or all(bool(grad.isfinite().all()) for grad in grads)
