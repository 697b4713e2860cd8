"""Which problems of a batch have a derivative by a Hessian at their solution, and the factor that it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import unprepared
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.minimum import Curvature, Evidence, Point, evidence_of_a_minimum
from mslsq.adjoint.outputs import Ended, Prepared
from mslsq.adjoint.warning import warn_about
from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.solution import Status
from mslsq.solvers.bound_checks import is_weakly_held
from mslsq.solvers.box import distances, free_of_bounds
from mslsq.solvers.solver import Solver
from mslsq.tracing.graph import TRANSFORM_LOCK


def judged(ended: Ended, factorization: Factorization) -> Prepared:
    """The factor, which problems are differentiable, and how well systems with it are solved."""
    return Judgement.of(ended, factorization).prepared()


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
class Judgement:
    """The end of a solve, looked at for derivatives by a Hessian."""

    ended: Ended
    factorization: Factorization
    plan: Plan
    linearizer: Linearizer
    plain: Linearizer
    """Without native programs: its graphs of cost and gradient are differentiated later."""
    point: Point
    """Where every problem stopped."""

    @staticmethod
    def of(ended: Ended, factorization: Factorization) -> "Judgement":
        outcome = ended.outcome
        plan, linearizer, inputs = outcome.planned
        free = free_of_bounds(linearizer, outcome.values, ended.bounds)
        free = (*free, *distances(linearizer, outcome.values, ended.bounds)) if free else ()
        point = Point(outcome.values, inputs, outcome.matrix, outcome.cost, free)
        return Judgement(ended, factorization, plan, linearizer, linearizer.without_programs(), point)

    @property
    def linear(self) -> LinearSolver:
        return self.linearizer.linear_solver

    @property
    def solver(self) -> Solver:
        return self.ended.task.solver

    def prepared(self) -> Prepared:
        converged = unprepared(self.ended).differentiable
        stopped = converged | (self.ended.outcome.status == Status.STALLED)
        recorded = self.factorization.can_be_recorded(self.linear)
        with torch.no_grad(), TRANSFORM_LOCK:
            found = self._factored(recorded)
            fails = stopped & found.definite & ~(found.evidence.vanishes & found.evidence.smooth)
            if self.linearizer.ranks.any(bool(fails.any()))[0]:
                found = self._looked_at_again(found)
            weak = self._is_weakly_held(found)
        solved = found.definite & found.evidence.solved & self.factorization.is_trusted(found.residual)
        exists = solved & found.evidence.vanishes & found.evidence.smooth
        # Tolerances below what the dtype resolves end in STALLED; at a minimum that is as good as converged.
        usable = exists & stopped if weak is None else exists & stopped & ~weak
        # A solve that ends at a kink has stalled: no step goes further, and the gradient does not vanish.
        asked = converged | (stopped & solved & ~found.evidence.smooth)
        if bool((asked & ~usable).any()):
            warn_about(asked, solved, found.definite, found.residual, found.evidence, found.hessian, weak)
        return Prepared(usable, found.residual, found.factor)

    def _factored(self, recorded: bool) -> Factored:
        """Factors of all Hessians, and what they and the gradient say; `recorded` with a graph of all that."""
        execution, wish, point = self.plan.execution, self.solver.execution, self.point
        gradient = self._gradient()
        name, hessian = self._hessian()

        def whole(*at: Any) -> Factored:
            within = self.linearizer.gradient if self._is_native else self.plain.gradient
            return self._found(hessian(*at[:3]), _point(at), within)

        if recorded:
            name = f"factored {name}, ftol {self.solver.ftol}, xtol {self.solver.xtol}"
            return execution.run(name, wish, whole, *point[:4], *point.free, compiled="small")
        matrix = execution.run(name, wish, hessian, *point[:3], compiled="small")
        return self._found(matrix, point, gradient)

    def _found(self, hessian: Tensor, point: Point, gradient: Callable[..., Tensor]) -> Factored:
        restricted = self._restricted(hessian, point)
        found = self.factorization.factor(self.linear, restricted)
        residual = self.factorization.residual(self.linear, restricted, found, self._right_hand_side(restricted))
        curvature = self._curvature(restricted, found.factor, found.definite)
        evidence = evidence_of_a_minimum(self.linearizer, gradient, self.solver, point, curvature)
        return Factored(found.factor, found.definite, residual, evidence, hessian)

    def _looked_at_again(self, found: Factored) -> Factored:
        """The same with all the evidence there is: some problem would have no derivative."""
        curvature = self._curvature(self._restricted(found.hessian, self.point), found.factor, found.definite)
        evidence = evidence_of_a_minimum(
            self.linearizer, self._gradient(), self.solver, self.point, curvature, self.ended.start
        )
        return found._replace(evidence=evidence)

    def _restricted(self, hessian: Tensor, point: Point) -> Tensor:
        """The Hessian of what no bound holds."""
        return self.linear.storage.restricted(hessian, point.free[0]) if point.free else hessian

    def _is_weakly_held(self, found: Factored) -> Tensor | None:
        """Per problem: could rounding, or the least change of the data, set another variable on its bound or free one?
        None where there are no bounds."""
        if not self.point.free:
            return None
        values, inputs, cost = self.point.values, self.point.inputs, self.point.cost
        gradient = self._gradient()(values, inputs)
        diagonal = self.linear.storage.diagonal_of_hessian(found.hessian)
        start_cost = self.ended.outcome.history.cost[:, 0]
        weak = is_weakly_held(self.linearizer, values, self.ended.bounds, gradient, diagonal, cost, start_cost)
        return weak | found.evidence.by_a_bound

    def _gradient(self) -> Callable[..., Tensor]:
        """The gradient, from native code or its graph where there is one."""
        if self._is_native:
            return self.linearizer.gradient
        wish, at = self.solver.execution, (self.point.values, self.point.inputs)
        graph = self.plan.execution.graph("gradient", wish, self.plain.gradient, *at)
        return self.plain.gradient if graph is None else graph

    @property
    def _is_native(self) -> bool:
        return self.linearizer.has_second_order

    def _curvature(self, hessian: Tensor, factor: Tensor, definite: Tensor) -> Curvature:
        product = partial(self.linear.storage.product, hessian)
        inverse = partial(self.factorization.inverse, self.linear, factor)
        return Curvature(product, inverse, definite, 0.5 if self.factorization.hessian == "exact" else 1.0)

    def _right_hand_side(self, hessian: Tensor) -> Tensor:
        """One in which every unknown has a part: H u with cosines for u."""
        columns = self.linearizer.structure.num_columns
        u = torch.arange(1.0, columns + 1, dtype=hessian.dtype, device=hessian.device).cos()
        return self.linear.storage.product(hessian, u.expand(len(hessian), -1))

    def _hessian(self) -> tuple[str, Callable[[Values, TermInputs, Tensor], Tensor]]:
        """The Hessian that the adjoint wants: its name, and a function of values, inputs and the matrix of the last
        linearization. Where the normal equations that the solve has left of its last point are a part of it they are
        taken: a third of the work for 1024 fits."""
        kind, linearizer = self.factorization.hessian, self.plain
        if kind == "gauss_newton" and self.linear.storage.is_normal:
            return "normal equations", lambda values, inputs, normal: normal
        if self._is_native:
            # A graph that calls programs is of those: they go when better ones come.
            numbers = [block.second.hessian.number for block in self.linearizer.blocks if block.second is not None]
            return f"native hessian {numbers}, {kind}", lambda values, inputs, normal: self.linearizer.hessian(
                values, inputs, exact=kind == "exact"
            )
        if linearizer.normal_equations_are_exact:
            return "curvature", linearizer.curvature
        return f"hessian, {kind}", lambda values, inputs, normal: linearizer.hessian(
            values, inputs, exact=kind == "exact"
        )


def _point(tensors: tuple[Any, ...]) -> Point:
    """From the arguments of a graph: what is free comes one by one."""
    return Point(*tensors[:4], free=tensors[4:])
