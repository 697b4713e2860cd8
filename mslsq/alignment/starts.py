"""Starts: phase correlation, log-polar registration and a full rotation search, ranked by masked correlation.

Everything works on one coarse level and in its pixels. A candidate is a 3 x 3 matrix from reference pixels to map
pixels of that level. Refinement from the best few decides; here only the basin matters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.grids import inside, pixel_grid, translation
from mslsq.alignment.measures import common_share, masked_ncc, project
from mslsq.alignment.phase import refined_shift
from mslsq.alignment.pyramid import Level
from mslsq.alignment.sampling import mirror, sample_at
from mslsq.alignment.shifts import correlate_turned, whitened, whitened_once

LOW_PASS = 0.06
"""Cycles per pixel: standard deviation of the Gaussian on the cross-power spectrum. Higher frequencies of a warped map
have random phase, and would bury the peak."""

ANGLES = 72
"""Rotations tried, 5° apart: the basin of the refinement on the coarsest level is about ±7°."""


@dataclass(frozen=True)
class Start:
    """A candidate: where it came from, the matrix in pixels of the level, and its masked correlation and overlap
    there."""

    origin: str
    matrix: Float[Tensor, "3 3"]
    ncc: float = 0.0
    overlap: float = 0.0

    @property
    def score(self) -> float:
        """Fisher's z times the square root of the overlap, so that a chance match of a thin strip does not win."""
        return math.atanh(min(max(self.ncc, -0.999), 0.999)) * math.sqrt(self.overlap)


@lru_cache(maxsize=32)
def _window(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "height width"]:
    rows, columns = (
        torch.hann_window(n + 2, periodic=False, dtype=dtype, device=device)[1:-1] for n in (height, width)
    )
    return rows[:, None] * columns[None, :]


def _hann(height: int, width: int, like: Tensor) -> Float[Tensor, "height width"]:
    return _window(height, width, like.dtype, like.device)


@lru_cache(maxsize=32)
def _low_passed(
    height: int, width: int, low_pass: float, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "height half"]:
    """A Gaussian of |f| in cycles per pixel on the grid of `rfft2`."""
    fy = torch.fft.fftfreq(height, dtype=dtype, device=device)
    fx = torch.fft.rfftfreq(width, dtype=dtype, device=device)
    frequencies = (fy[:, None].square() + fx[None, :].square()).sqrt()
    return torch.exp(-0.5 * (frequencies / low_pass).square())


def _cross_power_peak(
    a: Float[Tensor, "height width"], b: Float[Tensor, "height width"], low_pass: float
) -> tuple[int, int]:
    """(dx, dy) with b(u + d) ≈ a(u): the peak of the low-passed inverse transform of the normalised cross-power
    spectrum."""
    height, width = a.shape
    cross = torch.fft.rfft2(a).conj() * torch.fft.rfft2(b)
    magnitude = cross.abs()
    # Bins 1e-3 below the mean magnitude hold rounding and noise only: do not raise them to unit size.
    cross = cross / (magnitude + 1e-3 * magnitude.mean() + torch.finfo(a.dtype).tiny)
    weight = _low_passed(height, width, low_pass, a.dtype, a.device)
    surface = torch.fft.irfft2(cross * weight, s=(height, width))
    best = int(surface.argmax())
    y, x = divmod(best, width)
    return (x if x <= width // 2 else x - width), (y if y <= height // 2 else y - height)


def phase_correlation(reference: Level, moving: Level, low_pass: float = LOW_PASS) -> Float[Tensor, "3 3"]:
    """The translation by windowed, low-passed phase correlation (Kuglin and Hines, 1975), to the pixel of the level."""
    images = [whitened_once(level) for level in (reference, moving)]
    a, b = _of_one_size([image * _hann(*image.shape, like=image) for image in images])
    x, y = _cross_power_peak(a, b, low_pass)
    return translation(x, y, reference.raster)


def phase_shift(reference: Level, moving: Level) -> Float[Tensor, "3 3"]:
    """The translation by phase correlation, to a hundredth of a pixel of the level (`phase.refined_shift`)."""
    whole = phase_correlation(reference, moving)
    a, b = _of_one_size([whitened(level) for level in (reference, moving)])
    x, y = refined_shift(a, b, (round(float(whole[0, 2])), round(float(whole[1, 2]))))
    return translation(float(x), float(y), reference.raster)


def _of_one_size(images: list[Tensor]) -> list[Tensor]:
    """Zeros below and to the right of the smaller one."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    return [torch.nn.functional.pad(one, (0, width - one.shape[1], 0, height - one.shape[0])) for one in images]


def log_polar(reference: Level, moving: Level, bins: int = 128) -> list[tuple[float, float]]:
    """(angle, scale) of the moving map, from the shift between log-polar magnitude spectra (Reddy and Chatterji, 1996).

    The magnitude does not know θ from θ + 180°, so both are returned. Empty where the estimate leaves 0.4 to 2.5 in
    scale.
    """
    side = max(*reference.size, *moving.size)
    spectra = []
    for level in (reference, moving):
        image = whitened(level) * _hann(*level.size, like=level.raster)
        image = torch.nn.functional.pad(image, (0, side - image.shape[1], 0, side - image.shape[0]))
        magnitude = torch.fft.fftshift(torch.fft.fft2(image).abs()).add(1e-9).log()
        spectra.append(magnitude)
    like = reference.raster
    lowest, highest = 2.0, side / 2 - 1
    angle = torch.arange(bins, dtype=like.dtype, device=like.device) * (math.pi / bins)
    radius = lowest * (highest / lowest) ** (torch.arange(bins, dtype=like.dtype, device=like.device) / bins)
    x = side // 2 + radius[None, :] * angle[:, None].cos()
    y = side // 2 + radius[None, :] * angle[:, None].sin()
    maps = []
    for magnitude in spectra:
        flat = mirror(y.round().long(), side) * side + mirror(x.round().long(), side)
        polar = magnitude.reshape(-1)[flat]
        polar = polar - polar.mean(0, keepdim=True)  # the falling spectrum itself carries no rotation
        maps.append(polar * torch.hann_window(bins, dtype=like.dtype, device=like.device)[None, :])
    along_radius, along_angle = _cross_power_peak(maps[0], maps[1], 0.15)
    turn = along_angle * math.pi / bins
    scale = (highest / lowest) ** (-along_radius / bins)
    if not 0.4 < scale < 2.5:
        return []
    return [(turn, scale), (turn + math.pi, scale)]


def rotation_search(
    reference: Level, moving: Level, min_overlap: float, keep: int = 8, scales: Sequence[float] = (1.0,)
) -> list[Float[Tensor, "3 3"]]:
    """The best `keep` of all rotations (5° apart) and all shifts, no two within a tenth of the reference's longer side.

    Two shifts of every rotation compete: in a periodic map (bricks) the true one need not be the first.
    """
    turns = [(2 * math.pi * k / ANGLES, scale) for scale in scales for k in range(ANGLES)]
    found = correlate_turned(reference, moving, turns, min_overlap, peaks=2)
    ranked = [Start("rotation search", matrix) for _, matrix in sorted(found, key=lambda entry: -entry[0])[: 8 * keep]]
    apart = 0.1 * max(reference.size)
    return [start.matrix for start in distinct(ranked, *reference.size, apart, keep)]


def rank(
    candidates: Sequence[tuple[str, Float[Tensor, "3 3"]]], reference: Level, moving: Level, min_overlap: float
) -> list[Start]:
    """Candidates with their masked correlation and overlap on this level, best score first; those below `min_overlap`
    last."""
    grid = pixel_grid(*reference.size, like=reference.raster)
    target = reference.raster.reshape(reference.raster.shape[0], -1)
    own, others = int(reference.mask.sum()), int(moving.mask.sum())
    starts = []
    for origin, matrix in candidates:
        points = project(matrix, grid)
        valid = reference.mask.reshape(-1) & inside(points, moving.mask)
        value = sample_at(moving.coefficients, torch.nan_to_num(points))
        overlap = common_share(matrix, grid, valid, own, others)
        starts.append(Start(origin, matrix, float(masked_ncc(value, target, valid)), overlap))
    return sorted(starts, key=lambda start: (start.overlap < min_overlap, -start.score))


def distinct(
    starts: Sequence[Start], height: int, width: int, apart: float = 2.0, most: int | None = None
) -> list[Start]:
    """The first `most` starts in order, all by default, without those whose four corners are on average within `apart`
    pixels of an earlier one's."""
    if not starts:
        return []
    like = starts[0].matrix
    corners = like.new_tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    where = torch.stack([project(start.matrix, corners) for start in starts]).numpy(force=True)
    kept: list[int] = []
    for number, lies in enumerate(where):
        if (np.sqrt(((lies - where[kept]) ** 2).sum(-1)).mean(-1) > apart).all():
            kept.append(number)
            if len(kept) == most:
                break
    return [starts[number] for number in kept]


def search(
    reference: Level, moving: Level, rotations: bool, scales: bool, min_overlap: float
) -> list[tuple[str, Float[Tensor, "3 3"]]]:
    """Every candidate of this pair of levels: identity, phase correlation, best shifts, and where the model turns,
    rotations."""
    like = reference.raster
    out = [("identity", torch.eye(3, dtype=like.dtype, device=like.device))]
    out.append(("phase correlation", phase_correlation(reference, moving)))
    upright = correlate_turned(reference, moving, [(0.0, 1.0)], min_overlap, peaks=3)
    out += [("masked correlation", matrix) for _, matrix in upright]
    if rotations:
        out += [("rotation search", matrix) for matrix in rotation_search(reference, moving, min_overlap)]
    if rotations and scales:
        turns = log_polar(reference, moving)
        if turns:
            out += [("log-polar", matrix) for _, matrix in correlate_turned(reference, moving, turns, min_overlap)]
    return out
