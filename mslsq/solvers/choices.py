"""What a task is solved by: its linear solver and functions, whether a whole solve may be a program, how steps bend."""

from mslsq.linear import Cholesky, LinearSolver, UnrolledCholesky
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.solvers.second_order import kinds_of_programs
from mslsq.solvers.solver import Creep, Solver
from mslsq.solvers.task import Task

LARGEST_MATRIX = 600
"""Entries of JᵀJ of a problem whose solve is a native program: 24 unknowns. A step takes seven or eight operations for
each: the program of a larger one would be refused after seconds of recording."""


LEAST_ON_GPU = 128
"""Problems that are worth whole solves on a GPU, where each has one thread: a block of threads. The rows of fewer are
better computed side by side. Not measured: no GPU has run either."""


def is_small_and_dense(task: Task, plan: Plan) -> bool:
    """Are these small dense problems that the library's own steps solve, on a GPU many of them?"""
    structure = plan.structure
    if plan.is_large or plan.compressed is not None or structure.num_columns == 0:
        return False
    if not plan.is_on_cpu and task.batch < LEAST_ON_GPU:
        return False
    if not plan.ranks.is_alone:
        return False
    if task.solver.bends_always:
        return False  # the recorded step knows linearizations, not the residuals that it is bent by
    is_of_library = type(task.solver).__module__.startswith(f"{__package__}.")
    is_cholesky = type(linear_solver_of(task, plan)) in (Cholesky, UnrolledCholesky)
    is_small = structure.num_columns * structure.size <= LARGEST_MATRIX
    return is_small and is_of_library and is_cholesky


def creep_of(task: Task, linear: LinearSolver) -> Creep | None:
    """How the problems of a task are told whose steps are bent; None where steps are all of one kind.

    Of a problem whose matrix is kept in blocks a bent step takes two to four times as long as a straight one, and of
    the pose graphs and bundle adjustments that creep none needs fewer steps for it. Several ranks would have to agree.
    """
    return task.solver.creep if linear.storage.is_dense and task.ranks.is_alone else None


def is_watched(solver: Solver) -> bool:
    """Does something in Python want to see every step: a callback, the table, a clock, a checkpoint?"""
    wanted = (solver.callback, solver.time_budget, solver.checkpoint)
    return solver.verbose or any(option is not None for option in wanted)


def linearizer_of(task: Task, plan: Plan, native: bool = True) -> Linearizer:
    """The functions of a task's system for a plan, as its solver runs them."""
    linear, fused = linear_solver_of(task, plan), task.solver.execution.compile and not plan.is_for_programs
    compiled, replayed = kinds_of_programs(task.solver) if native else (False, False)
    compiled = compiled or plan.holds_programs  # then it was chosen for them
    return plan.linearizer(
        *(task.system, task.batch, task.batched, linear), fused=fused, native=compiled, replayed=replayed
    )


def linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    """The linear solver that the task's solver chooses for this structure, bound to its pattern where it is sparse."""
    linear = _linear_solver_of(task, plan)
    return linear if plan.may_be_asked(task.solver.early_stop) else linear.without_asking()


def _linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    by_rows = None if plan.rows is None else task.solver.linear.of_rows(plan.rows)
    if by_rows is not None:
        return by_rows
    linear = task.solver.linear.chosen(plan.structure.size, plan.pattern is not None, plan.is_on_cpu)
    if plan.pattern is None:
        return linear
    return linear.bound(plan.pattern.structure, plan.pattern.kinds(task.system))
