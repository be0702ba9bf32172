"""tether: training dynamics by design.

A training method is a table of parts; a part says which parameters move and by which dynamics, a word of
letters.
"""

from tether import data, hamiltonian, letters, measure, methods, noise, surfaces, words
from tether.constrain import constrain, decay_groups, violation
from tether.ensemble import replicas
from tether.ensemble.replicas import Replicas
from tether.ensemble.tempering import exchange, temper, tempering_weights
from tether.loop.sample import Draws, sample
from tether.loop.train import Record, train
from tether.metrics.path import Path
from tether.metrics.rms import RMS
from tether.metrics.spectral import Spectral
from tether.optimizer import NonFiniteGradient, Optimizer
from tether.part import Part
from tether.rhythms import Every, Merge, Metropolis, Pace, Sleep
from tether.rhythms.multirate import Multirate
from tether.rhythms.speedup import speedup
from tether.schedule import Schedule
from tether.surfaces import Circle, Free, Level, Orthogonal, SpectralBall, Sphere
from tether.surfaces.soft import orthogonal_penalty, soft
from tether.window.notebook import explore

__all__ = [
    "RMS",
    "Circle",
    "Draws",
    "Every",
    "Free",
    "Level",
    "Merge",
    "Metropolis",
    "Multirate",
    "NonFiniteGradient",
    "Optimizer",
    "Orthogonal",
    "Pace",
    "Part",
    "Path",
    "Record",
    "Replicas",
    "Schedule",
    "Sleep",
    "Spectral",
    "SpectralBall",
    "Sphere",
    "constrain",
    "data",
    "decay_groups",
    "exchange",
    "explore",
    "hamiltonian",
    "letters",
    "measure",
    "methods",
    "noise",
    "orthogonal_penalty",
    "replicas",
    "sample",
    "soft",
    "speedup",
    "surfaces",
    "temper",
    "tempering_weights",
    "train",
    "violation",
    "words",
]
__version__ = "0.2.0"
