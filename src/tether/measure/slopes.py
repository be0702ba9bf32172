"""Lipschitz constants of operations in the Euclidean norm, from that of what goes into them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tether.measure.lanczos import extremes

__all__ = ["FUNCTIONS", "LINES", "Live", "Unknown", "lives", "module_constant", "operator_norm"]

GELU, SILU = 1.1289042, 1.0998394  # the steepest slopes, rounded up; by tanh, GELU has 1.1289931
SELU = 1.0507009873554805 * 1.6732632423543772  # its slope at 0 from below


class Unknown(Exception):
    """No bound is known for an operation, or not for these arguments."""


@dataclass(frozen=True)
class Live:
    """A value that depends on the network's input, on an example, and a bound of its Lipschitz constant."""

    value: Any
    constant: float


def operator_norm(
    apply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, tolerance: float, iterations: int
) -> float:
    """The norm of the linear part of an affine map of tensors like x, by Lanczos on AᵀA."""
    with torch.enable_grad():
        zero = torch.zeros_like(x, requires_grad=True)
        y = apply(zero)
        if not y.requires_grad:
            return 0.0
        u = torch.zeros_like(y, requires_grad=True)
        (back,) = torch.autograd.grad(y, zero, u, create_graph=True)  # Aᵀu, whose derivative by u is A

        def forward(v: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(back, u, v.view_as(back), retain_graph=True)[0].flatten()

        def transposed(w: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(y, zero, w.view_as(y), retain_graph=True)[0].flatten()

        tall = y.numel() >= x.numel()
        first, second = (forward, transposed) if tall else (transposed, forward)

        def product(v: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(second(first(v)))

        like = (zero if tall else y).detach().flatten()
        settings = {"tolerance": tolerance, "iterations": iterations}
        found = extremes(product, like, 1, 0, **settings, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    return math.sqrt(max(found.values[-1].item(), 0.0))


def overlap(kernel: Any, stride: Any, dilation: Any, axes: int) -> float:
    """Max pooling: an entry lies in at most ⌈k/s⌉ windows along each axis, so the squares count so many times."""
    each = [value if isinstance(value, Sequence) else [value] * axes for value in (kernel, stride or kernel, dilation)]
    counts = [k if d > 1 else -(-k // s) for k, s, d in zip(*each, strict=True)]
    return math.sqrt(math.prod(counts))


SLOPES: dict[type[nn.Module], Callable[[Any], float]] = {
    **dict.fromkeys(
        (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Identity, nn.Hardtanh, nn.Softsign, nn.Softplus, nn.LogSigmoid, nn.CELU,
         nn.Softshrink, nn.Tanhshrink, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
         nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
        lambda module: 1.0,
    ),
    nn.Sigmoid: lambda module: 0.25,
    nn.Hardswish: lambda module: 1.5,
    nn.GELU: lambda module: GELU if module.approximate == "none" else 1.129,
    nn.SiLU: lambda module: SILU,
    nn.SELU: lambda module: SELU,
    nn.Softmax: lambda module: 0.5,
    nn.LeakyReLU: lambda module: max(1.0, abs(module.negative_slope)),
    nn.ELU: lambda module: max(1.0, abs(module.alpha)),
    nn.PReLU: lambda module: max(1.0, module.weight.abs().max().item()),
    nn.MaxPool1d: lambda module: overlap(module.kernel_size, module.stride, module.dilation, 1),
    nn.MaxPool2d: lambda module: overlap(module.kernel_size, module.stride, module.dilation, 2),
    nn.MaxPool3d: lambda module: overlap(module.kernel_size, module.stride, module.dilation, 3),
}  # fmt: skip
LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.AvgPool1d,
          nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Upsample,
          nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
          nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d,
          nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d, nn.Fold, nn.Unfold)  # fmt: skip
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def module_constant(module: nn.Module, x: torch.Tensor, tolerance: float, iterations: int) -> float:
    """The Lipschitz constant of a layer of torch, for inputs of this shape; an upper bound of it for max pooling."""
    if isinstance(module, nn.Linear):
        return float(torch.linalg.matrix_norm(module.weight.detach(), 2))
    if isinstance(module, NORMS):
        if module.running_var is None:
            raise Unknown("keeps no running statistics, and so depends on the whole batch")
        scale = (module.running_var + module.eps).rsqrt()
        return float((scale if module.weight is None else scale * module.weight.detach()).abs().max())
    if isinstance(module, LINEAR):
        return operator_norm(module, x, tolerance, iterations)
    if type(module) in SLOPES:
        return SLOPES[type(module)](module)
    raise Unknown("has no Lipschitz constant that is known here")


# Functions and methods. A rule takes the arguments, some of them live, and returns the bound of the result's.

Rule = Callable[..., float]


def lives(args: Any) -> list[Live]:
    """The live values among arguments."""
    if isinstance(args, Live):
        return [args]
    return [one for x in args for one in lives(x)] if isinstance(args, tuple | list) else []


def steep(slope: float) -> Rule:
    """Applied to each entry, with at most this slope; also what rearranges or leaves out entries."""
    return lambda x, *_, **__: slope * x.constant


def joined(*args: Any, **_: Any) -> float:
    """The root of the sum of squares, of what stands side by side."""
    return math.sqrt(sum(x.constant**2 for x in lives(args)))


def repeated(a: Any, b: Any) -> tuple[float, float]:
    """The constants of two arguments once they are repeated to the shape of both; 0 of what is not live."""
    values = [torch.as_tensor(x.value if isinstance(x, Live) else x) for x in (a, b)]
    size = math.prod(torch.broadcast_shapes(*[x.shape for x in values]))
    pairs = zip((a, b), values, strict=True)
    first, second = (x.constant * math.sqrt(size / y.numel()) if isinstance(x, Live) else 0.0 for x, y in pairs)
    return first, second


def plus(a: Any, b: Any, *, alpha: float = 1.0) -> float:
    """The triangle inequality: a residual block has 1 plus the constant of its branch."""
    first, second = repeated(a, b)
    return first + abs(alpha) * second


def larger(a: Any, b: Any) -> float:
    """Of the entrywise maximum."""
    return math.hypot(*repeated(a, b))


def multiplied(a: Any, b: Any) -> float:
    if isinstance(a, Live) and isinstance(b, Live):
        raise Unknown("multiplies two values that depend on the input: no bound holds for all inputs")
    factor = b if isinstance(a, Live) else a
    return sum(repeated(a, b)) * float(torch.as_tensor(factor).detach().abs().max())


def over(a: Any, b: Any) -> float:
    if isinstance(b, Live):
        raise Unknown("divides by what depends on the input: no bound holds for all inputs")
    return sum(repeated(a, b)) / float(torch.as_tensor(b).detach().abs().min())


def picked(x: Live, index: Any) -> float:
    """Of entries that are picked once each."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts):
        raise Unknown("picks entries by a list, which may take one several times")
    return x.constant


def leaky(x: Live, negative_slope: float = 0.01, inplace: bool = False) -> float:
    return x.constant * max(1.0, abs(negative_slope))


def pooled(d: int) -> Rule:
    def rule(x: Live, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, **_: Any) -> float:
        return x.constant * overlap(kernel_size, stride, dilation, d)

    return rule


FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys((torch.relu, F.relu, "relu", torch.tanh, F.tanh, "tanh", torch.abs, "abs", F.softplus, F.relu6,
                     F.hardtanh, F.softsign, F.logsigmoid, F.dropout, torch.neg, operator.neg, "neg"), steep(1.0)),
    **dict.fromkeys((torch.sin, "sin", torch.cos, "cos"), steep(1.0)),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), steep(0.25)),
    **dict.fromkeys((torch.softmax, F.softmax, "softmax"), steep(0.5)),
    F.gelu: steep(1.129), F.silu: steep(SILU), F.leaky_relu: leaky,
    **dict.fromkeys((torch.flatten, "flatten", torch.reshape, "reshape", "view", torch.permute, "permute",
                     torch.squeeze, torch.transpose, "transpose", "squeeze", torch.unsqueeze, "unsqueeze", "contiguous",
                     "clone", "t", "mT", torch.flip, "flip", torch.chunk, "chunk", torch.split, "split",
                     torch.unbind, "unbind",
                     "narrow", "select", F.pixel_shuffle), steep(1.0)),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), plus),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), plus),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), multiplied),
    **dict.fromkeys((operator.truediv, torch.div, "div"), over),
    **dict.fromkeys((torch.cat, torch.concat, torch.stack), joined),
    **dict.fromkeys((torch.maximum, torch.minimum, "maximum", "minimum"), larger),
    operator.getitem: picked,
    **{getattr(F, f"max_pool{d}d"): pooled(d) for d in (1, 2, 3)},
}  # fmt: skip
# linear in the first argument, whatever the others are
LINES = (F.linear, torch.mean, "mean", torch.sum, "sum", F.interpolate, F.pad, torch.conv1d, torch.conv2d, torch.conv3d,
         F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
         F.adaptive_avg_pool3d)  # fmt: skip
