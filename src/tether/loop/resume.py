"""The checkpoint file of a run. It is written completely or not at all, and read completely or not at all.

The file is what `torch.save` writes, followed by a mark and a digest of everything before it. `torch.load` can read it.
"""

from __future__ import annotations

import copy
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

__all__ = ["check_writable", "load_all", "read_run", "write_run"]

MARK = b"tether run 1\n"
SIZE = 32
CURE = "remove it to begin anew, or put a copy of it in its place"


class _Hashed:
    """A file that hashes what is written to it, and keeps the error if writing fails."""

    def __init__(self, file: Any) -> None:
        self.file, self.hash = file, hashlib.blake2b(digest_size=SIZE)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.hash.update(data)
        try:
            return int(self.file.write(data))
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_run(path: Path, state: dict[str, Any]) -> None:
    """Write the state to a new file and then replace the old one by it."""
    fresh = _fresh(path)
    try:
        with fresh.open("wb") as file:
            hashed = _Hashed(file)
            try:
                torch.save(state, hashed)  # type: ignore[arg-type]
            except RuntimeError as error:  # torch's own error, which hides that the disk is full
                raise hashed.error or error from None
            file.write(MARK + hashed.hash.digest())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Raise if a checkpoint cannot be written there. Remove unfinished files of runs that were killed."""
    if path.is_dir():
        raise IsADirectoryError(f"checkpoint={str(path)!r} is a folder: give a file, e.g. {str(path / 'run.pt')!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = _fresh(path)
        fresh.write_bytes(b"")
        fresh.unlink()
    except OSError as error:
        raise type(error)(
            error.errno,
            f"checkpoint={str(path)!r} cannot be written ({error.strerror}): give a path in a folder you may write to",
        ) from error
    for stale in path.parent.glob(f"{_escaped(path.name)}.*.part"):
        number = stale.name[len(path.name) + 1 : -len(".part")]
        if number.isdigit() and not _alive(int(number)):
            stale.unlink(missing_ok=True)


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _alive(pid: int) -> bool:
    """Is there a process with this id? True where the system cannot be asked safely."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Flush the folder to disk, on systems where folders can be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some file systems do not support it
    finally:
        os.close(handle)


def read_run(path: Path) -> dict[str, Any]:
    """Read what `write_run` wrote. Raises if the file is damaged or not a checkpoint."""
    hashed, left = hashlib.blake2b(digest_size=SIZE), path.stat().st_size - len(MARK) - SIZE
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(left, 1 << 22))):
            hashed.update(piece)
            left -= len(piece)
        end = file.read()
    if left or end[: len(MARK)] != MARK:
        raise ValueError(f"{path} is cut short, or no checkpoint of tether.train: {CURE}")
    if end != MARK + hashed.digest():
        raise ValueError(f"{path} is damaged: its contents do not have the digest they were written with: {CURE}")
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read by torch {torch.__version__} ({error}): {CURE}") from error


def load_all(path: Path, state: dict[str, Any], model: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    """Put a saved state into model and optimizer, or leave both as they were."""
    before = copy.deepcopy((model.state_dict(), opt.state_dict()))
    try:
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
    except Exception as error:
        model.load_state_dict(before[0])
        with suppress(Exception):  # a hook that refuses every state has changed nothing
            opt.load_state_dict(before[1])
        raise ValueError(f"{path} does not fit this model and optimizer ({error}): {CURE}") from error
