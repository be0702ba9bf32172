"""Hooks: are any registered on a module, a parameter or a step?

Batched products and compiled gradients call no hooks, so they are used only where there are none. Torch has no public
way to ask for them. Its private names are used in this file and nowhere else.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

__all__ = ["backward_hooked", "hooked", "hooked_anywhere", "hooked_step"]

GLOBAL = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def hooked(module: nn.Module) -> bool:
    """Has this module hooks, of either pass? Those of its submodules do not count."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or backward_hooked(module)


def backward_hooked(module: nn.Module) -> bool:
    """Has this module hooks of the backward pass?"""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def hooked_anywhere(model: nn.Module) -> bool:
    """Is there a hook on any module or parameter of the model, or one on all modules?"""
    if any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters()):
        return True
    return any(getattr(modules, name, None) for name in GLOBAL) or any(hooked(module) for module in model.modules())


def hooked_step(opt: torch.optim.Optimizer) -> bool:
    """Has the optimizer, or have all optimizers, hooks around `step`?"""
    everywhere = optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks
    return bool(everywhere or opt._optimizer_step_pre_hooks or opt._optimizer_step_post_hooks)
