"""Problems as data: variables, weights, cost functions, structure."""

from mslsq.problem.constraints import Equality, Inequality
from mslsq.problem.cost import CostFunction, cost
from mslsq.problem.data import Shared
from mslsq.problem.errors import (
    DeviceError,
    DtypeError,
    IndexRangeError,
    ProblemError,
    ShapeError,
    UnknownNameError,
)
from mslsq.problem.factors import Between, Difference, Prior
from mslsq.problem.marginal_prior import MarginalPrior
from mslsq.problem.problem import Problem
from mslsq.problem.reprojection import Reprojection, SnavelyReprojection
from mslsq.problem.variable import Variable
from mslsq.problem.weights import Diagonal, Scale, SqrtInformation, Weight

__all__ = [
    "Between",
    "CostFunction",
    "DeviceError",
    "Diagonal",
    "Difference",
    "DtypeError",
    "Equality",
    "IndexRangeError",
    "Inequality",
    "MarginalPrior",
    "Prior",
    "Problem",
    "ProblemError",
    "Reprojection",
    "Scale",
    "ShapeError",
    "Shared",
    "SnavelyReprojection",
    "SqrtInformation",
    "UnknownNameError",
    "Variable",
    "Weight",
    "cost",
]
