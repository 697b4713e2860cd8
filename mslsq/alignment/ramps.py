"""Maps whose values are a plane: to shift one is to change its bias, and nothing tells where it lies."""

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

LEFT = 1e-4
"""Of the standard deviation, what a ramp leaves of a plane at most. Noise of three times that is seen for what it is,
and the map refused; below it rounding has laid all of 40 ramps on each other as they lay, 3e-4 px stated."""

SAMPLES, FEWEST = 32, 64
"""Samples along the shorter side that are looked at first, and how many of them must be valid to say no."""

BENT = 1e-2
"""A second difference of samples beyond that share of the standard deviation is no ramp's noise."""


def is_a_ramp(
    values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"], spread: float
) -> bool:
    """Are the values of every channel a plane, but for `LEFT`? `spread` is the standard deviation."""
    raster, mask = values.numpy(), known.numpy()
    stride = max(1, min(mask.shape) // SAMPLES)
    few, seen = raster[:, ::stride, ::stride], mask[::stride, ::stride]
    if seen.all():
        middle = few[:, few.shape[1] // 2]  # of most maps one row says it
        if np.abs(middle[:, 2:] - 2 * middle[:, 1:-1] + middle[:, :-2]).max(initial=0.0) > BENT * spread:
            return False
    if np.count_nonzero(seen) >= FEWEST and not _is_a_plane(few, seen, spread):
        return False
    return _is_a_plane(raster, mask, spread)  # of a page with one line on it few samples see but paper


def _is_a_plane(raster: np.ndarray, mask: np.ndarray, spread: float) -> bool:
    rows, columns = np.nonzero(mask)
    plane = np.stack([np.ones(len(rows)), rows, columns], -1)
    samples = raster[:, mask].T
    left = samples - plane @ np.linalg.lstsq(plane, samples, rcond=None)[0]
    return bool(np.sqrt(np.mean(left * left)) <= LEFT * spread)
