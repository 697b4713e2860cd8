"""`coregister` where terrain changed, by geometry: errors in stated errors, with bias models that may follow a change.

    OMP_NUM_THREADS=1 python benchmarks/dem_changes.py [first seed: 20] [end: 30]

Pairs of 256² of `dem_pairs.surfaces`, in turns of four terrains (one real, from MSLSQ_DATA), with one of four bias
models, noise of 0.3, 1 or 2 m on both, and -20 to 20 m on 10 to 45 % of the area: quarters, sides, corners, strips,
wedges, patches, glaciers. Constants were chosen on seeds 0 to 8.
"""

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dem_pairs import MARGIN, PIXEL, SIDE, TERRAINS, srtm_tile, surfaces
from scipy import ndimage
from timing import print_machine, print_table

from mslsq.alignment import coregister

DATA = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
GEOMETRIES = ("none", "quarter", "side", "corner", "strip", "wedge", "patches", "glacier")
BIASES = ("plane", "plane+scale", "offset", "scale")
NOISES = (0.3, 1.0, 2.0)


def sigmoid(t: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(t, -60, 60)))


def share_of_change(geometry: str, rng: np.random.Generator) -> np.ndarray:
    """From 0, nothing, to 1."""
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1)
    x, y = (y, x) if rng.random() < 0.5 else (x, y)
    x, y = (1 - one if rng.random() < 0.5 else one for one in (x, y))
    area, border = rng.uniform(0.10, 0.45), rng.choice([0.01, 0.03, 0.05, 0.1])
    if geometry == "quarter":
        return sigmoid((0.5 - x) / border) * sigmoid((0.5 - y) / border)
    if geometry == "side":
        return sigmoid((area - x) / border)
    if geometry == "corner":
        return sigmoid((area**0.5 - x) / border) * sigmoid((area**0.5 - y) / border)
    if geometry == "strip":
        angle = rng.uniform(0, np.pi)
        across = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) - rng.uniform(-0.2, 0.2)
        return sigmoid((area / 2 - np.abs(across)) / (border / 2))
    if geometry == "wedge":
        return np.clip((area - x) / area, 0, None)
    if geometry == "glacier":
        field = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE)), rng.uniform(20, 50), mode="wrap")
        return sigmoid((field - np.quantile(field, 1 - area)) / (rng.choice([0.05, 0.15, 0.4]) * field.std()))
    out = np.zeros_like(x)
    if geometry == "patches":
        for _ in range(rng.integers(3, 8)):
            (column, row), sigma = rng.uniform(0, 1, 2), rng.uniform(0.04, 0.12)
            out = np.maximum(out, np.exp(-((x - column) ** 2 + (y - row) ** 2) / 2 / sigma**2))
    return out


def one(geometry: str, terrain: str, seed: int, srtm: np.ndarray | None) -> dict[str, Any]:
    """A pair: the height's error, and all errors over what is stated of them."""
    key = hashlib.sha256(f"geo-{geometry}-{terrain}-{seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
    d, dz = rng.uniform(-2, 2, 2), rng.uniform(-10, 10)
    inner = slice(MARGIN, MARGIN + SIDE)
    reference, moved = (raster[inner, inner] for raster in surfaces(terrain, d, rng, srtm))
    x, y = ((np.arange(SIDE) + q) * 2 / (SIDE - 1) - 1 for q in d)
    bias, truth = BIASES[rng.integers(4)], {"x": 0.0, "y": 0.0, "h": 0.0}
    dem = moved - dz
    if "plane" in bias:
        truth["x"], truth["y"] = rng.uniform(-6, 6, 2)
        dem = dem - truth["x"] * x[None] + truth["y"] * y[:, None]
    if "scale" in bias:
        truth["h"] = rng.choice([-1, 1]) * 0.01
        dem = dem - truth["h"] * (moved - np.median(reference))
    share = share_of_change(geometry, rng)
    dem = dem + rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(2), np.log(20))) * share
    noise = NOISES[rng.integers(3)]
    reference, dem = (raster + noise * rng.standard_normal(raster.shape) for raster in (reference, dem))
    begin = time.process_time()
    found = coregister(reference, dem, pixel_size=PIXEL, bias=bias)
    seconds = time.process_time() - begin
    ratios = (found.shift - [d[0] * PIXEL, -d[1] * PIXEL, dz]) / found.standard_errors
    others = [
        (found.coefficients[name] - right * (found.frame.unit if name == "h" else 1)) / found.coefficient_errors[name]
        for name, right in truth.items()
        if name in found.coefficients
    ]
    return {
        "height": abs(found.shift[2] - dz), "ratio": ratios[2], "seconds": seconds,
        "worst": float(np.nanmax(np.abs([*ratios, *others]))),
    }  # fmt: skip


def main() -> None:
    print_machine(["torch", "numpy"])
    first, end = (int(number) for number in (*sys.argv[1:], *("20", "30")[len(sys.argv) - 1 :]))
    srtm, rows = srtm_tile(DATA), []
    for index, geometry in enumerate(GEOMETRIES):
        found = []
        for seed in range(first, end):
            terrain = ("rough", "srtm", "smooth", "ridges")[(seed + index) % len(TERRAINS)]
            if terrain == "srtm" and srtm is None:
                continue
            found.append(one(geometry, terrain, seed, srtm))
        if not found:
            continue
        of = {key: np.array([each[key] for each in found]) for key in found[0]}
        rms = float(np.sqrt((of["ratio"] ** 2).mean()))
        row = [geometry, len(found), np.median(of["height"]), of["height"].max(), rms, np.abs(of["ratio"]).max()]
        rows.append([*row, of["worst"].max(), np.median(of["seconds"])])
    header = ("changed", "pairs", "m median", "m most", "z / ± rms", "z / ± most", "any / ± most", "cpu s")
    print_table("Errors where terrain changed", header, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
