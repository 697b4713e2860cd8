"""A model too small for the truth: does the stated standard error hold, or does the result say that it does not fit?

    python benchmarks/small_models.py --half choose --count 200 --json chosen.json
    python benchmarks/small_models.py --half claim --count 600
    python benchmarks/small_models.py --half claim --count 40 --size 256 --times

The truth is of the next model (of a translation: a similarity): rotation ±2 to 20°, scale 0.9 to 1.1, shear ±0.05,
perspective ±5 %. A stated error is too small if the corners are off by more than `TOO_FAR` of it (root mean square of
the four) and nothing is said of the model. "nested" are pairs of the model that is asked for: there nothing is to be
said, and nothing lost. Rasters and kinds of the half "claim" were not looked at. With `--times` the model that fits is
asked of the same maps, too: processor time of one thread, the least of three calls of each in turns.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np
import scipy.ndimage
import torch
import truth_second
from peers.turns import Stopwatch
from timing import print_machine, print_table
from truth_scenes import cells, grains, night, normalised, raster_of, stars

from mslsq.alignment import MapStatus, align
from mslsq.alignment.measures import corners, project
from mslsq.alignment.misfit import SAYS
from mslsq.alignment.synthetic import random_transform, warp_from_base

TRUTH = {"translation": "sim2", "se2": "sim2", "sim2": "affine", "affine": "homography"}
"""Of the model that is asked for."""

SCENES: dict[str, tuple[str, ...]] = {
    "choose": ("camera", "grass", "moon", "hubble", "elevation", "stars", "grains"),
    "claim": ("astronaut", "brick", "gravel", "retina", "coffee", "cells", "night", "villa", "cloth", "fields"),
}
DRAWN = {
    "stars": stars,
    "night": night,
    "cells": cells,
    "grains": lambda size, random: grains(size, 1.5, random),
    "cloth": truth_second.cloth,
    "fields": truth_second.fields,
}

TOO_FAR = 3.0
"""Stated errors."""


def scene(name: str, size: int, random: np.random.Generator) -> np.ndarray:
    if name in DRAWN:
        field = DRAWN[name](2 * size, random)
    else:
        field = truth_second.villa() if name == "villa" else raster_of(name)
    return normalised(scipy.ndimage.gaussian_filter(field, 0.8))


def warp(model: str, size: int, random: np.random.Generator) -> np.ndarray:
    """Of `model`, about the middle; turned by 2 to 20 degrees either way, where it turns at all."""
    turned = random.uniform(2, 20) * random.choice([-1, 1])
    transform = random_transform(model, size, random, shift=20 * size / 256, degrees=0.0)
    if model == "translation":
        return transform
    c, s, middle = np.cos(np.deg2rad(turned)), np.sin(np.deg2rad(turned)), (size - 1) / 2
    about = np.array([[c, -s, middle - c * middle + s * middle], [s, c, middle - s * middle - c * middle], [0, 0, 1]])
    return transform @ about


REPEATS = 3


def of_its_time(maps: list[torch.Tensor], asked: str, true: str) -> float:
    """The time of the model that is asked for, as a multiple of that of the one that fits."""
    least = dict.fromkeys((asked, true), float("inf"))
    for _ in range(REPEATS):
        for model in least:
            watch = Stopwatch()
            align(maps, model=model)
            least[model] = min(least[model], watch.cpu)
    return least[asked] / least[true]


def outcome(name: str, asked: str, true: str, size: int, noise: float, seed: int, timed: bool) -> dict[str, Any]:
    random = np.random.default_rng([seed, sum(name.encode()), len(asked), len(true)])
    base = scene(name, size, random)
    size = min(size, *(side - 8 for side in base.shape))
    x, y = (int(random.integers(0, side - size + 1)) for side in base.shape[::-1])
    transform = warp(true, size, random)
    moving = warp_from_base(base, (x, y), transform, (size, size))
    maps = [base[y : y + size, x : x + size], random.uniform(0.7, 1.3) * moving]
    maps = [torch.from_numpy(raster + noise * random.standard_normal(raster.shape)) for raster in maps]
    result = align(maps, model=asked)
    at = corners(size, size, maps[0])
    off = project(result.transforms[1], at) - project(torch.from_numpy(transform), at)
    error = float(off.square().sum(-1).mean().sqrt())
    stated, status = float(result.corner_sigma[1]), MapStatus(int(result.status[1]))
    said = SAYS in result.reasons[1]
    named = {"scene": name, "asked": asked, "true": true, "size": size, "noise": noise, "seed": seed}
    named |= {"status": status.name, "believed": status.ok, "error": error, "stated": stated, "said": said}
    named["of its time"] = of_its_time(maps, asked, true) if timed and asked != true else float("nan")
    return named | {"reason": result.reasons[1], "small": status.ok and not said and error > TOO_FAR * stated}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=tuple(SCENES), default="claim")
    parser.add_argument("--count", type=int, default=600, help="pairs whose model is too small, and as many nested")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--times", action="store_true", help="also beside the time of the model that fits")
    parser.add_argument("--json", help="also write every pair's result here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(("torch", "numpy", "scipy"))
    names, records = SCENES[arguments.half], []
    for n in range(arguments.count):
        asked = tuple(TRUTH)[n % 4]
        name = names[(n // 4) % len(names)]
        noise = (0.01, 0.05)[(n // (4 * len(names))) % 2]
        for true in (TRUTH[asked], asked):
            records.append(outcome(name, asked, true, arguments.size, noise, arguments.first + n, arguments.times))
            print(*records[-1].values(), sep=" | ", file=sys.stderr, flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=0)
    rows = []
    for asked, true in [*TRUTH.items(), *((model, model) for model in TRUTH)]:
        chosen = [r for r in records if (r["asked"], r["true"]) == (asked, true)]
        believed = [r for r in chosen if r["believed"]]
        if chosen:
            said, small = (sum(r[key] for r in believed) for key in ("said", "small"))
            times = [r["of its time"] for r in chosen if arguments.times and asked != true]
            of_its_time = (f"{np.median(times):.2f}", f"{np.quantile(times, 0.9):.2f}") if times else ("", "")
            kind = "nested" if asked == true else true
            rows.append(
                (asked, kind, len(chosen), len(believed), said, small, *of_its_time)[: 8 if arguments.times else 6]
            )
    named = (
        "asked",
        "truth",
        "pairs",
        "believed",
        "said not to fit",
        "error too small",
        "of the right model's time",
        "90 %",
    )
    print_table("Models", named[: 8 if arguments.times else 6], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
