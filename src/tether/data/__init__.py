"""Data sets of the experiments."""

from tether.data.images import cifar10, fashion_mnist, mnist
from tether.data.planar import spiral, trig
from tether.data.sentences import sst2

__all__ = ["cifar10", "fashion_mnist", "mnist", "spiral", "sst2", "trig"]
