"""A solve by conjugate gradients, and a product with a matrix, as operators of PyTorch.

One operator stands for a whole iteration, so a step that calls it can be recorded as a plain graph; how many iterations
are made is decided inside, again at each replay. It has no derivative of its own (the adjoint brings it).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mslsq.linear.iterative.block_rows import HessianBlocks, JacobianBlocks, RowsPlan
from mslsq.linear.iterative.conjugate_gradients import Iterated, always, conjugate_gradients
from mslsq.linear.iterative.implicit_schur import ImplicitSchur
from mslsq.linear.iterative.linear_operators import Formed, Operator
from mslsq.linear.torch_operators import registered

OPERATORS: dict[str, type[Operator]] = {
    operator.kind: operator for operator in (Formed, ImplicitSchur, JacobianBlocks, HessianBlocks)
}
"""What may be multiplied by: a recorded graph holds tensors, numbers and such names."""


@registered("conjugate_gradients")
def iterate(
    values: Tensor,
    rhs: Tensor,
    damping: Tensor,
    accuracy: Tensor,
    tensors: list[Tensor],
    numbers: list[int],
    kind: str,
    jacobi: bool,
    tolerance: float,
    max_iterations: int,
    asks: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(A + diag(damping))⁻¹ rhs to an accuracy per entry (an empty one: `tolerance` for all), which entries have moved
    at all, and how many iterations each took. Unless it `asks`, another device than a CPU makes `max_iterations`."""
    form = OPERATORS[kind]
    plan = form.Plan.unpacked(tensors, numbers)
    operator = form(values, damping if damping.numel() else None, plan, jacobi)
    wanted = accuracy.clamp(max=tolerance) if accuracy.numel() else tolerance
    asks = asks or values.device.type == "cpu"
    x, solved, result = step_by(operator, rhs, wanted, max_iterations, operator.is_wanted if asks else always)
    return x, solved, result.iterations


def step_by(
    operator: Operator,
    rhs: Tensor,
    tolerance: Tensor | float,
    max_iterations: int,
    goes_on: Callable[[Tensor], bool],
    **options: Any,
) -> tuple[Tensor, Tensor, Iterated]:
    """The solution for a right-hand side, which entries have moved at all, and what the iteration came to."""
    given = operator.multiply, operator.reduced(rhs), operator.precondition, tolerance, max_iterations
    result = conjugate_gradients(*given, goes_on=goes_on, **options)
    x = operator.expanded(result.solution, rhs)
    return x, torch.isfinite(x).all(-1) & operator.definite & (result.converged | (result.iterations > 0)), result


@iterate.register_fake
def _(values: Tensor, rhs: Tensor, damping: Tensor, accuracy: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(rhs, memory_format=torch.contiguous_format),
        rhs.new_empty(len(rhs), dtype=torch.bool),
        rhs.new_empty(len(rhs), dtype=torch.int64),
    )


@registered("operator_product")
def multiply(values: Tensor, vector: Tensor, tensors: list[Tensor], numbers: list[int], hessian: bool) -> Tensor:
    """JᵀJx from the blocks of J, or Hx from those of a Hessian."""
    operator = HessianBlocks if hessian else JacobianBlocks
    return operator.product(values, vector, RowsPlan.unpacked(tensors, numbers))


@multiply.register_fake
def _(values: Tensor, vector: Tensor, tensors: Any, numbers: Any, hessian: Any) -> Tensor:
    return torch.empty_like(vector, memory_format=torch.contiguous_format)
