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

__all__ = ["Pair", "power", "product", "scaled", "serves"]

Pair = tuple[torch.Tensor, torch.Tensor]  # what flows out of and into the edges of a matrix


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
    arguments = {"scale": [address] * 3 + [ctypes.c_double, address] + [size] * 3}
    function.argtypes, function.restype = arguments.get(name, [address] * 3 + [size] * 4), None
    return function


def _threads(w: torch.Tensor) -> int:
    return torch.get_num_threads() if w.numel() >= native.SMALL else 1


def serves(w: torch.Tensor, p: float) -> bool:
    """Can the kernel work with this matrix?"""
    return (
        w.dim() == 2
        and p in (1, 2)
        and w.device.type == "cpu"
        and w.dtype in native.SUFFIX
        and w.is_contiguous()
        and _library() is not None
    )


def product(x: torch.Tensor, anchor: torch.Tensor, w: torch.Tensor, p: float, pairs: list[Pair]) -> torch.Tensor:
    """y = |w|^p x for one vector x, by the kernel.

    Where `anchor` requires a gradient, the way back leaves in `pairs` the two vectors whose outer product is ∂J/∂|w|^p.
    """
    return _Product.apply(x, anchor, w, p, pairs) if anchor.requires_grad else _ahead(x, w, p)


def _ahead(x: torch.Tensor, w: torch.Tensor, p: float) -> torch.Tensor:
    rows, columns = w.shape
    x, y = x.contiguous(), x.new_zeros((*x.shape[:-1], rows))
    at = w.data_ptr(), x.data_ptr(), y.data_ptr()
    _function("ahead", w.dtype)(*at, rows, columns, p == 2, _threads(w))
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: torch.Tensor, anchor: torch.Tensor, w: torch.Tensor, p: float, pairs: list[Pair]
    ) -> torch.Tensor:
        ctx.x, ctx.w, ctx.p, ctx.pairs = x.contiguous(), w, p, pairs
        return _ahead(ctx.x, w, p)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        y = grads[0].contiguous()
        ctx.pairs.append((y.flatten(), ctx.x.flatten()))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        rows, columns = ctx.w.shape
        x = torch.zeros_like(ctx.x)
        at = ctx.w.data_ptr(), y.data_ptr(), x.data_ptr()
        _function("back", ctx.w.dtype)(*at, rows, columns, ctx.p == 2, _threads(ctx.w))
        return x, None, None, None, None


def scaled(g: torch.Tensor, factors: tuple[torch.Tensor, ...], out: torch.Tensor, keep: float = 0.0) -> torch.Tensor:
    """out ← keep·out + g · (the product of the factors), in one pass where there is a kernel for it.

    Factors are one tensor of the shape of g, or a column (rows × 1) and a row (1 × columns).
    """
    fits = len(factors) == 2 and serves(g, 2) and out.dtype == g.dtype and out.is_contiguous() and out.dim() == 2
    if fits:
        r, c = (factor.to(g.dtype).contiguous() for factor in factors)
        at = g.data_ptr(), r.data_ptr(), c.data_ptr(), keep, out.data_ptr()
        _function("scale", g.dtype)(*at, *g.shape, _threads(g))
        return out
    for factor in factors:
        g = g * factor
    return out.copy_(g) if keep == 0 else out.mul_(keep).add_(g)
