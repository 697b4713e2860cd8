"""The heights once the shift is known: the bias by least squares over all stable pixels as they were given.

A robust loss finds where most residuals are. What is wanted of heights is their mean: where residuals are skewed (a
blur lowers peaks and fills valleys) the two differ. The shift has no such choice to make, and stays where the loss
found it. Here no pixel is weighed, none is smoothed, and none is left out but beyond `CUT`: changed terrain and
single blunders were taken out before."""

from typing import NamedTuple

import numpy as np
import torch

from mslsq.alignment.dem.comparison import Comparison, Solved
from mslsq.alignment.dem.fitting import FEWEST
from mslsq.alignment.measures import nmad

CUT = 20.0
"""NMAD of the residuals: beyond are outliers. A spline through rugged terrain that was quietly measured misses it by
18, a blur of such terrain by 12, and what it misses is skewed: 5 would draw the mean by centimetres."""

ROUNDS = 5
"""Fits and cuts in turn."""


class Heights(NamedTuple):
    """The answer, and the samples that its heights are the least squares of."""

    at: Solved
    samples: Comparison


def heights(unsmoothed: Comparison, fit: Comparison, at: Solved) -> Heights:
    """With the bias refitted to samples of both models as they were given; where these are too few, to those of the
    shift."""
    samples = unsmoothed.valid(at.shift)
    samples = samples if len(samples.pixels) >= FEWEST else fit
    wanted = -samples.residual(Solved(at.shift, np.zeros(len(at.bias))))
    beta, keep = torch.from_numpy(at.bias), torch.zeros(len(wanted), dtype=torch.bool, device="cpu")
    for _ in range(ROUNDS):
        left = wanted - samples.columns @ beta
        last, keep = keep, _within(left)
        if bool((keep == last).all()):
            break
        steady = samples.steady[keep]
        beta = torch.linalg.lstsq(steady.T @ samples.columns[keep], steady.T @ wanted[keep], driver="gelsd").solution
    return Heights(Solved(at.shift, beta.numpy()), samples.chosen(keep))


def _within(left: torch.Tensor) -> torch.Tensor:
    """True where a residual is no outlier; everywhere where more than half of them are the same (whole metres)."""
    spread = nmad(left)
    return (left - left.median()).abs() <= CUT * spread if spread > 0 else torch.ones_like(left, dtype=torch.bool)
