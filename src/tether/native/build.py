"""The compiled kernel as a file: built by the C compiler on first use, kept in a private cache, checked before loading.

A library is named by its recipe (sources, compiler, flags, platform) and by the hash of its own bytes. So a library
that was cut, emptied or changed is not loaded, and there is no second file that could disagree with the first. The
cache must belong to this user and be writable by nobody else. Where it is not, or cannot be written, the kernel is
built in a temporary folder for this process alone.

``CC`` names the compiler and may hold arguments, ``TETHER_CFLAGS`` adds flags, ``TETHER_NATIVE=0`` does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["SOURCES", "Built", "Failed", "cache", "kernel"]

FOLDER = Path(__file__).parent
HEADERS = ("kernel.h", "philox.h")
SOURCES = ("native.c", *HEADERS, "noise.c", "batch.c", "bounded.c", "stiefel.c", "mlp.c", "path.c", "kinks.c")
# No contraction: a product and a sum are rounded as they are written, so that the noise is the same on every machine.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
# Best first: with threads and a choice of instructions, without one of them, without both.
VARIANTS = (("-fopenmp",), ("-fopenmp", "-DPLAIN"), (), ("-DPLAIN",))
SECONDS = 300  # for the compiler
FULL = ("No space left", "quota exceeded", "Read-only file system")  # a reason to try another folder, not other flags


class Built(NamedTuple):
    """A loaded library and how it was made."""

    library: ctypes.CDLL
    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    path: str  # in the cache, or why there is none


class Failed(RuntimeError):
    """There is no kernel, for this reason."""


def kernel() -> Built:
    """The kernel, from the cache or from the compiler: the best variant that compiles and loads."""
    if os.environ.get("TETHER_NATIVE", "1") == "0":
        raise Failed("TETHER_NATIVE=0 turns it off")
    try:
        compiler = _compiler()
        extra = tuple(shlex.split(os.environ.get("TETHER_CFLAGS", "")))
    except ValueError as error:
        raise Failed(f"CC or TETHER_CFLAGS cannot be split into words: {error}") from error
    trouble = ""
    for variant in VARIANTS:
        try:
            return _variant(compiler, (*FLAGS, *variant, *extra))
        except (Failed, OSError, subprocess.SubprocessError) as error:
            trouble = trouble or str(error)
    raise Failed(trouble)


def cache() -> Path:
    """The folder of this user's kernels, made if need be; raises `Failed` where others could write to it."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not root.is_absolute():  # an unset one, or one that would depend on the working directory
        try:
            root = Path.home() / ".cache"
        except RuntimeError as error:
            raise Failed(f"no cache: {error}") from error
    folder = root / "tether" / "kernels"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        if not (folder.is_dir() and _private(folder)):
            raise Failed(f"{folder} is not used: it belongs to another user, or others may write to it (chmod 700)")
    except OSError as error:
        raise Failed(f"no cache: {error}") from error
    return folder


def _compiler() -> tuple[str, ...]:
    """The words of ``CC``, or the first compiler there is."""
    words = tuple(shlex.split(os.environ.get("CC", "")))
    return words or (next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "cc"),)


def _variant(compiler: tuple[str, ...], flags: tuple[str, ...]) -> Built:
    texts = [(FOLDER / name).read_bytes() for name in SOURCES]
    words = [" ".join(x).encode("utf-8", "surrogateescape") for x in (compiler, flags)]
    recipe = b"\0".join([*texts, *words, platform.machine().encode(), platform.platform().encode()])
    stem = f"kernel-{hashlib.sha256(recipe).hexdigest()[:16]}"
    places: list[Path | None] = [None]
    try:
        places.insert(0, cache())
        why = "not kept: the cache cannot be written"
    except Failed as error:
        why = f"not kept: {error}"
    for place in places:
        found = None if place is None else _find(place, stem)
        with contextlib.suppress(OSError):  # a folder from which nothing may be run
            if found is not None:
                return Built(ctypes.CDLL(str(found)), compiler, flags, str(found))
    for place in places:
        try:
            with tempfile.TemporaryDirectory(dir=place, prefix="build-") as scratch:
                fresh = Path(scratch) / f"{stem}.so"
                _compile([*compiler, *flags, str(FOLDER / SOURCES[0]), "-o", str(fresh), "-lm"])
                kept = None if place is None else _keep(fresh, place, stem)
                return Built(ctypes.CDLL(str(kept or fresh)), compiler, flags, str(kept) if kept else why)
        except OSError:
            if place is None:
                raise
    raise AssertionError("the last place raises")


def _compile(command: Sequence[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        said = next((line for line in lines if any(word in line for word in FULL)), None)
        if said is not None:
            raise OSError(said)
        raise Failed(f"{shlex.join(command[:1])}: {lines[-1]}")


def _private(path: Path) -> bool:
    """Does it belong to this user, and can nobody else write to it?"""
    if not hasattr(os, "geteuid"):
        return True
    about = path.lstat()
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _find(folder: Path, stem: str) -> Path | None:
    """A whole library of this recipe; one that is damaged is removed, one that others could have written is left."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        try:
            if path.is_symlink() or not path.is_file() or not _private(path):
                continue
            if path.stem == f"{stem}-{_digest(path)}":
                return path
            path.unlink()
        except OSError:
            continue
    return None


def _keep(fresh: Path, folder: Path, stem: str) -> Path:
    """Give a library its final name, in one step and on the disk: another process may be doing the same."""
    fresh.chmod(0o700)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    kept = folder / f"{stem}-{_digest(fresh)}.so"
    fresh.replace(kept)
    return kept
