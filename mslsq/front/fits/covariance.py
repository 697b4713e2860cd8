"""The covariance of a fit from its Jacobian, and a warning where there is none."""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq import pytree
from mslsq.front.fits.fitted import One
from mslsq.losses import RobustLoss
from mslsq.private import is_wrapped
from mslsq.solution import Solution


class CovarianceWarning(UserWarning):
    """The covariance of a fit could not be estimated: its entries are infinite."""


def on_bounds(solution: Solution, size: int, count: int, device: torch.device) -> Bool[Tensor, "batch n"]:
    """Which parameters are on their bounds."""
    leaves = pytree.leaves(solution.active)
    if not leaves:
        return torch.zeros(size, count, dtype=torch.bool, device=device)
    return torch.cat([leaf.reshape(size, -1) for leaf in leaves], 1) != 0


def covariance_of_one(
    jacobian: Float[Tensor, "rows n"],
    r: Float[Tensor, "residuals"],
    used: Tensor,
    held: Bool[Tensor, "n"],
    absolute_sigma: bool,
    loss: RobustLoss | None,
) -> Float[Tensor, "n n"]:
    """(JᵀJ)⁻¹ of one fit, times the reduced chi-square unless sigma is absolute; infinite where there is none. What a
    bound holds is known: its rows and columns are zero."""
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


def _triangle(matrix: Float[Tensor, "rows n"]) -> Float[Tensor, "n n"]:
    """R of QR: squares no condition number."""
    return torch.linalg.qr(matrix, mode="reduced").R


def warn_where_infinite(tensors: One, nan_is_known: bool) -> None:
    """Say which fits have no covariance, where values can be looked at; `nan_is_known`: not those that are NaN."""
    covariance = tensors.covariance
    if is_wrapped(covariance):
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
