"""A batch that its native program answers alone: no plan or statement stands between them.

Of 1,024 fits of 32 points the program takes 0.8 ms, and the way through plan and loop as long again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.front.direct import Found, completed, takes_more
from mslsq.front.statement import Solved
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.trace import WITNESS
from mslsq.native.choice import is_switched_off
from mslsq.solution import Status
from mslsq.solvers import Solver
from mslsq.solvers.planning import is_watched
from mslsq.solvers.whole_solves import program_in_use, solved_by


@dataclass(frozen=True, eq=False)
class DirectBatch:
    """The way to the native program of a batch. Holds no tensor of the user's."""

    in_users_form: Callable[[Values], Any]
    solver: Solver
    plan: Plan

    @staticmethod
    def of(solved: Solved) -> "DirectBatch | None":
        """The way for a solve like this one; None where there cannot be one."""
        statement, solver, plan = solved.statement, solved.solver, solved.plan
        if statement.size is None or statement.bounds.of or is_watched(solver) or not plan.is_on_cpu:
            return None
        if not solver.takes_programs or not solver.early_stop or not solver.max_steps:
            return None
        # What is there now must be what was compared with the user's Python when the program was taken up.
        is_compared = plan.holds_whole and plan.whole_witness is plan.execution.graphs.get(WITNESS)
        return DirectBatch(statement.in_users_form, solver, plan) if is_compared else None

    def found(self, starts: Values, inputs: tuple[dict[str, Tensor], ...]) -> Found | None:
        """The solutions; None where it takes more: derivatives, a word of warning, or what is no program.

        Args:
            starts: of every unknown, (batch, count, storage).
            inputs: per term its tensors by name, the batch axis of those that are mapped first.
        """
        program = program_in_use(self.plan)
        if takes_more(starts, inputs) or program is None or is_switched_off():
            return None
        with torch.no_grad():
            ended = solved_by(program, self.solver, self.plan.structure, starts, inputs, ())
        if ended is None or ended.is_idle:
            return None

        def figures() -> dict[str, Any]:
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

        solution = completed(self.in_users_form(ended.values), figures)
        return Found(solution, ended.values, starts, ended.interrupted)
