"""The pictures of one page: painted by the studio if there is one, otherwise in this process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tether.window.painter import Painter
from tether.window.problems import problem_of
from tether.window.runner import Snapshot
from tether.window.setting import Setting
from tether.window.studio import Studio

__all__ = ["Gallery"]

PAGES = itertools.count()


class Gallery:
    """Remembers which run is painted where."""

    def __init__(self, studio: Studio | None) -> None:
        self._studio, self._page = studio, next(PAGES)
        self._there = self._here = 0  # the run that the studio paints, and the one that is painted in this process
        self._painter: Painter | None = None

    def frame(
        self, shots: Sequence[Snapshot], view: Mapping[str, Any], run: tuple[int, Setting], full: bool
    ) -> tuple[dict[str, Any], bytes]:
        """A header and the arrays of a frame."""
        number, setting = run
        if self._studio is not None and self._studio.ready:
            try:
                new = self._there != number
                self._there, self._here = number, 0
                return self._studio.frame(self._page, setting if new else None, shots, view, full)
            except OSError:
                self._there = 0
        if self._painter is None or self._here != number:
            self._painter, self._here = Painter(setting, problem_of(setting)), number
        return self._painter.frame(shots, view, full)

    def close(self) -> None:
        """The page is closed."""
        if self._studio is not None and self._there:
            self._studio.forget(self._page)
