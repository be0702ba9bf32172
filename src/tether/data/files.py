"""Files of data sets: find, unpack and decode them. Errors name the file and what to do."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from pathlib import Path

__all__ = ["folder", "lines", "present", "unpacked"]

UNPACK = {".gz": gzip.decompress, ".xz": lzma.decompress}


def folder(name: str, root: str | Path | None = None) -> Path:
    """The folder of a data set. Raises if it is not known or does not exist."""
    base = root if root is not None else os.environ.get("TETHER_DATA")
    if base is None:
        raise FileNotFoundError(f"where is {name!r}? Set TETHER_DATA to the folder that holds it, or pass root=...")
    path = Path(base) / name
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist: put the files of {name!r} there, in their original format")
    return path


def present(path: Path, source: str = "") -> Path:
    """The path of this file, or of the same file packed as ``.gz``. Raises if neither exists."""
    for file in (path.with_name(f"{path.name}.gz"), path):
        if file.exists():
            return file
    raise FileNotFoundError(f"{path} is missing, and so is the same with .gz{source and f': {source}'}")


def unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in ``.gz`` or ``.xz``."""
    content = path.read_bytes()
    try:
        if content and path.suffix in UNPACK:
            content = UNPACK[path.suffix](content)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} is damaged ({error}): get it again") from None
    if not content:
        raise ValueError(f"{path} is damaged (it is empty): get it again")
    return content


def lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8. Raises if the last line has no end: then the file was cut."""
    content = unpacked(path)
    try:
        text = content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise ValueError(f"{path} is no text in UTF-8: {byte:#04x} at byte {error.start}: get it again") from None
    found = text.split("\n")
    if found.pop():
        raise ValueError(f"{path} ends in the middle of line {len(found) + 1}: it was cut, get it again")
    return found
