"""Quantities of a network: each function leaves it as it was."""

from tether.measure.agreement import Agreement, agreement
from tether.measure.autocorrelation import Autocorrelation, autocorrelation_time
from tether.measure.boundary import Boundary, boundary
from tether.measure.boundary_curvature import Curvature, boundary_curvature
from tether.measure.configurational import Configurational, configurational_temperature
from tether.measure.density import Density, Trace, hessian_trace, spectral_density
from tether.measure.gradient_noise import GradientNoise, gradient_noise
from tether.measure.gradients import GradientNorms, gradient_norms
from tether.measure.histograms import Distributions, distributions, histograms
from tether.measure.homogeneity import Homogeneity, homogeneity
from tether.measure.jacobian import JacobianSpectrum, jacobian_spectrum
from tether.measure.kinetic import Equipartition, equipartition, kinetic_temperature, thermometer
from tether.measure.line import LinearPath, layer_paths, linear_path
from tether.measure.lipschitz import Lipschitz, lipschitz
from tether.measure.llc import LearningCoefficient, llc
from tether.measure.margin import Margin, margin
from tether.measure.minimum import MinimumNorm, minimum_norm
from tether.measure.morph import Morph, morph
from tether.measure.path import balance, group_norm, path_norm, path_vector, rescale
from tether.measure.plane import Plane, random_directions, surface
from tether.measure.prediction_gradient import PredictionGradient, prediction_gradient
from tether.measure.separator import HardMargin, NotSeparable, hard_margin
from tether.measure.spectrum import Spectrum, Unconverged, hessian_spectrum
from tether.measure.starts import random_labels, start_at_barrier, transplant
from tether.measure.states import between, distance

__all__ = [
    "Agreement",
    "Autocorrelation",
    "Boundary",
    "Configurational",
    "Curvature",
    "Density",
    "Distributions",
    "Equipartition",
    "GradientNoise",
    "GradientNorms",
    "HardMargin",
    "Homogeneity",
    "JacobianSpectrum",
    "LearningCoefficient",
    "LinearPath",
    "Lipschitz",
    "Margin",
    "MinimumNorm",
    "Morph",
    "NotSeparable",
    "Plane",
    "PredictionGradient",
    "Spectrum",
    "Trace",
    "Unconverged",
    "agreement",
    "autocorrelation_time",
    "balance",
    "between",
    "boundary",
    "boundary_curvature",
    "configurational_temperature",
    "distance",
    "distributions",
    "equipartition",
    "gradient_noise",
    "gradient_norms",
    "group_norm",
    "hard_margin",
    "hessian_spectrum",
    "hessian_trace",
    "histograms",
    "homogeneity",
    "jacobian_spectrum",
    "kinetic_temperature",
    "layer_paths",
    "linear_path",
    "lipschitz",
    "llc",
    "margin",
    "minimum_norm",
    "morph",
    "path_norm",
    "path_vector",
    "prediction_gradient",
    "random_directions",
    "random_labels",
    "rescale",
    "spectral_density",
    "start_at_barrier",
    "surface",
    "thermometer",
    "transplant",
]
