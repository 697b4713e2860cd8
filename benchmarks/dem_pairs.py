"""Pairs of elevation models with a known shift, for `benchmarks/dem.py`: terrain, noise and what else is wrong.

Terrains are sums of cosines (a spectrum that falls as f^-p, evaluated exactly where they are shifted to), so that no
method's interpolator is favoured, and crops of a real SRTM tile, low-passed and sampled once by quintic splines.
Both models get independent white noise. Half of the seeds, chosen by a hash, were for choosing; the other is reported.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

FAMILIES = ("plain", "tilt", "elevation", "dome", "holes", "changed", "far")
TERRAINS = ("rough", "smooth", "ridges", "srtm")
NOISES = {"quiet": 0.3, "noisy": 2.0}
SIDE, MARGIN, PIXEL = 256, 64, 30.0
RELIEF = 150.0
"""Metres: the standard deviation of a terrain."""


@dataclass(frozen=True)
class DemPair:
    """`shift` (metres east, north, up) added to `dem`'s coordinates takes it onto `reference`; `bias` names the model
    that a user would choose; `truth` is the reference without noise, `stable` false where terrain changed (no method is
    told)."""

    name: str
    family: str
    reference: np.ndarray
    dem: np.ndarray
    shift: np.ndarray
    bias: str
    truth: np.ndarray
    stable: np.ndarray
    pixel: float = PIXEL


def half_of(seed: int) -> str:
    """ "choose" or "claim", by a hash of the seed."""
    return "choose" if hashlib.sha256(f"dem-{seed}".encode()).digest()[0] % 2 else "claim"


def seeds(half: str, count: int) -> list[int]:
    """The first seeds of a half."""
    return [seed for seed in range(40 * count) if half_of(seed) == half][:count]


def surfaces(terrain: str, d: np.ndarray, rng: np.random.Generator, srtm: np.ndarray | None) -> list[np.ndarray]:
    """T(u) and T(u + d), with u in pixels, on SIDE + 2 MARGIN squared."""
    whole = SIDE + 2 * MARGIN
    if terrain == "srtm":
        assert srtm is not None
        top, left = rng.integers(40, np.array(srtm.shape) - whole - 40)
        rows, columns = np.mgrid[top : top + whole, left : left + whole].astype(float)
        smooth = ndimage.gaussian_filter(srtm, 0.8)
        return [
            ndimage.map_coordinates(smooth, [rows + q[1], columns + q[0]], order=5, mode="mirror") for q in (0 * d, d)
        ]
    size = 2 * whole
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    f = np.hypot(fx, fy)
    f[0, 0] = 1
    power = {"rough": 1.8, "smooth": 2.6, "ridges": 2.0}[terrain]
    spectrum = f**-power * np.exp(-0.5 * (f / 0.2) ** 2) * (f > 2 / size)
    if terrain == "ridges":
        angle = rng.uniform(0, np.pi)
        spectrum *= np.exp(3.0 * (np.cos(2 * (np.arctan2(fy, fx) - angle)) - 1) / 2)
    spectrum = spectrum * np.fft.rfft2(rng.standard_normal((size, size)))
    spectrum *= RELIEF / np.fft.irfft2(spectrum, (size, size)).std()
    return [
        np.fft.irfft2(spectrum * np.exp(2j * np.pi * (fx * q[0] + fy * q[1])), (size, size))[:whole, :whole] + 1000
        for q in (0 * d, d)
    ]


def make(family: str, terrain: str, noise: str, seed: int, srtm: np.ndarray | None = None) -> DemPair:
    """One pair, determined by its names and the seed."""
    key = hashlib.sha256(f"{family}-{terrain}-{noise}-{seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
    reach = 40.0 if family == "far" else 2.0
    d = rng.uniform(-reach, reach, 2)
    dz = rng.uniform(-10, 10)
    fixed, moved = surfaces(terrain, d, rng, srtm)
    inner = slice(MARGIN, MARGIN + SIDE)
    # the true surface where dem's pixels are: what vertical errors depend on
    t, sigma = moved - dz, NOISES[noise]
    # vertical errors in the reference's coordinates
    x, y = ((np.arange(SIDE) + q) * 2 / (SIDE - 1) - 1 for q in d)
    x, y = x[None, :], y[:, None]
    reference, dem = fixed[inner, inner].copy(), t[inner, inner].copy()
    bias, stable = "offset", np.ones(dem.shape, dtype=bool)
    if family == "tilt":
        a, b = rng.uniform(-12, 12, 2)
        dem, bias = dem - a * x / 2 - b * y / 2, "plane"
    elif family == "elevation":
        h = moved[inner, inner]
        dem, bias = dem - rng.choice([-1, 1]) * 0.02 * (h - np.median(fixed[inner, inner])), "scale"
    elif family == "dome":
        dem, bias = dem - rng.uniform(-8, 8) * (x**2 + y**2 - 2 / 3) - rng.uniform(-6, 6) * x, "quadratic"
    elif family == "changed":
        loss = change(rng)
        dem, stable = dem - loss, np.abs(loss) < 0.1
    reference += sigma * rng.standard_normal(reference.shape)
    dem += sigma * rng.standard_normal(dem.shape)
    if family == "holes":
        for raster in (reference, dem):
            raster[ndimage.gaussian_filter(rng.standard_normal(raster.shape), 6) * 6 * 3.545 > 0.8] = np.nan
    shift = np.array([d[0] * PIXEL, -d[1] * PIXEL, dz])
    return DemPair(
        f"{family}-{terrain}-{noise}-{seed}", family, reference, dem, shift, bias, fixed[inner, inner], stable
    )


def change(rng: np.random.Generator) -> np.ndarray:
    """A quarter of the square that lost or gained 10 to 40 m, tapering over some ten pixels."""
    field = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE)), 40, mode="wrap")
    level = np.quantile(field, 0.75)
    depth = 1 / (1 + np.exp(-(field - level) / (0.15 * field.std())))
    return rng.choice([-1, 1]) * rng.uniform(10, 40) * depth


def pairs(half: str, count: int, srtm: np.ndarray | None, families: tuple[str, ...] = FAMILIES) -> Iterator[DemPair]:
    """`count` seeds of every family, terrain and noise."""
    for family in families:
        for terrain in TERRAINS:
            if terrain == "srtm" and srtm is None:
                continue
            for noise in NOISES:
                for seed in seeds(half, count):
                    yield make(family, terrain, noise, seed, srtm)


def srtm_tile(folder: Path) -> np.ndarray | None:
    """The real tile, or None where it is not there."""
    path = folder / "maps" / "demcompare_srtm" / "srtm_ref.tif"
    if not path.exists():
        return None
    import tifffile

    return tifffile.imread(path).astype(float)
