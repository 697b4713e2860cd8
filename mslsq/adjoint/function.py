"""The solve as one `torch.autograd.Function`, whose `vmap` rule folds a mapped axis into the batch.

Whatever transforms are active outside, the loop itself runs on plain tensors with an explicit batch axis: it may
stop early, ask for values, replay graphs. Inputs that are not mapped stay shared by the whole batch, in memory too.
Derivatives are attached afterwards by an adjoint (`attachment`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import Adjoint, AdjointOptionError
from mslsq.adjoint.factor import TRUSTED, pseudo_inverse_factor, warn_about_gauge, warn_about_residual
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.trace import TRANSFORM_LOCK, Plan
from mslsq.problem.system import Inputs
from mslsq.solution import Status
from mslsq.solvers.planning import Task
from mslsq.solvers.run import Outcome, run
from mslsq.solvers.step import LEVEL


class Answer(NamedTuple):
    """What the Function returns, in order."""

    values: Values
    cost: Tensor
    status: Tensor
    num_steps: Tensor
    num_evaluations: Tensor
    gradient_norm: Tensor
    differentiable: Tensor
    adjoint_residual: Tensor
    factor: Tensor
    """(batch, components, size, size) of the Hessian, as the adjoint wants it; the identity where there is none,
    empty if not wanted."""
    history: tuple[Tensor, ...]
    trajectory: tuple[Tensor, ...]
    """As in `solvers.run.Outcome`."""


@dataclass
class Made:
    """What the innermost call made, for the one who attaches derivatives outside."""

    plan: Plan | None = None
    method: type | None = None
    """The NamedTuple of the method's state."""


@dataclass(frozen=True, eq=False)
class Call:
    """The static part of a call of `Solve`: how the flat tensors belong together."""

    task: Task
    names: tuple[tuple[str, ...], ...]
    """Per term, the names of its inputs."""
    adjoint: Adjoint | None
    """Who will attach derivatives; None where nobody differentiates."""
    made: Made = field(default_factory=Made)

    def flatten(self, values: Values, inputs: tuple[Inputs, ...]) -> list[Tensor]:
        flat = list(values)
        for names, given in zip(self.names, inputs, strict=True):
            flat.extend(given[name] for name in names)
        return flat

    def unflatten(self, tensors: tuple[Tensor, ...]) -> tuple[Values, tuple[dict[str, Tensor], ...]]:
        count = len(self.task.system.unknowns)
        rest = iter(tensors[count:])
        return tensors[:count], tuple({name: next(rest) for name in names} for names in self.names)

    def batched_flags(self) -> list[bool]:
        """Per flat tensor: does it have a leading batch axis?"""
        flags = [True] * len(self.task.system.unknowns)
        for names, batched in zip(self.names, self.task.batched, strict=True):
            flags.extend(name in batched for name in names)
        return flags

    def method_state(self, columns: list[Tensor]) -> Any:
        """The state of the solver's method from its tensors."""
        assert self.made.method is not None  # a trajectory was kept
        return self.made.method(*columns)

    def folded(self, size: int, mapped: list[bool]) -> "Call":
        """The call on a batch `size` times as large, in which the mapped inputs are batched too."""
        start = len(self.task.system.unknowns)
        batched = []
        for names, before in zip(self.names, self.task.batched, strict=True):
            flags = mapped[start : start + len(names)]
            batched.append(before | {name for name, flag in zip(names, flags, strict=True) if flag})
            start += len(names)
        return replace(self, task=replace(self.task, batch=self.task.batch * size, batched=tuple(batched)))


class Solve(torch.autograd.Function):
    """`Solve.apply(call, *tensors)`: values and figures of the solution, all without derivative."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, inputs = call.unflatten(tensors)
        keep = call.adjoint is not None and call.adjoint.keeps_trajectory
        outcome = run(call.task, values, inputs, keep_trajectory=keep, differentiated=call.adjoint is not None)
        status = outcome.status
        usable = (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE)
        factor, residual = outcome.cost.new_zeros(0), torch.full_like(outcome.cost, torch.nan)
        call.made.plan, call.made.method = outcome.planned[0], outcome.method
        if call.adjoint is not None:
            factor, usable, residual = _judged(call, outcome, usable, residual)
        history = outcome.history
        return (
            *outcome.values,
            outcome.cost,
            status,
            outcome.num_steps,
            outcome.num_evaluations,
            outcome.gradient_norm,
            usable,
            residual,
            factor,
            history.cost,
            history.gradient_norm,
            history.step_norm,
            history.damping,
            history.accepted,
            *outcome.trajectory,
        )

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


def answer_of(call: Call, output: tuple[Tensor, ...]) -> Answer:
    """The flat output by name."""
    count = len(call.task.system.unknowns)
    figures, history, trajectory = output[count : count + 8], output[count + 8 : count + 13], output[count + 13 :]
    return Answer(output[:count], *figures, history=tuple(history), trajectory=tuple(trajectory))


def _judged(call: Call, outcome: Outcome, converged: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factor that the adjoint wants, which problems are differentiable, and how well systems with it are solved."""
    adjoint, values, status = call.adjoint, outcome.values, outcome.status
    plan, linearizer, inputs = outcome.planned
    assert adjoint is not None  # whoever asks has set it
    if adjoint.factors is None:
        # Derivatives of the iteration itself: they exist wherever its numbers are finite.
        finite = torch.stack([torch.isfinite(x).all(-1).all(-1) for x in values]).all(0)
        return values[0].new_zeros(0), finite & (status != Status.NON_FINITE), unknown
    # The Hessian of a large problem would take minutes to compile, for one call per solve.
    compiled = call.task.solver.compile and not plan.is_large
    policy = "always" if compiled else call.task.solver.trace
    plan.recorded("gradient", policy, linearizer.gradient, values, inputs)
    plan.recorded("cost", policy, linearizer.cost, values, inputs)
    minimum_norm = getattr(adjoint, "gauge", "error") == "minimum_norm"
    if minimum_norm and linearizer.linear_solver.form in ("sparse", "blocks"):
        raise AdjointOptionError(
            "Implicit(gauge='minimum_norm') needs the dense Hessian: solve with linear_solver=mslsq.linear.Cholesky()."
        )
    with torch.no_grad(), TRANSFORM_LOCK:
        factor, definite, residual = _factored(call, outcome, policy, compiled, minimum_norm)
        stalled = status == Status.STALLED
        if bool((stalled & definite).any()):
            # Tolerances below what the dtype resolves end in STALLED. Where a Newton step from here promises nothing
            # that the cost could tell, this is the minimum all the same.
            gradient = linearizer.gradient(values, inputs)
            decrement = 0.5 * (gradient * linearizer.linear_solver.solve_factored(factor, gradient)).sum(-1)
            told = LEVEL * torch.finfo(decrement.dtype).eps * linearizer.cost(values, inputs)
            converged = converged | (stalled & (decrement <= told))
    # A solver that gave up before it could tell says how far it came: that is not a gauge.
    singular = converged & ~definite & residual.isnan()
    unsolved = converged & ~singular & ~(definite & (residual <= TRUSTED))
    if bool(singular.any()):
        warn_about_gauge(int(singular.sum()), len(definite))
    if not minimum_norm and bool(unsolved.any()):
        warn_about_residual(float(residual[unsolved].max()), int(unsolved.sum()), len(definite))
        definite = definite & ~unsolved
    return factor, converged & definite, residual


def _factored(
    call: Call, outcome: Outcome, policy: str, compiled: bool, minimum_norm: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A factor of the Hessian (of its pseudo-inverse), which are definite, and the residual of a system with them."""
    plan, linearizer, _ = outcome.planned
    name, hessian, at = _hessian(call, outcome)

    def factored(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if minimum_norm:
            factor, definite = pseudo_inverse_factor(matrix)
            return factor, definite, torch.full_like(outcome.cost, torch.nan)
        factor, definite, undecided = linearizer.linear_solver.definite_factor(matrix)
        residual = _residual_of_a_system(linearizer, matrix, factor)
        return factor, definite, torch.where(definite, residual, torch.nan if undecided is None else undecided)

    # Dense factors are a part of what is recorded; sparse and iterative solvers do as they like.
    whole = linearizer.linear_solver.form in ("normal", "triangular") and not minimum_norm
    if whole:
        both = plan.recorded(f"factored {name}", policy, lambda *at: factored(hessian(*at)), *at, compiled=compiled)
        return factored(plan.run_eagerly(hessian, *at)) if both is None else both(*at)
    graph = plan.recorded(name, policy, hessian, *at, compiled=compiled)
    return factored(plan.run_eagerly(hessian, *at) if graph is None else graph(*at))


def _residual_of_a_system(linearizer: Linearizer, hessian: Tensor, factor: Tensor) -> Tensor:
    """How well the adjoint's linear systems are solved: the relative residual for a right-hand side in which every
    unknown has a part, H u with cosines for u."""
    linear, columns = linearizer.linear_solver, linearizer.structure.num_columns
    u = torch.arange(1.0, columns + 1, dtype=hessian.dtype, device=hessian.device).cos()
    rhs = linear.product(hessian, u.expand(len(hessian), -1))
    return linear.relative_residual(hessian, linear.solve_factored(factor, rhs), rhs)


def _hessian(call: Call, outcome: Outcome) -> tuple[str, Callable[..., Tensor], tuple[Any, ...]]:
    """The Hessian that the adjoint wants: its name, a function, and what to call it with. Where the normal equations
    that the solve has left of its last point are a part of it they are taken: a third of the work for 1024 fits."""
    assert call.adjoint is not None  # whoever asks has set it
    _, linearizer, inputs = outcome.planned
    exact = call.adjoint.factors == "exact"
    if not exact and linearizer.linear_solver.form in ("normal", "sparse"):
        return "normal equations", lambda normal: normal, (outcome.matrix,)
    if linearizer.normal_equations_are_exact:
        return "curvature", linearizer.curvature, (outcome.values, inputs, outcome.matrix)
    hessian = partial(linearizer.hessian, exact=exact)
    return f"hessian, {call.adjoint.factors}", hessian, (outcome.values, inputs)
