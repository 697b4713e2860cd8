"""mslsq: differentiable nonlinear least squares for PyTorch. Names only; every idea has a room of its own."""

from typing import TYPE_CHECKING

from mslsq import errors, linear, losses, optim
from mslsq.adjoint import Adjoint, Detached, DirectLossMinimization, Implicit, Truncated, Unrolled
from mslsq.diagnostics import Evaluation, check_jacobian, covariance, evaluate, explain, marginalized
from mslsq.elsewhere.names import module_knowing_words
from mslsq.front.curve_fit import CurveFit, curve_fit
from mslsq.front.fit_file import FileFits, fit_file
from mslsq.front.layer import LeastSquaresLayer
from mslsq.front.least_squares import least_squares
from mslsq.front.multi_start import Minima, MultiStart, multi_start
from mslsq.front.prepared import prepared
from mslsq.front.separable_fit import separable_fit
from mslsq.front.solve import solve
from mslsq.losses import Arctan, Barron, Cauchy, GemanMcClure, Huber, RobustLoss, SoftL1, Tukey, Welsch
from mslsq.manifolds import SE2, SE3, SO2, SO3, Euclidean, Manifold, Sim2, Sim3, UnitVector
from mslsq.problem import (
    Between,
    CostFunction,
    Diagonal,
    Difference,
    Equality,
    Inequality,
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
from mslsq.solvers import (
    AugmentedLagrangian,
    Checkpoint,
    Dogleg,
    GaussNewton,
    GraduatedNonConvexity,
    LevenbergMarquardt,
    NoInfluenceWarning,
)

__version__ = "0.1.0"

__all__ = [
    "SE2",
    "SE3",
    "SO2",
    "SO3",
    "Adjoint",
    "Arctan",
    "AugmentedLagrangian",
    "Barron",
    "Between",
    "Cauchy",
    "Checkpoint",
    "CostFunction",
    "CurveFit",
    "Detached",
    "Diagonal",
    "Difference",
    "DirectLossMinimization",
    "Dogleg",
    "Equality",
    "Euclidean",
    "Evaluation",
    "FileFits",
    "GaussNewton",
    "GemanMcClure",
    "GraduatedNonConvexity",
    "History",
    "Huber",
    "Implicit",
    "Inequality",
    "LeastSquaresLayer",
    "LevenbergMarquardt",
    "Manifold",
    "Minima",
    "MultiStart",
    "NoInfluenceWarning",
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
    "Truncated",
    "Tukey",
    "UnitVector",
    "Unrolled",
    "Variable",
    "Welsch",
    "check_jacobian",
    "cost",
    "covariance",
    "curve_fit",
    "errors",
    "evaluate",
    "explain",
    "fit_file",
    "least_squares",
    "linear",
    "losses",
    "marginalized",
    "multi_start",
    "optim",
    "prepared",
    "separable_fit",
    "solve",
]

if not TYPE_CHECKING:  # a checker of types would take any name for one of ours
    __getattr__ = module_knowing_words(__name__)
