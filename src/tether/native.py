"""The optional compiled kernel: builds `native.c` with the C compiler on first use, or does without.

It is a fast path only. Without a compiler, on another device, for half precision, or with
``TETHER_NATIVE=0`` the same numbers, to rounding, come from torch and numpy.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import struct
import subprocess
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["BLOCK", "DRAWS", "addresses", "bounded", "finite", "integers", "library", "pack", "run", "serves"]

DRAWS = 8  # normals a program may name; the kernel keeps that many streams open
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
BLOCK = 1 << 16  # as in native.c and noise.py
SMALL = 1 << 18  # elements below which a second thread costs more than it saves
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
Op = tuple[int, int, float, float, float, float]  # target, draw, and the coefficients own, p, g, R
OP = struct.Struct("=qqdddd")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where it cannot be had."""
    if os.environ.get("TETHER_NATIVE", "1") == "0":
        return None
    source = Path(__file__).with_name("native.c")
    compiler = os.environ.get("CC", "cc")
    try:
        recipe = "\0".join((source.read_text(), compiler, *FLAGS, platform.machine(), platform.platform()))
        name = f"native-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tether"
        if not (cache / name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                built = Path(scratch) / name
                command = [compiler, *FLAGS, str(source), "-o", str(built), "-lm"]
                # torch's own OpenMP threads where there are any; else one thread, and no choice of instructions
                if subprocess.run([*command, "-fopenmp"], capture_output=True, timeout=120).returncode:
                    subprocess.run([*command, "-DPLAIN"], check=True, capture_output=True, timeout=120)
                built.replace(cache / name)  # atomic: another process may be building it too
        return ctypes.CDLL(str(cache / name))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None


@lru_cache
def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Can the kernel work on such tensors?"""
    return dtype in SUFFIX and device.type == "cpu" and library() is not None


def integers(values: Iterable[int]) -> array[int]:
    """64-bit integers the kernel can read."""
    return array("q", values)


def addresses(tensors: Iterable[torch.Tensor]) -> array[int]:
    """Where contiguous tensors lie."""
    return array("q", [x.data_ptr() for x in tensors])


def pack(ops: Iterable[Op]) -> bytes:
    """Ops in the form of the kernel's struct."""
    return b"".join([OP.pack(*op) for op in ops])


def run(
    dtype: torch.dtype,
    sizes: array[int],
    blocks: int,
    ops: bytes,
    keys: bytes,
    *,
    θ: array[int] | None = None,
    p: array[int] | None = None,
    g: array[int] | None = None,
) -> None:
    """Take the tensors at these addresses through the ops; `keys` start the streams of each draw and block."""
    threads = torch.get_num_threads() if sum(sizes) >= SMALL else 1
    addresses = (None if x is None else x.buffer_info()[0] for x in (θ, p, g))
    function = _functions()["run", dtype]
    function(len(sizes), *addresses, sizes.buffer_info()[0], blocks, len(ops) // OP.size, ops, keys, threads)


def bounded(
    rows: int,
    columns: int,
    slack: int,
    θ: torch.Tensor,
    q: torch.Tensor,
    p: torch.Tensor | None,
    g: torch.Tensor | None,
    radius: array[float],
    noise: Sequence[torch.Tensor],
    ops: bytes,
) -> None:
    """Take contiguous parameters on circles (columns = 0) or spheres through the ops, in place."""
    threads = torch.get_num_threads() if θ.numel() >= SMALL else 1
    vectors = (x.data_ptr() if x is not None else None for x in (θ, q, p, g))
    at = addresses(noise)
    run = _functions()["bounded", θ.dtype]
    run(rows, columns, slack, *vectors, radius.buffer_info()[0], at.buffer_info()[0], len(ops) // OP.size, ops, threads)


def finite(dtype: torch.dtype, sizes: array[int], x: array[int]) -> bool:
    """Are all numbers of the contiguous tensors at these addresses finite?"""
    threads = torch.get_num_threads() if sum(sizes) >= SMALL else 1
    return bool(_functions()["finite", dtype](len(sizes), x.buffer_info()[0], sizes.buffer_info()[0], threads))


@lru_cache(maxsize=1)
def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """The kernel's functions with the types of their arguments declared."""
    functions: dict[tuple[str, torch.dtype], Any] = {}
    size, address = ctypes.c_int64, ctypes.c_void_p
    for dtype, suffix in SUFFIX.items():
        functions["run", dtype] = run = getattr(library(), f"run_{suffix}")
        run.argtypes, run.restype = [size, *[address] * 4, size, size, address, ctypes.c_char_p, size], None
        functions["bounded", dtype] = bound = getattr(library(), f"bounded_{suffix}")
        bound.argtypes, bound.restype = [size] * 3 + [address] * 6 + [size, address, size], None
        functions["finite", dtype] = test = getattr(library(), f"finite_{suffix}")
        test.argtypes, test.restype = [size, address, address, size], size
    return functions
