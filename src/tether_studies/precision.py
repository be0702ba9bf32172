"""In which precision convolutional networks are trained and evaluated: bfloat16 where the processor computes in it.

Weights, gradients and the state of the optimizer are float32 in any case. Convolutions and linear layers compute in
bfloat16 under torch's autocast, losses and BatchNorm's statistics in float32.
"""

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

__all__ = ["casting", "channels_last", "in_bfloat16", "usable"]

PRECISIONS = ("auto", "bfloat16", "float32")
# Without one of these bfloat16 is emulated, several times as slow as float32.
FAST = ("avx512_bf16", "amx_bf16", "bf16")


PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


@cache
def usable() -> bool:
    """Has the processor instructions for bfloat16, and do they work?

    On some machines with AMX torch's product in bfloat16 ends the process with an illegal instruction. So with AMX a
    process of its own tries one. There ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment gives bfloat16
    without AMX.
    """
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch has none
    if not any(able.get(one) for one in FAST):
        return False
    if not able.get("amx_bf16"):
        return True
    return subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True).returncode == 0


def in_bfloat16(precision: str) -> bool:
    """Is it bfloat16? ``"auto"`` is where the processor has instructions for it that work."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} must be one of {', '.join(map(repr, PRECISIONS))}")
    return precision == "bfloat16" or (precision == "auto" and usable())


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
