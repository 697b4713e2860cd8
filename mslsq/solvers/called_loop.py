"""The loop of a native program of the steps around the recorded linearization of one problem: nothing but that is run.

A linearization of a curve is 20 operations of PyTorch, a step is 300 more: as C++ they take some µs (`steps_program`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.solution import History, Status
from mslsq.solvers.native_steps import BY_DEFAULT, Methods, stepped_by
from mslsq.solvers.solver import Solver
from mslsq.solvers.whole_solves import Ended


class Called(NamedTuple):
    """The end of the loop."""

    values: Values
    """(1, count, storage) of every unknown."""
    ended: Ended
    methods: Methods
    """Before every step, if they were asked for."""

    @property
    def interrupted(self) -> bool:
        return self.ended.interrupted

    @property
    def status(self) -> Tensor:
        return self.ended.status

    def fields(self) -> dict[str, Any]:
        """The fields of a solution that the solver knows, but its value."""
        ended = self.ended
        left = int(Status.INTERRUPTED if ended.interrupted else Status.MAX_STEPS)
        status = torch.where(ended.status == Status.RUNNING, left, ended.status)[0]
        return {
            "cost": ended.cost[0],
            "status": status,
            "num_steps": ended.num_steps[0],
            "num_evaluations": ended.num_evaluations[0],
            "gradient_norm": ended.gradient_norm[0],
            "differentiable": (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE),
            "history": History(*[column[0] for column in ended.history.columns]),
        }


@dataclass(frozen=True, eq=False)
class CalledLoop:
    """The way to the program of the steps and to the recorded linearization. Holds nothing of the user's.

    Args:
        linearizer: of the plan's structure; none of its terms is called.
    """

    plan: Plan
    solver: Solver
    linearizer: Linearizer

    def solve(self, values: Values, inputs: TermInputs, keep_methods: bool = False) -> Called | None:
        """The end of a solve; None where the program or the graph is not there, or where there is more to be done.

        Args:
            values: the start of every unknown, (1, count, storage).
            inputs: in the layout of the lanes. Gradients must be off.
            keep_methods: are the method's states before every step wanted?
        """
        known: Sequence[Any] = self.plan.plain.steps or (None,)
        graph = self.plan.execution.known("linearize", self.solver.execution)
        if known[0] is None or graph is None or self.solver.execution != BY_DEFAULT or not self.solver.max_steps:
            return None
        steps, values = known[0], tuple([x.contiguous() for x in values])
        program = steps.program(self.linearizer, values)
        if program is None:
            return None

        def sums(at: Values) -> Tensor:
            return steps.sum_up(Linearization(*graph(at, inputs)))

        found = stepped_by(steps, program, self.plan, self.solver, values, sums, keep_methods)
        if found is None or found[0].is_idle:
            return None
        return Called(found[0].values, *found)
