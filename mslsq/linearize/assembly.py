"""Block Jacobians to normal equations: gather, multiply, add up.

The plan (which entry of JᵀJ every product goes to) is worked out once per structure; a step only multiplies and adds.
No Jacobian of the whole problem is formed for the normal equations; memory is linear in the number of blocks.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.kernels import run_on
from mslsq.linear.normal_products import (
    NormalPlan,
    add_normal_equations,
    normal_equations,
    normal_gradient,
    normal_matrix,
    normal_matrix_by_tensors,
    placed_matrices,
)
from mslsq.linear.storage import LinearizedTerm, Storage
from mslsq.linear.unrolled import LARGEST_UNROLLED
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.pattern import Placement
from mslsq.linearize.robust import robustified
from mslsq.linearize.segmented_products import SegmentedPlan, segmented_gradient, segmented_matrix
from mslsq.problem.structure import Structure
from mslsq.tracing.recorder import is_recording

PIECE = 500_000
"""Numbers of J (4 MB in float64) that are made at a time where there are twice as many or more: a larger J is memory
that no cache holds and that the system has to allocate again. 1,000,000 between factors: 5.4 s a step instead of 12.
With 100,000 numbers at a time the calls of PyTorch cost more than the caches save."""


@dataclass(frozen=True, eq=False)
class Assembly(LinearizedTerm):
    """Where the blocks of one term go in the normal equations of the whole system. Jacobians and residuals are those of
    `block.linearizations`."""

    block: BlockTerm
    structure: Structure
    placement: Placement
    sparse: bool = False
    """Are the normal equations stored by their non-zero blocks?"""
    fused: bool = False
    """Write products as elementwise ones, which a compiler fuses with what made them, and not as calls of BLAS?"""
    differentiable: bool = False
    """Keep to operations that PyTorch differentiates? The kernels for block-sparse normal equations have no
    derivative."""

    @property
    def knows_curvature(self) -> bool:
        """Can it place Σ r ∇²r by itself, beside JᵀJ?"""
        return self.block.way.sparsity is None

    @property
    def blocks_at_a_time(self) -> int | None:
        """How many blocks are linearized at once where their matrices add up to one: as the cost bounds its memory."""
        return self.block.term.chunk if self.block.shares_variables else None

    def without_program(self) -> "Assembly":
        """The same in PyTorch's operations alone."""
        return replace(self, block=replace(self.block, program=None, second=None))

    # ---- normal equations

    def gradient(self, jacobian: Tensor, residual: Float[Tensor, "outer rows lanes"]) -> Float[Tensor, "batch columns"]:
        """Jᵀr, in the columns of the system."""
        normal, segments = self.placement.normal, self._segments
        if segments is not None:
            return segmented_gradient(jacobian, residual, *segments.packed)
        if normal is not None and self._by_kernels(jacobian):
            return normal_gradient(jacobian, residual, *normal.packed)
        if self.block.shares_variables:
            return self.place_vector(einsum(jacobian, residual, "o rows tangent lanes, o rows lanes -> o tangent"))
        return self.placed_vector(self.block.way.layout.pulled(jacobian, residual))

    def hessian(self, jacobian: Tensor) -> Float[Tensor, "batch components size size"]:
        """JᵀJ, as a batch of dense matrices, one per component, or by its blocks."""
        normal, segments = self.placement.normal, self._segments
        if segments is not None:
            return segmented_matrix(jacobian, *segments.packed)
        if normal is not None and self._by_kernels(jacobian):
            return normal_matrix(jacobian, *normal.packed)
        if normal is not None:
            return normal_matrix_by_tensors(jacobian, normal)
        if self.block.shares_variables:
            return self.place_matrix(einsum(jacobian, jacobian, "o rows a lanes, o rows b lanes -> o a b"))
        if self.fused and self.block.lanes_are_batch and sum(self.block.tangents) <= LARGEST_UNROLLED:
            return self.place_matrix(_gram(jacobian[0]).permute(2, 0, 1))
        return self.placed(self.block.way.layout.squared(jacobian))

    def equations(
        self, storage: Storage, jacobian: Tensor, residual: Float[Tensor, "outer rows lanes"]
    ) -> tuple[Float[Tensor, "batch columns"], tuple[Tensor, ...]]:
        """Jᵀr, and what the storage keeps of this term: JᵀJ by its blocks comes from the same pass over J."""
        normal = self.placement.normal
        if storage.is_normal and normal is not None and self._segments is None and self._by_kernels(jacobian):
            gradient, matrix = normal_equations(jacobian, residual, *normal.packed)
            return gradient, (matrix,)
        return self.gradient(jacobian, residual), storage.part(self, jacobian, residual)

    @property
    def _segments(self) -> SegmentedPlan | None:
        """Sums over segments are for a GPU whose blocks are native programs: then there is a compiler."""
        is_used = self.sparse and not self.differentiable and self.block.program is not None
        return self.placement.segments if is_used else None

    def _by_kernels(self, jacobian: Tensor) -> bool:
        return not self.differentiable and run_on(jacobian.device)

    @property
    def comes_in_pieces(self) -> bool:
        """Are there too many lanes to linearize all at once? Not while the step is recorded, which
        would write down every piece."""
        return (
            self.placement.normal is not None
            and self.block.outer == 1
            and self.block.term.num_blocks >= 2 * self._blocks_in_cache
            and not self.fused
            and self._by_kernels(self.placement.columns)
            and not is_recording()
        )

    @property
    def _blocks_in_cache(self) -> int:
        return max(PIECE // (self.block.rows * sum(self.block.tangents)), 1)

    @cached_property
    def _pieces(self) -> list[NormalPlan]:
        normal, lanes, count = self.placement.normal, self._blocks_in_cache, self.block.term.num_blocks
        assert normal is not None  # the callers have checked
        return [normal.of_lanes(start, start + lanes) for start in range(0, count, lanes)]

    def accumulated(
        self, values: Values, inputs: dict[str, Tensor]
    ) -> tuple[
        list[Float[Tensor, "outer groups lanes"]], Float[Tensor, "batch columns"], Float[Tensor, "batch values"]
    ]:
        """The losses by pieces, Jᵀr and JᵀJ, with only one piece of J in memory at a time."""
        whole = self._pieces[0]
        matrix, gradient = (values[0].new_zeros(1, size) for size in (whole.num_values, whole.num_columns))
        losses = []
        linearized = self.block.linearizations_in_pieces(values, inputs, self._blocks_in_cache)
        for plan, (part, (residual, jacobian)) in zip(self._pieces, linearized, strict=True):
            rho, residual, jacobian = robustified(self.block, residual, jacobian, part)
            losses.append(rho)
            add_normal_equations(gradient, matrix, jacobian, residual, plan)
        return losses, gradient, matrix

    def rows(
        self, jacobian: Float[Tensor, "outer rows tangent lanes"], residual: Float[Tensor, "outer rows lanes"]
    ) -> tuple[Float[Tensor, "batch rows columns"], Float[Tensor, "batch rows"]]:
        """The rows of this term in the Jacobian of the whole system (one component), and their residuals."""
        return self._dense_jacobian(jacobian), self.block.batch_first(residual).flatten(1)

    def squared(self, jacobian: Float[Tensor, "outer rows tangent lanes"]) -> Float[Tensor, "outer a b lanes"]:
        """JᵀJ of every block by itself, a column of all of them at a time: no larger tensor."""
        return torch.stack([(jacobian * jacobian[:, :, a, None]).sum(1) for a in range(jacobian.shape[2])], 1)

    def shared(self, blockwise: Float[Tensor, "outer a b lanes"]) -> Float[Tensor, "outer a b lanes"]:
        """A matrix per block; of blocks that share their variables the sum."""
        return blockwise.sum(-1, keepdim=True) if self.block.shares_variables else blockwise

    def flat(self, blocks: Float[Tensor, "outer a b lanes"]) -> Float[Tensor, "batch values"]:
        """All numbers in one row per problem, the lanes last."""
        return self.block.batch_first(blocks).flatten(1)

    def _dense_jacobian(
        self, jacobian: Float[Tensor, "outer rows tangent lanes"]
    ) -> Float[Tensor, "batch rows columns"]:
        """The rows of this term in the Jacobian of the whole system (one component)."""
        n = self.structure.num_columns
        if self.block.lanes_are_batch:
            rows = rearrange(jacobian[0], "rows tangent lanes -> lanes rows tangent")
            if self.placement.whole:
                return rows
            index = self.placement.columns[:, 0]
            return rows.new_zeros(*rows.shape[:2], n + 1).index_add(2, index, rows)[..., :n]
        outer, rows, _, lanes = jacobian.shape
        index = torch.arange(lanes, device=jacobian.device) * (n + 1) + self.placement.columns
        flat = jacobian.new_zeros(outer, rows, lanes * (n + 1))
        flat = flat.index_add(
            2,
            index.expand(-1, lanes).reshape(-1),
            rearrange(jacobian, "o rows tangent lanes -> o rows (tangent lanes)"),
        )
        return rearrange(flat, "o rows (lanes columns) -> o (rows lanes) columns", lanes=lanes)[..., :n]

    # ---- placing

    def placed(self, blockwise: Float[Tensor, "outer a b lanes"]) -> Tensor:
        """A symmetric matrix per block, (outer, a, a, lanes) or the entries of one that a layout makes, in the system's
        matrices."""
        normal = self.placement.normal
        if normal is not None and blockwise.ndim == 4 and self._segments is None and self._by_kernels(blockwise):
            return placed_matrices(blockwise, *normal.packed)
        return self.place_matrix(self._by_problem(blockwise))

    def placed_vector(self, blockwise: Float[Tensor, "outer tangent lanes"]) -> Float[Tensor, "batch columns"]:
        """A vector per block, in the system's columns."""
        return self.place_vector(self._by_problem(blockwise))

    def _by_problem(self, blockwise: Float[Tensor, "outer ... lanes"]) -> Float[Tensor, "batch ..."]:
        """The batch first; added up where all blocks share their variables."""
        return blockwise.sum(-1) if self.block.shares_variables else self.block.batch_first(blockwise)

    def place_vector(self, vector: Tensor) -> Float[Tensor, "batch columns"]:
        """A joint tangent vector per block, (batch, tangent) or (batch, tangent, lanes), added up in the system's
        columns."""
        if self.placement.whole:
            return vector
        return _added(vector.flatten(1), self.placement.vector, self.structure.num_columns)

    def taken_vector(self, vector: Float[Tensor, "batch columns"]) -> Float[Tensor, "outer tangent lanes"]:
        """The entries of a vector in the system's columns that belong to each block; those of fixed blocks are 0."""
        if not self.placement.whole:
            padded = torch.nn.functional.pad(vector, (0, 1))
            vector = padded[:, self.placement.vector].unflatten(1, self.placement.columns.shape)
            if not self.block.lanes_are_batch:
                return vector.expand(-1, -1, self.block.lanes)
            vector = vector[:, :, 0]
        return vector.T[None] if self.block.lanes_are_batch else vector[..., None].expand(-1, -1, self.block.lanes)

    def place_matrix(self, matrix: Tensor) -> Tensor:
        """A joint matrix per block, (batch, a, b) or (batch, a, b, lanes), or entries of it, added up in the system's
        matrices: (batch, components, size, size), or (batch, values) where they are block-sparse."""
        flat, index = matrix.flatten(1), self.placement.matrix
        if index is not None:
            # One triangle goes to its places, and again to those of the other one.
            flat = torch.cat((flat, flat), 1) if len(index) == 2 * flat.shape[1] else flat
            flat = _added(flat, index, self.placement.matrix_size)
        if self.sparse:
            return flat
        return flat.reshape(len(matrix), self.structure.num_components, self.structure.size, self.structure.size)


def _added(
    numbers: Float[Tensor, "batch numbers"], places: Int[Tensor, "numbers"], count: int
) -> Float[Tensor, "batch count"]:
    """The sum at every place; what goes to a last one more is dropped."""
    return numbers.new_zeros(len(numbers), count + 1).index_add(1, places, numbers)[:, :count]


def _gram(j: Float[Tensor, "rows tangent lanes"]) -> Float[Tensor, "tangent tangent lanes"]:
    """JᵀJ of every lane, each entry as a sum of products of its own: one pass over J gives all of them."""
    n = j.shape[1]
    entries = {(a, b): (j[:, a] * j[:, b]).sum(0) for a in range(n) for b in range(a + 1)}
    return torch.stack([torch.stack([entries[max(a, b), min(a, b)] for b in range(n)]) for a in range(n)])
