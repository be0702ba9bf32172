"""How much a network can stretch: bounds of its Lipschitz constant."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate, map_arg

from tether.measure.each import each
from tether.measure.jacobian import jacobian_spectrum
from tether.measure.slopes import FUNCTIONS, LINES, Live, Unknown, lives, module_constant, operator_norm
from tether.measure.untouched import untouched
from tether.metrics.tracing import Tracer

__all__ = ["Lipschitz", "lipschitz"]


@dataclass(frozen=True)
class Lipschitz:
    """Bounds of the Lipschitz constant, the largest |f(x) − f(y)|/|x − y|, in Euclidean norms."""

    lower: float  # the largest norm of the Jacobian at the given inputs
    upper: float  # from the norms of the layers
    layers: dict[str, float]  # of those that are not 1, by name, in the order of the network

    def __str__(self) -> str:
        most = max(self.layers, key=lambda name: self.layers[name], default=None)
        steepest = "" if most is None else f"; the steepest layer is {most!r}, {self.layers[most]:.4g}"
        return f"Lipschitz constant between {self.lower:.4g} and {self.upper:.4g}{steepest}"

    def plot(self, ax: Any = None) -> Any:
        """The constant of each layer, on a logarithmic scale."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        ax.bar(list(self.layers), list(self.layers.values()))
        ax.axhline(1.0, color="#c2452d", linewidth=0.9)
        ax.set(yscale="log", ylabel="Lipschitz constant")
        ax.tick_params(axis="x", rotation=90)
        return ax


@each()
def lipschitz(model: nn.Module, inputs: torch.Tensor, *, tolerance: float = 1e-8, iterations: int = 5000) -> Lipschitz:
    """Bounds of a network's Lipschitz constant: from above by its layers, from below by its Jacobian at inputs.

    The upper bound holds for all inputs of that shape. It is the product of the constants of the operations, their sum
    where a residual block adds them, the root of the sum of squares where outputs are joined. That of a linear layer is
    its largest singular value. That of a convolution is the norm of the whole map between images of the given size,
    with its padding and stride, not that of the flattened weight: by Lanczos, which approaches the norm from below, to
    `tolerance`. Activations count their steepest slope; BatchNorm and dropout are those of eval mode.

    The bounds are equal for one layer, and far apart for deep networks: the product is reached only if the singular
    vectors of all layers meet. Attention, LayerNorm and products of two values have no such bound: they are refused by
    name.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    >>> net[0].weight.data, net[2].weight.data = torch.diag(torch.tensor([3.0, 1.0])), torch.eye(2) / 2
    >>> print(lipschitz(net, torch.ones(1, 2)))
    Lipschitz constant between 1.5 and 1.5; the steepest layer is '0', 3

    Args:
        model: that torch.fx can trace: its operations do not depend on the data.
        inputs: a batch.
        tolerance: of Lanczos, relative to the square of the norm.
        iterations: the largest number of its products.
    """
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point() or not len(inputs):
        raise TypeError("inputs must be a batch of real numbers: a derivative by words or labels does not exist")
    with untouched(model), torch.no_grad():
        wide = torch.float64 if inputs.device.type != "mps" else torch.float32
        twin = copy.deepcopy(model).to(wide).eval()
        walk = Walk(twin, tolerance, iterations)
        upper = walk.through(inputs[:1].detach().to(wide))
    lower = jacobian_spectrum(model, inputs, top=1).values.max().item()
    return Lipschitz(lower, upper, walk.layers)


class Walk:
    """A pass through the graph of a network with a bound at every value."""

    def __init__(self, model: nn.Module, tolerance: float, iterations: int) -> None:
        self.settings, self.layers = (tolerance, iterations), dict[str, float]()
        self.tracer = Tracer()
        alone = self.tracer.is_leaf_module(model, "")  # tracing starts inside a module
        self.root = nn.Sequential(model) if alone else model
        try:
            self.graph = self.tracer.trace(self.root)
        except Exception as error:
            raise ValueError(
                f"{type(model).__name__} cannot be traced: a bound for all inputs needs operations that do not depend "
                f"on the data: {error}"
            ) from error

    def through(self, x: torch.Tensor) -> float:
        """The bound of the output."""
        known: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            args, kwargs = (map_arg(given, known.__getitem__) for given in (node.args, node.kwargs))
            if node.op == "placeholder":
                first = not known
                known[node] = Live(x, 1.0) if first else (node.args[0] if node.args else None)
            elif node.op == "get_attr":
                known[node] = self.constant(str(node.target))
            elif node.op == "output":
                return max([one.constant for one in lives((args[0],))], default=0.0)
            else:
                known[node] = self.applied(node, args, kwargs)
        return 0.0

    def constant(self, name: str) -> Any:
        if name in self.tracer.constants:
            return self.tracer.constants[name]
        owner, _, last = name.rpartition(".")
        return getattr(self.root.get_submodule(owner), last)

    def applied(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The result of an operation, with its bound if it is live."""
        if node.target is operator.getitem and not isinstance(args[0], Live):
            return args[0][args[1]]  # of several results
        module = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        plain, more = (map_aggregate(each, lambda a: a.value if isinstance(a, Live) else a) for each in (args, kwargs))
        act: Any = module or node.target
        act = getattr(torch.Tensor, act) if node.op == "call_method" else act
        try:
            if not lives((*args, *kwargs.values())):
                return act(*plain, **more)
            found = self.bound(node, module, args, kwargs, act)
        except Unknown as error:
            name, kind = self.label(node, module)
            raise ValueError(
                f"{name!r} ({kind}) {error}: measure the networks before and after it, or look at "
                "measure.jacobian_spectrum, which bounds from below"
            ) from None
        value = act(*plain, **more)
        if isinstance(value, tuple | list):
            return [Live(x, found) for x in value]
        return Live(value, found) if isinstance(value, torch.Tensor) else value

    def bound(self, node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any, act: Any) -> float:
        target: Any = node.target
        if module is not None:
            constant = module_constant(module, args[0].value, *self.settings)
            if constant != 1:
                self.layers[self.label(node, module)[0]] = constant
            return args[0].constant * constant
        if target in LINES and isinstance(args[0], Live) and len(lives((*args, *kwargs.values()))) == 1:
            constant = operator_norm(lambda x: act(x, *args[1:], **kwargs), args[0].value, *self.settings)
            return args[0].constant * constant
        if target in FUNCTIONS:
            return FUNCTIONS[target](*args, **kwargs)
        if target in (getattr, "size", "dim", "numel"):  # of no value
            return 0.0
        raise Unknown("has no Lipschitz constant that is known here")

    def label(self, node: fx.Node, module: nn.Module | None) -> tuple[str, str]:
        if module is not None:
            return ("forward" if self.root is not self.tracer.root else str(node.target)), type(module).__name__
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return stack[-1][0] if stack else "forward", getattr(node.target, "__name__", str(node.target))
