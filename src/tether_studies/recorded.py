"""Pieces that lie beside a published result, so that it can be judged again without being run again."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from tether_studies.files import whole
from tether_studies.lab import Lab, joined
from tether_studies.study import Results, Study

__all__ = ["NotRecorded", "Recorded", "pieces_of_run", "read_pieces", "write_pieces"]

Pieces = dict[str, Results]


class NotRecorded(LookupError):
    """A study asks for a piece that its published result does not have."""


class Recorded(Lab):
    """A lab whose pieces were done elsewhere: it does none. Its shelf holds runs, or what was published of them."""

    def __init__(self, study: Study, config: Any, seed: int, known: Pieces, shelf: Path = Path()) -> None:
        super().__init__(study, config, shelf / study.name / "recorded", seed)
        self.known = known

    def pieces(self, asked: Mapping[Any, Callable[[], Results]]) -> dict[Any, Results]:
        lacking = [joined(name) for name in asked if joined(name) not in self.known]
        if lacking:
            raise NotRecorded(f"{self.study.name}: the piece {lacking[0]!r} is not recorded: run the study again")
        return {name: dict(self.known[joined(name)]) for name in asked}


def pieces_of_run(folder: Path) -> Pieces:
    """All pieces that lie in the folder of a run."""
    found = {}
    for path in sorted((folder / "pieces").glob("*.npz")):
        with np.load(path) as stored:
            found[unquote(path.stem)] = {key: stored[key] for key in stored.files}
    return found


def write_pieces(path: Path, pieces: Pieces) -> None:
    """All pieces in one file; an entry is called PIECE/KEY."""
    entries = {f"{quote(name, safe=' ,=+')}/{key}": x for name, found in pieces.items() for key, x in found.items()}
    with whole(path) as file:
        np.savez_compressed(file, **entries)


def read_pieces(path: Path) -> Pieces:
    """What `write_pieces` wrote."""
    found: Pieces = {}
    with np.load(path) as stored:
        for entry in stored.files:
            name, _, key = entry.partition("/")
            found.setdefault(unquote(name), {})[key] = stored[entry]
    return found
