"""Problems as data: variables, weights, cost functions, structure."""

from mslsq.problem.cost import CostFunction, Shared, cost
from mslsq.problem.errors import (
    DeviceError,
    DtypeError,
    IndexRangeError,
    ProblemError,
    ShapeError,
    UnknownNameError,
)
from mslsq.problem.problem import Problem
from mslsq.problem.variable import Variable
from mslsq.problem.weights import Diagonal, Scale, SqrtInformation, Weight

__all__ = [
    "CostFunction",
    "DeviceError",
    "Diagonal",
    "DtypeError",
    "IndexRangeError",
    "Problem",
    "ProblemError",
    "Scale",
    "ShapeError",
    "Shared",
    "SqrtInformation",
    "UnknownNameError",
    "Variable",
    "Weight",
    "cost",
]
