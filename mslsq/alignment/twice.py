"""Is what two maps leave of each other one thing, seen twice?

Where residuals are the difference of one thing here and there, their autocorrelation has a trough of -½ at the lag
between the two. So it is where marks of an instrument (hot pixels, a watermark, a dither) stay at the same pixels of
two maps of a scene that has moved: at the scene's place the marks are left, and pull it aside; at the marks' place the
scene is left. Residuals alone do not say which is which, as what has moved before a camera that has not looks the same:
so it is said, and refuses nothing.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.spread import residual_at, spread_at
from mslsq.kernels import Kernel, may_read

_LAG_CORRELATION = Kernel("lag_correlation", "nnnTT?nnndd")

TAILED = 1.3
"""Standard deviation over MAD sigma of the residuals, from which all lags are looked at."""

TROUGH = 0.25
"""Of the energy, from which it is said: 0.28 to 0.51 where marks stay, 0.16 at most of noise (the half "choose")."""

NEAREST = 4
"""Samples: nearer lags are those of the prefilter's own trough."""

ENOUGH = 1 << 14
"""Samples tell an autocorrelation at one lag."""

FARTHEST = 0.25
"""Of each side: the larger the lag, the fewer samples have a partner."""

STILL = 0.1
"""Pixels: a map that has moved by less lies on the same pixels."""


def seen_twice(level: PairLevel, estimate: Estimate, way: Float[Tensor, "2"] | None) -> str:
    """A sentence, if so; `way` is that of the map in pixels, where it is a shift."""
    if way is None:
        return ""
    step, moved = level.stride * level.factor, float(way.norm())
    if moved >= NEAREST * step:
        x, y = (way / step).round().int().tolist()
        return STAYS if -at_lag(level, estimate, (x, y)) >= TROUGH else ""
    sigma, deviation = spread_at(estimate, level)
    if moved > STILL or deviation < TAILED * sigma:
        return ""
    depth, (x, y) = trough(*_raster(level, estimate))
    return HAS_MOVED.format(x * step, y * step) if depth >= TROUGH else ""


STAYS = (
    " What differs stays at the same pixels of both maps, as marks of an instrument do (a watermark, hot pixels, "
    "stripes of a sensor), and may pull the place aside: mask them."
)

HAS_MOVED = (
    " What differs is one thing in two places, ({:.0f}, {:.0f}) px apart: if it is the scene that has moved, what "
    "agrees are marks at the same pixels of both, to be masked."
)


def way_of(pixels: Float[Tensor, "3 3"], size: tuple[int, int]) -> Float[Tensor, "2"] | None:
    """By how much a warp between pixels moves a map, where all corners move alike."""
    height, width = size
    x, y = np.array([[0, width - 1, width - 1, 0], [0, 0, height - 1, height - 1]], dtype=np.float64)
    right, down, depth = pixels.numpy(force=True).astype(np.float64) @ np.stack([x, y, np.ones(4)])
    if not (depth > 1e-9).all():
        return None
    moved = np.stack([right / depth - x, down / depth - y], -1)
    middle = moved.mean(0)
    return torch.from_numpy(middle) if float(np.hypot(*(moved - middle).T).max()) < 1 else None


def _raster(level: PairLevel, estimate: Estimate) -> tuple[Tensor, Tensor]:
    """The residuals, zero where there are none, and where they are known."""
    residual, valid = residual_at(estimate, level)
    known = valid.to(residual.dtype)
    middle = (residual * known[:, None]).sum(0) / known.sum().clamp(min=1)
    seen = (residual - middle) * known[:, None]
    return seen.T.reshape(-1, *level.grid), known.reshape(level.grid)


def at_lag(level: PairLevel, estimate: Estimate, lag: tuple[int, int]) -> float:
    """The residuals' autocorrelation at one lag (x, y), of rows that hold about `ENOUGH` samples."""
    sampled, valid = level.look(estimate.matrix)
    (height, width), (x, y) = level.grid, lag
    if abs(x) >= width or abs(y) >= height:
        return 0.0
    gain, bias = estimate.value.tolist()
    one, other = (values.T.reshape(-1, height, width) for values in (sampled, level.target))
    known = valid.reshape(height, width)
    every, values = max(1, height * width // ENOUGH), sampled.T
    if may_read(values, level.planes, valid) and values.dtype == level.planes.dtype:
        found, settings = np.empty(1), np.array([math.exp(gain), bias])
        rasters = values.contiguous(), level.planes, valid
        _LAG_CORRELATION(len(values), height, width, *rasters, x, y, every, settings, found)
        return float(found[0])
    here = slice(max(0, -y), height - max(0, y), every), slice(max(0, -x), width - max(0, x))
    there = slice(max(0, y), height - max(0, -y), every), slice(max(0, x), width - max(0, -x))
    first, second = (math.exp(gain) * one[:, *part] + bias - other[:, *part] for part in (here, there))
    both = (known[here] & known[there]).to(first.dtype)
    count = both.sum().clamp(min=1)
    first, second = (both * (part - (both * part).sum((-2, -1), keepdim=True) / count) for part in (first, second))
    energy = first.square().sum() * second.square().sum()
    return float((first * second).sum() / energy.sqrt().clamp(min=1e-300))


def trough(
    seen: Float[Tensor, "channels height width"], known: Float[Tensor, "height width"]
) -> tuple[float, tuple[int, int]]:
    """The lowest autocorrelation beyond the nearest lags, with its sign changed, and the lag (x, y)."""
    height, width = known.shape
    shape = 2 * height, 2 * width

    def against_itself(raster: Tensor) -> Tensor:
        power = torch.fft.rfft2(raster, s=shape).abs().square()
        return torch.fft.irfft2(power, s=shape)

    energy, partners = against_itself(seen).sum(0), against_itself(known)
    variance = float(energy[0, 0]) / max(float(partners[0, 0]), 1.0)
    if not variance > 0:
        return 0.0, (0, 0)
    down, right = int(FARTHEST * height), int(FARTHEST * width)
    rows = torch.cat([torch.arange(down, device="cpu"), torch.arange(shape[0] - down, shape[0], device="cpu")])
    y, x = torch.where(rows < down, rows, rows - shape[0]), torch.arange(right, device="cpu")
    rows = rows.to(energy.device)
    found = energy[rows, :right] / partners[rows, :right].clamp(min=0.1 * float(partners[0, 0])) / variance
    near = (y[:, None].square() + x.square() < NEAREST**2).to(found.device)
    found = found.masked_fill(near, math.inf)
    lowest = int(found.argmin())
    return -float(found.reshape(-1)[lowest]), (int(x[lowest % right]), int(y[lowest // right]))
