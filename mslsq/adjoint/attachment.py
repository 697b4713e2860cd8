"""What an adjoint is given: the answer of a solve, and the system at the level of the caller's derivatives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.adjoint.function import Call, with_batch_axis
from mslsq.adjoint.outputs import Answer, Attached
from mslsq.levels import belongs_to, constant
from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.private import forward_modes_are_nested, transforms_are_active
from mslsq.problem.system import Inputs, Unknown
from mslsq.solvers.box import Landing, box_of, on_bounds
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.second_order import written_system
from mslsq.tracing.recording import Recorded

COST = "cost"
"""The name of its graph."""


@dataclass(frozen=True, eq=False)
class Attachment:
    """The tensors here carry the derivatives of the caller; those of `answer` carry none."""

    call: Call
    linearizer: Linearizer
    start: Values
    inputs: tuple[Inputs, ...]
    bounds: Inputs
    """By the names of `Unknown.bounds`, as the user gave them; empty where there are none."""
    answer: Answer
    written: Mapping[str, Callable[[Values, TermInputs], Tensor]] | None = None
    """Gradient and cost as scalars, where the caller has them."""

    def with_inputs(self, inputs: tuple[Inputs, ...]) -> "Attachment":
        """The same for the same numbers with other derivatives; what is kept stays what it is."""
        return replace(self, inputs=inputs, written=self._kept)

    @property
    def failed(self) -> Bool[Tensor, "batch"]:
        """The problems that have no derivative."""
        return ~self.answer.differentiable

    def solution(self, fill: float = 0.0) -> Values:
        """The solution, its free entries constant. What is held depends on data of the problem: fixed blocks on where
        they are held, entries on a bound on that (of a problem that failed with the derivative `fill`)."""
        sides, bounds = self.landing, self.guarded_bounds(fill)
        result = []
        for number, (unknown, before, after) in enumerate(
            zip(self.call.task.system.unknowns, self.start, self.answer.values, strict=True)
        ):
            if unknown.is_bounded and sides is not None:
                lower, upper = (bounds[name] for name in unknown.bounds)
                at_lower, at_upper = (self.linearizer.structure.to_blocks(side, False)[number] for side in sides)
                after = torch.where(at_lower, lower, torch.where(at_upper, upper, after))
            result.append(after if unknown.free is None else _held(unknown, before, after))
        return tuple(result)

    @cached_property
    def landing(self) -> Landing | None:
        """The columns that bounds hold at the solution; None where there are none."""
        if not self.bounds:
            return None
        bounds = with_batch_axis(self.call.task, {name: constant(bound) for name, bound in self.bounds.items()})
        values = self.answer.values
        return on_bounds(self.linearizer, values, box_of(self.linearizer, values, bounds))

    @cached_property
    def free(self) -> Bool[Tensor, "batch columns"] | None:
        """The columns that no bound holds; None where there are no bounds."""
        return None if self.landing is None else ~(self.landing.lower | self.landing.upper)

    def of_free(self, vector: Tensor) -> Tensor:
        """(batch, columns) without the columns that bounds hold."""
        return vector if not self.bounds or self.free is None else torch.where(self.free, vector, 0)

    def guarded_bounds(self, fill: float) -> dict[str, Tensor]:
        """The bounds as (batch or 1, count, tangent), guarded as inputs are."""
        batched = self.call.task.batched_bounds
        guarded = {
            name: self._own(t, fill) if not self.nothing_failed and self._belongs(name in batched, t) else t
            for name, t in self.bounds.items()
        }
        return with_batch_axis(self.call.task, guarded)

    @cached_property
    def nothing_failed(self) -> bool:
        """Is it known that every problem has a derivative? Under a transform that cannot be known, nor where no number
        may be read."""
        return not transforms_are_active() and self.asks and bool(self.answer.differentiable.all())

    @property
    def asks(self) -> bool:
        """May numbers be read?"""
        plan = self.call.made.plan
        return plan is None or plan.may_be_asked(self.call.task.solver.early_stop)

    def gradient(self, values: Values, inputs: TermInputs) -> Tensor:
        """The exact gradient of the cost, as it was written or recorded where it was: a third of the time for 1024
        fits."""
        return self._kept.get("gradient", self.linearizer.gradient)(values, inputs)

    def cost(self, values: Values, inputs: TermInputs) -> Tensor:
        """The cost, in the same way."""
        return self._kept.get("cost", self.linearizer.cost)(values, inputs)

    def linearization(self, linearizer: Linearizer, inputs: TermInputs) -> Callable[..., Linearization]:
        """`linearizer.linearize`, from a recorded graph where that pays and no transform is running: a quarter of the
        time for 1024 fits."""
        if transforms_are_active():
            return linearizer.linearize
        name = linearization_name(linearizer.linear_solver)
        graph = self.recorded(name, linearizer.linearize, self.answer.values, inputs)
        return linearizer.linearize if graph is None else graph.differentiable

    def cost_of(self, linearizer: Linearizer, inputs: TermInputs) -> Callable[..., Tensor]:
        """`linearizer.cost`, from a recorded graph where `linearization` has one, too."""
        if transforms_are_active():
            return linearizer.cost
        graph = self.recorded(COST, linearizer.cost, self.answer.values, inputs)
        return linearizer.cost if graph is None else graph.differentiable

    @property
    def is_kept(self) -> bool:
        """Can everything be differentiated that derivatives need without another call of the user's Python?"""
        return bool(self._kept)

    @cached_property
    def _kept(self) -> Mapping[str, Callable[[Values, TermInputs], Tensor]]:
        """Gradient and cost as scalars or as recorded graphs, recorded now if that pays; none where one is missing, or
        under a transform."""
        if self.written is not None:
            return self.written
        plan, solver = self.call.made.plan, self.call.task.solver
        if transforms_are_active() or plan is None:
            return {}
        written = written_system(plan, solver, self.linearizer)
        if written is not None:
            return {"gradient": written.gradient, "cost": written.cost}
        found = {}
        with torch.no_grad():
            at = self.answer.values, self.linearizer.prepare(self.inputs)
            for name, function in (("gradient", self.linearizer.gradient), ("cost", self.linearizer.cost)):
                graph = plan.execution.graph(name, solver.execution, function, *at)
                if graph is None:
                    return {}
                found[name] = graph.differentiable
        return found

    def recorded(self, name: str, function: Callable[..., Any], *example: Any) -> Recorded | None:
        """The graph of that name among those of the plan, recorded as the solver says, compiled where it is small."""
        plan, wish = self.call.made.plan, self.call.task.solver.execution
        return None if plan is None else plan.execution.graph(name, wish, function, *example, compiled="small")

    def prepared(self, fill: float) -> TermInputs:
        """The inputs as `guarded`, in the layout of the lanes."""
        return self.linearizer.prepare(self.guarded(fill))

    def guarded(self, fill: float) -> tuple[dict[str, Tensor], ...]:
        """The inputs. Those that belong to a failed problem alone get the derivative `fill` back; those that it shares
        with others get nothing from it."""
        if self.nothing_failed:
            return tuple(dict(given) for given in self.inputs)
        return tuple(
            {name: self._own(t, fill) if self._belongs(name in batched, t) else t for name, t in given.items()}
            for given, batched in zip(self.inputs, self.call.task.batched, strict=True)
        )

    def _belongs(self, batched: bool, tensor: Tensor) -> bool:
        """Has each problem an input of its own: along the batch axis, and along every axis that a `vmap` maps?"""
        if not tensor.is_floating_point() or (self.call.task.batch > 1 and not batched):
            return False
        return belongs_to(tensor, self.answer.differentiable)

    def _own(self, tensor: Tensor, fill: float) -> Tensor:
        failed = self.failed
        mask = per_entry(failed, tensor) if len(failed) > 1 else failed[0]
        # Data that are not finite would turn the zero that a failed problem passes on to shared parameters into NaN.
        return torch.where(mask & ~torch.isfinite(tensor), 1.0, marked(tensor, mask, fill, fill))

    def with_value(self, found: Attached, fill: float) -> Attached:
        """What was found with the numbers of the answer; `fill` as tangent of what has failed."""
        answer, (values, cost, multipliers) = self.answer, found
        if self.nothing_failed:
            moves = zip(answer.values, values, strict=True)
            kept = tuple(x + (moved - constant(moved)) for x, moved in moves)
            return Attached(kept, answer.cost + (cost - constant(cost)), multipliers)
        attached = tuple(
            marked(solved + (moved - constant(moved)), per_entry(self.failed, solved), fill, 0.0)
            for solved, moved in zip(answer.values, values, strict=True)
        )
        cost = torch.where(self.failed, 0, cost)
        multipliers = {name: marked(x, per_entry(self.failed, x), fill, 0.0) for name, x in multipliers.items()}
        return Attached(attached, marked(answer.cost + (cost - constant(cost)), self.failed, fill, 0.0), multipliers)


def linearization_name(linear: LinearSolver) -> str:
    """Of the graph of the linearization for steps that this linear solver takes."""
    return f"linearization, {type(linear).__name__}"


def attachment_of(call: Call, start: Values, inputs: tuple[Inputs, ...], bounds: Inputs, answer: Answer) -> Attachment:
    """The system batched as the caller sees it, with the residuals as the solve captured them."""
    plan = call.made.plan
    assert plan is not None  # the solve has just been run
    task = call.task
    linear = linear_solver_of(task, plan)
    linearizer = plan.linearizer(task.system, task.batch, task.batched, linear, differentiable=True)
    return Attachment(call, linearizer, start, inputs, bounds, answer)


class Failed(torch.autograd.Function):
    """x, with derivatives replaced: tangents by `forward_fill`, cotangents by `backward_fill`.

    A solution gets NaN tangents where it has no derivative, and passes zero back, so that parameters shared with the
    other problems of the batch stay clean; its own data get NaN back, from the same Function around them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor, forward_fill: float, backward_fill: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mask, ctx.forward_fill, ctx.backward_fill = inputs
        ctx.save_for_backward(x, mask)
        ctx.save_for_forward(x, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _filled(ctx, ctx.backward_fill, gradient), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _filled(ctx, ctx.forward_fill, tangent)


def _filled(ctx: Any, fill: float, derivative: Tensor) -> Tensor:
    """`fill` under the mask, else zero; and where it is not zero, so are its own derivatives: a constant NaN has the
    derivative zero, and so had the Hessian of a problem that has no derivative at all."""
    x, mask = ctx.saved_tensors
    if fill == 0:
        return torch.where(mask, fill, 0 * derivative)
    return torch.where(mask, fill + 0 * Failed.apply(x, mask, ctx.forward_fill, ctx.backward_fill), 0 * derivative)


def marked(x: Tensor, mask: Tensor, forward_fill: float, backward_fill: float) -> Tensor:
    """x, its derivatives replaced under the mask.

    The others do not pass through the Function: under `jacfwd(jacfwd(...))` its own derivative is lost (pytorch
    #197867), so it has none for them. What has failed gets its NaN there from the root of zero, x − x squared: its
    derivatives of all orders are NaN. (Only there: backward it passes NaN on to what others share.)
    """
    found = torch.where(mask, Failed.apply(x, mask, forward_fill, backward_fill), x)
    if forward_fill == 0 or not forward_modes_are_nested():
        return found
    mask = mask & torch.isfinite(found)
    zero = torch.where(mask, found - constant(found), 1.0)  # of no other is a root of zero differentiated
    return found + torch.where(mask, (zero * zero).sqrt(), 0)


def per_entry(mask: Bool[Tensor, "batch"], like: Tensor) -> Tensor:
    """The mask of a batch, shaped to broadcast with a tensor whose first axis is the batch."""
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def _held(unknown: Unknown, start: Tensor, end: Tensor) -> Float[Tensor, "batch count storage"]:
    """What a solution is by where it began: what is held is the start's, what moves has the distance that it has moved.

    Of a block on a manifold that is held in part the start decides among which elements it moves: it is start ⊞ δ with
    a constant δ, zero in what is held. Written as a small move from the end, whose storage it keeps (a quaternion has
    two signs).
    """
    assert unknown.free is not None  # the caller has looked
    free, space = unknown.free[None], unknown.space
    if space.is_euclidean:
        return torch.where(free, end, start)
    result = torch.where(free.any(-1, keepdim=True), end, start)
    if not unknown.is_held_in_part:
        return result
    step = torch.where(free, space.local(constant(start), end), 0)
    moved = space.retract(end, space.local(end, space.retract(start, step)))
    is_in_part = free.any(-1, keepdim=True) & ~free.all(-1, keepdim=True)
    return torch.where(is_in_part, moved, result)
