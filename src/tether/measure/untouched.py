"""Measuring a model without changing it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

__all__ = ["untouched"]

_one = threading.RLock()
_turns = WeakKeyDictionary[nn.Module, Any]()  # a lock for each model that was measured


@contextmanager
def untouched(model: nn.Module, train: bool = False) -> Iterator[None]:
    """Run the block in eval mode, then restore modes, parameters, buffers, gradients and random states.

    Afterwards the model holds the same tensors with the same values, also after an error. Threads that measure one
    model take turns.

    Args:
        model: the model to measure.
        train: run in training mode instead, e.g. to compute BatchNorm's statistics.
    """
    with _one:
        turn = _turns.setdefault(model, threading.RLock())
    with turn, _restored(model, train):
        yield


@contextmanager
def _restored(model: nn.Module, train: bool) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    held = [(x, x.data, x.detach().clone(), x.requires_grad, x.grad) for x in model.parameters()]
    grads = [None if grad is None else grad.detach().clone() for *_, grad in held]
    buffers = [
        (module, name, x, x.clone()) for module in model.modules() for name, x in module.named_buffers(recurse=False)
    ]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        model.train(train)
        yield
    finally:
        with torch.no_grad():
            for (x, data, value, wanted, grad), kept in zip(held, grads, strict=True):
                x.data, x.grad = data, grad
                x.requires_grad_(wanted)
                if not torch.equal(data, value):
                    data.copy_(value)
                if grad is not None and kept is not None:
                    grad.copy_(kept)
            for owner, name, buffer, before in buffers:
                owner._buffers[name] = buffer.copy_(before)
        for module, training in modes:
            module.training = training
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)
