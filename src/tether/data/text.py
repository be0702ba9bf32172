"""Text as numbers of words, read from a folder in its original format."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path

import torch

from tether.data.files import folder, lines, present

__all__ = ["ptb", "wikitext2"]

SPLITS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"


def ptb(
    split: str = "train", words: int | None = None, root: str | Path | None = None
) -> tuple[torch.Tensor, list[str]]:
    """Penn Treebank as Mikolov prepared it: the words of a part as numbers, one after the other, and the vocabulary.

    The vocabulary is that of the training part, the most common word first; ``<eos>`` ends every line.

    Args:
        split: ``"train"`` (929,589 words), ``"valid"`` (73,760) or ``"test"`` (82,430).
        words: keep only so many of the most common words; the others become ``<unk>``.
        root: the folder that holds ``ptb/``; without it the environment variable ``TETHER_DATA``.
    """
    return _numbers("ptb", "ptb.{}.txt", split, words, root)


def wikitext2(
    split: str = "train", words: int | None = None, root: str | Path | None = None
) -> tuple[torch.Tensor, list[str]]:
    """WikiText-2, as `ptb`, from ``wikitext-2/``: 2,088,628, 217,646 and 245,569 words."""
    return _numbers("wikitext-2", "wiki.{}.tokens", split, words, root)


def _numbers(
    name: str, files: str, split: str, words: int | None, root: str | Path | None
) -> tuple[torch.Tensor, list[str]]:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} must be one of {', '.join(map(repr, SPLITS))}")
    if words is not None and (not isinstance(words, int) or words < 1):
        raise ValueError(f"words={words!r} must be a number of words to keep, 1 or more, or None for all")
    path = folder(name, root)
    text, other = (present(path / files.format(part)) for part in ("train", split))
    written = text.stat()
    vocabulary = list(_vocabulary(text, written.st_mtime_ns, written.st_size))
    if UNKNOWN not in vocabulary:
        vocabulary.append(UNKNOWN)
    if words is not None:
        kept = vocabulary[:words]
        vocabulary = kept if UNKNOWN in kept else [*kept[:-1], UNKNOWN]
    number = {word: i for i, word in enumerate(vocabulary)}
    unknown = number[UNKNOWN]
    return torch.tensor([number.get(word, unknown) for word in _words(other)]), vocabulary


@lru_cache
def _vocabulary(path: Path, changed: int, size: int) -> tuple[str, ...]:
    """All words, the most common first; words of equal frequency in the order of the text.

    Time and size of the file are arguments so that a changed file is read again.
    """
    return tuple(word for word, _ in Counter(_words(path)).most_common())


def _words(path: Path) -> list[str]:
    words = [word for line in lines(path) for word in (*line.split(), END)]
    if set(words) <= {END}:
        raise ValueError(f"{path} holds no words: get it again")
    return words
