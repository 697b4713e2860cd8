"""A⁻¹ of a constant factor as a linear map of the right-hand side: what derivatives of every order pass through.

Foreign kernels and iterations have no derivative in PyTorch; their result has one all the same. A is symmetric, so both
modes of differentiation solve with A again, and a mapped axis is more right-hand sides, or a larger batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "batch columns k"]
Solve = Callable[[Tensor, Vectors], Vectors]


class ConstantInverse(torch.autograd.Function):
    """`ConstantInverse.apply(solve, factor, rhs)` is `solve(factor, rhs)`, differentiable to any order in `rhs`.

    `factor` has the batch first; any number of right-hand sides (batch, columns, k) go with it.
    """

    @staticmethod
    def forward(solve: Solve, factor: Tensor, rhs: Vectors) -> Vectors:
        return solve(factor, rhs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.solve, factor, _ = inputs
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (factor,) = ctx.saved_tensors
        return None, None, ConstantInverse.apply(ctx.solve, factor, gradient)

    @staticmethod
    def jvp(ctx: Any, _solve: None, _factor: Any, tangent: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return ConstantInverse.apply(ctx.solve, factor, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], solve: Solve, factor: Tensor, rhs: Tensor) -> tuple[Tensor, int]:
        _, factor_dim, rhs_dim = in_dims
        size = info.batch_size
        if factor_dim is None:
            # One factor, more right-hand sides.
            rhs = rhs.movedim(rhs_dim, -1)
            solved = ConstantInverse.apply(solve, factor, rhs.flatten(2))
            return solved.unflatten(2, rhs.shape[2:]), 3
        factor = factor.movedim(factor_dim, 0)
        rhs = rhs.expand(size, *rhs.shape) if rhs_dim is None else rhs.movedim(rhs_dim, 0)
        solved = ConstantInverse.apply(solve, factor.flatten(0, 1), rhs.flatten(0, 1))
        return solved.unflatten(0, (size, -1)), 0
