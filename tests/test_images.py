"""The IDX reader on files made by hand, and on the real sets where they lie on this machine."""

import gzip
import os
import struct

import pytest
import torch

from tether.data import fashion_mnist, mnist


def write(path, numbers, shape):
    path.parent.mkdir(exist_ok=True)
    content = struct.pack(">HBB", 0, 0x08, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + bytes(numbers)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_a_file_made_by_hand(tmp_path, suffix):
    write(tmp_path / "mnist" / f"t10k-images-idx3-ubyte{suffix}", range(12), (2, 2, 3))
    write(tmp_path / "mnist" / f"t10k-labels-idx1-ubyte{suffix}", [7, 255], (2,))
    images, labels = mnist(train=False, root=tmp_path)
    assert torch.equal(images, torch.arange(12, dtype=torch.uint8).view(2, 2, 3))
    assert torch.equal(labels, torch.tensor([7, 255]))


def test_a_file_that_is_cut_short_or_no_idx_file(tmp_path):
    write(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", range(11), (2, 2, 3))
    with pytest.raises(ValueError, match=r"holds 11 numbers where its header promises \(2, 2, 3\)"):
        mnist(root=tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\x89PNG...."))
    with pytest.raises(ValueError, match=r"no IDX file: it begins with b'.x89PNG'"):
        mnist(root=tmp_path)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="fashion-mnist does not exist"):
        fashion_mnist(root=tmp_path)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz is missing"):
        mnist(root=tmp_path)
    monkeypatch.delenv("TETHER_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="Set TETHER_DATA"):
        mnist()


@pytest.mark.skipif("TETHER_DATA" not in os.environ, reason="the real sets lie elsewhere")
@pytest.mark.parametrize(("load", "mean"), [(mnist, 0.1307), (fashion_mnist, 0.2860)])
def test_the_real_sets(load, mean):
    images, labels = load()
    assert images.shape == (60_000, 28, 28)
    assert abs(images.double().mean() / 255 - mean) < 1e-4
    assert labels.bincount().sum() == 60_000
    assert load(train=False)[0].shape == (10_000, 28, 28)
