"""Image sets, read from a folder in their original formats."""

from __future__ import annotations

import math
import struct
from importlib import import_module
from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from tether.data.files import folder, present, unpacked

__all__ = ["cifar10", "cifar100", "fashion_mnist", "mnist", "svhn"]

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
    rows = np.concatenate([_batch(files[name], "CIFAR-10", (10,)) for name in sorted(files)])
    return torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(rows[:, 0].astype(np.int64))


def cifar100(
    train: bool = True, root: str | Path | None = None, coarse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """CIFAR-100: as `cifar10`, in a hundred classes, from the binary ``cifar100/train.bin`` or ``test.bin``.

    Args:
        train: the training set, or False for the test set.
        root: the folder that holds ``cifar100/``; without it the environment variable ``TETHER_DATA``.
        coarse: the twenty classes of classes instead.
    """
    source = "CIFAR-100's binary version (cs.toronto.edu/~kriz/cifar.html)"
    path = present(folder("cifar100", root) / f"{'train' if train else 'test'}.bin", source)
    rows = _batch(path, "CIFAR-100", (20, 100))
    labels = rows[:, 0 if coarse else 1].astype(np.int64)
    return torch.from_numpy(rows[:, 2:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels)


def svhn(train: bool = True, root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """SVHN: 3 × 32 × 32 images of house numbers as bytes, and the digit in the middle, from ``svhn/train_32x32.mat``.

    The files are MATLAB's (version 5), which scipy reads; there the digit 0 has the label 10.

    Args:
        train: the training set, or False for ``test_32x32.mat``.
        root: the folder that holds ``svhn/``; without it the environment variable ``TETHER_DATA``.
    """
    source = "the cropped digits of SVHN (ufldl.stanford.edu/housenumbers)"
    path = present(folder("svhn", root) / f"{'train' if train else 'test'}_32x32.mat", source)
    content = unpacked(path)
    try:
        matlab = import_module("scipy.io")
    except ImportError:
        raise ImportError(f"{path} is a file of MATLAB, which scipy reads: pip install scipy") from None
    try:
        held = matlab.loadmat(BytesIO(content))
        images, labels = held["X"], held["y"].ravel().astype(np.int64)
    except Exception as error:  # scipy has many words for a damaged file
        raise ValueError(f"{path} is no file of MATLAB with images X and labels y ({error!r}): get it again") from None
    if images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8 or images.shape[3:] != labels.shape:
        kinds = f"X of shape {images.shape} ({images.dtype}) and {len(labels)} labels"
        raise ValueError(f"{path} holds {kinds}, where SVHN has bytes of shape (32, 32, 3, n) and n labels")
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise ValueError(f"{path} has labels from {labels.min()} to {labels.max()}, where SVHN has 1 to 10")
    pictures = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return torch.from_numpy(pictures), torch.from_numpy(labels % 10)


def _pair(name: str, train: bool, root: str | Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    path, part = folder(name, root), "train" if train else "t10k"
    images = _idx(pictures := present(path / f"{part}-images-idx3-ubyte"), 3)
    labels = _idx(classes := present(path / f"{part}-labels-idx1-ubyte"), 1)
    if len(images) != len(labels):
        raise ValueError(f"{pictures} holds {len(images)} images and {classes} {len(labels)} labels: get both again")
    return images, labels.long()


def _batch(path: Path, name: str, classes: tuple[int, ...]) -> np.ndarray:
    """Rows of bytes: a label for each kind of classes, then the red, green and blue planes, row by row."""
    content, width = unpacked(path), len(classes) + 3072
    if len(content) % width:
        raise ValueError(f"{path} is no batch of {name}: {len(content)} bytes are no whole number of rows of {width}")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
    for column, count in enumerate(classes):
        if rows[:, column].max() >= count:
            i = int(rows[:, column].argmax())
            wrong = f"row {i + 1} has the label {rows[i, column]}, not 0 to {count - 1}"
            raise ValueError(f"{path} is no batch of {name}: {wrong}")
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
