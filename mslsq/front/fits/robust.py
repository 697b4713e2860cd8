"""A fit by graduated non-convexity: which fits it is for, and the fit of the points that are not rejected."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.front.graduated import RESIDUAL
from mslsq.front.measurements import Points
from mslsq.losses import GemanMcClure, RobustLoss
from mslsq.private import is_wrapped
from mslsq.problem.errors import ProblemError
from mslsq.solution import Solution
from mslsq.solvers import GraduatedNonConvexity


def check_robust(solver: Any, points: Points, sigma: str, others: dict[str, bool]) -> None:
    """A sentence for a fit in which a rejected entry of the residual is not a rejected point.

    Args:
        sigma: how the errors of y were given.
        others: what else was asked for that this solver does not go with, and whether it was.
    """
    if not isinstance(solver, GraduatedNonConvexity):
        return
    if sigma == "matrix":
        others = {**others, "a covariance matrix as sigma, which mixes the points": True}
    for what, is_given in others.items():
        if is_given:
            raise ProblemError(
                f"curve_fit: solver=GraduatedNonConvexity(...) rejects single points, not with {what}. Leave "
                "one of the two out, or pass loss=mslsq.Cauchy(scale) instead where a loss is possible."
            )
    scale = solver.scale
    if scale is None:
        if is_wrapped(points.used) or not bool(points.used.all()):
            raise ProblemError(
                "curve_fit: GraduatedNonConvexity without a scale estimates it from the median of the residuals, in "
                "which points that do not count (mask, NaN) would be zeros. Pass scale=, in units of sigma."
            )
        if solver.loss == "geman_mcclure":
            raise ProblemError(
                "curve_fit: the covariance with GraduatedNonConvexity(loss='geman_mcclure') needs its scale. Pass "
                "scale=, in units of sigma, or take loss='truncated'."
            )
    elif solver.loss == "geman_mcclure" and isinstance(scale, Tensor) and scale.ndim:
        raise ProblemError(
            f"curve_fit: GraduatedNonConvexity(loss='geman_mcclure') takes one scale here, not a tensor of shape "
            f"{tuple(scale.shape)}: scale sigma of each fit instead, or take loss='truncated'."
        )


def loss_of(solver: Any, loss: RobustLoss | None) -> RobustLoss | None:
    """The loss whose minimum was found, where every point has a weight."""
    if isinstance(solver, GraduatedNonConvexity) and solver.loss == "geman_mcclure":
        assert isinstance(solver.scale, (int, float, Tensor))  # it was checked
        return GemanMcClure(solver.scale)
    return loss


def of_inliers(
    solver: Any,
    solution: Solution,
    r: Float[Tensor, "batch points"],
    jacobian: Float[Tensor, "batch points n"],
    points: Points,
) -> tuple[Solution, Tensor, Tensor, Points]:
    """The same as the fit of the points that were not rejected: the others do not count, as if they were masked."""
    if not isinstance(solver, GraduatedNonConvexity) or solver.loss != "truncated":
        return solution, r, jacobian, points
    accepted = solution.weights[RESIDUAL] > 0
    of_rows = accepted.reshape(r.shape)
    r, jacobian = torch.where(of_rows, r, 0), torch.where(of_rows[..., None], jacobian, 0)
    cost = (0.5 * r.square().sum(-1)).reshape(solution.cost.shape)
    points = points._replace(used=points.used & accepted.reshape(points.used.shape))
    return replace(solution, cost=cost), r, jacobian, points
