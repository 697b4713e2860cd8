"""What `coregister` states about its errors, beside its errors: squared error over stated variance, by kind of noise.

    OMP_NUM_THREADS=1 python benchmarks/dem_errors.py [pairs per row: 40] [choose or claim] [side: 256] [kinds]

Pairs of one terrain (a sum of cosines, moved exactly) and two noises: white noise of 1 m, and beside it correlated
noise of 1 m whose correlation falls to 1/e over a length in pixels, exponentially or as a Gaussian; with and without
holes, with one of the bias models. A mean of 1 is right; the median says whether few pairs make it. Under a tilt that
the bias model lacks, the height is that in the middle of what both models cover."""

import hashlib
import sys
import time

import numpy as np
import torch
from scipy import ndimage
from timing import print_machine, print_table

from mslsq.alignment.dem import coregister

PIXEL, RELIEF = 30.0, 150.0
LENGTHS = (3, 6, 12, 25, 40, 60)
KINDS = (
    "white",
    *(f"{shape} {length}" for length in LENGTHS for shape in ("exponential", "gaussian")),
    "steep",
    "tilt",
)
BIASES = ("offset", "plane+scale")


def half_of(seed: int) -> str:
    """ "choose" or "claim", by a hash of the seed."""
    return "choose" if hashlib.sha256(f"dem-errors-{seed}".encode()).digest()[0] % 2 else "claim"


def field(kind: str, side: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of variance 1 whose correlation is exp(-d/L) or exp(-d²/L²), on a torus four times as large."""
    shape, length = kind.split()
    size = 4 * side
    along = np.minimum(np.arange(size), size - np.arange(size)).astype(float)
    d = np.hypot(along[:, None], along) / float(length)
    covariance = np.exp(-d) if shape == "exponential" else np.exp(-np.square(d))
    power = np.maximum(np.fft.rfft2(covariance).real, 0)
    return np.fft.irfft2(np.sqrt(power) * np.fft.rfft2(rng.standard_normal((size, size))), (size, size))[:side, :side]


def made(kind: str, bias: str, holes: bool, seed: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
    """Reference, dem, shift and the true coefficients beside the offset."""
    key = hashlib.sha256(f"{kind}-{bias}-{holes}-{seed}-{side}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
    d, dz, size = rng.uniform(-2, 2, 2), rng.uniform(-5, 5), 2 * side
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    f = np.hypot(fx, fy)
    f[0, 0] = 1
    spectrum = f ** -rng.uniform(1.8, 2.6) * np.exp(-0.5 * (f / 0.2) ** 2) * (f > 2 / size)
    spectrum = spectrum * np.fft.rfft2(rng.standard_normal((size, size)))
    spectrum *= RELIEF / np.fft.irfft2(spectrum, (size, size)).std()
    fixed, moved = (
        np.fft.irfft2(spectrum * np.exp(2j * np.pi * (fx * q[0] + fy * q[1])), (size, size))[:side, :side]
        for q in (0 * d, d)
    )
    dem, truth = moved - dz, {}
    if bias != "offset":
        x, y = ((np.arange(side) + q) * 2 / (side - 1) - 1 for q in d)
        truth = {"x": rng.uniform(-5, 5), "y": rng.uniform(-5, 5)}
        dem = dem - truth["x"] * x - truth["y"] * -y[:, None] - 0.02 * (moved - np.median(fixed))
        truth |= {"stretch": 0.02, "about": float(np.median(fixed))}
    reference = fixed + rng.standard_normal(fixed.shape)
    dem = dem + rng.standard_normal(fixed.shape)
    if kind == "steep":
        down, along = np.gradient(moved)
        slope = np.hypot(down, along)
        dem = dem + 2 * slope / slope.mean() * rng.standard_normal(fixed.shape)
    elif kind == "tilt":
        dem = dem + np.linspace(-4, 4, side)
        dz += 4 * d[0] / (side - 1)  # what it is in the middle of the columns that both models have
    elif kind != "white":
        dem = dem + field(kind, side, rng)
    if holes:
        for raster in (reference, dem):
            raster[ndimage.gaussian_filter(rng.standard_normal(raster.shape), 6) * 6 * 3.545 > 0.8] = np.nan
    return reference, dem, np.array([d[0] * PIXEL, -d[1] * PIXEL, dz]), truth


def scores(kind: str, bias: str, holes: bool, seed: int, side: int) -> dict[str, float]:
    """Squared error over stated variance, of each unknown and of the shift together."""
    reference, dem, shift, truth = made(kind, bias, holes, seed, side)
    found = coregister(reference, dem, pixel_size=PIXEL, bias=bias)
    error = found.shift - shift
    if truth:  # the model's stretch is about the median of the reference's data
        error[2] -= truth["stretch"] * (found.frame.elevation - truth.pop("about"))
    out = dict(zip("xyz", error**2 / np.diag(found.covariance), strict=True))
    for name, value in truth.items():
        if name == "stretch":
            # dem = 0.98 (moved - c) + c: the corrected model adds 0.02 of itself about the median
            unit, coefficient, stated = found.frame.unit, found.coefficients["h"], found.coefficient_errors["h"]
            out["scale"] = (coefficient / unit - value) ** 2 / (stated / unit) ** 2
        else:
            out[f"tilt {name}"] = (found.coefficients[name] - value) ** 2 / found.coefficient_errors[name] ** 2
    return out


def rows(kinds: tuple[str, ...], half: str, count: int, side: int) -> list[list[str]]:
    """A row per kind of noise, holes and bias: the mean and the median of every score."""
    seeds = [seed for seed in range(40 * count) if half_of(seed) == half][:count]
    out = []
    for kind in kinds:
        for bias in BIASES:
            if kind == "tilt" and bias != "offset":
                continue
            for holes in (False, True):
                start = time.process_time()
                found = [scores(kind, bias, holes, seed, side) for seed in seeds]
                seconds = (time.process_time() - start) / count
                row = [kind, bias, "holes" if holes else ""]
                for name in ("x", "y", "z", "tilt x", "tilt y", "scale"):
                    values = np.array([one[name] for one in found if name in one])
                    row.append(f"{values.mean():.2f} ({np.median(values):.2f})" if len(values) else "")
                out.append([*row, f"{seconds:.2f}"])
                print(" | ".join(out[-1]), flush=True)
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    count, half, side, kinds = (*sys.argv[1:], *("40", "claim", "256", "")[len(sys.argv) - 1 :])
    print_machine(["torch", "numpy"])
    table = rows(tuple(kinds.split(",")) if kinds else KINDS, half, int(count), int(side))
    print_table(
        f"Squared error over stated variance, mean (median; 0.45 is right) of {count} pairs of {side}², half {half}",
        ["noise beside white", "bias", "", "x", "y", "z", "tilt x", "tilt y", "scale", "cpu s"], table,
    )  # fmt: skip
