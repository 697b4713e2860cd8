"""How derivatives pass through a solve."""

from mslsq.adjoint.adjoint import Adjoint, AdjointOptionError, DerivativeOrderError, Detached
from mslsq.adjoint.direct_loss import DirectLossMinimization
from mslsq.adjoint.implicit import Implicit
from mslsq.adjoint.solve import solve_system
from mslsq.adjoint.unrolled import Truncated, Unrolled
from mslsq.adjoint.warning import NotDifferentiableWarning

__all__ = [
    "Adjoint",
    "AdjointOptionError",
    "DerivativeOrderError",
    "Detached",
    "DirectLossMinimization",
    "Implicit",
    "NotDifferentiableWarning",
    "Truncated",
    "Unrolled",
    "solve_system",
]
