"""Derivatives of the steps of a solve that is recorded: they are taken again by what is recorded, and nothing of the
user's Python is called."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import Adjoint
from mslsq.adjoint.attachment import COST, Attachment, linearization_name
from mslsq.adjoint.direct import Differentiated, views, without_code
from mslsq.adjoint.function import Call, Made
from mslsq.adjoint.linear_steps import differentiable
from mslsq.adjoint.outputs import Answer
from mslsq.adjoint.unrolled import Unrolled
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.private import forward_level_is_open, without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.run import Trajectory
from mslsq.solvers.task import Task


@dataclass(frozen=True, eq=False)
class DirectSteps:
    """How `Unrolled` differentiates solves by one plan. Holds no tensor and no code of the user's."""

    adjoint: Unrolled
    call: Call
    linearizer: Linearizer

    @staticmethod
    def of(adjoint: Adjoint | None, task: Task, plan: Plan) -> "DirectSteps | None":
        """The way for solves like this one; None where there is none, or where another adjoint is asked for."""
        if type(adjoint) is not Unrolled or adjoint.checkpoint or task.solver.bends_always:
            return None
        own = without_code(task)
        linear = linear_solver_of(task, plan)
        linearizer = plan.linearizer(own.system, task.batch, task.batched, linear, differentiable=True)
        return DirectSteps(adjoint, Call(own, (), adjoint, Made(plan)), linearizer)

    @property
    def is_known(self) -> bool:
        """Is all recorded that takes the steps again?"""
        plan, wish = self.call.made.plan, self.call.task.solver.execution
        if plan is None or torch.is_autocast_enabled("cpu") or forward_level_is_open():
            return False
        names = linearization_name(differentiable(self.linearizer.linear_solver)), COST
        return all(plan.execution.known(name, wish) is not None for name in names)

    def differentiated(
        self,
        values: Values,
        cost: Tensor,
        trajectory: Trajectory | tuple[()],
        starts: Values,
        inputs: tuple[Inputs, ...],
    ) -> Differentiated | None:
        """The solution with derivatives; None where its numbers are not finite.

        Args:
            values, cost: where the steps have ended.
            trajectory: what they can be taken again from.
            starts, inputs: as given by the user.
        """
        if not all(bool(torch.isfinite(x).all()) for x in values):
            return None
        missing = torch.full_like(cost, torch.nan)
        answer = Answer.of_minimum(values, cost, cost.new_zeros(0), missing)._replace(trajectory=trajectory)
        attachment = Attachment(self.call, self.linearizer, starts, tuple(map(views, inputs)), {}, answer)
        with without_saved_tensor_hooks():
            return Differentiated(self.adjoint.attach(attachment), missing)
