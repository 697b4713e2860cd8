"""What passes between a solve and its adjoint, by name: pytrees, since an `autograd.Function` returns their leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs
from mslsq.solution import History
from mslsq.solvers.active_rows import ActiveRows
from mslsq.solvers.run import Outcome, Trajectory
from mslsq.solvers.task import Task


@dataclass(frozen=True, eq=False)
class Ended:
    """A solve at its end, on plain tensors."""

    task: Task
    start: Values
    outcome: Outcome
    bounds: Inputs
    """By the names of `Unknown.bounds`, (batch or 1, count, tangent); empty where there are none."""
    given: tuple[Inputs, ...]
    """Per term the inputs that the solution is a minimum with: the user's, and what a solver around the solver has
    found."""


class Prepared(NamedTuple):
    """What an adjoint has found out at the end of a solve, before anybody differentiates."""

    differentiable: Bool[Tensor, "batch"]
    """Which problems have a derivative."""
    residual: Float[Tensor, "batch"]
    """How well the linear systems of derivatives are solved; NaN where there are none."""
    factor: Tensor
    """(batch, components, size, size) of the Hessian, as the adjoint wants it; the identity where there is none, empty
    if not wanted."""
    constraints: ActiveRows | tuple[()] = ()
    """Empty where there are none, or no derivatives."""
    outcome: Outcome | None = None
    """The end of the solve with problems moved to the minimum that they had stopped short of; None where none was."""


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
    """By cost, of a solve that rejects outliers; else empty."""
    given: tuple[dict[str, Tensor], ...]
    """Per term, by name, what a solver around the solver has put in the place of inputs; else empty."""
    multipliers: dict[str, Float[Tensor, "batch blocks rows"]]
    """By constraint; empty where there are none."""
    violation: Float[Tensor, "batch"] | tuple[()]
    """The largest of a constraint..."""
    constraints: ActiveRows | tuple[()]
    """... and what derivatives need of them."""

    @staticmethod
    def of_minimum(
        values: Values,
        cost: Float[Tensor, "batch"],
        factor: Tensor,
        residual: Float[Tensor, "batch"],
        failed: Bool[Tensor, "batch"] | None = None,
    ) -> "Answer":
        """What derivatives read of problems that all have some but those that failed; the figures of the solve are none
        of it."""
        unread: Any = ()
        figures = unread, unread, unread, unread, unread, unread
        has_derivative = _all(len(cost), cost.device) if failed is None else ~failed
        return Answer(values, cost, *figures, has_derivative, residual, factor, {}, (), {}, (), ())


class Attached(NamedTuple):
    """What carries derivatives."""

    values: Values
    """(batch, count, storage)"""
    cost: Float[Tensor, "batch"]
    multipliers: Mapping[str, Float[Tensor, "batch blocks rows"]] = MappingProxyType({})
    """By constraint."""


@lru_cache(8)
def _all(count: int, device: torch.device) -> Bool[Tensor, "batch"]:
    """True for each; it is never written to. Made each time it was 10 µs of the gradient of 1,024 fits."""
    return torch.ones(count, dtype=torch.bool, device=device)
