"""Pictures of the pages."""

from pathlib import Path

__all__ = ["animation"]

DOCS = Path(__file__).resolve().parents[1]


def animation(_: str) -> str:
    """The recording of `tether explore`, if it has been made (`python benchmarks/record_explore.py`)."""
    for place in ("pictures/explore.gif", "explore.gif"):
        if (DOCS / place).exists():
            return f".. image:: /{place}\n   :alt: four dynamics side by side in the browser"
    return ""
