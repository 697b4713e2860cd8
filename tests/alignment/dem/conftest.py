"""Pairs of elevation models with a known shift, moved exactly: a sum of waves, evaluated where it is moved to."""

from typing import NamedTuple

import numpy as np
import pytest


class Moved(NamedTuple):
    """`shift` (east, north, up) in metres takes `dem` onto `reference`; `truth` is the reference without noise."""

    reference: np.ndarray
    dem: np.ndarray
    shift: np.ndarray
    truth: np.ndarray
    x: np.ndarray
    y: np.ndarray


def moved_pair(d=(0.4, -1.3), dz=4.0, noise=0.3, seed=0, side=128, pixel=30.0, relief=120.0) -> Moved:
    """dem(u) = T(u + d) - dz; x and y are the reference's rectangle in [-1, 1] at dem's pixels, y upwards."""
    rng = np.random.default_rng(seed)
    size = 2 * side
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    f = np.hypot(fx, fy)
    f[0, 0] = 1
    spectrum = f**-1.8 * np.exp(-0.5 * (f / 0.2) ** 2) * np.fft.rfft2(rng.standard_normal((size, size)))
    spectrum[0, 0] = 0
    spectrum *= relief / np.fft.irfft2(spectrum, (size, size)).std()
    fixed, other = (
        np.fft.irfft2(spectrum * np.exp(2j * np.pi * (fx * q[0] + fy * q[1])), (size, size))[:side, :side]
        for q in ((0, 0), d)
    )
    x, y = ((np.arange(side) + q) * 2 / (side - 1) - 1 for q in d)
    reference, dem = (raster + noise * rng.standard_normal((side, side)) for raster in (fixed, other - dz))
    shift = np.array([d[0] * pixel, -d[1] * pixel, dz])
    return Moved(
        reference, dem, shift, fixed, np.broadcast_to(x, (side, side)), np.broadcast_to(-y[:, None], (side, side))
    )


@pytest.fixture
def pair():
    """`moved_pair`."""
    return moved_pair
