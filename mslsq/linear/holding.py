"""Any linear solver as one that holds some columns still."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.linear_solver import SolverAround
from mslsq.linear.storage import Vector

HELD = {torch.float64: 1e24, torch.float32: 1e12}
"""The damping of a held column, relative to its square. What it takes from the others by then, the square of a cosine
over this, is far below their rounding; no matrix is copied, and none factored in another way."""


@dataclass(frozen=True, eq=False)
class Holding(SolverAround):
    """The steps of a linear solver in which only some columns are free; those of the others are zero.

    Args:
        free: the columns that move.
    """

    free: Bool[Tensor, "batch columns"]

    def solve(
        self, matrix: Float[Tensor, "..."], rhs: Vector, damping: Vector | None
    ) -> tuple[Vector, Bool[Tensor, "batch"]]:
        squared = self.storage.diagonal(matrix)
        still = HELD[rhs.dtype] * torch.where(squared > 0, squared, 1)
        step, solved = self.own.solve(matrix, rhs, torch.where(self.free, 0 if damping is None else damping, still))
        return torch.where(self.free, step, 0), solved
