"""Data files that are cut, packed badly, mixed up or not what they are called: the error names the file."""

import gzip
import lzma
import struct

import pytest

from tether.data import cifar10, fashion_mnist, krkopt, mnist, poker_hand, ptb, sst2, wikitext2


def idx(numbers, shape, kind=0x08):
    return struct.pack(">HBB", 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + bytes(numbers)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
HANDS = "poker-hand-training-true.data"
HAND = b"1,10,1,11,1,13,1,12,1,1,9\n"
ROW = bytes([3]) + bytes(3072)

# loader, its folder, its files when whole
SETS = {
    "mnist": (mnist, "mnist", {IMAGES: idx(range(12), (2, 2, 3)), LABELS: idx([7, 1], (2,))}),
    "fashion_mnist": (fashion_mnist, "fashion-mnist", {IMAGES: idx(range(12), (2, 2, 3)), LABELS: idx([7, 1], (2,))}),
    "cifar10": (cifar10, "cifar10", {"data_batch_1.bin": ROW * 2}),
    "sst2": (sst2, "sst2", {"train.tsv": b"sentence\tlabel\na fine film \t1\ndull \t0\n"}),
    "krkopt": (krkopt, "krkopt", {"krkopt.data": b"a,1,b,3,c,2,draw\nd,4,h,8,f,5,sixteen\n"}),
    "poker_hand": (poker_hand, "poker-hand", {HANDS: HAND * 2}),
    "ptb": (ptb, "ptb", {"ptb.train.txt": b" a b \n b \n"}),
    "wikitext2": (wikitext2, "wikitext-2", {"wiki.train.tokens": b" a b \n b \n"}),
}


def packed(name, content):
    return lzma.compress(content) if name.endswith(".bin") else gzip.compress(content)


def suffix(name):
    return ".xz" if name.endswith(".bin") else ".gz"


def lay(root, which, **changes):
    """The files of a set, with some of them changed."""
    load, folder, whole = SETS[which]
    (root / folder).mkdir(exist_ok=True)
    for name, content in {**whole, **changes}.items():
        (root / folder / name).write_bytes(content)
    return lambda: load(root=root)


EVERY = [(which, name) for which, (_, _, whole) in SETS.items() for name in whole]


@pytest.mark.parametrize("which", SETS)
def test_whole_files_are_read(tmp_path, which):
    assert len(lay(tmp_path, which)()[0]) > 0


@pytest.mark.parametrize(("which", "name"), EVERY)
def test_an_empty_file_is_named(tmp_path, which, name):
    with pytest.raises(ValueError, match=name):
        lay(tmp_path, which, **{name: b""})()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize(("which", "name"), EVERY)
def test_a_packed_file_that_is_cut_is_named(tmp_path, which, name, share):
    load, folder, whole = SETS[which]
    content = packed(name, whole[name])
    lay(tmp_path, which)
    (tmp_path / folder / name).unlink()
    path = tmp_path / folder / f"{name}{suffix(name)}"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=f"{path.name}.* damaged") as caught:
        load(root=tmp_path)
    assert "get it again" in str(caught.value)


@pytest.mark.parametrize(("which", "name"), EVERY)
def test_a_packed_file_with_a_flipped_byte_is_named(tmp_path, which, name):
    load, folder, whole = SETS[which]
    content = bytearray(packed(name, whole[name] * 50))
    content[len(content) // 2] ^= 0xFF
    lay(tmp_path, which)
    (tmp_path / folder / name).unlink()
    (tmp_path / folder / f"{name}{suffix(name)}").write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}{suffix(name)}.* damaged"):
        load(root=tmp_path)


@pytest.mark.parametrize(("which", "name"), EVERY)
def test_a_file_that_is_not_packed_though_its_name_says_so(tmp_path, which, name):
    load, folder, _ = SETS[which]
    lay(tmp_path, which)
    (tmp_path / folder / name).unlink()
    (tmp_path / folder / f"{name}{suffix(name)}").write_bytes(b"<html>404</html>")
    with pytest.raises(ValueError, match=f"{name}{suffix(name)}.* damaged"):
        load(root=tmp_path)


@pytest.mark.parametrize("which", ["sst2", "krkopt", "poker_hand", "ptb", "wikitext2"])
def test_text_that_is_no_utf8_is_named_with_the_place(tmp_path, which):
    (name, content), *_ = SETS[which][2].items()
    half = len(content) // 2
    with pytest.raises(ValueError, match=f"{name} is no text in UTF-8: .* byte {half}"):
        lay(tmp_path, which, **{name: content[:half] + b"\xff" + content[half:]})()


@pytest.mark.parametrize(
    ("which", "name", "content", "says"),
    [
        ("mnist", LABELS, idx([7], (1,)), f"{IMAGES}.* 2 images and .*{LABELS}.* 1 label"),
        ("mnist", IMAGES, idx([7, 1], (2,)), f"{IMAGES} holds numbers of shape \\(2,\\).* 3 axes"),
        ("mnist", LABELS, idx(range(12), (2, 2, 3)), f"{LABELS} holds numbers of shape .* 1 axis"),
        ("mnist", IMAGES, idx(range(12), (2, 2, 3), 0x0C), f"{IMAGES} holds numbers of kind 0x0c.* bytes"),
        ("mnist", IMAGES, idx(range(13), (2, 2, 3)), f"{IMAGES} holds 13 numbers .* promises \\(2, 2, 3\\)"),
        ("mnist", IMAGES, b"\x00\x00\x08", f"{IMAGES} is no IDX file"),
        ("mnist", IMAGES, b"\x00\x00\x08\x03\x00\x00", f"{IMAGES} is no IDX file: .*6 bytes"),
        ("mnist", IMAGES, b"<html>", f"{IMAGES} is no IDX file"),
        ("cifar10", "data_batch_1.bin", ROW[:-1], "data_batch_1.bin is no batch of CIFAR-10"),
        ("cifar10", "data_batch_1.bin", ROW + bytes([17]) + bytes(3072), "data_batch_1.bin.* row 2 .* 17"),
        ("sst2", "train.tsv", b"sentence\tlabel\na fine film \t1\ndull", "train.tsv ends in the middle of line 3"),
        ("sst2", "train.tsv", b"sentence\tlabel\na fine film \t1\ndull\n", "train.tsv, row 2: 'dull'"),
        ("sst2", "train.tsv", b"sentence\tlabel\na\tb\t1\n", "train.tsv, row 1"),
        ("sst2", "train.tsv", b"sentence\tlabel\ndull\tno\n", "train.tsv, row 1: .*'dull.tno'"),
        ("sst2", "train.tsv", b"sentence\tlabel\ndull\t7\n", "train.tsv, row 1: .*'dull.t7'"),
        ("sst2", "train.tsv", b"sentence\tlabel\n", "train.tsv holds no rows"),
        ("krkopt", "krkopt.data", b"a,1,b,3,c,2,draw\na,1,b,3\n", "krkopt.data, row 2 has 4 fields"),
        ("krkopt", "krkopt.data", b"a,1,b,3,c,2,draw\na,1,b,3,c,2,six", "krkopt.data ends in the middle of line 2"),
        ("krkopt", "krkopt.data", b"a,1,b,9,c,2,draw\n", "krkopt.data, row 1: .* is no endgame"),
        ("krkopt", "krkopt.data", b"\n\n", "krkopt.data holds no rows"),
        ("poker_hand", HANDS, HAND + b"1,10,1\n", f"{HANDS}, row 2 has 3 fields"),
        ("poker_hand", HANDS, HAND + HAND[:-1], f"{HANDS} ends in the middle of line 2"),
        ("poker_hand", HANDS, HAND + HAND.replace(b"13", b"x"), f"{HANDS}, row 2: .* is no hand"),
        ("poker_hand", HANDS, HAND + HAND.replace(b"13", b"14"), f"{HANDS}, row 2: .* is no hand"),
        ("poker_hand", HANDS, HAND + HAND.replace(b",9", b",10"), f"{HANDS}, row 2: .* is no hand"),
        ("ptb", "ptb.train.txt", b"\n", "ptb.train.txt holds no words"),
    ],
)
def test_files_that_do_not_hold_what_they_should(tmp_path, which, name, content, says):
    with pytest.raises(ValueError, match=says):
        lay(tmp_path, which, **{name: content})()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    load = lay(tmp_path, "ptb")
    (tmp_path / "ptb/ptb.train.txt.gz").mkdir()
    with pytest.raises(OSError, match=r"ptb\.train\.txt\.gz"):
        load()


def test_a_file_that_was_mended_is_read_anew(tmp_path):
    load = lay(tmp_path, "ptb")
    assert load()[1] == ["b", "<eos>", "a", "<unk>"]
    lay(tmp_path, "ptb", **{"ptb.train.txt": b" c c c c \n"})
    assert load()[1] == ["c", "<eos>", "<unk>"]
