"""Native programs for the ends of whole solves: of 1,024 fits the look takes 0.15 ms, the pullback 0.07.

They are begun once looking at ends has taken as long as making them does, or at once where a solve is to wait; compared
with Python before a plan uses them, and go when the program of the solves goes (`solvers.whole_solves`).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from mslsq.adjoint.along import gradient_along
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.look import Factored
from mslsq.adjoint.minimum import Evidence, Point
from mslsq.adjoint.outputs import Ended
from mslsq.adjoint.scalar_ends import (
    FACTOR,
    FLAGGED,
    FLAGS,
    GRADIENT,
    HESSIAN,
    IS_FINE,
    RESIDUAL,
    RecordedEnds,
    recorded_look,
    recorded_pull,
)
from mslsq.linear.unrolled import UnrolledCholesky
from mslsq.linearize.blocks import Values
from mslsq.linearize.independent import irregular
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Drafted
from mslsq.linearize.prospects import wait_for
from mslsq.linearize.trace import WITNESS
from mslsq.native.choice import is_recorded_elsewhere, is_switched_off
from mslsq.native.maps import MapMaking, MappedProgram
from mslsq.problem.system import Inputs
from mslsq.solvers.few_problems import MOVED, RELATIVE, FewProblems, differ, some_of
from mslsq.solvers.scalar_system import as_read
from mslsq.solvers.task import Task
from mslsq.solvers.whole_solves import SolveProspect, program_in_use
from mslsq.tracing.graph import TRANSFORM_LOCK

D = TypeVar("D", bound="EndDraft")

LOOK = "look"


class EndDraft(Drafted):
    """A program on its way: written when this is made. Nothing is ever raised: `why_not` says in words why there will
    be none, or no more."""

    def __init__(self, name: str, write: Callable[[str], RecordedEnds], dtype: torch.dtype):
        self._dtype = dtype
        self._making: MapMaking | None = None
        self._program: MappedProgram | None = None
        with self._saying_why():
            recorded = write(name)
            self._own, self._shared, self._returned = recorded.own, recorded.shared, recorded.returned
            self._making = MapMaking(name, recorded.text, recorded.table, dtype)

    def agrees(self, task: Task, plan: Plan, point: Point, inputs: tuple[Inputs, ...]) -> bool:
        """Does the program, which `is_ready`, come to what Python comes to now, near some of the points? Where it does
        not, `why_not` says so."""
        chosen = some_of(torch.isfinite(point.cost))
        if not len(chosen):
            return False  # nothing to compare: next time
        values = tuple(x.index_select(0, chosen) for x in point.values)
        matrix, cost = (x.index_select(0, chosen) for x in (point.matrix, point.cost))
        with TRANSFORM_LOCK, torch.no_grad():
            python = FewProblems.of(chosen, task, plan, inputs, ())
            moved = python.moved(values, MOVED)
            nearby = python.moved(moved, 8 * torch.finfo(self._dtype).eps)
            found = self._figures(Point(moved, (), matrix, cost), python.inputs)
            expected, rounded = (self._expected(python, values) for values in (moved, nearby))
        if differ(found, expected, rounded, RELATIVE[self._dtype]):
            self.why_not = "its numbers differ from those of PyTorch"
        return not self.why_not

    def _figures(self, point: Point, inputs: tuple[Inputs, ...]) -> list[Tensor]:
        """What is compared, (problems, numbers) each, by the program..."""
        raise NotImplementedError

    def _expected(self, python: FewProblems, values: Values) -> list[Tensor]:
        """... and by PyTorch."""
        raise NotImplementedError

    def _run(
        self, given: Sequence[Tensor], inputs: tuple[Inputs, ...], wanted: Sequence[int] | None = None
    ) -> tuple[list[Tensor], Tensor]:
        assert self._program is not None  # it is ready
        return self._program([*given, *as_read(inputs, self._own)], as_read(inputs, self._shared), wanted)


class LookDraft(EndDraft):
    """The look at the points where solves have stopped."""

    def found(self, point: Point, inputs: tuple[Inputs, ...]) -> Factored:
        """What `Look.found` finds."""
        (factor, hessian, residual, flags), _ = self._looked(point, inputs, (FACTOR, HESSIAN, RESIDUAL, FLAGGED))
        told = dict(zip(FLAGS, (flags != 0).unbind(1), strict=True))
        definite = told.pop("definite")
        evidence = Evidence(**told, by_a_bound=torch.zeros_like(definite))
        shape = point.matrix.shape
        return Factored(factor.view(shape), definite, residual[:, 0], evidence, hessian.view(shape))

    def factor_if_fine(
        self, point: Point, inputs: tuple[Inputs, ...], failed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The factors, and how well systems are solved; None where some problem besides those that failed may have no
        derivative where it has stopped."""
        if failed is None:
            (factor, residual), count = self._looked(point, inputs, (FACTOR, RESIDUAL))
            are_fine = count.item() == factor.shape[0]
        else:
            (factor, residual, is_fine), _ = self._looked(point, inputs, (FACTOR, RESIDUAL, IS_FINE))
            are_fine = bool((is_fine[:, 0].bool() | failed).all())
        return (factor.view(point.matrix.shape), residual[:, 0]) if are_fine else None

    def _looked(self, point: Point, inputs: tuple[Inputs, ...], wanted: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        return self._run([*point.values, point.matrix, point.cost], inputs, wanted)

    def _figures(self, point: Point, inputs: tuple[Inputs, ...]) -> list[Tensor]:
        return self._looked(point, inputs, (HESSIAN, GRADIENT))[0]

    def _expected(self, python: FewProblems, values: Values) -> list[Tensor]:
        linearizer = python.linearizer(UnrolledCholesky())
        given = linearizer.prepare(python.inputs)
        return [linearizer.hessian(values, given).flatten(1), linearizer.gradient(values, given)]


class PullDraft(EndDraft):
    """The pullback of cotangents in the tangent to some inputs."""

    def pulled(
        self, values: Values, inputs: tuple[Inputs, ...], factor: Tensor, towards: Tensor
    ) -> dict[tuple[int, str], Tensor]:
        """By term and name of an input, in its shape."""
        outputs, sums = self._run([*values, factor, towards], inputs)
        found, first = {}, 0
        for number, (term, name) in enumerate(self._returned):
            given = inputs[term][name]
            if number < len(outputs):
                pulled = outputs[number]
                is_like = pulled.shape == given.shape and pulled.dtype == given.dtype
                found[term, name] = pulled if is_like else pulled.view(given.shape).to(given.dtype)
                continue
            found[term, name] = sums[first : first + given.numel()].view(given.shape).to(given.dtype)
            first += given.numel()
        return found

    def _figures(self, point: Point, inputs: tuple[Inputs, ...]) -> list[Tensor]:
        unit = torch.eye(point.matrix.shape[-1], dtype=self._dtype, device="cpu").expand_as(point.matrix).contiguous()
        along = irregular(point.matrix.shape[1] * point.matrix.shape[2], point.values[0])
        found = self.pulled(point.values, inputs, unit, -along.expand(len(unit), -1))
        return [found[key].reshape(1, -1) for key in self._returned]

    def _expected(self, python: FewProblems, values: Values) -> list[Tensor]:
        linearizer = python.linearizer(UnrolledCholesky())
        wanted = tuple((term, name) in self._returned for term, given in enumerate(python.inputs) for name in given)
        move = irregular(linearizer.structure.num_columns, values[0]).expand(len(values[0]), -1)
        found = iter(gradient_along(linearizer, values, python.inputs, move, wanted))
        by_key = {
            (term, name): next(found)
            for term, given in enumerate(python.inputs)
            for name in given
            if (term, name) in self._returned
        }
        return [by_key[key].reshape(1, -1) for key in self._returned]


def look_of(ended: Ended, point: Point, factorization: Factorization) -> LookDraft | None:
    """The program for the look at this end; None where there is none, or none yet."""
    task, plan = ended.task, ended.outcome.planned[0]
    if type(factorization) is not Factorization or factorization.hessian != "exact" or ended.bounds:
        return None
    if task.outer is not None or not task.ranks.is_alone:
        return None

    def made() -> LookDraft:
        def write(name: str) -> RecordedEnds:
            return recorded_look(name, task, plan, point.values, ended.given, factorization)

        return LookDraft(LOOK, write, point.cost.dtype)

    return _in_use(LOOK, made, task, plan, point, ended.given)


def pull_of(
    task: Task, plan: Plan, point: Point, inputs: tuple[Inputs, ...], wanted: dict[int, tuple[str, ...]]
) -> PullDraft | None:
    """The program for the pullback to these inputs, where there is one for the look; `inputs` as given by the user."""
    prospect = _prospect_of(plan)
    if prospect is None or LOOK not in plan.ends_witness:
        return None

    def made() -> PullDraft:
        def write(name: str) -> RecordedEnds:
            return recorded_pull(name, task, plan, point.values, inputs, wanted)

        return PullDraft("pull", write, point.cost.dtype)

    return _in_use(key_of_pull(wanted), made, task, plan, point, inputs)


def key_of_pull(wanted: dict[int, tuple[str, ...]]) -> Hashable:
    """Under which the pullback to these inputs is known."""
    return "pull", tuple(wanted.items())


def known(plan: Plan, key: Hashable) -> EndDraft | None:
    """The program of this key, if solves by this plan have taken it up."""
    prospect = _prospect_of(plan)
    draft = None if prospect is None else prospect.ends.get(key)
    return draft if draft is not None and _is_taken_up(plan, key) and draft.is_ready else None


def _prospect_of(plan: Plan) -> SolveProspect | None:
    return plan.plain.whole if program_in_use(plan) is not None else None


def _is_taken_up(plan: Plan, key: Hashable) -> bool:
    """Has it been compared with the user's Python as it is now?"""
    return key in plan.ends_witness and plan.ends_witness[key] is plan.execution.graphs.get(WITNESS)


def _in_use(
    key: Hashable, made: Callable[[], D], task: Task, plan: Plan, point: Point, inputs: tuple[Inputs, ...]
) -> D | None:
    prospect, wish = _prospect_of(plan), task.solver.native_choice
    if prospect is None or wish == "never" or is_switched_off() or is_recorded_elsewhere():
        return None
    draft = prospect.ends.get(key)
    if draft is None:
        if wish != "wait" and prospect.seconds_of_looks <= prospect.enough:
            return None
        draft = prospect.ends[key] = made()
    if not draft.is_ready:
        wait_for([draft], plan, wish)
        if not draft.is_ready:
            return None
    if not _is_taken_up(plan, key):
        if not draft.agrees(task, plan, point, inputs):
            return None
        plan.ends_witness[key] = plan.execution.graphs.get(WITNESS)
    return draft
