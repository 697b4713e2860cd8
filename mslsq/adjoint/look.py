"""A look at points where solves have stopped: their Hessians factored, and what these and the gradient say."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.minimum import Curvature, Evidence, NewtonStep, Point, cosines, evidence_of_a_minimum
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.solvers.solver import Solver


class Factored(NamedTuple):
    """The Hessian that the adjoint wants, and what is known of each problem with it."""

    factor: Tensor
    """Of the Hessian, or of its pseudo-inverse."""
    definite: Tensor
    residual: Tensor
    """How well systems with it are solved; where it is not definite how far an iterative solver came, else NaN."""
    evidence: Evidence
    hessian: Tensor
    """Of all columns."""


@dataclass(frozen=True, eq=False)
class Look:
    """What looks: pure functions of the point, and of its Hessian and gradient."""

    linearizer: Linearizer
    factorization: Factorization
    solver: Solver

    def found(
        self, hessian: Tensor, point: Point, gradient: Callable[..., Tensor], known: Tensor | None = None
    ) -> Factored:
        """All that is found out at once.

        Args:
            known: the gradient at the point, where it is.
        """
        linear, restricted = self.linearizer.linear_solver, self._restricted(hessian, point)
        found = self.factorization.factor(linear, restricted)
        at = point.of_free(gradient(*point[:2]) if known is None else known)
        rhs = self._right_hand_side(restricted)
        # Both at once: a sparse factor takes as long to read as to solve with.
        newton, solution = self.factorization.inverses(linear, found.factor, (at, rhs))
        residual = self.factorization.residual(linear, restricted, found, solution, rhs)
        curvature = self._curvature(restricted, found.factor, found.definite)
        step = NewtonStep(at, newton)
        evidence = evidence_of_a_minimum(self.linearizer, gradient, self.solver, point, curvature, step)
        return Factored(found.factor, found.definite, residual, evidence, hessian)

    def again(self, found: Factored, point: Point, gradient: Callable[..., Tensor], start: Values) -> Factored:
        """The same with all the evidence there is."""
        curvature = self._curvature(self._restricted(found.hessian, point), found.factor, found.definite)
        at = point.of_free(gradient(*point[:2]))
        step = NewtonStep(at, self.factorization.inverse(self.linearizer.linear_solver, found.factor, at))
        evidence = evidence_of_a_minimum(self.linearizer, gradient, self.solver, point, curvature, step, start)
        return found._replace(evidence=evidence)

    def exists(self, found: Factored) -> Tensor:
        """Which problems have a derivative, if their solves have ended at a minimum."""
        evidence = found.evidence
        return self.is_solved(found) & evidence.vanishes & evidence.smooth

    def is_fine(self, found: Factored) -> Tensor:
        """Of which problems does it exist where they stopped?"""
        return self.exists(found) & ~found.evidence.short & ~found.evidence.weak

    def is_solved(self, found: Factored) -> Tensor:
        """Of which problems are systems with the Hessian solved, as far as is known?"""
        return found.definite & found.evidence.solved & self.factorization.is_trusted(found.residual)

    def _restricted(self, hessian: Tensor, point: Point) -> Tensor:
        """The Hessian of what no bound holds."""
        return self.linearizer.linear_solver.storage.restricted(hessian, point.free[0]) if point.free else hessian

    def _curvature(self, hessian: Tensor, factor: Tensor, definite: Tensor) -> Curvature:
        linear = self.linearizer.linear_solver
        product = partial(linear.storage.product, hessian)
        inverse_form = partial(self.factorization.inverse_form, linear, factor)
        return Curvature(product, inverse_form, definite, self.factorization.hessian == "exact")

    def _right_hand_side(self, hessian: Tensor) -> Tensor:
        """One in which every unknown has a part: H u with cosines for u."""
        u = cosines(hessian.new_empty(len(hessian), self.linearizer.structure.num_columns))
        return self.linearizer.linear_solver.storage.product(hessian, u.expand(len(hessian), -1))
