"""Measures of replicas: a list with the result for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from torch import nn

from tether.ensemble.replicas import Replicas

__all__ = ["Measure", "each"]

P = ParamSpec("P")
R = TypeVar("R")


class Measure(Protocol[P, R]):
    """A function of a model, or of replicas."""

    @overload
    def __call__(self, model: Replicas, *args: P.args, **kwargs: P.kwargs) -> list[R]: ...
    @overload
    def __call__(self, model: nn.Module, *args: P.args, **kwargs: P.kwargs) -> R: ...


def each(*states: str, file: str = "") -> Callable[[Callable[Concatenate[Any, P], R]], Measure[P, R]]:
    """Let a function of a module also take `tether.Replicas`; it then returns a list with one result per replica.

    >>> @each()
    ... def largest(model, data=None):
    ...     return max(x.abs().max().item() for x in model.parameters())
    >>> len(largest(Replicas(lambda: nn.Linear(2, 1), n=3)))
    3

    Args:
        states: names of the arguments that are state dicts. A state dict of all replicas, with the replica as first
            axis of every tensor, is sliced. One of a single network is used for all.
        file: the name of the argument that is a file. Replica 3 has "run-3.pt" where "run.pt" is given.
    """

    def decorate(measure: Callable[Concatenate[Any, P], R]) -> Measure[P, R]:
        signature = inspect.signature(measure)
        alone: Callable[..., R] = measure

        @wraps(measure)
        def measured(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(model, Replicas):
                return alone(model, *args, **kwargs)
            given = signature.bind(model, *args, **kwargs).arguments
            name = next(iter(given))
            # an iterator is read once, for all replicas
            shared: dict[str, Any] = {
                key: list(x) if isinstance(x, Iterator) else x for key, x in given.items() if key != name
            }
            extra = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
            shared.update(shared.pop(extra, {}))
            results = []
            for i, one in enumerate(model):
                mine = {key: _slice(shared[key], i, one) for key in states if key in shared}
                if shared.get(file) is not None:
                    path = Path(shared[file])
                    mine[file] = path.with_name(f"{path.stem}-{model.replicas[i]}{path.suffix}")
                results.append(alone(one, **{**shared, **mine}))
            return results

        return measured

    return decorate


def _slice(state: Any, i: int, one: nn.Module) -> Any:
    """The part of replica i of a state dict that holds all; other arguments are returned as they are."""
    alone = one.state_dict()
    if not isinstance(state, Mapping) or state.keys() != alone.keys():
        return state
    stacked = [x.shape[1:] == alone[name].shape and x.dim() > alone[name].dim() for name, x in state.items()]
    return {name: x[i] for name, x in state.items()} if stacked and all(stacked) else state
