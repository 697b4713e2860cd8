"""A solve whose steps are a native program, and whose linearizations are Python's: of one small dense problem.

Of code that may read more than is compared, what is recorded of its steps has to be compared with it in every solve,
which takes longer than these few linearizations. Closed code is solved so until that has paid for a program of the
whole solve. A program that a process before has compared with Python is taken in the first solve: with or without it a
solve differs in its last digits.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.linearize.prospects import note_seconds
from mslsq.linearize.trace import Wish, clock
from mslsq.native.called_back import CalledBackSolves
from mslsq.native.whole_solves import CREEPS
from mslsq.solution import History
from mslsq.solvers.choices import is_small_and_dense, is_watched, linear_solver_of
from mslsq.solvers.forcing import first_accuracy
from mslsq.solvers.solver import MethodState, Solver
from mslsq.solvers.steps_program import StepsProgram, steps_program
from mslsq.solvers.task import Task
from mslsq.solvers.whole_solves import Ended
from mslsq.solvers.witness import Witness

COMPARED_BEFORE = 2
"""Solves of a problem before the first that may run on a program that no process before has compared with Python, which
takes as long as ten steps of Python. To look for one that was takes 2 ms, once in a process."""

BY_DEFAULT = Wish("auto", False, "auto")
"""What solvers ask for whose steps may be such a program."""

Methods = list[tuple[Tensor, MethodState]]
"""How accurately the system of each step was solved, and the method's state before it."""


def steps_of(task: Task, plan: Plan, values: Values) -> StepsProgram | None:
    """What is known of the program of these steps; None where there is none for such solves."""
    solver, plain = task.solver, plan.plain
    if solver.execution != BY_DEFAULT or is_watched(solver):
        return None
    if task.batch != 1 or not plan.is_on_cpu or not solver.early_stop or not solver.max_steps:
        return None
    if task.pinned is not None:
        return None
    if plain.steps is None:
        has_bounds = any(unknown.is_bounded for unknown in task.system.unknowns)
        is_plain = not has_bounds and plan.structure.padding is None and is_small_and_dense(task, plan)
        is_plain = is_plain and plan.execution.needs_witness
        plain.steps = (steps_program(solver, _alone(task, plan), values) if is_plain else None,)
    found = plain.steps[0]
    return found if found is None or found.is_at_hand or plan.calls > COMPARED_BEFORE else None


def _alone(task: Task, plan: Plan) -> Linearizer:
    return plan.linearizer(task.system, 1, task.batched, linear_solver_of(task, plan))


def stepped_natively(
    task: Task,
    plan: Plan,
    linearizer: Linearizer,
    values: Values,
    inputs: TermInputs,
    witness: Witness,
    keep_methods: bool,
) -> tuple[Ended, Methods] | None:
    """The end of a solve by the program, and with `keep_methods` what its steps can be taken again from; None where
    there is no program, or none yet.

    Raises:
        Exception: whatever the user's residual raises.
    """
    known = steps_of(task, plan, values)
    program = None if known is None else known.program(linearizer, values)
    if known is None or program is None or "step" in plan.execution.graphs:
        return None
    solver, execution, now = task.solver, plan.execution, clock(plan.is_large)
    begun = now()
    own, wish = linearizer.own_linearization, solver.execution

    def sums(at: Values) -> Tensor:
        record = partial(witness.record, at)
        graph = execution.graph("linearize", wish, own, at, inputs, compiled="always", witness=record)
        model = execution.run_eagerly(own, at, inputs) if graph is None else graph(at, inputs)
        return known.sum_up(linearizer.together(model))

    ended = stepped_by(known, program, plan, solver, values, sums, keep_methods)
    note_seconds(plan, now() - begun)
    if ended is None:
        plan.plain.steps = (None,)  # Python bends its steps
    return ended


def stepped_by(
    known: StepsProgram,
    program: CalledBackSolves,
    plan: Plan,
    solver: Solver,
    values: Values,
    sums: Callable[[Values], Tensor],
    keep_methods: bool,
) -> tuple[Ended, Methods] | None:
    """The end of a solve by this program around linearizations that `sums` computes; None where it creeps."""
    bends = solver.creep is not None and not keep_methods
    solved, states = program.solve_one(values, sums, known.sums.count, solver.max_steps, bends, keep_methods)
    if int(solved.status) == CREEPS:
        return None
    start_cost, gradient_norm = solved.history.of_start
    structure = plan.structure
    ended = Ended(
        tuple([x.reshape(like.shape) for x, like in zip(solved.values, values, strict=True)]),
        solved.cost,
        solved.status,
        solved.num_steps,
        solved.num_steps + 1,
        solved.gradient_norm,
        History.read_later(lambda: solved.history.columns, start_cost, solver.max_steps),
        solved.matrix.reshape(-1, structure.num_components, structure.size, structure.size),
        not bool(gradient_norm.all()),
        solved.interrupted,
    )
    accuracy = first_accuracy(solved.cost)  # of a solver that does not iterate
    return ended, [(accuracy, method) for method in known.methods(states)]
