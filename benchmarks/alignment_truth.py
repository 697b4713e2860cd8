"""Is a placement true? Pairs of maps with and without a match, of kinds that thresholds are chosen on and of others.

    python benchmarks/alignment_truth.py --half claim --false 3000 --true 500
    python benchmarks/alignment_truth.py --half choose --false 300 --true 300 --json chosen.json

Thresholds (`mslsq.alignment.evidence`) are chosen on the kinds of the half "choose" alone; "claim" has kinds that were
not looked at. A placement of a pair without a match is false whatever it is; one of a pair with a match is right within
1 px (mean distance of the reference's corners). The bound is that of Clopper and Pearson, one-sided, 95 %.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import scipy.ndimage
import scipy.stats
import torch
from timing import print_table

from mslsq.alignment import MapStatus, align
from mslsq.alignment.metrics import corner_error
from mslsq.alignment.synthetic import NAMES, base_raster, random_transform, warp_from_base

RIGHT = 1.0
"""Pixels, the mean distance of the reference's corners from where the truth puts them."""

Raster = np.ndarray
Random = np.random.Generator
Pair = tuple[Raster, Raster]


def normalised(raster: Raster) -> Raster:
    return (raster - raster.min()) / np.ptp(raster)


def raster_of(name: str) -> Raster:
    return normalised(scipy.ndimage.gaussian_filter(base_raster(name), 0.8, mode="mirror"))


def crop(raster: Raster, size: int, random: Random) -> Raster:
    height, width = raster.shape
    y, x = random.integers(0, height - size + 1), random.integers(0, width - size + 1)
    return raster[y : y + size, x : x + size]


def grains(size: int, sigma: float, random: Random) -> Raster:
    """White noise under a Gaussian of that width, standardised."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), sigma, mode="wrap")
    return (field - field.mean()) / field.std()


def slope(size: int, random: Random) -> Raster:
    """A plane of random direction with a gentle bend, 0 to 1."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    a, b, c, d = random.standard_normal(4)
    return normalised(a * x + b * y + 0.3 * (c * x * y + d * x**2))


def spots(
    size: int, random: Random, count: int, widths: tuple[float, float], brightness: Callable[[int], Raster]
) -> Raster:
    """Gaussian spots at random places."""
    image, margin = np.zeros((size, size)), 6.0
    at = random.uniform(-margin, size + margin, (count, 2))
    for (x, y), width, bright in zip(at, random.uniform(*widths, count), brightness(count), strict=True):
        reach = int(np.ceil(4 * width))
        left, top = max(int(x) - reach, 0), max(int(y) - reach, 0)
        right, bottom = min(int(x) + reach + 1, size), min(int(y) + reach + 1, size)
        if left < right and top < bottom:
            v, u = np.mgrid[top:bottom, left:right]
            image[top:bottom, left:right] += bright * np.exp(-((u - x) ** 2 + (v - y) ** 2) / (2 * width**2))
    return image


def stars(size: int, random: Random) -> Raster:
    """A field of stars: few bright ones, many faint ones, on a sky that glows."""
    count = int(size**2 * random.uniform(0.002, 0.006))
    field = spots(size, random, count, (1.0, 1.4), lambda n: 0.05 * random.pareto(1.2, n).clip(0, 40))
    return field + 0.3 * slope(size, random)


def cells(size: int, random: Random) -> Raster:
    """Fluorescence: blobs of one size, and the noise of counting."""
    count = int(size**2 * random.uniform(0.001, 0.003))
    light = spots(size, random, count, (3.0, 6.0), lambda n: random.uniform(0.5, 1.0, n)) + 0.1
    return random.poisson(100 * light) / 100.0


def night(size: int, random: Random) -> Raster:
    """Lamps that saturate, their halos, and a dark street."""
    lamps = spots(size, random, int(random.integers(6, 30)), (1.0, 3.0), lambda n: random.uniform(1.0, 5.0, n))
    glow = scipy.ndimage.gaussian_filter(lamps, 12.0)
    return np.minimum(lamps + 2.0 * glow + 0.05 * slope(size, random), 1.0)


def tiles(size: int, random: Random) -> Raster:
    """A facade: one window again and again, each a little different."""
    period = int(random.integers(14, 30))
    window = scipy.ndimage.gaussian_filter(random.standard_normal((period, period)), 2.0, mode="wrap")
    count = size // period + 2
    wall = np.tile(window / window.std(), (count, count))
    y, x = random.integers(0, period, 2)
    return wall[y : y + size, x : x + size] + 0.3 * grains(size, 2.0, random)


def other_rasters(size: int, random: Random) -> Pair:
    one, other = random.choice(NAMES, 2, replace=False)
    return crop(raster_of(one), size, random), crop(raster_of(other), size, random)


def inverted_rasters(size: int, random: Random) -> Pair:
    one, other = other_rasters(size, random)
    return one, 1 - other


def no_overlap(size: int, random: Random) -> Pair:
    """Two ends of one raster."""
    raster = raster_of(str(random.choice([name for name in NAMES if name != "elevation"])))
    height, width = raster.shape
    side = min(size, min(height, width) // 2 - 8)
    if random.integers(2):
        return raster[:side, :side], raster[-side:, -side:]
    return raster[:side, -side:], raster[-side:, :side]


def two_of(scene: Callable[[int, Random], Raster]) -> Callable[[int, Random], Pair]:
    return lambda size, random: (scene(size, random), scene(size, random))


def one_sky(size: int, random: Random) -> Pair:
    """Other scenes under the same gradient, which most of their energy is in."""
    sky = 3.0 * slope(size, random)
    one, other = other_rasters(size, random)
    return one + sky, other + sky


def one_camera(size: int, random: Random) -> Pair:
    """Other scenes, each darker towards the corners, with the same rows of a sensor in them."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    dark, rows = 1 - 0.5 * (x**2 + y**2), 0.02 * random.standard_normal((size, 1))
    one, other = other_rasters(size, random)
    return one * dark + rows, other * dark + rows


WITHOUT_MATCH: dict[str, dict[str, Callable[[int, Random], Pair]]] = {
    "choose": {
        "other rasters": other_rasters,
        "stars": two_of(stars),
        "ramps": two_of(lambda size, random: slope(size, random) + 0.01 * random.standard_normal((size, size))),
        "coarse grains": two_of(lambda size, random: grains(size, 4.0, random)),
        "one sky": one_sky,
    },
    "claim": {
        "inverted rasters": inverted_rasters,
        "no overlap": no_overlap,
        "noise": two_of(lambda size, random: random.standard_normal((size, size))),
        "fine grains": two_of(lambda size, random: grains(size, 1.5, random)),
        "clouds": two_of(lambda size, random: grains(size, 3.0, random) + 3 * grains(size, 12.0, random)),
        "facades": two_of(tiles),
        "cells": two_of(cells),
        "night": two_of(night),
        "one camera": one_camera,
    },
}

SCENES: dict[str, dict[str, Callable[[int, Random], Raster]]] = {
    "choose": {
        "rasters": lambda size, random: crop(raster_of(str(random.choice(NAMES))), size, random),
        "stars": stars,
        "coarse grains": lambda size, random: grains(size, 4.0, random),
    },
    "claim": {
        "cells": cells,
        "night": night,
        "fine grains": lambda size, random: grains(size, 1.5, random),
        "clouds": lambda size, random: grains(size, 3.0, random) + 3 * grains(size, 12.0, random),
    },
}
"""Scenes of pairs with a match; the rasters of "choose" are of 344 pixels and more."""

NOISES = (0.01, 0.05, 0.2)
"""Of the noise of pairs with a match, as a share of the standard deviation of the scene."""


def with_match(scene: Callable[[int, Random], Raster], model: str, size: int, random: Random) -> tuple[Pair, Raster]:
    """A pair cut from one scene, both with noise, and the truth between them."""
    base = scene(min(size + 80, 340), random)
    noise = float(random.choice(NOISES)) * base.std()
    corner = tuple(int(n) for n in random.integers(0, base.shape[0] - size + 1, 2))
    transform = random_transform(model, size, random, shift=0.15 * size)
    reference = base[corner[1] : corner[1] + size, corner[0] : corner[0] + size]
    moving = random.uniform(0.7, 1.3) * warp_from_base(base, (corner[0], corner[1]), transform, (size, size))
    reference, moving = (image + noise * random.standard_normal(image.shape) for image in (reference, moving))
    return (reference, moving), transform


def outcome(task: tuple[str, str, str, str, int, int]) -> dict[str, Any]:
    """One pair aligned."""
    half, sort, kind, model, seed, size = task
    torch.set_num_threads(1)
    random = np.random.default_rng([seed, sum(kind.encode())])
    truth = None
    if sort == "false":
        pair = WITHOUT_MATCH[half][kind](size, random)
    else:
        pair, truth = with_match(SCENES[half][kind], model, size, random)
    begin = time.process_time()
    result = align([torch.from_numpy(np.ascontiguousarray(image)) for image in pair], model=model)
    seconds = time.process_time() - begin
    error = float("inf")
    if truth is not None and MapStatus(int(result.status[1])).ok:
        error = corner_error(result.transforms[1], torch.from_numpy(truth), *pair[0].shape)
    figures = {name: float(getattr(result, name)[1]) for name in ("ncc", "detail", "overlap", "corner_sigma")}
    status = MapStatus(int(result.status[1]))
    named = {"sort": sort, "kind": kind, "model": model, "seed": seed, "status": status.name, "believed": status.ok}
    return named | figures | {"error": error, "seconds": seconds, "reason": result.reasons[1]}


def tasks(half: str, sort: str, count: int, size: int, first: int) -> Iterator[tuple[str, str, str, str, int, int]]:
    kinds = list((WITHOUT_MATCH if sort == "false" else SCENES)[half])
    models = ("sim2", "se2", "translation", "affine")
    for n in range(count):
        kind = kinds[n % len(kinds)]
        yield half, sort, kind, models[(n // len(kinds)) % len(models)], first + n, size


def bound(false: int, count: int) -> float:
    """The rate of false placements is below this with a confidence of 95 %."""
    return float(scipy.stats.beta.ppf(0.95, false + 1, count - false)) if false < count else 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--false", type=int, default=3000, help="pairs without a match")
    parser.add_argument("--true", type=int, default=500, help="pairs with one")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", help="also write every pair's result here")
    arguments = parser.parse_args()
    everything = [
        task
        for sort, count in (("false", arguments.false), ("true", arguments.true))
        for task in tasks(arguments.half, sort, count, arguments.size, arguments.first)
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        records = list(pool.map(outcome, everything, chunksize=4))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=0)
    rows = []
    false = [r for r in records if r["sort"] == "false"]
    for kind in [*WITHOUT_MATCH[arguments.half], None]:
        chosen = [r for r in false if kind in (r["kind"], None)]
        if chosen:
            believed = sum(r["believed"] for r in chosen)
            rows.append((kind or "all", len(chosen), believed, f"{bound(believed, len(chosen)):.2%}"))
    print_table("Pairs without a match", ("kind", "pairs", "believed", "rate below (95 %)"), rows)
    rows = []
    true = [r for r in records if r["sort"] == "true"]
    for kind in [*SCENES[arguments.half], None]:
        chosen = [r for r in true if kind in (r["kind"], None)]
        if chosen:
            right = sum(r["error"] < RIGHT for r in chosen)
            wrong = sum(r["believed"] and not r["error"] < RIGHT for r in chosen)
            rows.append((kind or "all", len(chosen), f"{right / len(chosen):.1%}", wrong))
    print_table("Pairs with a match", ("scene", "pairs", "found within 1 px", "placed elsewhere"), rows)
    seconds = [r["seconds"] for r in records]
    print(f"\n{np.median(seconds):.2f} s of processor time per pair of {arguments.size}² in the median")
    return 0


if __name__ == "__main__":
    sys.exit(main())
