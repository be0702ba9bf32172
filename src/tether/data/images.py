"""Image sets, read from a folder in their original formats."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch

from tether.data.files import folder, present, unpacked

__all__ = ["cifar10", "fashion_mnist", "mnist"]

BYTES = 0x08  # the code of bytes in an IDX file


def mnist(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """MNIST: 28 × 28 grey images as bytes, and their labels; 60,000 to train on or 10,000 to test.

    Args:
        train: the training set, or False for the test set.
        root: the folder that holds ``mnist/``; without it the environment variable ``TETHER_DATA``.
    """
    return _pair("mnist", train, root)


def fashion_mnist(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Fashion-MNIST, as `mnist`: pictures of clothes in ten classes, from ``fashion-mnist/``."""
    return _pair("fashion-mnist", train, root)


def cifar10(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """CIFAR-10: 3 × 32 × 32 colour images as bytes, and their labels, from the binary batches in ``cifar10/``.

    All files ``data_batch_*.bin`` are read, or all files ``test_batch*.bin``. Each may be packed as ``.bin.xz``.
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


def _pair(name: str, train: bool, root: str | Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    path, part = folder(name, root), "train" if train else "t10k"
    images = _idx(pictures := present(path / f"{part}-images-idx3-ubyte"), 3)
    labels = _idx(classes := present(path / f"{part}-labels-idx1-ubyte"), 1)
    if len(images) != len(labels):
        raise ValueError(f"{pictures} holds {len(images)} images and {classes} {len(labels)} labels: get both again")
    return images, labels.long()


def _batch(path: Path) -> np.ndarray:
    """Rows of 3073 bytes: the label, then the red, green and blue planes, row by row."""
    content = unpacked(path)
    if len(content) % 3073:
        raise ValueError(f"{path} is no batch of CIFAR-10: {len(content)} bytes are no whole number of rows of 3073")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    if rows[:, 0].max() > 9:
        i = int(rows[:, 0].argmax())
        raise ValueError(f"{path} is no batch of CIFAR-10: row {i + 1} has the label {rows[i, 0]}, not 0 to 9")
    return rows


def _idx(path: Path, axes: int) -> torch.Tensor:
    """The bytes of an IDX file: two zeros, the type of number, the number of axes, their lengths, the numbers."""
    content = unpacked(path)
    if content[:2] != b"\0\0" or len(content) < 4 or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{path} is no IDX file: it begins with {content[:4]!r} and has {len(content)} bytes")
    kind, start = content[2], 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if kind != BYTES:
        raise ValueError(f"{path} holds numbers of kind {kind:#04x}, where this set has bytes, {BYTES:#04x}")
    if len(shape) != axes:
        many = "1 axis" if axes == 1 else f"{axes} axes"
        raise ValueError(f"{path} holds numbers of shape {shape}, where this set has {many}: are two files exchanged?")
    if len(content) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(content) - start} numbers where its header promises {shape}")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())
