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
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = [
    "BLOCK",
    "DRAWS",
    "Bounded",
    "Layout",
    "Stiefel",
    "addresses",
    "bounded",
    "build",
    "finite",
    "gradients",
    "integers",
    "library",
    "pack",
    "pack_each",
    "product",
    "replicas_in",
    "rows_of",
    "run",
    "serves",
    "shuffle",
    "stiefel",
]

DRAWS = 8  # normals a program may name; the kernel keeps that many streams open
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
BLOCK = 1 << 16  # as in native.c and noise.py
SMALL = 1 << 16  # elements below which a second thread costs more than it saves
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
Op = tuple[int, int, float, float, float, float]  # target, draw, and the coefficients own, p, g, R
OP = struct.Struct("=qqdddd")
ROW = np.dtype("=i8,=i8,=f8,=f8,=f8,=f8")  # the same, for tables of ops


def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where it cannot be had."""
    return build("native.c", "kernel.h", "stiefel.c", "mlp.c")


@lru_cache
def build(*sources: str) -> ctypes.CDLL | None:
    """Compile the first of these files, which includes the others, or take it from the cache; None if that fails."""
    if os.environ.get("TETHER_NATIVE", "1") == "0":
        return None
    files = [Path(__file__).with_name(source) for source in sources]
    compiler = os.environ.get("CC", "cc")
    try:
        texts = [file.read_text() for file in files]
        recipe = "\0".join((*texts, compiler, *FLAGS, platform.machine(), platform.platform()))
        name = f"{files[0].stem}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tether"
        if not (cache / name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                built = Path(scratch) / name
                command = [compiler, *FLAGS, str(files[0]), "-o", str(built), "-lm"]
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


def pack_each(ops: Sequence[tuple[Any, ...]], rows: int) -> bytes:
    """Ops with numbers that may be one for each replica, as a row of ops for each."""
    each = [(i, j) for i, op in enumerate(ops) for j in range(2, 6) if isinstance(op[j], torch.Tensor) and op[j].dim()]
    plain: list[Any] = [tuple(0.0 if (i, j) in each else op[j] for j in range(6)) for i, op in enumerate(ops)]
    shared = pack(plain)
    table = np.frombuffer(shared * rows, dtype=ROW).reshape(rows, len(ops)).copy()
    for i, j in each:
        table[f"f{j}"][:, i] = ops[i][j]
    return table.tobytes()


def replicas_in(ops: Iterable[tuple[Any, ...]]) -> int:
    """How many numbers an op holds where it holds one for each replica; 0 where none does."""
    return max([0, *(len(c) for op in ops for c in op if isinstance(c, torch.Tensor) and c.dim())])


def rows_of(table: bytes, rows: int) -> list[bytes]:
    """The rows of such a table."""
    length = len(table) // rows
    return [table[i * length : (i + 1) * length] for i in range(rows)]


def pack(ops: Iterable[Op]) -> bytes:
    """Ops in the form of the kernel's struct."""
    return b"".join([OP.pack(*op) for op in ops])


class Layout:
    """How tensors lie: each as one, or as `rows` replicas that share a name, with a row of ops and a stream each.

    `lanes` are the numbers of the replicas; a single tensor may be one of them, too.
    """

    def __init__(self, counts: Sequence[int], rows: int = 1, lanes: Sequence[int] | None = None) -> None:
        self.rows, self.counts = rows, counts  # of one replica
        self.sizes = integers(counts)
        self.blocks = sum(-(-size // BLOCK) for size in counts)
        self.lane = None if lanes is None else integers([lane + 1 for lane in lanes])
        self.large = sum(counts) * rows >= SMALL


def run(
    dtype: torch.dtype,
    layout: Layout,
    ops: bytes,
    keys: bytes,
    *,
    each: int = 0,
    θ: array[int] | None = None,
    p: array[int] | None = None,
    g: array[int] | None = None,
) -> None:
    """Take the tensors at these addresses through the ops; `keys` start the streams of each draw and block.

    `each` is the number of rows of ops where every replica has its own.
    """
    at = [None if x is None else x.buffer_info()[0] for x in (θ, p, g, layout.sizes, layout.lane)]
    count, threads = len(ops) // OP.size // max(each, 1), torch.get_num_threads() if layout.large else 1
    run = _functions()["run", dtype]
    run(len(layout.sizes), layout.rows, *at, layout.blocks, count, each, ops, keys, threads)


class Bounded(NamedTuple):
    """Weights on circles (columns = 0), or rows on spheres."""

    rows: int
    columns: int
    slack: int
    radius: array[float]

    def times(self, n: int) -> Bounded:
        """As many as n parameters that lie one behind the other have."""
        return self._replace(rows=n * self.rows, radius=n * self.radius if self.columns else self.radius)


class Stiefel(NamedTuple):
    """Matrices with orthonormal columns; `tall` if the parameter is one, else it is the transpose."""

    rows: int
    columns: int
    tall: bool
    tolerance: float
    scale: float
    iterations: int


def bounded(
    kind: Bounded, vectors: Sequence[torch.Tensor | None], noise: Sequence[torch.Tensor | None], ops: bytes
) -> None:
    """Take a contiguous parameter on circles or spheres through the ops, in place; `vectors` are θ, q, p and g."""
    θ = vectors[0]
    assert θ is not None
    threads = torch.get_num_threads() if θ.numel() >= SMALL else 1
    drawn = addresses(x for x in noise if x is not None)
    run = _functions()["bounded", θ.dtype]
    at = [None if x is None else x.data_ptr() for x in vectors]
    at += [kind.radius.buffer_info()[0], drawn.buffer_info()[0]]
    run(kind.rows, kind.columns, kind.slack, *at, len(ops) // OP.size, ops, threads)


def stiefel(
    kind: Stiefel,
    θ: Sequence[torch.Tensor],
    p: Sequence[torch.Tensor],
    g: Sequence[torch.Tensor],
    noise: Sequence[torch.Tensor],
    out: torch.Tensor,
    moved: torch.Tensor | None,
    ops: bytes,
    each: int = 0,
) -> list[int]:
    """Take matrices with orthonormal columns through the ops, into `out` and `moved`; returns those too hard for it."""
    r, s, tall, *limits = kind
    dtype = out.dtype
    small = r * s * s < 1 << 24
    # small products belong into a parallel region even where there is one matrix: BLAS then leaves the threads alone
    threads, inner = (torch.get_num_threads(), 1) if small else (1, torch.get_num_threads())
    room = 5 * r * s + s * s
    scratch = _scratch(dtype, room * threads)
    ok = integers([0] * len(θ))
    lists = [addresses(x) if x else None for x in (θ, p, g, noise)]
    at = [x.buffer_info()[0] if x else None for x in lists]
    places = [out.data_ptr(), None if moved is None else moved.data_ptr()]
    work = [ok.buffer_info()[0], scratch.data_ptr(), room, threads, inner]
    _functions()["stiefel", dtype](
        len(θ), r, s, tall, *at, *places, len(ops) // OP.size // max(each, 1), ops, each, *limits, product(dtype), *work
    )
    return [i for i, fine in enumerate(ok) if not fine]


@lru_cache(maxsize=8)
def _scratch(dtype: torch.dtype, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


@lru_cache
def product(dtype: torch.dtype) -> int | None:
    """Where torch's BLAS has its matrix product, if it can be called."""
    try:
        blas = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(blas, {"f32": "sgemm_", "f64": "dgemm_"}[SUFFIX[dtype]]), ctypes.c_void_p).value
    except (OSError, AttributeError, KeyError):
        return None


def shuffle(points: int, key: bytes, layout: Layout) -> torch.Tensor:
    """A permutation for each replica of the layout, named by the key."""
    out = torch.empty(layout.rows, points, dtype=torch.int64)
    lane = None if layout.lane is None else layout.lane.buffer_info()[0]
    _functions()["shuffle", torch.int64](layout.rows, points, key, lane, out.data_ptr())
    return out


def gradients(
    dtype: torch.dtype, sizes: Sequence[int], tables: Sequence[array[Any] | None], data: Sequence[Any]
) -> None:
    """Losses and gradients of many perceptrons; see `tether.mlp`, which lays out the arguments."""
    at = [None if x is None else x.buffer_info()[0] for x in tables]
    x, y, points, index, kind, losses, faulty, room = data
    replicas = sizes[0]
    threads = min(torch.get_num_threads(), replicas)
    scratch = _scratch(dtype, room * threads)
    results = [losses.data_ptr(), faulty.data_ptr()]
    rest = [index.data_ptr(), kind, *results, product(dtype), scratch.data_ptr(), room, threads]
    _functions()["gradients", dtype](*sizes, *at, x.data_ptr(), y.data_ptr(), *points, *rest)


def finite(dtype: torch.dtype, sizes: array[int], x: array[int]) -> bool:
    """Are all numbers of the contiguous tensors at these addresses finite?"""
    threads = torch.get_num_threads() if sum(sizes) >= SMALL else 1
    return bool(_functions()["finite", dtype](len(sizes), x.buffer_info()[0], sizes.buffer_info()[0], threads))


@lru_cache(maxsize=1)
def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """The kernel's functions with the types of their arguments declared."""
    functions: dict[tuple[str, torch.dtype], Any] = {}
    size, address = ctypes.c_int64, ctypes.c_void_p
    functions["shuffle", torch.int64] = order = getattr(library(), "shuffle")  # noqa: B009
    order.argtypes, order.restype = [size, size, ctypes.c_char_p, address, address], None
    for dtype, suffix in SUFFIX.items():
        functions["run", dtype] = run = getattr(library(), f"run_{suffix}")
        run.argtypes, run.restype = [size] * 2 + [address] * 5 + [size] * 3 + [address, ctypes.c_char_p, size], None
        functions["bounded", dtype] = bound = getattr(library(), f"bounded_{suffix}")
        bound.argtypes, bound.restype = [size] * 3 + [address] * 6 + [size, address, size], None
        functions["stiefel", dtype] = matrices = getattr(library(), f"stiefel_{suffix}")
        limits = [ctypes.c_double, ctypes.c_double, size]
        numbers = [size, ctypes.c_char_p, size, *limits]
        matrices.argtypes = [*[size] * 4, *[address] * 6, *numbers, *[address] * 3, *[size] * 3]
        matrices.restype = None
        functions["gradients", dtype] = nets = getattr(library(), f"gradients_{suffix}")
        nets.argtypes = [*[size] * 3, *[address] * 9, size, size, address, size, *[address] * 4, size, size]
        nets.restype = None
        functions["finite", dtype] = test = getattr(library(), f"finite_{suffix}")
        test.argtypes, test.restype = [size, address, address, size], size
    return functions
