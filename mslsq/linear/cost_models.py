"""How long the kernels take, by the instruction set they are used with: for choosing between linear solvers, and for
merging fronts. Measured by `benchmarks/kernels.py`; NEON, which has not been measured, counts as the baseline."""

from typing import NamedTuple

import numpy as np

from mslsq.kernels import target


class Speed(NamedTuple):
    """Nanoseconds of a multiplication with its addition..."""

    in_fronts: float
    """... in a factorisation..."""
    in_products: float
    """... and in the products of small blocks of a Schur complement, padding counted..."""
    register: int
    """... to this many columns, those of one register in float64."""


SPEEDS = {
    "avx512": Speed(0.025, 0.03, 8),
    "avx2": Speed(0.05, 0.06, 4),
    "baseline": Speed(0.1, 0.2, 2),
    "neon": Speed(0.1, 0.2, 2),
}


def front_model() -> np.ndarray:
    """Nanoseconds of a front: constant, per column, per operation, per number of the panel, per number of the update
    matrix."""
    return np.array((250.0, 6.0, SPEEDS[target()].in_fronts, 2.0, 0.8))


def product_nanoseconds(height: int, depth: int, width: int) -> float:
    """The time of subtracting (height, depth) times (depth, width) from a block of a Schur complement."""
    speed = SPEEDS[target()]
    return 2 + speed.in_products * height * depth * speed.register * -(-width // speed.register)
