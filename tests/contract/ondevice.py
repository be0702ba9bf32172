"""A model on the meta device, under an optimizer that has begun on the CPU; and the operations of its steps, counted.

The meta device has shapes and no numbers: whoever looks at one raises. So a step that goes through there never makes
the host wait for an accelerator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tether
from tether.rhythms.sleep import BEDS


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def tower(layers: int, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def to_meta(model: nn.Module) -> None:
    """Move the parameters, the same objects, to meta."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        BEDS.data.clear()  # torch does not swap tensors that have weak references
        model.zero_grad()
        model.to("meta")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def fill(model: nn.Module) -> None:
    """Gradients for all that asks for one."""
    for param in model.parameters():
        param.grad = torch.full_like(param, 0.01) if param.requires_grad else None


def on_meta(make: Callable[[nn.Module], torch.optim.Optimizer], model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that has made a step on the CPU and one on meta; torch's own are made there."""
    if not isinstance(make(model), tether.Optimizer):
        to_meta(model)
    opt = make(model)
    fill(model)
    opt.step()
    to_meta(model)
    fill(model)
    opt.step()
    return opt


def operations(opt: torch.optim.Optimizer, model: nn.Module) -> Counter[str]:
    """What a step asks of the device."""
    fill(model)
    with Counted() as counted:
        opt.step()
    return counted.calls
