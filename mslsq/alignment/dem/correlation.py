"""What distant residuals have in common: from the restricted likelihood of their means over cells.

The residuals of a fit say little about errors that reach as far as the overlap: the fit took them for height or tilt.
Of the means e over cells only the contrasts Bᵀe are used, which no column of the fit can move (Patterson and
Thompson, 1971), under Σ = σ²((1 - ρ) D + ρ K): D the share that cells have for themselves, by their counts, and K a
correlation that falls with distance. Ranges and shares are not chosen but averaged over, by their likelihood (half of
what is believed before is that nothing is common): a best one that misses a long range would state an error that is
too small."""

import numpy as np
from jaxtyping import Float

RANGES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Sides of a cell over which a correlation falls to 1/e; up to two thirds of an overlap of 12 x 12 cells."""

SHARES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9997)
"""Of the variance of a cell's mean, what is common to neighbours. White noise is averaged away in a cell: of as much
noise that reaches 60 px and white noise 0.998 are common, and with 0.97 at most errors were stated too small by
half."""

FEWEST = 8
"""Contrasts below which nothing is said."""


def common(
    means: Float[np.ndarray, " cells"],
    counts: Float[np.ndarray, " cells"],
    places: Float[np.ndarray, "cells 2"],
    columns: Float[np.ndarray, "cells columns"],
) -> Float[np.ndarray, "cells cells"] | None:
    """The covariance, in m², of what cells at `places` (in sides of a cell) have in the mean; None of too few.

    `means` are those of the residuals, `columns` those of what was fitted to them.
    """
    cells = len(means)
    left, size, _ = np.linalg.svd(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300), full_matrices=True)
    rank = int((size > 1e-9 * size[0]).sum())
    contrasts = left[:, rank:]
    degrees = contrasts.shape[1]
    if degrees < FEWEST:
        return None
    seen = contrasts.T @ means
    own = counts.mean() / counts
    root = np.linalg.cholesky(contrasts.T @ (own[:, None] * contrasts))
    white = np.linalg.solve(root, contrasts.T)
    unlike = (seen @ np.linalg.solve(root.T, np.linalg.solve(root, seen))) / (degrees - 2)
    alone = -0.5 * degrees * np.log(max(unlike * (degrees - 2), 1e-300))
    logarithms, found = [alone + np.log(2 * len(RANGES) * len(SHARES))], [(np.eye(cells), 0.0, unlike)]
    apart = np.hypot(*(places[:, None] - places).transpose(2, 0, 1))
    for kernel in [kind(apart / reach) for reach in RANGES for kind in (_exponential, _gaussian)]:
        values, vectors = np.linalg.eigh(white @ kernel @ white.T)
        squares = (vectors.T @ np.linalg.solve(root, seen)) ** 2
        for share in SHARES:
            spectrum = (1 - share) + share * np.maximum(values, 1e-9)
            power = float((squares / spectrum).sum())
            logarithms.append(-0.5 * (np.log(spectrum).sum() + degrees * np.log(max(power, 1e-300))))
            found.append((kernel, share, power / (degrees - 2)))
    weight = np.exp(np.array(logarithms) - max(logarithms))
    weight /= weight.sum()
    total = np.zeros((cells, cells))
    for much, (kernel, share, variance) in zip(weight, found, strict=True):
        if much > 1e-6:
            total += much * variance * (share * kernel + (1 - share) * np.diag(own))
    return total


def _exponential(distance: np.ndarray) -> np.ndarray:
    return np.exp(-distance)


def _gaussian(distance: np.ndarray) -> np.ndarray:
    return np.exp(-np.square(distance))
