"""Which sparse solver is the fastest for a structure: a general factorisation, a Schur complement first, or none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mslsq.kernels import available
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.independent_kinds import blocks_of, independent_kinds
from mslsq.linear.iterative import ConjugateGradient
from mslsq.linear.linear_solver import LinearSolver
from mslsq.linear.schur import Schur
from mslsq.linear.schur.reduced import dense_nanoseconds
from mslsq.linear.sparse import SparseCholesky
from mslsq.linear.storage import Storage
from mslsq.linear.stored_blocks import StoredBlocks

LARGEST_FACTOR = 5e8
"""Numbers in a factor (4 GB in float64) above which none is made unless it is asked for."""

SLOWEST_FACTOR = 60e9
"""Nanoseconds of one factorisation from which conjugate gradients are considered..."""

FASTER = 10.0
"""... if they are this many times faster..."""

ITERATIONS = 300
"""... at that many iterations a step, of 3 ns per number of the matrix each (sphere2500: 0.65 ms, 268,164 numbers)."""


DENSE_NANOSECONDS = 25.0
"""Of a step with dense normal equations in a batch, per number of the matrix: 20 to 50 for 72 to 288 columns."""

BATCH = 500_000
"""Numbers in the dense matrices of a batch (4 MB in float64) from which it is looked whether blocks are faster."""


AROUND_BLOCKS = 1e5
"""Nanoseconds of Python around the five operators of a step by blocks, on any instruction set..."""

FORMED_DENSE = 2.0
"""... and of forming a dense matrix and adding to its diagonal, per number of it."""


ORDERS_GAIN = 1.5
"""What other orders of elimination may gain on the first that is tried: in 165 drawn bundle adjustments, graphs with
landmarks and grids at most 1.19 times its time (1.17 in the 55 of them by which this was chosen), 1.00 to 1.05 times in
the medians."""


def blocks_are_faster(structure: BlockStructure, batch: int) -> bool:
    """Is a matrix small enough to be dense factored faster by its blocks, on a CPU?

    64 graphs of 24, 48, 96 SE(2) poses take 0.20, 0.55, 4.0 ms a step each with dense matrices, and 0.07, 0.09, 0.15 by
    blocks. Of a single graph of 30, 45, 60 poses (90, 135, 180 unknowns; the "choose" half of `benchmarks/
    graph_families.py`) factorisation and solve take 0.05, 0.11, 0.17 ms dense and 0.04, 0.05, 0.06 by blocks, whose
    operators cost 0.1 of Python: from about 140 unknowns on blocks are faster.
    """
    n = structure.num_unknowns
    if not available() or 4 * structure.num_values > 3 * n**2:  # one full block is dense
        return False
    by_blocks = structure.elimination_nanoseconds + 10 * structure.num_values
    if batch == 1:
        return by_blocks + AROUND_BLOCKS < _single_dense_nanoseconds(n)
    return by_blocks < DENSE_NANOSECONDS * n**2


def worth_looking_for_blocks(size: int, components: int, batch: int) -> bool:
    """May a dense system of this size be solved faster by its blocks, so that its structure is worth an analysis?"""
    if components != 1:
        return False
    return batch * size**2 >= BATCH if batch > 1 else _single_dense_nanoseconds(size) > AROUND_BLOCKS


def _single_dense_nanoseconds(n: int) -> float:
    return dense_nanoseconds(n) + FORMED_DENSE * n**2


@dataclass(frozen=True)
class AutomaticSparse(LinearSolver):
    """Becomes `SparseCholesky` or `Schur` when it is bound to a structure: what `linear_solver="auto"` takes for large
    systems. On other devices than CPUs `Schur` wherever it makes the system much smaller, and cuDSS where not."""

    @property
    def storage(self) -> Storage:
        return StoredBlocks()

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> LinearSolver:
        def choose() -> LinearSolver:
            on_cpu = structure.device.type == "cpu"
            fastest = fastest_sparse if on_cpu and available() else eliminating
            general = SparseCholesky("auto" if on_cpu else "cudss")
            return fastest(structure, kinds) or general.bound(structure, kinds)

        return structure.memo.once(self, choose)


def fastest_sparse(structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> LinearSolver:
    """The solver that takes the least time on a CPU by estimate, bound to the structure.

    Conjugate gradients only where a factorisation is out of the question: they take hundreds of iterations on a pose
    graph of 2500 poses, and do not always get there.
    """
    schur, direct = eliminating(structure, kinds), SparseCholesky().bound(structure, kinds)
    own = math.inf if schur is None else schur.nanoseconds
    without = structure.rough_nanoseconds if schur is not None else 0.0
    if without < ORDERS_GAIN * own:
        without = structure.elimination_nanoseconds
    if schur is not None and own < without:
        times = [f"{nanoseconds / 1e6:.2g} ms" for nanoseconds in (own, without)]
        direct = replace(schur, reason=f"{times[0]} a solve by estimate, {times[1]} without")
        time, stored = own, schur.factor_size
    else:
        time, stored = without, structure.elimination_size
    slow = time > max(SLOWEST_FACTOR, FASTER * ITERATIONS * 3 * structure.num_values)
    if stored <= LARGEST_FACTOR and not slow:
        return direct
    why = f"a factor would hold {stored:.1e} numbers and take {time * 1e-9:.0f} s"
    preconditioner = "block_jacobi" if schur is None else "schur_jacobi"
    return ConjugateGradient(preconditioner, reason=why).bound(structure, kinds)


def eliminating(structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> Schur | None:
    """A Schur complement of this structure, where at least half of the unknowns can be eliminated by kind."""
    names = independent_kinds(structure, kinds)
    unknowns = int(structure.block_sizes[blocks_of(structure, kinds, names)].sum())
    return Schur().bound(structure, kinds) if 2 * unknowns >= structure.num_unknowns else None
