"""The optional compiled kernel: its functions, and the one check of all that is handed to them.

It is a fast path only. Without a compiler, on another device, for half precision, or with
``TETHER_NATIVE=0`` the same numbers, to rounding, come from torch and numpy. `describe` tells which kernel is at work.
"""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import threading
import warnings
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tether.native import build
from tether.native.packing import (
    NO_FORMULAS,
    OP,
    OPS,
    STEP,
    THERMOSTAT,
    Formulas,
    Op,
    pack,
    pack_each,
    pack_formulas,
    replicas_in,
    rows_of,
)

__all__ = [
    "BLOCK",
    "DRAWS",
    "OPS",
    "THERMOSTAT",
    "THERMOSTATS",
    "Bounded",
    "Formulas",
    "Held",
    "KernelError",
    "Layout",
    "Noise",
    "Op",
    "Stiefel",
    "addresses",
    "all_plain",
    "bounded",
    "call",
    "describe",
    "finite",
    "gradients",
    "integers",
    "library",
    "pack",
    "pack_each",
    "pack_formulas",
    "plain",
    "product",
    "replicas_in",
    "rows_of",
    "run",
    "serves",
    "shuffle",
    "stiefel",
    "where",
    "words",
]

DRAWS = 8  # normals a program may name
THERMOSTATS = 16  # of the parts that go through a program together
DEPTH = 64  # the layers of a perceptron are fewer
BLOCK = 1 << 16  # what threads share out
CHUNK = 1 << 11  # what a thread takes of circles at once
REPLICAS, ENTRIES = 1 << 24, 1 << 42  # there is room for in the counters of noise.py
SMALL = 1 << 16  # elements below which a second thread costs more than it saves
DEAR = 3  # so many times as long as its letters takes a normal
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # other types may hold their numbers anywhere
LEVELS = {0: "of the machine", 1: "x86-64", 2: "x86-64-v2", 3: "x86-64-v3 (AVX2)", 4: "x86-64-v4 (AVX-512)"}

# The arguments of every kernel: n an integer, u one without a sign, d a double, a an address. A test reads the C
# prototypes and compares.
KERNELS = {
    "run": "nn aaaaaa nn aaa nn nann a na aa n",
    "finite": "naan",
    "bounded": "nnn aaaaaaa nn an",
    "stiefel": "nnnn aaaa n aa n a n ddn aaa nnn",
    "gradients": "nnn aaaaaaaaa nnn an n aaa nn",
    "ahead": "aaaa nnnnn",
    "back": "aaa nnnnn",
    "divide": "aaa dd a nnnn",
    "kinks": "nnnn aaaaaaaaa n",
}
INTEGER = {"shuffle": "nnun aa", "words": "nnn aaaaa nn"}  # the same, of those that know no dtype
TYPES = {"n": ctypes.c_int64, "u": ctypes.c_uint64, "d": ctypes.c_double, "a": ctypes.c_void_p}
FAULTS = {  # as in kernel.h
    -1: "a buffer is missing that an update needs (a gradient, momenta, or torch's matrix product)",
    -2: "an update names a target or a draw that does not exist",
    -3: "an index of a minibatch, or a label, is out of range",
    -4: "a size is out of range",
}


class KernelError(RuntimeError):
    """The kernel refused its arguments; it has written nothing."""


_lock = threading.RLock()  # one that an interrupt has left closed does not stop its own thread


def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where it cannot be had."""
    found = _built()
    return found.library if isinstance(found, build.Built) else None


def _built() -> build.Built | str:
    if _build_once.cache_info().currsize:
        return _build_once()
    with _lock:  # two threads, one compiler
        return _build_once()


@lru_cache(maxsize=1)
def _build_once() -> build.Built | str:
    """The kernel, or why there is none; says so once, unless that was asked for."""
    try:
        built = build.kernel()
        facts = _facts(built.library)
        if facts[:5] != [OP.size, BLOCK, CHUNK, DRAWS, DEPTH]:
            raise build.Failed(f"the library says {facts[:5]}, native.py {[OP.size, BLOCK, CHUNK, DRAWS, DEPTH]}")
        return built
    except build.Failed as error:
        if "TETHER_NATIVE" not in str(error):
            warnings.warn(
                f"tether goes without its compiled kernel, and is slower: {error}. Install a C compiler or name one "
                "with CC=...; TETHER_NATIVE=0 does without it silently",
                stacklevel=2,
            )
        return str(error)


def _facts(kernel: ctypes.CDLL) -> list[int]:
    facts = (ctypes.c_int64 * 8)()
    kernel.abi(facts)
    return list(facts)


def describe() -> str:
    """Which kernel is at work: compiler and flags, threads, instructions, file, and the matrix product it calls."""
    built = _built()
    if isinstance(built, str):
        return f"no compiled kernel: {built}"
    *_, parallel, cloned, level = _facts(built.library)
    try:
        command = [*built.compiler, "--version"]
        version = subprocess.run(command, capture_output=True, timeout=10).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        version = ""
    found = [name for dtype, name in {torch.float32: "sgemm", torch.float64: "dgemm"}.items() if product(dtype)]
    rows = {
        "compiler": f"{shlex.join(built.compiler)} ({version.partition(chr(10))[0] or 'not found any more'})",
        "flags": shlex.join(built.flags),
        "threads": "OpenMP" if parallel else "one: built without OpenMP",
        "instructions": f"{LEVELS[level]}, {'chosen when it was loaded' if cloned else 'one version only'}",
        "library": built.path,
        "BLAS": f"{' and '.join(found)} of torch" if found else "none found: orthogonal weights by torch itself",
    }
    return "\n".join(f"{name:<13}{text}" for name, text in rows.items())


@lru_cache
def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Can the kernel work on such tensors?"""
    return dtype in SUFFIX and device.type == "cpu" and library() is not None


@lru_cache(maxsize=1)
def _functions() -> dict[tuple[str, torch.dtype], Any]:
    """The kernel's functions with the types of their arguments declared."""
    names = {(name, dtype): f"{name}_{suffix}" for name in KERNELS for dtype, suffix in SUFFIX.items()}
    names |= {(name, torch.int64): name for name in INTEGER}
    functions: dict[tuple[str, torch.dtype], Any] = {key: getattr(library(), name) for key, name in names.items()}
    for key, function in functions.items():
        function.argtypes = [TYPES[letter] for letter in {**KERNELS, **INTEGER}[key[0]].replace(" ", "")]
        function.restype = ctypes.c_int64
    return functions


def call(name: str, dtype: torch.dtype, *arguments: Any) -> int:
    """Run a kernel; an error says what it refused."""
    code: int = _functions()[name, dtype](*arguments)
    if code < 0:
        raise refused(code, f" {name!r}")
    return code


def refused(code: int, name: str = "") -> KernelError:
    """What a kernel says that wrote nothing."""
    return KernelError(f"the kernel{name} refused its arguments: {FAULTS.get(code, code)}. Nothing was written")


class Call(partial[int]):
    """A call of a kernel, with all that must stay alive until it has been made."""

    kept: tuple[Any, ...] = ()


def made(call: Call) -> None:
    """Make a call; an error says what the kernel refused."""
    code = call()
    if code < 0:
        raise refused(code)


def plain(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """May the kernel read and write this tensor where it lies? The one check before an address is taken."""
    return all_plain((x,), dtype)


def all_plain(tensors: Iterable[torch.Tensor], dtype: torch.dtype) -> bool:
    """May the kernel read and write all of these?"""
    # written out here and below, as it runs for every tensor at every step; conjugated ones are complex
    for x in tensors:
        if type(x) not in PLAIN or x.dtype is not dtype or not x.is_contiguous() or not x.is_cpu or x.is_neg():
            return False
    return True


def addresses(tensors: Iterable[torch.Tensor], dtype: torch.dtype, counts: Iterable[int]) -> array[int] | None:
    """Where tensors of so many numbers lie; None if the kernel cannot take one of them as it is."""
    at = array("q")
    for x, count in zip(tensors, counts, strict=True):
        if type(x) not in PLAIN or x.dtype is not dtype or not x.is_contiguous() or not x.is_cpu or x.is_neg():
            return None
        place = x.data_ptr()
        if x.numel() != count or (not place and count):
            return None
        at.append(place)
    return at


class Held:
    """Tensors that are handed to the kernel again and again, and where they lie."""

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, counts: Sequence[int]) -> None:
        self.tensors, self.dtype, self.counts = tensors, dtype, counts
        self.at: array[int] | None = None

    def still(self) -> bool:
        """Can the kernel take them as they are now? What lies where it lay is examined for dtype and shape only."""
        if self.at is not None:
            found, dtype = array("q"), self.dtype
            for x, count in zip(self.tensors, self.counts, strict=True):
                if x.dtype is not dtype or not x.is_contiguous() or x.numel() != count:
                    break
                found.append(x.data_ptr())
            if found == self.at:
                return True
        self.at = addresses(self.tensors, self.dtype, self.counts)
        return self.at is not None


def where(what: str, tensors: Sequence[torch.Tensor], dtype: torch.dtype, *counts: int) -> array[int]:
    """Where tensors of so many numbers lie, one count for all or for each; an error names the one that does not fit."""
    wanted = counts if len(counts) == len(tensors) else counts * len(tensors)
    at = addresses(tensors, dtype, wanted)
    if at is not None:
        return at
    x, count = next((x, n) for x, n in zip(tensors, wanted, strict=True) if addresses([x], dtype, [n]) is None)
    kind = f"{type(x).__name__} of {x.dtype}, shape {tuple(x.shape)}, on {x.device}"
    raise KernelError(
        f"{what}: a {kind} cannot go to the kernel, which needs a plain contiguous tensor of {count} elements of "
        f"{dtype} on the CPU: take x.resolve_neg().to('cpu', {dtype}).contiguous(), or make the optimizer anew"
    )


def one_behind_another(what: str, tensors: Sequence[torch.Tensor], dtype: torch.dtype, count: int) -> array[int]:
    """Where things of so many numbers lie, of which each tensor holds one or more."""
    if not tensors:
        return array("q")
    sizes = [max(1, x.numel() // count) * count for x in tensors]
    found, width = array("q"), dtype.itemsize
    places = addresses(tensors, dtype, sizes) or where(what, tensors, dtype, *sizes)  # which says what does not fit
    for at, size in zip(places, sizes, strict=True):
        found.extend(range(at, at + size * width, count * width))
    return found


def integers(values: Iterable[int]) -> array[int]:
    """64-bit integers the kernel can read."""
    return array("q", values)


class Layout:
    """How tensors lie: each as one, or as `rows` replicas that share a name, with a row of ops and noise each.

    `lanes` are the numbers of the replicas, 0 where there are none; a single tensor may be one of them, too. `first`
    says with which entry of its whole parameter each tensor begins; 0 unless they are shards. `part` says which
    thermostat each tensor has, where there are several; there may be `THERMOSTATS`.
    """

    def __init__(
        self,
        counts: Sequence[int],
        rows: int = 1,
        lanes: Sequence[int] | None = None,
        first: Sequence[int] | None = None,
        part: Sequence[int] | None = None,
    ) -> None:
        self.rows, self.counts = rows, counts  # of one replica
        self.whole = [size * rows for size in counts]
        self.sizes = integers(counts)
        if lanes is not None and len(lanes) < rows:
            raise ValueError(f"{len(lanes)} lanes for {rows} replicas: there must be one for each")
        if first is not None and len(first) != len(counts):
            raise ValueError(f"{len(first)} first entries for {len(counts)} tensors: there must be one for each")
        if lanes is not None and not all(0 <= lane < REPLICAS for lane in lanes):
            wrong = next(lane for lane in lanes if not 0 <= lane < REPLICAS)
            raise ValueError(f"replica={wrong} has no noise: a replica is at least 0 and below 2^24; number them anew")
        for start, size in zip(first or (), counts, strict=False):
            if not 0 <= start <= ENTRIES - size:
                raise ValueError(f"entries {start} to {start + size} have no noise: a parameter has at most 2^42")
        self.lane = None if lanes is None else integers(lanes)
        self.first = None if first is None else integers(first)
        if part is not None and len(part) != len(counts):
            raise ValueError(f"{len(part)} thermostats for {len(counts)} tensors: there must be one for each")
        self.part = None if part is None else integers(part)
        self.at = tuple(None if x is None else x.buffer_info()[0] for x in (self.sizes, self.first, self.lane))
        self.blocks = sum(-(-size // BLOCK) for size in counts)
        self.total = sum(counts) * rows
        self._sums: array[float] | None = None

    def sums(self) -> array[float]:
        """Room for pᵀp of every block, which no two calls need at once."""
        if self._sums is None:
            self._sums = array("d", bytes(8 * (self.rows * self.blocks + 1)))
        return self._sums


class Noise(NamedTuple):
    """Which normals the ops of a program name: the keys of the tensors, one after the other, the step and the draws."""

    keys: bytes
    step: int
    draws: Sequence[int]


SILENCE = Noise(b"", 0, ())


def prepared(
    dtype: torch.dtype,
    layout: Layout,
    ops: bytes,
    noise: Noise = SILENCE,
    *,
    each: int = 0,
    θ: array[int] | None = None,
    p: array[int] | None = None,
    g: array[int] | None = None,
    formulas: Formulas = NO_FORMULAS,
    ξ: torch.Tensor | None = None,
) -> Call:
    """The call that takes the tensors at these `addresses`, of the layout's sizes, through the ops.

    `each` is the number of rows of ops where replicas have their own. `ξ` are the thermostats of the replicas, one part
    after the other, which formulas read and ops change.
    """
    keys, step, draws = noise
    if len(keys) != (8 * len(layout.sizes) if draws else 0):
        raise KernelError(f"{len(keys) // 8} keys for {len(layout.sizes)} tensors: there must be one for each")
    at = [None if x is None else x.buffer_info()[0] for x in (θ, p, g)]
    lengths = len(ops) // OP.size // max(each, 1), each
    threads = torch.get_num_threads() if layout.total * (1 + DEAR * len(draws)) >= SMALL else 1
    thermostat: tuple[Any, ...] = (1, None, None, None)
    sums = None
    if ξ is not None:
        parts, part = ξ.numel() // layout.rows, layout.part
        if not plain(ξ, torch.float64) or ξ.numel() != layout.rows * (parts if part else 1) or not parts:
            raise KernelError(f"thermostats {ξ!r}: there must be {layout.rows} of torch.float64, one for each replica")
        if formulas.stride and len(formulas.tape) != formulas.stride * STEP.itemsize * ξ.numel():
            raise KernelError(f"formulas of {len(formulas.tape)} bytes for {ξ.numel()} thermostats: give each its own")
        sums = layout.sums()
        thermostat = parts, part.buffer_info()[0] if part else None, ξ.data_ptr(), sums.buffer_info()[0]
    named = array("q", draws).tobytes() if draws else None, len(draws), step
    arguments = (len(layout.sizes), layout.rows, *at, *layout.at, *lengths, ops, keys or None, *named)
    rest = (formulas.number, formulas.table, formulas.steps, formulas.stride, formulas.tape, *thermostat, threads)
    call = Call(_functions()["run", dtype], *arguments, *rest)
    call.kept = (θ, p, g, layout, ξ, sums)
    return call


def run(dtype: torch.dtype, layout: Layout, ops: bytes, noise: Noise = SILENCE, **rest: Any) -> None:
    """Make that call at once."""
    made(prepared(dtype, layout, ops, noise, **rest))


def words(layout: Layout, noise: Noise, level: int = -1) -> list[torch.Tensor]:
    """The words of the entries of each tensor, rows × count, as signed 32-bit integers.

    `level` chooses the instructions: 0 plain C, 1 AVX2, 2 AVX-512, −1 the best there are.
    """
    found = [torch.empty(layout.rows, count, dtype=torch.int32, device="cpu") for count in layout.counts]
    at = array("q", [x.data_ptr() for x in found])
    (draw,) = noise.draws
    named = noise.keys, noise.step, draw
    call("words", torch.int64, level, len(found), layout.rows, at.buffer_info()[0], *layout.at, *named)
    return found


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


def bounded_call(
    kind: Bounded, vectors: Sequence[torch.Tensor | None], noise: Sequence[Any], ops: bytes, *, known: bool = False
) -> Call:
    """The call that takes a contiguous parameter on circles or spheres through the ops, in place.

    `vectors` are θ, q, p and g. `known`: all of them have been found plain in this step, or were made so; only their
    sizes are compared then.
    """
    rows, columns, slack, radius = kind
    inside, wide = (rows * columns, rows * (columns + slack)) if columns else (rows, rows)
    θ, q, p, g = vectors
    assert θ is not None
    assert q is not None
    tensors, counts = [θ, q], [inside, wide]
    for x, count in ((p, wide), (g, inside)):
        if x is not None:
            tensors.append(x)
            counts.append(count)
    lengths = array("q", [x.numel() for x in noise])  # the kernel knows how long they must be
    everything, counts = [*tensors, *noise], [*counts, *lengths]
    if known and [x.numel() for x in everything] == counts:
        found = array("q", [x.data_ptr() for x in everything])
    else:
        found = where("a parameter on a surface", everything, θ.dtype, *counts)
    if len(radius) != (rows if columns else 1):
        raise KernelError(f"{len(radius)} radii for {rows} rows: there must be one for each")
    last = len(tensors)
    at = (found[0], found[1], None if p is None else found[2], None if g is None else found[last - 1])
    tables = radius.buffer_info()[0], found.buffer_info()[0] + 8 * last, lengths.buffer_info()[0]
    threads = torch.get_num_threads() if inside >= SMALL else 1
    arguments = (rows, columns, slack, *at, *tables, len(noise), len(ops) // OP.size, ops, threads)
    call = Call(_functions()["bounded", θ.dtype], *arguments)
    call.kept = (tensors, noise, found, lengths, radius)
    return call


def bounded(*arguments: Any, **options: Any) -> None:
    """Make that call at once."""
    made(bounded_call(*arguments, **options))


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
    """Take matrices with orthonormal columns through the ops, into `out` and `moved`; returns those too hard for it.

    A tensor of `θ`, `p` and `g` may hold several matrices, one behind the other.
    """
    r, s, tall, *limits = kind
    dtype = out.dtype
    if not tall:  # points and momenta are held as tall matrices, over the memory of wide ones
        p, moved = [x.mT for x in p], None if moved is None else moved.mT
    lists = [one_behind_another("a matrix", x, dtype, r * s) for x in (θ, p, g)]
    count, *others = map(len, lists)
    if any(other not in (0, count) for other in others):
        raise KernelError("{} momenta and {} gradients".format(*others) + f" for {count} matrices: one for each")
    small = r * s * s < 1 << 24
    # small products belong into a parallel region even where there is one matrix: BLAS then leaves the threads alone
    threads, inner = (torch.get_num_threads(), 1) if small else (1, torch.get_num_threads())
    room = 5 * r * s + 2 * s * s
    scratch = torch.empty(room * threads, dtype=dtype, device="cpu")
    ok = integers([0] * count)
    drawn = where("the noise of matrices", noise, dtype, count * r * s)
    results = where("matrices", [out] if moved is None else [out, moved], dtype, count * r * s)
    at = [x.buffer_info()[0] if x else None for x in (*lists, drawn)]
    places = [results[0], None if moved is None else results[1]]
    numbers = [len(ops) // OP.size // max(each, 1), ops, each, *limits]
    work = [ok.buffer_info()[0], scratch.data_ptr(), room, threads, inner]
    call("stiefel", dtype, count, r, s, tall, *at, len(noise), *places, *numbers, product(dtype), *work)
    return [i for i, fine in enumerate(ok) if not fine]


@lru_cache
def product(dtype: torch.dtype) -> int | None:
    """Where torch's BLAS has its matrix product, if it can be called."""
    try:
        blas = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(blas, {"f32": "sgemm_", "f64": "dgemm_"}[SUFFIX[dtype]]), ctypes.c_void_p).value
    except (OSError, AttributeError, KeyError):
        return None


def shuffle(points: int, key: int, step: int, layout: Layout) -> torch.Tensor:
    """A permutation for each replica of the layout, named by the key and the step."""
    out = torch.empty(layout.rows, points, dtype=torch.int64, device="cpu")
    call("shuffle", torch.int64, layout.rows, points, key, step, layout.at[2], out.data_ptr())
    return out


def gradients(
    dtype: torch.dtype, sizes: Sequence[int], tables: Sequence[array[Any] | None], data: Sequence[Any]
) -> int:
    """Losses and gradients of many perceptrons; returns how many have a loss or a gradient that is not finite.

    `tether.ensemble.perceptrons` lays out and checks the arguments.
    """
    at = [None if x is None else x.buffer_info()[0] for x in tables]
    x, y, points, index, kind, losses, room = data
    threads = min(torch.get_num_threads(), sizes[0])
    scratch = torch.empty(room * threads, dtype=dtype, device="cpu")
    chosen = index.data_ptr(), index.stride(0)
    rest = [kind, losses.data_ptr(), product(dtype), scratch.data_ptr(), room, threads]
    return call("gradients", dtype, *sizes, *at, x.data_ptr(), y.data_ptr(), *points, *chosen, *rest)


def finite(tensors: Sequence[torch.Tensor]) -> bool | None:
    """Are all numbers of these tensors, alike in dtype and device, finite? None if the kernel cannot tell."""
    first = tensors[0]
    dtype = first.dtype
    if not serves(dtype, first.device):
        return None
    for x in tensors:
        if type(x) not in PLAIN or x.dtype is not dtype or x.layout is not torch.strided or not x.is_cpu:
            return None
        if not x.is_contiguous():
            return None
    sizes, at = array("q", [x.numel() for x in tensors]), array("q", [x.data_ptr() for x in tensors])
    threads = torch.get_num_threads() if sum(sizes) >= SMALL else 1
    return bool(call("finite", first.dtype, len(sizes), at.buffer_info()[0], sizes.buffer_info()[0], threads))
