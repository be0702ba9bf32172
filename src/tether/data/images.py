"""Image sets, read from a folder in their original formats."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import struct
from pathlib import Path

import numpy as np
import torch

__all__ = ["cifar10", "fashion_mnist", "folder", "mnist"]

KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def mnist(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """MNIST: 28 × 28 grey images as bytes, and their labels; 60,000 to train on or 10,000 to test.

    Args:
        train: which of the two.
        root: the folder that holds ``mnist/``; without it the environment variable ``TETHER_DATA``.
    """
    return _pair("mnist", train, root)


def fashion_mnist(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Fashion-MNIST, as `mnist`: pictures of clothes in ten classes, from ``fashion-mnist/``."""
    return _pair("fashion-mnist", train, root)


def cifar10(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """CIFAR-10: 3 × 32 × 32 colour images as bytes, and their labels, from the binary batches in ``cifar10/``.

    All the ``data_batch_*.bin`` that are there, or all the ``test_batch*.bin``; each may be packed as ``.bin.xz``.
    """
    path, start = folder("cifar10", root), "data_batch_" if train else "test_batch"
    files = {file.name.removesuffix(".xz"): file for file in sorted(path.glob(f"{start}*.bin*"), reverse=True)}
    if not files:
        raise FileNotFoundError(
            f"{path / start}*.bin is missing, and so is .bin.xz: put the batches of CIFAR-10's binary version there "
            "(cs.toronto.edu/~kriz/cifar.html)"
        )
    rows = np.concatenate([_batch(files[name]) for name in sorted(files)])
    return torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(rows[:, 0].astype(np.int64))


def folder(name: str, root: str | Path | None = None) -> Path:
    """Where a data set lies, or an error that says how to say so."""
    base = root if root is not None else os.environ.get("TETHER_DATA")
    if base is None:
        raise FileNotFoundError(f"where is {name!r}? Set TETHER_DATA to the folder that holds it, or pass root=...")
    path = Path(base) / name
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist: put the files of {name!r} there, in their original format")
    return path


def _pair(name: str, train: bool, root: str | Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    path, part = folder(name, root), "train" if train else "t10k"
    images, labels = _idx(path / f"{part}-images-idx3-ubyte.gz"), _idx(path / f"{part}-labels-idx1-ubyte.gz")
    return images, labels.long()


def _batch(path: Path) -> np.ndarray:
    """Rows of 3073 bytes: the label, then the red, green and blue planes, row by row."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    if not content or len(content) % 3073:
        raise ValueError(f"{path} is no batch of CIFAR-10: {len(content)} bytes are no whole number of rows of 3073")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)


def _idx(path: Path) -> torch.Tensor:
    """A file in the IDX format: two zeros, the kind of number, how many axes, their lengths, the numbers."""
    if not path.exists() and path.with_suffix("").exists():
        content = path.with_suffix("").read_bytes()
    elif path.exists():
        content = gzip.decompress(path.read_bytes())
    else:
        raise FileNotFoundError(f"{path} is missing, and so is the same without .gz")
    zeros, kind, axes = struct.unpack(">HBB", content[:4])
    if zeros or kind not in KINDS:
        raise ValueError(f"{path} is no IDX file: it begins with {content[:4]!r}")
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    numbers = np.frombuffer(content, dtype=KINDS[kind], offset=4 + 4 * axes)
    if len(numbers) != math.prod(shape):
        raise ValueError(f"{path} holds {len(numbers)} numbers where its header promises {shape}")
    return torch.from_numpy(numbers.reshape(shape).astype(numbers.dtype.newbyteorder("=")))
