"""The covariance of a fit from its Jacobian, and a warning where there is none."""

import math
import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from mslsq import pytree
from mslsq.front.fits.fitted import One
from mslsq.losses import RobustLoss
from mslsq.private import is_wrapped
from mslsq.solution import Solution

Array = NDArray[Any]


class CovarianceWarning(UserWarning):
    """The covariance of a fit could not be estimated: its entries are infinite."""


def on_bounds(solution: Solution, size: int) -> Bool[Tensor, "batch n"] | None:
    """Which parameters are on their bounds; None where there are none."""
    leaves = pytree.leaves(solution.active)
    if not leaves:
        return None
    return torch.cat([leaf.reshape(size, -1) for leaf in leaves], 1) != 0


def covariance_of_one(
    jacobian: Float[Tensor, "rows n"],
    r: Float[Tensor, "residuals"],
    used: Tensor,
    held: Bool[Tensor, "n"] | None,
    absolute_sigma: bool,
    loss: RobustLoss | None,
) -> Float[Tensor, "n n"]:
    """(JᵀJ)⁻¹ of one fit, times the reduced chi-square unless sigma is absolute; infinite where there is none. What a
    bound holds (None: nothing) is known: its rows and columns are zero."""
    if held is None:
        if loss is None and _are_plain(jacobian, r, used):
            with np.errstate(all="ignore"):
                return torch.from_numpy(_of_arrays(jacobian.numpy(), r.numpy(), used.numpy(), absolute_sigma))
        held = torch.zeros(jacobian.shape[1], dtype=torch.bool, device=r.device)
    squared = r * r
    jacobian = torch.where(held, 0, jacobian)
    if loss is not None:
        rho, slope, curvature = loss.derivatives(squared)
        scale = (slope + 2 * curvature * squared).clamp(min=torch.finfo(r.dtype).eps).sqrt()
        jacobian, squared = scale[:, None] * jacobian, rho
    # Columns brought to length one, so that the rank does not depend on the units of the parameters.
    length = torch.linalg.vector_norm(jacobian, dim=0)
    finite = torch.isfinite(length).all()
    positive = (length > 0) | held
    length = torch.where(held, torch.ones_like(length), length)
    unit = jacobian / torch.where(positive, length, torch.ones_like(length))
    unit = torch.where(finite, unit, torch.zeros_like(unit))
    n = jacobian.shape[1]
    eye = torch.eye(n, dtype=r.dtype, device=r.device)
    unit = torch.cat((unit, torch.where(held, eye, 0)))  # a row for each that is held makes it a system of its own
    rows = len(jacobian)
    if rows < n:
        unit = torch.nn.functional.pad(unit, (0, 0, 0, n - rows))
    triangle = _triangle(unit)
    pivots = triangle.diagonal().abs()
    regular = finite & positive.all() & (pivots > max(rows, n) * torch.finfo(r.dtype).eps).all()
    inverse = torch.linalg.solve_triangular(torch.where(regular, triangle, eye), eye, upper=True)
    inverse = inverse / torch.where(positive, length, torch.ones_like(length))[:, None]
    covariance = inverse @ inverse.mT
    if not absolute_sigma:
        freedom = used.sum() - n
        covariance = covariance * (squared.sum() / freedom.clamp(min=1))
        regular = regular & (freedom > 0)
    covariance = torch.where(held[:, None] | held, 0, covariance)
    covariance = torch.where(regular, covariance, torch.full_like(covariance, torch.inf))
    return torch.where(finite, covariance, torch.full_like(covariance, torch.nan))


def _are_plain(*tensors: Tensor) -> bool:
    """Can NumPy read them, and is nothing differentiated that comes of them?"""
    is_differentiated = torch.is_grad_enabled()
    return all(
        x.is_cpu and type(x) is Tensor and not is_wrapped(x) and not (is_differentiated and x.requires_grad)
        for x in tensors
    )


def _of_arrays(jacobian: Array, r: Array, used: Array, absolute_sigma: bool) -> Array:
    """The same by NumPy, of which a small operation takes a third of the time: 20 µs of a fit of three parameters
    instead of 150."""
    rows, n = jacobian.shape
    nothing = np.full((n, n), np.inf, jacobian.dtype)
    length = np.sqrt(np.einsum("ij,ij->j", jacobian, jacobian))
    if not np.isfinite(length).all():
        return np.full_like(nothing, np.nan)
    freedom = int(np.count_nonzero(used)) - n
    if rows < n or not (length > 0).all() or (freedom <= 0 and not absolute_sigma):
        return nothing
    triangle: Array = np.linalg.qr(jacobian / length, mode="r")  # pyright: ignore[reportAssignmentType]
    if not (np.abs(triangle.diagonal()) > rows * np.finfo(r.dtype).eps).all():
        return nothing
    inverse = np.linalg.inv(triangle) / length[:, None]  # of a triangle that is the substitution alone: no pivot moves
    covariance = inverse @ inverse.T
    return covariance if absolute_sigma else covariance * r.dtype.type(np.dot(r, r) / freedom)


LOST = 1e-10
"""What rounding may do to a covariance, relative to it, that comes from JᵀJ and not from J."""


def of_normal_equations(matrix: Array, chi_square: float, freedom: int, absolute_sigma: bool) -> Array | None:
    """The same from JᵀJ, which a solve has at its end: ten operations of NumPy and no evaluation of the model. None
    where more is lost than `LOST`, since JᵀJ has the square of J's condition number."""
    if freedom <= 0:
        return None
    scale = 1 if absolute_sigma else chi_square / freedom
    with np.errstate(all="ignore"):
        length = np.sqrt(matrix.diagonal())
        lengths = length[:, None] * length
        try:
            inverse = np.linalg.inv(matrix / lengths)
        except np.linalg.LinAlgError:
            return None
        # Of a matrix with ones on its diagonal, whose own norm is not larger than n.
        condition = len(matrix) * math.sqrt(np.vdot(inverse, inverse))
        if not condition * np.finfo(matrix.dtype).eps < LOST:  # NaN is not
            return None
        return (inverse + inverse.T) * (matrix.dtype.type(scale / 2) / lengths)


def _triangle(matrix: Float[Tensor, "rows n"]) -> Float[Tensor, "n n"]:
    """R of QR: squares no condition number."""
    return torch.linalg.qr(matrix, mode="reduced").R


def warn_where_infinite(tensors: One, nan_is_known: bool) -> None:
    """Say which fits have no covariance, where values can be looked at; `nan_is_known`: not those that are NaN."""
    covariance = tensors.covariance
    if is_wrapped(covariance) or math.isfinite(covariance.sum().item()):
        return
    failed = ~torch.isfinite(covariance).all(-1).all(-1)
    if nan_is_known:
        failed = failed & ~torch.isnan(tensors.free).any(-1)
    if not bool(failed.any()):
        return
    which = "the fit" if failed.ndim == 0 else f"{int(failed.sum())} of {failed.numel()} fits"
    warnings.warn(
        f"The covariance of {which} could not be estimated: the data do not determine all parameters, or there are "
        "not more points than parameters, or the residual is not finite. Its entries are inf or NaN.",
        CovarianceWarning,
        stacklevel=4,
    )
