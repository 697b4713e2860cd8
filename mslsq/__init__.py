"""mslsq: differentiable nonlinear least squares for PyTorch. Names only; every idea has a room of its own."""

from mslsq import linear, losses
from mslsq.adjoint import Adjoint, Implicit
from mslsq.curve_fit import CurveFit, curve_fit
from mslsq.least_squares import least_squares
from mslsq.losses import Arctan, Barron, Cauchy, GemanMcClure, Huber, RobustLoss, SoftL1, Tukey, Welsch
from mslsq.manifolds import SE2, SE3, SO2, SO3, Euclidean, Manifold, Sim2, Sim3, UnitVector
from mslsq.problem import (
    Between,
    CostFunction,
    Diagonal,
    Difference,
    Prior,
    Problem,
    ProblemError,
    Reprojection,
    Scale,
    Shared,
    SnavelyReprojection,
    SqrtInformation,
    Variable,
    cost,
)
from mslsq.solution import History, Solution, Status
from mslsq.solve import solve
from mslsq.solvers import Dogleg, GaussNewton, LevenbergMarquardt

__version__ = "0.1.0"

__all__ = [
    "SE2",
    "SE3",
    "SO2",
    "SO3",
    "Adjoint",
    "Arctan",
    "Barron",
    "Between",
    "Cauchy",
    "CostFunction",
    "CurveFit",
    "Diagonal",
    "Difference",
    "Dogleg",
    "Euclidean",
    "GaussNewton",
    "GemanMcClure",
    "History",
    "Huber",
    "Implicit",
    "LevenbergMarquardt",
    "Manifold",
    "Prior",
    "Problem",
    "ProblemError",
    "Reprojection",
    "RobustLoss",
    "Scale",
    "Shared",
    "Sim2",
    "Sim3",
    "SnavelyReprojection",
    "SoftL1",
    "Solution",
    "SqrtInformation",
    "Status",
    "Tukey",
    "UnitVector",
    "Variable",
    "Welsch",
    "cost",
    "curve_fit",
    "least_squares",
    "linear",
    "losses",
    "solve",
]
