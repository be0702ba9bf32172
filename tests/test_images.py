"""The readers on files made by hand, and on the real sets where they lie on this machine."""

import gzip
import lzma
import os
import struct
import sys

import numpy as np
import pytest
import torch

from tether.data import cifar10, cifar100, fashion_mnist, mnist, sst2, svhn


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
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte is missing, and so is the same with \.gz"):
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


@pytest.mark.parametrize("pack", [lzma.compress, bytes], ids=["xz", "bin"])
def test_colour_batches_made_by_hand(tmp_path, pack):
    suffix = ".bin.xz" if pack is lzma.compress else ".bin"
    (tmp_path / "cifar10").mkdir()
    for i in (1, 2):  # label i; red 10 i, but its second row 7; green 20 i, blue 30 i
        planes = bytes([10 * i] * 32 + [7] * 32 + [10 * i] * 960 + [20 * i] * 1024 + [30 * i] * 1024)
        (tmp_path / "cifar10" / f"data_batch_{i}{suffix}").write_bytes(pack(bytes([i]) + planes))
    images, labels = cifar10(root=tmp_path)
    assert images.dtype == torch.uint8
    assert images.shape == (2, 3, 32, 32)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 2]
    assert images[1, :, 0, 0].tolist() == [20, 40, 60]
    assert images[0, 0, :3, 5].tolist() == [10, 7, 10]
    with pytest.raises(FileNotFoundError, match=r"test_batch\*\.bin is missing.*cs\.toronto\.edu"):
        cifar10(train=False, root=tmp_path)
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match="3072 bytes are no whole number of rows of 3073"):
        cifar10(train=False, root=tmp_path)


def test_a_hundred_classes_made_by_hand(tmp_path):
    folder = tmp_path / "cifar100"
    folder.mkdir()
    rows = [
        bytes([coarse, fine]) + bytes([fine] * 1024 + [1] * 1024 + [2] * 1024) for coarse, fine in ((19, 99), (0, 3))
    ]
    (folder / "train.bin.gz").write_bytes(gzip.compress(b"".join(rows)))
    images, labels = cifar100(root=tmp_path)
    assert images.shape == (2, 3, 32, 32)
    assert images[:, :, 5, 7].tolist() == [[99, 1, 2], [3, 1, 2]]
    assert labels.tolist() == [99, 3]
    assert cifar100(root=tmp_path, coarse=True)[1].tolist() == [19, 0]
    with pytest.raises(FileNotFoundError, match=r"test\.bin is missing.*cs\.toronto\.edu"):
        cifar100(train=False, root=tmp_path)
    (folder / "test.bin").write_bytes(bytes([20, 1]) + bytes(3072))
    with pytest.raises(ValueError, match="no batch of CIFAR-100: row 1 has the label 20, not 0 to 19"):
        cifar100(train=False, root=tmp_path)
    (folder / "test.bin").write_bytes(bytes(3073))
    with pytest.raises(ValueError, match="3073 bytes are no whole number of rows of 3074"):
        cifar100(train=False, root=tmp_path)


def test_house_numbers_made_by_hand(tmp_path, monkeypatch):
    from scipy.io import savemat

    folder = tmp_path / "svhn"
    folder.mkdir()
    X = np.zeros((32, 32, 3, 2), np.uint8)
    X[4, 5, :, 0], X[6, 7, :, 1] = (1, 2, 3), (4, 5, 6)
    savemat(folder / "train_32x32.mat", {"X": X, "y": np.array([[10], [7]], np.uint8)})
    images, labels = svhn(root=tmp_path)
    assert images.dtype == torch.uint8
    assert images.shape == (2, 3, 32, 32)
    assert images[0, :, 4, 5].tolist() == [1, 2, 3]
    assert images[1, :, 6, 7].tolist() == [4, 5, 6]
    assert labels.tolist() == [0, 7]  # MATLAB counts from 1: 10 is the digit 0
    with pytest.raises(FileNotFoundError, match=r"test_32x32\.mat is missing.*ufldl\.stanford\.edu"):
        svhn(train=False, root=tmp_path)
    for held, said in (
        ({"X": X}, "is no file of MATLAB with images X and labels y"),
        ({"X": X, "y": np.array([1])}, r"\(32, 32, 3, 2\) \(uint8\) and 1 labels, where SVHN has"),
        ({"X": X, "y": np.array([0, 1])}, "labels from 0 to 1, where SVHN has 1 to 10"),
    ):
        savemat(folder / "test_32x32.mat", held)
        with pytest.raises(ValueError, match=said):
            svhn(train=False, root=tmp_path)
    (folder / "test_32x32.mat").write_bytes(b"no matrix")
    with pytest.raises(ValueError, match="is no file of MATLAB"):
        svhn(train=False, root=tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match="which scipy reads: pip install scipy"):
        svhn(root=tmp_path)


def test_sentences_made_by_hand(tmp_path):
    folder = tmp_path / "sst2"
    folder.mkdir()
    (folder / "train.tsv.gz").write_bytes(
        gzip.compress('sentence\tlabel\n"a fine film \t1\nno , it\x85s dull \t0\n'.encode())
    )
    (folder / "test.tsv").write_text("index\tsentence\n0\twho knows\n")
    sentences, labels = sst2(root=tmp_path)
    assert sentences == ['"a fine film ', "no , it\x85s dull "]
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 0]
    assert sst2("test", root=tmp_path)[0] == ["who knows"]
    assert sst2("test", root=tmp_path)[1].tolist() == [-1]
    with pytest.raises(FileNotFoundError, match=r"dev\.tsv is missing.*gluebenchmark"):
        sst2("dev", root=tmp_path)
    with pytest.raises(ValueError, match="split='valid' must be one of 'train', 'dev', 'test'"):
        sst2("valid", root=tmp_path)
    (folder / "dev.tsv").write_text("a,b\n")
    with pytest.raises(ValueError, match="begins with 'a,b', not with 'sentence"):
        sst2("dev", root=tmp_path)


@pytest.mark.skipif("TETHER_DATA" not in os.environ, reason="the real sets lie elsewhere")
def test_the_real_colours_and_sentences():
    images, labels = cifar10()
    assert len(images) == len(labels) > 0
    assert labels.unique().tolist() == list(range(10))
    means = images[:10_000].double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4935, 0.4834, 0.4472]).double(), rtol=0, atol=1e-4)
    assert labels[:10_000].bincount().tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert set(cifar10(train=False)[1].bincount().tolist()) <= {500, 1000}
    assert sst2()[1].bincount().tolist() == [29_780, 37_569]
    assert sst2("dev")[1].bincount().tolist() == [428, 444]
    assert len(sst2("test")[0]) == 1_821
