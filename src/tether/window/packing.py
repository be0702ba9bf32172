"""Messages to the page: plain values as JSON, arrays as bytes behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["arrays_of", "finite_values", "message", "packed"]


def packed(arrays: Mapping[str, np.ndarray]) -> tuple[list[list[Any]], bytes]:
    """Arrays as one string of bytes, each at a multiple of four, and a list of name, kind, shape and place."""
    places: list[list[Any]] = []
    pieces: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        kind = "u1" if array.dtype == np.uint8 else "f4"
        raw = np.ascontiguousarray(array, dtype=np.uint8 if kind == "u1" else np.float32).tobytes()
        places.append([name, kind, list(array.shape), offset])
        raw += b"\0" * (-len(raw) % 4)
        pieces.append(raw)
        offset += len(raw)
    return places, b"".join(pieces)


def arrays_of(header: Mapping[str, Any], body: bytes) -> dict[str, np.ndarray]:
    """The arrays of a frame, for those who look at it from Python."""
    kinds = {"u1": np.uint8, "f4": np.float32}
    found = {}
    for name, kind, shape, offset in header["arrays"]:
        count = int(np.prod(shape))
        found[name] = np.frombuffer(body, kinds[kind], count, offset).reshape(shape)
    return found


def finite_values(value: Any) -> Any:
    """The same values with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite_values(one) for name, one in value.items()}
    return [finite_values(one) for one in value] if isinstance(value, list | tuple) else value


def message(header: Mapping[str, Any], body: bytes) -> bytes:
    """Header and arrays in one binary message: the header's length in four bytes, the header, the arrays."""
    text = json.dumps(finite_values(header), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return len(text).to_bytes(4, "little") + text + body
