"""Weights: how a residual is whitened. Each is shared by all blocks or has one entry per block, by its rank."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mslsq.manifolds.components import matmul
from mslsq.problem.errors import ProblemError, ShapeError


class Weight(nn.Module):
    """Base of the weights. `value` is a buffer, or a parameter where an `nn.Parameter` is given (a learnable
    weight)."""

    block_rank: ClassVar[int]
    """Number of axes of the weight of one block; one axis more means one weight per block."""
    broadcasts: ClassVar[bool] = False
    """May `whiten` and `whiten_jacobian` be given many blocks at once, as a leading axis?"""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"whiten", "whiten_jacobian"} & set(vars(cls)) and "broadcasts" not in vars(cls):
            cls.broadcasts = False  # what is written for one block may not

    def __init__(self, value: Tensor | float):
        super().__init__()
        if not isinstance(value, Tensor):
            value = _as_tensor(value, type(self).__name__)
        if not value.is_floating_point():
            raise ProblemError(f"{type(self).__name__}: expected a real floating-point tensor, not {value.dtype}.")
        if value.ndim not in (self.block_rank, self.block_rank + 1):
            raise ShapeError(
                f"{type(self).__name__}: expected {self.block_rank} axes (shared by all blocks) or "
                f"{self.block_rank + 1} "
                f"(one weight per block), got shape {tuple(value.shape)}."
            )
        if isinstance(value, nn.Parameter):
            self.value = value
        else:
            self.register_buffer("value", value)

    @classmethod
    def whiten(cls, residual: Float[Tensor, "rows"], value: Tensor) -> Float[Tensor, "rows"]:
        """The weighted residual of one block; `value` is the weight of that block."""
        raise NotImplementedError(f"{cls.__name__} must define whiten(residual, value).")

    @classmethod
    def whiten_jacobian(cls, jacobian: Float[Tensor, "rows dim"], value: Tensor) -> Float[Tensor, "rows dim"]:
        """The weighted Jacobian of one block."""
        raise NotImplementedError(f"{cls.__name__} must define whiten_jacobian(jacobian, value).")

    @classmethod
    def check_block(cls, shape: tuple[int, ...], rows: int, cost: str) -> None:
        """Does the weight of one block, of this shape, fit a residual of `rows` entries?"""
        expected = (rows,) * cls.block_rank
        if tuple(shape) != expected:
            raise ShapeError(
                f"Cost {cost!r}: the residual of a block has {rows} entries, so its {cls.__name__} must have shape "
                f"{expected} per block, not {tuple(shape)}."
            )


def _as_tensor(value: Any, name: str) -> Tensor:
    """Numbers as a tensor; a solve takes it in the dtype of its start."""
    try:
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        raise ProblemError(f"{name}: expected a tensor or numbers, not {value!r}.") from None


class Scale(Weight):
    """One factor for all entries of the residual: () shared, or (blocks,)."""

    block_rank = 0
    broadcasts = True

    @classmethod
    def whiten(cls, residual: Tensor, value: Tensor) -> Tensor:
        return residual * value[..., None]

    @classmethod
    def whiten_jacobian(cls, jacobian: Tensor, value: Tensor) -> Tensor:
        return jacobian * value[..., None, None]


class Diagonal(Weight):
    """One factor per entry of the residual, 1/sigma: (rows,) shared, or (blocks, rows)."""

    block_rank = 1
    broadcasts = True

    @classmethod
    def whiten(cls, residual: Tensor, value: Tensor) -> Tensor:
        return residual * value

    @classmethod
    def whiten_jacobian(cls, jacobian: Tensor, value: Tensor) -> Tensor:
        return jacobian * value[..., :, None]


SMALL_PRODUCT = 400
"""From that many multiplications PyTorch's batched product of matrices whose batch axis is not first in memory calls
BLAS once for every matrix: 25 ms instead of 2 for the Jacobians of 4949 SE(3) factors."""


class SqrtInformation(Weight):
    """A matrix U with UᵀU the information (inverse covariance) of the residual: (rows, rows) shared, or (blocks,
    rows, rows).

    The upper Cholesky factor of an information matrix is `torch.linalg.cholesky(information, upper=True)`;
    `SqrtInformation.from_information` does that.
    """

    block_rank = 2
    broadcasts = True

    @classmethod
    def from_information(cls, information: Float[Tensor, "*blocks rows rows"]) -> "SqrtInformation":
        """From information matrices, symmetric and positive definite; names the first block that is not."""
        factor, failed = torch.linalg.cholesky_ex(information, upper=True)
        if bool((failed != 0).any()):
            block = int((failed.reshape(-1) != 0).nonzero()[0])
            raise ProblemError(f"SqrtInformation: the information matrix of block {block} is not positive definite.")
        return cls(factor)

    @classmethod
    def whiten(cls, residual: Tensor, value: Tensor) -> Tensor:
        if residual.ndim > 1:
            return matmul(value, residual[..., None])[..., 0]
        return (value * residual).sum(-1)

    @classmethod
    def whiten_jacobian(cls, jacobian: Tensor, value: Tensor) -> Tensor:
        if jacobian.ndim > 2:
            return matmul(value, jacobian)
        rows, columns = jacobian.shape
        widest = (SMALL_PRODUCT - 1) // rows**2
        if widest == 0 or columns <= widest:
            return value @ jacobian
        width = -(-columns // -(-columns // widest))  # pieces of one width, as few as will do
        return torch.cat([value @ part for part in jacobian.split(width, -1)], -1)


def weight_of(weight: Weight | float | Tensor | None, cost: str) -> Weight | None:
    """What a user may give as a weight: a Weight, a number, or nothing."""
    if weight is None or isinstance(weight, Weight):
        return weight
    if isinstance(weight, (int, float)) or (isinstance(weight, Tensor) and weight.ndim == 0):
        return Scale(weight if isinstance(weight, Tensor) else float(weight))
    raise ProblemError(
        f"Cost {cost!r}: weight must be mslsq.Scale, Diagonal, SqrtInformation or a number, not "
        f"{type(weight).__name__}. "
        "For 1/sigma per entry write weight=mslsq.Diagonal(1 / sigma)."
    )
