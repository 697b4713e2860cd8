"""Derivatives of a batch that its native program has solved, by native programs alone: no statement of the problem, and
nothing of the user's Python, stands between."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.adjoint.adjoint import Adjoint
from mslsq.adjoint.attachment import Attachment
from mslsq.adjoint.ends import LOOK, LookDraft, PullDraft, key_of_pull, known
from mslsq.adjoint.function import Call, Made
from mslsq.adjoint.implicit import Implicit
from mslsq.adjoint.minimum import Point
from mslsq.adjoint.outputs import Answer, Attached
from mslsq.adjoint.pullback import pulled_back, wanted_of, way_by
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.private import forward_level_is_open, without_saved_tensor_hooks
from mslsq.problem.system import Inputs, Term
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.second_order import written_system
from mslsq.solvers.task import Task

REST = 32
"""Calls that are not tried after one in which a problem had no derivative: it would be solved twice."""


class Differentiated(NamedTuple):
    """A solution with derivatives, which every problem has."""

    attached: Attached
    residual: Tensor
    """How well the linear systems of derivatives are solved."""


@dataclass(frozen=True, eq=False)
class DirectDerivatives:
    """How derivatives are attached to solves by one plan. Holds no tensor and no code of the user's."""

    adjoint: Implicit
    call: Call
    linearizer: Linearizer
    written: dict[str, Any] = field(default_factory=dict)
    rests: list[int] = field(default_factory=lambda: [0])
    """How many calls are not tried."""

    @staticmethod
    def of(adjoint: Adjoint | None, task: Task, plan: Plan) -> "DirectDerivatives | None":
        """The way for solves like this one, by default with the derivatives of `Implicit()`; None where there cannot be
        one."""
        adjoint = Implicit() if adjoint is None else adjoint
        if type(adjoint) is not Implicit or adjoint.hessian != "exact" or adjoint.gauge != "error":
            return None
        system = replace(task.system, terms=tuple(map(_without_code, task.system.terms)), key=None)
        own = replace(task, system=system, trust=None)
        linear = linear_solver_of(task, plan)
        linearizer = plan.linearizer(system, task.batch, task.batched, linear, differentiable=True)
        return DirectDerivatives(adjoint, Call(own, (), adjoint, Made(plan)), linearizer)

    def programs(self, inputs: tuple[Inputs, ...]) -> tuple[LookDraft, PullDraft] | None:
        """Those for derivatives in the inputs that require some; None where one is missing, or where this call is not
        to be tried."""
        if torch.is_autocast_enabled("cpu") or forward_level_is_open():
            return None
        if self.rests[0]:
            self.rests[0] -= 1
            return None
        plan, wanted = self.call.made.plan, wanted_of(inputs)
        assert plan is not None  # it was given
        look, pull = (known(plan, key) for key in (LOOK, key_of_pull(wanted))) if wanted else (None, None)
        return (look, pull) if isinstance(look, LookDraft) and isinstance(pull, PullDraft) else None

    def rest(self) -> None:
        """Some problem has none: the next calls are not tried."""
        self.rests[0] = REST

    def differentiated(
        self,
        programs: tuple[LookDraft, PullDraft],
        values: Values,
        matrix: Tensor,
        cost: Float[Tensor, "batch"],
        starts: Values,
        inputs: tuple[Inputs, ...],
    ) -> Differentiated | None:
        """The solution with derivatives; None where that takes more than the programs: some problem may have none.

        Args:
            values: (batch, count, storage) of every unknown, where all problems have converged.
            matrix: of the last linearization, (batch, components, size, size).
            inputs: as given by the user, those of each problem's own with the batch axis first.
        """
        look, pull = programs
        with torch.no_grad():
            found = look.factor_if_fine(Point(values, (), matrix, cost), inputs)
        if found is None:
            return None
        factor, residual = found
        answer = Answer.of_minimum(values, cost, factor, residual)
        given = tuple(map(_views, inputs))
        attachment = Attachment(self.call, self.linearizer, starts, given, {}, answer, self._written())
        if not attachment.is_kept:
            return None
        way = way_by(pull, attachment, wanted_of(inputs))
        with without_saved_tensor_hooks():
            return Differentiated(pulled_back(self.adjoint, attachment, way, self.adjoint.order), residual)

    def _written(self) -> dict[str, Any]:
        """Gradient and cost, which the chord steps of further derivatives take; as they were written first."""
        if not self.written and self.call.made.plan is not None:
            found = written_system(self.call.made.plan, self.call.task.solver, self.linearizer)
            if found is not None:
                self.written.update(gradient=found.gradient, cost=found.cost)
        return self.written


def _views(inputs: Inputs) -> dict[str, Tensor]:
    """Views of leaves: `Function.apply` would wait for ever for another thread that makes their accumulators
    (`limit`)."""
    return {name: x.view_as(x) if x.requires_grad and x.is_leaf else x for name, x in inputs.items()}


def _without_code(term: Term) -> Term:
    """The term without what the user wrote: programs stand for it."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("jacobians", "curvature", "residual_and_jacobians", "whiten", "whiten_jacobian", "key", "family", "hint")
    )
    return replace(term, residual=_gone, **nothing)


def _gone(*_: Any) -> Any:
    raise AssertionError("programs stand for this residual")
