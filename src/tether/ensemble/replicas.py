"""Replicas: n independent networks held as stacked parameters, with one forward and backward for all.

There are three ways to compute the same numbers. Networks of Linear and elementwise layers run as batched products.
Other modules run under ``torch.func.vmap``. What vmap cannot run is run replica by replica.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from tether.ensemble.attention import vmappable_attention
from tether.ensemble.hooks import backward_hooked
from tether.ensemble.products import Layer, each_by_layer, products, stages_of, suits
from tether.ensemble.stacking import Factory, build_one, check_alike, facts, mark, tensors, with_tensors
from tether.ensemble.turns import Turns, in_turns

__all__ = ["Layer", "Replicas", "build", "layers_of", "template"]


def build(factory: Factory, seed: int, i: int) -> nn.Module:
    """Replica i alone, as a plain module: the same numbers as in every `Replicas` with this factory and seed.

    >>> import tether
    >>> alone = build(lambda: nn.Linear(2, 1), seed=0, i=3)
    >>> torch.equal(alone.weight, tether.Replicas(lambda: nn.Linear(2, 1), n=5, seed=0)[3].weight)
    True
    """
    module = build_one(factory, seed, i)
    mark(module, (i,))
    return module


def template(ens: Replicas) -> nn.Module:
    """The plain module around the stacked tensors, with the forward pass of one network."""
    return ens._shell


def layers_of(ens: Replicas) -> list[Layer] | None:
    """The layers of a network of Linear and elementwise ones; None for other networks, with hooks, or if not `fast`."""
    stages = stages_of(ens._shell) if ens._fast else None
    if stages is None:
        return None
    names: dict[Any, str] = {x: name for name, x in ens.named_parameters()}
    parameters = [(layer.weight, layer.bias) if kind == "linear" else (None, None) for kind, layer in stages]
    return [
        Layer(*stage, names.get(weight), names.get(bias))
        for stage, (weight, bias) in zip(stages, parameters, strict=True)
    ]


class Replicas(nn.Module):
    """n independent networks as one module, whose parameters have the replica as their first axis.

    >>> ens = Replicas(lambda: nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1)), n=5)
    >>> {name: tuple(p.shape) for name, p in ens.named_parameters()}
    {'0.weight': (5, 20, 2), '0.bias': (5, 20), '2.weight': (5, 1, 20), '2.bias': (5, 1)}
    >>> ens(torch.ones(8, 2)).shape  # one batch, shared
    torch.Size([5, 8, 1])
    >>> ens(torch.ones(5, 8, 2)).shape  # a batch for each
    torch.Size([5, 8, 1])
    >>> torch.equal(ens[3][0].weight, build(lambda: nn.Linear(2, 20), seed=0, i=3).weight)
    True

    Dropout draws a mask for every replica, BatchNorm keeps statistics for every replica. ``param.replicas``
    holds the numbers of the replicas stacked in a parameter. Optimizers use them to name its noise.

    Args:
        factory: builds one network; called without arguments, once for every replica.
        n: the number of replicas.
        seed: replica i is built with random numbers named by (seed, i), for any n. Torch's generator is left as it was.
        fast: False uses vmap instead of batched products: slower, the same numbers to rounding.
        vmap: False runs replica by replica instead of vmap, for modules that vmap refuses.
    """

    _shell: nn.Module  # the plain module around the stacked tensors, with the forward pass

    def __init__(self, factory: Factory, n: int, seed: int = 0, *, fast: bool = True, vmap: bool = True) -> None:
        super().__init__()
        n = _count(n)
        first = build_one(factory, seed, 0)
        named = tensors(first)
        stacks = {name: torch.empty((n, *x.shape), dtype=x.dtype, device=x.device) for name, x in named.items()}
        want = facts(first)
        with torch.no_grad():
            for i in range(n):
                module = first if i == 0 else build_one(factory, seed, i)
                check_alike(want, facts(module), i)
                for name, x in tensors(module).items():
                    stacks[name][i].copy_(x)
        self.seed, self._fast, self._vmap = seed, fast, vmap
        self._hold(with_tensors(first, named, stacks), tuple(range(n)))

    def _hold(self, shell: nn.Module, replicas: tuple[int, ...]) -> None:
        """Share the tensors and submodules of a plain module: both hold the same objects."""
        self.replicas = replicas
        self.training = shell.training
        self._dims: int | None = None  # dimensions of a shared input, once there was one
        self._turns = Turns()  # of threads: `functional_call` has other tensors in the module while it runs
        shared = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
        self.__dict__.update({name: getattr(shell, name) for name in shared})
        self.__dict__["_shell"] = shell  # past nn.Module, which would register it as a submodule
        mark(self, replicas, stacked=True)

    def forward(self, *args: Any, each: bool | None = None, **kwargs: Any) -> Any:
        """The outputs of all replicas, stacked along a first axis.

        A tensor of shape (batch, …) goes to all replicas, one of shape (n, batch, …) is a batch for each.
        If the shape does not tell which, that is an error; pass ``each=True`` or ``each=False``.
        Inputs given by keyword or in a dict are shared unless ``each=True``, which then holds for all tensors.
        """
        x = args[0] if args and isinstance(args[0], torch.Tensor) else None
        stages = stages_of(self._shell) if self._fast and len(args) == 1 and not kwargs else None
        if each is None:
            each = x is not None and self._each(x, stages is not None)
        if each:
            _check_each((args, kwargs), len(self))
        elif x is not None:
            self._dims = x.ndim
        if x is not None and stages is not None and suits(x, stages, each):
            return products(x, stages, each, len(self))
        if self._vmap and not _needs_turns(self._shell):
            return self._all_at_once(args, kwargs, each)
        return self._in_turn(args, kwargs, each)

    def _each(self, x: torch.Tensor, known: bool) -> bool:
        """Is x a batch for each replica, rather than one for all?"""
        if x.ndim == 0 or len(x) != len(self):
            return False
        by_layer = each_by_layer(self._shell, x)
        if by_layer is not None and known:
            return by_layer
        before = None if self._dims is None else {self._dims: False, self._dims + 1: True}.get(x.ndim)
        verdicts = {by_layer, before} - {None}
        if len(verdicts) != 1:
            raise ValueError(
                f"an input of shape {tuple(x.shape)} to {len(self)} replicas may be one batch for all or a batch for "
                "each: say ens(x, each=False) for all or ens(x, each=True) for each"
            )
        return bool(verdicts.pop())

    @property
    def layers(self) -> list[Layer] | None:
        """As the function `layers_of`. If the network has a submodule called ``layers``, that submodule."""
        own: Any = self._modules.get("layers")
        return own if own is not None else layers_of(self)

    def get_submodule(self, target: str) -> nn.Module:
        """As for any module."""
        # The plain module is asked because attributes of this class could hide its submodules.
        return self._shell.get_submodule(target) if target else self

    @in_turns
    def _all_at_once(self, args: tuple[Any, ...], kwargs: dict[str, Any], each: bool) -> Any:
        """The reference: the plain module under vmap."""
        leaves, spec = tree_flatten((args, kwargs))
        mapped = [i for i, leaf in enumerate(leaves) if each and _has_axis(leaf)]
        shape: list[Any] = []  # of the output: what vmap cannot return

        def one(state: dict[str, torch.Tensor], batches: list[torch.Tensor]) -> Any:
            mine = list(leaves)
            for i, batch in zip(mapped, batches, strict=True):
                mine[i] = batch
            out, changed = self._one(state, *tree_unflatten(mine, spec))
            values, out_spec = _outputs(out)
            shape[:] = values, out_spec
            return [value for value in values if isinstance(value, torch.Tensor)], changed

        state = tensors(self)
        with vmappable_attention(state.values()):
            try:
                stacked, changed = vmap(one, randomness="different")(state, [leaves[i] for i in mapped])
            except RuntimeError as error:
                if "vmap" in str(error) or "atching rule" in str(error):
                    raise RuntimeError(
                        f"torch.func.vmap cannot run {type(self._shell).__name__} ({str(error).splitlines()[0]}): "
                        "use Replicas(..., vmap=False), which runs replica by replica"
                    ) from error
                raise
        self._write(changed)
        values, out_spec = shape
        given = iter(stacked)
        return tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in values], out_spec)

    @in_turns
    def _in_turn(self, args: tuple[Any, ...], kwargs: dict[str, Any], each: bool) -> Any:
        """Replica by replica, for what vmap cannot run."""
        leaves, spec = tree_flatten((args, kwargs))
        n, outs = len(self), []
        # The gradient of n views by unbind is one stack; views by index can be changed in place, as buffers are.
        views = {name: x.unbind() if x.requires_grad else [x[i] for i in range(n)] for name, x in tensors(self).items()}
        for i in range(n):
            mine = [leaf[i] if each and _has_axis(leaf) else leaf for leaf in leaves]
            state = {name: x[i] for name, x in views.items()}
            out, changed = self._one(state, *tree_unflatten(mine, spec))
            self._write(changed, i)
            values, out_spec = _outputs(out)
            outs.append(values)
        stacked = [torch.stack(x) if isinstance(x[0], torch.Tensor) else x[0] for x in zip(*outs, strict=True)]
        return tree_unflatten(stacked, out_spec)

    def _one(
        self, state: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        """The output of the plain module with these tensors, and the buffers that it has replaced."""
        held = dict(state)
        # Every name is given, tied ones too: torch need not look for ties.
        out = functional_call(self._shell, held, args, kwargs, tie_weights=False)
        return out, {name: x for name, x in held.items() if x is not state[name]}

    @torch.no_grad()
    def _write(self, changed: Mapping[str, torch.Tensor], i: int | None = None) -> None:
        for name, x in changed.items():
            stack = tensors(self)[name]
            (stack if i is None else stack[i]).copy_(x)

    def __len__(self) -> int:
        return len(self.replicas)

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(len(self)))

    @in_turns
    def __getitem__(self, i: int) -> nn.Module:
        """Replica i as a plain module of its own, with copies of the values."""
        i = self._position(i)
        named = tensors(self)
        module = with_tensors(self._shell, named, {name: x.detach()[i].clone() for name, x in named.items()})
        mark(module, self.replicas[i : i + 1])
        return module

    def __setitem__(self, i: int, module: nn.Module) -> None:
        """As `load`."""
        self.load(i, module)

    @in_turns
    @torch.no_grad()
    def load(self, i: int, module: nn.Module) -> None:
        """Set replica i to the values of a plain module, in place."""
        i = self._position(i)
        mine, theirs = tensors(self), tensors(module)
        want, got = ({name: tuple(x.shape[d:]) for name, x in y.items()} for d, y in ((1, mine), (0, theirs)))
        for name in [*want, *got]:
            if want.get(name) != got.get(name):
                raise ValueError(
                    f"{name!r} has shape {got.get(name, 'none')} in the module and {want.get(name, 'none')} in a "
                    f"replica: load a module like ens[{i}]"
                )
        for name, x in mine.items():
            x[i].copy_(theirs[name])

    @in_turns
    def subset(self, indices: int | slice | Sequence[int] | Sequence[bool] | torch.Tensor) -> Replicas:
        """These replicas as a `Replicas` of their own, with copies of the values; they keep their numbers."""
        chosen = self._positions(indices)
        named = tensors(self)
        stacks = {name: x.detach()[torch.tensor(chosen, device=x.device)] for name, x in named.items()}
        new = type(self).__new__(type(self))
        nn.Module.__init__(new)
        new.seed, new._fast, new._vmap = self.seed, self._fast, self._vmap
        new._hold(with_tensors(self._shell, named, stacks), tuple([self.replicas[i] for i in chosen]))
        new._dims = self._dims
        return new

    def _position(self, i: Any) -> int:
        if isinstance(i, bool) or not hasattr(i, "__index__"):
            raise TypeError(f"{i!r} is no number of a replica: ens[3] is a plain module, ens.subset({i!r}) a Replicas")
        position = operator.index(i)
        if not -len(self) <= position < len(self):
            raise IndexError(f"there is no replica {position}: {len(self)} replicas are counted from 0")
        return position % len(self)

    def _positions(self, indices: Any) -> list[int]:
        if isinstance(indices, slice):
            indices = range(len(self))[indices]
        flat = indices.tolist() if hasattr(indices, "tolist") else indices
        chosen = list(flat) if isinstance(flat, Iterable) else [flat]
        if chosen and all(isinstance(i, bool) for i in chosen):
            if len(chosen) != len(self):
                raise IndexError(f"a mask of {len(chosen)} for {len(self)} replicas: give one True or False for each")
            chosen = [i for i, kept in enumerate(chosen) if kept]
        positions = [self._position(i) for i in chosen]
        if not positions:
            raise IndexError(f"{indices!r} picks none of {len(self)} replicas: pick at least one")
        if len(set(positions)) < len(positions):
            twice = next(i for i in positions if positions.count(i) > 1)
            raise IndexError(f"replica {twice} is picked twice, and both would get the same noise: pick it once")
        return positions

    def train(self, mode: bool = True) -> Replicas:
        """As for any module."""
        super().train(mode)
        self._shell.train(mode)  # last, because the plain module may override it, e.g. to freeze statistics
        return self

    @in_turns
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As for any module."""
        return super().state_dict(*args, **kwargs)

    @in_turns
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As for any module; the number of replicas must be the same."""
        for name, x in tensors(self).items():
            shape = tuple(state_dict[name].shape) if name in state_dict else None
            if shape == tuple(x.shape[1:]):
                raise RuntimeError(
                    f"{name!r} has shape {shape} in the state dict and {tuple(x.shape)} here: this is the state of a "
                    "plain module; load it into one replica by module.load_state_dict(state) and ens.load(i, module)"
                )
            if shape is not None and shape[1:] == x.shape[1:] and shape[0] != len(self):
                raise RuntimeError(
                    f"the state dict holds {shape[0]} replicas, this Replicas {len(self)}: load it into "
                    f"Replicas(factory, {shape[0]}) and pick with ens.subset(...)"
                )
        found = super().load_state_dict(state_dict, strict=strict, assign=assign)
        mark(self, self.replicas, stacked=True)
        return found

    # torch makes new Parameters where it moves, copies or unpickles a module, and drops their attributes.

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Replicas:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        mark(self, self.replicas, stacked=True)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._turns = Turns()  # if the state is of before there were any
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        mark(self, self.replicas, stacked=True)

    def __repr__(self) -> str:
        numbers = "" if self.replicas == tuple(range(len(self))) else f", replicas={self.replicas}"
        return f"Replicas(n={len(self)}, seed={self.seed}{numbers}) {self._shell!r}"


def _count(n: Any) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"n={n!r} must be an int, e.g. n=100")
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    return operator.index(n)


def _has_axis(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def _check_each(inputs: Any, n: int) -> None:
    for leaf in tree_flatten(inputs)[0]:
        if _has_axis(leaf) and len(leaf) != n:
            raise ValueError(
                f"each=True takes inputs of shape ({n}, batch, …), got {tuple(leaf.shape)}: "
                f"use x.expand({n}, *x.shape) for one that all share"
            )


def _outputs(out: Any) -> tuple[list[Any], Any]:
    """The leaves of an output, and the structure to arrange them again."""
    values, spec = tree_flatten(out)
    for value in values:
        if not isinstance(value, (torch.Tensor, type(None), bool, int, float, str)):
            raise TypeError(
                f"the module returns a {type(value).__name__}, whose tensors cannot be found and stacked: "
                "return tensors, or tuples, lists or dicts of them"
            )
    return values, spec


def _needs_turns(module: nn.Module) -> bool:
    """Is there a layer that vmap cannot run: a recurrent one, BatchNorm with momentum=None, or one with backward hooks?

    Backward hooks are not called under vmap.
    """
    return any(
        isinstance(layer, nn.RNNBase)
        or backward_hooked(layer)
        or (isinstance(layer, _BatchNorm) and layer.training and layer.track_running_stats and layer.momentum is None)
        for layer in module.modules()
    )
