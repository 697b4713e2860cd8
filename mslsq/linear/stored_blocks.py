"""JᵀJ by the blocks of it that are not zero, as a linearization keeps it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_products import product_by_entries, recorded_product, symmetric_product_of
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.operator_plan import on_device
from mslsq.linear.storage import Storage, Vector, already_bound

Values = Float[Tensor, "batch values"]
"""The stored blocks of a matrix, in the order of its `BlockStructure`."""


@dataclass(frozen=True, eq=False)
class StoredBlocks(Storage):
    """The stored blocks of JᵀJ, flat."""

    is_dense: ClassVar[bool] = False
    is_normal: ClassVar[bool] = True
    structure: BlockStructure | None = None
    """None for a solver that is not bound to one yet."""

    @property
    def num_values(self) -> int:
        return already_bound(self.structure).num_values

    def restricted(self, hessian: Values, free: Bool[Tensor, "batch columns"]) -> Values:
        structure = already_bound(self.structure)
        row, column = structure.memo.once("places", lambda: [on_device(at, hessian.device) for at in structure.places])
        both = free.index_select(1, row) & free.index_select(1, column)
        held = (~free).to(hessian.dtype).index_select(1, row) * (row == column)
        return torch.where(both, hessian, held)

    def diagonal(self, matrix: Values) -> Vector:
        # `index_select` copies one number at a time: 2.5 to 4 times as slow
        return matrix.gather(1, already_bound(self.structure).diagonal_index.expand(len(matrix), -1))

    def product(self, matrix: Values, vector: Vector) -> Vector:
        plan = symmetric_product_of(already_bound(self.structure))
        if plan.entries:
            return product_by_entries(matrix, vector[..., None], plan.entries[0], plan.height)[..., 0]
        return recorded_product(matrix, vector, *plan.packed)
