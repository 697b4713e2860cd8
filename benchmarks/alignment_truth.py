"""Is a placement true? Pairs of maps with and without a match, of kinds that thresholds are chosen on and of others.

    python benchmarks/alignment_truth.py --half claim --false 3000 --true 500
    python benchmarks/alignment_truth.py --half choose --false 300 --true 300 --json chosen.json
    python benchmarks/alignment_truth.py --half choose --read chosen.json more.json     # tables of earlier runs

Thresholds (`mslsq.alignment.evidence`) are chosen on the kinds of the half "choose" alone; "claim" has kinds that were
not looked at. A placement of a pair without a match is false whatever it is; one of a pair with a match is right within
1 px (mean distance of the reference's corners). The bound is that of Clopper and Pearson, one-sided, 95 %.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from timing import print_table
from truth_kinds import FINISHED, SCENES, WITHOUT_MATCH
from truth_scenes import Pair, Random, Raster

from mslsq.alignment import MapStatus, align
from mslsq.alignment.measures import corner_error
from mslsq.alignment.synthetic import random_transform, warp_from_base

RIGHT = 1.0
"""Pixels, the mean distance of the reference's corners from where the truth puts them."""

NOISES = (0.01, 0.05, 0.2)
"""Of the noise of pairs with a match, as a share of the standard deviation of the scene."""


def with_match(half: str, kind: str, model: str, size: int, random: Random, shift: float = 0.15) -> tuple[Pair, Raster]:
    """A pair cut from one scene, both with noise or with areas that are exactly flat, and the truth between them."""
    scene, finish = SCENES[half][kind], FINISHED.get(kind)
    base = scene(min(size + 80, 340), random)
    noise = float(random.choice(NOISES)) * base.std()
    corner = tuple(int(n) for n in random.integers(0, base.shape[0] - size + 1, 2))
    transform = random_transform(model, size, random, shift=shift * size)
    reference = base[corner[1] : corner[1] + size, corner[0] : corner[0] + size]
    moving = random.uniform(0.7, 1.3) * warp_from_base(base, (corner[0], corner[1]), transform, (size, size))
    if finish is not None:
        return (finish(reference), finish(moving)), transform
    reference, moving = (image + noise * random.standard_normal(image.shape) for image in (reference, moving))
    return (reference, moving), transform


def outcome(task: tuple[str, str, str, str, int, int, str]) -> dict[str, Any]:
    """One pair aligned."""
    half, sort, kind, model, seed, size, metric = task
    torch.set_num_threads(1)
    random = np.random.default_rng([seed, sum(kind.encode())])
    truth = None
    if sort == "false":
        pair = WITHOUT_MATCH[half][kind](size, random)
    else:
        pair, truth = with_match(half, kind, model, size, random)
    begin = time.process_time()
    result = align([torch.from_numpy(np.ascontiguousarray(image)) for image in pair], model=model, metric=metric)
    seconds = time.process_time() - begin
    error = float("inf")
    if truth is not None and MapStatus(int(result.status[1])).ok:
        error = corner_error(result.transforms[1], torch.from_numpy(truth), *pair[0].shape)
    figures = {name: float(getattr(result, name)[1]) for name in ("ncc", "detail", "lead", "overlap", "corner_sigma")}
    status = MapStatus(int(result.status[1]))
    named = {"sort": sort, "kind": kind, "model": model, "seed": seed, "status": status.name, "believed": status.ok}
    named |= {"asked": metric, "size": size, "metric": result.metrics[1]}
    return named | figures | {"error": error, "seconds": seconds, "reason": result.reasons[1]}


def tasks(
    half: str, sort: str, count: int, size: int, first: int, metric: str, only: list[str] | None = None
) -> Iterator[tuple[str, str, str, str, int, int, str]]:
    kinds = [k for k in (WITHOUT_MATCH if sort == "false" else SCENES)[half] if only is None or k in only]
    models = ("sim2", "se2", "translation", "affine")
    for n in range(count):
        kind = kinds[n % len(kinds)]
        yield half, sort, kind, models[(n // len(kinds)) % len(models)], first + n, size, metric


def bound(false: int, count: int) -> float:
    """The rate of false placements is below this with a confidence of 95 %."""
    return float(scipy.stats.beta.ppf(0.95, false + 1, count - false)) if false < count else 1.0


def read(names: list[str]) -> Iterator[dict[str, Any]]:
    """What earlier runs wrote, record by record."""
    for name in names:
        with open(name, encoding="utf-8") as file:
            yield from map(json.loads, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--false", type=int, default=3000, help="pairs without a match")
    parser.add_argument("--true", type=int, default=500, help="pairs with one")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="+", help="of the half; all if left out")
    parser.add_argument("--metric", default="squared", help="squared, inverted, local, gradients or auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--json", help="also add every pair's result here, one a line; what it has already is not run again"
    )
    parser.add_argument("--read", nargs="+", help="no pairs: the tables of what earlier runs wrote")
    arguments = parser.parse_args()
    everything = [
        task
        for sort, count in (("false", arguments.false), ("true", arguments.true))
        for task in tasks(
            arguments.half, sort, count, arguments.size, arguments.first, arguments.metric, arguments.kinds
        )
    ]
    records = list(read(arguments.read)) if arguments.read else []
    if arguments.json and Path(arguments.json).exists() and not arguments.read:
        records = list(read([arguments.json]))
        done = {(r["sort"], r["kind"], r["model"], r["seed"], r["size"], r["asked"]) for r in records}
        everything = [task for task in everything if task[1:] not in done]
    if not arguments.read:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for record in pool.map(outcome, everything, chunksize=4):
                records.append(record)
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
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
