"""Surfaces: the constraints on a part's parameters, one file each."""

from tether.surfaces.circle import Circle
from tether.surfaces.free import Free
from tether.surfaces.level import Level
from tether.surfaces.orthogonal import Orthogonal
from tether.surfaces.spectral_ball import SpectralBall
from tether.surfaces.sphere import Sphere
from tether.surfaces.surface import Surface, SurfaceError

__all__ = ["Circle", "Free", "Level", "Orthogonal", "SpectralBall", "Sphere", "Surface", "SurfaceError"]
