"""Runs that are pieces of their own, put side by side."""

from __future__ import annotations

import numpy as np

from tether_studies.study import Results

__all__ = ["side_by_side"]


def side_by_side(results: Results) -> dict[str, Results]:
    """What pieces called "method, run i" found, by method, with the run as the last axis.

    >>> found = side_by_side({"a, run 0": {"loss": np.zeros(3)}, "a, run 1": {"loss": np.ones(3)}})
    >>> found["a"]["loss"].shape
    (3, 2)
    """
    runs: dict[str, list[Results]] = {}
    for name, found in results.items():
        runs.setdefault(name.rpartition(", run ")[0], []).append(found)
    return {method: {key: np.stack([one[key] for one in many], -1) for key in many[0]} for method, many in runs.items()}
