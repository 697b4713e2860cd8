"""One hypothesis about a pair of maps, and how it is judged on a level."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import passes, starts
from mslsq.alignment.grids import inside, pixel_grid
from mslsq.alignment.measures import centroid, masked_ncc, ncc_and_detail, nmad_and_deviation, project, share_of
from mslsq.alignment.models import Frame
from mslsq.alignment.noise import NONE, Noise
from mslsq.alignment.pyramid import Level
from mslsq.alignment.sampling import sample_at
from mslsq.kernels import Kernel, may_read, run_on

_CHOSEN_RESIDUALS = Kernel("chosen_residuals", "nnTT?ndTl")
_RESIDUAL_SPREAD = Kernel("residual_spread", "nnTT?ndd")

MAX_SAMPLES = 1 << 18
"""Of a larger level every k-th pixel is used: 262 144 samples place a map to thousandths of a pixel already."""

DETAIL_SIGMA = 3.0
"""Samples. Detail is what a Gaussian of this width takes away. Over wrong placements of real maps the correlation of
the whole reached 0.93 (two views of a street, one half sky), that of the detail 0.33; true ones had at least 0.57 in
detail."""

SPREAD_SAMPLES = 1 << 14
"""About as many residuals tell their spread: a sigma is then known to one percent."""

HEAVY_TAILS = 1.5
"""The finest level is solved with plain least squares unless the residuals' standard deviation exceeds this many times
their MAD sigma: then outliers are real (moved objects, unknown areas) and the robust loss stays."""

Answer = TypeVar("Answer")

CORNERS = (-1.0, -1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (0.0, 0.0, 1.0)
"""Of the reference's square in normalised coordinates, and its middle."""


@dataclass(frozen=True)
class PairLevel:
    """One level of a pair: the samples of the reference and the map that is sampled."""

    planes: Float[Tensor, "channels n"]
    """The reference's values at the samples."""
    known: Bool[Tensor, " n"]
    moving: Level
    to_level: Float[Tensor, "3"]
    size: tuple[int, int]
    grid: tuple[int, int]
    """Rows and columns of the samples."""
    stride: int
    frame: Frame
    factor: int
    index: int
    noise: Noise = NONE
    """Of the reference's values."""
    corner: tuple[float, float] = (0.0, 0.0)
    """The pixel (x, y) of the first sample: another than the first of a tile."""
    _last: dict[str, list[tuple[Tensor, Any]]] = field(default_factory=dict)

    @staticmethod
    def of(
        reference: Level,
        moving: Level,
        frame: Frame,
        index: int,
        most: int = MAX_SAMPLES,
        corner: tuple[float, float] = (0.0, 0.0),
        origin: tuple[float, float] = (0.0, 0.0),
    ) -> "PairLevel":
        """Of whole maps, or of parts of them: the first samples of the two are the pixels `corner` and `origin`."""
        height, width = reference.size
        stride = 1
        while -(-height // stride) * -(-width // stride) > most:
            stride += 1
        target = reference.raster[:, ::stride, ::stride]
        return PairLevel(
            planes=target.reshape(target.shape[0], -1).contiguous(),
            known=reference.mask[::stride, ::stride].reshape(-1),
            moving=moving,
            to_level=torch.cat([frame.centre.new_tensor([frame.half]), frame.centre - frame.centre.new_tensor(origin)])
            / moving.factor,
            size=reference.size,
            grid=(target.shape[-2], target.shape[-1]),
            stride=stride,
            frame=frame,
            factor=reference.factor,
            index=index,
            noise=reference.noise,
            corner=corner,
        )

    @cached_property
    def points(self) -> Float[Tensor, "n 2"]:
        """The samples in normalised coordinates, row by row."""
        pixels = pixel_grid(*self.grid, self.planes) * (self.stride * self.factor)
        return self.frame.normalise(pixels + pixels.new_tensor(self.corner))

    @property
    def target(self) -> Float[Tensor, "n channels"]:
        """The reference's values, sample by sample."""
        return self.planes.T

    @cached_property
    def geometry(self) -> Float[Tensor, "6"]:
        """Where the samples are, for `passes`: the first one's normalised coordinates, their step, and `to_level`."""
        x, y = self.frame.normalise(self.frame.centre.new_tensor(self.corner)).tolist()
        step = self.stride * self.factor / self.frame.half
        return torch.tensor([x, y, step, *self.to_level.tolist()], dtype=torch.float64, device="cpu")

    def look(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """The map's values at the warped samples, and which samples fall on data of both."""
        return self.kept("look", matrix, self._looked)

    def _looked(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        if run_on(self.planes.device):
            values, valid = passes.seen(self, matrix)
            return values.T, valid
        pixels = project(matrix, self.points) * self.to_level[0] + self.to_level[1:]
        valid = self.known & inside(pixels, self.moving.mask)
        return sample_at(self.moving.coefficients, torch.nan_to_num(pixels)).T, valid

    def glance(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """`look`, where values of every `sparse`-th sample will do: the others are zero, unless they are known already.
        On a level of 256² half the time."""
        looked = any(known is matrix for known, _ in self._last.get("look", ()))
        if looked or self.sparse == 1 or not run_on(self.planes.device):
            return self.look(matrix)
        return self.kept("glance", matrix, self._glanced)

    def _glanced(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        values, valid = passes.seen(self, matrix, self.sparse)
        return values.T, valid

    @property
    def sparse(self) -> int:
        """One sample of this many tells the residuals' spread."""
        return -(-self.known.numel() // SPREAD_SAMPLES)

    def judgement(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        """Correlations and overlap of a warp."""
        return self.kept("judgement", matrix, self._judged)

    def _judged(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        sampled, valid = self.look(matrix)
        ncc, detail = correlations(sampled, valid, self)
        return {"ncc": ncc, "detail": detail, "overlap": self.share(valid, matrix)}

    def overlapping(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        """Correlation and overlap of a warp."""
        sampled, valid = self.look(matrix)
        return {"ncc": float(masked_ncc(sampled.T, self.planes, valid)), "overlap": self.share(valid, matrix)}

    def kept(self, name: str, matrix: Float[Tensor, "3 3"], make: Callable[[Tensor], Answer]) -> Answer:
        """What `make` says of a warp. The last answers of this name are kept: an estimate is judged where a solve has
        ended, and the next begins there, or is compared with it. Of large levels one is kept, as they are large."""
        answers = self._last.setdefault(name, [])
        for place, (known, answer) in enumerate(answers):
            if known is matrix:
                answers.insert(0, answers.pop(place))
                return answer
        del answers[1 if self.known.numel() <= MAX_SAMPLES else 0 :]
        answer = make(matrix)
        answers.insert(0, (matrix, answer))
        return answer

    def data(self, valid: Bool[Tensor, "*batch n"], freedom: Float[Tensor, "2"]) -> dict[str, Tensor]:
        """What `objective.Photometric` is given of this level."""
        return {
            "point": self.points,
            "target": self.target.contiguous(),
            "valid": valid.to(self.points.dtype),
            "coefficients": self.moving.coefficients,
            "to_level": self.to_level,
            "freedom": freedom,
        }

    def share(self, valid: Bool[Tensor, " n"], matrix: Float[Tensor, "3 3"]) -> float:
        """Overlap under a warp, as a share of the smaller map's area of data."""
        count, rows, columns = centroid(valid.reshape(self.grid))
        if count == 0:
            return 0.0
        x, y, step = self.geometry[:3].tolist()
        middle = x + step * columns / count, y + step * rows / count
        per_sample = self.size[0] * self.size[1] / self.known.numel()
        factors = (self.moving.factor / self.factor) ** 2
        return share_of(matrix.tolist(), middle, count, self._data[0], factors * self._data[1] / per_sample)

    @cached_property
    def _data(self) -> tuple[int, int]:
        """Samples of the reference on data, pixels of the map on data."""
        return int(self.known.count_nonzero()), int(self.moving.mask.count_nonzero())


@dataclass(frozen=True)
class Estimate:
    """One hypothesis: a warp (normalised matrix), its values, and how it does on the level it was last judged on."""

    matrix: Float[Tensor, "3 3"]
    value: Float[Tensor, "2"]
    origin: str
    ncc: float = 0.0
    detail: float = 0.0
    overlap: float = 0.0

    @property
    def certainty(self) -> float:
        """The mean of the correlations of the whole and of the detail."""
        return 0.5 * (self.ncc + self.detail)

    @property
    def score(self) -> float:
        """As `starts.Start.score`, of the certainty."""
        return starts.Start(self.origin, self.matrix, self.certainty, self.overlap).score


def correlations(
    sampled: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"], level: PairLevel
) -> tuple[float, float]:
    """Masked correlation of the samples with the reference, and that of their detail."""
    known = valid.reshape(level.grid)
    return ncc_and_detail(
        sampled.T.reshape(-1, *level.grid), level.planes.reshape(-1, *level.grid), known, DETAIL_SIGMA
    )


def judge(estimate: Estimate, level: PairLevel) -> Estimate:
    """The estimate with its masked correlations and overlap on this level."""
    return replace(estimate, **level.judgement(estimate.matrix))


def with_overlap(estimate: Estimate, level: PairLevel) -> Estimate:
    """The estimate with correlation and overlap alone: at a third of the time, where nothing is decided by them."""
    return replace(estimate, **level.kept("overlap", estimate.matrix, level.overlapping))


def residual_at(
    estimate: Estimate, level: PairLevel, every: int = 1
) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
    """exp(α) · map + b - reference at every sample, or at every few, and which samples are valid."""
    sampled, valid = level.look(estimate.matrix)
    gain, bias = estimate.value.tolist()
    return sampled[::every] * math.exp(gain) + bias - level.target[::every], valid[::every]


def residual_rms(estimate: Estimate, level: PairLevel) -> float:
    """The root mean square of the residuals; 0 without samples."""
    residual, valid = residual_at(estimate, level)
    return float(residual[valid].square().sum() / max(int(valid.count_nonzero()), 1)) ** 0.5


def spread_at(estimate: Estimate, level: PairLevel) -> tuple[float, float]:
    """`mad_sigma` of the residuals and their standard deviation, from samples enough."""
    return spread_over([estimate], [level])


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


def _chosen_residual(estimate: Estimate, level: PairLevel, every: int) -> Float[Tensor, " some"]:
    """`residual_at` where it is valid, all channels."""
    sampled, valid = level.look(estimate.matrix)
    values = sampled.T
    if not (may_read(values, level.planes, valid) and values.dtype == level.planes.dtype):
        residual, valid = residual_at(estimate, level, every)
        return residual[valid].reshape(-1)
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


def with_values(estimate: Estimate, level: PairLevel, freedom: Float[Tensor, "2"]) -> Estimate:
    """Gain and bias from the means and standard deviations over the overlap: the start of the joint refinement.

    The ratio of standard deviations, not the regression slope: it is positive, and noise does not attenuate it.
    """
    sampled, valid = level.look(estimate.matrix)
    x, y = sampled[valid].reshape(-1), level.target[valid].reshape(-1)
    if x.numel() < 2:
        return replace(estimate, value=torch.zeros_like(estimate.value))
    (wide, high), (spread, mean) = ([float(one) for one in torch.std_mean(values)] for values in (y, x))
    ratio = wide / max(spread, 1e-9)
    log_gain = 0.0 if math.isnan(ratio) else math.log(min(max(ratio, math.exp(-3)), math.exp(3))) * float(freedom[0])
    bias = (high - math.exp(log_gain) * mean) * float(freedom[1])
    return replace(estimate, value=estimate.value.new_tensor([log_gain, bias]))


def sane(estimate: Estimate) -> bool:
    """Are warp and values finite, and is the warp not turned over?"""
    rows = estimate.matrix.tolist()
    if not all(math.isfinite(entry) for row in [*rows, estimate.value.tolist()] for entry in row):
        return False
    (a, b, _), (c, d, _), (g, h, i) = rows
    if i == 0 or (a * d - b * c) / i**2 < 0.02:
        return False
    return all(g * x + h * y + i > 1e-9 for x, y, _ in CORNERS)


def moved_share(estimate: Estimate, level: PairLevel, frozen: Bool[Tensor, " n"]) -> float:
    """Which share of the samples that a solve froze is valid no more, or newly so."""
    return int((level.look(estimate.matrix)[1] ^ frozen).count_nonzero()) / max(int(frozen.count_nonzero()), 1)


def no_worse(new: Estimate, old: Estimate, level: PairLevel, frozen: Bool[Tensor, " n"], min_overlap: float) -> bool:
    """May the new estimate replace the old? Judged on samples valid in both, so that shrinking the overlap never pays.

    The correlations of the whole and of the detail over that intersection must not fall (by more than rounding), nor
    the overlap below `min_overlap` where it was above, nor may the warp have turned over or left the finite numbers.
    """
    if not sane(new):
        return False
    sampled, valid = level.look(new.matrix)
    before, _ = level.look(old.matrix)
    both = valid & frozen
    if level.share(valid, new.matrix) < min_overlap <= level.share(frozen, old.matrix) or int(both.sum()) < 16:
        return False
    return sum(correlations(sampled, both, level)) >= sum(correlations(before, both, level)) - 2e-3


def apart(ranked: Sequence[Estimate], frame: Frame) -> list[Estimate]:
    """In order, without those whose corners are within two pixels of an earlier one's."""
    if len(ranked) == 1:
        return list(ranked)
    kept: list[tuple[Estimate, list[complex]]] = []
    for estimate in ranked:
        where = _corners_under(estimate.matrix.tolist())
        distances = (sum(abs(z - other) for z, other in zip(where, there, strict=True)) for _, there in kept)
        if all(not distance / 4 * frame.half <= 2.0 for distance in distances):
            kept.append((estimate, where))
    return [estimate for estimate, _ in kept]


def _corners_under(matrix: list[list[float]]) -> list[complex]:
    """Where a warp takes the corners of the reference, as x + iy; NaN for one on or behind the horizon."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    out = []
    for x, y, _ in CORNERS[:4]:
        depth = g * x + h * y + i
        ahead = depth > 1e-9
        out.append(complex((a * x + b * y + c) / depth, (d * x + e * y + f) / depth) if ahead else complex(math.nan, 0))
    return out


def heavy_tails(estimate: Estimate, level: PairLevel) -> bool:
    """Are the residuals those of outliers beside noise?"""
    return are_heavy(*spread_at(estimate, level))


def are_heavy(sigma: float, deviation: float) -> bool:
    """The same of a spread that is known: by the median, and the standard deviation."""
    return deviation > HEAVY_TAILS * sigma
