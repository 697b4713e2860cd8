"""Pairs of maps under light that gain and bias do not explain: how far off, beside OpenCV's ECC, and how honest.

    OMP_NUM_THREADS=1 python benchmarks/light.py [half: claim] [pairs: 80]
    OMP_NUM_THREADS=1 python benchmarks/light.py --joint [half: claim]      # four maps, placed together

Crops of 200² of bundled rasters, moved by up to 25 px each way, noise of 1 %: the same vignette in both (10 to 60 %), a
lamp on one side of one (a gain that rises linearly), clouds on one (a smooth field of additions), and nothing. The
constants of `mslsq.alignment.light` were chosen on the half "choose"; the rasters of "claim" are others.
"""

import sys
from typing import Any

import numpy as np
from scipy import ndimage
from timing import print_machine, print_table

from mslsq.alignment import MapStatus, align
from mslsq.alignment.synthetic import base_raster

RASTERS = {
    "choose": ("camera", "elevation", "retina", "astronaut", "moon"),
    "claim": ("brick", "grass", "gravel", "hubble", "coffee"),
}
KINDS = ("vignette", "lamp", "clouds", "nothing")
SIZE, SHIFT, NOISE, AROUND = 200, 25.0, 0.01, 30


CORNERS = ((20.0, 20.0), (95.3, 31.7), (30.4, 101.2), (110.1, 98.6))
"""Rows and columns of the raster where each of four maps begins."""
VIGNETTES = (0.2, 0.4)


def raster_of(name: str, least: int) -> Any:
    """In grey from 0 to 1, of that many pixels along each side at least."""
    base: Any = np.asarray(base_raster(name), dtype=np.float64)
    base = base if base.ndim == 2 else base.mean(-1)
    base = (base - base.min()) / np.ptp(base)
    short = min(base.shape)
    return ndimage.zoom(base, least / short) if short < least else base


def pair_of(half: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two maps, and the shift between them (x, y)."""
    rng = np.random.default_rng([number, len(half)])
    names = RASTERS[half]
    base = raster_of(names[number % len(names)], 300)
    top, left = (int(rng.integers(0, side - SIZE - 2 * AROUND)) + AROUND for side in base.shape)
    shift = rng.uniform(-SHIFT, SHIFT, 2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    one, other = (
        ndimage.map_coordinates(base, [y + top + dy, x + left + dx], order=3, mode="mirror") + 0.2
        for dx, dy in ((0.0, 0.0), shift)
    )
    u, v, strength = 2 * x / SIZE - 1, 2 * y / SIZE - 1, rng.uniform(0.1, 0.6)
    kind = KINDS[number % len(KINDS)]
    if kind == "vignette":
        falls = 1 - strength * (u * u + v * v) / 2
        one, other = one * falls, other * falls
    elif kind == "lamp":
        other = other * (1 + strength * (u * np.cos(number) + v * np.sin(number)))
    elif kind == "clouds":
        clouds = ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 25, mode="wrap")
        other = other + 6 * strength * clouds
    one, other = (each + NOISE * rng.standard_normal(each.shape) for each in (one, other))
    return one, other, -shift


def by_align(one: np.ndarray, other: np.ndarray, metric: str) -> tuple[np.ndarray | None, float]:
    found = align([one, other], model="translation", metric=metric)
    if found.status[1] != MapStatus.ALIGNED:
        return None, np.nan
    return found.transforms[1][:2, 2].numpy(), float(found.corner_sigma[1])


def by_ecc(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """OpenCV's ECC, from the phase correlation."""
    import cv2

    one, other = one.astype(np.float32), other.astype(np.float32)
    (x, y), _ = cv2.phaseCorrelate(one.astype(np.float64), other.astype(np.float64))
    warp: Any = np.array([[1, 0, x], [0, 1, y]], dtype=np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 200, 1e-7)
    try:
        cv2.findTransformECC(one, other, warp, cv2.MOTION_TRANSLATION, criteria, np.ones(one.shape, np.uint8), 5)
    except cv2.error:
        return None
    return warp[:, 2]


def row_of(kind: str, method: str, errors: list[float], ratios: list[float]) -> list[Any]:
    placed = np.array([error for error in errors if np.isfinite(error)])
    if not len(placed):
        return [kind, method, 0, "", "", "", "", ""]
    honest = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    said = (float(np.sqrt((honest**2).mean())), float(honest.max())) if len(honest) else ("", "")
    return [kind, method, len(placed), np.median(placed), np.quantile(placed, 0.9), placed.max(), *said]


def joint(half: str) -> None:
    """Four maps with the same vignette, by `align`."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    u, v = 2 * x / SIZE - 1, 2 * y / SIZE - 1
    for strength in (0.0, *VIGNETTES):
        errors, ratios = [], []
        for name in RASTERS[half]:
            base, rng = raster_of(name, 360), np.random.default_rng(1)
            falls = 1 - strength * (u * u + v * v) / 2
            maps = [
                (ndimage.map_coordinates(base, [y + top, x + left], order=3, mode="mirror") + 0.2) * falls
                + NOISE * rng.standard_normal((SIZE, SIZE))
                for top, left in CORNERS
            ]
            found = align(maps, model="translation")
            for index in found.aligned:
                if index != 0:
                    truth = [one - other for one, other in zip(CORNERS[0], CORNERS[index], strict=True)][::-1]
                    errors.append(float(np.hypot(*(found.transforms[index][:2, 2].numpy() - truth))))
                    ratios.append(errors[-1] / float(found.corner_sigma[index]))
        rows = [row_of(f"{strength:.0%}", "joint", errors, ratios)]
        print_table(f"Four maps of the half {half!r}", HEADER, rows)


HEADER = ("light", "method", "placed", "px median", "px 90 %", "px most", "px / ± rms", "px / ± most")


def main() -> None:
    print_machine(["torch", "numpy"])
    if sys.argv[1:2] == ["--joint"]:
        joint(sys.argv[2] if len(sys.argv) > 2 else "claim")
        return
    half, count = sys.argv[1] if len(sys.argv) > 1 else "claim", int(sys.argv[2]) if len(sys.argv) > 2 else 80
    errors: dict[tuple[str, str], list[float]] = {}
    ratios: dict[tuple[str, str], list[float]] = {}
    for number in range(count):
        one, other, truth = pair_of(half, number)
        kind = KINDS[number % len(KINDS)]
        answers = {metric: by_align(one, other, metric) for metric in ("squared", "auto")}
        answers["ECC"] = by_ecc(one, other), np.nan
        for method, (found, sigma) in answers.items():
            off = np.nan if found is None else float(np.hypot(*(found - truth)))
            errors.setdefault((kind, method), []).append(off)
            ratios.setdefault((kind, method), []).append(off / sigma)
    rows = [row_of(*key, errors[key], ratios[key]) for key in sorted(errors)]
    print_table(f"{count} pairs of the half {half!r}", HEADER, rows)


if __name__ == "__main__":
    main()
