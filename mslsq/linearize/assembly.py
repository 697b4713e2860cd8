"""Block Jacobians to normal equations: gather, multiply, add up.

The plan (which entry of JᵀJ every product goes to) is worked out once per structure; a step only multiplies and adds.
No Jacobian of the whole problem is formed for the normal equations; memory is linear in the number of blocks.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.linear.unrolled import LARGEST
from mslsq.linearize.blocks import BlockTerm
from mslsq.problem.structure import Structure


@dataclass(frozen=True, eq=False)
class Assembly:
    """Where the blocks of one term go in the normal equations of the whole system."""

    block: BlockTerm
    structure: Structure
    columns: tuple[Int[Tensor, "tangent lanes"], ...]
    """Per slot, the column of each tangent entry of each block; a single lane where all blocks share the variable."""
    whole: bool
    """Are the columns of the term all the columns of the system, in order (one dense curve fit)?"""
    fused: bool = False
    """Write products as elementwise ones, which a compiler fuses with what made them, and not as calls of BLAS?"""

    @property
    def reduces(self) -> bool:
        """Do all lanes of one problem add up to one small matrix (or is there one lane per problem)?"""
        return self.block.lanes_are_batch or self.block.shares_variables

    # ---- normal equations
    # -------------------------------------------------------------------------------------------------------

    def gradient(
        self, jacobian: Float[Tensor, "outer rows tangent lanes"], residual: Float[Tensor, "outer rows lanes"]
    ) -> Float[Tensor, "batch columns"]:
        """Jᵀr, in the columns of the system."""
        if self.block.lanes_are_batch:
            return self.place_vector((jacobian[0] * residual[0, :, None]).sum(0).T)
        if self.reduces:
            return self.place_vector(einsum(jacobian, residual, "o rows tangent lanes, o rows lanes -> o tangent"))
        return self.place_vector((jacobian * residual[:, :, None]).sum(1))

    def hessian(
        self, jacobian: Float[Tensor, "outer rows tangent lanes"]
    ) -> Float[Tensor, "batch components size size"]:
        """JᵀJ, as a batch of dense matrices, one per component."""
        if self.block.lanes_are_batch:
            j = jacobian[0]
            if self.fused and j.shape[1] <= LARGEST:
                return self.place_matrix(_gram(j).permute(2, 0, 1))
            return self.place_matrix(einsum(j, j, "rows a lanes, rows b lanes -> lanes a b"))
        if self.reduces:
            return self.place_matrix(einsum(jacobian, jacobian, "o rows a lanes, o rows b lanes -> o a b"))
        return self.place_matrix(einsum(jacobian, jacobian, "o rows a lanes, o rows b lanes -> o a b lanes"))

    def dense_jacobian(
        self, jacobian: Float[Tensor, "outer rows tangent lanes"]
    ) -> Float[Tensor, "batch rows columns"]:
        """The rows of this term in the Jacobian of the whole system (one component)."""
        n = self.structure.num_columns
        if self.block.lanes_are_batch:
            rows = rearrange(jacobian[0], "rows tangent lanes -> lanes rows tangent")
            if self.whole:
                return rows
            index = self._joint_columns()[:, 0]
            return rows.new_zeros(*rows.shape[:2], n + 1).index_add(2, index, rows)[..., :n]
        outer, rows, _, lanes = jacobian.shape
        index = torch.arange(lanes, device=jacobian.device) * (n + 1) + self._joint_columns()
        flat = jacobian.new_zeros(outer, rows, lanes * (n + 1))
        flat = flat.index_add(
            2,
            index.expand(-1, lanes).reshape(-1),
            rearrange(jacobian, "o rows tangent lanes -> o rows (tangent lanes)"),
        )
        return rearrange(flat, "o rows (lanes columns) -> o (rows lanes) columns", lanes=lanes)[..., :n]

    # ---- placing
    # ----------------------------------------------------------------------------------------------------------------

    def place_vector(self, vector: Tensor) -> Float[Tensor, "batch columns"]:
        """A joint tangent vector per block, (batch, tangent) or (batch, tangent, lanes), added up in the system's
        columns."""
        if self.whole:
            return vector
        n = self.structure.num_columns
        index = self._joint_columns()
        index = index[:, 0] if vector.ndim == 2 else index.expand(-1, vector.shape[-1])
        return vector.new_zeros(len(vector), n + 1).index_add(1, index.reshape(-1), vector.flatten(1))[:, :n]

    def place_matrix(self, matrix: Tensor) -> Float[Tensor, "batch components size size"]:
        """A joint matrix per block, (batch, a, b) or (batch, a, b, lanes), added up in the system's matrices."""
        if self.whole:
            return matrix[:, None]
        count, size = self.structure.num_components, self.structure.size
        index = self._matrix_index()
        index = index[:, :, 0] if matrix.ndim == 3 else index.expand(-1, -1, matrix.shape[-1])
        flat = matrix.new_zeros(len(matrix), count * size * size + 1)
        flat = flat.index_add(1, index.reshape(-1), matrix.flatten(1))[:, :-1]
        return flat.reshape(len(matrix), count, size, size)

    def _joint_columns(self) -> Int[Tensor, "tangent lanes"]:
        lanes = max(column.shape[1] for column in self.columns)
        return torch.cat([column.expand(-1, lanes) for column in self.columns])

    def _matrix_index(self) -> Int[Tensor, "a b lanes"]:
        """The flat place of every entry of the blocks' matrices; what belongs to a fixed block goes into the last
        bin."""
        size, n = self.structure.size, self.structure.num_columns
        joint = self._joint_columns()
        row, column = joint[:, None], joint[None, :]
        place = row * size + column % max(size, 1)
        return torch.where((row < n) & (column < n), place, n * size)


def _gram(j: Float[Tensor, "rows tangent lanes"]) -> Float[Tensor, "tangent tangent lanes"]:
    """JᵀJ of every lane, each entry as a sum of products of its own: one pass over J gives all of them."""
    n = j.shape[1]
    entries = {(a, b): (j[:, a] * j[:, b]).sum(0) for a in range(n) for b in range(a + 1)}
    return torch.stack([torch.stack([entries[max(a, b), min(a, b)] for b in range(n)]) for a in range(n)])


def assembly_of(block: BlockTerm, structure: Structure, fused: bool = False) -> Assembly:
    """The plan for one term."""
    columns = []
    for slot in block.term.slots:
        of_unknown = structure.columns[slot.unknown]
        index = [slot.index] if isinstance(slot.index, int) else slot.index
        columns.append(of_unknown[index].T.contiguous())
    joint = torch.cat([column[:, :1] for column in columns])[:, 0].tolist()
    whole = (
        structure.num_components == 1
        and (block.lanes_are_batch or block.shares_variables)
        and joint == list(range(structure.num_columns))
    )
    return Assembly(block, structure, tuple(columns), whole, fused)
