"""Clocks: what a model must know of the rates of its parts, so that slow ones cost nothing in between.

`Part(every=k)` and the optimizer do the arithmetic, and let parameters that are not due ask for no gradient. This file
adds what belongs to the model: the mode of slow layers between their steps, and a word where nothing can be saved.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from tether.optimizer import Optimizer

__all__ = ["set_clocks"]

CHOICES = ("train", "eval", "frozen")


def set_clocks(model: nn.Module, opt: Optimizer, batchnorm: str = "train", slow_eval: bool = False) -> None:
    """Keep the mode of slow layers in step with the optimizer, and warn once where the backward pass saves nothing.

    Args:
        model: what the optimizer moves, called as a whole in the training loop.
        opt: an optimizer with parts of different `every`.
        batchnorm: of the slow part: ``"train"`` as usual, ``"eval"`` by its running statistics, ``"frozen"`` by those
            of the batch, with the running ones updated only when the part is due.
        slow_eval: between its steps run the slow part in eval mode altogether: dropout off, running statistics.
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
    _warn_by_order(model, slow, fast)
    momenta = {name: module.momentum for name, module in slow.items() if isinstance(module, _BatchNorm)}
    warned: list[bool] = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        if not model.training:
            return
        if not warned and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves((args, kwargs))):
            warned.append(True)
            warnings.warn("an input requires grad, so the backward pass goes through slow layers too", stacklevel=3)
        for name, module in slow.items():
            due = _is_due(module, opt, rates)
            mode = due or not slow_eval
            if isinstance(module, _BatchNorm):
                mode = mode and batchnorm != "eval"
                module.momentum = momenta[name] if due or batchnorm != "frozen" else 0.0
            module.training = mode

    model.register_forward_pre_hook(before, with_kwargs=True)


def _all_slow(module: nn.Module, rates: dict[int, int]) -> bool:
    """Do all the parameters of a module, and of those in it, wait?"""
    own = [rates.get(id(p), 1) for p in module.parameters()]
    return bool(own) and all(rate > 1 for rate in own)


def _is_due(module: nn.Module, opt: Optimizer, rates: dict[int, int]) -> bool:
    step = opt.param_groups[0]["step"]
    return any(step % rates.get(id(p), 1) == 0 for p in module.parameters())


def _warn_by_order(model: nn.Module, slow: dict[str, nn.Module], fast: dict[str, nn.Module]) -> None:
    """At the first forward pass: does a slow layer run after a fast one?"""
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
