"""Diagnostics: are the Jacobians right, what does a problem not determine, how certain is a solution."""

from mslsq.diagnostics.checked_block import JacobianCheck
from mslsq.diagnostics.covariance import covariance
from mslsq.diagnostics.dense_factor import SingularCovarianceError
from mslsq.diagnostics.explain import Explanation, explain
from mslsq.diagnostics.jacobian_check import check_jacobian

__all__ = ["Explanation", "JacobianCheck", "SingularCovarianceError", "check_jacobian", "covariance", "explain"]
