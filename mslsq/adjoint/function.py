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
from mslsq.adjoint.checking import checked_derivatives
from mslsq.adjoint.factor import pseudo_inverse_factor
from mslsq.adjoint.minimum import Curvature, Evidence, Point, evidence_of_a_minimum
from mslsq.adjoint.warning import TRUSTED, warn_about
from mslsq.levels import without_saved_tensor_hooks
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.trace import TRANSFORM_LOCK, Plan
from mslsq.problem.system import Inputs
from mslsq.solution import Status
from mslsq.solvers.planning import Task
from mslsq.solvers.run import Outcome, run


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
        with without_saved_tensor_hooks():
            outcome = run(call.task, values, inputs, keep_trajectory=keep)
            status = outcome.status
            usable = (status >= Status.COST_TOLERANCE) & (status <= Status.STEP_TOLERANCE)
            factor, residual = outcome.cost.new_zeros(0), torch.full_like(outcome.cost, torch.nan)
            if call.adjoint is not None:
                call.made.plan, call.made.method = outcome.planned[0], outcome.method
                factor, usable, residual = _judged(call, values, outcome, usable, residual)
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


class Factored(NamedTuple):
    """The Hessian that the adjoint wants, and what is known of each problem with it."""

    factor: Tensor
    """Of the Hessian, or of its pseudo-inverse."""
    definite: Tensor
    residual: Tensor
    """How well systems with it are solved; where it is not definite how far an iterative solver came, else NaN."""
    evidence: Evidence
    hessian: Tensor


def _judged(
    call: Call, start: Values, outcome: Outcome, converged: Tensor, unknown: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The factor that the adjoint wants, which problems are differentiable, and how well systems with it are solved."""
    adjoint, values, status = call.adjoint, outcome.values, outcome.status
    assert adjoint is not None  # whoever asks has set it
    if adjoint.factors is None:
        # Derivatives of the iteration itself: they exist wherever its numbers are finite.
        finite = torch.stack([torch.isfinite(x).all(-1).all(-1) for x in values]).all(0)
        return values[0].new_zeros(0), finite & (status != Status.NON_FINITE), unknown
    outcome = checked_derivatives(call, outcome)
    minimum_norm = getattr(adjoint, "gauge", "error") == "minimum_norm"
    if minimum_norm and outcome.planned[1].linear_solver.form in ("sparse", "blocks"):
        raise AdjointOptionError(
            "Implicit(gauge='minimum_norm') needs the dense Hessian: solve with linear_solver=mslsq.linear.Cholesky()."
        )
    with torch.no_grad(), TRANSFORM_LOCK:
        found = _factored(call, start, outcome, minimum_norm)
    solved = found.definite & found.evidence.solved
    solved = solved if minimum_norm else solved & (found.residual <= TRUSTED)
    exists = solved & found.evidence.vanishes & found.evidence.smooth
    # Tolerances below what the dtype resolves end in STALLED; at a minimum that is as good as converged.
    usable = exists & (converged | (status == Status.STALLED))
    if bool((converged & ~usable).any()):
        warn_about(converged, solved, found.definite, found.residual, found.evidence, found.hessian)
    return found.factor, usable, found.residual


def _factored(call: Call, start: Values, outcome: Outcome, minimum_norm: bool) -> Factored:
    """Factors of all Hessians, and what they and the gradient say."""
    plan, linearizer, _ = outcome.planned
    values, inputs, solver, linear = outcome.values, outcome.planned[2], call.task.solver, linearizer.linear_solver
    adjoint = call.adjoint
    assert adjoint is not None  # whoever asks has set it
    # The Hessian of a large problem would take minutes to compile, for one call per solve.
    compiled = solver.compile and not plan.is_large
    policy = "always" if compiled else solver.trace
    gradient = plan.recorded("gradient", policy, linearizer.gradient, values, inputs)
    plan.recorded("cost", policy, linearizer.cost, values, inputs)
    name, hessian = _hessian(call, outcome)
    point = Point(values, inputs, outcome.matrix, start, outcome.cost)

    def factored(matrix: Tensor, at: Point, gradient: Callable[..., Tensor], asks: bool) -> Factored:
        if minimum_norm:
            factor, definite = pseudo_inverse_factor(matrix)
            residual = torch.full_like(at.cost, torch.nan)
        else:
            factor, definite, undecided = linear.definite_factor(matrix)
            residual = _residual_of_a_system(linearizer, matrix, factor)
            residual = torch.where(definite, residual, torch.nan if undecided is None else undecided)
        curvature = Curvature(
            partial(linear.product, matrix),
            partial(adjoint.inverse, linear, factor),
            definite,
            0.5 if adjoint.factors == "exact" else 1.0,
        )
        evidence = evidence_of_a_minimum(linearizer, gradient, solver, at, curvature, asks)
        return Factored(factor, definite, residual, evidence, matrix)

    def whole(*at: Any) -> Factored:
        return factored(hessian(*at[:3]), Point(*at), linearizer.gradient, asks=False)

    # Dense factors are a part of what is recorded; sparse and iterative solvers do as they like.
    if linear.form in ("normal", "triangular") and not minimum_norm:
        name = f"factored {name}, ftol {solver.ftol}, xtol {solver.xtol}"
        graph = plan.recorded(name, policy, whole, *point, compiled=compiled)
        return plan.run_eagerly(whole, *point) if graph is None else graph(*point)
    graph = plan.recorded(name, policy, hessian, *point[:3], compiled=compiled)
    matrix = plan.run_eagerly(hessian, *point[:3]) if graph is None else graph(*point[:3])
    return factored(matrix, point, linearizer.gradient if gradient is None else gradient, solver.early_stop)


def _residual_of_a_system(linearizer: Linearizer, hessian: Tensor, factor: Tensor) -> Tensor:
    """How well the adjoint's linear systems are solved: the relative residual for a right-hand side in which every
    unknown has a part, H u with cosines for u."""
    linear, columns = linearizer.linear_solver, linearizer.structure.num_columns
    u = torch.arange(1.0, columns + 1, dtype=hessian.dtype, device=hessian.device).cos()
    rhs = linear.product(hessian, u.expand(len(hessian), -1))
    return linear.relative_residual(hessian, linear.solve_factored(factor, rhs), rhs)


def _hessian(call: Call, outcome: Outcome) -> tuple[str, Callable[[Values, TermInputs, Tensor], Tensor]]:
    """The Hessian that the adjoint wants: its name, and a function of values, inputs and the matrix of the last
    linearization. Where the normal equations that the solve has left of its last point are a part of it they are taken:
    a third of the work for 1024 fits."""
    assert call.adjoint is not None  # whoever asks has set it
    _, linearizer, _ = outcome.planned
    exact = call.adjoint.factors == "exact"
    if not exact and linearizer.linear_solver.form in ("normal", "sparse"):
        return "normal equations", lambda values, inputs, normal: normal
    if linearizer.normal_equations_are_exact:
        return "curvature", linearizer.curvature
    name = f"hessian, {call.adjoint.factors}"
    return name, lambda values, inputs, normal: linearizer.hessian(values, inputs, exact=exact)
