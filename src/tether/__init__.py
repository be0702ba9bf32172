"""tether: training dynamics by design.

A training method is a table of parts; a part says which parameters move and by which dynamics, a word of
letters.
"""

from tether import data, letters, methods, noise, surfaces, words
from tether.constrain import constrain, decay_groups, orthogonal_penalty
from tether.optimizer import NonFiniteGradient, Optimizer
from tether.part import Part
from tether.schedule import Schedule
from tether.surfaces import Circle, Free, Level, Orthogonal, Sphere

__all__ = [
    "Circle",
    "Free",
    "Level",
    "NonFiniteGradient",
    "Optimizer",
    "Orthogonal",
    "Part",
    "Schedule",
    "Sphere",
    "constrain",
    "data",
    "decay_groups",
    "letters",
    "methods",
    "noise",
    "orthogonal_penalty",
    "surfaces",
    "words",
]
__version__ = "0.1.0"
