"""Path: the metric of Path-SGD, made from the products of weights along the paths of a network (Path-SGD slides)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import vmap

from tether.engine import host
from tether.engine.commit import write
from tether.ensemble.replicas import Replicas
from tether.metrics import edges
from tether.metrics.homogeneous import Pass
from tether.metrics.metric import Metric, MetricError
from tether.metrics.tracing import NotHomogeneous, Traced, traced_graph
from tether.surfaces import Surface
from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.blocks import Block
    from tether.engine.flat import Room

__all__ = ["Factors", "NotHomogeneous", "Path", "exponent", "path_sum"]

Factors = tuple[torch.Tensor, ...]
SAFE = 1e18  # two vectors with entries between its inverse and this may be multiplied in float32


class Path(Metric):
    """The path metric of Path-SGD: γ_p(w, e) = (Σ over paths through e of Π_{e'≠e} |w_e'|^p)^{2/p}.

    It is the square of ‖∂π/∂w_e‖_p, with π(w) the vector of the products of weights along all paths from an input, or
    from the unit that is always 1 (a bias), to an output. A step w_e −= η/γ · ∂L/∂w_e commutes with the rescalings that
    do not change the function of a ReLU network.

    γ = (∂J/∂|w_e|^p)^{2/p}, J the sum of the outputs of the network with weights |w|^p on an all-ones input: one
    forward and one backward of batch size 1, on a graph traced once (`tether.metrics.homogeneous` has the rule of every
    operation). For a weight that is used more than once, as in a convolution, the derivative is summed over its uses.

    The values between layers are float64, since |w|^p over tens of layers leaves the range of float32. Convolutions
    with float32 weights run in float32, on inputs scaled to at most 1 by a power of two.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> net[0].weight.data, net[2].weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0]])
    >>> Path(2).scales(net)
    {'0.weight': tensor([[25., 25.],
            [36., 36.]]), '2.weight': tensor([[ 5., 25.]])}

    Args:
        p: the norm of path vectors, 1 or more.
    """

    def __init__(self, p: float = 2) -> None:
        self.p = exponent(p)

    def __repr__(self) -> str:
        return f"Path({self.p:g})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.p == other.p

    def __hash__(self) -> int:
        return hash((Path, self.p))

    def scales(self, model: nn.Module, input_shape: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        """γ for every parameter, by name; 0 where no path leads through it, or every such path has another weight 0.

        Args:
            model: a network, or `Replicas`, whose γ then have the replica as their first axis.
            input_shape: of one input, without the batch axis; needed where the first layer does not tell it.
        """
        return {name: math.prod(γ[1:], start=γ[0]) for name, γ in self.factors(model, input_shape).items()}

    def factors(self, model: nn.Module, input_shape: Sequence[int] | None = None) -> dict[str, Factors]:
        """γ as tensors whose product it is: for the matrix of a Linear layer a column and a row, else one tensor.

        This is cheaper than `scales`, which forms the product; `divide` takes the factors directly.
        """
        return self._factors(model, dict(model.named_parameters()), input_shape)

    def _factors(
        self, model: nn.Module, named: Mapping[str, torch.Tensor], input_shape: Sequence[int] | None
    ) -> dict[str, Factors]:
        with torch.inference_mode(False), torch.enable_grad():
            dense, flows = _derivatives(model, self.p, input_shape)
            return {name: _factors(name, w, dense.get(w), flows.get(w, []), self.p) for name, w in named.items()}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        if parse(row["word"]).needs_closure:
            raise MetricError(f"{part}: {self!r} needs a word with one gradient per step, not {row['word']!r}")
        if isinstance(row["on"], Surface):
            raise MetricError(f"{part}: {self!r} and {row['on']!r} cannot be combined: choose one of metric= and on=")

    def measure(self, model: nn.Module) -> dict[str, Factors]:
        """The factors; where the host may not look, γ as the network gives it, in the widest dtype."""
        named = dict(model.named_parameters())
        if all(host.reads(w.device) for w in named.values()):
            return self._factors(model, named, None)
        with torch.inference_mode(False), torch.enable_grad():
            dense, flows = _derivatives(model, self.p, None)
        totals = [_total(w, dense.get(w), flows.get(w, [])) for w in named.values()]
        γ = totals if self.p == 2 else torch._foreach_pow(totals, 2 / self.p)
        return {name: (one,) for name, one in zip(named, γ, strict=True)}

    def enter(self, block: Block, measured: Mapping[str, Factors], whole: bool) -> None:
        """g/γ for g; or, if `whole`, the coordinates √γ θ with g/√γ.

        In these coordinates noise and momenta have the right size: dθ = −γ⁻¹∇L dt + √(2τ/γ) dW for X. A weight that is
        not shared does not enter its own γ, so the divergence of γ⁻¹ vanishes and exp(−L/τ) is still sampled.
        """
        unknown = [name for name in block.names if name not in measured]
        if unknown:
            raise MetricError(
                f"{unknown[0]!r} is not a parameter of the measured network: give it an optimizer of its own"
            )
        mine = [measured[name] for name in block.pick(block.names)]
        if block.room is not None and block.complete:
            self.enter_together(block, block.room, [γ for (γ,) in mine], whole)
            return
        most = torch.finfo(block.dtype).max
        mine = [tuple(γ if γ.dtype is block.dtype else γ.clamp_max(most).to(block.dtype) for γ in one) for one in mine]
        if not whole:
            block.g = [self.divide(g, factors) for g, factors in zip(block.g, mine, strict=True)]
            return
        roots = [math.prod([γ.sqrt() for γ in factors[1:]], start=factors[0].sqrt()) for factors in mine]
        nowhere = [root == 0 for root in roots]  # no path leads there: such a weight stays as it is
        for root, none in zip(roots, nowhere, strict=True):
            root.masked_fill_(none, 1.0)
        pairs = zip(torch._foreach_div(block.g, roots), nowhere, strict=True)
        block.g = [g.masked_fill_(none, 0.0) for g, none in pairs]
        home, block.θ = block.θ, list(torch._foreach_mul([x.detach() for x in block.θ], roots))
        for x, root, to in zip(block.θ, roots, home, strict=True):
            if block.bad is None:
                block.after.append(write(torch.div, x, root, out=to))
            else:  # then the way there and back would leave a rounding error
                block.after.append(write(torch.div, x, root, out=x))
                block.after.append(write(torch.where, block.bad, to.detach(), x, out=to))

    def enter_together(self, block: Block, room: Room, γs: list[torch.Tensor], whole: bool) -> None:
        """The same for all tensors at once, as they lie in the buffers of the block; they end at the largest number."""
        γ = room.take("γ", γs).clamp_max_(torch.finfo(block.dtype).max)
        g, nowhere = room.take("g/γ", block.g), γ == 0
        block.g = room.views["g/γ"]
        if not whole:
            g.div_(γ).masked_fill_(nowhere, 0.0)
            return
        root = γ.sqrt_().masked_fill_(nowhere, 1.0)
        g.div_(root).masked_fill_(nowhere, 0.0)
        home, old = block.θ, room.take("before", block.θ)
        θ = room.take("√γ θ", block.θ).mul_(root)
        block.θ = room.views["√γ θ"]
        block.after.append(write(torch.div, θ, root, out=θ))
        if block.bad is not None:  # then the way there and back would leave a rounding error
            block.after.append(write(torch.where, block.bad, old, θ, out=θ))
        block.after.append(write(torch._foreach_copy_, home, block.θ))

    def divide(
        self,
        g: torch.Tensor,
        factors: Factors,
        out: torch.Tensor | None = None,
        *,
        power: float = 1.0,
        times: float = 1.0,
        keep: float = 0.0,
    ) -> torch.Tensor:
        """out ← keep·out + times · g/γ^power, and 0 for g/γ where γ = 0: no path leads there.

        With out=w, keep=1 and times=−η this is a step of Path-SGD in one pass; with power=½ it scales noise.
        """
        if power != 1:
            factors = tuple([γ.pow(power) for γ in factors])
        return edges.divide(g, factors, torch.empty_like(g) if out is None else out, times, keep)


def exponent(p: Any) -> float:
    """p as a float. Raises unless it is the exponent of a norm."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not (math.isfinite(p) and p >= 1):
        raise ValueError(f"p={p!r} must be a finite number, 1 or more; e.g. p=2")
    return float(p)


@torch.no_grad()
def path_sum(model: nn.Module, p: float, input_shape: Sequence[int] | None = None) -> float:
    """J = Σ over all paths of Π |w_e|^p."""
    traced, modules = traced_graph(model)
    total = traced(Pass(p, modules), _ones(modules, traced, input_shape)).item()
    if not math.isfinite(total):
        raise OverflowError(f"the sum of Π |w|^{p:g} over the paths of {type(model).__name__} exceeds float64")
    return total


def _ones(modules: list[nn.Module], traced: Traced, input_shape: Sequence[int] | None) -> torch.Tensor:
    shape = traced.shape if input_shape is None else input_shape
    if shape is None:
        first = next((step for step in traced.steps if step.role in ("layer", "norm")), None)
        where = "the network" if first is None else f"the first layer, {first.name!r} ({first.kind}),"
        raise ValueError(
            f"{where} does not tell the shape of an input: give it without the batch axis, e.g. input_shape=(3, 32, 32)"
        )
    if isinstance(shape, int) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"input_shape={shape!r} must be a sequence of positive ints; e.g. input_shape=(3, 32, 32)")
    device = next((w.device for m in modules for w in m._parameters.values() if w is not None), None)
    wide = torch.float32 if device is not None and device.type == "mps" else torch.float64
    return torch.ones(1, *shape, dtype=wide, device=device)


def _derivatives(
    model: nn.Module, p: float, input_shape: Sequence[int] | None
) -> tuple[dict[torch.Tensor, torch.Tensor], edges.Flows]:
    """∂J/∂|w|^p for the parameters on a path: as one tensor, or as two vectors whose outer product it is."""
    traced, modules = traced_graph(model)
    x = _ones(modules, traced, input_shape)
    if traced.chain:
        ones = x.flatten().expand(len(model), -1) if isinstance(model, Replicas) else x.flatten()
        flows = _down_a_chain([modules[place] for place in traced.chain], p, ones)
        if flows is not None:
            return {}, flows
    if isinstance(model, Replicas):
        leaves: dict[torch.Tensor, torch.Tensor] = {w: edges.power(w, p).requires_grad_() for w in model.parameters()}
        constants = {w: edges.power(w, p) for w in model.buffers() if w.is_floating_point()}
        values = {w: w.detach() for w in chain(model.parameters(), model.buffers())}

        def one(powers: list[torch.Tensor], plain: list[torch.Tensor]) -> torch.Tensor:
            known = dict(zip([*leaves, *constants], powers, strict=True)), dict(zip(values, plain, strict=True))
            return traced(Pass(p, modules, True, known), x)

        total = vmap(one)([*leaves.values(), *constants.values()], list(values.values())).sum()
        run = Pass(p, modules, True, (leaves, values))
    else:
        run = Pass(p, modules, True)
        total = traced(run, x)
    anchor = run.anchor
    assert anchor is not None
    met = [(w, edge) for w, edge in run.edges.items() if edge.requires_grad]
    if not total.requires_grad:
        return {}, {}
    found = torch.autograd.grad(total, [anchor, *(edge for _, edge in met)], allow_unused=True)[1:]
    return {w: d for (w, _), d in zip(met, found, strict=True) if d is not None}, run.flows


@torch.no_grad()
def _down_a_chain(layers: list[nn.Module], p: float, x: torch.Tensor) -> edges.Flows | None:
    """Algorithm 1 of the Path-SGD slides, for a chain of Linear layers: autograd would take longer than the sums."""
    if p not in (1.0, 2.0):
        return None
    way = []
    for layer in layers:
        w, b = layer._parameters["weight"], layer._parameters["bias"]
        if w is None or x.shape != (*w.shape[:-2], w.shape[-1]) or not edges.kernel_takes(w, b):
            return None  # not by the kernel
        way.append((w, b, x))
        x = edges.ahead(x, w, b, p)
    flows: edges.Flows = {}
    y = torch.ones_like(x)
    for i, (w, b, x) in reversed(list(enumerate(way))):
        flows.setdefault(w, []).append((y, x))
        if b is not None:
            flows.setdefault(b, []).append((y,))
        if i:
            y = edges.back(y, w, p)
    return flows


def _factors(name: str, w: torch.Tensor, dense: torch.Tensor | None, flows: list[edges.Flow], p: float) -> Factors:
    """(∂J/∂|w|^p)^{2/p} in the precision of w, float32 at least."""
    dtype = w.dtype if w.dtype in (torch.float32, torch.float64) else torch.float32
    if dense is None and len(flows) == 1 and len(flows[0]) == 2:
        r, c = flows[0] if p == 2 else (v.pow(2 / p) for v in flows[0])
        ends = torch.stack([r.amax(-1, keepdim=True), c.amax(-1, keepdim=True)])  # of each network
        least, most = torch.aminmax(ends)
        if not (least.item() > 1 / SAFE and most.item() < SAFE):
            r, c = _in_range(name, r, c, ends, dtype)
        return r.to(dtype).unsqueeze(-1), c.to(dtype).unsqueeze(-2)
    total = _total(w, dense, flows)
    γ = total if p == 2 else total.pow(2 / p)
    if not w.is_cpu:  # the host may not look at it
        return (γ.clamp_max(torch.finfo(dtype).max).to(dtype),)
    largest = γ.max().item() if γ.numel() else 0.0
    if not largest <= torch.finfo(dtype).max:
        raise _too_large(name, largest, dtype)
    return (γ.to(dtype),)


def _in_range(name: str, r: torch.Tensor, c: torch.Tensor, ends: torch.Tensor, dtype: torch.dtype) -> Factors:
    """Two vectors whose product may be in range where they are not, both in range; a power of two costs no digits."""
    largest = ends.prod(0).max().item()
    if not largest <= torch.finfo(dtype).max:
        raise _too_large(name, largest, dtype)
    high, wide = ends.log2()
    shift = ((wide - high) / 2).round().nan_to_num(0.0, 0.0, 0.0).exp2()
    return r * shift, c / shift


def _total(w: torch.Tensor, dense: torch.Tensor | None, flows: list[edges.Flow]) -> torch.Tensor:
    """∂J/∂|w|^p over all uses of a parameter; 0 where no path leads through it."""
    total = dense
    for flow in flows:
        part = flow[0] if len(flow) == 1 else flow[0].unsqueeze(-1) * flow[1].unsqueeze(-2)
        total = part if total is None else total + part
    return torch.zeros_like(w, requires_grad=False) if total is None else total


def _too_large(name: str, largest: float, dtype: torch.dtype) -> OverflowError:
    return OverflowError(
        f"γ of {name!r} reaches {largest:.3g}, too much for {dtype}: start from tether.measure.balance(model), or "
        "hold the model in float64"
    )
