"""The covariance of an estimate under constraints: that of the directions which the active ones leave free.

With the active rows A of the constraints' Jacobian, and Z a basis of their null space, an estimate moves within Z
alone, and its covariance is Z (Zᵀ JᵀJ Z)⁻¹ Zᵀ. No basis is formed: with K = JᵀJ + AᵀA = LLᵀ (rows of A brought to the
length of the columns of J) and W = L⁻¹Aᵀ it is L⁻ᵀ (I − P) L⁻¹, P the projection on the range of W. K is regular where
the costs and the active constraints together determine all variables; rows that depend on each other are one there.

On the null space method see Å. Björck, "Numerical Methods for Least Squares Problems" (1996), chapter 5.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.diagnostics.located import Located, machine_epsilon
from mslsq.problem.errors import ProblemError
from mslsq.solution import Solution
from mslsq.solvers.constraint_terms import Rows

WEAK = 10.0
"""An inequality holds something back where its multiplier is above that many times √ε of what the cost resolves."""

LARGEST = 10**8
"""Numbers in the dense matrices, of all problems together: 0.8 GB in float64."""


def check_size(point: Located) -> None:
    """A sentence where dense matrices would be too large."""
    batch, columns = len(point.stated.values[0]), point.structure.num_columns
    if batch * columns**2 > LARGEST:
        raise ProblemError(
            f"covariance: a problem with constraints is factorised densely here, and {batch} × {columns} × {columns} "
            "numbers are too many. Ask for fewer problems of the batch at a time, or put what you need of the "
            "constraints into costs with a large weight."
        )


def active_jacobian(
    point: Located, solution: Solution | None, matrix: Float[Tensor, "batch n n"]
) -> Float[Tensor, "batch rows n"]:
    """A, with rows of zeros for the inequalities that hold nothing back.

    Args:
        solution: with the multipliers; None where all constraints are equalities.
        matrix: JᵀJ.
    """
    constraints = point.constraints
    assert constraints is not None  # this is asked for with some
    terms, linearizer, plain = constraints
    every = terms.jacobian(linearizer, point.stated.values, plain)
    residuals = terms.residuals(linearizer, point.stated.values, plain)
    equality = terms.of_equalities(residuals)
    if bool(equality.all()):
        return every
    if solution is None or not solution.multipliers:
        raise ProblemError(
            "covariance: which inequalities are active is told by their multipliers. Pass the Solution that "
            "mslsq.solve returned for this problem, not values alone."
        )
    given = {
        number: solution.multipliers[name].reshape(residuals[number].shape) for number, name in terms.names.items()
    }
    multipliers = terms.joined(given).detach()
    cost = solution.cost.detach().reshape(-1)
    return torch.where((equality | _holds_back(every, multipliers, matrix, cost))[..., None], every, 0)


def _holds_back(every: Tensor, multipliers: Rows, matrix: Tensor, cost: Tensor) -> Bool[Tensor, "batch rows"]:
    """Is the multiplier more than rounding? Measured by the force that moves a cost by a share ε of itself, where the
    curvature along a row a of the constraints is at most aJᵀJaᵀ/|a|⁴."""
    length = (every * every).sum(-1)
    curvature = ((every @ matrix) * every).sum(-1) / torch.where(length > 0, length, 1) ** 2
    told = WEAK * machine_epsilon(every) ** 0.5 * (curvature * cost[:, None]).clamp(min=0).sqrt()
    return multipliers > told


def penalized(
    matrix: Float[Tensor, "batch n n"], rows: Float[Tensor, "batch rows n"]
) -> tuple[Float[Tensor, "batch n n"], Float[Tensor, "batch rows n"]]:
    """K, and the rows as long as the columns of J."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(diagonal > 0, diagonal, 1)
    length = (rows * rows / scale[:, None]).sum(-1, keepdim=True)
    rows = rows / torch.where(length > 0, length, 1).sqrt()
    return matrix + rows.mT @ rows, rows


def projected_inverse(
    factor: Float[Tensor, "batch n n"], rows: Float[Tensor, "batch rows n"]
) -> Float[Tensor, "batch n n"]:
    """L⁻ᵀ (I − P) L⁻¹, from the lower factor of K and the rows, both in the same units."""
    eye = torch.eye(factor.shape[-1], device="cpu").to(factor).expand_as(factor)
    half = torch.linalg.solve_triangular(factor, eye, upper=False)
    basis, lengths, _ = torch.linalg.svd(half @ rows.mT, full_matrices=False)
    least = 1e4 * machine_epsilon(factor) * max(rows.shape[-2:])
    basis = torch.where((lengths > least)[:, None], basis, 0)
    half = half - basis @ (basis.mT @ half)
    return half.mT @ half
