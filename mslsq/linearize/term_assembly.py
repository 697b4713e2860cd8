"""What a linearizer asks of a term: where the numbers of its blocks go in the system."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from mslsq.linear.storage import LinearizedTerm
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.problem.structure import Structure


class TermAssembly(LinearizedTerm):
    """Base. Jacobians and residuals are those of `block.linearizations`."""

    block: BlockTerm
    structure: Structure

    knows_curvature: ClassVar[bool] = True
    """Can it place Σ r ∇²r by itself, beside JᵀJ?"""

    def without_program(self) -> "TermAssembly":
        """The same without the native program of its block."""
        return self

    @property
    def blocks_at_a_time(self) -> int | None:
        """How many blocks are linearized at once where their matrices add up to one: as the cost bounds its memory."""
        return self.block.term.chunk if self.block.shares_variables else None

    @property
    def comes_in_pieces(self) -> bool:
        """Are there too many lanes to linearize all at once?"""
        return False

    def accumulated(
        self, values: Values, inputs: dict[str, Tensor]
    ) -> tuple[
        list[Float[Tensor, "outer groups lanes"]], Float[Tensor, "batch columns"], Float[Tensor, "batch values"]
    ]:
        """The losses by pieces, Jᵀr and JᵀJ, of a term that comes in pieces."""
        raise NotImplementedError

    def robustified(
        self, residual: Tensor, jacobian: Tensor, inputs: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "outer groups lanes"], Tensor, Tensor]:
        """Loss, residual and Jacobian as plain least squares sees them."""
        raise NotImplementedError

    def gradient(self, jacobian: Tensor, residual: Tensor) -> Float[Tensor, "batch columns"]:
        """Jᵀr, in the columns of the system."""
        raise NotImplementedError

    def placed_vector(self, blockwise: Tensor) -> Float[Tensor, "batch columns"]:
        """A vector per block, in the columns of the system."""
        raise NotImplementedError

    def taken_vector(self, vector: Float[Tensor, "batch columns"]) -> Float[Tensor, "outer tangent lanes"]:
        """The entries of a vector in the system's columns that belong to each block; those of fixed blocks are 0."""
        raise NotImplementedError
