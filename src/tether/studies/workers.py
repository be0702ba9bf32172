"""Several pieces of a study at once, each in a process that was forked from this one."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["in_workers"]


def in_workers(names: Sequence[str], do: Callable[[str], None], workers: int, watch: Callable[[str], None]) -> None:
    """Let forked processes do the work of these names, in order; what one fails to do is left undone.

    `watch` is called here with each name that is begun.
    """
    context = multiprocessing.get_context("fork")  # what is to be done need not be pickled
    taken = context.Value("i", 0)
    parent = os.getpid()

    def work() -> None:
        threading.Thread(target=end_with, args=(parent,), daemon=True).start()
        while True:
            with taken.get_lock():
                i = taken.value
                taken.value += 1
            if i >= len(names):
                return
            do(names[i])

    processes = [context.Process(target=work, daemon=True) for _ in range(min(workers, len(names)))]
    for process in processes:
        process.start()
    told = 0
    while True:
        going = any(process.is_alive() for process in processes)
        for name in names[told : taken.value]:
            watch(name)
            told += 1
        if not going:
            break
        time.sleep(0.05)
    for process in processes:
        process.join()


def end_with(parent: int) -> None:
    """End this process soon after its parent has been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
