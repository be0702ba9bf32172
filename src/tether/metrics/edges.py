"""Products with the edges |w|^p of a layer, and steps divided by γ: by a compiled kernel, or by torch.

The kernel reads a weight matrix once, without forming |w|^p, and sums in float64. It is used for contiguous float32 and
float64 matrices on the CPU and p = 1 or 2. Everything else is computed by torch, with the same numbers to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tether import native
from tether.engine import host

__all__ = ["Flow", "Flows", "ahead", "back", "divide", "in_float32", "kernel_takes", "power", "product"]

# ∂J/∂|w|^p for one use of a parameter w: one tensor, or two vectors whose outer product it is.
Flow = tuple[torch.Tensor, ...]
Flows = dict[torch.Tensor, list[Flow]]
Convolution = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of what flows in and the edges


def power(w: torch.Tensor, p: float) -> torch.Tensor:
    """|w|^p in the widest dtype of the device, since products over many layers leave the range of float32."""
    # Apple's GPUs have no float64.
    w = w.detach().to(torch.float32 if w.device.type == "mps" else torch.float64)
    return w.abs() if p == 1 else w.square() if p == 2 else w.abs().pow_(p)


def _threads(w: torch.Tensor) -> int:
    return torch.get_num_threads() if w.numel() >= native.SMALL else 1


def kernel_takes(w: torch.Tensor, b: torch.Tensor | None = None) -> bool:
    """Can the kernel take this weight, and the bias of its layer?"""
    if not native.serves(w.dtype, w.device) or not native.plain(w, w.dtype):
        return False
    return b is None or (native.plain(b, w.dtype) and b.shape == w.shape[:-1])


def product(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, p: float, anchor: torch.Tensor | None, flows: Flows
) -> torch.Tensor:
    """y = |w|^p x + |b|^p for one vector x, by the kernel.

    With an anchor, a tensor that connects y to the autograd graph, the backward pass stores the derivatives by |w|^p
    and |b|^p in `flows`.
    """
    if anchor is None:
        return ahead(x, w, b, p)
    return _Product.apply(x, anchor, w, b, p, flows)  # type: ignore[no-untyped-call]


def ahead(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, p: float) -> torch.Tensor:
    """The same without a graph. Weights of shape (n, rows, columns) are those of n networks, with a vector for each."""
    *stack, rows, columns = w.shape
    nets = math.prod(stack)
    x, y = x.detach().contiguous(), torch.empty((*x.shape[:-1], rows), dtype=torch.float64, device="cpu")
    layer, counts = ([w], [w.numel()]) if b is None else ([w, b], [w.numel(), nets * rows])
    edges = native.where("a layer", layer, w.dtype, *counts)
    ends = native.where("what flows into a layer", [x], torch.float64, nets * columns)[0], y.data_ptr()
    sizes = nets, rows, columns, p == 2, _threads(w)
    native.call("ahead", w.dtype, edges[0], None if b is None else edges[1], *ends, *sizes)
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        anchor: torch.Tensor,
        w: torch.Tensor,
        b: torch.Tensor | None,
        p: float,
        flows: Flows,
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        ctx.own = x, w, b, p, flows
        return ahead(x, w, b, p)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w, b, p, flows = ctx.own
        y = grads[0].detach().contiguous()
        flat = y.flatten()
        flows.setdefault(w, []).append((flat, x.flatten()))
        if b is not None:
            flows.setdefault(b, []).append((flat,))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None, None
        return back(y, w, p).view_as(x), None, None, None, None, None


def back(y: torch.Tensor, w: torch.Tensor, p: float) -> torch.Tensor:
    """The backward pass of y = |w|^p x, by the kernel: the transpose of |w|^p times the incoming derivative."""
    *stack, rows, columns = w.shape
    nets = math.prod(stack)
    x = torch.zeros(*stack, columns, dtype=torch.float64, device="cpu")
    edges = native.where("a layer", [w], w.dtype, w.numel())[0]
    ends = native.where("what flows back", [y], torch.float64, nets * rows)[0], x.data_ptr()
    native.call("back", w.dtype, edges, *ends, nets, rows, columns, p == 2, _threads(w))
    return x


def in_float32(
    x: torch.Tensor, w: torch.Tensor, p: float, layer: Convolution, anchor: torch.Tensor | None, flows: Flows
) -> torch.Tensor:
    """layer(x, |w|^p) computed in float32, in which convolutions are several times faster.

    In both passes the input is scaled to at most 1 by a power of two, so that it stays in range.
    """
    if anchor is not None:
        return _Single.apply(x, anchor, w, p, layer, flows)  # type: ignore[no-untyped-call]
    s = _unit(x)
    return layer((x * s).float(), _edges32(w, p)).double() / s


def _edges32(w: torch.Tensor, p: float) -> torch.Tensor:
    w = w.detach().float()
    return w.abs() if p == 1 else w.square() if p == 2 else w.abs().pow_(p)


def _unit(x: torch.Tensor) -> Any:
    """The power of two that scales the largest entry to between ½ and 1."""
    if not host.reads(x.device):
        return torch.exp2(-1 - x.amax().clamp_min(torch.finfo(x.dtype).tiny).log2().floor())
    high = x.amax().item() if x.numel() else 0.0
    return 2.0 ** -math.frexp(high)[1]


class _Single(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, anchor: torch.Tensor, w: torch.Tensor, p: float, layer: Convolution, flows: Flows
    ) -> torch.Tensor:
        s = _unit(x)
        with torch.enable_grad():
            inputs = (x.detach() * s).float().requires_grad_(x.requires_grad), _edges32(w, p).requires_grad_()
            y = layer(*inputs)
        ctx.own = inputs, y, s, w, flows
        return y.detach().double() / s

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, y, s, w, flows = ctx.own
        t = _unit(grads[0])
        wanted = [x for x in inputs if x.requires_grad]
        found = torch.autograd.grad(y, wanted, (grads[0].detach() * t).float())
        flows.setdefault(w, []).append((found[-1].double().div_(s * t),))
        return found[0].double() / t if len(found) == 2 else None, None, None, None, None, None


def divide(g: torch.Tensor, factors: Flow, out: torch.Tensor, times: float = 1.0, keep: float = 0.0) -> torch.Tensor:
    """out ← keep·out + times · g/γ, with 0 for g/γ where γ = 0; γ is the product of the factors.

    Factors are one tensor of the shape of g, or a column (rows × 1) and a row (1 × columns), or a stack of these.
    """
    shapes = [tuple(g.shape)]
    if len(factors) == 2 and g.dim() > 1:
        shapes = [(*g.shape[:-1], 1), (*g.shape[:-2], 1, g.shape[-1])]
    alike = out.shape == g.shape and [tuple(x.shape) for x in factors] == shapes
    tensors = (g, out, *factors)
    at = native.addresses(tensors, g.dtype, [x.numel() for x in tensors]) if alike and kernel_takes(g) else None
    if at is not None:
        *stack, rows, columns = (1, g.numel()) if len(factors) == 1 else g.shape
        sizes = math.prod(stack), rows, columns, _threads(g)
        native.call("divide", g.dtype, at[0], at[2] if len(factors) == 2 else None, at[-1], times, keep, at[1], *sizes)
        return out
    γ = factors[0] if len(factors) == 1 else factors[0] * factors[1]
    quotient = torch.where(γ > 0, times * g / γ, 0.0)
    return out.copy_(quotient) if keep == 0 else out.mul_(keep).add_(quotient)
