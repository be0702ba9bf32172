"""A session of the window: one page, the process that trains for it, and a thread that paints what comes from there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tether.window.painter import Painter
from tether.window.problems import problem_of
from tether.window.trainer import Shots
from tether.window.worker import FREE, Workers

__all__ = ["Session"]

# Frames in a second, at most. The process that trains has the next snapshot ready when this thread wakes. So it need
# not wake anybody, which would cost it more than the snapshot, and often its place on the processor.
FRAMES = 32.0
PATIENCE = 5.0  # seconds for the last step of a session
ENDED = "The process that trains has ended. Another one begins the run anew."
Send = Callable[[dict[str, Any], bytes | None], None]


class Session:
    """Hands a page's commands on and sends it frames; `send` is called from a thread of the session."""

    def __init__(self, send: Send, workers: Workers) -> None:
        self._send, self._workers, self._worker = send, workers, workers.take()
        self._painter: Painter | None = None
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def receive(self, command: Any) -> None:
        """Take a command of the page."""
        self._worker.send(command)

    def close(self) -> None:
        """Stop training and let the process go."""
        self._over = True
        self._worker.send(FREE)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._worker.kill()
            self._thread.join()

    def _serve(self) -> None:
        """Pass messages on and paint snapshots, until the process is free or has ended."""
        usable = False
        try:
            while (message := self._worker.receive()) != FREE:
                if self._over:
                    continue
                if isinstance(message, Shots):
                    due = time.perf_counter() + 1 / FRAMES
                    self._send(*self._frame(message))
                    time.sleep(max(0.0, due - time.perf_counter()))
                else:
                    self._send(message, None)
            usable = True
        except EOFError:
            pass
        finally:
            if not usable and not self._over:
                self._send({"type": "gone", "message": ENDED}, None)
            self._workers.give(self._worker, usable)

    def _frame(self, shots: Shots) -> tuple[dict[str, Any], bytes]:
        """A header and the arrays of a frame."""
        if shots.setting is not None:
            self._painter = Painter(shots.setting, problem_of(shots.setting))
        assert self._painter is not None
        header, body = self._painter.frame(shots.snapshots, shots.view, shots.full)
        return header | shots.told, body
