"""A batch that its native program answers alone: no plan or statement stands between them.

Of 1,024 fits of 32 points the program takes 0.8 ms, and the way through plan and loop as long again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mslsq.adjoint import Adjoint
from mslsq.adjoint.direct import DirectDerivatives
from mslsq.adjoint.minimum import Point
from mslsq.front.direct import Found, completed, takes_more
from mslsq.front.statement import Solved
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.trace import WITNESS
from mslsq.native.choice import is_switched_off
from mslsq.solution import Status
from mslsq.solvers import Solver
from mslsq.solvers.choices import is_watched
from mslsq.solvers.whole_solves import Ended, program_in_use, solved_by


@dataclass(frozen=True, eq=False)
class DirectBatch:
    """The way to the native program of a batch. Holds no tensor of the user's."""

    in_users_form: Callable[[Values], Any]
    solver: Solver
    plan: Plan
    derivatives: DirectDerivatives | None = None
    """How they are attached; None where solves with derivatives go another way."""

    @staticmethod
    def of(solved: Solved) -> "DirectBatch | None":
        """The way for a solve like this one; None where there cannot be one."""
        statement, solver, plan = solved.statement, solved.solver, solved.plan
        if statement.size is None or statement.bounds.of or is_watched(solver) or not plan.is_on_cpu:
            return None
        if not solver.takes_programs or not solver.early_stop:
            return None
        # What is there now must be what was compared with the user's Python when the program was taken up.
        is_compared = plan.holds_whole and plan.whole_witness is plan.execution.graphs.get(WITNESS)
        return DirectBatch(statement.in_users_form, solver, plan) if is_compared else None

    def with_derivatives(self, solved: Solved, adjoint: Adjoint | None) -> "DirectBatch":
        """The same, which attaches derivatives, too."""
        task = solved.statement.task(self.solver)
        return replace(self, derivatives=DirectDerivatives.of(adjoint, task, self.plan))

    def found(self, starts: Values, inputs: tuple[dict[str, Tensor], ...]) -> Found | None:
        """The solutions; None where it takes more: derivatives that some problem may not have, a word of warning, or
        what is no program.

        Args:
            starts: of every unknown, (batch, count, storage).
            inputs: per term its tensors by name, the batch axis of those that are mapped first.
        """
        program = program_in_use(self.plan)
        if program is None or is_switched_off():
            return None
        ends = None
        if takes_more(starts, inputs):
            ends = None if self.derivatives is None else self.derivatives.ends(starts, inputs, is_whole=True)
            if ends is None:
                return None
        with torch.no_grad():
            ended = solved_by(program, self.solver, self.plan.structure, starts, inputs, ())
        if ended is None or ended.is_idle:
            return None
        if ends is None:
            solution = completed(self.in_users_form(ended.values), lambda: _figures(ended))
            return Found(solution, ended.values, starts, ended.interrupted)
        assert self.derivatives is not None  # there are programs of them
        failed = None
        if ended.interrupted:
            found = self.derivatives.missing(ended.values, ended.cost, inputs)
        else:
            failed, point = _failed(ended.status), Point(ended.values, (), ended.matrix, ended.cost)
            found = self.derivatives.differentiated(ends, point, starts, inputs, failed)
        if found is None:
            self.derivatives.rest()
            return None
        values, cost, _ = found.attached
        own = {"cost": cost, "adjoint_residual": found.residual}
        if failed is not None:
            own["differentiable"] = ~failed
        solution = completed(self.in_users_form(values), lambda: {**_figures(ended), **own})
        return Found(solution, values, starts, ended.interrupted)


def _failed(status: Tensor) -> Tensor | None:
    """Which problems are nowhere near a minimum, as far as is known, so that nothing is asked of where they stopped;
    None if none is. Where one has STALLED, that may be as good as converged (`adjoint.judging`)."""
    least, most = torch.aminmax(status)
    if int(least) >= Status.COST_TOLERANCE and int(most) <= Status.STEP_TOLERANCE:
        return None
    return (status == Status.RUNNING) | (status == Status.SINGULAR) | (status == Status.NON_FINITE)


def _figures(ended: Ended) -> dict[str, Any]:
    """The fields of a solution that the solver knows, but its value."""
    left = int(Status.INTERRUPTED if ended.interrupted else Status.MAX_STEPS)
    status = torch.where(ended.status == Status.RUNNING, left, ended.status)
    return {
        "cost": ended.cost,
        "status": status,
        "num_steps": ended.num_steps,
        "num_evaluations": ended.num_evaluations,
        "gradient_norm": ended.gradient_norm,
        "differentiable": (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE),
        "history": ended.history,
    }
