"""Products with the edges |w|^p of a layer, and steps divided by γ: by a compiled kernel, or by torch.

The kernel reads a weight matrix once, without forming |w|^p, and sums in float64. It serves contiguous float32 and
float64 matrices on the CPU and p = 1 or 2; everything else comes from torch, with the same numbers to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tether import native

__all__ = ["Flow", "Flows", "back", "divide", "power", "product", "serves"]

# The vectors whose outer product is ∂J/∂|w|^p for one use of a parameter w: two for a matrix, one for a bias.
Flow = tuple[torch.Tensor, ...]
Flows = dict[torch.Tensor, list[Flow]]


def power(w: torch.Tensor, p: float) -> torch.Tensor:
    """|w|^p in the widest floating point of the device: products over many layers leave the range of float32."""
    # Apple's GPUs have no float64.
    w = w.detach().to(torch.float32 if w.device.type == "mps" else torch.float64)
    return w.abs() if p == 1 else w.square() if p == 2 else w.abs().pow_(p)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where it cannot be had."""
    if os.environ.get("TETHER_NATIVE", "1") == "0":
        return None
    source = Path(__file__).with_name("path.c")
    compiler = os.environ.get("CC", "cc")
    try:
        recipe = "\0".join((source.read_text(), compiler, *native.FLAGS, platform.machine(), platform.platform()))
        name = f"path-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tether"
        if not (cache / name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                built = Path(scratch) / name
                command = [compiler, *native.FLAGS, str(source), "-o", str(built), "-lm"]
                if subprocess.run([*command, "-fopenmp"], capture_output=True, timeout=120).returncode:
                    subprocess.run([*command, "-DPLAIN"], check=True, capture_output=True, timeout=120)
                built.replace(cache / name)  # atomic: another process may be building it too
        return ctypes.CDLL(str(cache / name))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None


@lru_cache
def _function(name: str, dtype: torch.dtype) -> Any:
    size, address = ctypes.c_int64, ctypes.c_void_p
    function = getattr(_library(), f"{name}_{native.SUFFIX[dtype]}")
    numbers = [ctypes.c_double] * 2
    arguments = {
        "ahead": [address] * 4 + [size] * 4,
        "back": [address] * 3 + [size] * 4,
        "divide": [address] * 3 + numbers + [address] + [size] * 3,
    }
    function.argtypes, function.restype = arguments[name], None
    return function


def _threads(w: torch.Tensor) -> int:
    return torch.get_num_threads() if w.numel() >= native.SMALL else 1


def serves(w: torch.Tensor) -> bool:
    """Can the kernel work with this tensor?"""
    return (
        w.dtype in native.SUFFIX
        and w.device.type == "cpu"
        and type(w) in (torch.Tensor, torch.nn.Parameter)
        and w.is_contiguous()
        and _library() is not None
    )


def product(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, p: float, anchor: torch.Tensor | None, flows: Flows
) -> torch.Tensor:
    """y = |w|^p x + |b|^p for one vector x, by the kernel.

    Where there is an anchor, a tensor that ties y to the graph, the way back leaves in `flows` what goes by w and b.
    """
    if anchor is None:
        return _ahead(x, w, b, p)
    return _Product.apply(x, anchor, w, b, p, flows)  # type: ignore[no-untyped-call]


def _ahead(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, p: float) -> torch.Tensor:
    rows, columns = w.shape
    x, y = x.contiguous(), x.new_empty((*x.shape[:-1], rows))
    at = w.data_ptr(), None if b is None else b.data_ptr(), x.data_ptr(), y.data_ptr()
    _function("ahead", w.dtype)(*at, rows, columns, p == 2, _threads(w))
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        anchor: torch.Tensor,
        w: torch.Tensor,
        b: torch.Tensor | None,
        p: float,
        flows: Flows,
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        ctx.own = x, w, b, p, flows
        return _ahead(x, w, b, p)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w, b, p, flows = ctx.own
        y = grads[0].detach().contiguous()
        flat = y.flatten()
        flows.setdefault(w, []).append((flat, x.flatten()))
        if b is not None:
            flows.setdefault(b, []).append((flat,))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None, None
        return back(y, w, p).view_as(x), None, None, None, None, None


def back(y: torch.Tensor, w: torch.Tensor, p: float) -> torch.Tensor:
    """The way back from y = |w|^p x: |w|^p transposed times what comes, by the kernel."""
    x = y.new_zeros(w.shape[1])
    _function("back", w.dtype)(w.data_ptr(), y.data_ptr(), x.data_ptr(), *w.shape, p == 2, _threads(w))
    return x


def divide(g: torch.Tensor, factors: Flow, out: torch.Tensor, times: float = 1.0, keep: float = 0.0) -> torch.Tensor:
    """out ← keep·out + times · g/γ, with 0 for g/γ where γ = 0; γ is the product of the factors.

    Factors are one tensor of the shape of g, or a column (rows × 1) and a row (1 × columns).
    """
    if all(serves(x) and x.dtype == g.dtype for x in (g, out, *factors)):
        column = factors[0].data_ptr() if len(factors) == 2 else None
        rows, columns = (g.shape[0], g.shape[1]) if len(factors) == 2 else (1, g.numel())
        at = g.data_ptr(), column, factors[-1].data_ptr(), times, keep, out.data_ptr()
        _function("divide", g.dtype)(*at, rows, columns, _threads(g))
        return out
    γ = factors[0] if len(factors) == 1 else factors[0] * factors[1]
    quotient = torch.where(γ > 0, times * g / γ, 0.0)
    return out.copy_(quotient) if keep == 0 else out.mul_(keep).add_(quotient)
