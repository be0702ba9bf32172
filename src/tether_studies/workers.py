"""Where the pieces of a study run: here, one after the other or several at once, each in a forked process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tether_studies.lab import Lab

__all__ = ["Place", "Processes", "end", "end_with_parent", "in_workers"]

Work = Mapping[str, Callable[[], dict[Any, Any]]]


class Place(Protocol):
    """Where the pieces of a study run."""

    def run(self, lab: Lab, work: Work, watch: Callable[[str], None]) -> None:
        """Do these pieces and `keep` their results in the lab, or raise what one of them raised.

        `watch` is called whenever pieces begin, with a text that names them.
        """


@dataclass(frozen=True)
class Processes:
    """This machine, with `count` pieces at once; a single one runs in this very process."""

    count: int = 1

    def run(self, lab: Lab, work: Work, watch: Callable[[str], None]) -> None:
        """What a worker fails to do is done again here, where the error can be seen."""
        if self.count > 1 and len(work) > 1:
            in_workers(list(work), lambda name: lab.do(name, work[name]), self.count, watch)
        for name in work:
            if not lab.done(name):
                watch(name)
                lab.do(name, work[name])


def in_workers(names: Sequence[str], do: Callable[[str], None], workers: int, watch: Callable[[str], None]) -> None:
    """Let forked processes do the work of these names, in order; what one fails to do is left undone.

    `watch` is called here with each name that is begun. However this call ends, no worker outlives it.
    """
    context = multiprocessing.get_context("fork")  # what is to be done need not be pickled
    taken = context.Value("i", 0)

    def work() -> None:
        end_with_parent()
        while True:
            with taken.get_lock():
                i = taken.value
                taken.value += 1
            if i >= len(names):
                return
            do(names[i])

    processes: list[Any] = []
    try:
        for _ in range(min(workers, len(names))):
            processes.append(context.Process(target=work, daemon=True))
            processes[-1].start()
        told, going = 0, True
        while going:
            going = any(process.is_alive() for process in processes)
            for name in names[told : taken.value]:
                watch(name)
                told += 1
            time.sleep(0.05 if going else 0)
    finally:
        end(processes)


def end(processes: Iterable[Any]) -> None:
    """End these processes if they still run, and wait until the system has released what they held."""
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.terminate()
    for process in started:
        process.join()


def end_with_parent() -> None:
    """Let this process end when its parent does, even if that is killed, so that no lock is held for nobody.

    Ctrl-C reaches a whole group of processes: it is the parent's to answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent: Any = multiprocessing.parent_process()

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
