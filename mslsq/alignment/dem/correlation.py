"""What distant residuals have in common: from the restricted likelihood of their means over cells.

The residuals of a fit say little about errors that reach as far as the overlap: the fit took them for height or tilt.
Of the means e over cells only the contrasts Bᵀe are used, which no column of the fit can move (Patterson and
Thompson, 1971), under Σ = σ²((1 - ρ) D + ρ K + τ X Xᵀ): D the share that cells have for themselves, by their counts, K
a correlation that falls with distance, and X what a larger bias model would have explained: a missing tilt is no
noise whose reach is long, and says nothing of a height. Ranges, shares and τ are not chosen but averaged over, by their
likelihood: a best one that misses a long range would state an error that is too small.

What is wanted is the mean square of uᵀe, u what cells do to an answer, once the contrasts are known: m mᵀ + V, with m
the part of uᵀe that they tell (of holes, say, what the field does around them) and V the variance of the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

RANGES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Sides of a cell over which a correlation falls to 1/e; up to two thirds of an overlap of 12 x 12 cells."""

SHARES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9997)
"""Of the variance of a cell's mean, what is common to neighbours. White noise is averaged away in a cell: of as much
noise that reaches 60 px and white noise 0.998 are common, and with 0.97 at most errors were stated too small by
half."""

NOTHING = 0.5
"""Of what is believed before, that nothing is common; half of the rest to each kind of trend."""

STRENGTHS = tuple(10.0**k for k in range(-1, 7))
"""τ: variances of a trend over those of a cell's mean. A tilt of 8 m beside noise of 1 m has a thousand."""

FEWEST = 8
"""Contrasts below which nothing is said."""

SUBCELLS = 4
"""Along a side, points by which a cell's mean is taken: of a correlation that falls at once, as exp(-d), the mean over
two cells is not its value between their centres."""

NEGLIGIBLE = 1e-5
"""Weight of a model that is left out."""


class Field(NamedTuple):
    """Means of residuals over cells, with the counts of their samples, the cells' places on a lattice, the means of the
    columns that were fitted, and those of kinds of trends that were not."""

    means: Float[np.ndarray, " cells"]
    counts: Float[np.ndarray, " cells"]
    places: Int[np.ndarray, "cells 2"]
    columns: Float[np.ndarray, "cells columns"]
    trends: Sequence[Float[np.ndarray, "cells trend"]] = ()


class _Model(NamedTuple):
    """One Σ in the contrasts' own basis: its spectrum without the trend, the trend there, and τ."""

    whitened: "_Whitened"
    spectrum: Float[np.ndarray, " contrasts"]
    share: float
    trend: Float[np.ndarray, "cells trend"] | None
    strength: float


class _Whitened(NamedTuple):
    """Contrasts turned so that D is the identity and K diagonal: `turn` (contrasts, cells), K, its diagonal."""

    turn: Float[np.ndarray, "contrasts cells"]
    kernel: Float[np.ndarray, "cells cells"] | None
    values: Float[np.ndarray, " contrasts"]
    seen: Float[np.ndarray, " contrasts"]


def mean_squares(field: Field, influence: Float[np.ndarray, "cells n"]) -> Float[np.ndarray, "n n"]:
    """E[(uᵀe)(uᵀe)ᵀ] given the contrasts, `influence` u; NaN of too few cells."""
    own = field.counts.mean() / field.counts
    contrasts = _contrasts(field.columns)
    if contrasts.shape[1] < FEWEST:
        return np.full((influence.shape[1],) * 2, np.nan)
    root = np.linalg.cholesky(contrasts.T @ (own[:, None] * contrasts))
    white = np.linalg.solve(root, contrasts.T)
    found: list[tuple[_Model, float]] = []
    logarithms: list[float] = []
    for prior, whitened, share in _correlations(field, white):
        spectrum = (1 - share) + share * whitened.values
        base = np.log(spectrum).sum()
        power = float((whitened.seen**2 / spectrum).sum())
        for more, model, determinant, explained in _with_trends(field, whitened, spectrum, share):
            left = max(power - explained, 1e-300)
            logarithms.append(np.log(prior * more) - 0.5 * (base + determinant + len(spectrum) * np.log(left)))
            found.append((model, left / (len(spectrum) - 2)))
    weight = np.exp(np.array(logarithms) - max(logarithms))
    weight /= weight.sum()
    total = np.zeros((influence.shape[1],) * 2)
    for much, (model, variance) in zip(weight, found, strict=True):
        if much > NEGLIGIBLE:
            told, left = _given_contrasts(model, own, influence)
            total += much * (np.outer(told, told) + variance * left)
    return total


def _contrasts(columns: Float[np.ndarray, "cells columns"]) -> Float[np.ndarray, "cells contrasts"]:
    left, size, _ = np.linalg.svd(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300), full_matrices=True)
    return left[:, int((size > 1e-9 * size[0]).sum()) :]


def _correlations(
    field: Field, white: Float[np.ndarray, "contrasts cells"]
) -> Iterator[tuple[float, _Whitened, float]]:
    """What is believed before of a kind, a range and a share; the first is that nothing is common."""
    seen = white @ field.means
    yield NOTHING, _Whitened(white, None, np.zeros(len(white)), seen), 0.0
    each = (1 - NOTHING) / (2 * len(RANGES) * len(SHARES))
    apart = np.abs(field.places[:, None] - field.places).astype(int)
    for reach in RANGES:
        for kind in (_exponential, _gaussian):
            kernel = _between_cells(kind, reach, int(apart.max()) + 1)[apart[..., 0], apart[..., 1]]
            values, vectors = np.linalg.eigh(white @ kernel @ white.T)
            turn = vectors.T @ white
            whitened = _Whitened(turn, kernel, np.maximum(values, 1e-9), turn @ field.means)
            for share in SHARES:
                yield each, whitened, share


def _with_trends(
    field: Field, whitened: _Whitened, spectrum: Float[np.ndarray, " contrasts"], share: float
) -> Iterator[tuple[float, _Model, float, float]]:
    """Without a trend and with each: what is believed of it before, the model, and what it adds to the logarithm of the
    determinant and takes off the power."""
    yield 1.0 - 0.5 * bool(field.trends), _Model(whitened, spectrum, share, None, 0.0), 0.0, 0.0
    for trend in field.trends:
        turned = whitened.turn @ trend
        inner = turned.T @ (turned / spectrum[:, None])
        pull = turned.T @ (whitened.seen / spectrum)
        values, vectors = np.linalg.eigh(inner)
        pulls = (vectors.T @ pull) ** 2
        for strength in STRENGTHS:
            grown = 1 + strength * np.maximum(values, 0)
            explained = float((strength * pulls / grown).sum())
            prior = 0.5 / (len(field.trends) * len(STRENGTHS))
            yield prior, _Model(whitened, spectrum, share, trend, strength), float(np.log(grown).sum()), explained


def _given_contrasts(
    model: _Model, own: Float[np.ndarray, " cells"], influence: Float[np.ndarray, "cells n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """The mean of uᵀe, and its covariance over σ²."""
    turn, kernel, _, seen = model.whitened
    spread = (1 - model.share) * own[:, None] * influence
    if kernel is not None:
        spread = spread + model.share * kernel @ influence
    if model.trend is not None:
        spread = spread + model.strength * model.trend @ (model.trend.T @ influence)
    both = turn @ spread
    solved = both / model.spectrum[:, None]
    if model.trend is not None:
        turned = turn @ model.trend
        weighted = turned / model.spectrum[:, None]
        inner = np.eye(turned.shape[1]) / model.strength + turned.T @ weighted
        solved = solved - weighted @ np.linalg.solve(inner, turned.T @ solved)
    return solved.T @ seen, influence.T @ spread - both.T @ solved


def _between_cells(kind: Callable[[np.ndarray], np.ndarray], reach: float, side: int) -> Float[np.ndarray, "side side"]:
    """The correlation of the means of two cells that lie (column, row) apart."""
    steps = np.arange(1 - SUBCELLS, SUBCELLS) / SUBCELLS
    weight = np.outer(*[SUBCELLS - SUBCELLS * np.abs(steps)] * 2)
    x = (np.arange(side)[:, None] + steps)[:, None, :, None]
    y = (np.arange(side)[:, None] + steps)[None, :, None, :]
    mean = (weight * kind(np.hypot(x, y) / reach)).sum((2, 3))
    return mean / mean[0, 0]


def _exponential(distance: np.ndarray) -> np.ndarray:
    return np.exp(-distance)


def _gaussian(distance: np.ndarray) -> np.ndarray:
    return np.exp(-np.square(distance))
