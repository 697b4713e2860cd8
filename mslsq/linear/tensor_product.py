"""A x by operations of PyTorch: for derivatives, and for devices and installations without the kernels."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import BlockStructure


class Places(NamedTuple):
    """Where the stored numbers of a matrix stand."""

    rows: Int[Tensor, "values"]
    columns: Int[Tensor, "values"]
    diagonal: Int[Tensor, "columns"]
    """Which numbers are the diagonal."""
    read: Bool[Tensor, "values"]
    """Of diagonal blocks only the lower triangle is."""
    mirrored: Bool[Tensor, "values"]
    """Does it stand for its mirror image above the diagonal too?"""


def places_on(structure: BlockStructure, device: torch.device) -> Places:
    """The places as tensors on a device; made once per structure."""

    def make() -> Places:
        rows, columns = structure.places
        arrays = rows, columns, structure.diagonal_index, rows >= columns, rows > columns
        return Places(*kept_tensors(arrays, device))

    return structure.memo.once(("places", device), make)


def symmetric_product(
    structure: BlockStructure, matrix: Float[Tensor, "batch values"], x: Float[Tensor, "batch columns k"]
) -> Float[Tensor, "batch columns k"]:
    """A x for every entry of a batch, any number of vectors each; differentiable to any order."""
    rows, columns, _, read, mirrored = places_on(structure, matrix.device)
    y = x.new_zeros(x.shape)
    y = y.index_add(1, rows, torch.where(read, matrix, 0)[..., None] * x.index_select(1, columns))
    return y.index_add(1, columns, torch.where(mirrored, matrix, 0)[..., None] * x.index_select(1, rows))


def lower_triangle(
    structure: BlockStructure, matrix: Float[Tensor, "batch values"]
) -> Float[Tensor, "batch columns columns"]:
    """The matrix, dense, of which only the lower triangle is filled."""
    rows, columns, *_ = places_on(structure, matrix.device)
    n = structure.num_unknowns
    return matrix.new_zeros(len(matrix), n * n).index_copy(1, rows * n + columns, matrix).unflatten(1, (n, n))
