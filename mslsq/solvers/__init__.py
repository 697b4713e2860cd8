"""The solvers: one loop of named steps, one strategy per method."""

from mslsq.solvers.augmented_lagrangian import AugmentedLagrangian
from mslsq.solvers.dogleg import Dogleg
from mslsq.solvers.gauss_newton import GaussNewton
from mslsq.solvers.graduated_non_convexity import GraduatedNonConvexity
from mslsq.solvers.influence import NoInfluenceWarning
from mslsq.solvers.levenberg_marquardt import LevenbergMarquardt
from mslsq.solvers.solver import Checkpoint, Solver

__all__ = [
    "AugmentedLagrangian",
    "Checkpoint",
    "Dogleg",
    "GaussNewton",
    "GraduatedNonConvexity",
    "LevenbergMarquardt",
    "NoInfluenceWarning",
    "Solver",
]
