"""Maps whose values are a plane: to shift one is to change its bias, and nothing tells where it lies."""

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

LEFT = 1e-4
"""Of the standard deviation, what a ramp leaves of a plane at most. Noise of three times that is seen for what it is,
and the map refused; below it rounding has laid all of 40 ramps on each other as they lay, 3e-4 px stated."""

SAMPLES, FEWEST = 32, 64
"""Samples along the shorter side that are looked at, and how many of them must be valid: else all pixels are."""

BENT = 1e-2
"""A second difference of samples beyond that share of the standard deviation is no ramp's noise."""


def is_a_ramp(
    values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"], spread: float
) -> bool:
    """Are the values of every channel a plane, but for `LEFT`? `spread` is the standard deviation."""
    stride = max(1, min(known.shape) // SAMPLES)
    raster, mask = values.numpy()[:, ::stride, ::stride], known.numpy()[::stride, ::stride]
    if mask.all():
        middle = raster[:, raster.shape[1] // 2]  # of most maps one row says it
        if np.abs(middle[:, 2:] - 2 * middle[:, 1:-1] + middle[:, :-2]).max(initial=0.0) > BENT * spread:
            return False
    elif np.count_nonzero(mask) < FEWEST:
        raster, mask = values.numpy(), known.numpy()
    rows, columns = np.nonzero(mask)
    plane = np.stack([np.ones(len(rows)), rows, columns], -1)
    samples = raster[:, mask].T
    left = samples - plane @ np.linalg.lstsq(plane, samples, rcond=None)[0]
    return bool(np.sqrt(np.mean(left * left)) <= LEFT * spread)
