"""Attention of many networks under vmap."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import multi_head_attention_forward
from torch.overrides import TorchFunctionMode

__all__ = ["vmappable_attention"]

_switch = threading.RLock()


@contextmanager
def vmappable_attention(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Attention by plain products: torch's fused kernels ignore gradients under vmap, or run one by one.

    Torch has one switch for all threads, so they take turns.
    """
    with ExitStack() as stack:
        if not torch.compiler.is_compiling():
            stack.enter_context(_switch)
        fused = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(Foldable())
        if all(x.device.type == "cpu" for x in tensors):
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


class Foldable(TorchFunctionMode):
    """Hands contiguous inputs to attention, whose module swaps tokens and batch.

    vmap makes one product for each replica of what is contiguous. Of anything else it makes one for each token, with as
    many copies of the weights.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is multi_head_attention_forward and len(args) >= 3:
            made = {id(x): x.contiguous() for x in args[:3]}  # equal inputs stay one, with one product for all three
            args = (*[made[id(x)] for x in args[:3]], *args[3:])
        return func(*args, **(kwargs or {}))
