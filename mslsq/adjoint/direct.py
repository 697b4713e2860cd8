"""Derivatives of a solve by what is native or recorded of its end alone: no statement of the problem, and nothing of
the user's Python, stands between."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import Adjoint
from mslsq.adjoint.around_programs import CURVATURE, hessian_name, hessian_of_python, look_name, pullback_name
from mslsq.adjoint.attachment import Attachment
from mslsq.adjoint.ends import LOOK, LookDraft, PullDraft, key_of_pull, known
from mslsq.adjoint.failures import can_be_spared, sparing_failed
from mslsq.adjoint.function import Call, Made
from mslsq.adjoint.implicit import Implicit
from mslsq.adjoint.look import Look
from mslsq.adjoint.minimum import Point
from mslsq.adjoint.outputs import Answer, Attached
from mslsq.adjoint.pullback import (
    THROUGH_RETRACTION,
    Way,
    by_moves,
    name_to_inputs,
    pulled_back,
    wanted_of,
    way_by,
    way_by_mixed,
)
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.linearize.plan_cache import PlanCache
from mslsq.private import forward_level_is_open, without_saved_tensor_hooks
from mslsq.problem.system import Inputs, Term
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.second_order import kinds_of_programs, may_be_compiled_now, written_system
from mslsq.solvers.task import Task
from mslsq.tracing.recording import Recorded

REST = 32
"""Calls that are not tried after one in which a problem had no derivative: it would be solved twice."""


class Differentiated(NamedTuple):
    """A solution with derivatives, which every problem has, or none (`DirectDerivatives.missing`)."""

    attached: Attached
    residual: Tensor
    """How well the linear systems of derivatives are solved."""


Wanted = dict[int, tuple[str, ...]]
"""By term the names of the inputs that a derivative is to be taken of."""


class DirectEnds(Protocol):
    """What looks at an end, and takes a cotangent of the solution to inputs."""

    def factor_if_fine(
        self, point: Point, inputs: tuple[Inputs, ...], failed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The factors of the Hessians, and how well systems with them are solved; None where some problem, besides
        those that failed, may have no derivative where it has stopped. Gradients must be off."""
        ...

    def way(self, attachment: Attachment) -> Way:
        """The pullback to the wanted inputs."""
        ...


class ByPrograms(NamedTuple):
    """Of small dense problems, by native programs of the look and of the pullback."""

    look: LookDraft
    pull: PullDraft
    wanted: Wanted

    def factor_if_fine(
        self, point: Point, inputs: tuple[Inputs, ...], failed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        return self.look.factor_if_fine(point, inputs, failed)

    def way(self, attachment: Attachment) -> Way:
        return way_by(self.pull, attachment, self.wanted)


class ByGraphs(NamedTuple):
    """Of one problem, by recorded graphs: around native programs for its blocks, or of what the user wrote."""

    look: Recorded
    judge: Look
    pull: Callable[[Attachment], Way]

    def factor_if_fine(
        self, point: Point, inputs: tuple[Inputs, ...], failed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        assert failed is None  # it is one problem
        found = self.look(*point[:4])
        return (found.factor, found.residual) if bool(self.judge.is_fine(found).all()) else None

    def way(self, attachment: Attachment) -> Way:
        return self.pull(attachment)


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
        own = without_code(task)
        linear = linear_solver_of(task, plan)
        linearizer = plan.linearizer(own.system, task.batch, task.batched, linear, differentiable=True)
        return DirectDerivatives(adjoint, Call(own, (), adjoint, Made(plan)), linearizer)

    def ends(self, starts: Values, inputs: tuple[Inputs, ...], is_whole: bool) -> DirectEnds | None:
        """What differentiates in the inputs that require derivatives; None where something of it is missing, or where
        this call is not to be tried.

        Args:
            is_whole: is the solve one native program?
        """
        if torch.is_autocast_enabled("cpu") or forward_level_is_open():
            return None
        unknowns = self.call.task.system.unknowns
        if any(x.requires_grad and unknown.free is not None for unknown, x in zip(unknowns, starts, strict=True)):
            return None  # a block that is held has the derivative of its start
        if self.rests[0]:
            self.rests[0] -= 1
            return None
        plan, wanted = self.call.made.plan, wanted_of(inputs)
        assert plan is not None  # it was given
        if not wanted:
            return None
        if not is_whole:
            return self._graphs(plan, wanted, inputs)
        look, pull = known(plan, LOOK), known(plan, key_of_pull(wanted))
        return ByPrograms(look, pull, wanted) if isinstance(look, LookDraft) and isinstance(pull, PullDraft) else None

    def _graphs(self, plan: Plan, wanted: Wanted, inputs: tuple[Inputs, ...]) -> ByGraphs | None:
        solver, kind = self.call.task.solver, self.adjoint.hessian
        if may_be_compiled_now(plan, solver, wanted):
            return None  # it is taken up, and graphs around it recorded
        if plan.has_second_order(*kinds_of_programs(solver)) and plan.seconds:
            hessians = [hessian_name([plan.seconds[number] for number in range(len(plan.sizes))], kind)]
            pull = self._pull_by_programs(plan, wanted)
        else:
            hessians, pull = [CURVATURE, hessian_of_python(kind)], self._pull_of_python(inputs)
        looks = [self._known(look_name(hessian, solver)) for hessian in hessians]
        look = next((one for one in looks if one is not None), None)
        if look is None or pull is None:
            return None
        return ByGraphs(look, Look(self.linearizer, self.adjoint.factorization, solver), pull)

    def _pull_by_programs(self, plan: Plan, wanted: Wanted) -> Callable[[Attachment], Way] | None:
        programs = {number: plan.mixed.get((number, names)) for number, names in wanted.items()}
        mixed = {number: program for number, program in programs.items() if program is not None}
        if len(mixed) < len(programs):
            return None
        if self.linearizer.linear_solver.storage.is_dense:
            return lambda attachment: way_by_mixed(self.adjoint, attachment, mixed)
        graph = self._known(pullback_name(mixed))
        return None if graph is None else partial(_by_one_graph, graph)

    def _pull_of_python(self, inputs: tuple[Inputs, ...]) -> Callable[[Attachment], Way] | None:
        wanted = [x.requires_grad for given in inputs for x in given.values()]
        first, second = self._known(THROUGH_RETRACTION), self._known(name_to_inputs(wanted))
        if first is None or second is None or not self._of_python():
            return None
        return lambda attachment: by_moves(self.adjoint, attachment, first, second)

    def _known(self, name: str) -> Recorded | None:
        plan = self.call.made.plan
        return None if plan is None else plan.execution.known(name, self.call.task.solver.execution)

    def _of_python(self) -> dict[str, Any]:
        """Gradient and cost as they were recorded; nothing where one was not."""
        found = {name: self._known(name) for name in ("gradient", "cost")}
        known = {name: graph.differentiable for name, graph in found.items() if graph is not None}
        return known if len(known) == len(found) else {}

    def rest(self) -> None:
        """Some problem has none: the next calls are not tried."""
        self.rests[0] = REST

    def differentiated(
        self,
        ends: DirectEnds,
        point: Point,
        starts: Values,
        inputs: tuple[Inputs, ...],
        failed: Tensor | None = None,
    ) -> Differentiated | None:
        """The solution with derivatives; None where that takes more than these ends: some problem may have none.

        Args:
            point: where all problems have converged, or failed.
            inputs: as given by the user, those of each problem's own with the batch axis first.
            failed: which of them failed so that nothing needs to be said of it; None if none has.
        """
        with without_saved_tensor_hooks():
            written = self._written()
            if not written:
                return None
            with torch.no_grad():
                found = ends.factor_if_fine(point, inputs, failed)
            if found is None:
                return None
            factor, residual = found
            answer = Answer.of_minimum(point.values, point.cost, factor, residual, failed)
            given = tuple(map(views, inputs))
            attachment = Attachment(self.call, self.linearizer, starts, given, {}, answer, written)
            way = ends.way(attachment)
            if failed is not None:
                if not can_be_spared(attachment):
                    return None
                way = sparing_failed(way, attachment, self.adjoint.fill)
            return Differentiated(pulled_back(self.adjoint, attachment, way, self.adjoint.order), residual)

    def missing(self, values: Values, cost: Tensor, inputs: tuple[Inputs, ...]) -> Differentiated:
        """The point where a solve was interrupted: its derivatives are what `Implicit.failed` says."""
        fill = self.adjoint.fill
        wanted = [x for given in map(views, inputs) for x in given.values() if x.requires_grad]
        *found, cost = _Missing.apply(fill, len(values) + 1, *values, cost, *wanted)
        return Differentiated(Attached(tuple(found), cost), torch.full_like(cost, torch.nan))

    def _written(self) -> dict[str, Any]:
        """Gradient and cost, which the chord steps of further derivatives take; as they were written first."""
        if not self.written and self.call.made.plan is not None:
            found = written_system(self.call.made.plan, self.call.task.solver, self.linearizer)
            if found is not None:
                self.written.update(gradient=found.gradient, cost=found.cost)
        return self.written or self._of_python()


def _by_one_graph(graph: Recorded, attachment: Attachment) -> Way:
    factor = attachment.answer.factor
    return lambda values, inputs, towards: graph(values, inputs, factor, towards)


class _Missing(torch.autograd.Function):
    """The first tensors as they are; the derivative in all others is `fill`."""

    @staticmethod
    def forward(ctx: Any, fill: float, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.fill, ctx.count, ctx.like = fill, count, [x.detach() for x in tensors[count:]]
        return tuple([x.clone() for x in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (*(None for _ in range(2 + ctx.count)), *(torch.full_like(x, ctx.fill) for x in ctx.like))


def views(inputs: Inputs) -> dict[str, Tensor]:
    """Views of leaves: `Function.apply` would wait for ever for another thread that makes their accumulators
    (`limit`)."""
    return {name: x.view_as(x) if x.requires_grad and x.is_leaf else x for name, x in inputs.items()}


def without_code(task: Task) -> Task:
    """The task without what the user wrote, and without what it has found."""
    system = replace(task.system, terms=tuple(map(_of_term, task.system.terms)), key=None)
    return replace(task, system=system, trust=None, cache=PlanCache())


def _of_term(term: Term) -> Term:
    """The term without what the user wrote: programs stand for it."""
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "jacobians",
            "curvature",
            "residual_and_jacobians",
            "whiten",
            "whiten_jacobian",
            "key",
            "family",
            "hint",
            "check_kept",
        )
    )
    return replace(term, residual=_gone, **nothing)


def _gone(*_: Any) -> Any:
    raise AssertionError("programs stand for this residual")
