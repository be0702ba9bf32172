"""Path norms, group norms and rescalings of ReLU networks (Path-SGD slides)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from tether.metrics.edges import power
from tether.metrics.homogeneous import CONVOLUTIONS
from tether.metrics.path import exponent, path_sum
from tether.metrics.tracing import traced_graph

__all__ = ["balance", "group_norm", "path_norm", "path_vector", "rescale"]

RULE = (
    "rescale and balance take chains of Linear and convolutional layers with ReLUs, pooling, flattening and dropout "
    "between them, and BatchNorm only once it is folded into the layer before"
)
Factor = float | torch.Tensor | Sequence[float]


def path_norm(model: nn.Module, p: float = 2, input_shape: Sequence[int] | None = None) -> float:
    """‖π(w)‖_p = (Σ over paths of Π |w_e|^p)^{1/p}, over all paths from an input, or a bias, to an output.

    The network is treated as in `tether.Path`: BatchNorm uses its running statistics, dropout is the identity, and max
    pooling is a node with a path through every input of its window.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    >>> net[0].weight.data, net[2].weight.data = torch.tensor([[6.0, 1], [1, 4]]), torch.tensor([[1.0, 1], [1, 2]])
    >>> path_norm(net, p=1)  # the slides' example: 6 + 6 + 1 + 2 + 1 + 1 + 4 + 8
    29.0

    Args:
        model: of linear and convolutional layers, ReLUs, pooling, sums and the like.
        p: 1 or more.
        input_shape: of one input, without the batch axis; needed if the first layer does not determine it.
    """
    p = exponent(p)
    return path_sum(model, p, input_shape) ** (1 / p)


@torch.no_grad()
def path_vector(model: nn.Module, most: int = 10_000_000) -> torch.Tensor:
    """π(w): the product of the weights along every path from an input to an output (Path-SGD slides).

    Its p-norm is `path_norm`, which takes every network that `tether.Path` takes and does not list the paths. The paths
    are in the order of their input, then of the unit of each layer, the output last; those that begin with a bias come
    after those from the inputs, the biases of the first layer first.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    >>> net[0].weight.data, net[2].weight.data = torch.tensor([[6.0, 1], [1, 4]]), torch.tensor([[1.0, 1], [1, 2]])
    >>> path_vector(net)
    tensor([6., 6., 1., 2., 1., 1., 4., 8.])

    Args:
        model: a chain of Linear layers with ReLUs and dropout between them.
        most: more paths than this are refused: their number is the product of all widths.
    """
    links = _chain(model)
    for link in links:
        if not isinstance(link.module, nn.Linear):
            kind = type(link.module).__name__
            raise ValueError(f"{link.name!r} ({kind}) is no Linear layer: use path_norm, which needs no list of paths")
    widths = [links[0].module.in_features, *(link.units for link in links)]
    begins = [0, *(i for i, link in enumerate(links, 1) if link.module.bias is not None)]
    count = sum(math.prod(widths[i:]) for i in begins)
    if count > most:
        raise ValueError(f"{type(model).__name__} has {count:,} paths, more than most={most:,}: use path_norm")
    found = []
    for first in begins:
        paths = torch.ones_like(links[0].module.weight[0]) if first == 0 else links[first - 1].module.bias.detach()
        for link in links[first:]:
            paths = paths.unsqueeze(-1) * link.module.weight.detach().T
        found.append(paths.flatten())
    return torch.cat(found)


@torch.no_grad()
def group_norm(model: nn.Module, p: float = 1, q: float = math.inf) -> float:
    """μ_{p,q}(w) = (Σ over units v of (Σ over edges u → v of |w|^p)^{q/p})^{1/q}; q = ∞ is the max-norm.

    A unit is a row of a Linear layer or a channel of a convolution; its bias is one of its edges. μ_{2,2} is the norm
    of all weights. Unlike the path norm it is not invariant under `rescale`.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    >>> net[0].weight.data = torch.tensor([[3.0, 4.0]])
    >>> round(group_norm(net, p=2, q=2), 5)
    5.0
    """
    p = exponent(p)
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not q >= 1:
        raise ValueError(f"q={q!r} must be 1 or more, or math.inf; e.g. q=math.inf for the max-norm")
    units: dict[int, torch.Tensor] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        if not isinstance(module, (nn.Linear, *CONVOLUTIONS)) or not set(own) <= {"weight", "bias"}:
            raise ValueError(
                f"{name!r} ({type(module).__name__}) has parameters but no units: group norms are those of nets of "
                "Linear and convolutional layers"
            )
        units[id(module.weight)] = _incoming(module, p)
    norms = torch.cat([*units.values(), torch.zeros(1)]).pow(1 / p)
    return torch.linalg.vector_norm(norms, q).item()


def rescale(
    model: nn.Module,
    factors: Mapping[str, Factor] | None = None,
    *,
    seed: int | None = None,
    spread: float = 1e3,
    inplace: bool = False,
) -> nn.Module:
    """ρ_{c,v} for every hidden unit v: weights and bias into it times c_v, weights out of it over c_v.

    The function of the network and its path norm do not change. The network must be a chain of Linear and convolutional
    layers with ReLUs, pooling, flattening and dropout between them. A channel of a convolution is a unit.

    Args:
        model: the network; a rescaled copy is returned.
        factors: the c of each hidden layer by its name, e.g. ``{"0": [1.0, 10.0]}``: positive, one for each unit or one
            for all. Other layers are not rescaled.
        seed: instead of factors: every log c is drawn uniformly, with c in [1/spread, spread].
        spread: the largest c that is drawn.
        inplace: change the model itself.
    """
    if (factors is None) == (seed is None):
        raise ValueError("give either factors or a seed; e.g. rescale(model, {'0': 10.0}) or rescale(model, seed=0)")
    if not (math.isfinite(spread) and spread >= 1):
        raise ValueError(f"spread={spread!r} must be finite and 1 or more; e.g. spread=1e3")
    links = _chain(model)
    hidden = {link.name: link.units for link in links[:-1]}
    chosen: dict[str, torch.Tensor] = {}
    if factors is None:
        generator = torch.Generator().manual_seed(seed or 0)
        for name, n in hidden.items():
            uniform = 2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1
            chosen[name] = torch.exp(uniform * math.log(spread))
    for name, c in (factors or {}).items():
        if name not in hidden:
            raise ValueError(f"{name!r} is no hidden layer; those are {', '.join(map(repr, hidden))}")
        chosen[name] = torch.as_tensor(c, dtype=torch.float64).expand(hidden[name])
        if not bool((chosen[name].isfinite() & (chosen[name] > 0)).all()):
            raise ValueError(f"factors[{name!r}] must be finite and > 0: others change what a ReLU lets through")
    return _rescaled(model, links, chosen, inplace)


@torch.no_grad()
def balance(model: nn.Module, p: float = 2) -> nn.Module:
    """The rescaled copy of smallest max-norm: it attains min over w̃ ~ w of μ_{p,∞}(w̃) (a lemma of the Path-SGD slides).

    Every hidden unit gets the same norm t of incoming weights, the smallest with which no output unit has more. In a
    fully connected net of d layers, without biases and with one output, t^d = ‖π(w)‖_p; with several outputs t^d is the
    largest path norm of one of them. Biases are edges and contribute to t. The network must be one that `rescale`
    accepts.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> net[0].weight.data, net[2].weight.data = torch.tensor([[100.0]]), torch.tensor([[0.01]])  # one path
    >>> [round(weight.item(), 5) for weight in balance(net).parameters()]
    [1.0, 1.0]
    """
    p = exponent(p)
    links = _chain(model)

    def sizes(t: float) -> tuple[float, list[torch.Tensor]]:
        """The largest norm of an output where every hidden unit has norm t, and 1/c of the hidden units."""
        inverse: list[torch.Tensor] = []
        for link in links:
            norms = _incoming(link.module, p, inverse[-1] if inverse else None).pow(1 / p)
            if link is links[-1]:
                return norms.max().item(), inverse
            # A unit without input may be scaled by any factor, so its outgoing weights can be made small.
            inverse.append((norms / t).clamp_min(1e-9 * norms.max().item() / t))
        raise AssertionError

    low = high = 1.0
    if sizes(1.0)[0] == 0 or len(links) == 1:
        return copy.deepcopy(model)
    while sizes(high)[0] > high:
        high *= 2
    while sizes(low)[0] < low:
        low /= 2
    while high - low > 1e-15 * high and low < (middle := math.sqrt(low * high)) < high:
        low, high = (middle, high) if sizes(middle)[0] > middle else (low, middle)
    _, inverse = sizes(high)
    return _rescaled(model, links, {link.name: 1 / m for link, m in zip(links[:-1], inverse, strict=True)}, False)


class Link(NamedTuple):
    """A layer of a chain."""

    name: str
    module: Any

    @property
    def units(self) -> int:
        return len(self.module.weight)


def _chain(model: nn.Module) -> list[Link]:
    """The layers of a network that is a chain of them."""
    traced, modules = traced_graph(model)
    links: list[Link] = []
    last = traced.entry
    for step in traced.steps:
        if not step.inputs or step.kind in ("size", "getattr", "dim"):
            continue  # the sizes for a view
        module = None if step.place is None else modules[step.place]
        weighs = isinstance(module, (nn.Linear, *CONVOLUTIONS))
        if step.inputs != (last,) or step.role in ("norm", "other") or (step.role == "layer" and not weighs):
            raise ValueError(f"{step.name!r} ({step.kind}) is no link of a chain: {RULE}")
        last = step.out
        if step.role == "layer":
            links.append(Link(step.name, module))
    if traced.exit != last:
        raise ValueError(f"{type(model).__name__} does not end with the end of its chain: {RULE}")
    for link, after in pairwise(links):
        fits = _width(after.module) % link.units == 0 if isinstance(after.module, nn.Linear) else None
        if not (fits or _width(after.module) == link.units):
            raise ValueError(f"{after.name!r} does not take the {link.units} units of {link.name!r} one by one: {RULE}")
    if len({id(link.module.weight) for link in links}) < len(links):
        raise ValueError("a layer is used twice: its units cannot be rescaled one by one")
    if not links:
        raise ValueError(f"{type(model).__name__} has no Linear or convolutional layer to rescale")
    return links


def _width(module: Any) -> int:
    return module.in_features if isinstance(module, nn.Linear) else module.in_channels


def _columns(module: Any, c: torch.Tensor) -> torch.Tensor:
    """Numbers for the units of the previous layer, shaped to multiply the weights that leave them."""
    w = module.weight
    if isinstance(module, nn.Linear):
        return c.repeat_interleave(w.shape[1] // len(c))  # a flattened channel has so many inputs
    each = c.view(module.groups, 1, -1).expand(-1, len(w) // module.groups, -1)
    return each.reshape(len(w), -1, *[1] * (w.dim() - 2))


def _incoming(module: Any, p: float, before: torch.Tensor | None = None) -> torch.Tensor:
    """Σ |w|^p over the edges into each unit, with the weights from previous units multiplied by `before`."""
    w = module.weight.detach().double()
    total = power(w if before is None else w * _columns(module, before), p).flatten(1).sum(1)
    return total if module.bias is None else total + power(module.bias, p)


@torch.no_grad()
def _rescaled(model: nn.Module, links: list[Link], factors: Mapping[str, torch.Tensor], inplace: bool) -> nn.Module:
    result = model if inplace else copy.deepcopy(model)
    modules: list[Any] = [link.module for link in links] if inplace else [m.module for m in _chain(result)]
    for link, (module, after) in zip(links, pairwise(modules), strict=False):
        if link.name not in factors:
            continue
        c = factors[link.name].to(module.weight.device)
        w = module.weight
        w.copy_(w.double() * c.view(-1, *[1] * (w.dim() - 1)))
        if module.bias is not None:
            module.bias.copy_(module.bias.double() * c)
        after.weight.copy_(after.weight.double() / _columns(after, c))
    return result
