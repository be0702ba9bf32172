"""The readers of text on files made by hand, and on the real sets where they lie on this machine."""

import gzip
import os

import pytest
import torch

from tether.data import ptb, wikitext2


@pytest.fixture
def tiny(tmp_path):
    """Words by how often they stand in the first file: b 3, a 2, <eos> 2, <unk> 1, c 1."""
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "ptb.train.txt.gz").write_bytes(gzip.compress(b" b a b <unk> \n a b c \n"))
    (tmp_path / "ptb" / "ptb.valid.txt").write_text("c b\n\nnew a\n")
    return tmp_path


def test_words_are_numbered_by_how_common_they_are(tiny):
    numbers, words = ptb(root=tiny)
    assert words == ["b", "a", "<eos>", "<unk>", "c"]
    assert numbers.dtype == torch.int64
    assert numbers.tolist() == [0, 1, 0, 3, 2, 1, 0, 4, 2]
    numbers, words = ptb("valid", root=tiny)  # by the vocabulary of the training part; an empty line is a line
    assert words == ["b", "a", "<eos>", "<unk>", "c"]
    assert numbers.tolist() == [4, 0, 2, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("words", "kept", "numbers"),
    [(4, ["b", "a", "<eos>", "<unk>"], [3, 0, 2, 2, 3, 1, 2]), (3, ["b", "a", "<unk>"], [2, 0, 2, 2, 2, 1, 2])],
)
def test_rare_words_are_unknown(tiny, words, kept, numbers):
    found, vocabulary = ptb("valid", words, root=tiny)
    assert vocabulary == kept
    assert found.tolist() == numbers


def test_mistakes_are_named(tiny):
    with pytest.raises(ValueError, match="split='dev' must be one of 'train', 'valid', 'test'"):
        ptb("dev", root=tiny)
    with pytest.raises(ValueError, match="words=0 must be a number of words"):
        ptb(words=0, root=tiny)
    with pytest.raises(FileNotFoundError, match=r"ptb\.test\.txt is missing, and so is the same with \.gz"):
        ptb("test", root=tiny)
    with pytest.raises(FileNotFoundError, match="wikitext-2 does not exist"):
        wikitext2(root=tiny)


@pytest.mark.skipif("TETHER_DATA" not in os.environ, reason="the real sets lie elsewhere")
@pytest.mark.parametrize(
    ("load", "size", "words"), [(ptb, (73_760, 82_430), 10_000), (wikitext2, (217_646, 245_569), 33_278)]
)
def test_the_real_sets(load, size, words):
    (valid, vocabulary), (test, _) = load("valid"), load("test")
    assert (len(valid), len(test)) == size
    assert len(vocabulary) == words
    assert int(valid.max()) < words
