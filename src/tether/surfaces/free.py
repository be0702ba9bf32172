"""Free: no constraint."""

from __future__ import annotations

__all__ = ["Free"]


class Free:
    """All of space: the surface of a part that is not constrained."""

    def __repr__(self) -> str:
        return "Free()"
