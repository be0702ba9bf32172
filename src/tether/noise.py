"""Noise: every number is a function of (seed, step, draw, name, index, replica), and of nothing else.

The index is that of the entry in the whole parameter. So a run resumes exactly, a frozen or a skipped parameter
shifts nobody else's noise, a partition into parts or shards changes nothing, replica i is the same among 2 or 200,
and all ranks and devices agree, with nothing but the step number to store. The global generators of torch and
numpy are neither read nor advanced.

The generator is Philox 4×32-10 (Salmon, Moraes, Dror, Shaw: *Parallel random numbers: as easy as 1, 2, 3*, 2011): a
bijection of 128 bits, the counter, for each key of 64 bits, and so no two numbers of a key share their bits.

=========  =====================================================================================
key        the first 64 bits of BLAKE2b of "seed/name"
word 0     counter n, its low 32 bits
word 1     step
word 2     draw
word 3     the replica in the low 24 bits, bits 32 to 39 of n above them
=========  =====================================================================================

Eight counters make a tile of 32 entries: entry e takes row (e mod 32)//8 of counter n = 8·(e//32) + e mod 8, so that a
vector of eight counters is stored without a shuffle. Rows 0 and 1 of a counter are the cosine and the sine of its
words 0 and 1 by Box–Muller, rows 2 and 3 those of its words 2 and 3::

    r = √(−2 log u),   u = (⌊i/2⌋ + ½)/2³¹,   φ = π j/2³¹,   i the first word, j the second as a signed integer

The integers are the same for every dtype: normals of float32 are those of float64 to rounding, and half precision is
rounded from float32. The largest normal is √(64 log 2) = 6.660; one number in 3.6·10¹⁰ should be larger.

`words` and `at` say what the numbers are, in torch's integer operations, on any device and inside torch.compile.
``native/philox.h`` makes the same integers, and `Normals` uses it on the CPU.
"""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch

from tether import native

__all__ = ["STREAM", "Normals", "at", "bits", "entries", "key", "naming", "philox", "reference", "tiles", "words"]

STREAM = 2  # the version of all this, like that of a file format: checkpoints carry it
TILE, LANES = 32, 8  # entries and counters
LOW = 0xFFFFFFFF
FILL = native.pack([(0, 0, 0.0, 0.0, 0.0, 1.0)])  # p ← R
LIMITS = {"step": 32, "draw": 32, "replica": 24}  # bits; `native.Layout` knows that of the index, 42

Number = int | torch.Tensor
CPU = torch.device("cpu")


def philox(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 bits from a counter of four and a key of two, as integers or int64 tensors that broadcast."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        # a product of 64 bits may wrap around in int64; the mask makes its upper half right again
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32 & LOW) ^ c1 ^ k0, b & LOW, (a >> 32 & LOW) ^ c3 ^ k1, a & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3


@lru_cache(maxsize=1 << 14)
def key(seed: int, name: str) -> int:
    """64 bits that belong to this seed and name alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 8)
def keys(seed: int, names: tuple[str, ...]) -> bytes:
    """The keys of some names, one after the other, as the kernel reads them."""
    return struct.pack(f"={len(names)}Q", *(key(seed, name) for name in names))


def checked(what: str, value: Number) -> Number:
    """A number that fits into its bits of the counter; a tensor is taken as it is, for to ask would stop the device."""
    if isinstance(value, torch.Tensor):
        return value
    number = operator.index(value)
    if not 0 <= number < 1 << LIMITS[what]:
        raise ValueError(
            f"{what}={value!r} has no noise: a {what} is at least 0 and below 2^{LIMITS[what]}; "
            "begin again at 0 with another seed, which names other numbers"
        )
    return number


def counters(n: Any, step: Number, draw: Number, replica: Any) -> tuple[Any, Any, Any, Any]:
    """The four words of counter n."""
    return n & LOW, checked("step", step), checked("draw", draw), replica | n >> 32 << 24


def halves(k: int) -> tuple[int, int]:
    """A key as two words."""
    return k & LOW, k >> 32


def signed(words: torch.Tensor) -> torch.Tensor:
    """Words of 32 bits as signed integers."""
    return (words ^ 0x80000000) - 0x80000000


def radius_and_angle(i: torch.Tensor, j: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The radius and the angle of two normals."""
    u = ((i >> 1).to(dtype) + 0.5) * 2.0**-31
    return (-2 * u.log()).sqrt(), signed(j).to(dtype) * (math.pi * 2.0**-31)


def counter_words(
    index: torch.Tensor, k: Any, step: Number, draw: Number, replica: Any = 0
) -> tuple[Any, Any, Any, Any]:
    """The four words of the counters to which the entries with these indices belong."""
    n = index >> 5 << 3 | index & 7
    return philox(counters(n, step, draw, replica), halves(k) if isinstance(k, int) else k)


def at(index: torch.Tensor, k: Any, step: Number, draw: Number, dtype: torch.dtype, replica: Any = 0) -> torch.Tensor:
    """The normals of the entries with these indices, of any shape: the definition, entry by entry.

    >>> index = torch.arange(3)
    >>> everything = at(index, key(0, "weight"), step=7, draw=0, dtype=torch.float64)
    >>> torch.equal(everything[1:], at(index[1:], key(0, "weight"), step=7, draw=0, dtype=torch.float64))
    True

    Args:
        index: int64, of the entries in the whole parameter (`entries` makes those of a shard).
        k: the key, or its two words as tensors that broadcast against the index.
        step: a number, or an int64 tensor without dimensions, so that a compiled step needs no other graph.
        draw: likewise.
        dtype: float32 or float64.
        replica: a number, or a tensor that broadcasts against the index.
    """
    w0, w1, w2, w3 = counter_words(index, k, step, draw, replica)
    row = index >> 3 & 3
    r, φ = radius_and_angle(torch.where(row < 2, w0, w2), torch.where(row < 2, w1, w3), dtype)
    return r * torch.where(row & 1 == 1, φ.sin(), φ.cos())


def words(index: torch.Tensor, k: Any, step: Number, draw: Number, replica: Any = 0) -> torch.Tensor:
    """The words of the entries with these indices: uniform integers of 32 bits."""
    w0, w1, w2, w3 = counter_words(index, k, step, draw, replica)
    row = index >> 3 & 3
    return torch.where(row < 2, torch.where(row == 0, w0, w1), torch.where(row == 2, w2, w3))


def tile_words(tile: torch.Tensor, k: Sequence[Any], step: Number, draw: Number, replica: Any) -> tuple[Any, ...]:
    """The words of whole tiles, in four tensors of tiles × 8: entry by entry where they are stacked along axis 1."""
    n = tile.unsqueeze(1) * LANES + torch.arange(LANES, device=tile.device)
    return philox(counters(n, step, draw, replica), k)


def tiles(
    tile: torch.Tensor, k: Sequence[Any], step: Number, draw: Number, dtype: torch.dtype, replica: Any = 0
) -> torch.Tensor:
    """The normals of whole tiles, tiles × 32: what `at` gives, with each counter taken once."""
    w0, w1, w2, w3 = tile_words(tile, k, step, draw, replica)
    r, φ = radius_and_angle(torch.stack((w0, w2), 1), torch.stack((w1, w3), 1), dtype)
    return torch.stack((r * φ.cos(), r * φ.sin()), 2).flatten(1)


def entries(
    shape: Sequence[int], offset: Sequence[int], sizes: Sequence[int], device: torch.device | None = None
) -> torch.Tensor:
    """The indices, in a contiguous tensor of this shape, of the block of `sizes` that begins at `offset`.

    >>> entries((3, 4), (1, 2), (2, 2))
    tensor([[ 6,  7],
            [10, 11]])
    """
    index = torch.zeros((), dtype=torch.int64, device=device)
    for length, first, size in zip(shape, offset, sizes, strict=True):
        index = (index * length).unsqueeze(-1) + torch.arange(first, first + size, device=device)
    return index


def reference(
    size: int, seed: int, step: int, draw: int, name: str, dtype: torch.dtype, replica: int = 0
) -> torch.Tensor:
    """The first normals of a name on the CPU, in float32 or float64."""
    return at(torch.arange(size, device="cpu"), key(seed, name), step, draw, dtype, checked("replica", replica))


def naming(seed: int, step: int, draws: Sequence[int], names: tuple[str, ...]) -> native.Noise:
    """The noise of some names, as the kernel takes it."""
    return native.Noise(keys(seed, names), int(checked("step", step)), checked_draws(tuple(draws)))


@lru_cache(maxsize=1 << 8)
def checked_draws(draws: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of draws, looked at once."""
    return tuple([int(checked("draw", draw)) for draw in draws])


class Normals:
    """Fresh standard normals for tensors that lie at `offsets` in one flat buffer.

    `sizes` are whole sizes; with `rows` replicas each has its share and the noise of its number in `lanes`. `first`
    says with which entry of its whole parameter each tensor begins, where they are shards by rows.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        offsets: Sequence[int],
        total: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: int = 1,
        lanes: Sequence[int] | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        self.names, self.device, self.lanes, self.dtype = tuple(names), device, lanes, dtype
        self.layout = native.Layout([size // rows for size in sizes], rows, lanes, first)
        # Half precision is rounded from float32.
        self.exact = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        self.sizes, self.offsets, self.total = sizes, offsets, total
        self.starts = first or [0] * len(sizes)
        self.known: tuple[int, list[torch.Tensor]] | None = None
        self.gaps: torch.Tensor | None = None
        self.held: array[int] | None = None
        self.base = 0
        # Where each tensor begins with a tile of its own and there are no other gaps, the tiles are the buffer.
        ends = [0, *accumulate(TILE * tiles_of(0, count) for count in self.layout.counts)]
        self.in_tiles = rows == 1 and not any(self.starts) and ends == [*offsets, total]
        self.alike = len(set(sizes)) == 1 and not any(self.starts) and sizes[0] * len(sizes) == total
        filled = not (self.in_tiles or self.alike) or native.serves(self.exact, device)
        self.wide = torch.zeros(total if filled else 0, dtype=self.exact, device=device)
        places = zip(offsets, sizes, strict=True)
        self.pieces = [self.wide[start : start + size] for start, size in places] if filled else []

    def places(self) -> array[int] | None:
        """Where the pieces lie; known as long as the buffer is where it was, which a copy of this object is not."""
        base = self.wide.data_ptr()
        if self.held is None or self.base != base:
            self.held, self.base = native.addresses(self.pieces, self.exact, self.layout.whole), base
        return self.held

    def draw(self, seed: int, step: Number, draw: Number) -> torch.Tensor:
        """A flat buffer, filled; it may be overwritten by the next draw."""
        if isinstance(step, int) and isinstance(draw, int) and self.by_kernel():
            native.run(self.exact, self.layout, FILL, naming(seed, step, [draw], self.names), p=self.places())
            return self.wide.to(self.dtype)
        return self.by_torch(seed, step, draw)

    def by_kernel(self) -> bool:
        """Does the compiled kernel draw? It cannot be traced."""
        return not torch.compiler.is_compiling() and native.serves(self.exact, self.device)

    def by_torch(self, seed: int, step: Number, draw: Number) -> torch.Tensor:
        """All tiles of all tensors in one go, then each tensor from its own."""
        tile, k0, k1, replica = self.tables(seed)
        return self.placed(tiles(tile, (k0, k1), step, draw, self.exact, replica))

    def placed(self, found: torch.Tensor) -> torch.Tensor:
        """The normals of all tiles as they lie in the buffer, with 0 in its gaps."""
        laid = self.laid(found)
        return (laid * self.inside() if self.in_tiles else laid).to(self.dtype)

    def below(self, seed: int, step: int, limit: float) -> torch.Tensor:
        """For each entry whether its word is below the limit; what lies in the gaps is anything."""
        if self.by_kernel():
            found = native.words(self.layout, naming(seed, step, [0], self.names))
            pieces = [x.view(self.layout.rows, -1) for x in self.pieces if x.numel()]
            if pieces:
                torch._foreach_copy_(pieces, [(x.long() & LOW) < limit for x in found if x.numel()])
            return self.wide != 0
        tile, k0, k1, replica = self.tables(seed)
        words = torch.stack(tile_words(tile, (k0, k1), step, 0, replica), 1).flatten(1)
        return self.laid((words < limit).to(self.exact)) != 0

    def laid(self, found: torch.Tensor) -> torch.Tensor:
        """What was found for all tiles, as it lies in the buffer."""
        if self.in_tiles:
            return found.flatten()
        if self.alike:
            count = self.layout.counts[0]
            return found.view(len(self.sizes) * self.layout.rows, -1)[:, :count].flatten()
        return self.one_by_one(found.flatten())

    def inside(self) -> torch.Tensor:
        """1 where there is an entry, 0 in the gaps behind the tensors."""
        if self.gaps is None:
            entry = torch.zeros(self.total, dtype=self.exact, device="cpu")
            for start, size in zip(self.offsets, self.sizes, strict=True):
                entry[start : start + size] = 1
            self.gaps = entry.to(self.device)
        return self.gaps

    def one_by_one(self, found: torch.Tensor) -> torch.Tensor:
        """Each tensor from its own tiles, wherever it lies."""
        at, pieces, views, rows = 0, [], [], self.layout.rows
        for piece, count, start in zip(self.pieces, self.layout.counts, self.starts, strict=True):
            wide = TILE * tiles_of(start, count)
            if count:
                own = found[at : at + rows * wide].view(rows, wide)
                pieces.append(piece.view(rows, count))
                views.append(own[:, start % TILE : start % TILE + count])
            at += rows * wide
        if views:
            torch._foreach_copy_(pieces, views)
        return self.wide

    def tables(self, seed: int) -> list[torch.Tensor]:
        """For every tile its number in the parameter, both words of its key, and its replica; kept for a seed."""
        if self.known is None or self.known[0] != seed:
            lanes, found = self.lanes or [0] * self.layout.rows, []
            for name, count, start in zip(self.names, self.layout.counts, self.starts, strict=True):
                own = torch.arange(start // TILE, start // TILE + tiles_of(start, count), device="cpu")
                for lane in lanes[: self.layout.rows]:
                    rest = torch.tensor([*halves(key(seed, name)), lane], device="cpu")
                    found.append(torch.cat((own.unsqueeze(0), rest.unsqueeze(1).expand(3, len(own)))))
            table = torch.cat([torch.empty(4, 0, dtype=torch.int64, device="cpu"), *found], 1).to(self.device)
            self.known = seed, [table[0], *table[1:].unsqueeze(2)]
        return self.known[1]


def tiles_of(start: int, count: int) -> int:
    """How many tiles hold so many entries from `start` on."""
    return (start % TILE + count + TILE - 1) // TILE if count else 0


def bits(
    count: int,
    seed: int,
    step: int,
    name: str,
    rows: int = 1,
    lanes: Sequence[int] | None = None,
    device: torch.device = CPU,
) -> torch.Tensor:
    """Uniform integers of 32 bits, rows × count: the words of a name, those of its draw 0."""
    if device.type != "cpu" or native.library() is None:
        index, replica = torch.arange(count, device=device), torch.tensor(lanes or [0] * rows, device="cpu")
        each = replica[:rows].unsqueeze(1).to(device) if lanes else 0  # without replicas nothing is copied
        return words(index, key(seed, name), step, 0, each).expand(rows, count)
    return native.words(native.Layout([count], rows, lanes), naming(seed, step, [0], (name,)))[0].long() & LOW
