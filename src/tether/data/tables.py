"""Tables of the UCI repository, read from a folder in their original formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import torch

from tether.data.images import folder

__all__ = ["krkopt", "poker_hand"]

DEPTHS = (
    *("draw", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
FILES = {letter: number for number, letter in enumerate("abcdefgh", 1)}


def krkopt(root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Chess endgames of king and rook against king: positions, and how soon White wins with Black to move.

    28,056 rows of six whole numbers from 1 to 8: file and rank of the white king, of the rook and of the black king.
    18 classes: 0 is a draw, k + 1 a win in k moves. The rows are sorted by class: shuffle before splitting.

    Args:
        root: the folder that holds ``krkopt/``; without it the environment variable ``TETHER_DATA``.
    """
    path, rows = _rows("krkopt", "krkopt.data", 7, root)
    positions, depths = [], []
    for i, (*squares, depth) in enumerate(rows, 1):
        try:
            files, ranks = [FILES[letter] for letter in squares[::2]], [int(number) for number in squares[1::2]]
            positions.append([number for square in zip(files, ranks, strict=True) for number in square])
            depths.append(DEPTHS.index(depth))
        except (KeyError, ValueError):
            row = ",".join([*squares, depth])
            raise ValueError(f"{path}, row {i}: {row!r} is no endgame such as 'a,1,b,3,c,2,draw'") from None
    return torch.tensor(positions), torch.tensor(depths)


def poker_hand(root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Poker hands of five cards, and what they are worth, from nothing (0) over one pair (1) to a royal flush (9).

    25,010 rows of ten whole numbers: suit (1 to 4) and rank (1 to 13) of each card. Half of them are worth nothing, and
    the first rows are rare hands: shuffle before splitting.

    Args:
        root: the folder that holds ``poker-hand/``; without it the environment variable ``TETHER_DATA``.
    """
    path, rows = _rows("poker-hand", "poker-hand-training-true.data", 11, root)
    try:
        numbers = torch.tensor([[int(number) for number in row] for row in rows])
    except ValueError as error:
        raise ValueError(f"{path} holds something that is no whole number: {error}") from None
    return numbers[:, :-1], numbers[:, -1]


def _rows(name: str, file: str, width: int, root: str | Path | None) -> tuple[Path, list[list[str]]]:
    """The fields of all rows, separated by commas; the file may be packed as ``.gz``."""
    path = folder(name, root) / file
    packed = path.with_name(f"{file}.gz")
    if packed.exists():
        path, content = packed, gzip.decompress(packed.read_bytes()).decode()
    elif path.exists():
        content = path.read_text()
    else:
        raise FileNotFoundError(f"{path} is missing, and so is {packed.name}: get it from archive.ics.uci.edu")
    rows = [line.split(",") for line in content.splitlines() if line]
    for i, row in enumerate(rows, 1):
        if len(row) != width:
            raise ValueError(
                f"{path}, row {i} has {len(row)} fields where this set has {width}: {','.join(row)[:60]!r}"
            )
    return path, rows
