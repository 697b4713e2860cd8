"""Terrain that changed: where neighbouring residuals agree that the surfaces differ.

A loss judges residuals one by one: a glacier that lost 2 m beside noise of 2 m is within it everywhere, and draws Δz
with it. The mean of a neighbourhood has little noise left. It is compared with the spread of such means over the rest
of the overlap, so that what is wrong everywhere (a tilt that the bias model lacks) is no change.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from mslsq.alignment.dem.comparison import Comparison, Solved
from mslsq.alignment.pyramid import masked_blur

SIGMAS = (3.0, 10.0)
"""Pixels: widths of the neighbourhoods."""

FAR = 4.0
"""Sigmas of the neighbourhoods' means that say changed; the border of a change reaches down to `NEAR`."""
NEAR = 2.5

LEAST = 12.0
"""Times the neighbourhood's sigma squared: pixels of a connected part below which it is one of many hills that chance,
or a blur, made different."""

MARGIN = SIGMAS[-1]
"""Pixels beside changed terrain whose heights are not believed. A change fades out below what can be told from noise,
and all of that has one sign: of a quarter that lost 10 to 40 m the mean height kept 0.18 m without a margin, 0.02
with it."""

FEWEST = 64
"""Means below which nothing is typical of them."""

HALF = 0.5
"""Share of the terrain, the most alike, that says what is typical."""

MOST = 0.6
"""Share of the overlap that may have changed: where it is more, nothing is said to have."""


class Typical(NamedTuple):
    """Of the means over neighbourhoods of a width, the middle and the sigma of the larger part."""

    sigma: float
    middle: float
    spread: float


class Neighbourhoods(NamedTuple):
    """Residuals of the finest level as they are judged: where there are any, and their means over every width of
    `SIGMAS`, with where these are mostly seen."""

    residual: Float[Tensor, "height width"]
    known: Bool[Tensor, "height width"]
    means: list[tuple[float, Float[Tensor, "height width"], Bool[Tensor, "height width"]]]

    @staticmethod
    def of(comparison: Comparison, at: Solved) -> "Neighbourhoods":
        """Those of an answer."""
        return Neighbourhoods.seen(comparison.valid(at.shift), at)

    @staticmethod
    def seen(samples: Comparison, at: Solved) -> "Neighbourhoods":
        """Those of an answer, by samples that all fall on data of `dem`."""
        residual, known = _field(samples, at)
        return Neighbourhoods(residual, known, [(sigma, *_means(residual, known, sigma)) for sigma in SIGMAS])

    def beyond(self, by: Sequence[Typical]) -> Bool[Tensor, "height width"]:
        """What changed, by what is typical."""
        out = torch.zeros_like(self.known)
        of = {sigma: mean for sigma, mean, _ in self.means}
        for one in by:
            out |= _far(of[one.sigma], self.known, one)
        return out


def changed(comparison: Comparison, at: Solved, share: float = HALF) -> Bool[Tensor, "height width"]:
    """Where the finest level's residuals say so, true; false elsewhere and where nothing is compared. Typical is what
    `share` of the terrain has."""
    return _judged(comparison, at, share)[1]


def typical(comparison: Comparison, at: Solved, share: float = HALF) -> list[Typical]:
    """By what `changed` judges; empty where nothing is said to have changed."""
    return _judged(comparison, at, share)[0]


def _judged(comparison: Comparison, at: Solved, share: float) -> tuple[list[Typical], Bool[Tensor, "height width"]]:
    seen = Neighbourhoods.of(comparison, at)
    enough = (one for one in seen.means if int(one[2].sum()) >= FEWEST)
    found = [Typical(sigma, *middle_and_spread(mean[inner], share)) for sigma, mean, inner in enough]
    out = seen.beyond(found)
    if int((out & seen.known).sum()) > MOST * int(seen.known.sum()):
        return [], torch.zeros_like(out)
    return found, out


def widened(moved: Bool[Tensor, "height width"], margin: float = MARGIN) -> Bool[Tensor, "height width"]:
    """Changed terrain and what is within `margin` pixels of it."""
    if not bool(moved.any()):
        return moved
    return torch.from_numpy(np.asarray(ndimage.distance_transform_edt(~moved.numpy())) <= margin)


def _field(samples: Comparison, at: Solved) -> tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]:
    """The residuals as a raster, and where there are any."""
    rows, columns = samples.pixels[:, 1].long(), samples.pixels[:, 0].long()
    residual = samples.target.new_zeros(samples.size)
    known = torch.zeros(samples.size, dtype=torch.bool, device="cpu")
    residual[rows, columns], known[rows, columns] = samples.residual(at), True
    return residual, known


def _means(
    residual: Float[Tensor, "height width"], known: Bool[Tensor, "height width"], sigma: float
) -> tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]:
    """Of neighbourhoods, and where these are mostly seen."""
    mean, share = masked_blur(residual[None], known, sigma)
    return mean[0], known & (share > 0.5)


def _far(
    mean: Float[Tensor, "height width"], known: Bool[Tensor, "height width"], of: Typical
) -> Bool[Tensor, "height width"]:
    """Means beyond `FAR`, and what is beyond `NEAR` beside them."""
    away = (mean - of.middle).abs()
    far = _patches(known & (away > FAR * of.spread), LEAST * of.sigma**2)
    if not bool(far.any()):
        return far
    near = known & (away > NEAR * of.spread)
    grown, _ = masked_blur(far.to(mean.dtype)[None], torch.ones_like(known), 2 * of.sigma)
    return far | (near & (grown[0] > 0.02))


def _patches(where: Bool[Tensor, "height width"], least: float) -> Bool[Tensor, "height width"]:
    """The connected parts of `least` pixels or more."""
    labels = np.zeros(where.shape, dtype=np.int32)
    ndimage.label(where.numpy(), output=labels)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return torch.from_numpy(sizes[labels] >= least)


def middle_and_spread(values: Float[Tensor, " n"], share: float = HALF) -> tuple[float, float]:
    """Middle and sigma of the larger part: the shortest half of the values (Rousseeuw, 1984), of which a change of one
    sign in 40 % of them moves neither far; or another `share` of them."""
    ordered = values.sort().values
    part = int(share * len(ordered))
    widths = ordered[part:] - ordered[: len(ordered) - part]
    first = int(widths.argmin())
    middle, width = float(ordered[first + part // 2]), float(widths[first])
    return middle, max(width / normal_width(share), 1e-9)


def normal_width(share: float) -> float:
    """Sigmas about the middle of a normal distribution that hold this share of it."""
    return 2 * NormalDist().inv_cdf(0.5 + 0.5 * share)
