"""A network's graph, traced once, as a list of operations on the nonnegative numbers |w|^p."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import map_aggregate, map_arg

from tether.ensemble.replicas import Replicas, template
from tether.metrics import edges
from tether.metrics.homogeneous import FUNCTIONS, LAYERS, NORMS, Pass, Unfit, module_rule, unchanged

__all__ = ["NotHomogeneous", "Step", "Traced", "Tracer", "traced_graph"]

PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.matmul, torch.matmul, torch.mm, torch.bmm)
QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
WEIGHTED = (F.linear, torch.conv1d, torch.conv2d, torch.conv3d, *(getattr(F, f"conv_transpose{d}d") for d in (1, 2, 3)))
SIZES = (getattr, "size", "dim", "numel")


class NotHomogeneous(ValueError):
    """A network with an operation for which there is no rule; `name` and `kind` say which."""

    def __init__(self, name: str, kind: str, why: str = "") -> None:
        why = why or "is not positively homogeneous: path norms need ReLU-like networks"
        super().__init__(f"{name!r} ({kind}) {why}")
        self.name, self.kind = name, kind


class Slot(int):
    """The place of a value that an earlier step has computed."""


class Step(NamedTuple):
    """One operation of a program."""

    rule: Callable[..., Any]
    args: tuple[Any, ...]  # with a Slot for each value of an earlier step
    kwargs: dict[str, Any]
    out: int
    changes: int | None  # the slot that an in-place operation also writes to
    name: str
    kind: str
    role: str  # "layer", "norm", "activation", "pool", "shape" or "other"
    place: int | None  # of the module among the network's modules()
    inputs: tuple[int, ...]  # the slots that depend on the network's input
    alone: int | None  # the slot of its argument, if it has exactly one


class Traced(NamedTuple):
    """A traced network."""

    steps: list[Step]
    slots: int
    entry: int
    exit: Any
    shape: tuple[int, ...] | None  # the shape of an input, if the first layer determines it
    chain: tuple[int, ...]  # the places of its layers, if it is Linear layers one after the other, with nothing between

    def __call__(self, run: Pass, x: torch.Tensor) -> torch.Tensor:
        """J: the sum of the outputs."""
        slots: list[Any] = [None] * self.slots
        slots[self.entry] = x
        for step in self.steps:
            try:
                if step.alone is not None:
                    result = step.rule(run, slots[step.alone])
                else:
                    result = step.rule(run, *_filled(step.args, slots), **_filled(step.kwargs, slots))
            except Unfit as error:
                raise NotHomogeneous(step.name, step.kind, str(error)) from None
            except (RuntimeError, IndexError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{step.name!r} ({step.kind}) cannot follow paths from an input of shape {tuple(x.shape[1:])}, "
                    f"given without the batch axis: {str(error).splitlines()[0]}"
                ) from error
            slots[step.out] = result
            if step.changes is not None:
                slots[step.changes] = result
        if type(self.exit) is Slot:
            return slots[self.exit].sum()
        return sum([out.sum() for out in _tensors(_filled(self.exit, slots))], start=x.new_zeros(()))


def _filled(args: Any, slots: list[Any]) -> Any:
    return map_aggregate(args, lambda a: slots[a] if type(a) is Slot else a) if args else args


def _tensors(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (tuple, list, dict)):
        for part in out.values() if isinstance(out, dict) else out:
            yield from _tensors(part)


# The modules are kept by weak references, to see whether the network has changed since it was traced.
_programs: WeakKeyDictionary[nn.Module, tuple[list[ref[nn.Module]], Traced]] = WeakKeyDictionary()


def traced_graph(model: nn.Module) -> tuple[Traced, list[nn.Module]]:
    """The traced network and its modules. It is traced on the first call, and again if a module was replaced."""
    network = _network(model)
    modules = _modules(network)
    known = _programs.get(network)
    if known is None or [r() for r in known[0]] != modules:
        known = [ref(m) for m in modules], _trace(network, modules)
        _programs[network] = known
    return known[1], modules


def _modules(module: nn.Module) -> list[nn.Module]:
    """As module.modules(), but faster, since it is needed at every step."""
    found = {module: None}
    stack = [module]
    while stack:
        for child in stack.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                stack.append(child)
    return list(found)


def _network(model: nn.Module) -> nn.Module:
    """The module under the wrappers of `Replicas`, torch.compile and DistributedDataParallel."""
    if isinstance(model, Replicas):
        return template(model)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return _network(model.module)
    return model._modules.get("_orig_mod") or model


class Tracer(fx.Tracer):
    """Torch's tracer, which ignores hooks here and stores no constants in the network."""

    def __init__(self) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.constants: dict[str, torch.Tensor] = {}

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        return super().call_module(m, m.forward, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor) and not any(a is x for x in chain(self.root.parameters(), self.root.buffers())):
            name = f"_constant{len(self.constants)}"
            self.constants[name] = a.detach().clone()
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)


def _trace(network: nn.Module, modules: list[nn.Module]) -> Traced:
    kind = type(network).__name__
    signature = list(inspect.signature(network.forward).parameters.values())
    required = [x.name for x in signature if x.default is x.empty]
    if len(required) != 1 or any(x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD) for x in signature):
        raise NotHomogeneous("forward", kind, f"takes {', '.join(required)}: paths start at one input tensor")
    tracer = Tracer()
    alone = tracer.is_leaf_module(network, "")  # tracing starts inside a module
    defaults = {x.name: x.default for x in signature if x.default is not x.empty and not alone}
    try:
        graph = tracer.trace(nn.Sequential(network) if alone else network, defaults or None)
    except Exception as error:
        raise NotHomogeneous(
            "forward", kind, f"cannot be traced; paths need operations that do not depend on the data: {error}"
        ) from error
    return _Builder(modules, tracer, kind).build(graph)


class _Builder:
    """Turns a graph into a program, node by node."""

    def __init__(self, modules: list[nn.Module], tracer: Tracer, kind: str) -> None:
        self.tracer, self.kind = tracer, kind
        self.places = {id(module): place for place, module in enumerate(modules)}
        self.slots: dict[fx.Node, Slot] = {}
        self.live: set[fx.Node] = set()  # what depends on the input
        self.weighted: set[fx.Node] = set()  # what depends on a parameter, but not on the input
        self.steps: list[Step] = []

    def build(self, graph: fx.Graph) -> Traced:
        entry, exit = None, None
        unused: set[fx.Node] = set()  # arguments left at their defaults, and torch's assertions about them
        for node in graph.nodes:
            sources = node.all_input_nodes
            if node.op == "placeholder" and entry is None:
                entry = self.slots[node] = Slot(len(self.slots))
                self.live.add(node)
            elif node.op == "placeholder" or (sources and all(source in unused for source in sources)):
                unused.add(node)
            elif node.op == "output":
                exit = map_arg(node.args[0], lambda x: self.slots[x])
            else:
                self.add(node)
        assert entry is not None
        return Traced(self.steps, len(self.slots), entry, exit, self.shape(), self.chain(entry, exit))

    def add(self, node: fx.Node) -> None:
        name, kind, place = self.label(node)
        try:
            rule, role, place = self.rule(node)
        except Unfit as error:
            raise NotHomogeneous(name, kind, str(error)) from None
        sources = node.all_input_nodes
        if node.target not in SIZES:
            for group in (self.live, self.weighted):
                if any(x in group for x in sources):
                    group.add(node)
        inputs = tuple([self.slots[x] for x in sources if x in self.live])
        args: Any = map_arg(node.args, lambda x: self.slots[x])
        kwargs: Any = map_arg(node.kwargs, lambda x: self.slots[x])
        target = node.target
        in_place = target in IN_PLACE or (isinstance(target, str) and node.op == "call_method" and target[-1] == "_")
        first = node.args[0] if node.args else None
        changes = self.slots[first] if in_place and isinstance(first, fx.Node) else None
        slot = self.slots[node] = Slot(len(self.slots))
        alone = args[0] if len(args) == 1 and type(args[0]) is Slot and not kwargs else None
        self.steps.append(Step(rule, args, kwargs, slot, changes, name, kind, role, place, inputs, alone))

    def label(self, node: fx.Node) -> tuple[str, str, int | None]:
        """The name of the module that a node belongs to, its operation, and the module's place."""
        if node.op == "call_module":
            module = self.tracer.root.get_submodule(str(node.target))
            alone = id(self.tracer.root) not in self.places
            return "forward" if alone else str(node.target), type(module).__name__, self.places[id(module)]
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        name = stack[-1][0] if stack else "forward"
        return name, getattr(node.target, "__name__", str(node.target)), None

    def rule(self, node: fx.Node) -> tuple[Callable[..., Any], str, int | None]:
        if node.op == "get_attr":
            return self.constant(node), "other", None
        if node.op == "call_module":
            module, place = self.tracer.root.get_submodule(str(node.target)), self.label(node)[2]
            assert place is not None
            found = module_rule(module, place, self.folded(node), biased=not self.folds(node))
            if found is None:
                raise Unfit("")
            return *found, place
        if node.target not in FUNCTIONS:
            raise Unfit("")
        live = [x in self.live for x in node.args if isinstance(x, fx.Node)]
        if node.target in PRODUCTS and sum(live) > 1:
            raise Unfit("multiplies two values that depend on the input: that is not positively homogeneous")
        if node.target in WEIGHTED and any(x in self.live for x in node.all_input_nodes[1:]):
            raise Unfit("has weights that depend on the input: that is not positively homogeneous")
        if node.target in QUOTIENTS and any(
            x in self.live | self.weighted for x in node.args[1:] if isinstance(x, fx.Node)
        ):
            raise Unfit("divides by what depends on the input or on parameters: only constant factors are supported")
        return *FUNCTIONS[node.target], None

    def constant(self, node: fx.Node) -> Callable[..., Any]:
        name = str(node.target)
        if name in self.tracer.constants:
            value = self.tracer.constants[name]
            return lambda run: edges.power(value, run.p)
        owner, _, name = name.rpartition(".")
        module = self.tracer.root.get_submodule(owner)
        place = self.places[id(module)]
        if name in module._parameters:
            self.weighted.add(node)
        return lambda run: run.edge(run.tensor(place, name))

    def folds(self, node: fx.Node) -> bool:
        """Is a BatchNorm the only user of this layer's output?"""
        users = list(node.users)
        if len(users) != 1 or users[0].op != "call_module":
            return False
        return type(self.tracer.root.get_submodule(str(users[0].target))) in NORMS

    def folded(self, node: fx.Node) -> tuple[int, str] | None:
        """The place of the bias that this BatchNorm includes."""
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or not self.folds(before):
            return None
        layer = self.tracer.root.get_submodule(str(before.target))
        return (self.places[id(layer)], "bias") if type(layer) in LAYERS else None

    def chain(self, last: int, exit: Any) -> tuple[int, ...]:
        """The Linear layers of a chain of nothing else; none for other networks."""
        layers: list[int] = []
        for step in self.steps:
            if step.alone != last or not (step.kind == "Linear" or step.role == "shape" or step.rule is unchanged):
                return ()
            last = step.out
            if step.kind == "Linear" and step.place is not None:
                layers.append(step.place)
        return tuple(layers) if exit == last else ()

    def shape(self) -> tuple[int, ...] | None:
        """The shape of an input, if the first layer determines it."""
        first = next((step for step in self.steps if step.role in ("layer", "norm")), None)
        if first is None or any(step.kind in ("linear", "matmul") for step in self.steps[: self.steps.index(first)]):
            return None
        module = next(m for m in self.tracer.root.modules() if self.places.get(id(m)) == first.place)
        if isinstance(module, nn.Linear):
            return (module.in_features,)
        return (module.num_features,) if isinstance(module, nn.BatchNorm1d) else None
