"""How far constraints are from being met, how much they are to count at first, and whether they can be met at all."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.problem.system import Inputs
from mslsq.solvers.box import free_of_bounds
from mslsq.solvers.constraint_terms import ConstraintTerms, PerRow, without_constraints

FIRST_PENALTY = 1.0
"""How much longer than those of the costs the squared columns of a constraint are at the start, in the median. Of 0.1,
1, 10 and 100 it takes the fewest steps on the half of Hock and Schittkowski's problems that it was chosen on."""

STATIONARY = 1e-3
"""The violation is at a minimum where its gradient is that short against the lengths of the columns (a cosine)."""


def largest_violation(terms: ConstraintTerms, residuals: Mapping[int, PerRow]) -> Float[Tensor, "batch"]:
    """Of all constraints of each problem, in the units of their residuals."""
    missed = [
        (c.abs() if number in terms.equalities else c.clamp(min=0)).amax((1, 2)) for number, c in residuals.items()
    ]
    return torch.stack(missed).amax(0)


def first_penalties(
    terms: ConstraintTerms, linearizer: Linearizer, values: Values, prepared: TermInputs, plain: TermInputs
) -> dict[int, Float[Tensor, "batch"]]:
    """Penalties by which constraints count as much as the costs do, in the columns that they share.

    Args:
        prepared, plain: the inputs, and those with which the residuals of constraints are the user's.
    """
    found, like = {}, values[0][:, 0, 0]
    costs, of_costs = without_constraints(linearizer, prepared)
    lengths = like.new_zeros(len(like), linearizer.structure.num_columns)
    if costs.assemblies:
        lengths = linearizer.linear_solver.storage.diagonal(costs.linearize(values, of_costs).matrix)
    for number in terms.names:
        _, jacobian = linearizer.blocks[number].linearizations(values, plain[number])
        own = linearizer.assemblies[number].placed_vector((jacobian * jacobian).sum(1))
        shared = (own > 0) & (lengths > 0)
        ratio = torch.where(shared, lengths / torch.where(own > 0, own, 1), torch.nan).nanmedian(1).values
        # Where no column is shared the penalty's size has no measure but the constraint's own.
        alone = 1 / torch.where(own > 0, own, torch.nan).nanmedian(1).values
        ratio = torch.where(torch.isfinite(ratio), ratio, torch.where(torch.isfinite(alone), alone, 1))
        found[number] = FIRST_PENALTY * ratio
    return found


def is_stationary(
    terms: ConstraintTerms,
    linearizer: Linearizer,
    values: Values,
    plain: TermInputs,
    penalties: Mapping[int, Tensor],
    bounds: Inputs,
) -> Bool[Tensor, "batch"]:
    """Is the violation ½Σρc² of the constraints at a minimum, as far as its gradient can tell?"""
    gradients, lengths, sizes = [], [], []
    for number in terms.names:
        block, assembly = linearizer.blocks[number], linearizer.assemblies[number]
        residual, jacobian = block.linearizations(values, plain[number])
        missed = residual if number in terms.equalities else residual.clamp(min=0)
        counted = jacobian * (missed != 0)[:, :, None]
        penalty = penalties[number]
        gradients.append(penalty[:, None] * assembly.placed_vector(block.way.layout.pulled(jacobian, missed)))
        lengths.append(penalty[:, None] * assembly.placed_vector((counted * counted).sum(1)))
        sizes.append(penalty * block.summed(missed * missed))
    gradient, length, size = (torch.stack(parts).sum(0) for parts in (gradients, lengths, sizes))
    for free in free_of_bounds(linearizer, values, bounds):
        gradient = torch.where(free, gradient, 0)
    return (gradient.abs() <= STATIONARY * (length * size[:, None]).sqrt()).all(1)
