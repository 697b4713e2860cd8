"""Products of block matrices with vectors: by kernels on a CPU, by entries in PyTorch elsewhere and for derivatives.

A set of blocks is a table with a row (i, j, h, w, at, s, t) per block: entry (r, c) of the h × w block is
`values[at + r s + c t]`, its first row of the matrix is i, its first column j.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.kernels import Kernel, run_on
from mslsq.linear.block_structure import BlockStructure, Entries
from mslsq.linear.operator_plan import OperatorPlan, on_device
from mslsq.linear.torch_operators import registered

_symmetric = Kernel("symmetric_product", "nnnTnTTnlnl")
_rectangular = Kernel("block_product", "nnnnTnTTnl")

Matrices = Float[Tensor, "batch values"]
Vectors = Float[Tensor, "entries columns"]
"""The entries are a multiple of the batch: that many vectors for each matrix in turn."""

Table = Int[np.ndarray, "blocks 7"]


@dataclass(frozen=True, eq=False)
class BlockProduct(OperatorPlan):
    """Where the blocks of a matrix stand that vectors are multiplied by, on one device."""

    height: int
    """Rows of the matrix."""
    tables: tuple[Int[Tensor, "blocks 7"], ...]
    """For the kernels: of a symmetric matrix the blocks below the diagonal and those on it, of which the lower triangle
    is read; of another all its blocks. None where no kernels work on the device..."""
    entries: tuple[Entries, ...]
    """... but the entries."""


def block_product(
    height: int, tables: tuple[Table, ...], entries: Callable[[], Entries], device: torch.device
) -> BlockProduct:
    """The plan with what is needed on the device."""
    if run_on(device):
        return BlockProduct(height, tuple(on_device(table, device) for table in tables), ())
    return BlockProduct(height, (), (entries(),))


def symmetric_product_of(structure: BlockStructure) -> BlockProduct:
    """The product with a matrix of this structure; made once."""

    def make() -> BlockProduct:
        table, own = block_table(structure, structure.starts), structure.rows == structure.cols
        tables = table[~own], table[own]
        return block_product(structure.num_unknowns, tables, lambda: structure.entries, structure.device)

    return structure.memo.once("product", make)


def block_table(structure: BlockStructure, starts: Int[np.ndarray, "blocks"]) -> Table:
    """The table of the stored blocks, for a vector in which the unknowns of each block begin at `starts`."""
    heights, widths = structure.block_sizes[structure.rows], structure.block_sizes[structure.cols]
    first = starts[structure.rows], starts[structure.cols]
    return np.stack((*first, heights, widths, structure.offsets, widths, np.ones_like(widths)), 1)


def transposed(table: Table) -> Table:
    """The table of Bᵀ."""
    return table[:, [1, 0, 3, 2, 4, 6, 5]]


def product(values: Matrices, x: Vectors, plan: BlockProduct) -> Vectors:
    """A x."""
    repeat = repeats(values, x)
    if plan.entries:
        vectors = x.unflatten(0, (len(values), repeat)).mT
        return product_by_entries(values, vectors, plan.entries[0], plan.height).mT.flatten(0, 1)
    values, y = values.contiguous(), x.new_zeros(len(x), plan.height)
    arrays = values, values.shape[1], x.contiguous(), y
    tables = [part for table in plan.tables for part in (len(table), table)]
    kernel, sizes = kernel_of(plan)
    kernel(len(x), repeat, x.shape[1], *sizes, *arrays, *tables)
    return y


def kernel_of(plan: BlockProduct) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel, and the sizes that it is told besides those of the vectors."""
    return (_symmetric, ()) if len(plan.tables) == 2 else (_rectangular, (plan.height,))


@registered("block_product")
def recorded_product(values: Tensor, x: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """The same as one operator, without derivative."""
    return product(values, x, BlockProduct.unpacked(tensors, numbers))


@recorded_product.register_fake
def _(values: Tensor, x: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return x.new_empty(len(x), BlockProduct.unpacked(tensors, numbers).height)


def product_by_entries(
    values: Matrices, x: Float[Tensor, "batch columns k"], entries: Entries, height: int
) -> Float[Tensor, "batch height k"]:
    """A x for any number of vectors of each matrix, in operations of PyTorch: differentiable to any order."""
    terms = values.index_select(1, entries.place)[..., None] * x.index_select(1, entries.column)
    return x.new_zeros(len(x), height, x.shape[2]).index_add(1, entries.row, terms)


def repeats(values: Matrices, x: Vectors) -> int:
    """How many vectors there are for each matrix."""
    return max(len(x) // max(len(values), 1), 1)
