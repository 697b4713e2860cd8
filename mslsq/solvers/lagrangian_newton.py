"""Newton steps on a point and its multipliers together: what the rounds of an augmented Lagrangian end with.

A round leaves a share of the violation that grows with the curvature of cost and constraints, and Gauss-Newton steps do
not see the curvature of constraints at all, which the Lagrangian has at any solution with multipliers. Newton's method
on the first-order conditions of the active constraints does: near a solution three such steps leave nothing but
rounding. They are taken after a round where they help; elsewhere the rounds go on without them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.linearize.trace import Wish
from mslsq.problem.system import Inputs
from mslsq.solvers.active_rows import active_rows, times
from mslsq.solvers.box import box_of, free_of_bounds, within
from mslsq.solvers.constraint_terms import ConstraintTerms, PerRow, chosen

STEPS = 3
"""Newton steps with one factor: the third gains what rounding leaves."""

GAIN = 0.25
"""A step is kept where it leaves at most that share of what is missing, in units of the cost."""

LARGEST = 2e7
"""Numbers in the dense Jacobian of all constraints up to which such steps are tried."""


class Point(NamedTuple):
    """Values, multipliers, and how far they are from the first-order conditions."""

    values: Values
    multipliers: dict[int, PerRow]
    gradient: Float[Tensor, "batch columns"]
    """Of the augmented Lagrangian."""
    missed: Float[Tensor, "batch rows"]
    """c, and of an inequality that holds nothing back how far its multiplier is from zero, over ρ."""


class Improvement(NamedTuple):
    """What Newton steps have brought."""

    values: Values
    multipliers: dict[int, PerRow]
    helped: Bool[Tensor, "batch"]
    """Which problems they have moved."""
    distance: Float[Tensor, "batch"]
    """From the first-order conditions, in units of the cost; infinite where the second-order ones do not hold."""

    @staticmethod
    def none(values: Values, multipliers: dict[int, PerRow], wanted: Bool[Tensor, "batch"]) -> "Improvement":
        distance = torch.full(wanted.shape, torch.inf, dtype=values[0].dtype, device=wanted.device)
        return Improvement(values, multipliers, torch.zeros_like(wanted), distance)


@dataclass(frozen=True, eq=False)
class NewtonEnd:
    """Newton steps of one problem, or a batch of them, after a round."""

    terms: ConstraintTerms
    plan: Plan
    linearizer: Linearizer
    wish: Wish
    inputs: tuple[Inputs, ...]
    penalties: Mapping[int, Float[Tensor, "batch"]]
    bounds: Inputs

    def improved(self, values: Values, multipliers: dict[int, PerRow], wanted: Bool[Tensor, "batch"]) -> "Improvement":
        """What as many steps as help make of the wanted problems; the others keep what they have."""
        given = self.terms.given(self.inputs, multipliers, self.penalties)
        prepared, plain = self.linearizer.prepare(given), self._plain(given)
        residuals = self._residuals(values, plain)
        c = self.terms.joined(residuals)
        linear = self.linearizer.linear_solver
        if c.numel() * self.linearizer.structure.num_columns > LARGEST:
            return Improvement.none(values, multipliers, wanted)
        hessian = self._derivative("hessian", values, prepared)
        every = self.plan.execution.run_eagerly(self.terms.jacobian, self.linearizer, values, plain)
        free = free_of_bounds(self.linearizer, values, self.bounds)
        for columns in free:
            hessian = linear.storage.restricted(hessian, columns)
            every = torch.where(columns[:, None], every, 0)
        factor, definite, _ = linear.definite_factor(hessian)
        _, penalty, mask = self.terms.per_row(given, residuals)
        found = active_rows(linear, factor, every, mask)
        going, helped = wanted & definite & found.regular, torch.zeros_like(wanted)
        at = self._point(values, multipliers, free)
        distance = self._distance(linear, factor, penalty, at)
        for _ in range(STEPS):
            step = -linear.solve_factored(factor, at.gradient)
            change = times(found.active.complement, torch.where(mask, at.missed, 0) + times(found.active.rows, step))
            step = step - times(found.active.solved.mT, change)
            after = self._moved(at, torch.where(going[:, None], step, 0), change, mask, free)
            left = self._distance(linear, factor, penalty, after)
            going = going & (left <= GAIN * distance)
            if self.plan.is_on_cpu and not bool(going.any()):
                break  # of another device asking takes longer than a step
            at, helped, distance = _chosen_point(going, after, at), helped | going, torch.where(going, left, distance)
        distance = torch.where(wanted & definite & found.regular, distance, torch.inf)
        return Improvement(at.values, at.multipliers, helped, distance)

    def _derivative(self, kind: Literal["gradient", "hessian"], values: Values, prepared: TermInputs) -> Tensor:
        """Gradient or Hessian of the augmented Lagrangian: native code where there is some for all terms, else a graph.
        No graph is kept that calls native code: an adjoint would differentiate it."""
        execution = self.plan.execution
        if self.linearizer.has_second_order:
            return execution.run_eagerly(getattr(self.linearizer, kind), values, prepared)
        name = kind if kind == "gradient" else "hessian of the Lagrangian"
        return execution.run(name, self.wish, getattr(self.linearizer.without_programs(), kind), values, prepared)

    def _plain(self, given: tuple[dict[str, Tensor], ...]) -> TermInputs:
        return self.linearizer.prepare(self.terms.plain(given))

    def _residuals(self, values: Values, plain: TermInputs) -> dict[int, PerRow]:
        return self.plan.execution.run_eagerly(self.terms.residuals, self.linearizer, values, plain)

    def _point(self, values: Values, multipliers: dict[int, PerRow], free: tuple[Tensor, ...]) -> Point:
        given = self.terms.given(self.inputs, multipliers, self.penalties)
        prepared = self.linearizer.prepare(given)
        gradient = self._derivative("gradient", values, prepared)
        for columns in free:
            gradient = torch.where(columns, gradient, 0)
        residuals = self._residuals(values, self._plain(given))
        missed = {}
        for number, c in residuals.items():
            slack = -multipliers[number] / self.penalties[number][:, None, None]
            missed[number] = c if number in self.terms.equalities else torch.maximum(c, slack)
        return Point(values, multipliers, gradient, self.terms.joined(missed))

    def _moved(self, at: Point, step: Tensor, change: Tensor, mask: Tensor, free: tuple[Tensor, ...]) -> Point:
        values = self.linearizer.retract(at.values, torch.nan_to_num(step))
        if self.bounds:
            values = within(self.linearizer, values, box_of(self.linearizer, values, self.bounds))
        multipliers = {}
        changes = self.terms.taken_apart(change, at.multipliers)
        masks = self.terms.taken_apart(mask, at.multipliers)
        for number, known in at.multipliers.items():
            moved = torch.where(masks[number], known + changes[number], 0)
            multipliers[number] = moved if number in self.terms.equalities else moved.clamp(min=0)
        return self._point(values, multipliers, free)

    @staticmethod
    def _distance(linear: LinearSolver, factor: Tensor, penalty: Tensor, at: Point) -> Float[Tensor, "batch"]:
        """How far a point is from the first-order conditions, in units of the cost."""
        newton = linear.solve_factored(factor, at.gradient)
        return (at.gradient * newton).sum(-1) + (penalty * at.missed**2).sum(-1)


def _chosen_point(mask: Bool[Tensor, "batch"], yes: Point, no: Point) -> Point:
    values = tuple(chosen(mask, *pair) for pair in zip(yes.values, no.values, strict=True))
    multipliers = {number: chosen(mask, yes.multipliers[number], no.multipliers[number]) for number in no.multipliers}
    return Point(values, multipliers, chosen(mask, yes.gradient, no.gradient), chosen(mask, yes.missed, no.missed))
