"""The solve as one `torch.autograd.Function`, whose `vmap` rule folds a mapped axis into the batch.

Whatever transforms are active outside, the loop itself runs on plain tensors with an explicit batch axis: it may
stop early, ask for values, replay graphs. Inputs that are not mapped stay shared by the whole batch, in memory too.
Derivatives are attached afterwards by an adjoint (`attachment`).
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.adjoint import Adjoint, unprepared
from mslsq.adjoint.looking import has_looked
from mslsq.adjoint.outputs import Answer, Ended
from mslsq.adjoint.rejection import decided, with_found
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.private import without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solvers.run import run
from mslsq.solvers.task import Task


@dataclass
class Made:
    """What the innermost call made, for the one who attaches derivatives outside."""

    plan: Plan | None = None
    structure: pytree.Structure | None = None
    """How the flat output belongs together: an `Answer`."""
    interrupted: bool = False
    """Has a KeyboardInterrupt ended the solve?"""
    iterations: tuple[int, ...] = ()
    """What each step of the trajectory was allowed (`Outcome.iterations`)."""


@dataclass(frozen=True, eq=False)
class Call:
    """The static part of a call of `Solve`: how the flat tensors belong together."""

    task: Task
    names: tuple[tuple[str, ...], ...]
    """Per term the names of its inputs, and at the end those of the bounds."""
    adjoint: Adjoint | None
    """What will attach derivatives; None where none are taken."""
    made: Made = field(default_factory=Made)

    def flatten(self, values: Values, inputs: tuple[Inputs, ...], bounds: Inputs) -> list[Tensor]:
        flat = list(values)
        for names, given in zip(self.names, (*inputs, bounds), strict=True):
            flat.extend(given[name] for name in names)
        return flat

    def unflatten(self, tensors: tuple[Tensor, ...]) -> tuple[Values, tuple[dict[str, Tensor], ...], dict[str, Tensor]]:
        count = len(self.task.system.unknowns)
        rest = iter(tensors[count:])
        *inputs, bounds = ({name: next(rest) for name in names} for names in self.names)
        return tensors[:count], tuple(inputs), bounds

    def batched_flags(self) -> list[bool]:
        """Per flat tensor: does it have a leading batch axis?"""
        flags = [True] * len(self.task.system.unknowns)
        for names, batched in zip(self.names, (*self.task.batched, self.task.batched_bounds), strict=True):
            flags.extend(name in batched for name in names)
        return flags

    def run(self, values: Values, inputs: tuple[Inputs, ...], bounds: Inputs) -> Answer:
        """Solve on plain tensors, and let the adjoint prepare for derivatives."""
        adjoint = self.adjoint
        keep = adjoint is not None and adjoint.keeps_trajectory
        bounds = with_batch_axis(self.task, bounds)
        outer, findings = self.task.outer, None
        if outer is None:
            outcome = run(self.task, values, inputs, keep, differentiated=adjoint is not None, bounds=bounds)
        else:
            outcome, findings = outer.solved(self.task, values, inputs, bounds, differentiated=adjoint is not None)
            inputs = with_found(inputs, findings.inputs)
        ended = Ended(self.task, values, outcome, bounds, inputs)
        if adjoint is None:
            prepared = unprepared(ended)
        else:
            begin = time.thread_time()  # of this thread: other threads' time must not decide what is made
            prepared = adjoint.prepare(ended)
            outcome = prepared.outcome or outcome
            has_looked(ended, inputs, time.thread_time() - begin)
        if findings is not None:
            says = adjoint is not None and outcome.planned[0].may_be_asked(self.task.solver.early_stop)
            differentiable = decided(prepared.differentiable, findings, says)
            prepared = prepared._replace(differentiable=differentiable)
        self.made.plan, self.made.interrupted = outcome.planned[0], outcome.interrupted
        self.made.iterations = outcome.iterations
        return Answer(
            outcome.values,
            outcome.cost if findings is None or findings.cost is None else findings.cost,
            outcome.status,
            outcome.num_steps,
            outcome.num_evaluations,
            outcome.gradient_norm,
            outcome.history,
            outcome.trajectory,
            prepared.differentiable,
            prepared.residual,
            prepared.factor,
            {} if findings is None else findings.weights,
            () if findings is None else findings.inputs,
            {} if findings is None else findings.multipliers,
            () if findings is None else findings.violation,
            prepared.constraints,
        )

    def answer(self, output: tuple[Tensor, ...]) -> Answer:
        """The flat output of `Solve` by name."""
        assert self.made.structure is not None  # the solve has been run
        return pytree.unflatten(output, self.made.structure)

    def folded(self, size: int, mapped: list[bool]) -> "Call":
        """The call on a batch `size` times as large, in which the mapped inputs are batched too."""
        start = len(self.task.system.unknowns)
        batched = []
        for names, before in zip(self.names, (*self.task.batched, self.task.batched_bounds), strict=True):
            flags = mapped[start : start + len(names)]
            batched.append(before | {name for name, flag in zip(names, flags, strict=True) if flag})
            start += len(names)
        *inputs, bounds = batched
        task = self.task.of_batch(self.task.batch * size, tuple(inputs))
        return replace(self, task=replace(task, batched_bounds=bounds))


def with_batch_axis(task: Task, bounds: Inputs) -> dict[str, Tensor]:
    """Bounds as (batch or 1, count, tangent)."""
    return {name: bound if name in task.batched_bounds else bound[None] for name, bound in bounds.items()}


class Solve(torch.autograd.Function):
    """`Solve.apply(call, *tensors)`: the leaves of an `Answer`, all without derivative."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        with without_saved_tensor_hooks():
            answer = call.run(*call.unflatten(tensors))
        leaves, call.made.structure = pytree.flatten(answer)
        return tuple(leaves)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)
        ctx.num_inputs = len(inputs)
        ctx.num_outputs = len(output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, ...]:
        return (None,) * ctx.num_inputs

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> tuple[None, ...]:
        return (None,) * ctx.num_outputs

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Tensor) -> tuple[Any, Any]:
        size, batch = info.batch_size, call.task.batch
        folded = []
        for tensor, dim, batched in zip(tensors, in_dims[1:], call.batched_flags(), strict=True):
            if dim is None:
                # Unmapped: shared inputs stay shared, batched ones are repeated along the new axis.
                folded.append(tensor.expand(size, *tensor.shape).flatten(0, 1) if batched else tensor)
                continue
            tensor = tensor.movedim(dim, 0)
            if not batched:
                tensor = tensor.unsqueeze(1).expand(size, batch, *tensor.shape[1:])
            folded.append(tensor.flatten(0, 1))
        outer = call.folded(size, [dim is not None for dim in in_dims[1:]])
        output = Solve.apply(outer, *folded)
        unfolded = tuple(
            t.unflatten(0, (size, batch)) if t.ndim > 1 or t.numel() else t.expand(size, 0) for t in output
        )
        return unfolded, (0,) * len(unfolded)
