"""A curve of values between two maps: a gamma, a saturation, another film. A gain and a bias do not take it out, and
what they leave of it is as steep as the map itself and pulls the place aside: by 1.0 to 1.4 px where the residuals'
noise said 0.07 to 0.2.

The curve is the mean of one map's values where the other has these values, as they are laid on each other, between the
means of bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import Prepared
from mslsq.alignment.spread import of_objects, residual_at

BINS = 32
"""Of as many samples each, and as many again of one width: where values are rare the curve is steep."""

FEWEST = 8
"""Samples, for a bin's mean to be a node."""

MOST = 1 << 20
"""About as many samples tell the bounds of bins."""

CURVED = 0.1
"""Share of the residuals' energy that a curve of values explains, from which one is taken out."""

SURELY = 0.2
"""Share from which it is a curve though residuals have the tails of what has moved, as those of dark pictures have
under a gamma: of scenes of which 30 % had moved a curve explained 0.11 at most (the half "choose" of
`benchmarks/metric_pairs.py`)."""


@dataclass(frozen=True)
class Curve:
    """Straight between nodes, per channel; beyond the first and the last one as the pieces there."""

    at: Sequence[Float[Tensor, " nodes"]]
    """Values of the map whose values are changed, rising."""
    values: Sequence[Float[Tensor, " nodes"]]
    """Of the other there."""
    explained: float
    """Share of the energy of the residuals of gain and bias, by values of the map."""
    of_fixed: bool = False
    """Is it the reference's values that are taken to those of the map? By whose curve more is explained."""

    def __call__(self, values: Float[Tensor, "channels height width"]) -> Float[Tensor, "channels height width"]:
        """The curve of every value."""
        return torch.stack([_through(*each) for each in zip(values, self.at, self.values, strict=True)])


def curve_between(level: PairLevel, estimate: Estimate) -> Curve | None:
    """Of a placement, in the standardised values of a level; None where there are too few samples for one."""
    sampled, valid = level.look(estimate.matrix)
    residual, _ = residual_at(estimate, level)
    seen, target, residual = sampled[valid], level.target[valid], residual[valid]
    if len(seen) < BINS**2:
        return None
    explained = _between_bins(seen, residual)[2]
    of_map, of_reference = _between_bins(seen, target), _between_bins(target, seen)
    # A gamma that darkens leaves nothing in the dark of one map: the other one's curve is that which can be drawn.
    of_fixed = of_reference[2] > of_map[2]
    return _through_means(*(of_reference if of_fixed else of_map)[:2], explained, of_fixed)


def curve_of(seen: Float[Tensor, "n channels"], target: Float[Tensor, "n channels"]) -> Curve | None:
    """The target's values by those seen there; None where there are too few samples for one."""
    if len(seen) < BINS**2:
        return None
    return _through_means(*_between_bins(seen, target))


def _through_means(at: list[Tensor], values: list[Tensor], explained: float, of_fixed: bool = False) -> Curve | None:
    """A curve, if there are enough nodes in every channel."""
    return Curve(at, values, explained, of_fixed) if min(len(each) for each in at) >= 3 else None


def is_curved(level: PairLevel, estimate: Estimate, curve: Curve | None) -> bool:
    """Is it a curve of values, and not what has moved, that explains a part of the residuals?"""
    if curve is None or curve.explained < CURVED:
        return False
    return curve.explained >= SURELY or not of_objects(estimate, level)


def _between_bins(
    own: Float[Tensor, "n channels"], other: Float[Tensor, "n channels"]
) -> tuple[list[Tensor], list[Tensor], float]:
    """Per channel the means of one and of another in bins of the first, and which share of the energy of the other
    about its mean they hold."""
    at, values, of_means, energy = [], [], 0.0, 0.0
    shares = torch.linspace(0, 1, BINS + 1, dtype=own.dtype, device=own.device)[1:-1]
    for one, of in zip(own.T, other.T, strict=True):
        by_count = torch.quantile(one[:: -(-len(one) // MOST)], shares)
        by_value = one.min() + shares * (one.max() - one.min())
        which = torch.bucketize(one.contiguous(), torch.cat([by_count, by_value]).unique())
        count = torch.bincount(which).to(one)
        held = count >= min(FEWEST, float(count.max()))
        first, second = (torch.bincount(which, each)[held] / count[held] for each in (one, of))
        at.append(_rising(first))
        values.append(second)
        of_means += float((count[held] * (second - of.mean()).square()).sum())
        energy += float((of - of.mean()).square().sum())
    return at, values, of_means / max(energy, 1e-300)


def taken_along(prepared: Prepared, curve: Curve, mean: float, spread: float) -> Prepared:
    """A map with the values that the curve, of values standardised so, makes of its own."""
    values = curve((prepared.values - mean) / spread)
    deviation, middle = torch.std_mean(values[:, prepared.mask])
    return Prepared(values, prepared.mask, (float(middle), float(deviation)))


def _rising(at: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """Strictly: means of bins that rounding has made one are an instant apart."""
    instants = torch.arange(len(at), dtype=at.dtype, device=at.device) * 1e-12
    return torch.cummax(at, 0).values + instants * max(float(at.abs().max()), 1e-30)


def _through(
    values: Float[Tensor, "height width"], at: Float[Tensor, " nodes"], known: Float[Tensor, " nodes"]
) -> Float[Tensor, "height width"]:
    """Straight through the nodes."""
    piece = (torch.bucketize(values.contiguous(), at) - 1).clamp(0, len(at) - 2)
    slope = (known[1:] - known[:-1]) / (at[1:] - at[:-1])
    return known[piece] + slope[piece] * (values - at[piece])
