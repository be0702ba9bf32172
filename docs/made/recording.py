"""The recording of `tether explore`, for the recipe."""

from pathlib import Path

__all__ = ["animation"]

DOCS = Path(__file__).resolve().parents[1]


def animation(_: str) -> str:
    """The recording as an image of reStructuredText, if it has been made (`python benchmarks/record_explore.py`)."""
    for place in ("pictures/explore.gif", "explore.gif"):
        if (DOCS / place).exists():
            return f".. image:: /{place}\n   :alt: dynamics side by side in the browser"
    return ""
