"""Processes that train, so that nothing else in the process of the page takes time from the training."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Any

import torch

from tether.window.trainer import Trainer

__all__ = ["Worker", "Workers", "work"]

FREE = ()  # the message at the end of a session, to the process and back; no page can send it
ROOM = 1 << 20  # bytes that a pipe holds, so that the process need not wait until a snapshot is read
START = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # Ctrl-C is for the process that started it


class Worker:
    """A process that trains for one session after another."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", f"{START}; from {__name__} import work; work()"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        _widen(self._process.stdout)
        self._one = threading.Lock()

    def send(self, command: Any) -> None:
        """Hand over a command of the page. If the process has ended, nothing happens: `receive` tells it."""
        assert self._process.stdin is not None
        with self._one, suppress(OSError, ValueError):
            _write(self._process.stdin, command)

    def receive(self) -> Any:
        """The next message. Raises `EOFError` if the process has ended."""
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (OSError, ValueError, pickle.UnpicklingError):
            raise EOFError from None

    def kill(self) -> None:
        """End the process at once; whoever waits for a message gets an `EOFError`."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what it did not read any more
                pipe.close()


class Workers:
    """Starts processes and keeps one that is free, so that a page which is loaded again need not wait."""

    def __init__(self) -> None:
        self._one, self._free, self._busy = threading.Lock(), [Worker()], set[Worker]()

    def take(self) -> Worker:
        """A process for a session."""
        with self._one:
            worker = self._free.pop() if self._free else Worker()
            self._busy.add(worker)
        return worker

    def give(self, worker: Worker, usable: bool) -> None:
        """A session is over."""
        with self._one:
            self._busy.discard(worker)
            if usable and not self._free:
                self._free.append(worker)
                return
        worker.kill()

    def close(self) -> None:
        """End all processes."""
        with self._one:
            for worker in (*self._free, *self._busy):
                worker.kill()
            self._free.clear()


def _widen(pipe: IO[bytes] | None) -> None:
    """Give a pipe more room where the system allows it."""
    assert pipe is not None
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, ROOM)


def _write(to: IO[bytes], message: Any) -> None:
    to.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    to.flush()


def work() -> None:
    """The process: commands from its input, messages to its output, until the input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by mistake goes to the terminal, not among the messages
    torch.set_num_threads(1)
    trainer = Trainer(lambda message: _write(out, message))

    def listen() -> None:
        with suppress(EOFError, pickle.UnpicklingError):
            while True:
                command = pickle.load(sys.stdin.buffer)
                if command == FREE:
                    trainer.close()
                else:
                    trainer.receive(command)
        os.kill(os.getpid(), signal.SIGTERM)  # nobody is left to train for

    threading.Thread(target=listen, daemon=True).start()
    with suppress(BrokenPipeError):
        while True:
            trainer.work()
            trainer = Trainer(lambda message: _write(out, message))
            _write(out, FREE)
