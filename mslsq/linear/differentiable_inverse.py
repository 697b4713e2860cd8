"""x = A⁻¹b as a function of the numbers of A and of b, whatever solves it: what a step is differentiated through.

From A x = b follows dx = A⁻¹(db − dA x). So whatever can solve with A can be differentiated, to any order: forward mode
is another solve, and so is reverse mode, u = A⁻¹g with the cotangents u of b and −∂(uᵀA x) of the numbers of A. A
mapped axis is more right-hand sides, or a larger batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from mslsq.private import forward_mode_again

Values = Float[Tensor, "batch values"]
Vectors = Float[Tensor, "batch columns k"]


class SymmetricSystem(Protocol):
    """Symmetric matrices A(values), how they are differentiated, and how they are solved with.

    All but `solve` is differentiable to any order, in operations that every transform of PyTorch takes.
    """

    def solve(self, factor: Tensor, rhs: Vectors) -> Vectors:
        """A⁻¹ rhs, without derivative. `factor` has the batch first; plain tensors."""
        ...

    def tangent(self, values: Values, direction: Values, x: Vectors) -> Vectors:
        """dA x where the values move along `direction`."""
        ...

    def cotangent(self, values: Values, u: Vectors, x: Vectors) -> Values:
        """∂/∂values of Σ uᵀA x, over all k."""
        ...


class DifferentiableInverse(torch.autograd.Function):
    """`DifferentiableInverse.apply(system, values, factor, rhs, known)` is A(values)⁻¹ rhs.

    Args:
        factor: what `system.solve` needs, of the same values, a constant: its derivative is that of the values.
        rhs: (batch, columns, k).
        known: the solution where it is known already, a constant; None to solve. One that solves only up to a
            residual is as good: the derivative is that at a constant residual.
    """

    @staticmethod
    def forward(
        system: SymmetricSystem, values: Values, factor: Tensor, rhs: Vectors, known: Vectors | None
    ) -> Vectors:
        return system.solve(factor, rhs) if known is None else known.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.system, values, factor, _, _ = inputs
        ctx.save_for_backward(values, factor, output)
        ctx.save_for_forward(values, factor, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, factor, x = ctx.saved_tensors
        u = DifferentiableInverse.apply(ctx.system, values, factor, gradient, None)
        of_values = -ctx.system.cotangent(values, u, x) if ctx.needs_input_grad[1] else None
        return None, of_values, None, u, None

    @staticmethod
    def jvp(ctx: Any, _system: None, direction: Any, _factor: Any, moved: Any, _known: Any) -> Tensor:
        # PyTorch turns forward mode off in here, and with it that of all transforms outside of this one: a second
        # derivative under jacfwd(jacfwd(...)) would silently lose its half (pytorch #197867). So it is turned on again,
        # for tensors that have lost the tangents of this level.
        with forward_mode_again():
            values, factor, x = (unpack_dual(tensor).primal for tensor in ctx.saved_tensors)
            rhs = torch.zeros_like(x) if moved is None else moved
            if direction is not None:
                rhs = rhs - ctx.system.tangent(values, direction, x)
            return DifferentiableInverse.apply(ctx.system, values, factor, rhs, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        system: SymmetricSystem,
        values: Values,
        factor: Tensor,
        rhs: Vectors,
        known: Vectors | None,
    ) -> tuple[Tensor, int]:
        _, values_dim, factor_dim, *vector_dims = in_dims
        size = info.batch_size
        vectors = list(zip((rhs, known), vector_dims, strict=True))
        if values_dim is None and factor_dim is None:
            # The same matrices, more right-hand sides.
            more = [_folded(t, dim, size, 2) for t, dim in vectors]
            return DifferentiableInverse.apply(system, values, factor, *more).unflatten(2, (-1, size)), 3
        each = [(values, values_dim), (factor, factor_dim), *vectors]
        folded = [_folded(t, dim, size, 0) for t, dim in each]
        return DifferentiableInverse.apply(system, *folded).unflatten(0, (size, -1)), 0


@dataclass(frozen=True, eq=False)
class Constant(SymmetricSystem):
    """Matrices that do not move, with a way to solve that PyTorch cannot look into: a kernel, an iteration."""

    solved: Callable[[Tensor, Vectors], Vectors]

    def solve(self, factor: Tensor, rhs: Vectors) -> Vectors:
        return self.solved(factor, rhs)

    def tangent(self, values: Values, direction: Values, x: Vectors) -> Vectors:
        return torch.zeros_like(x)

    def cotangent(self, values: Values, u: Vectors, x: Vectors) -> Values:
        return torch.zeros_like(values)


def constant_inverse(solve: Callable[[Tensor, Vectors], Vectors], factor: Tensor, rhs: Vectors) -> Vectors:
    """`solve(factor, rhs)`, differentiable to any order in the right-hand sides (batch, columns, k)."""
    return DifferentiableInverse.apply(Constant(solve), factor, factor, rhs, None)


class Opaque(torch.autograd.Function):
    """`Opaque.apply(function, *tensors)`: a function of tensors with the batch first, on plain tensors, without
    derivative; a mapped axis is a larger batch."""

    @staticmethod
    def forward(function: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)
        ctx.counts = len(inputs), len(output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, ...]:
        return (None,) * ctx.counts[0]

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> tuple[None, ...]:
        return (None,) * ctx.counts[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Any, *tensors: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        folded = [_folded(t, dim, size, 0) for t, dim in zip(tensors, in_dims[1:], strict=True)]
        output = tuple(t.unflatten(0, (size, -1)) for t in Opaque.apply(function, *folded))
        return output, (0,) * len(output)


def _folded(tensor: Any, dim: int | None, size: int, into: int) -> Any:
    """The mapped axis folded into axis 0, before it, or into the last one, after it; the tensor is repeated where it
    is not mapped."""
    if tensor is None:
        return None
    to = into + 1 if into else 0
    if dim is not None:
        tensor = tensor.movedim(dim, to)
    else:
        tensor = tensor.unsqueeze(to).expand(*tensor.shape[:to], size, *tensor.shape[to:])
    return tensor.flatten(into, into + 1)
