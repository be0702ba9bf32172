"""Quantities of a network: each function leaves it as it was."""

from tether.measure.boundary import Boundary, boundary
from tether.measure.boundary_curvature import Curvature, boundary_curvature
from tether.measure.line import LinearPath, layer_paths, linear_path
from tether.measure.path import balance, group_norm, path_norm, rescale
from tether.measure.prediction_gradient import PredictionGradient, prediction_gradient
from tether.measure.states import between, distance

__all__ = [
    "Boundary",
    "Curvature",
    "LinearPath",
    "PredictionGradient",
    "balance",
    "between",
    "boundary",
    "boundary_curvature",
    "distance",
    "group_norm",
    "layer_paths",
    "linear_path",
    "path_norm",
    "prediction_gradient",
    "rescale",
]
