"""What cannot be solved over several ranks, each in a sentence that all ranks get."""

from dataclasses import replace
from typing import Any

from mslsq.adjoint import Adjoint, AdjointOptionError, DerivativeOrderError, Detached, Implicit
from mslsq.distributed.conjugate_gradients import ConjugateGradientOverRanks
from mslsq.distributed.group import Together
from mslsq.front.statement import Statement
from mslsq.levels import backward_may_come
from mslsq.linear.iterative import ConjugateGradient
from mslsq.private import is_inside_of_ddp, transforms_are_active
from mslsq.problem.errors import ProblemError
from mslsq.solvers import Solver
from mslsq.solvers.solver import SolverOptionError
from mslsq.validation import instance_of


def refuse_surroundings(name: str) -> None:
    """Raise inside of a transform of `torch.func`, and inside of DDP."""
    if transforms_are_active():
        raise DerivativeOrderError(
            f"{name} cannot run inside of vmap, grad or another transform of torch.func: every rank would have to "
            "trace the same collectives. Use plain backward(), or mslsq.solve on one rank."
        )
    if is_inside_of_ddp():
        raise ProblemError(
            f"{name} inside of DistributedDataParallel: DDP gives every rank data of its own and averages gradients, "
            "while here all ranks solve one problem and have summed its gradients already. Leave DDP out, or use "
            "mslsq.LeastSquaresLayer in it, which solves each rank's own problems."
        )


def solver_over_ranks(solver: Any, ranks: Together) -> Solver:
    """The solver, its matrix-free conjugate gradients over ranks.

    Raises:
        SolverOptionError: an option has no meaning over several ranks yet.
    """
    instance_of("distributed.solve: solver", solver, Solver, "Solvers around a solver run on one rank.")
    for is_asked, what, instead in (
        (solver.execution.compile, "compile=True", "leave it out; residuals become native programs all the same"),
        (not solver.early_stop, "early_stop=False", "leave it out: all ranks stop together"),
        (solver.checkpoint is not None, "a checkpoint", "write solution.value from one rank, and start there"),
        (solver.bends_always, "acceleration", "leave it out"),
    ):
        if is_asked:
            raise SolverOptionError(f"distributed.solve: {what} is not possible over ranks; {instead}.")
    linear = solver.linear_solver
    if linear == "auto" or linear.storage.is_normal:
        return solver
    if type(linear) is ConjugateGradient and linear.matrix_free:
        return replace(solver, linear_solver=ConjugateGradientOverRanks.of(linear, ranks))
    raise SolverOptionError(
        f"distributed.solve: {type(linear).__name__} needs all rows of J on one rank. Take linear.Cholesky(), "
        "linear.SparseCholesky(), linear.Schur() or linear.ConjugateGradient()."
    )


def refuse_adjoint(adjoint: Any) -> Implicit | Detached:
    """The adjoint; only those whose derivative is that of the minimum.

    Raises:
        AdjointOptionError: another one.
    """
    instance_of("distributed.solve: adjoint", adjoint, Adjoint)
    if not isinstance(adjoint, (Implicit, Detached)):
        raise AdjointOptionError(
            f"distributed.solve takes Implicit() or Detached(), not {adjoint!r}: steps are not differentiated over "
            "ranks."
        )
    return adjoint


def refuse_statement(stated: Statement) -> None:
    """Raise for constraints, bounds, and starts with derivatives."""
    for term in stated.system.terms:
        if term.kind.is_constraint:
            raise ProblemError(
                f"distributed.solve: constraint {term.name!r}: constraints are met on one rank only. Use mslsq.solve, "
                "or a cost with a large weight."
            )
    for unknown, start in zip(stated.system.unknowns, stated.starts, strict=True):
        if unknown.is_bounded:
            raise ProblemError(
                f"distributed.solve: variable {unknown.name!r} has bounds, which are kept on one rank only. Use "
                "mslsq.solve, or a variable without bounds (its logarithm, say)."
            )
        if unknown.free is not None and backward_may_come(start.tensor):
            raise ProblemError(
                f"distributed.solve: the start of {unknown.name!r} has blocks that are held and requires grad. "
                "Derivatives in held blocks are not taken over ranks: detach() it."
            )
