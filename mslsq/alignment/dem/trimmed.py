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

MANY = 0.05
"""Share of the cells beyond `FAR` sigmas of the larger part from which on half of the terrain is asked: noise that
neighbouring cells share has a thousandth there, and a handful of hills is found without."""


def outside_of_half(whole: Comparison, at: Solved) -> tuple[Bool[Tensor, "height width"], Solved] | None:
    """Pixels of the cells that the bias of the better half does not explain, and an answer with that bias; None where
    these are few, or too few cells have data."""
    samples, constant = whole.valid(at.shift), np.zeros(whole.bias.count)
    cells = Cells(samples)
    raw = samples.residual(Solved(at.shift, constant))
    sums = cells.sums(samples, torch.cat([torch.ones_like(raw)[:, None], raw[:, None], samples.columns], -1))
    used = sums[:, 0] >= LEAST_SHARE * cells.area
    values, columns = sums[used, 1] / sums[used, 0], sums[used, 2:] / sums[used, :1]
    if len(values) < 8 * columns.shape[1]:
        return None
    bias = trimmed(values, columns)
    left = values + columns @ bias
    middle, spread = middle_and_spread(torch.from_numpy(left))
    far = np.abs(left - middle) > FAR * spread
    if far.mean() < MANY:
        return None
    beyond = np.zeros(len(used))
    beyond[np.flatnonzero(used)[far]] = 1.0
    outside = torch.zeros(whole.size, dtype=torch.bool, device="cpu")
    rows, columns_ = samples.pixels[:, 1].long(), samples.pixels[:, 0].long()
    outside[rows, columns_] = cells.of(samples, beyond) > 0
    return outside, Solved(at.shift, bias)


def trimmed(values: Float[np.ndarray, " n"], columns: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """β with the least sum of the (n + k + 1) / 2 smallest squares of values + columns β; the same in every call."""
    n, k = columns.shape
    half, scale = (n + k + 1) // 2, np.maximum(np.sqrt((columns**2).mean(0)), 1e-300)
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
