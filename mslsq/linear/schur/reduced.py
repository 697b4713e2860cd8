"""How the reduced system of a Schur complement is solved: dense, sparse, or by conjugate gradients."""

from typing import Literal

from mslsq.kernels import available
from mslsq.linear.block_structure import BlockStructure

Way = Literal["dense", "sparse", "iterative"]
Reduced = Literal["auto", "dense", "sparse", "iterative"]

LONGEST_DIRECT = 1e10
"""Nanoseconds that a direct solve of the reduced system may take by estimate before `"auto"` iterates."""

LARGEST_DIRECT = 2e8
"""The same for the numbers in its factor: 1.6 GB."""


def way_of(reduced: BlockStructure, asked: Reduced, kernels: bool) -> Way:
    """What was asked for, or what suits the size and the density; where no kernels work dense for sparse."""
    way = _suited(reduced) if asked == "auto" else asked
    return "dense" if way == "sparse" and not kernels else way


def _suited(reduced: BlockStructure) -> Way:
    dense, sparse, stored = dense_nanoseconds(reduced.num_unknowns), float("inf"), reduced.num_unknowns**2
    if available():
        sparse, stored = reduced.elimination_nanoseconds, min(stored, reduced.elimination_size)
    if min(dense, sparse) > LONGEST_DIRECT or stored > LARGEST_DIRECT:
        return "iterative"
    return "dense" if dense < sparse else "sparse"


def dense_nanoseconds(n: int) -> float:
    """The time of forming, factoring and solving a dense system by LAPACK on one core (Zen 5: 1.4 ms for 441 unknowns,
    90 for 1800)."""
    return 2e4 + 1.5 * n**2 + 0.012 * n**3
