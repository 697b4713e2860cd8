"""The blocks of J themselves, as a linearization keeps them for a solver that never forms JᵀJ."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.iterative.block_rows import BlockRows, terms
from mslsq.linear.iterative.torch_operators import multiply
from mslsq.linear.storage import LinearizedTerm, Storage, Vector, already_bound

Values = Float[Tensor, "batch values"]


@dataclass(frozen=True, eq=False)
class UnformedBlocks(Storage):
    """The blocks of J, one term after the other, flat; of a Hessian the symmetric blocks of every term."""

    is_dense: ClassVar[bool] = False
    is_normal: ClassVar[bool] = False
    rows: BlockRows | None = None
    """None for a solver that is not bound to any yet."""

    @property
    def num_values(self) -> int:
        plans = already_bound(self.rows).jacobian.terms
        return sum(plan.rows * plan.columns.numel() for plan in plans)

    def part(self, term: LinearizedTerm, jacobian: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return (term.flat(jacobian),)

    def hessian_part(self, term: LinearizedTerm, blockwise: Tensor) -> Values:
        return term.flat(term.shared(blockwise))

    def squared_part(self, term: LinearizedTerm, jacobian: Tensor) -> Values:
        return term.flat(term.shared(term.squared(jacobian)))

    def joined_hessian(self, parts: list[Tensor]) -> Values:
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def restricted(self, hessian: Values, free: Bool[Tensor, "batch columns"]) -> Values:
        padded = torch.nn.functional.pad(free, (0, 1), value=True)
        kept = []
        for term in terms(hessian, already_bound(self.rows).hessian):
            own = padded[:, term.plan.columns]
            held = torch.diag_embed((~own).movedim(-2, -1).to(hessian.dtype)).movedim(-3, -1)
            kept.append(torch.where(own[:, :, None] & own[:, None], term.matrix, held).flatten(1))
        return torch.cat(kept, 1)

    def diagonal(self, matrix: Values) -> Vector:
        return already_bound(self.rows).squared_column_norms(matrix)

    def diagonal_of_hessian(self, hessian: Values) -> Vector:
        rows = already_bound(self.rows)
        total = hessian.new_zeros(len(hessian), rows.num_columns + 1)
        for term in terms(hessian, rows.hessian):
            own = term.matrix.diagonal(dim1=1, dim2=2).mT  # (batch, tangent, lanes)
            total = total.index_add(1, term.plan.columns.reshape(-1), own.flatten(1))
        return total[:, :-1]

    def normal_product(self, matrix: Values, vector: Vector) -> Vector:
        return self._multiply(matrix, vector, hessian=False)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        return self._multiply(matrix, vector, hessian=True)

    def magnitude(self, matrix: Values, vector: Vector) -> Vector:
        return self._multiply(matrix.abs(), vector.abs(), hessian=False)

    def _multiply(self, matrix: Values, vector: Vector, hessian: bool) -> Vector:
        plan = already_bound(self.rows).hessian if hessian else already_bound(self.rows).jacobian
        return multiply(matrix, vector, *plan.packed, hessian)
