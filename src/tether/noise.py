"""Noise: every draw is named by (seed, step, draw, parameter), never taken from ambient state.

A name is hashed to the start of its own SFC64 stream, so a run resumes exactly, a frozen or a skipped
parameter shifts nobody else's noise, a partition into parts changes nothing, and all ranks of a
data-parallel run agree, with nothing but the step number to store. The global generators of torch and
numpy are neither read nor advanced.

On the CPU the stream's words become normals by Box–Muller in blocks that stay in cache: half the time
of ``Tensor.normal_``, whose generator can be seeded with 32 bits only (benchmarks/step.py). Elsewhere
the device's own generator is seeded by the name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

__all__ = ["Normals", "reference"]

BLOCK = 1 << 16  # normals made at a time; part of the definition of a stream, do not change


class Normals:
    """Fresh standard normals for tensors that lie at `offsets` in one flat buffer."""

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        offsets: Sequence[int],
        total: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.names, self.device = names, device
        self.flat = torch.zeros(total, dtype=dtype, device=device)
        # Half precision is rounded from float32; the exact stream exists for float32 and float64.
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        self.wide = self.flat if wide is dtype else torch.zeros(total, dtype=wide, device=device)
        self.pieces = [self.wide[start : start + size] for start, size in zip(offsets, sizes, strict=True)]
        if device.type == "cpu":
            self.box_muller = BoxMuller(self.pieces)

    def draw(self, seed: int, step: int, draw: int) -> torch.Tensor:
        """The flat buffer, filled; it is overwritten by the next draw."""
        if self.device.type == "cpu":
            self.box_muller.fill(stream(seed, step, draw, name) for name in self.names)
        else:
            fill_by_device(self.pieces, (key(seed, step, draw, name) for name in self.names))
        if self.wide is not self.flat:
            self.flat.copy_(self.wide)
        return self.flat


def key(seed: int, step: int, draw: int, name: str) -> bytes:
    """192 bits that belong to this name alone."""
    return hashlib.blake2b(f"{seed}/{step}/{draw}/{name}".encode(), digest_size=24).digest()


def stream(seed: int, step: int, draw: int, name: str) -> np.random.SFC64:
    """The words of a name; valid until the next call, which reuses the generator."""
    start = np.frombuffer(key(seed, step, draw, name) + b"\1\0\0\0\0\0\0\0", dtype="<u8")
    _SFC64.state = {"bit_generator": "SFC64", "state": {"state": start}, "has_uint32": 0, "uinteger": 0}
    return _SFC64


_SFC64 = np.random.SFC64(0)


class BoxMuller:
    """Turns words into normals: two halves of a word are a radius and an angle.

    ``r = √(−2 log u)``, ``(r cos φ, r sin φ)`` with ``u = (|i| + ¼)/2³¹`` and ``φ = π j/2³¹`` from two signed
    32-bit integers i, j (64 bits for float64). A block of m normals takes k = ⌈m/2⌉ radii, then k angles;
    its first k normals are the cosines. Small blocks of several tensors are computed together.
    """

    def __init__(self, pieces: Sequence[torch.Tensor]) -> None:
        double = bool(pieces) and pieces[0].dtype is torch.float64
        self.integer = np.int64 if double else np.int32
        self.bits = 63 if double else 31
        blocks = [(i, block) for i, piece in enumerate(pieces) for block in piece.split(BLOCK) if block.numel()]
        self.batches: list[list[tuple[int, np.ndarray, int, int]]] = []
        room = 0
        for i, block in blocks:
            half = (block.numel() + 1) // 2
            if half > room:
                self.batches.append([])
                room = BLOCK // 2
            self.batches[-1].append((i, block.numpy(), BLOCK // 2 - room, half))
            room -= half
        scratch = min(BLOCK // 2, sum((block.numel() + 1) // 2 for _, block in blocks))
        self.radius, self.angle, self.other = (
            torch.empty(scratch, dtype=pieces[0].dtype if pieces else torch.float32) for _ in range(3)
        )

    def fill(self, streams: Iterable[np.random.SFC64]) -> None:
        radius, angle, other = self.radius.numpy(), self.angle.numpy(), self.other.numpy()
        source, current = iter(streams), -1
        for batch in self.batches:
            for i, _, at, half in batch:
                while current < i:
                    words, current = next(source), current + 1
                count = half if self.bits == 31 else 2 * half
                raw = words.random_raw(count).view(self.integer)
                radius[at : at + half] = raw[:half]
                angle[at : at + half] = raw[half : 2 * half]
            size = batch[-1][2] + batch[-1][3]
            r, φ, c = self.radius[:size], self.angle[:size], self.other[:size]
            # ¼ keeps the logarithm finite at i = 0, and u ≤ 1 keeps the root real.
            r.abs_().add_(0.25).mul_(2.0**-self.bits).log_().mul_(-2.0).sqrt_()
            φ.mul_(math.pi * 2.0**-self.bits)
            torch.cos(φ, out=c)
            φ.sin_()
            for _, out, at, half in batch:
                rest = len(out) - half
                np.multiply(radius[at : at + half], other[at : at + half], out=out[:half])
                np.multiply(radius[at : at + rest], angle[at : at + rest], out=out[half:])


def fill_by_device(pieces: Sequence[torch.Tensor], keys: Iterable[bytes]) -> None:
    """The same contract from the device's own generator; other numbers than on the CPU."""
    generator = torch.Generator(pieces[0].device) if pieces else None
    for piece, name in zip(pieces, keys, strict=True):
        assert generator is not None
        generator.manual_seed(int.from_bytes(name[:8], "little") >> 1)
        piece.normal_(generator=generator)


def reference(size: int, seed: int, step: int, draw: int, name: str, dtype: torch.dtype) -> torch.Tensor:
    """What a CPU stream is, without batching or scratch space: the tests hold `Normals` to it."""
    bits, integer, per_word = (63, np.int64, 1) if dtype is torch.float64 else (31, np.int32, 2)
    words = stream(seed, step, draw, name)
    parts = []
    for begin in range(0, size, BLOCK):
        half = (min(BLOCK, size - begin) + 1) // 2
        integers = words.random_raw(2 * half // per_word).view(integer)
        i, j = torch.from_numpy(integers).to(dtype).split(half)
        r = (-2 * torch.log((i.abs() + 0.25) * 2.0**-bits)).sqrt()
        φ = j * (math.pi * 2.0**-bits)
        parts += [torch.cat((r * φ.cos(), r * φ.sin()))[: min(BLOCK, size - begin)]]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)
