"""A x by operations of PyTorch, for devices and installations without the kernels."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure


def symmetric_product(
    structure: BlockStructure, matrix: Float[Tensor, "batch values"], vector: Float[Tensor, "batch columns"]
) -> Float[Tensor, "batch columns"]:
    """A x for every entry of a batch; of diagonal blocks the lower triangle is read."""
    place, row, column, below = _lower(structure, matrix.device)
    lower = matrix[:, place]
    product = torch.zeros_like(vector).index_add(1, row, lower * vector[:, column])
    return product.index_add(1, column[below], lower[:, below] * vector[:, row[below]])


def _lower(structure: BlockStructure, device: torch.device) -> tuple[Int[Tensor, "entries"], ...]:
    """Of every entry of the lower triangle its place in the values, its row and its column, and which of them are off
    the diagonal; made once per structure and device."""
    made = structure.__dict__.setdefault("_lower_tensors", {})
    if device not in made:
        row, column = structure.places
        place = np.flatnonzero(row >= column)
        row, column = row[place], column[place]
        arrays = place, row, column, np.flatnonzero(row > column)
        made[device] = tuple(torch.from_numpy(array).to(device) for array in arrays)
    return made[device]
