"""The rules that turn the operations of a positively homogeneous network into those of its network of |w|^p.

A network of linear layers and ReLUs is a graph of edges: weights, biases (edges from a unit that is always 1) and
constant factors. Replace every edge c by |c|^p and every activation by the identity. The output of that network on an
all-ones input is the sum of Π |w_e|^p over all paths (Path-SGD slides). The rules:

- ReLU, abs, dropout: the identity. LeakyReLU too, but for a slope |a| > 1, which becomes the factor |a|^p.
- Max pooling, maximum: the sum. A path may lead through any input of the window; the path norm counts them all.
- Average pooling, mean: the sum over the window divided by n^p, as each of its n edges has weight 1/n.
- BatchNorm, in its eval form g (x − m)/σ + β: the factor |g/σ|^p and a bias |g (b − m)/σ + β|^p, with b the bias of
  the layer before, if nothing else uses that layer's output; else b = 0 and it is a diagonal layer of its own.
- Subtraction, negation and factors: absolute values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tether.metrics.edges import Flows, in_float32, kernel_takes, power, product

__all__ = ["CONVOLUTIONS", "FUNCTIONS", "LAYERS", "NORMS", "Pass", "Rule", "Unfit", "module_rule", "unchanged"]

Rule = Callable[..., Any]  # of a `Pass` and the arguments of the operation
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Unfit(Exception):
    """Raised by a rule for arguments that it does not support."""


class Pass:
    """One evaluation of a traced network: the edges |w|^p that it has used, and the derivatives by them.

    `held` gives the edges and values of parameters and buffers if they should not be read from the modules.
    """

    def __init__(
        self,
        p: float,
        modules: Sequence[nn.Module],
        differentiate: bool = False,
        held: tuple[dict[torch.Tensor, torch.Tensor], dict[torch.Tensor, torch.Tensor]] | None = None,
    ) -> None:
        self.p, self.modules, self.differentiate, self.held = p, modules, differentiate, held
        self.edges: dict[torch.Tensor, torch.Tensor] = {} if held is None else held[0]
        self.flows: Flows = {}
        # Connects the compiled products, whose weights are not leaves, to the autograd graph.
        self.anchor = torch.zeros(0, requires_grad=True, device="cpu") if differentiate else None

    def tensor(self, place: int, name: str) -> torch.Tensor | None:
        module = self.modules[place]
        return module._parameters[name] if name in module._parameters else module._buffers[name]

    def edge(self, w: torch.Tensor | None) -> torch.Tensor | None:
        """|w|^p: a leaf, the same wherever w is used, so that the derivative sums over its uses."""
        if w is None:
            return None
        if w not in self.edges:
            edge = power(w, self.p)
            self.edges[w] = edge.requires_grad_() if self.differentiate and isinstance(w, nn.Parameter) else edge
        return self.edges[w]

    def value(self, w: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """The value of w; 0 if there is none."""
        if w is None:
            return like.new_zeros(())
        return (w.detach() if self.held is None else self.held[1][w]).to(like.dtype)

    def factor(self, c: Any) -> Any:
        """|c|^p of a number. A tensor is returned as it is: it is a power already."""
        return c if isinstance(c, torch.Tensor) else abs(c) ** self.p

    def product(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        """|w|^p x + |b|^p; for one vector by the kernel, which reads w once."""
        one = self.held is None and self.p in (1.0, 2.0) and x.numel() == w.shape[1] and x.dtype == torch.float64
        if one and kernel_takes(w, b):
            return product(x, w, b, self.p, self.anchor, self.flows)
        return F.linear(x, self.edge(w), self.edge(b))  # type: ignore[arg-type]


def unchanged(run: Pass, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _leaky(run: Pass, x: torch.Tensor, negative_slope: float = 0.01, *_: Any, **__: Any) -> torch.Tensor:
    return x if abs(negative_slope) <= 1 else x * run.factor(negative_slope)


def _as_is(operation: Callable[..., Any]) -> Rule:
    """The rule of operations that rearrange numbers or return sizes: apply them."""
    return lambda run, *args, **kwargs: operation(*args, **kwargs)


def _method(name: str) -> Rule:
    return lambda run, x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _attribute(run: Pass, x: Any, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise Unfit(f"reads .{name}, for which there is no rule")
    return getattr(x, name)


def _plus(operation: Callable[[Any, Any], Any]) -> Rule:
    def rule(run: Pass, a: Any, b: Any, *, alpha: Any = 1) -> Any:
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            return operation(a, b)  # of sizes
        return run.factor(a) + (run.factor(b) if alpha == 1 else run.factor(b) * run.factor(alpha))

    return rule


def _times(operation: Callable[[Any, Any], Any]) -> Rule:
    def rule(run: Pass, a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            return operation(a, b)
        return operation(run.factor(a), run.factor(b))

    return rule


def _on_sizes(operation: Callable[..., Any]) -> Rule:
    def rule(run: Pass, *args: Any) -> Any:
        if any(isinstance(a, torch.Tensor) for a in args):
            raise Unfit("")
        return operation(*args)

    return rule


def _sum(run: Pass, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> torch.Tensor:
    return x.sum() if dim is None else x.sum(dim, keepdim)


def _mean(run: Pass, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> torch.Tensor:
    total = _sum(run, x, dim, keepdim)
    return total * (x.numel() / total.numel()) ** -run.p


def _pad(run: Pass, x: torch.Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> torch.Tensor:
    if mode == "constant" and value:
        raise Unfit("pads with a number that is not 0: paths start at inputs and biases only")
    return F.pad(x, pad, mode)


def _nearest(run: Pass, x: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *_: Any,
             **__: Any) -> torch.Tensor:  # fmt: skip
    if mode != "nearest":
        raise Unfit(f"interpolates by mode={mode!r}: only mode='nearest' copies values along paths")
    return F.interpolate(x, size, scale_factor, mode)


def _tuple(value: Any, d: int) -> tuple[int, ...]:
    return (value,) * d if isinstance(value, int) else tuple(value) * (d if len(value) == 1 else 1)


def _windows(x: torch.Tensor, d: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> torch.Tensor:
    """Sums over the windows of a pooling."""
    size, padding, dilation = (_tuple(value, d) for value in (size, padding, dilation))
    stride = _tuple(stride, d) if stride else size
    if set(dilation) == {1} and d > 1:
        return getattr(F, f"avg_pool{d}d")(x, size, stride, padding, ceil, divisor_override=1)
    if set(dilation) == {1}:
        flat = F.avg_pool2d(x.unsqueeze(-2), (1, *size), (1, *stride), (0, *padding), ceil, divisor_override=1)
        return flat.squeeze(-2)
    out = getattr(F, f"max_pool{d}d")(x, size, stride, padding, dilation, ceil).shape[2:]
    pads: list[int] = []
    for n, m, k, s, q, e in zip(x.shape[2:], out, size, stride, padding, dilation, strict=True):
        pads = [q, max(q, (m - 1) * s + e * (k - 1) + 1 - n - q), *pads]  # F.pad counts from the last axis
    ones = x.new_ones((x.shape[1], 1, *size))
    sums = getattr(F, f"conv{d}d")(F.pad(x, pads), ones, None, stride, 0, dilation, x.shape[1])
    for axis, m in enumerate(out, start=2):
        sums = sums.narrow(axis, 0, m)
    return sums


def _max_pool(d: int) -> Rule:
    def rule(run: Pass, x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False, return_indices: bool = False) -> torch.Tensor:  # fmt: skip
        if return_indices:
            raise Unfit("returns indices, which depend on the data: use return_indices=False")
        return _windows(x, d, kernel_size, stride, padding, dilation, ceil_mode)

    return rule


def _average_pool(d: int) -> Rule:
    def rule(run: Pass, x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
             ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None
             ) -> torch.Tensor:  # fmt: skip
        sums = _windows(x, d, kernel_size, stride, padding, 1, ceil_mode)
        if divisor_override or not (ceil_mode or (padding and not count_include_pad)):
            return sums * abs(divisor_override or math.prod(_tuple(kernel_size, d))) ** -run.p
        ones = torch.ones_like(x[:1, :1])
        means = getattr(F, f"avg_pool{d}d")(ones, kernel_size, stride, padding, ceil_mode, count_include_pad)
        counts = _windows(ones, d, kernel_size, stride, padding, 1, ceil_mode) / means
        return sums * counts**-run.p

    return rule


def _adaptive_pool(d: int, average: bool) -> Rule:
    def rule(run: Pass, x: torch.Tensor, output_size: Any, return_indices: bool = False) -> torch.Tensor:
        if return_indices:
            raise Unfit("returns indices, which depend on the data: use return_indices=False")
        means = getattr(F, f"adaptive_avg_pool{d}d")(x, output_size)
        counts = x.new_ones(())
        for n, m in zip(x.shape[2:], means.shape[2:], strict=True):
            bins = [-(-(i + 1) * n // m) - i * n // m for i in range(m)]
            counts = counts.unsqueeze(-1) * x.new_tensor(bins)
        return means * (counts ** (1 - run.p) if average else counts)

    return rule


def _linear(run: Pass, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, w, b)


def _batch_norm(run: Pass, x: torch.Tensor, place: int, before: tuple[int, str] | None) -> torch.Tensor:
    """The factor |g/σ|^p and the bias |g (b − m)/σ + β|^p.

    The bias is one edge to which b, g and β contribute. The derivative by each is that of its entry of the path vector,
    |∂(bias)/∂b|^p and so on. It is added as a term whose value is 0.
    """
    module: Any = run.modules[place]
    g, β = module._parameters["weight"], module._parameters["bias"]
    b = None if before is None else run.tensor(*before)
    m, σ = run.value(module.running_mean, x), (run.value(module.running_var, x) + module.eps).sqrt()
    shift = (run.value(b, x) - m) / σ
    edge, scale = (x.new_ones(()), x.new_ones(())) if g is None else (run.edge(g), run.value(g, x))
    assert edge is not None
    bias = power(scale * shift + run.value(β, x), run.p)
    if run.differentiate:
        parts = [edge * shift.abs() ** run.p]
        parts += [] if b is None else [run.edge(b) * (scale / σ).abs() ** run.p]
        parts += [] if β is None else [run.edge(β)]
        inert = sum(parts[1:], parts[0])
        bias = bias + (inert - inert.detach())
    shape = (1, -1, *[1] * (x.dim() - 2))
    return x * (edge / σ**run.p).view(shape) + bias.view(shape)


def _layer(module: nn.Module, place: int, biased: bool) -> Rule:
    """The rule of a linear or convolutional layer, without its bias if a BatchNorm includes it."""
    if isinstance(module, nn.Linear):

        def linear(run: Pass, x: torch.Tensor) -> torch.Tensor:
            layer = run.modules[place]
            w, b = layer._parameters["weight"], layer._parameters["bias"] if biased else None
            return run.product(x, w, b)  # type: ignore[arg-type]

        return linear

    def convolution(run: Pass, x: torch.Tensor) -> torch.Tensor:
        layer: Any = run.modules[place]
        w, b = layer._parameters["weight"], layer._parameters["bias"] if biased else None

        def apply(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            if type(layer) in CONVOLUTIONS:
                return layer._conv_forward(x, edges, None)
            more = layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
            return getattr(F, f"conv_transpose{x.dim() - 2}d")(x, edges, None, *more)

        narrow = run.held is None and w.dtype is not torch.float64 and x.dtype is torch.float64
        y = in_float32(x, w, run.p, apply, run.anchor, run.flows) if narrow else apply(x, run.edge(w))  # type: ignore[arg-type]
        return y if b is None else y + run.edge(b).view(-1, *[1] * (y.dim() - 2))  # type: ignore[union-attr]

    return convolution


LAYERS = (nn.Linear, *CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ACTIVATIONS = (nn.ReLU, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
SHAPES = (nn.Flatten, nn.Unflatten)
COPIES = (nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
          nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d,
          nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)  # fmt: skip
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
POOLS: dict[type[nn.Module], tuple[Rule, tuple[str, ...]]] = {}
for _d, _max, _mean_, _amax, _amean in (
    (1, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d),
    (2, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d),
    (3, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveMaxPool3d, nn.AdaptiveAvgPool3d),
):
    _size = ("kernel_size", "stride", "padding")
    POOLS[_max] = _max_pool(_d), (*_size, "dilation", "ceil_mode", "return_indices")
    POOLS[_mean_] = _average_pool(_d), (*_size, "ceil_mode", "count_include_pad", *["divisor_override"] * (_d > 1))
    POOLS[_amax] = _adaptive_pool(_d, False), ("output_size", "return_indices")
    POOLS[_amean] = _adaptive_pool(_d, True), ("output_size",)


def module_rule(module: nn.Module, place: int, before: tuple[int, str] | None, biased: bool) -> tuple[Rule, str] | None:
    """The rule and the role of a module; None if there is no rule. Types must match exactly: a subclass may differ."""
    kind = type(module)
    settings: Any = module
    if kind in LAYERS:
        if "weight" not in module._parameters:
            raise Unfit("computes its weight from other parameters, which path norms do not support")
        return _layer(module, place, biased), "layer"
    if kind in NORMS:
        if settings.running_mean is None:
            raise Unfit("keeps no running statistics: path norms need those, with track_running_stats=True")
        return lambda run, x: _batch_norm(run, x, place, before), "norm"
    if kind in ACTIVATIONS:
        return unchanged, "activation"
    if kind is nn.LeakyReLU:
        slope = settings.negative_slope
        return unchanged if abs(slope) <= 1 else lambda run, x: _leaky(run, x, slope), "activation"
    if kind in SHAPES or kind in COPIES:
        # without hooks, which do not expect these numbers
        return lambda run, x: run.modules[place].forward(x), "shape" if kind in SHAPES else "other"
    if kind is nn.Upsample:
        fixed = settings.size, settings.scale_factor, settings.mode
        return lambda run, x: _nearest(run, x, *fixed), "other"
    if kind in POOLS:
        rule, fields = POOLS[kind]
        options = {field: getattr(module, field) for field in fields}
        return lambda run, x: rule(run, x, **options), "pool"
    if kind is nn.PReLU:
        raise Unfit("has a slope that is itself a weight, but no edge: use LeakyReLU")
    return None


# By function or name of a method: the rule and the role.
FUNCTIONS: dict[Any, tuple[Rule, str]] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"), (unchanged, "activation")),
    **dict.fromkeys((torch.abs, "abs", "abs_"), (unchanged, "activation")),
    **dict.fromkeys((F.leaky_relu, F.leaky_relu_), (_leaky, "activation")),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout), (unchanged, "activation")),
    **dict.fromkeys(("contiguous", "clone", "detach", "to", "float", "double", torch.clone), (unchanged, "activation")),
    **dict.fromkeys((torch.neg, operator.neg, "neg", "neg_", operator.pos), (unchanged, "other")),
    **{f: (_as_is(f), "shape") for f in (torch.flatten, torch.reshape)},
    **{f: (_method(f), "shape") for f in ("flatten", "view", "reshape")},
    **{
        f: (_as_is(f), "other")
        for f in (torch.cat, torch.concat, torch.stack, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze,
                  torch.chunk, torch.split, torch.unbind, torch.flip, F.pixel_shuffle, operator.getitem)
    },
    **{
        f: (_method(f), "other")
        for f in ("permute", "transpose", "squeeze", "unsqueeze", "expand", "repeat", "chunk", "split", "unbind",
                  "flip", "t", "size", "dim", "numel", "narrow", "select")
    },
    getattr: (_attribute, "other"),
    F.pad: (_pad, "other"),
    F.interpolate: (_nearest, "other"),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), (_plus(operator.add), "other")),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), (_plus(operator.sub), "other")),
    **dict.fromkeys((torch.maximum, torch.minimum, "maximum", "minimum"), (_plus(max), "other")),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), (_times(operator.mul), "other")),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div), (_times(operator.truediv), "other")),
    **dict.fromkeys(("div", "div_"), (_times(operator.truediv), "other")),
    **dict.fromkeys((operator.matmul, torch.matmul, torch.mm, torch.bmm, "matmul"), (_times(operator.matmul), "other")),
    **{f: (_on_sizes(f), "other") for f in (operator.floordiv, operator.mod, operator.eq, operator.ne)},
    **dict.fromkeys((torch.sum, "sum", torch.amax, "amax", torch.amin, "amin"), (_sum, "other")),
    **dict.fromkeys((torch.mean, "mean"), (_mean, "other")),
    F.linear: (_linear, "other"),
    **{f: (_as_is(f), "other") for f in (torch.conv1d, torch.conv2d, torch.conv3d)},
    **{f: (_as_is(f), "other") for f in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)},
    torch._assert: (lambda run, *_: None, "other"),
}  # fmt: skip
for _d in (1, 2, 3):
    for _names, _rule in (
        ((f"max_pool{_d}d",), _max_pool(_d)),
        ((f"avg_pool{_d}d",), _average_pool(_d)),
        ((f"adaptive_max_pool{_d}d",), _adaptive_pool(_d, False)),
        ((f"adaptive_avg_pool{_d}d",), _adaptive_pool(_d, True)),
    ):
        FUNCTIONS.update({getattr(F, name): (_rule, "pool") for name in _names})
