"""What passes between a solve and its adjoint, by name: pytrees, since an `autograd.Function` returns their leaves."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs
from mslsq.solution import History
from mslsq.solvers.planning import Task
from mslsq.solvers.run import Outcome, Trajectory


@dataclass(frozen=True, eq=False)
class Ended:
    """A solve at its end, on plain tensors."""

    task: Task
    start: Values
    outcome: Outcome
    bounds: Inputs
    """By the names of `Unknown.bounds`, (batch or 1, count, tangent); empty where there are none."""


class Prepared(NamedTuple):
    """What an adjoint has found out at the end of a solve, before anybody differentiates."""

    differentiable: Bool[Tensor, "batch"]
    """Which problems have a derivative."""
    residual: Float[Tensor, "batch"]
    """How well the linear systems of derivatives are solved; NaN where there are none."""
    factor: Tensor
    """(batch, components, size, size) of the Hessian, as the adjoint wants it; the identity where there is none, empty
    if not wanted."""


class Answer(NamedTuple):
    """What a solve returns, without derivatives."""

    values: Values
    cost: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]
    num_steps: Int[Tensor, "batch"]
    num_evaluations: Int[Tensor, "batch"]
    gradient_norm: Float[Tensor, "batch"]
    history: History
    trajectory: Trajectory | tuple[()]
    """Empty unless the adjoint asks for it."""
    differentiable: Bool[Tensor, "batch"]
    adjoint_residual: Float[Tensor, "batch"]
    factor: Tensor
    weights: dict[str, Float[Tensor, "batch blocks"]]
    """By cost, of a solve that rejects outliers..."""
    scales: tuple[dict[str, Float[Tensor, "batch"]], ...]
    """... and per term the scale that it has estimated, by the name of the input; else empty."""


class Attached(NamedTuple):
    """What carries derivatives."""

    values: Values
    """(batch, count, storage)"""
    cost: Float[Tensor, "batch"]
