"""One pass over a level's samples by compiled kernels: what they see of the map, and their normal equations.

`objective.Photometric` states the same cost sample by sample, for `mslsq.solve`. A pass writes nothing of the size of
samples x unknowns: residual, Jacobian and products of a few samples at a time stay in the processor's cache.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.models import Warp
from mslsq.kernels import Kernel, in_parts, run_on

if TYPE_CHECKING:
    from mslsq.alignment.estimate import PairLevel

_WARPED = Kernel("warped_samples", "nnnT?nn?ddnnT?")
_PHOTOMETRIC = Kernel("photometric", "nnnTnnT?dddnnnnnd")

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


def seen(level: "PairLevel", matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "channels n"], Bool[Tensor, " n"]]:
    """The map's values at the warped samples, zero where they fall on no data of either; and where they do not."""
    coefficients = level.moving.coefficients
    rows, columns = level.grid
    values = coefficients.new_empty((coefficients.shape[0], rows * columns))
    valid = torch.empty(rows * columns, dtype=torch.bool)
    H = matrix.to(torch.float64).contiguous()

    def part(first: int, last: int) -> None:
        _WARPED(
            *coefficients.shape, coefficients, level.moving.mask, rows, columns, level.known, level.geometry, H,
            first, last, values, valid,
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
    coefficients = level.moving.coefficients
    rows, columns = level.grid
    strips = -(-rows // STRIP)
    sums = torch.zeros((strips, 2 + _SIDE * _SIDE), dtype=torch.float64)
    log_gain, bias = (value * freedom).tolist()
    gain = math.exp(min(log_gain, LARGEST_LOG_GAIN))
    settings = torch.tensor([gain, bias, *freedom.tolist(), scale], dtype=torch.float64)
    H = torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float64))

    def part(first: int, last: int) -> None:
        _PHOTOMETRIC(
            *coefficients.shape, coefficients, rows, columns, level.planes, valid, level.geometry, H, settings,
            tangent, KINDS_OF_LOSS[loss], STRIP, first, last, sums,
        )  # fmt: skip

    in_parts(part, strips, torch.get_num_threads())
    total = sums.numpy().sum(0)
    unknowns = tangent + 2
    products = total[2:].reshape(_SIDE, _SIDE)[: unknowns + 1, : unknowns + 1]
    lower = products[:unknowns, :unknowns]
    matrix_of_all = lower + lower.T
    np.fill_diagonal(matrix_of_all, lower.diagonal())
    return NormalEquations(int(total[0]), 0.5 * float(total[1]), products[unknowns, :unknowns].copy(), matrix_of_all)
