"""Noise: every draw is named by (seed, step, draw, parameter), never taken from ambient state.

A name is hashed to the start of its own SFC64 stream, so a run resumes exactly, a frozen or a skipped
parameter shifts nobody else's noise, a partition into parts changes nothing, and all ranks of a
data-parallel run agree, with nothing but the step number to store. The global generators of torch and
numpy are neither read nor advanced. (torch's own CPU generator takes seeds of 32 bits, too few names.)

On the CPU a stream's words become normals by Box–Muller. `reference` says what the numbers are, and
makes them where there is no compiler; `native.c` makes the same, to rounding, in a third of the time of
``Tensor.normal_``. Other devices use their own generator, seeded by the name.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from tether import native

__all__ = ["BLOCK", "CHUNK", "Normals", "keys", "permutations", "reference", "shuffled"]

# Part of what a stream is, like a file format: a parameter is cut into blocks with a stream each, a block into
# chunks, and a chunk of m normals takes k = ⌈m/2⌉ radii, then k angles; its first k normals are the cosines.
BLOCK = native.BLOCK
CHUNK = native.CHUNK
FILL = native.pack([(0, 0, 0.0, 0.0, 0.0, 1.0)])  # p ← R
GOLDEN = 0x9E3779B97F4A7C15  # lanes start apart by this


def key(seed: int, step: int, draw: int, name: str, block: int) -> bytes:
    """192 bits that belong to this name alone."""
    return hashlib.blake2b(f"{seed}/{step}/{draw}/{block}/{name}".encode(), digest_size=24).digest()


def keys(seed: int, step: int, draw: int, names: Sequence[str], sizes: Sequence[int]) -> bytes:
    """The keys of all blocks of some parameters, one after the other."""
    common = hashlib.blake2b(f"{seed}/{step}/{draw}/".encode(), digest_size=24)  # what all names begin with
    found = []
    for name, size in zip(names, sizes, strict=True):
        for block in range(-(-size // BLOCK)):
            own = common.copy()
            own.update(f"{block}/{name}".encode())
            found.append(own.digest())
    return b"".join(found)


def reference(
    size: int, seed: int, step: int, draw: int, name: str, dtype: torch.dtype, lane: int | None = None
) -> torch.Tensor:
    """The normals of a name on the CPU, in float32 or float64; replicas share the name and have a lane each.

    ``(r cos φ, r sin φ)`` with ``r = √(−2 log u)``, ``u = (|i| + ¼)/2³¹`` and ``φ = π j/2³¹`` from signed
    32-bit integers i, j; 64 bits for float64.
    """
    bits, integer = (63, np.int64) if dtype is torch.float64 else (31, np.int32)
    out = torch.empty(size, dtype=dtype, device="cpu")
    for at, piece in enumerate(torch.split(out, BLOCK) if size else ()):
        words = stream(key(seed, step, draw, name, at), lane)
        for chunk in torch.split(piece, CHUNK):
            k = (len(chunk) + 1) // 2
            integers = words.random_raw(k if bits == 31 else 2 * k).view(integer)
            i, j = torch.from_numpy(integers).to(dtype).view(2, k)
            r = (-2 * torch.log((i.abs() + 0.25) * 2.0**-bits)).sqrt()
            φ = j * (math.pi * 2.0**-bits)
            chunk.copy_(torch.cat((r * φ.cos(), r * φ.sin()))[: len(chunk)])
    return out


def stream(start: bytes, lane: int | None) -> np.random.SFC64:
    """The stream of a name; replicas share it and start apart, with the rounds that mix them thrown away."""
    state = np.frombuffer(start + b"\1\0\0\0\0\0\0\0", dtype="<u8").copy()
    if lane is not None:
        state[2] = (int(state[2]) + (lane + 1) * GOLDEN) % 2**64
    words = np.random.SFC64(0)
    words.state = {"bit_generator": "SFC64", "state": {"state": state}, "has_uint32": 0, "uinteger": 0}
    if lane is not None:
        words.random_raw(12)
    return words


class Normals:
    """Fresh standard normals for tensors that lie at `offsets` in one flat buffer.

    `sizes` are whole sizes; with `rows` replicas each has its share and the lane of its number.
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
    ) -> None:
        self.names, self.device, self.lanes = names, device, lanes
        self.layout = native.Layout([size // rows for size in sizes], rows, lanes)
        self.flat = torch.zeros(total, dtype=dtype, device=device)
        # Half precision is rounded from float32.
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        self.wide = self.flat if wide is dtype else torch.zeros(total, dtype=wide, device=device)
        self.pieces = [self.wide[start : start + size] for start, size in zip(offsets, sizes, strict=True)]
        self.at: array[int] | None = None
        self.base = 0

    def places(self) -> array[int] | None:
        """Where the pieces lie; known as long as the buffer is where it was, which a copy of this object is not."""
        base = self.wide.data_ptr()
        if self.at is None or self.base != base:
            self.at, self.base = native.addresses(self.pieces, self.wide.dtype, self.layout.whole), base
        return self.at

    def draw(self, seed: int, step: int, draw: int) -> torch.Tensor:
        """The flat buffer, filled; it is overwritten by the next draw."""
        if native.serves(self.wide.dtype, self.device):
            start = keys(seed, step, draw, self.names, self.layout.counts)
            native.run(self.wide.dtype, self.layout, FILL, start, p=self.places())
        else:
            for piece, name, count in zip(self.pieces, self.names, self.layout.counts, strict=True):
                for lane, part in zip(self.lanes or (None,), piece.view(-1, count) if count else [], strict=False):
                    if self.device.type == "cpu":
                        part.copy_(reference(part.numel(), seed, step, draw, name, part.dtype, lane))
                    else:
                        by_device(part, key(seed, step, draw, name if lane is None else f"{name} {lane}", 0))
        if self.wide is not self.flat:
            self.flat.copy_(self.wide)
        return self.flat


def permutations(points: int, seed: int, epoch: int, name: str, rows: int, lanes: Sequence[int] | None) -> torch.Tensor:
    """Permutations of 0 … points − 1, one for each replica: rows × points."""
    start = key(seed, epoch, 0, name, 0)
    if native.library() is not None:
        return native.shuffle(points, start, native.Layout([points], rows, lanes))
    return torch.stack([shuffled(points, start, lane) for lane in (lanes or (None,))])


def shuffled(points: int, start: bytes, lane: int | None) -> torch.Tensor:
    """What the kernel makes, by Fisher and Yates: i ← swapped with ⌊u (i + 1)⌋, u of 32 bits."""
    raw = stream(start, lane).random_raw(max(points - 1, 0)) >> np.uint64(32)
    order = list(range(points))
    for i, u in zip(range(points - 1, 0, -1), raw.tolist(), strict=True):
        j = u * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return torch.tensor(order, dtype=torch.int64, device="cpu")


def by_device(piece: torch.Tensor, name: bytes) -> None:
    """Fill by the generator of the tensor's own device, seeded by the name."""
    piece.normal_(generator=torch.Generator(piece.device).manual_seed(int.from_bytes(name[:8], "little") >> 1))
