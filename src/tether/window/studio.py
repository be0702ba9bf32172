"""A process that paints, so that painting takes no time from the thread that trains."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from tether.window.painter import Painter
from tether.window.problems import problem_of
from tether.window.runner import Snapshot
from tether.window.setting import Setting

__all__ = ["Studio", "paint"]

READY = b"ready\n"
NICE = 5  # where cores are few, training goes before pictures


class Studio:
    """The process, for all sessions. Until it is ready, and if it ends, sessions paint for themselves."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", f"from {__name__} import paint; paint()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._one, self.ready = threading.Lock(), False
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        self.ready = self._process.stdout.readline() == READY

    def frame(
        self, page: int, setting: Setting | None, shots: Sequence[Snapshot], view: Mapping[str, Any], full: bool
    ) -> tuple[dict[str, Any], bytes]:
        """A frame for a page. A setting begins another run. Raises `OSError` if the process has ended."""
        return self._ask((page, setting, shots, dict(view), full))

    def forget(self, page: int) -> None:
        """A page is closed."""
        if self.ready:
            with suppress(OSError):
                self._ask((page, None, (), {}, False))

    def _ask(self, job: Any) -> Any:
        ask, answer = self._process.stdin, self._process.stdout
        assert ask is not None
        assert answer is not None
        with self._one:
            try:
                ask.write(pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
                ask.flush()
                return pickle.load(answer)
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                self.ready = False
                raise BrokenPipeError("the process that paints has ended") from None

    def close(self) -> None:
        """End the process."""
        self.ready = False
        self._process.kill()  # first: whoever waits for a frame holds the lock
        with self._one:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):  # what it did not read any more
                    pipe.close()


def work(jobs: IO[bytes], frames: IO[bytes]) -> None:
    """Paint until there are no more jobs."""
    painters: dict[int, Painter] = {}
    while True:
        try:
            page, setting, shots, view, full = pickle.load(jobs)
        except EOFError:
            return
        if setting is not None:
            painters[page] = Painter(setting, problem_of(setting))
        found = painters[page].frame(shots, view, full) if shots else painters.pop(page, None) and None
        frames.write(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
        frames.flush()


def paint() -> None:
    """The process: jobs from its input, frames to its output, until the input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake goes to the terminal, not among the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    if hasattr(os, "nice"):
        os.nice(NICE)
    with suppress(BrokenPipeError):  # nobody waits for the frame any more
        out.write(READY)
        out.flush()
        work(sys.stdin.buffer, out)
