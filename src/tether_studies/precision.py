"""In which precision convolutional networks are trained and evaluated: bfloat16 where the processor computes in it.

Weights, gradients and the state of the optimizer are float32 in any case. Convolutions and linear layers compute in
bfloat16 under torch's autocast, losses and BatchNorm's statistics in float32.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["casting", "channels_last", "in_bfloat16"]

PRECISIONS = ("auto", "bfloat16", "float32")
# Without one of these bfloat16 is emulated, several times as slow as float32.
FAST = ("avx512_bf16", "amx_bf16", "bf16")


def in_bfloat16(precision: str) -> bool:
    """Is it bfloat16? ``"auto"`` is where the processor has instructions for it."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} must be one of {', '.join(map(repr, PRECISIONS))}")
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch has none
    return precision == "bfloat16" or (precision == "auto" and any(able.get(one) for one in FAST))


def casting(precision: str) -> torch.autocast:
    """The context in which a network is evaluated."""
    return torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16(precision))


def channels_last(net: nn.Module) -> nn.Module:
    """The network itself, its convolutions' weights in the order in which they are fastest on a CPU.

    One with a 1 × 1 convolution from fewer than 8 channels is left as it is: with that the backward pass of torch 2.13
    writes beyond its memory on processors with AVX2.
    """
    narrow = (m for m in net.modules() if isinstance(m, nn.Conv2d) and m.in_channels < 8 and m.kernel_size == (1, 1))
    if not any(True for _ in narrow):
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net
