"""tether: training dynamics by design.

A training method is a table of parts; a part says which parameters move and by which dynamics, a word of
letters.
"""

from tether import data, letters, methods, noise, words
from tether.optimizer import NonFiniteGradient, Optimizer
from tether.part import Part
from tether.schedule import Schedule

__all__ = ["NonFiniteGradient", "Optimizer", "Part", "Schedule", "data", "letters", "methods", "noise", "words"]
__version__ = "0.1.0"
