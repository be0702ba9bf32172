"""The Hessian of a mean loss, as an operator on vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from tether.measure.batches import Batch, Loss, batches, loss_of
from tether.measure.untouched import untouched
from tether.part import matches

__all__ = ["Hessian", "hessian", "trained"]

Gradients = tuple[torch.Tensor | None, ...]


@contextmanager
def hessian(
    model: nn.Module,
    data: Any,
    loss: Loss | None = None,
    *,
    where: str = "*",
    dtype: torch.dtype | None = None,
    cache: bool | None = None,
    chunk: int | None = None,
) -> Iterator[Hessian]:
    """The Hessian of the mean loss. Inside the block the model is in eval mode; afterwards it is as before."""
    # Fused attention has no second derivative.
    with untouched(model), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        yield Hessian(model, data, loss, where, dtype, cache, chunk)


def trained(model: nn.Module, where: str = "*") -> dict[str, nn.Parameter]:
    """The parameters that match the glob and are not frozen. Raises if there are none."""
    free = {name: x for name, x in model.named_parameters() if x.requires_grad}
    found = {name: x for name, x in free.items() if matches(name, where)}
    if not found:
        names = ", ".join(map(repr, list(free)[:6])) + (", …" if len(free) > 6 else "")
        raise ValueError(f"where={where!r} matches no parameter that is not frozen; those are {names or 'none'}")
    return found


class Hessian:
    """v ↦ H v = ∇(vᵀ∇L), with v flat: the chosen parameters one after another.

    With a cached graph the gradient ∇L is computed once and kept; a product is then one backward pass through it and
    costs about two forward passes. Without it every product reads the data again, with one batch in memory at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: Loss | None,
        where: str,
        dtype: torch.dtype | None,
        cache: bool | None,
        chunk: int | None,
    ) -> None:
        chosen = trained(model, where)
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype={dtype} is too coarse for second derivatives: torch.float32 or torch.float64")
        own = next(iter(chosen.values()))
        self.dtype = dtype or (own.dtype if own.dtype in (torch.float32, torch.float64) else torch.float32)
        self.device = own.device
        self._cast = any(x.dtype != self.dtype for x in model.parameters() if x.is_floating_point())
        self._model, self._loss = model, loss
        self._state = {name: self._as(x.detach()) for name, x in (*model.named_parameters(), *model.named_buffers())}
        self._leaves = [self._state[name].requires_grad_() for name in chosen]
        self.names = tuple(chosen)
        self.sizes = [x.numel() for x in self._leaves]
        self.n = sum(self.sizes)
        self._data = batches(data, chunk)
        single = isinstance(self._data, list) and len(self._data) == 1
        self._kept: list[tuple[float, Gradients]] | None = None
        self.products, self._rows, self.loss = 0, 0, math.nan
        if cache if cache is not None else single:
            self._kept = [(batch.rows, gradients) for batch, gradients in self._graphs()]

    def _as(self, x: Any) -> Any:
        floating = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.to(self.dtype) if self._cast and floating else x

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._model, self._state, args, kwargs)

    def _graphs(self) -> Iterator[tuple[Batch, Gradients]]:
        """The gradient of every batch, with its graph. Raises if the loss differs from that of the first pass."""
        total, rows = 0.0, 0
        for given in self._data:
            batch = given._replace(
                args=tree_map(self._as, given.args),
                kwargs=tree_map(self._as, given.kwargs),
                targets=tree_map(self._as, given.targets),
            )
            value = loss_of(self._call, batch, self._loss)
            if value.dim() or not math.isfinite(value.item()):
                shown = f"of shape {tuple(value.shape)}" if value.dim() else f"{value.item()}"
                raise ValueError(
                    f"the loss is {shown}: the Hessian is that of a finite mean loss; check the data and the "
                    "parameters, and that loss(output, target) returns a single number"
                )
            total, rows = total + value.item() * batch.rows, rows + batch.rows
            if not value.requires_grad:
                yield batch, (None,) * len(self._leaves)
                continue
            yield batch, torch.autograd.grad(value, self._leaves, create_graph=True, allow_unused=True)
        if self._rows and (rows != self._rows or abs(total / rows - self.loss) > 1e-3 * (abs(self.loss) + 1e-6)):
            raise ValueError(
                f"one pass through the data gave {self._rows} points of mean loss {self.loss:.6g}, another {rows} of "
                f"{total / rows:.6g}: a Hessian needs the same points every time; pass a list of batches"
            )
        self._rows, self.loss = rows, total / rows

    def __call__(self, v: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """H v, in `out` if there is one: fresh memory for a vector costs more than its numbers."""
        self.products += 1
        result = torch.empty_like(v) if out is None else out
        seen = 0.0
        for rows, gradients in self._kept or ((batch.rows, g) for batch, g in self._graphs()):
            if seen:  # a running mean, since the number of points is known only after the first pass
                result.lerp_(self._product(gradients, v, torch.empty_like(v)), rows / (seen + rows))
            else:
                self._product(gradients, v, result)
            seen += rows
        if not bool(torch.isfinite(result.sum())):
            raise ValueError(
                "a product with the Hessian is not finite: the loss has no second derivative at these parameters, or "
                "it overflows; try dtype=torch.float64"
            )
        return result

    def _product(self, gradients: Sequence[torch.Tensor | None], v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        views = [u.view_as(x) for u, x in zip(torch.split(v, self.sizes), self._leaves, strict=True)]
        pairs = [(g, u) for g, u in zip(gradients, views, strict=True) if g is not None and g.requires_grad]
        if not pairs:
            return out.zero_()
        outputs, weights = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, self._leaves, weights, retain_graph=True, materialize_grads=True)
        return torch.cat([x.reshape(-1) for x in found], out=out)

    def matrix(self) -> torch.Tensor:
        """All of H, from its products with the unit vectors."""
        H = torch.empty(self.n, self.n, dtype=self.dtype, device=self.device)
        unit = torch.zeros(self.n, dtype=self.dtype, device=self.device)
        for i in range(self.n):
            unit[i] = 1
            H[i] = self(unit)
            unit[i] = 0
        return (H + H.mT) / 2
