"""JᵀJ by the blocks of it that are not zero, as a linearization keeps it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.kernels import run_on
from mslsq.levels import kept_tensors
from mslsq.linear.block_products import symmetric_product, tables_on
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.storage import Storage, Vector
from mslsq.linear.tensor_product import symmetric_product as symmetric_product_by_tensors
from mslsq.linear.torch_operators import registered

Values = Float[Tensor, "batch values"]
"""The stored blocks of a matrix, in the order of its `BlockStructure`."""


@dataclass(frozen=True, eq=False)
class StoredBlocks(Storage):
    """The stored blocks of JᵀJ, flat."""

    is_dense: ClassVar[bool] = False
    is_normal: ClassVar[bool] = True
    structure: BlockStructure | None = None
    """None for a solver that is not bound to one yet."""

    def diagonal(self, matrix: Values) -> Vector:
        structure, device = self._bound, matrix.device
        (index,) = structure.memo.once(("diagonal", device), lambda: kept_tensors([structure.diagonal_index], device))
        return matrix.index_select(1, index)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        structure = self._bound
        if not run_on(matrix.device):
            return symmetric_product_by_tensors(structure, matrix, vector[..., None])[..., 0]
        return product_by_kernels(matrix, vector, *tables_on(structure, matrix.device))

    @property
    def _bound(self) -> BlockStructure:
        if self.structure is None:
            raise RuntimeError("This linear solver has no structure yet: it is bound by the solver that uses it.")
        return self.structure


@registered("symmetric_product")
def product_by_kernels(values: Tensor, x: Tensor, below: Tensor, diagonal: Tensor) -> Tensor:
    """A x."""
    return symmetric_product(values, x, below, diagonal)


@product_by_kernels.register_fake
def _(values: Tensor, x: Tensor, below: Tensor, diagonal: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
