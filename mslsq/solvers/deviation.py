"""The scale of inliers from the residuals themselves: the median absolute deviation, for blocks of several rows.

The norm of a block of d Gaussian rows of standard deviation σ is distributed as σχ_d, so that σ is the median norm over
that of χ_d (for one row 1.4826 times the median), and a share `INLIERS` of them is below σ times that quantile of χ_d.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

INLIERS = 0.99
"""The share of Gaussian inliers that the scale is to keep: what the authors of the method and GTSAM take."""


def deviation_scale(norms: Float[Tensor, "batch blocks"], rows: int) -> Float[Tensor, "batch"]:
    """The largest norm of an inlier, from the squared norms of all blocks; half of them may be outliers, or nearly."""
    ratio = (_chi_squared(INLIERS, rows) / _chi_squared(0.5, rows)) ** 0.5
    return ratio * norms.nanmedian(-1).values.sqrt()


@cache
def _chi_squared(probability: float, degrees: int) -> float:
    """The quantile of the chi-squared distribution, by bisection of its incomplete gamma function."""
    low, high = 0.0, 20.0 + 10.0 * degrees
    half = torch.tensor(0.5 * degrees, dtype=torch.float64, device="cpu")
    for _ in range(100):
        middle = 0.5 * (low + high)
        below = (
            torch.special.gammainc(half, torch.tensor(0.5 * middle, dtype=torch.float64, device="cpu")).item()
            < probability
        )
        low, high = (middle, high) if below else (low, middle)
    return 0.5 * (low + high)
