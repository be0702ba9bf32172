"""Data sets of the experiments."""

from tether.data.images import fashion_mnist, mnist
from tether.data.planar import spiral, trig

__all__ = ["fashion_mnist", "mnist", "spiral", "trig"]
