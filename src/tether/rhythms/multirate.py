"""Clocks: what a model must do so that slow parts cost nothing between their steps.

`Part(every=k)` and the optimizer do the arithmetic; parameters that are not due require no gradient. This file adds
what concerns the model: the mode of slow layers between their steps, and warnings if nothing can be saved.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from tether.optimizer import Clock, Optimizer
from tether.part import matches
from tether.rhythms.rhythm import whole_steps
from tether.rhythms.waiting import give_back, left_waiting, wait

__all__ = ["Multirate", "set_clocks"]

CHOICES = ("train", "eval", "frozen")


def set_clocks(model: nn.Module, opt: Optimizer, batchnorm: str = "train", slow_eval: bool = False) -> None:
    """Set the mode of slow layers at every step of the optimizer, and warn once if the backward pass saves nothing.

    Args:
        model: the model that the optimizer moves; the training loop must call it as a whole.
        opt: an optimizer with parts of different `every`.
        batchnorm: of the slow part: ``"train"`` as usual, ``"eval"`` by its running statistics, ``"frozen"`` by those
            of the batch, with the running ones updated only when the part is due.
        slow_eval: run the slow part in eval mode between its steps: without dropout, with running statistics.
    """
    if batchnorm not in CHOICES:
        raise ValueError(f"batchnorm={batchnorm!r} must be one of {', '.join(map(repr, CHOICES))}")
    rates = {id(p): group["every"] for group in opt.param_groups for p in group["params"]}
    slow = {name: module for name, module in model.named_modules() if _all_slow(module, rates)}
    fast = {
        name: module
        for name, module in model.named_modules()
        if any(rates.get(id(p), 1) == 1 for p in module.parameters(recurse=False))
    }
    momenta = {name: module.momentum for name, module in slow.items() if isinstance(module, _BatchNorm)}
    periods = {name: min(rates[id(p)] for p in module.parameters()) for name, module in slow.items()}
    model.register_forward_pre_hook(
        _Modes(opt.clock, periods, set(fast), momenta, batchnorm, slow_eval), with_kwargs=True
    )


def one_clock(model: nn.Module, fast: str) -> None:
    """Refuse tied weights that are fast by one of their names and slow by another: one tensor has one clock."""
    first: dict[int, str] = {}
    if all(matches(name, fast) for name, _ in model.named_parameters()):
        raise ValueError(
            f"fast={fast!r} matches every parameter, so that nothing is left slow: name the head, e.g. 'fc.*'"
        )
    for name, param in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(param), name)
        if matches(name, fast) != matches(known, fast):
            raise ValueError(
                f"{known!r} and {name!r} are one tensor, but fast={fast!r} matches only one of the names: "
                f"match both, fast={fast + '|' + (known if matches(name, fast) else name)!r}, or neither"
            )


class _Modes:
    """A hook that sets the modes of slow layers by the optimizer's clock."""

    def __init__(
        self,
        clock: Clock,
        periods: dict[str, int],
        fast: set[str],
        momenta: dict[str, Any],
        batchnorm: str,
        slow_eval: bool,
    ) -> None:
        self.clock, self.periods, self.fast, self.momenta = clock, periods, fast, momenta
        self.batchnorm, self.slow_eval, self.warned, self.called = batchnorm, slow_eval, False, False

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not model.training:
            return
        if not self.called:
            self.called = True
            _warn_by_order(model, set(self.periods), self.fast)
        if not self.warned and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves((args, kwargs))
        ):
            self.warned = True
            warnings.warn("an input requires grad, so the backward pass goes through slow layers too", stacklevel=3)
        for name, period in self.periods.items():
            module, due = model.get_submodule(name), self.clock.step % period == 0
            mode = due or not self.slow_eval
            if isinstance(module, _BatchNorm):
                mode = mode and self.batchnorm != "eval"
                module.momentum = self.momenta[name] if due or self.batchnorm != "frozen" else 0.0
            module.training = mode


def _all_slow(module: nn.Module, rates: dict[int, int]) -> bool:
    """Are all parameters of a module and its submodules slow?"""
    own = [rates.get(id(p), 1) for p in module.parameters()]
    return bool(own) and all(rate > 1 for rate in own)


def _warn_by_order(model: nn.Module, slow: set[str], fast: set[str]) -> None:
    """Warn if a slow layer runs after a fast one in this forward pass."""
    handles: list[Any] = []
    seen: list[str] = []

    def watch(name: str, quick: bool) -> Any:
        def hook(*_: Any) -> None:
            if quick:
                seen.append(name)
            elif seen:
                warnings.warn(
                    f"{name!r} is slow but runs after {seen[0]!r}, which is fast: the backward pass must go through it "
                    "at every step, so less is saved than could be; slow parts should come first",
                    stacklevel=3,
                )
                done()

        return hook

    def done(*_: Any) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()

    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            quick = name in fast
            if quick or name in slow:
                handles.append(module.register_forward_pre_hook(watch(name, quick)))
    handles.append(model.register_forward_hook(done))


class Multirate(torch.optim.Optimizer):
    """Different optimizers for different parts, each with its own clock (5.7, 5.9.1).

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> opt = Multirate(
    ...     {"head": torch.optim.AdamW(model[2].parameters()), "body": torch.optim.SGD(model[0].parameters(), lr=0.1)},
    ...     every={"body": 5},
    ... )

    Schedulers, GradScaler and checkpoints see one optimizer with the param groups of all. The parameters of a slow part
    require no gradient between its steps.

    Args:
        optimizers: each under a name of your choice. No parameter may be in two of them.
        every: by name, the number of steps for one step of that optimizer; the others move at every step.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], every: Mapping[str, int] | None = None) -> None:
        self.optimizers, every = dict(optimizers), dict(every or {})
        for name, k in every.items():
            if name not in self.optimizers:
                raise ValueError(
                    f"every names {name!r}, but the optimizers are {', '.join(map(repr, self.optimizers))}"
                )
            every[name] = whole_steps(f"{name!r}: ", "every", k)
        self.every = {name: every.get(name, 1) for name in self.optimizers}
        if not self.optimizers or min(self.every.values()) > 1:
            raise ValueError("some optimizer must move at every step: leave every=1 for the fastest")
        groups = [group for opt in self.optimizers.values() for group in opt.param_groups]
        params = [param for group in groups for param in group["params"]]
        if len({id(param) for param in params}) < len(params):
            raise ValueError("a parameter belongs to two of the optimizers: give it to one")
        give_back(left_waiting(params))
        self.steps, self._made = 0, False
        slow = {name: opt for name, opt in self.optimizers.items() if self.every[name] > 1}
        self.trained = {name: [param.requires_grad for param in _params(opt)] for name, opt in slow.items()}
        super().__init__(params, {})
        self._made = True
        self._promise()

    def _promise(self) -> None:
        """Let slow parameters require gradients again when this optimizer is deleted."""
        weakref.finalize(self, give_back, self._slow()).atexit = False

    def _slow(self, *names: str) -> list[torch.Tensor]:
        """The parameters of slow optimizers that are trained; of some of them, or of all."""
        pairs = [
            zip(_params(self.optimizers[name]), self.trained[name], strict=False) for name in names or self.trained
        ]
        return [param for rows in pairs for param, yes in rows if yes]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers. They are the same objects, so that schedulers change them."""
        return [group for opt in self.optimizers.values() for group in opt.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Ignored: torch's constructor sets a list of its own, but the groups belong to the optimizers."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: a group must be added to one of the optimizers."""
        if self._made:
            name = next(iter(self.optimizers))
            raise ValueError(
                "a new group must belong to one of the optimizers: add it there, e.g. "
                f"opt.optimizers[{name!r}].add_param_group({{'params': ...}})"
            )

    def release(self) -> None:
        """Let slow parameters require gradients again, at the end of a run. The next step continues with the clock."""
        give_back(self._slow())

    def step(self, closure: Any = None) -> Any:
        """Make a step of every optimizer that is due."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, opt in self.optimizers.items():
            if self.steps % self.every[name] == 0:
                opt.step()
        self.steps += 1
        self._set_clock()
        return loss

    def _set_clock(self) -> None:
        for name in self.trained:
            (wait if self.steps % self.every[name] else give_back)(self._slow(name))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of all of them."""
        for opt in self.optimizers.values():
            opt.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of all optimizers, and the number of steps."""
        states = {name: opt.state_dict() for name, opt in self.optimizers.items()}
        return {"steps": self.steps, "every": dict(self.every), "optimizers": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, also in the middle of a cycle."""
        if state_dict["every"] != self.every:
            raise ValueError(f"the checkpoint was saved with every={state_dict['every']}, this one has {self.every}")
        for name, opt in self.optimizers.items():
            opt.load_state_dict(state_dict["optimizers"][name])
        self.steps = state_dict["steps"]
        self._set_clock()

    def __getstate__(self) -> dict[str, Any]:
        own = {"optimizers": self.optimizers, "every": self.every, "steps": self.steps, "trained": self.trained}
        return {**super().__getstate__(), **own, "_made": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch reads the groups, which belong to the optimizers
        self.__dict__.update({name: state[name] for name in ("optimizers", "every", "steps", "trained", "_made")})
        super().__setstate__({name: value for name, value in state.items() if name != "param_groups"})
        self._set_clock()
        self._promise()


def _params(opt: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in opt.param_groups for param in group["params"]]
