"""The residuals of an estimate on a level, and how far they spread: by their median, and by their squares."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate
from mslsq.alignment.measures import nmad_and_deviation
from mslsq.alignment.pair_level import SPREAD_SAMPLES, PairLevel
from mslsq.kernels import Kernel, may_read

_CHOSEN_RESIDUALS = Kernel("chosen_residuals", "nnTT?ndTl")
_RESIDUAL_SPREAD = Kernel("residual_spread", "nnTT?ndd")

HEAVY_TAILS = 1.5
"""The finest level is solved with plain least squares unless the residuals' standard deviation exceeds this many times
their MAD sigma: then outliers are real (moved objects, unknown areas) and the robust loss stays."""

OBJECTS = 3.0
"""Standard deviations per MAD sigma from which residuals are those of what has moved: 5 and more there, 0.7 to 1.8
under light and curves of values (the halves "choose" of `benchmarks/light.py` and `metric_pairs.py`)."""


def residual_at(
    estimate: Estimate, level: PairLevel, every: int = 1
) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
    """exp(α) · map + b - reference at every sample, or at every few, and which samples are valid."""
    sampled, valid = level.look(estimate.matrix)
    gain, bias = estimate.value.tolist()
    return sampled[::every] * math.exp(gain) + bias - level.target[::every], valid[::every]


def residual_rms(estimate: Estimate, level: PairLevel) -> float:
    """The root mean square of the residuals; 0 without samples."""
    valid = level.look(estimate.matrix)[1]
    return (squares(estimate, level, valid) / max(int(valid.count_nonzero()), 1)) ** 0.5


def squares(estimate: Estimate, level: PairLevel, valid: Bool[Tensor, " n"]) -> float:
    """The sum of the squared residuals of some samples, which are valid under this estimate."""
    chosen = _chosen_residual(estimate, level, 1, valid)
    return float(chosen @ chosen)


def spread_at(estimate: Estimate, level: PairLevel) -> tuple[float, float]:
    """`mad_sigma` of the residuals and their standard deviation, from samples enough; kept as the level's answers
    are."""
    known = level.kept("spread", estimate.matrix, lambda _: [])
    for value, found in known:
        if value is estimate.value:
            return found
    known.append((estimate.value, spread_over([estimate], [level])))
    return known[-1][1]


def spread_over(estimates: Sequence[Estimate], levels: Sequence[PairLevel]) -> tuple[float, float]:
    """The same of several levels together, each at its estimate."""
    if len(levels) == 1 and (found := _spread_of_one(estimates[0], levels[0])) is not None:
        return found
    every = -(-sum(level.known.numel() for level in levels) // SPREAD_SAMPLES)
    parts = [_chosen_residual(estimate, level, every) for estimate, level in zip(estimates, levels, strict=True)]
    return _sigma_and_deviation(parts[0] if len(parts) == 1 else torch.cat(parts))


def _spread_of_one(estimate: Estimate, level: PairLevel) -> tuple[float, float] | None:
    """The same of one level, from one pass; None where a kernel may not make it."""
    sampled, valid = level.glance(estimate.matrix)
    values = sampled.T
    if not (may_read(values, level.planes, valid) and values.dtype == level.planes.dtype):
        return None
    gain, bias = estimate.value.tolist()
    settings, found = np.array([math.exp(gain), bias]), np.empty(5)
    _RESIDUAL_SPREAD(*values.shape, values.contiguous(), level.planes, valid, level.sparse, settings, found)
    _, away, _, deviation, count = found.tolist()
    return _bounded(1.4826 * away, deviation) if count >= 2 else (1.0, 0.0)


def _chosen_residual(
    estimate: Estimate, level: PairLevel, every: int, of: Bool[Tensor, " n"] | None = None
) -> Float[Tensor, " some"]:
    """`residual_at` where it is valid, or `of` some samples that are, all channels."""
    sampled, valid = level.look(estimate.matrix)
    values, valid = sampled.T, valid if of is None else of
    if not (may_read(values, level.planes, valid) and values.dtype == level.planes.dtype):
        return residual_at(estimate, level, every)[0][valid[::every]].reshape(-1)
    channels, n = values.shape
    gain, bias = estimate.value.tolist()
    out, count = values.new_empty(channels * -(-n // every)), torch.empty(1, dtype=torch.int64, device="cpu")
    settings = torch.tensor([math.exp(gain), bias], dtype=torch.float64, device="cpu")
    _CHOSEN_RESIDUALS(channels, n, values.contiguous(), level.planes, valid, every, settings, out, count)
    return out[: int(count)]


def mad_sigma(residual: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"]) -> float:
    """1.4826 times the median absolute deviation: sigma where the residuals are Gaussian.

    At least a fifth of their standard deviation: where most of both maps is flat (unknown areas of occupancy maps) the
    median residual is zero, and a scale of zero would reject all that there is to align by.
    """
    return _sigma_and_deviation(residual[valid].reshape(-1))[0]


def _sigma_and_deviation(chosen: Float[Tensor, " some"]) -> tuple[float, float]:
    """`mad_sigma` and the standard deviation."""
    if chosen.numel() < 2:
        return 1.0, 0.0
    return _bounded(*nmad_and_deviation(chosen))


def _bounded(sigma: float, deviation: float) -> tuple[float, float]:
    return max(sigma, 0.2 * deviation, 1e-6), deviation


def of_objects(estimate: Estimate, level: PairLevel) -> bool:
    """Have the residuals the tails of what has moved?"""
    sigma, deviation = spread_at(estimate, level)
    return deviation >= OBJECTS * sigma


def heavy_tails(estimate: Estimate, level: PairLevel) -> bool:
    """Are the residuals those of outliers beside noise?"""
    return are_heavy(*spread_at(estimate, level))


def are_heavy(sigma: float, deviation: float) -> bool:
    """The same of a spread that is known: by the median, and the standard deviation."""
    return deviation > HEAVY_TAILS * sigma
