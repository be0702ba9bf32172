"""Files that are whole or not there, and a word to the user about those that are damaged."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

__all__ = ["append", "note", "set_aside", "whole", "write_text"]


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Write a file such that nobody ever sees half of it: under another name, to the disk, then renamed.

    If the writing fails, on a full disk for example, the file that was there before stays as it was.
    """
    draft = path.with_name(f"{path.name}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, in UTF-8 whatever the locale."""
    with whole(path) as file:
        file.write(text.encode())


def append(path: Path, line: str) -> None:
    """Add a line to a log, after the end of one that was cut."""
    with path.open("ab+") as log:
        if log.seek(0, 2):
            log.seek(-1, 2)
            if log.read(1) != b"\n":
                line = f"\n{line}"
        log.write(f"{line}\n".encode())


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that it is out of the way and not lost; returns its new path."""
    names = (path.with_name(f"{path.name}.damaged{'' if i == 1 else f'-{i}'}") for i in count(1))
    free = next(name for name in names if not name.exists())
    return path.rename(free)


def note(text: str) -> None:
    """Say something on stderr, where it does not mix with what a command prints."""
    print(f"tether: {text}", file=sys.stderr, flush=True)
