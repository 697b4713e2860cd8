"""Manifolds: Lie groups, the sphere, Euclidean space, products by dict; and the one face they show to the engine."""

from mslsq.manifolds import components
from mslsq.manifolds.base import Manifold, ManifoldError, cat, stack
from mslsq.manifolds.euclidean import Euclidean
from mslsq.manifolds.lie_group import LieGroup
from mslsq.manifolds.se2 import SE2
from mslsq.manifolds.se3 import SE3
from mslsq.manifolds.sim2 import Sim2
from mslsq.manifolds.sim3 import Sim3
from mslsq.manifolds.so2 import SO2
from mslsq.manifolds.so3 import SO3
from mslsq.manifolds.space import Space, space_of, space_of_value
from mslsq.manifolds.unit_vector import UnitVector

__all__ = [
    "SE2",
    "SE3",
    "SO2",
    "SO3",
    "Euclidean",
    "LieGroup",
    "Manifold",
    "ManifoldError",
    "Sim2",
    "Sim3",
    "Space",
    "UnitVector",
    "cat",
    "components",
    "space_of",
    "space_of_value",
    "stack",
]
