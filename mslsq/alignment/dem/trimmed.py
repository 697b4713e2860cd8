"""The bias that the better half of the terrain agrees on: least trimmed squares on means over cells.

A fit that begins with all terrain may lay the bias through what changed: a tilt and a stretch follow a quarter that was
lowered, with a border over hundreds of metres, until nothing stands out. Of the cells' means the half that fits best is
found from many small subsets (P. J. Rousseeuw & K. Van Driessen, "Computing LTS regression for large data sets", Data
Mining and Knowledge Discovery 12, 2006), whatever the other half shows.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.dem.change import FAR, middle_and_spread
from mslsq.alignment.dem.comparison import Comparison, Solved
from mslsq.alignment.dem.uncertainty import LEAST_SHARE, Cells

SUBSETS, BEST = 500, 10
"""Subsets that a search begins from, and those of which it goes on to the end."""

LEAST_PART, FEWEST_CELLS = 0.35, 16
"""Share of the cells that an answer must explain at least to be compared, and cells below which none is better."""

MUCH = 0.1
"""Of a cell's logarithm of the likelihood, by which another bias must say more to be a rival of the answer."""

LIKELIER, LEAST_AWAY = 4.0, 3.0
"""Of all cells' logarithm of the likelihood, by which a part that changed must say more than a normal distribution of
all of them; and standard errors. Noise that is correlated over 12 to 60 px has 0.1 at most (40 pairs), white noise 1.0,
a real terrain 5.5, within 1.4 standard errors."""

FARTHEST = 2.0
"""Pixels that a shift may be moved by means over cells: they know its first order alone."""

NORMAL = 0.5 + 0.5 * np.log(2 * np.pi)
"""What a normal density of a sigma of 1 has in the mean below 0, as a logarithm."""

MANY = 0.05
"""Share of the cells beyond `FAR` sigmas of the larger part from which on half of the terrain is asked: noise that
neighbouring cells share has a thousandth there, and a handful of hills is found without."""


def outside_of_share(whole: Comparison, at: Solved, share: float) -> tuple[Bool[Tensor, "height width"], Solved] | None:
    """Pixels of the cells that the bias of the better `share` of them does not explain, and an answer with that bias;
    None where these are few, or too few cells have data."""
    samples = whole.valid(at.shift)
    cells = Cells(samples)
    values, columns, used = _means(samples, cells, Solved(at.shift, np.zeros(whole.bias.count)))
    if len(values) < 8 * columns.shape[1]:
        return None
    left, at = _explained(values, columns, _slopes(samples, cells, at)[used], at, share)
    middle, spread = middle_and_spread(torch.from_numpy(left), share)
    far = np.abs(left - middle) > FAR * spread
    if far.mean() < MANY:
        return None
    beyond = np.zeros(len(used))
    beyond[np.flatnonzero(used)[far]] = 1.0
    outside = torch.zeros(whole.size, dtype=torch.bool, device="cpu")
    rows, columns_ = samples.pixels[:, 1].long(), samples.pixels[:, 0].long()
    outside[rows, columns_] = cells.of(samples, beyond) > 0
    return outside, at


def _explained(
    values: Float[np.ndarray, " n"],
    columns: Float[np.ndarray, "n k"],
    slopes: Float[np.ndarray, "n 2"],
    at: Solved,
    share: float,
) -> tuple[Float[np.ndarray, " n"], Solved]:
    """What the better `share` of the cells leaves of all of them, and the answer that it agrees on: a bias, and where
    that says much more of the cells, a shift beside it. Slopes of smooth terrain are as wide as a change, and a shift
    that has followed one hides it from any bias."""
    bias = trimmed(values, columns, share)
    left = values + columns @ bias
    both = trimmed(values, np.concatenate([columns, slopes], 1), share)
    more = values + np.concatenate([columns, slopes], 1) @ both
    reach = max(float(np.ptp(left)), float(np.ptp(more)))
    own, other = (_likelihood(np.sort(one), reach) for one in (left, more))
    if np.abs(both[-2:]).max() > FARTHEST or other <= own + MUCH:
        return left, Solved(at.shift, bias)
    return more, Solved(at.shift + both[-2:], both[:-2])


def _slopes(samples: Comparison, cells: Cells, at: Solved) -> Float[np.ndarray, "cells 2"]:
    """Means over cells of what a pixel's shift adds to residuals; 0 without data."""
    slopes = torch.cat([jacobian[:, :2] for _, _, jacobian in samples.jacobians(at)])
    sums = cells.sums(samples, torch.cat([torch.ones_like(slopes[:, :1]), slopes], 1))
    return sums[:, 1:] / np.maximum(sums[:, :1], 1)


def better(whole: Comparison, one: Solved, other: Solved) -> bool:
    """Does the other of two answers say more of the cells' means? As likelihoods of a mixture: a normal part, and what
    changed, anywhere within the range of both. Residuals of pixels would tell noise, which both have, and means are
    where a change of less than that shows."""
    means = [_means(samples := whole.valid(at.shift), Cells(samples), at)[0] for at in (one, other)]
    if min(len(values) for values in means) < FEWEST_CELLS:
        return False
    reach = max(float(np.ptp(values)) for values in means)
    first, second = (_likelihood(np.sort(values), reach) for values in means)
    return second > first


def not_excluded(whole: Comparison, at: Solved) -> Float[np.ndarray, " columns"] | None:
    """How far off the bias is that the better third of the terrain agrees on, where it says more of all cells than the
    answer does: what changed is then not known, and the answer is known no better than that. None where it does not."""
    samples = whole.valid(at.shift)
    values, columns, _ = _means(samples, Cells(samples), Solved(at.shift, np.zeros(whole.bias.count)))
    if len(values) < max(FEWEST_CELLS, 8 * columns.shape[1]):
        return None
    other = trimmed(values, columns, LEAST_PART)
    left = [values + columns @ bias for bias in (at.bias, other)]
    reach = max(float(np.ptp(one)) for one in left)
    own, more = (_likelihood(np.sort(one), reach) for one in left)
    return other - at.bias if more > own + MUCH else None


def lopsided(samples: Comparison, at: Solved, error: float) -> Float[np.ndarray, " columns"] | None:
    """How far off the bias is that the better third of the terrain agrees on, where means over cells that nothing was
    left out of are no normal values about the answer: a change of one sign without a border looks like that, and the
    answer is then the mean of what changed and what did not. None where they are, or both are within `LEAST_AWAY`
    standard `error`s of the height."""
    values, columns, _ = _means(samples, Cells(samples), Solved(at.shift, np.zeros(len(at.bias))))
    return _lopsided(values, columns, at.bias, error)


def _lopsided(
    values: Float[np.ndarray, " n"], columns: Float[np.ndarray, "n k"], bias: Float[np.ndarray, " k"], error: float
) -> Float[np.ndarray, " k"] | None:
    n, left = len(values), values + columns @ bias
    spread = float(left.std()) if n else 0.0
    if n < max(FEWEST_CELLS, 8 * columns.shape[1]) or spread <= 0:
        return None
    normal = -np.log(spread) - NORMAL
    if n * (_likelihood(np.sort(left), float(np.ptp(left))) - normal) <= LIKELIER:
        return None
    away = trimmed(values, columns, LEAST_PART) - bias
    return away if abs(away[0]) > LEAST_AWAY * error else None


def _likelihood(ordered: Float[np.ndarray, " n"], reach: float) -> float:
    """The mean logarithm over values, by the best normal part: some of them that lie side by side, `LEAST_PART` of all
    or more."""
    n = len(ordered)
    sums, squares = (np.concatenate([[0.0], np.cumsum(ordered**power)]) for power in (1, 2))
    best = -np.inf
    for m in range(max(2, round(LEAST_PART * n)), n + 1):
        mean, square = ((of[m:] - of[: n + 1 - m]) / m for of in (sums, squares))
        spread = float(np.sqrt(max((square - mean**2).min(), (1e-6 * reach) ** 2, 1e-300)))
        p, rest = m / n, 1 - m / n
        outside = rest * np.log(rest / max(reach, spread)) if rest else 0.0
        best = max(best, p * (np.log(p / spread) - NORMAL) + outside)
    return best


def _means(
    samples: Comparison, cells: Cells, at: Solved
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n columns"], Bool[np.ndarray, " cells"]]:
    """Of residuals and of columns, by cells that have data enough; and which these are."""
    residual = samples.residual(at)
    sums = cells.sums(samples, torch.cat([torch.ones_like(residual)[:, None], residual[:, None], samples.columns], -1))
    used = sums[:, 0] >= LEAST_SHARE * cells.area
    return sums[used, 1] / sums[used, 0], sums[used, 2:] / sums[used, :1], used


def trimmed(
    values: Float[np.ndarray, " n"], columns: Float[np.ndarray, "n k"], share: float = 0.5
) -> Float[np.ndarray, " k"]:
    """β with the least sum of the `share` (n + k + 1) smallest squares of values + columns β; the same in all calls."""
    n, k = columns.shape
    half, scale = int(share * (n + k + 1)), np.maximum(np.sqrt((columns**2).mean(0)), 1e-300)
    own, rng = columns / scale, np.random.default_rng(0)

    def fitted(chosen: np.ndarray) -> np.ndarray:
        """Least squares on some entries, (searches, count)."""
        return -np.einsum("skc,sc->sk", np.linalg.pinv(own[chosen]), values[chosen])

    def nearer(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A step: fits of the half that each explains best, and what these leave."""
        squares = (values + found @ own.T) ** 2
        found = fitted(np.argpartition(squares, half - 1)[:, :half])
        return found, np.sort((values + found @ own.T) ** 2)[:, :half].sum(1)

    found = fitted(rng.random((SUBSETS, n)).argsort(1)[:, : k + 1])
    left = np.full(SUBSETS, np.inf)
    for _ in range(2):
        found, left = nearer(found)
    found = found[left.argsort()[:BEST]]
    for _ in range(30):
        last = left
        found, left = nearer(found)
        if left.shape == last.shape and np.allclose(left, last, rtol=1e-12, atol=0.0):
            break
    return found[left.argmin()] / scale
