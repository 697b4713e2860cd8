"""The robust fit of shift and bias on one level, and through the levels: iteratively reweighted, scale by MAD."""

from typing import NamedTuple

import numpy as np

import mslsq
from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.descent import UNFINISHED, descend
from mslsq.alignment.measures import nmad

ROUNDS = 8
"""Scales that are tried on a level: each solve has a better residual to take the next scale from."""

SETTLED = 0.003
"""Relative change of the scale after which it is kept; a hundredth of that in the shift (pixels)."""

MAX_STEPS = 50
SHARE = 0.01
"""Standard errors of independent samples that a solve may end from the minimum."""

FEWEST = 64
"""Samples below which nothing is fitted."""


class Fitted(NamedTuple):
    """Where a fit ended, the scale (sigma) of its residuals, the solver's word, its samples."""

    at: Solved
    scale: float
    status: mslsq.Status
    samples: Comparison

    @property
    def converged(self) -> bool:
        """Did the solver end at a minimum?"""
        return self.status not in (*UNFINISHED, mslsq.Status.STALLED)


def fit(
    comparison: Comparison, start: Solved, loss: str | None, held: bool = False, rounds: int = ROUNDS
) -> Fitted | None:
    """The least robust cost of a level; None where too few samples are valid. With `held` the shift stays."""
    at, scale, status = start, 0.0, mslsq.Status.MAX_STEPS
    samples = comparison
    for count in range(rounds):
        samples = comparison.valid(at.shift)
        if len(samples.pixels) < FEWEST:
            return None
        if count == 0:
            at = _centred(samples, at)
        last, scale = scale, max(nmad(samples.residual(at)), 1e-9 * comparison.frame.unit, 1e-12)
        free = np.array([not held] * 2 + [True] * comparison.bias.count)
        found = descend(
            lambda state, samples=samples, scale=scale: samples.normal_equations(state, loss, scale),
            lambda state, step: state + step, samples.state(at), free, MAX_STEPS, SHARE, scale**2,
        )  # fmt: skip
        before, at, status = at, samples.solved(found.state), found.status
        moved = float(np.abs(at.shift - before.shift).max())
        if abs(scale - last) <= SETTLED * scale and moved <= SETTLED * comparison.factor:
            break
    return Fitted(at, scale, status, samples)


def _centred(samples: Comparison, at: Solved) -> Solved:
    """With the constant from the median residual: a redescending loss must not begin metres away."""
    bias = at.bias.copy()
    bias[0] -= float(samples.residual(at).median())
    return Solved(at.shift, bias)


def through_levels(
    pyramids: Pyramids, bias: Bias, start: Solved, first: int, loss: str | None, held: bool = False
) -> Fitted | None:
    """From level `first` to the finest. Coarse levels have Cauchy's loss: where the shift is still wrong by a pixel, a
    loss that forgets large residuals would forget the slopes that tell."""
    at, found = start, None
    for index in range(first, -1, -1):
        finest = index == 0
        found = fit(
            Comparison.of(pyramids, index, bias), at, loss if finest else loss and "cauchy", held,
            ROUNDS if finest else 3,
        )  # fmt: skip
        if found is None:
            return None
        at = found.at
    return found
