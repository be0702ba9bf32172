"""Lab: where a study keeps what it has done, so that it can be killed at any time and go on.

A study is made of pieces. A piece is named, starts from random states that belong to its name, and its result is on the
disk before the next one begins: a study that was interrupted equals, bit for bit, one that was not.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
import torch

from tether.studies.environment import environment
from tether.studies.study import Results, Study
from tether.studies.workers import in_workers

__all__ = ["Busy", "Lab", "write_text"]


class Busy(RuntimeError):
    """Another process is running this study in this folder."""


class Lab:
    """The folder of one run: ``config.json, environment.json, pieces/*.npz, metrics.jsonl``."""

    def __init__(self, study: Study, config: Any, folder: Path, seed: int, data: Path | None = None) -> None:
        self.study, self.config, self.folder, self.seed, self.data = study, config, folder, seed, data
        self.watch: Callable[[int, int, str], None] = lambda done, total, piece: None
        self.workers = 1  # how many pieces at once
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take the folder, and forget what was done there under another config."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy(f"{self.study.name} is being run by another process in {self.folder}") from None
        config = json.dumps({"seed": self.seed, **asdict(self.config)}, indent=1, ensure_ascii=False)
        written = self.folder / "config.json"
        if written.exists() and written.read_text() != config:
            for old in (self.folder / "pieces", self.folder / "metrics.jsonl", self.folder / "result.json"):
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
        (self.folder / "pieces").mkdir(exist_ok=True)
        write_text(written, config)
        write_text(self.folder / "environment.json", json.dumps(environment(), indent=1, ensure_ascii=False))

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()

    def pieces(self, work: Mapping[str, Callable[[], Results]]) -> dict[str, Results]:
        """Do what is not done yet, in order, and return all results by the names of the pieces.

        A result is a dictionary of numbers, text, lists and arrays; it is returned as it was written, as arrays. With
        several workers, pieces run at once in processes of their own, to the same bits.
        """
        paths = {name: self.folder / "pieces" / f"{quote(name, safe=' ,=+')}.npz" for name in work}
        undone = [name for name in work if not paths[name].exists()]

        def do(name: str) -> None:
            began = time.perf_counter()
            self._seed(name)
            self._write(paths[name], work[name](), name, time.perf_counter() - began)

        def watch(name: str) -> None:
            self.watch(sum(path.exists() for path in paths.values()), len(work), name)

        if self.workers > 1 and len(undone) > 1:
            in_workers(undone, do, self.workers, watch)
        for name in undone:
            if not paths[name].exists():
                watch(name)
                do(name)
        self.watch(len(work), len(work), "")
        return {name: self._read(path) for name, path in paths.items()}

    def named_seed(self, name: str) -> int:
        """A seed of 31 bits that belongs to this name, this study and the seed of the run."""
        text = f"{self.seed}/{self.study.name}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1

    def checkpoint(self, name: str) -> Path:
        """A path for a checkpoint within a piece, e.g. that of `tether.train`."""
        return self.folder / "pieces" / f"{quote(name, safe=' ,=+')}.checkpoint"

    def _seed(self, name: str) -> None:
        seed = self.named_seed(name)
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)

    def _write(self, path: Path, result: Results, name: str, seconds: float) -> None:
        arrays = {key: np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x) for key, x in result.items()}
        objects = [key for key, x in arrays.items() if x.dtype == object]
        if objects:
            raise TypeError(f"{self.study.name}, piece {name!r}: {objects[0]!r} is no number, text or array of them")
        numbers = {key: x.item() for key, x in arrays.items() if x.ndim == 0}
        line = {"piece": name, "seconds": round(seconds, 3), "at": now(), **numbers}
        with (self.folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
        draft = path.with_suffix(".part")
        with draft.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        self.checkpoint(name).unlink(missing_ok=True)

    def _read(self, path: Path) -> Results:
        with np.load(path) as stored:
            return {key: stored[key] for key in stored.files}


def now() -> str:
    """The time, to the second, in universal time."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_text(path: Path, text: str) -> None:
    """Write a file such that nobody ever sees half of it."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text)
    draft.replace(path)
