"""One pass over a level's samples by compiled kernels: what they see of the map, and their normal equations.

`objective.Photometric` states the same cost sample by sample, for `mslsq.solve`. A pass writes nothing of the size of
samples x unknowns: residual, Jacobian and products of a few samples at a time stay in the processor's cache.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.models import Warp
from mslsq.kernels import Kernel, in_parts, run_on

if TYPE_CHECKING:
    from mslsq.alignment.pair_level import PairLevel

_WARPED = Kernel("warped_samples", "nnnT?nn?ddnnnT?")
_PHOTOMETRIC = Kernel("photometric", "nnnTnnT?dddnnnnnd")
_TOTALS = Kernel("normal_totals", "nndd")
_DESCENT = Kernel("photometric_descent", "nnnTnnT?dddd?nnndnddl")

STRIP = 32
"""Rows of samples whose sums are added up alone: the result does not depend on the number of threads."""

LARGEST_LOG_GAIN = 300.0
"""A step this far off is rejected by its cost, which must be a number for that."""

MOST_UNKNOWNS = 10
_SIDE = MOST_UNKNOWNS + 1

KINDS_OF_LOSS = {None: 0, "cauchy": 1, "huber": 2, "tukey": 3, "geman_mcclure": 4}
"""The losses that the kernel knows, as `enum Loss` in `photometric.cpp` numbers them."""


class NormalEquations(NamedTuple):
    """Of one estimate on one level, in float64: cost ½Σρ, gradient and matrix JᵀJ over (tangent, log gain, bias)."""

    samples: int
    cost: float
    gradient: Float[np.ndarray, " unknowns"]
    matrix: Float[np.ndarray, "unknowns unknowns"]


def knows(kind: type[Warp], loss: str | None, device: torch.device) -> bool:
    """Do the kernels know this warp and this loss, and work on this device? A warp with a Jacobian of its own is not
    known."""
    return kind.pull_back is Warp.pull_back and loss in KINDS_OF_LOSS and run_on(device)


def seen(
    level: "PairLevel", matrix: Float[Tensor, "3 3"], every: int = 1
) -> tuple[Float[Tensor, "channels n"], Bool[Tensor, " n"]]:
    """The map's values at the warped samples, zero where they fall on no data of either; and where they do not. Values
    of every `every`-th sample: the others are zero."""
    return warped(level.moving.coefficients, level.moving.mask, level.grid, level.known, level.geometry, matrix, every)


def warped(
    coefficients: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    grid: tuple[int, int],
    known: Bool[Tensor, " n"],
    geometry: Float[Tensor, "6"],
    matrix: Float[Tensor, "3 3"],
    every: int = 1,
) -> tuple[Float[Tensor, "channels n"], Bool[Tensor, " n"]]:
    """The same of any rows and columns of samples (`PairLevel.geometry`), of which some are `known`."""
    rows, columns = grid
    values = coefficients.new_empty((coefficients.shape[0], rows * columns))
    valid = torch.empty(rows * columns, dtype=torch.bool, device="cpu")
    H = matrix.to(torch.float64).contiguous()

    def part(first: int, last: int) -> None:
        _WARPED(
            *coefficients.shape, coefficients, mask, rows, columns, known, geometry, H, first, last, every, values,
            valid,
        )  # fmt: skip

    in_parts(part, rows, torch.get_num_threads())
    return values, valid


def normal_equations(
    level: "PairLevel",
    matrix: Float[np.ndarray, "3 3"],
    value: Float[np.ndarray, "2"],
    freedom: Float[np.ndarray, "2"],
    valid: Bool[Tensor, " n"],
    tangent: int,
    loss: str | None = None,
    scale: float = 1.0,
) -> NormalEquations:
    """Cost, gradient and JᵀJ of `objective.Photometric` over the valid samples, from one pass.

    `value` is (log gain, bias). With one channel the matrix has the loss's curvature as `mslsq.solve` keeps it; with
    several it is weighted by ρ' alone.
    """
    return Pass(level, freedom, valid, tangent, loss, scale)(matrix, value)


class Pass:
    """`normal_equations` of one level and one choice of samples, at any estimate: what does not change from one step to
    the next is made once (of a coarse level a pass takes 0.03 ms, and that as long)."""

    def __init__(
        self,
        level: "PairLevel",
        freedom: Float[np.ndarray, "2"],
        valid: Bool[Tensor, " n"],
        tangent: int,
        loss: str | None = None,
        scale: float = 1.0,
    ):
        coefficients, (rows, columns) = level.moving.coefficients, level.grid
        self.strips, self.unknowns, self.freedom = -(-rows // STRIP), tangent + 2, freedom.tolist()
        self.scale = scale
        self.seen = (*coefficients.shape, coefficients, rows, columns, level.planes, valid, level.geometry)
        self.how = tangent, KINDS_OF_LOSS[loss], STRIP

    def __call__(self, matrix: Float[np.ndarray, "3 3"], value: Float[np.ndarray, "2"]) -> NormalEquations:
        log_gain, bias = value.tolist()
        gain = math.exp(min(log_gain * self.freedom[0], LARGEST_LOG_GAIN))
        sums, H, settings = self.room
        settings.numpy()[:2] = gain, bias * self.freedom[1]
        H.numpy()[:] = matrix
        in_parts(self._part, self.strips, torch.get_num_threads())
        unknowns = self.unknowns
        numbers = np.empty(2 + unknowns + unknowns**2)
        _TOTALS(self.strips, unknowns, sums, numbers)
        products = numbers[2 + unknowns :].reshape(unknowns, unknowns)
        return NormalEquations(int(numbers[0]), 0.5 * float(numbers[1]), numbers[2 : 2 + unknowns], products)

    @cached_property
    def room(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of the strips, matrix and settings of a pass."""
        sums = torch.zeros(self.strips, 2 + _SIDE * _SIDE, dtype=torch.float64, device="cpu")
        settings = torch.tensor([1.0, 0.0, *self.freedom, self.scale], dtype=torch.float64, device="cpu")
        return sums, torch.empty(3, 3, dtype=torch.float64, device="cpu"), settings

    @property
    def alone(self) -> bool:
        """Is a pass the work of one thread? Then all steps of a solve are one call of `descended`."""
        return self.strips == 1 or torch.get_num_threads() == 1

    def descended(
        self,
        matrix: Float[np.ndarray, "3 3"],
        value: Float[np.ndarray, "2"],
        free: Bool[np.ndarray, " unknowns"],
        limits: Sequence[float],
        max_steps: int,
        rate: float,
    ) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "2"], int, list[float], NormalEquations, float]:
        """What `descent.descend` comes to from a start, with the constants that it names: matrix and value, how it
        ended (`ENDINGS` of `descent`), the costs, the last equations, and the rate."""
        unknowns = self.unknowns
        state, at, ending = matrix.copy(), value.copy(), np.empty(2, dtype=np.int64)
        settings = np.array([*self.freedom, self.scale, LARGEST_LOG_GAIN])
        numbers, costs = np.empty(2 + unknowns + unknowns**2), np.empty(max_steps + 2)
        costs[-1] = rate
        _DESCENT(
            *self.seen, state, at, settings, free, *self.how, np.array(limits), max_steps, numbers, costs, ending
        )  # fmt: skip
        how, count = ending.tolist()
        products = numbers[2 + unknowns :].reshape(unknowns, unknowns)
        normal = NormalEquations(int(numbers[0]), float(numbers[1]), numbers[2 : 2 + unknowns], products)
        return state, at, how, costs[:count].tolist(), normal, float(costs[-1])

    def _part(self, first: int, last: int) -> None:
        sums, H, settings = self.room
        _PHOTOMETRIC(*self.seen, H, settings, *self.how, first, last, sums)
