"""Derivatives of a minimum under constraints: chord steps on the point and the multipliers together.

At a solution the gradient of the Lagrangian and the active constraints vanish: F₁(x, λ, d) = ∇ₓL = 0, F₂(x, d) = c = 0.
With K = ∇²L + ρAᵀA over the active rows A, which is positive definite under the second-order sufficient condition for
a penalty ρ large enough, and which is the Hessian of the augmented Lagrangian that the solve has minimised, a Newton
step on both is

    A K⁻¹ Aᵀ Δλ = F₂ − A K⁻¹ F₁,    Δx = −K⁻¹ (F₁ + Aᵀ Δλ).

The rows of inequalities that hold nothing back are left out. Where the active rows depend on each other, or an
inequality is active without a multiplier that tells, the solution is no differentiable function of the data.

Source: A. V. Fiacco, "Introduction to Sensitivity and Stability Analysis in Nonlinear Programming" (1983).
"""

import warnings
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.adjoint.adjoint import AdjointOptionError
from mslsq.adjoint.factor import Factorization, PseudoInverse
from mslsq.adjoint.outputs import Attached, Ended, Prepared
from mslsq.adjoint.warning import NotDifferentiableWarning
from mslsq.levels import constant
from mslsq.linearize.blocks import Values
from mslsq.problem.system import ROOT, SHIFT
from mslsq.solvers.active_rows import ActiveRows, active_rows, times
from mslsq.solvers.box import free_of_bounds
from mslsq.solvers.constraint_terms import ConstraintTerms, without_constraints
from mslsq.solvers.multiplier_rounds import MultiplierRounds
from mslsq.solvers.task import Task
from mslsq.tracing.graph import TRANSFORM_LOCK

if TYPE_CHECKING:
    from mslsq.adjoint.attachment import Attachment

WEAK = 10.0
"""A constraint is weakly active where its multiplier is below that many times √ε of what the cost resolves."""

LARGEST = 2e8
"""Numbers in A, which is dense here: 1.6 GB in float64."""


def constraints_of(task: Task) -> ConstraintTerms | None:
    """The constraints of the problem that a task solves; None without some."""
    outer = task.outer
    return outer.terms if isinstance(outer, MultiplierRounds) else None


def with_constraints(ended: Ended, prepared: Prepared, factorization: Factorization) -> Prepared:
    """What is prepared for the derivatives of a solve, with its constraints, if it has some.

    Raises:
        AdjointOptionError: there are too many.
    """
    terms = constraints_of(ended.task)
    if terms is None:
        return prepared
    if isinstance(factorization, PseudoInverse):
        raise AdjointOptionError(
            "Implicit(gauge='minimum_norm') does not take constraints: fix the gauge, by a prior or fixed blocks."
        )
    with torch.no_grad(), TRANSFORM_LOCK:
        active, regular, strict = _active(ended, terms, prepared)
    lost = prepared.differentiable & ~(regular & strict)
    if bool(lost.any()):
        _warn(lost, prepared.differentiable & ~regular)
    return prepared._replace(differentiable=prepared.differentiable & ~lost, constraints=active)


def _active(
    ended: Ended, terms: ConstraintTerms, prepared: Prepared
) -> tuple[ActiveRows, Bool[Tensor, "batch"], Bool[Tensor, "batch"]]:
    """The active constraints of every problem, whether they are independent, and whether it is plain which they are."""
    outcome, given = ended.outcome, ended.given
    _, linearizer, _ = outcome.planned
    plain = linearizer.prepare(terms.plain(given))
    residuals = terms.residuals(linearizer, outcome.values, plain)
    c, columns = terms.joined(residuals), linearizer.structure.num_columns
    if c.numel() * columns > LARGEST:
        raise AdjointOptionError(
            f"{c.shape[1]} constraints of {columns} unknowns are too many for derivatives: their Jacobian is stored "
            "densely for them. Solve with adjoint=mslsq.Detached(), or with fewer constraints."
        )
    shift, penalty, mask = terms.per_row(given, residuals)
    every = terms.jacobian(linearizer, outcome.values, plain)
    for free in free_of_bounds(linearizer, outcome.values, ended.bounds):
        every = torch.where(free[:, None], every, 0)
    found = active_rows(linearizer.linear_solver, prepared.factor, every, mask)
    inequality = ~terms.of_equalities(residuals)
    strict = _is_strict(ended, found.own, inequality, c, shift, penalty, mask)
    return found.active, found.regular, strict


def _is_strict(
    ended: Ended,
    own: Tensor,
    inequality: Tensor,
    c: Tensor,
    shift: Tensor,
    penalty: Tensor,
    mask: Tensor,
) -> Bool[Tensor, "batch"]:
    """Is it plain of every inequality whether it holds something back?

    Measured as for bounds: by the force that moves a cost by a share ε of itself, with ten times of room. 1/(aK⁻¹aᵀ) is
    the curvature of the cost along a constraint, and ρ more where that is active.
    """
    outcome, eps = ended.outcome, torch.finfo(c.dtype).eps
    _, linearizer, _ = outcome.planned
    stiffness = torch.where(own > 0, 1 / torch.where(own > 0, own, 1), 0)
    curvature = torch.where(mask, (stiffness - penalty).clamp(min=0) + eps * penalty, stiffness)
    costs, of_costs = without_constraints(linearizer, linearizer.prepare(ended.given))
    level = costs.cost(outcome.values, of_costs) if costs.assemblies else torch.zeros_like(outcome.cost)
    level = (level + eps * outcome.history.start_cost)[:, None]
    told = WEAK * eps**0.5 * (curvature * level).sqrt()
    weak = torch.where(mask, penalty * (shift + c).clamp(min=0) <= told, -c * curvature <= told)
    # What the tolerance of the constraints leaves undecided is not decided either.
    missed = torch.where(inequality, c, 0).clamp(min=0).amax(-1, keepdim=True)
    return ~(inequality & (weak | ((shift + c).abs() <= WEAK * missed))).any(-1)


def _warn(lost: Bool[Tensor, "batch"], dependent: Bool[Tensor, "batch"]) -> None:
    count, total = int(lost.sum()), len(lost)
    which = "The solution" if total == 1 else f"{count} solution{'s' * (count > 1)} of {total}"
    why = (
        "active constraints that depend on each other: their multipliers are not determined. Leave out those that say "
        "the same."
        if bool(dependent.any())
        else "an inequality that is just met and holds nothing back (its multiplier is zero): the least change of the "
        "data may free it or make it active."
    )
    warnings.warn(f"{which} has no derivative: it has {why}", NotDifferentiableWarning, stacklevel=5)


# ---- chord steps


def constrained_chord_steps(
    attachment: "Attachment",
    factorization: Factorization,
    order: int,
    values: Values,
    inputs: tuple[dict[str, Tensor], ...],
) -> Attached:
    """`order` steps on the solution and its multipliers, differentiable; `inputs` as `Attachment.guarded`."""
    linearizer, answer = attachment.linearizer, attachment.answer
    terms, active = constraints_of(attachment.call.task), answer.constraints
    assert terms is not None and active  # where they are asked for
    plain = linearizer.prepare(terms.plain(inputs))
    like = {number: answer.multipliers[name] for number, name in terms.names.items()}
    found, moved = torch.zeros_like(terms.joined(like)), inputs
    failed = None if attachment.nothing_failed else attachment.failed[:, None]
    for _ in range(order):
        gradient = attachment.of_free(attachment.gradient(values, linearizer.prepare(moved)))
        missed = terms.joined(terms.residuals(linearizer, values, plain))
        missed = torch.where(active.mask, missed - constant(missed), 0)
        if failed is not None:
            gradient, missed = torch.where(failed, 0, gradient), torch.where(failed, 0, missed)
        step = -factorization.inverse(linearizer.linear_solver, answer.factor, gradient)
        multiplier = times(active.complement, missed + times(active.rows, step))
        step = step - times(active.solved.mT, multiplier)
        values = linearizer.retract(values, step - constant(step))
        found = found + (multiplier - constant(multiplier))
        moved = _shifted(terms, inputs, terms.taken_apart(found, like))
    costs, of_costs = without_constraints(linearizer, linearizer.prepare(inputs))
    cost = costs.cost(values, of_costs) if costs.assemblies else torch.zeros_like(answer.cost)
    changes = terms.taken_apart(found, like)
    multipliers = {name: like[number] + changes[number] for number, name in terms.names.items()}
    return Attached(values, cost, multipliers)


def _shifted(
    terms: ConstraintTerms, inputs: tuple[dict[str, Tensor], ...], changes: dict[int, Tensor]
) -> tuple[dict[str, Tensor], ...]:
    """The inputs with other multipliers."""
    moved = [dict(given) for given in inputs]
    for number in terms.names:
        penalty = inputs[number][ROOT] ** 2
        moved[number][SHIFT] = inputs[number][SHIFT] + changes[number] / penalty[:, None, None]
    return tuple(moved)
