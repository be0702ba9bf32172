"""Quantities of a network: each function leaves it as it was."""

from tether.measure.path import balance, group_norm, path_norm, rescale

__all__ = ["balance", "group_norm", "path_norm", "rescale"]
