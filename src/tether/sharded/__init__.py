"""Sharded parameters: what DTensors need. Local pieces, reductions, and whole matrices by owners."""

from tether.sharded.cost import Cost, cost

__all__ = ["Cost", "cost"]
