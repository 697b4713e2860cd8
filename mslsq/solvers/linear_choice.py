"""What the option `linear_solver` of a solver says of its systems: "auto", or the linear solver that a user names."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mslsq.linear import Cholesky, LinearSolver, SparseCholesky, UnrolledCholesky
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.choice import AutomaticSparse, eliminating, worth_looking_for_blocks
from mslsq.linear.iterative.block_rows import BlockRows
from mslsq.linear.unrolled import LARGEST_UNROLLED

LARGEST_DENSE = 300
"""Up to that many columns in one connected part the normal equations are dense under `linear_solver="auto"`."""


class Automatic:
    """The structure decides."""

    is_matrix_free = False
    """Are normal equations never formed?"""
    solves_parts = True
    """Are parts of a problem that nothing couples a batch of small systems?"""
    takes_compressed = True
    """Can it solve normal equations that come from compressed columns of one big residual?"""
    is_open = True
    """Is a matrix that is full anyway dense?"""

    def __init__(self, compiles: bool):
        self._compiles = compiles

    def wants_sparse(self, size: int) -> bool:
        """Should normal equations whose connected parts have this size be stored by their blocks?"""
        return size > LARGEST_DENSE

    def may_want_sparse(self, size: int, components: int, batch: int) -> bool:
        """Is it worth looking whether smaller ones are solved faster by their blocks?"""
        return worth_looking_for_blocks(size, components, batch)

    def is_sparse_anywhere(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> bool:
        """Can block-sparse normal equations of this structure be solved without the kernels of a CPU?"""
        return eliminating(structure, kinds) is not None or SparseCholesky().elsewhere() is not None

    def of_rows(self, rows: BlockRows) -> LinearSolver | None:
        """The linear solver that multiplies by these blocks of J; None for one that forms matrices."""
        return None

    def chosen(self, size: int, sparse: bool, on_cpu: bool = True) -> LinearSolver:
        """The linear solver for a system whose parts have this size."""
        if sparse:
            return AutomaticSparse()
        return UnrolledCholesky() if self._compiles and size <= LARGEST_UNROLLED else Cholesky()


@dataclass(frozen=True)
class Named:
    """A user has decided; methods as those of `Automatic`."""

    linear: LinearSolver
    is_open = False

    @property
    def is_matrix_free(self) -> bool:
        return not self.linear.storage.is_dense and not self.linear.storage.is_normal

    @property
    def solves_parts(self) -> bool:
        """Not in the triangle of one J, and not among its blocks."""
        return self.linear.storage.is_normal

    @property
    def takes_compressed(self) -> bool:
        return self.linear.for_normal_equations() is not None

    def wants_sparse(self, size: int) -> bool:
        return size > 0 and not self.linear.storage.is_dense  # where all is held fixed: no blocks

    def may_want_sparse(self, size: int, components: int, batch: int) -> bool:
        return False

    def is_sparse_anywhere(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> bool:
        return self.linear.elsewhere() is not None

    def of_rows(self, rows: BlockRows) -> LinearSolver | None:
        return self.linear.bound_to_rows(rows)

    def chosen(self, size: int, sparse: bool, on_cpu: bool = True) -> LinearSolver:
        if sparse:
            # One big residual is compressed to normal equations: it has no blocks to multiply by.
            asked = self.linear.for_normal_equations() or self.linear
            return asked if on_cpu else asked.elsewhere() or asked
        return self.linear if self.linear.storage.is_dense else Cholesky()  # not on this device: said in `verbose`
