"""The recording of `tether explore`, for the recipe."""

__all__ = ["animation"]


def animation(_: str) -> str:
    """The recording as an image of reStructuredText; `python benchmarks/record_explore.py` makes it."""
    return ".. image:: /explore.webp\n   :alt: dynamics side by side in the browser"
