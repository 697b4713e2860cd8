"""Products of block matrices with vectors: kernels for CPUs, and the same in PyTorch for other devices.

A symmetric matrix is stored as in `BlockStructure`; any other set of blocks as a table with a row (i, j, h, w, at, s,
t) per block: entry (r, c) of the h × w block is `values[at + r s + c t]`, its first row of the matrix is i, its first
column j. Vectors are (entries, columns), the entries a multiple of the batch: k vectors for each matrix in turn.
"""

from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.kernels import Kernel, run_on
from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import BlockStructure

_symmetric = Kernel("symmetric_product", "nnnTnTTnlnl")
_rectangular = Kernel("block_product", "nnnnTnTTnl")

Matrices = Float[Tensor, "batch values"]
Vectors = Float[Tensor, "entries columns"]
Table = Int[Tensor, "blocks 7"]
AnyTable = TypeVar("AnyTable", Tensor, np.ndarray)


def block_table(structure: BlockStructure, starts: Int[np.ndarray, "blocks"]) -> Int[np.ndarray, "pairs 7"]:
    """The table of the stored blocks, for a vector in which the unknowns of each block begin at `starts`."""
    heights, widths = structure.block_sizes[structure.rows], structure.block_sizes[structure.cols]
    first = starts[structure.rows], starts[structure.cols]
    return np.stack((*first, heights, widths, structure.offsets, widths, np.ones_like(widths)), 1)


def symmetric_plan(structure: BlockStructure) -> tuple[np.ndarray, np.ndarray]:
    """The tables of `symmetric_product`: of the blocks below the diagonal, and of the lower triangles on it."""
    table, own = block_table(structure, structure.starts), structure.rows == structure.cols
    return table[~own], table[own]


def tables_on(structure: BlockStructure, device: torch.device) -> list[Tensor]:
    """The tables of `symmetric_product` on a device; made once per structure."""
    return structure.memo.once(("tables", device), lambda: kept_tensors(symmetric_plan(structure), device))


def symmetric_product(values: Matrices, x: Vectors, below: Table, diagonal: Table) -> Vectors:
    """A x."""
    if run_on(x.device):
        y = torch.zeros_like(x, memory_format=torch.contiguous_format)
        v, below, diagonal = values.contiguous(), below.contiguous(), diagonal.contiguous()
        tables = len(below), below, len(diagonal), diagonal
        _symmetric(len(x), repeats(v, x), x.shape[1], v, v.shape[1], x.contiguous(), y, *tables)
        return y
    return symmetric_product_anywhere(values, x, below, diagonal)


def product(values: Matrices, x: Vectors, table: Table, height: int) -> Vectors:
    """B x, of `height` rows."""
    if run_on(x.device):
        y = x.new_zeros(len(x), height)
        v = values.contiguous()
        sizes = len(x), repeats(v, x), x.shape[1], height
        _rectangular(*sizes, v, v.shape[1], x.contiguous(), y, len(table), table.contiguous())
        return y
    return product_anywhere(values, x, table, height)


def transposed(table: AnyTable) -> AnyTable:
    """The table of Bᵀ."""
    return table[:, [1, 0, 3, 2, 4, 6, 5]]


def symmetric_product_anywhere(values: Matrices, x: Vectors, below: Table, diagonal: Table) -> Vectors:
    """`symmetric_product` in operations of PyTorch."""
    n = x.shape[1]
    place, row, column = _entries(diagonal)
    lower = row >= column
    place, row, column = place[lower], row[lower], column[lower]
    strictly = row > column
    return (
        product_anywhere(values, x, below, n)
        + product_anywhere(values, x, transposed(below), n)
        + _added(values, x, place, row, column, n)
        + _added(values, x, place[strictly], column[strictly], row[strictly], n)
    )


def product_anywhere(values: Matrices, x: Vectors, table: Table, height: int) -> Vectors:
    """`product` in operations of PyTorch."""
    return _added(values, x, *_entries(table), height)


def _entries(table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """The place in the values, row and column of every entry of every block."""
    i, j, h, w, at, s, t = table.unbind(1)
    size = h * w
    block = torch.repeat_interleave(torch.arange(len(table), device=table.device), size)
    within = torch.arange(len(block), device=table.device) - (size.cumsum(0) - size)[block]
    r, c = within // w[block], within % w[block]
    return at[block] + r * s[block] + c * t[block], i[block] + r, j[block] + c


def _added(values: Matrices, x: Vectors, place: Tensor, row: Tensor, column: Tensor, height: int) -> Vectors:
    repeat = len(x) // max(len(values), 1)
    terms = values[:, None, place] * x.unflatten(0, (len(values), repeat))[:, :, column]
    return x.new_zeros(len(x), height).index_add(1, row, terms.flatten(0, 1))


def repeats(values: Matrices, x: Vectors) -> int:
    """How many vectors there are for each matrix."""
    return max(len(x) // max(len(values), 1), 1)
