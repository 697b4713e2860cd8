"""Diagnostics: what a problem costs, are its Jacobians right, what it does not determine, how certain a solution is."""

from mslsq.diagnostics.checked_block import JacobianCheck
from mslsq.diagnostics.covariance import covariance
from mslsq.diagnostics.dense_factor import SingularCovarianceError, covariance_of_normal
from mslsq.diagnostics.evaluation import Evaluation, evaluate
from mslsq.diagnostics.explain import Explanation, explain
from mslsq.diagnostics.jacobian_check import check_jacobian
from mslsq.diagnostics.marginalized import marginalized

__all__ = [
    "Evaluation",
    "Explanation",
    "JacobianCheck",
    "SingularCovarianceError",
    "check_jacobian",
    "covariance",
    "covariance_of_normal",
    "evaluate",
    "explain",
    "marginalized",
]
