"""A call that its native program or its recorded steps answer alone: no plan or statement stands between them.

Of a fit of 32 points the program takes 10 µs; the way through plan and loop, which serves every other solve, takes 170.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint import Adjoint, Implicit
from mslsq.adjoint.direct import Differentiated, DirectDerivatives, DirectEnds
from mslsq.adjoint.direct_steps import DirectSteps
from mslsq.adjoint.minimum import Point
from mslsq.front.statement import Solved, Statement, heed_interrupt
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.prospects import has_news
from mslsq.linearize.trace import WITNESS, Wish
from mslsq.native.choice import is_recorded_elsewhere, is_switched_off
from mslsq.native.one_solve import SolvedOne
from mslsq.private import forward_level_is_open, transforms_are_active, without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solution import History, Solution, Status
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.called_loop import Called
from mslsq.solvers.choices import is_watched
from mslsq.solvers.native_loop import Ended
from mslsq.solvers.planning import planned
from mslsq.solvers.short_loop import ShortLoop, Stepped
from mslsq.solvers.task import Task
from mslsq.solvers.whole_program import SolveDraft
from mslsq.solvers.whole_solves import program_in_use
from mslsq.solvers.witness import Witness
from mslsq.tracing.reading.values import TENSORS


class Found(NamedTuple):
    """What the program has found."""

    solution: Solution
    values: Values
    """Of every unknown, in any shape."""
    starts: Values
    """(1, count, storage) of every unknown."""
    interrupted: bool
    """By a KeyboardInterrupt?"""
    solved: SolvedOne | None = None
    """What a native program of the solve has returned, where it was one."""

    @property
    def storages(self) -> Values:
        """(1, count, storage) of every unknown; made when read, since few calls read them."""
        return tuple([x.view(start.shape) for x, start in zip(self.values, self.starts, strict=True)])


@dataclass(frozen=True, eq=False)
class Direct:
    """The way to the native program of one problem, or to its recorded steps. Holds no tensor of the user's."""

    in_users_form: Callable[[Values], Any]
    solver: Solver
    plan: Plan
    shapes: tuple[tuple[int, ...], ...]
    """In which the program returns each unknown..."""
    is_value: bool
    """... and is the first of these tensors the value in the form of the start?"""
    loop: ShortLoop | None
    """Around recorded steps, where there is no such program."""
    derivatives: DirectDerivatives | DirectSteps | None = None
    """How they are attached to what the program finds; None where solves with derivatives go another way."""

    @staticmethod
    def of(statement: Statement, solver: Solver, plan: Plan, loop: ShortLoop | None = None) -> "Direct | None":
        """The way for this plan; None where there cannot be one."""
        if statement.size is not None or statement.bounds.of or is_watched(solver) or not plan.is_on_cpu:
            return None
        if loop is None and not solver.takes_programs:
            return None
        storages, in_users_form = tuple([x[0] for x in statement.values]), statement.in_users_form
        value = in_users_form(storages)
        if len(storages) == 1 and type(value) is Tensor and value.numel() == storages[0].numel():
            return Direct(in_users_form, solver, plan, (value.shape,), True, loop)
        return Direct(in_users_form, solver, plan, tuple([x.shape for x in storages]), False, loop)

    @property
    def is_whole(self) -> bool:
        """Is the whole solve a native program now? Those of blocks are of no use then, and none is begun."""
        return self._program is not None

    @property
    def _program(self) -> SolveDraft | None:
        """The native program of whole solves that this one may take."""
        found = program_in_use(self.plan)
        # Whether it may is asked of the environment, which takes a microsecond.
        return found if found is not None and self.solver.takes_programs and not is_switched_off() else None

    def has_news(self, wish: Wish) -> bool:
        """Are there programs of blocks to be begun or taken up? None are where the whole solve is to be one."""
        whole = self.plan.plain.whole
        if whole is not None and whole.has_begun and not whole.is_refused:
            return False
        return has_news(self.plan, wish.native)

    def with_derivatives(self, solved: Solved, adjoint: Adjoint | None) -> "Direct":
        """The same, which attaches derivatives, too."""
        task = solved.statement.task(self.solver)
        return replace(self, derivatives=_derivatives_of(adjoint, task, self.plan))

    def found(self, starts: Values, inputs: tuple[dict[str, Tensor], ...], wish: Wish | None = None) -> Found | None:
        """The solution; None where it takes more: derivatives that it may not have, a word of warning, or what is
        neither a program nor recorded.

        Args:
            starts: of every unknown, (1, count, storage).
            inputs: per term its tensors by name.
            wish: the solver's `execution`, where it has been asked for.
        """
        program, ends = self._program, None
        if takes_more(starts, inputs):
            derivatives = self.derivatives
            if isinstance(derivatives, DirectSteps):
                return self._unrolled(derivatives, starts, inputs)
            ends = None if derivatives is None else derivatives.ends(starts, inputs, is_whole=program is not None)
            if ends is None:
                return None
        if program is None:
            return self._found_by_steps(starts, inputs, wish) if ends is None else self._stepped(ends, starts, inputs)
        if self.solver.creep is not None and not self.solver.early_stop:
            return None  # steps are straight then, and the program would bend them
        found = program.solve_one(starts, inputs, self.solver.max_steps, self.shapes)
        if not found.first_gradient_norm and self.solver.max_steps and self.solver.early_stop:
            return None
        if found.creeps:
            return None
        if ends is not None:
            return self._differentiated(ends, found, starts, inputs)
        value = found.values[0] if self.is_value else self.in_users_form(found.values)
        return Found(completed(value, lambda: _figures(found)), found.values, starts, found.interrupted, found)

    def _differentiated(
        self,
        ends: DirectEnds,
        found: SolvedOne,
        starts: Values,
        inputs: tuple[dict[str, Tensor], ...],
    ) -> Found | None:
        """What the program has found, with derivatives; None where it may have none."""
        assert isinstance(self.derivatives, DirectDerivatives)  # there are programs of them
        values = tuple([x.view(start.shape) for x, start in zip(found.values, starts, strict=True)])
        structure, given = self.plan.structure, None
        if found.interrupted:
            given = self.derivatives.missing(values, found.figures[:1], inputs)
        elif found.has_converged:
            matrix = found.figures[2:].view(1, structure.num_components, structure.size, structure.size)
            given = self.derivatives.differentiated(ends, Point(values, (), matrix, found.figures[:1]), starts, inputs)
        if given is None:
            self.derivatives.rest()
            return None
        solution = self._attached(given, lambda: _figures(found))
        return Found(solution, found.values, starts, found.interrupted, found)

    def _attached(self, given: Differentiated, figures: Callable[[], dict[str, Any]]) -> Solution:
        """The solution with derivatives; `figures` are its other fields."""
        attached, cost, _ = given.attached
        if self.is_value:
            value = attached[0].view(self.shapes[0])
        else:
            value = self.in_users_form(tuple([x[0] for x in attached]))
        own = given.residual[0]
        return completed(value, lambda: {**figures(), "cost": cost[0], "adjoint_residual": own})

    def _stepped(self, ends: DirectEnds, starts: Values, inputs: tuple[dict[str, Tensor], ...]) -> Found | None:
        """What recorded steps find, with derivatives; None where it may have none."""
        found = None if self.loop is None else self.loop.solve_to_differentiate(starts, inputs)
        if found is None:
            return None
        stepped, model = found
        assert isinstance(self.derivatives, DirectDerivatives)  # there are ends
        given = None
        if stepped.interrupted:
            given = self.derivatives.missing(stepped.values, model.cost, inputs)
        elif Status.COST_TOLERANCE <= int(stepped.status) <= Status.STEP_TOLERANCE:
            point = Point(stepped.values, model.inputs, model.matrix, model.cost)
            given = self.derivatives.differentiated(ends, point, starts, inputs)
        if given is None:
            self.derivatives.rest()
            return None
        return Found(self._attached(given, stepped.fields), stepped.values, starts, stepped.interrupted)

    def _unrolled(
        self, derivatives: DirectSteps, starts: Values, inputs: tuple[dict[str, Tensor], ...]
    ) -> Found | None:
        """What recorded steps find, differentiated as steps; None where it takes more."""
        if self.loop is None or not derivatives.is_known:
            return None
        plain = [{name: x.detach() for name, x in own.items()} for own in inputs]
        found = self.loop.solve_keeping_steps(tuple([x.detach() for x in starts]), tuple(plain))
        if found is None:
            return None
        stepped, cost, trajectory = found
        given = derivatives.differentiated(stepped.values, cost, trajectory, starts, inputs)
        if given is None:
            return None
        solution = self._attached(
            given, lambda: {**stepped.fields(), "differentiable": torch.tensor(True, device="cpu")}
        )
        return Found(solution, stepped.values, starts, stepped.interrupted)

    def _found_by_steps(self, starts: Values, inputs: tuple[dict[str, Tensor], ...], wish: Wish | None) -> Found | None:
        if self.loop is None:
            return None
        found = self.loop.solve(starts, inputs, wish)
        return None if found is None else self._found(found, starts)

    def _found(self, found: Stepped | Ended | Called, starts: Values) -> Found:
        value = self.in_users_form(tuple([x[0] for x in found.values]))
        return Found(completed(value, found.fields), found.values, starts, found.interrupted)


def _derivatives_of(adjoint: Adjoint | None, task: Task, plan: Plan) -> DirectDerivatives | DirectSteps | None:
    steps = DirectSteps.of(adjoint, task, plan)
    return DirectDerivatives.of(adjoint, task, plan) if steps is None else steps


def solved_shortly(statement: Statement, solver: Solver | None, adjoint: Adjoint | None) -> Solved | None:
    """The solution of a statement by what is recorded of its solves, compared with the user's Python as in every solve;
    None where that takes more, or where the comparison finds a difference.

    Raises:
        SolveInterrupted: a KeyboardInterrupt has ended the solve.
    """
    solver = LevenbergMarquardt() if solver is None else solver
    adjoint = Implicit() if adjoint is None else adjoint
    if not isinstance(solver, Solver) or not isinstance(adjoint, Adjoint) or adjoint.differentiates_start:
        return None
    if statement.size is not None or statement.bounds.of or not is_plain() or not statement.plans.has_graphs:
        return None
    task, inputs = statement.task(solver), statement.inputs
    values = tuple([x.contiguous() for x in statement.values])
    if task.outer is not None or takes_more(values, inputs) or not all(type(x) in TENSORS for x in values):
        return None
    with torch.no_grad(), without_saved_tensor_hooks():
        plan, linearizer, _ = planned(task, values, inputs)
        direct = Direct.of(statement, solver, plan, ShortLoop.of(task, plan))
        if direct is None or plan.changes_unseen or plan.execution.why_eager:
            return None
        witness = Witness(task, plan, linearizer.blocks, inputs)
        if plan.holds_whole and plan.whole_witness is not plan.execution.graphs.get(WITNESS):
            return None
        found = direct.found(values, inputs)
        if found is None:
            return None
        stale = witness.disagrees(values, found.storages)
        if stale is not None and bool(stale):
            if found.interrupted:
                raise KeyboardInterrupt  # what was found is of a residual that has changed
            return None
    if found.interrupted:
        heed_interrupt(found.solution, solver)
    return Solved(statement, found.solution, found.storages, plan, solver, inputs)


def is_plain() -> bool:
    """Is a call its own: no transform around it, and nothing that records it?"""
    return not transforms_are_active() and not is_recorded_elsewhere()


def completed(value: Any, figures: Callable[[], dict[str, Any]]) -> Solution:
    """A solution without bounds, weights or constraints; `figures` are its other fields, made later."""

    def rest() -> dict[str, Any]:
        found = {"active": (), "weights": {}, "multipliers": {}, "violation": (), **figures()}
        if "adjoint_residual" not in found:
            found["adjoint_residual"] = torch.full_like(found["cost"], torch.nan)
        return found

    return Solution.completed_later(value, rest)


def _figures(found: SolvedOne) -> dict[str, Any]:
    """The fields of a solution that the solver knows, but its value, from what a program has returned."""
    (cost, gradient_norm), (status, num_steps) = found.figures[:2].clone().unbind(), found.counts.tolist()
    # Copies: tensors of several dtypes in one piece of memory cannot be saved.
    costs, gradient_norms, step_norms, damping = found.history.unbind()
    if status == Status.RUNNING:
        status = int(Status.INTERRUPTED if found.interrupted else Status.MAX_STEPS)
    return {
        "cost": cost,
        "status": torch.tensor(status, device="cpu"),
        "num_steps": torch.tensor(num_steps, device="cpu"),
        "num_evaluations": torch.tensor(num_steps + 1, device="cpu"),
        "gradient_norm": gradient_norm,
        "differentiable": torch.tensor(Status.COST_TOLERANCE <= status <= Status.STEP_TOLERANCE, device="cpu"),
        "history": History(costs, gradient_norms, step_norms, damping, found.accepted),
    }


def takes_more(starts: Values, inputs: tuple[Inputs, ...]) -> bool:
    """Does a solve of these take more than the numbers?"""
    return torch.is_autocast_enabled("cpu") or _is_differentiated(starts, inputs)


def _is_differentiated(starts: Values, inputs: tuple[Inputs, ...]) -> bool:
    """May a derivative be taken of anything?"""
    if forward_level_is_open():
        return True
    if not torch.is_grad_enabled():
        return False
    for tensor in starts:
        if tensor.requires_grad:
            return True
    for given in inputs:
        for tensor in given.values():
            if tensor.requires_grad:
                return True
    return False
