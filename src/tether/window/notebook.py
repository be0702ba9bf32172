"""The window in a notebook: the same page as a widget of Jupyter and marimo."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from typing import Any

from tether.window.catalogue import catalogue
from tether.window.packing import finite_values
from tether.window.session import Session
from tether.window.setting import as_values, read_setting
from tether.window.worker import Workers

__all__ = ["explore"]

PAGE = Path(__file__).parent / "page"
INSTALL = "pip install 'tether[notebook]' (in a checkout: pip install -e '.[notebook]')"


@cache
def workers() -> Workers:
    """The processes that train, for all widgets of this one."""
    started = Workers()
    atexit.register(started.close)
    return started


def explore(setting: dict[str, Any] | None = None) -> Any:
    """Show the window of ``tether explore`` in a notebook, and train in a process beside it.

    ``explore()`` begins with the first scene. A setting is what the page puts into its address. What is left out
    has its default: ``explore({"hidden": [40], "dynamics": [{"method": "adlala"}]})``.
    """
    given = None if setting is None else as_values(read_setting(setting))
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError(f"the widget needs {error.name}: {INSTALL}") from None

    class Window(anywidget.AnyWidget):
        _esm = PAGE / "window.js"
        _css = PAGE / "window.css"
        first = traitlets.Any(given).tag(sync=True)

        def __init__(self) -> None:
            super().__init__()
            self.session: Session | None = None
            self.on_msg(self._receive)

        def _receive(self, _: Any, content: Any, buffers: Any) -> None:
            kind = content.get("type") if isinstance(content, dict) else None
            if kind in ("hello", "bye"):  # a view has been shown, or removed
                self.close_session()
            if kind == "hello":
                self.session = Session(self._post, workers())
                self._post(catalogue(), None)
            elif self.session is not None:
                self.session.receive(content)

        def _post(self, header: dict[str, Any], body: bytes | None) -> None:
            self.send(finite_values(header), buffers=None if body is None else [body])

        def close_session(self) -> None:
            """Stop training."""
            if self.session is not None:
                self.session.close()
                self.session = None

        def close(self) -> None:
            """Stop training and remove the widget."""
            self.close_session()
            super().close()

    return Window()
