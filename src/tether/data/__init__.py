"""Data sets of the experiments."""

from tether.data.planar import spiral, trig

__all__ = ["spiral", "trig"]
