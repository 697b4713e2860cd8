"""Which problems of a batch have a derivative, and the factor of the Hessian that it takes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import AdjointOptionError
from mslsq.adjoint.factor import pseudo_inverse_factor
from mslsq.adjoint.minimum import Curvature, Evidence, Point, evidence_of_a_minimum
from mslsq.adjoint.warning import TRUSTED, warn_about
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.solution import Status
from mslsq.solvers.run import Outcome
from mslsq.tracing.graph import TRANSFORM_LOCK

if TYPE_CHECKING:
    from mslsq.adjoint.function import Call


class Factored(NamedTuple):
    """The Hessian that the adjoint wants, and what is known of each problem with it."""

    factor: Tensor
    """Of the Hessian, or of its pseudo-inverse."""
    definite: Tensor
    residual: Tensor
    """How well systems with it are solved; where it is not definite how far an iterative solver came, else NaN."""
    evidence: Evidence
    hessian: Tensor


def judged(
    call: "Call", start: Values, outcome: Outcome, converged: Tensor, unknown: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The factor that the adjoint wants, which problems are differentiable, and how well systems with it are solved."""
    adjoint, values, status = call.adjoint, outcome.values, outcome.status
    assert adjoint is not None  # whoever asks has set it
    if adjoint.factors is None:
        # Derivatives of the iteration itself: they exist wherever its numbers are finite.
        finite = torch.stack([torch.isfinite(x).all(-1).all(-1) for x in values]).all(0)
        return values[0].new_zeros(0), finite & (status != Status.NON_FINITE), unknown
    minimum_norm = getattr(adjoint, "gauge", "error") == "minimum_norm"
    if minimum_norm and not outcome.planned[1].linear_solver.storage.is_dense:
        raise AdjointOptionError(
            "Implicit(gauge='minimum_norm') needs the dense Hessian: solve with linear_solver=mslsq.linear.Cholesky()."
        )
    with torch.no_grad(), TRANSFORM_LOCK:
        found = _factored(call, outcome, minimum_norm)
        stopped = converged | (status == Status.STALLED)
        if bool((stopped & found.definite & ~(found.evidence.vanishes & found.evidence.smooth)).any()):
            found = _looked_at_again(call, start, outcome, found)
    solved = found.definite & found.evidence.solved
    solved = solved if minimum_norm else solved & (found.residual <= TRUSTED)
    exists = solved & found.evidence.vanishes & found.evidence.smooth
    # Tolerances below what the dtype resolves end in STALLED; at a minimum that is as good as converged.
    usable = exists & stopped
    # A solve that ends at a kink has stalled: no step goes further, and the gradient does not vanish.
    asked = converged | (stopped & solved & ~found.evidence.smooth)
    if bool((asked & ~usable).any()):
        warn_about(asked, solved, found.definite, found.residual, found.evidence, found.hessian)
    return found.factor, usable, found.residual


def _factored(call: "Call", outcome: Outcome, minimum_norm: bool) -> Factored:
    """Factors of all Hessians, and what they and the gradient say."""
    plan, linearizer, inputs = outcome.planned
    solver, linear = call.task.solver, linearizer.linear_solver
    wish = solver.execution
    plan.execution.graph("cost", wish, linearizer.cost, outcome.values, inputs)
    gradient = _gradient(call, outcome)
    name, hessian = _hessian(call, outcome)
    point = Point(outcome.values, inputs, outcome.matrix, outcome.cost)

    def factored(matrix: Tensor, at: Point, gradient: Callable[..., Tensor]) -> Factored:
        if minimum_norm:
            factor, definite = pseudo_inverse_factor(matrix)
            residual = torch.full_like(at.cost, torch.nan)
        else:
            factor, definite, undecided = linear.definite_factor(matrix)
            residual = _residual_of_a_system(linearizer, matrix, factor)
            residual = torch.where(definite, residual, torch.nan if undecided is None else undecided)
        curvature = _curvature(call, outcome, matrix, factor, definite)
        evidence = evidence_of_a_minimum(linearizer, gradient, solver, at, curvature)
        return Factored(factor, definite, residual, evidence, matrix)

    def whole(*at: Any) -> Factored:
        return factored(hessian(*at[:3]), Point(*at), linearizer.gradient)

    # Dense factors are a part of what is recorded; sparse and iterative solvers do as they like.
    if linear.storage.is_dense and not minimum_norm:
        name = f"factored {name}, ftol {solver.ftol}, xtol {solver.xtol}"
        return plan.execution.run(name, wish, whole, *point, compiled="small")
    matrix = plan.execution.run(name, wish, hessian, *point[:3], compiled="small")
    return factored(matrix, point, gradient)


def _looked_at_again(call: "Call", start: Values, outcome: Outcome, found: Factored) -> Factored:
    """The same with all the evidence there is: some problem would have no derivative."""
    _, linearizer, inputs = outcome.planned
    point = Point(outcome.values, inputs, outcome.matrix, outcome.cost)
    curvature = _curvature(call, outcome, found.hessian, found.factor, found.definite)
    gradient = _gradient(call, outcome)
    return found._replace(
        evidence=evidence_of_a_minimum(linearizer, gradient, call.task.solver, point, curvature, start)
    )


def _gradient(call: "Call", outcome: Outcome) -> Callable[..., Tensor]:
    """The gradient, from its graph where there is one."""
    plan, linearizer, inputs = outcome.planned
    wish = call.task.solver.execution
    graph = plan.execution.graph("gradient", wish, linearizer.gradient, outcome.values, inputs)
    return linearizer.gradient if graph is None else graph


def _curvature(call: "Call", outcome: Outcome, hessian: Tensor, factor: Tensor, definite: Tensor) -> Curvature:
    adjoint, linear = call.adjoint, outcome.planned[1].linear_solver
    assert adjoint is not None  # whoever asks has set it
    ratio = 0.5 if adjoint.factors == "exact" else 1.0
    return Curvature(
        partial(linear.storage.product, hessian), partial(adjoint.inverse, linear, factor), definite, ratio
    )


def _residual_of_a_system(linearizer: Linearizer, hessian: Tensor, factor: Tensor) -> Tensor:
    """How well the adjoint's linear systems are solved: the relative residual for a right-hand side in which every
    unknown has a part, H u with cosines for u."""
    linear, columns = linearizer.linear_solver, linearizer.structure.num_columns
    u = torch.arange(1.0, columns + 1, dtype=hessian.dtype, device=hessian.device).cos()
    rhs = linear.storage.product(hessian, u.expand(len(hessian), -1))
    return linear.relative_residual(hessian, linear.solve_factored(factor, rhs), rhs)


def _hessian(call: "Call", outcome: Outcome) -> tuple[str, Callable[[Values, TermInputs, Tensor], Tensor]]:
    """The Hessian that the adjoint wants: its name, and a function of values, inputs and the matrix of the last
    linearization. Where the normal equations that the solve has left of its last point are a part of it they are taken:
    a third of the work for 1024 fits."""
    assert call.adjoint is not None  # whoever asks has set it
    _, linearizer, _ = outcome.planned
    exact = call.adjoint.factors == "exact"
    if not exact and linearizer.linear_solver.storage.is_normal:
        return "normal equations", lambda values, inputs, normal: normal
    if linearizer.normal_equations_are_exact:
        return "curvature", linearizer.curvature
    name = f"hessian, {call.adjoint.factors}"
    return name, lambda values, inputs, normal: linearizer.hessian(values, inputs, exact=exact)
