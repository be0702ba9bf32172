"""What travels between machines: pieces of work as bytes, the folder of a task, the checkpoints in it."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from tether_studies.study import Results

if TYPE_CHECKING:
    from tether_studies.lab import Lab

__all__ = ["packed", "scratch", "sending", "unpacked"]

EVERY = 1.0  # seconds between two looks for a new checkpoint
PREFIX = "tether-piece-"


def packed(lab: Lab, work: Callable[[], Results]) -> bytes:
    """A piece as bytes, in which paths in the folder of the run have no root."""

    class Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
        def persistent_id(self, thing: Any) -> str | None:
            inside = isinstance(thing, Path) and thing.is_relative_to(lab.folder)
            return thing.relative_to(lab.folder).as_posix() if inside else None

    parcel = BytesIO()
    Packer(parcel).dump((lab, work))
    return parcel.getvalue()


def unpacked(parcel: bytes, folder: Path) -> tuple[Lab, Callable[[], Results]]:
    """The lab and the work of a piece, with their paths in this folder."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, inside: str) -> Path:
            return folder / inside

    return Unpacker(BytesIO(parcel)).load()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a task; folders of tasks that were killed are removed."""
    for stale in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        number = stale.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(ValueError, OSError):
            if not _alive(int(number)):
                shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def sending(path: Path, send: Callable[[bytes], Any]) -> Iterator[None]:
    """Send a file each time it was written anew; files are replaced as a whole, so that none is read half."""
    over = threading.Event()

    def watch() -> None:
        known = _stamp(path)
        while not over.wait(EVERY):
            stamp = _stamp(path)
            if stamp not in (None, known):
                with suppress(FileNotFoundError):
                    send(path.read_bytes())
                    known = stamp

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
