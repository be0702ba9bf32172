"""Path: the metric in which every path of a network counts by the product of its weights (Path-SGD slides)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import vmap

from tether.engine.commit import write
from tether.ensemble.replicas import Replicas
from tether.metrics import edges
from tether.metrics.homogeneous import Run
from tether.metrics.metric import Metric, MetricError
from tether.metrics.tracing import NotHomogeneous, Traced, traced_graph
from tether.surfaces import Surface
from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.blocks import Block

__all__ = ["Factors", "NotHomogeneous", "Path", "exponent", "path_sum"]

Factors = tuple[torch.Tensor, ...]
SAFE = 1e18  # below it in size, and above its inverse, two vectors may be multiplied in float32


class Path(Metric):
    """The path metric of Path-SGD: γ_p(w, e) = (Σ over paths through e of Π_{e'≠e} |w_e'|^p)^{2/p}.

    It is the square of ‖∂π/∂w_e‖_p, with π(w) the vector of the products of weights along all paths from an input, or
    from the unit that is always 1 (a bias), to an output. A step w_e −= η/γ · ∂L/∂w_e commutes with the rescalings
    that leave a ReLU network's function as it is.

    γ = (∂J/∂|w_e|^p)^{2/p}, J the sum of the outputs of the network with weights |w|^p on an all-ones input: one
    forward and one backward of batch size 1, on a graph traced once (`tether.homogeneous` says what becomes of every
    operation). A weight used more than once, as in a convolution, has the derivative summed over its uses.

    What flows between layers is held in float64, as |w|^p over tens of layers leaves the range of float32; convolutions
    with float32 weights run in float32, on inputs brought to at most 1 by a power of two.

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

        Cheaper than `scales`, which writes the product out; `divide` takes them as they are.
        """
        named = dict(model.named_parameters())
        with torch.inference_mode(False), torch.enable_grad():
            dense, flows = _derivatives(model, self.p, input_shape)
            return {name: _factors(name, w, dense.get(w), flows.get(w, []), self.p) for name, w in named.items()}

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        if parse(row["word"]).needs_closure:
            raise MetricError(f"{part}: {self!r} needs a word with one gradient per step, not {row['word']!r}")
        if isinstance(row["on"], Surface):
            raise MetricError(f"{part}: {self!r} and {row['on']!r} cannot be combined: choose one of metric= and on=")

    def measure(self, model: nn.Module) -> dict[str, Factors]:
        return self.factors(model)

    def enter(self, block: Block, measured: Mapping[str, Factors], whole: bool) -> None:
        """g/γ for g; or, if `whole`, the coordinates √γ θ with g/√γ.

        Those make noise and momenta what they are in the metric: dθ = −γ⁻¹∇L dt + √(2τ/γ) dW for X. No weight enters
        its own γ unless it is shared, so that the divergence of γ⁻¹ vanishes and exp(−L/τ) is still what is sampled.
        """
        mine = [_of(measured, name) for name in block.pick(block.names)]
        block.g = [self.divide(g, f, power=0.5 if whole else 1.0) for g, f in zip(block.g, mine, strict=True)]
        if not whole:
            return
        home, roots = (
            block.θ,
            [self.divide(torch.ones_like(x), f, power=-0.5) for x, f in zip(block.θ, mine, strict=True)],
        )
        for root in roots:
            root[root == 0] = 1.0  # no path leads there: as it is
        block.θ = block.x = [x.detach() * root for x, root in zip(home, roots, strict=True)]
        block.after = [write(torch.div, x, root, out=to) for x, root, to in zip(block.θ, roots, home, strict=True)]

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

        With out=w, keep=1 and times=−η a step of Path-SGD in one pass; with power=½ noise for it.
        """
        if power != 1:
            factors = tuple([γ.pow(power) for γ in factors])
        return edges.divide(g, factors, torch.empty_like(g) if out is None else out, times, keep)


def _of(measured: Mapping[str, Factors], name: str) -> Factors:
    """The γ of one parameter; an error if the network has no such parameter."""
    if name not in measured:
        raise MetricError(
            f"{name!r} is no parameter of the network that the metric measures: give it an optimizer of its own"
        )
    return measured[name]


def exponent(p: Any) -> float:
    """p, if it is one of a norm."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not (math.isfinite(p) and p >= 1):
        raise ValueError(f"p={p!r} must be a finite number, 1 or more; e.g. p=2")
    return float(p)


@torch.no_grad()
def path_sum(model: nn.Module, p: float, input_shape: Sequence[int] | None = None) -> float:
    """J = Σ over all paths of Π |w_e|^p."""
    traced, modules = traced_graph(model)
    total = traced(Run(p, modules), _ones(modules, traced, input_shape)).item()
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
    """∂J/∂|w|^p for the parameters that a path uses: as it is, or as vectors of which it is the outer product."""
    traced, modules = traced_graph(model)
    x = _ones(modules, traced, input_shape)
    if traced.plain and not isinstance(model, Replicas):
        flows = _down_a_chain(traced, modules, p, x)
        if flows is not None:
            return {}, flows
    if isinstance(model, Replicas):
        leaves: dict[torch.Tensor, torch.Tensor] = {w: edges.power(w, p).requires_grad_() for w in model.parameters()}
        constants = {w: edges.power(w, p) for w in model.buffers() if w.is_floating_point()}
        values = {w: w.detach() for w in chain(model.parameters(), model.buffers())}

        def one(powers: list[torch.Tensor], plain: list[torch.Tensor]) -> torch.Tensor:
            known = dict(zip([*leaves, *constants], powers, strict=True)), dict(zip(values, plain, strict=True))
            return traced(Run(p, modules, True, known), x)

        total = vmap(one)([*leaves.values(), *constants.values()], list(values.values())).sum()
        run = Run(p, modules, True, (leaves, values))
    else:
        run = Run(p, modules, True)
        total = traced(run, x)
    anchor = run.anchor
    assert anchor is not None
    met = [(w, edge) for w, edge in run.edges.items() if edge.requires_grad]
    if not total.requires_grad:
        return {}, {}
    found = torch.autograd.grad(total, [anchor, *(edge for _, edge in met)], allow_unused=True)[1:]
    return {w: d for (w, _), d in zip(met, found, strict=True) if d is not None}, run.flows


@torch.no_grad()
def _down_a_chain(traced: Traced, modules: list[nn.Module], p: float, x: torch.Tensor) -> edges.Flows | None:
    """Algorithm 1 of the Path-SGD slides, for a chain of Linear layers: autograd would take longer than the sums."""
    run = Run(p, modules)
    traced(run, x)
    if len(run.trail) != traced.plain:
        return None  # not all by the kernel
    flows: edges.Flows = {}
    y = x.new_ones(len(run.trail[-1][0]))
    for i, (w, b, x) in reversed(list(enumerate(run.trail))):
        flows.setdefault(w, []).append((y, x.flatten()))
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
        high, wide = r.max().item(), c.max().item()
        _fits(name, high * wide, dtype)
        if not (1 / SAFE < high < SAFE and 1 / SAFE < wide < SAFE) and high > 0 and wide > 0:
            # The product may be in range where the vectors are not; a power of two costs no digits.
            shift = 2.0 ** round((math.log2(wide) - math.log2(high)) / 2)
            r, c = r * shift, c / shift
        return r.to(dtype).unsqueeze(1), c.to(dtype).unsqueeze(0)
    total = dense
    for flow in flows:
        part = flow[0] if len(flow) == 1 else torch.outer(*flow)
        total = part if total is None else total + part
    if total is None:
        return (torch.zeros_like(w, dtype=dtype, requires_grad=False),)
    γ = total if p == 2 else total.pow(2 / p)
    _fits(name, γ.max().item() if γ.numel() else 0.0, dtype)
    return (γ.to(dtype),)


def _fits(name: str, largest: float, dtype: torch.dtype) -> None:
    if not largest <= torch.finfo(dtype).max:
        raise OverflowError(
            f"γ of {name!r} reaches {largest:.3g}, too much for {dtype}: start from tether.measure.balance(model), or "
            "hold the model in float64"
        )
