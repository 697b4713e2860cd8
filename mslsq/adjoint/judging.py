"""Which problems of a batch have a derivative by a Hessian at their solution, and the factor that it takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import unprepared
from mslsq.adjoint.around_programs import (
    CURVATURE,
    graph_around,
    hessian_name,
    hessian_of_python,
    look_name,
    may_be_around,
)
from mslsq.adjoint.ends import look_of
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.look import Factored, Look
from mslsq.adjoint.minimum import Point, in_every_direction, shaken
from mslsq.adjoint.outputs import Ended, Prepared
from mslsq.adjoint.warning import warn_about
from mslsq.linear import LinearSolver
from mslsq.linear.dense import LEAST_PIVOT
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.locating import said_of_precision
from mslsq.linearize.plan import Plan
from mslsq.solution import Status
from mslsq.solvers.bound_checks import is_weakly_held
from mslsq.solvers.box import box_of, distances, free_of_bounds, with_projected_gradient
from mslsq.solvers.run import Outcome
from mslsq.solvers.solver import Solver
from mslsq.solvers.verdict import LEVEL
from mslsq.tracing.graph import TRANSFORM_LOCK

NEWTON_STEPS = 3
"""That a problem is moved at most: each squares what is left of the gradient."""

SAME = 0.1
"""How much of itself the weakest curvature may change between two points that are both the minimum to rounding."""


def judged(ended: Ended, factorization: Factorization, moves: bool = False) -> Prepared:
    """The factor, which problems are differentiable, and how well systems with it are solved.

    Args:
        moves: may problems that have stopped just short of their minimum be moved there?
    """
    judgement = Judgement.of(ended, factorization)
    # Outer loops have found out more about the point than that, and several ranks would have to agree.
    moves = moves and ended.task.outer is None and ended.task.ranks.is_alone
    return judgement.prepared(moves)


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
    def look(self) -> Look:
        return Look(self.linearizer, self.factorization, self.solver)

    @property
    def solver(self) -> Solver:
        return self.ended.task.solver

    @property
    def asks(self) -> bool:
        """May numbers be read? Where not, all is done for every problem that is done for some elsewhere."""
        return self.plan.may_be_asked(self.solver.early_stop)

    def prepared(self, moves: bool) -> Prepared:
        converged = unprepared(self.ended).differentiable
        stopped = converged | (self.ended.outcome.status == Status.STALLED)
        with torch.no_grad(), TRANSFORM_LOCK:
            at, found = self, self._found_of(stopped)
            short = stopped & found.evidence.short
            if moves and (not self.asks or bool(short.any())):
                at, found = self._at_the_minimum(found, stopped, short)
            weak = at._is_weakly_held(found)
            doubted = found.evidence.weak & stopped & at.look.exists(found)
            if self.asks and self.linearizer.ranks.is_alone and bool(doubted.any()):
                found = at._confirmed(found, doubted)
        solved, exists = self.look.is_solved(found), self.look.exists(found)
        # Tolerances below what the dtype resolves end in STALLED; at a minimum that is as good as converged.
        usable = exists & stopped if weak is None else exists & stopped & ~weak
        # A solve that ends at a kink has stalled: no step goes further, and the gradient does not vanish.
        asked = converged | (stopped & solved & ~found.evidence.smooth)
        stalled = stopped & ~asked & ~usable
        if self.asks and bool(stalled.any()) and at._advice():
            asked = asked | stalled
        if self.asks and bool((asked & ~usable).any()):
            warn_about(asked, solved, found.definite, found.residual, found.evidence, found.hessian, weak, at._advice)
        return Prepared(usable, found.residual, found.factor, outcome=None if at is self else at.ended.outcome)

    def _found_of(self, stopped: Tensor) -> Factored:
        """All that is found out; of problems that have not stopped no more than is found out at once."""
        found = self._factored()
        evidence = found.evidence
        fails = stopped & found.definite & ~(evidence.vanishes & evidence.smooth & evidence.settled)
        if not self.asks or self.linearizer.ranks.any(bool(fails.any()))[0]:
            found = self._looked_at_again(found)
        return found

    def _at_the_minimum(self, found: Factored, stopped: Tensor, short: Tensor) -> tuple["Judgement", Factored]:
        """The same after Newton steps of the problems in `short`, those that come to where the gradient vanishes. One
        that does not, and whose Hessian was not settled, has no derivative: it counts as a kink."""
        at, running = self, short
        for _ in range(NEWTON_STEPS):
            step = self.factorization.inverse(
                self.linear, found.factor, at.point.of_free(at._gradient()(*at.point[:2]))
            )
            at = at._moved(torch.where(running[:, None], -step, 0), running)
            found = at._found_of(stopped)
            running = running & found.evidence.near
            if self.asks and not bool(running.any()):
                break
        rounding = LEVEL * torch.finfo(at.point.cost.dtype).eps
        rests = found.evidence.vanishes & found.evidence.smooth & found.evidence.settled
        arrived = rests & (at.point.cost <= (1 + rounding) * self.point.cost)
        if not self.asks or bool((short & ~arrived).any()):  # those stay where they were
            at = at._with_outcome(selected(arrived, at.ended.outcome, self.ended.outcome))
            found = at._found_of(stopped)
            evidence = found.evidence
            lost = short & ~arrived & ~evidence.settled
            found = found._replace(evidence=evidence._replace(smooth=evidence.smooth & ~lost))
        return at, found

    def _confirmed(self, found: Factored, doubted: Tensor) -> Factored:
        """The same, not definite where the weakest curvature is another one after a Newton step, and after a second:
        then it is rounding, or was what the rest of the gradient had left of it. The gradient of a free gauge vanishes
        along that, so that its own Newton step tells nothing."""
        linear, eps = self.linearizer.linear_solver, torch.finfo(self.point.cost.dtype).eps
        at, now, strengths = self, found, []
        stays = doubted
        for way in (1, -1):  # what a gradient adds has the other sign on the other side of the minimum
            newton = self.factorization.inverse(linear, now.factor, at.point.of_free(at._gradient()(*at.point[:2])))
            step = at.point.of_free(way * shaken(self.linearizer, at.point.values)) - newton
            if at.point.free:
                step = torch.minimum(torch.maximum(step, -at.point.free[1]), at.point.free[2])
            at = at._moved(torch.where(doubted[:, None], step, 0), doubted)
            now = at._factored()
            columns = linear.storage.diagonal(at.point.matrix).clamp(min=0).sqrt()
            every = at.point.of_free(in_every_direction(columns))
            strengths.append(1 / self.factorization.inverse_form(linear, now.factor, every))
            stays = stays & now.definite
        first, second = strengths
        same = (second - first).abs() <= SAME * first.abs()
        stays = stays & same & (second > LEAST_PIVOT * eps * every.shape[-1] ** 0.5)
        lost = doubted & ~stays
        return found._replace(definite=found.definite & ~lost, residual=torch.where(lost, torch.nan, found.residual))

    def _moved(self, step: Tensor, moving: Tensor) -> "Judgement":
        """The same after a step of the problems in `moving`, to the bit for all others."""
        outcome, inputs = self.ended.outcome, self.point.inputs
        values = self.linearizer.retract(self.point.values, step)
        values = tuple(
            torch.where(moving[:, None, None], new, old) for new, old in zip(values, outcome.values, strict=True)
        )
        model = self.linearizer.linearize(values, inputs)
        if self.ended.bounds:
            box = box_of(self.linearizer, values, self.ended.bounds)
            model = with_projected_gradient(self.linearizer, model, values, box)
        after = replace(
            outcome,
            values=values,
            cost=model.cost,
            gradient_norm=model.gradient.abs().amax(-1),
            matrix=model.matrix,
        )
        return self._with_outcome(selected(moving, after, outcome))

    def _with_outcome(self, outcome: Outcome) -> "Judgement":
        return Judgement.of(replace(self.ended, outcome=outcome), self.factorization)

    def _factored(self) -> Factored:
        """Factors of all Hessians, and what they and the gradient say, by a graph of all that where there is one."""
        execution, wish, point = self.plan.execution, self.solver.execution, self.point
        program = look_of(self.ended, point, self.factorization)
        if program is not None:
            return program.found(point, self.ended.given)
        gradient = self._gradient()
        name, hessian = self._hessian()

        def whole(*at: Any) -> Factored:
            within = self.linearizer.gradient if self._is_native else self.plain.gradient
            if name == CURVATURE:
                known, matrix = self.plain.gradient_and_curvature(*at[:3])
                return self.look.found(matrix, _point(at), within, known)
            return self.look.found(hessian(*at[:3]), _point(at), within)

        all_of_it, at = look_name(name, self.solver), (*point[:4], *point.free)
        if self.factorization.can_be_recorded(self.linear):
            if self.linear.storage.is_dense:
                return execution.run(all_of_it, wish, whole, *at, compiled="small")
            if self._is_native and may_be_around(self.plan, self.linearizer):
                graph = graph_around(self.plan, self.solver, all_of_it, whole, *at)
                if graph is not None:
                    return graph(*at)
        matrix = execution.run(name, wish, hessian, *point[:3], compiled="small")
        return self.look.found(matrix, point, gradient)

    def _looked_at_again(self, found: Factored) -> Factored:
        """The same with all the evidence there is: some problem would have no derivative."""
        return self.look.again(found, self.point, self._gradient(), self.ended.start)

    def _is_weakly_held(self, found: Factored) -> Tensor | None:
        """Per problem: could rounding, or the least change of the data, set another variable on its bound or free one?
        None where there are no bounds."""
        if not self.point.free:
            return None
        values, inputs, cost = self.point.values, self.point.inputs, self.point.cost
        gradient = self._gradient()(values, inputs)
        diagonal = self.linear.storage.diagonal_of_hessian(found.hessian)
        start_cost = self.ended.outcome.history.start_cost
        weak = is_weakly_held(self.linearizer, values, self.ended.bounds, gradient, diagonal, cost, start_cost)
        return weak | found.evidence.by_a_bound

    def _advice(self) -> str:
        """What to do where the residual computes in fewer digits than the variables have."""
        with torch.no_grad(), TRANSFORM_LOCK:
            return said_of_precision(lambda: self.plain.cost(*self.point[:2]), self.point.cost.dtype)

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

    def _hessian(self) -> tuple[str, Callable[[Values, TermInputs, Tensor], Tensor]]:
        """The Hessian that the adjoint wants: its name, and a function of values, inputs and the matrix of the last
        linearization. Where the normal equations that the solve has left of its last point are a part of it they are
        taken: a third of the work for 1024 fits."""
        kind, linearizer = self.factorization.hessian, self.plain
        if kind == "gauss_newton" and self.linear.storage.is_normal:
            return "normal equations", lambda values, inputs, normal: normal
        if self._is_native:
            programs = [block.second for block in self.linearizer.blocks if block.second is not None]
            return hessian_name(programs, kind), lambda values, inputs, normal: self.linearizer.hessian(
                values, inputs, exact=kind == "exact"
            )
        if linearizer.normal_equations_are_exact:
            return CURVATURE, linearizer.curvature
        return hessian_of_python(kind), lambda values, inputs, normal: linearizer.hessian(
            values, inputs, exact=kind == "exact"
        )


def selected(mask: Tensor, one: Outcome, other: Outcome) -> Outcome:
    """Where the problems in the mask are as `one` has them, the others as `other` does."""

    def chosen(name: str) -> Tensor:
        new, old = getattr(one, name), getattr(other, name)
        return torch.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    values = tuple(
        torch.where(mask[:, None, None], new, old) for new, old in zip(one.values, other.values, strict=True)
    )
    return replace(other, values=values, **{name: chosen(name) for name in ("cost", "gradient_norm", "matrix")})


def _point(tensors: tuple[Any, ...]) -> Point:
    """From the arguments of a graph: what is free comes one by one."""
    return Point(*tensors[:4], free=tensors[4:])
