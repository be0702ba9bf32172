"""Data sets of the experiments."""

from tether.data.images import cifar10, cifar100, fashion_mnist, mnist, svhn
from tether.data.planar import blobs, circles, line, spiral, trig
from tether.data.sentences import sst2
from tether.data.tables import krkopt, poker_hand
from tether.data.text import ptb, wikitext2

__all__ = [
    "blobs",
    "cifar10",
    "cifar100",
    "circles",
    "fashion_mnist",
    "krkopt",
    "line",
    "mnist",
    "poker_hand",
    "ptb",
    "spiral",
    "sst2",
    "svhn",
    "trig",
    "wikitext2",
]
