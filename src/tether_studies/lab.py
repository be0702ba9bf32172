"""Lab: where a study keeps what it has done, so that it can be killed at any time and go on.

A study is made of pieces. A piece is named, starts from random states that belong to its name, and its result is on the
disk before the next one begins: a study that was interrupted equals, bit for bit, one that was not. A folder holds what
was done under one config. Nothing in it is ever deleted; what is damaged is set aside and done again.
"""

import fcntl
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
import torch

from tether_studies.environment import environment
from tether_studies.files import append, note, set_aside, whole, write_text
from tether_studies.study import Results, Study
from tether_studies.workers import Place, Processes

__all__ = ["Busy", "Lab", "called", "digest", "joined", "side_by_side"]

PATIENCE = 1.0  # seconds in which workers of a killed run end and release its lock


class Busy(RuntimeError):
    """Another process is running this study in this folder."""


class Lab:
    """The folder of one run: ``config.json, environment.json, pieces/*.npz, metrics.jsonl``."""

    def __init__(self, study: Study, config: Any, folder: Path, seed: int, data: Path | None = None) -> None:
        self.study, self.config, self.folder, self.seed, self.data = study, config, folder, seed, data
        self.watch: Callable[[int, int, str], None] = unwatched
        self.where: Place = Processes()
        self._lock: IO[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a piece on another machine needs; who watches and who holds the lock stays here."""
        return vars(self) | {"_lock": None, "where": Processes(), "watch": unwatched}

    @property
    def shelf(self) -> Path:
        """The folder in which other studies have theirs."""
        return self.folder.parents[1]

    def open(self) -> None:
        """Take the folder; if it holds what was done under another config, take one beside it."""
        wanted, reasons = {"seed": self.seed, **asdict(self.config)}, []
        for folder in self._folders():
            self._take(folder)
            reason = _unlike(folder, wanted)
            if not reason:
                break
            self.close()
            reasons.append(f"{folder} {reason}")
        if reasons:
            note(f"{self.study.name}: {'; '.join(reasons)}: it stays as it is, and this run goes to {folder}")
        self.folder = folder
        (folder / "pieces").mkdir(exist_ok=True)
        write_text(folder / "config.json", json.dumps(wanted, indent=1, ensure_ascii=False))
        write_text(folder / "environment.json", json.dumps(environment(), indent=1, ensure_ascii=False))

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()

    def pieces(self, asked: Mapping[Any, Callable[[], Results]]) -> dict[Any, Results]:
        """Do what is not done yet, in order, and return all results by the names of the pieces, texts or tuples.

        A result is a dictionary of numbers, text, lists and arrays; it is returned as it was written, as arrays.
        `where` says where pieces run: in processes here or on other machines, to the same bits. A piece whose file is
        damaged is done again.
        """
        work = {joined(name): todo for name, todo in asked.items()}
        found = {name: self._read(self._path(name, "npz")) for name in work if self.done(name)}
        undone = {name: todo for name, todo in work.items() if found.get(name) is None}
        self.where.run(self, undone, lambda text: self.watch(sum(map(self.done, work)), len(work), text))
        found |= {name: _load(self._path(name, "npz")) for name in undone}
        self.watch(len(work), len(work), "")
        return {name: found[joined(name)] or {} for name in asked}

    def done(self, name: str) -> bool:
        """Is there a result of this piece?"""
        return self._path(name, "npz").exists()

    def do(self, name: str, work: Callable[[], Results]) -> None:
        """Do a piece and keep its result."""
        self.keep(name, *self.result(name, work))

    def result(self, name: str, work: Callable[[], Results]) -> tuple[Results, float]:
        """Do a piece; returns what it found, as arrays, and the seconds it took."""
        began = time.perf_counter()
        found = self._found(name, work)
        seconds = time.perf_counter() - began
        arrays = {key: np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x) for key, x in found.items()}
        objects = [key for key, x in arrays.items() if x.dtype == object]
        if objects:
            raise TypeError(f"{self.study.name}, piece {name!r}: {objects[0]!r} is no number, text or array of them")
        return arrays, seconds

    def keep(self, name: str, arrays: Results, seconds: float) -> None:
        """Write what a piece found; its checkpoint is not needed any more."""
        numbers = {key: x.item() for key, x in arrays.items() if x.ndim == 0}
        line = {"piece": name, "seconds": round(seconds, 3), "at": now(), **numbers}
        append(self.folder / "metrics.jsonl", json.dumps(line, ensure_ascii=False))
        with whole(self._path(name, "npz")) as file:
            np.savez_compressed(file, **arrays)
        self.checkpoint(name).unlink(missing_ok=True)

    def each(self, names: Iterable[Any], work: Callable[[Any], Results]) -> dict[Any, Results]:
        """Do ``work(name)`` for every name, a piece each."""
        return self.pieces({name: partial(work, name) for name in names})

    def runs(self, names: Iterable[Any], count: int, work: Callable[[Any, int], Results]) -> dict[Any, Results]:
        """Do ``work(name, seed)`` for every name and run; run i of all names has the same seed.

        Returns what was found by name, with the run as the last axis. The pieces are called "NAME, run i".
        """
        seeds = {i: self.named_seed(f"run {i}") for i in range(count)}
        todo = {(joined(name), f"run {i}"): partial(work, name, seeds[i]) for i in seeds for name in names}
        found = side_by_side(self.pieces(todo))
        return {name: found[joined(name)] for name in names}

    def named_seed(self, name: str) -> int:
        """A seed of 31 bits that belongs to this name, this study and the seed of the run."""
        text = f"{self.seed}/{self.study.name}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1

    def checkpoint(self, name: Any) -> Path:
        """A path for a checkpoint within a piece, e.g. that of `tether.train`."""
        return self._path(joined(name), "checkpoint")

    def seconds(self) -> float:
        """How long the pieces took, as ``metrics.jsonl`` says; a line of it that is damaged counts for nothing."""
        path, taken = self.folder / "metrics.jsonl", dict[str, float]()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        for i, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                taken[entry["piece"]] = float(entry["seconds"])
            except (ValueError, KeyError, TypeError):
                note(f"{path}, line {i} is damaged: its piece counts for no time")
        return sum(taken.values())

    def _folders(self) -> Iterator[Path]:
        """Where this run may be kept: the plain folder, else one with the config's digest, else numbered ones."""
        yield self.folder
        own = f"-{digest(self.config)}"
        named = self.folder.name if self.folder.name.endswith(own) else f"{self.folder.name}{own}"
        if named != self.folder.name:
            yield self.folder.with_name(named)
        for i in count(2):
            yield self.folder.with_name(f"{named}-{i}")

    def _take(self, folder: Path) -> None:
        """Lock a folder. The system releases the lock when the last process of the run ends, however it ends."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.close()
                    raise Busy(f"{self.study.name} is being run by another process in {folder}") from None
                time.sleep(0.02)

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / "pieces" / f"{quote(name, safe=' ,=+')}.{kind}"

    def _found(self, name: str, work: Callable[[], Results]) -> Results:
        """Do a piece; if it cannot go on from its checkpoint, do it from the start."""
        path = self.checkpoint(name)
        before = path.stat().st_mtime_ns if path.exists() else None
        self._seed(name)
        try:
            return work()
        except Exception as error:
            # A checkpoint that was written anew had been read: the fault lies elsewhere.
            if before is None or not path.exists() or path.stat().st_mtime_ns != before or isinstance(error, OSError):
                raise
            aside = set_aside(path)
            note(f"{name} cannot go on from {path} ({error}): that is {aside.name} now, and the piece starts again")
        self._seed(name)
        try:
            return work()
        except BaseException:
            if not path.exists():
                aside.rename(path)  # the fault did not lie there
            raise

    def _seed(self, name: str) -> None:
        seed = self.named_seed(name)
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)

    def _read(self, path: Path) -> Results | None:
        """What a piece found; None if its file is damaged."""
        try:
            return _load(path)
        except (PermissionError, MemoryError):
            raise  # it may well be whole
        except Exception as error:  # numpy has many words for a damaged file
            aside = set_aside(path)
            note(f"{path} is damaged ({error}): it is {aside.name} now, and the piece is done again")
            return None


def unwatched(done: int, total: int, piece: str) -> None:
    """Nobody is told how far it is."""


def joined(name: Any) -> str:
    """The name of a piece as text.

    >>> joined(("chess", "Adam"))
    'chess, Adam'
    """
    return name if isinstance(name, str) else ", ".join(map(str, name))


def called(*names: Any, first: int = 0) -> str:
    """How a piece of several runs is called that begins with this one.

    So later runs are pieces of their own, and more of them cost only what is new.

    >>> called("chess", "Adam"), called("chess", first=12)
    ('chess, Adam', 'chess, runs from 12')
    """
    return ", ".join([*names, *([f"runs from {first}"] if first else [])])


def side_by_side(results: Mapping[tuple[str, str], Results]) -> dict[str, Results]:
    """What pieces called (method, run i) found, by method, with the run as the last axis.

    >>> found = side_by_side({("a", "run 0"): {"loss": np.zeros(3)}, ("a", "run 1"): {"loss": np.ones(3)}})
    >>> found["a"]["loss"].shape
    (3, 2)
    """
    runs: dict[str, list[Results]] = {}
    for (name, _), found in results.items():
        runs.setdefault(name, []).append(found)
    return {method: {key: np.stack([one[key] for one in many], -1) for key in many[0]} for method, many in runs.items()}


def digest(config: Any) -> str:
    """Eight letters that tell one config from another."""
    return hashlib.blake2b(json.dumps(asdict(config)).encode(), digest_size=4).hexdigest()


def now() -> str:
    """The time, to the second, in universal time."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _unlike(folder: Path, wanted: dict[str, Any]) -> str:
    """Why a run with this config may not go on with what lies there; empty if it may."""
    if not any((folder / "pieces").glob("*")) and not (folder / "result.json").exists():
        return ""
    path = folder / "config.json"
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "has no config.json"
    except (OSError, ValueError):
        return "has a damaged config.json"
    return "" if written == json.loads(json.dumps(wanted)) else "holds another config"


def _load(path: Path) -> Results:
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}
