"""How derivatives pass through a solve."""

from mslsq.adjoint.adjoint import Adjoint, Implicit
from mslsq.adjoint.solve import solve_system

__all__ = ["Adjoint", "Implicit", "solve_system"]
