"""Pictures woven of two fields: every second row is of another instant, or of a head that reads the other way.

Such a map has two places, as far apart as its fields are, and a solve finds one of them or something between, with the
small error that all its pixels give it. Whether what lies between two rows of a field is the row between them, a few
rows tell to first order; where it is not, the cross-correlation of the fields tells how far they are apart.
"""

import math

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import Kernel, may_read

_ROWS_ASIDE = Kernel("rows_aside", "nnnT?nd")

ALTERNATES = 1.2
"""Squared differences of rows that are neighbours, over those of rows two apart: 0.4 in plain maps, 1 in noise alone,
to 18 where fields have moved by more than their detail."""

ASIDE = 0.15
"""Pixels by which gradients put a row aside of the rows around it, from which fields are compared."""

ROWS, FEWEST = 12, 500
"""Rows that are looked at, and how many differences must be known."""

BLURRED = 1.5
"""Standard deviation, in samples, of the blur of fields before they are compared: dithers and lines go with it."""

SHARP = 8.0
"""Standard deviations of a correlation by which its peak stands out, from which it is one."""

BETTER = 0.8
"""Of the squared differences between the fields as they lie, what is left at most where one has been moved."""

LEAST = 0.25
"""Fields nearer to each other than that, in pixels, are taken for one."""


def fields_apart(values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"]) -> float:
    """How far the two fields of a map are apart, in pixels; 0 where its rows do not alternate."""
    return _apart(values.numpy(), known.numpy()) if _alternates(values, known) else 0.0


def _alternates(values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"]) -> bool:
    """Is every second row not what the rows around it make of it?"""
    aside, down, across, both, across_aside, down_aside, count = _sums(values, known)
    if count < FEWEST:
        return False
    if aside + down > ALTERNATES * 4 * down:  # the mean over both neighbours
        return True
    volume = across * down - both * both
    if not volume > 1e-9 * across * down:
        return False
    way = (down * across_aside - both * down_aside) / volume, (across * down_aside - both * across_aside) / volume
    return math.hypot(*way) > ASIDE


def _sums(values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"]) -> list[float]:
    """Over some rows and the two below each, of how far the one between is aside of their mean, half of what they
    differ by, and half a difference along their mean: aside², down², across², across · down, across · aside, down ·
    aside, and how many samples were known."""
    height = known.shape[0]
    every = max(1, height // ROWS)
    if may_read(values, known):
        sums = np.empty(7)
        _ROWS_ASIDE(*values.shape, values.contiguous(), known.contiguous(), every, sums)
        return sums.tolist()
    raster, mask, rows = values.numpy(), known.numpy(), np.arange(0, height - 2, every)
    seen = (mask[rows] & mask[rows + 1] & mask[rows + 2])[:, 1:-1]
    signs = np.where(rows % 2 == 0, 1.0, -1.0)[:, None]
    first, between, second = (raster[:, rows + k] for k in range(3))
    around, half = 0.5 * (first + second), 0.5 * signs * (second - first)
    aside = (between - around)[..., 1:-1][:, seen].ravel()
    down = half[..., 1:-1][:, seen].ravel()
    across = (0.5 * signs * (around[..., 2:] - around[..., :-2]))[:, seen].ravel()
    products = [(aside, aside), (down, down), (across, across), (across, down), (across, aside), (down, aside)]
    return [*(float(one @ other) for one, other in products), float(np.count_nonzero(seen))]


def _apart(raster: np.ndarray, mask: np.ndarray) -> float:
    """By the phases of their cross-correlation (Kuglin and Hines, 1975)."""
    from scipy import ndimage

    filled = np.where(mask, raster, raster[:, mask].mean(-1)[:, None, None])
    upper, lower = filled[:, 0::2], filled[:, 1::2]
    count = min(upper.shape[1] - 1, lower.shape[1])
    between = 0.5 * (upper[:, :count] + upper[:, 1 : count + 1])
    window = np.hanning(count)[:, None] * np.hanning(between.shape[2])
    spectra = [np.fft.rfft2((one - one.mean((1, 2), keepdims=True)) * window) for one in (between, lower[:, :count])]
    crossed = (spectra[0].conj() * spectra[1]).sum(0)
    peaks = np.fft.irfft2(crossed / np.maximum(np.abs(crossed), np.finfo(float).tiny), s=window.shape)
    peaks = ndimage.gaussian_filter(peaks, BLURRED, mode="wrap")
    if peaks.max() < SHARP * peaks.std():
        return 0.0
    place = np.unravel_index(int(peaks.argmax()), peaks.shape)
    along, across = (_to_middle(peaks, place, axis) for axis in (0, 1))
    found = float(np.hypot(2 * along, across))
    if found < LEAST or (abs(across) < LEAST and abs(abs(2 * along) - 1) < LEAST):
        return 0.0  # or rows that are there twice, as in a picture that has been enlarged: `coarser` asks for those
    # Whatever moves fields that are one leaves more between them.
    lower, inside = lower[:, :count], np.ones_like(window)
    there = np.stack([ndimage.shift(one, (along, across), order=1, mode="nearest") for one in between])
    inside = ndimage.shift(inside, (along, across), order=0, cval=0.0) > 0
    left, before = (float(np.square((one - lower)[:, inside]).sum()) for one in (there, between))
    return found if left < BETTER * before else 0.0


def _to_middle(peaks: np.ndarray, place: tuple, axis: int) -> float:
    """The shift along an axis, by the parabola through a peak and its neighbours, at most half of what there is."""
    size, index = peaks.shape[axis], list(place)
    before, middle, after = (
        float(peaks[(*index[:axis], (index[axis] + k) % size, *index[axis + 1 :])]) for k in (-1, 0, 1)
    )
    bend = before - 2 * middle + after
    offset = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return (index[axis] + size // 2) % size - size // 2 + offset
