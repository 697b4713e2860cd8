"""How long the kernels take, by the instruction set they are used with: for choosing between linear solvers, and for
merging fronts. Fitted to the half "choose" of `benchmarks/solver_choice.py`; NEON, which has not been measured, counts
as the baseline."""

from typing import NamedTuple, TypeVar

import numpy as np

from mslsq.kernels import available, target

Count = TypeVar("Count", int, np.ndarray)


class EliminationSpeed(NamedTuple):
    """Nanoseconds of the elimination of small blocks, and of the way back."""

    pivot: float
    """Of a block that is eliminated..."""
    coupling: float
    """... of a number of the blocks between it and those that are kept, rows padded to registers..."""
    pair: float
    """... of a product of two of these..."""
    product: float
    """... of a multiplication with its addition in it, columns padded to registers..."""
    matrix: float
    """... and of a number of the reduced matrix."""


class Speed(NamedTuple):
    """What the kernels are like on an instruction set."""

    register: int
    """Numbers in a register, in float64."""
    in_fronts: float
    """Nanoseconds of a multiplication with its addition in a factorisation, for merging fronts."""
    fronts: tuple[float, float, float, float, float]
    """Nanoseconds of a factorisation and its two triangular solves: of a front, of a column, of a multiplication with
    its addition, of a number of the panel, of one of the update matrix."""
    elimination: EliminationSpeed


SPEEDS = {
    "avx512": Speed(8, 0.025, (215.0, 21.6, 0.0171, 0.951, 0.13), EliminationSpeed(79.1, 0.362, 2.63, 0.02, 2.25)),
    "avx2": Speed(4, 0.05, (321.0, 4.04, 0.0402, 1.06, 0.0), EliminationSpeed(45.2, 1.23, 2.33, 0.0242, 0.721)),
    "baseline": Speed(2, 0.1, (0.0, 43.2, 0.0634, 0.745, 0.323), EliminationSpeed(46.3, 1.45, 1.3, 0.0945, 1.17)),
}
SPEEDS["neon"] = SPEEDS["baseline"]

AROUND_ELIMINATION = 3e4
"""Nanoseconds of Python around the two operators of an elimination, on any instruction set."""


def speed() -> Speed:
    """Of the instruction set in use; without compiled kernels of the one that every processor has."""
    return SPEEDS[target() if available() else "baseline"]


def merging_model() -> np.ndarray:
    """Nanoseconds of a front: constant, per column, per operation, per number of the panel, per number of the update
    matrix. More than a front takes: what is judged by it is whether two become one, and then all that belongs to a
    small front is saved."""
    return np.array((250.0, 6.0, speed().in_fronts, 2.0, 0.8))


def padded(count: Count) -> Count:
    """Rounded up to whole registers."""
    return speed().register * -(-count // speed().register)
