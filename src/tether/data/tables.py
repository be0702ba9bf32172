"""Tables of the UCI repository, read from a folder in their original formats."""

from __future__ import annotations

from pathlib import Path

import torch

from tether.data.files import folder, lines, present

__all__ = ["krkopt", "poker_hand"]

DEPTHS = (
    *("draw", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
FILES = {letter: number for number, letter in enumerate("abcdefgh", 1)}
RANKS = {str(number): number for number in range(1, 9)}
HAND = (*[(1, 4), (1, 13)] * 5, (0, 9))  # the smallest and the largest value of each field


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
            files, ranks = [FILES[letter] for letter in squares[::2]], [RANKS[number] for number in squares[1::2]]
            positions.append([number for square in zip(files, ranks, strict=True) for number in square])
            depths.append(DEPTHS.index(depth))
        except (KeyError, ValueError):
            row = ",".join([*squares, depth])
            raise ValueError(f"{path}, row {i}: {row!r} is no endgame such as 'a,1,b,3,c,2,draw'") from None
    return torch.tensor(positions), torch.tensor(depths)


def poker_hand(root: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Poker hands of five cards and their values, from nothing (0) and one pair (1) to a royal flush (9).

    25,010 rows of ten whole numbers: suit (1 to 4) and rank (1 to 13) of each card. Half of them have value 0, and the
    first rows are rare hands: shuffle before splitting.

    Args:
        root: the folder that holds ``poker-hand/``; without it the environment variable ``TETHER_DATA``.
    """
    path, rows = _rows("poker-hand", "poker-hand-training-true.data", 11, root)
    hands = []
    for i, row in enumerate(rows, 1):
        try:
            hands.append([int(number) for number in row])
            valid = all(least <= x <= largest for x, (least, largest) in zip(hands[-1], HAND, strict=True))
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{path}, row {i}: {','.join(row)!r} is no hand such as '1,10,1,11,1,13,1,12,1,1,9'")
    numbers = torch.tensor(hands)
    return numbers[:, :-1], numbers[:, -1]


def _rows(name: str, file: str, width: int, root: str | Path | None) -> tuple[Path, list[list[str]]]:
    """The fields of all rows, separated by commas; the file may be packed as ``.gz``."""
    path = present(folder(name, root) / file, "get it from archive.ics.uci.edu")
    rows = [line.split(",") for line in lines(path) if line]
    if not rows:
        raise ValueError(f"{path} holds no rows: get it again")
    for i, row in enumerate(rows, 1):
        if len(row) != width:
            raise ValueError(
                f"{path}, row {i} has {len(row)} fields where this set has {width}: {','.join(row)[:60]!r}"
            )
    return path, rows
