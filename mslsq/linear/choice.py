"""Which sparse solver is the fastest for a structure: a general factorisation, or a Schur complement first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mslsq.linear.block_cholesky import BlockStructure
from mslsq.linear.dense import LinearSolver
from mslsq.linear.schur import Schur
from mslsq.linear.schur_plan import independent_kinds
from mslsq.linear.sparse import SparseCholesky


@dataclass(frozen=True)
class AutomaticSparse(LinearSolver):
    """Becomes `SparseCholesky` or `Schur` when it is bound to a structure: what `linear_solver="auto"` takes for large
    systems."""

    @property
    def form(self) -> Literal["normal", "triangular", "sparse"]:
        return "sparse"

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> LinearSolver:
        chosen = structure.__dict__.get("_chosen")
        if chosen is None:
            chosen = structure.__dict__["_chosen"] = fastest_sparse(structure, kinds)
        return chosen


def fastest_sparse(structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> LinearSolver:
    """The solver that takes the least time by estimate, bound to the structure.

    A kind is worth the look when it holds at least half of the unknowns: what is left must be small.
    """
    general = SparseCholesky().bound(structure, kinds)
    names = independent_kinds(structure, kinds)
    unknowns = sum(int(structure.block_sizes[kinds[n][kinds[n] >= 0]].sum()) for n in names)
    if 2 * unknowns < structure.num_unknowns:
        return general
    eliminating = Schur().bound(structure, kinds)
    return eliminating if eliminating.nanoseconds < general.nanoseconds else general
