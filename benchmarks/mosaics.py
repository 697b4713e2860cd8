"""Many maps of one scene: placed together, and one after the other (`joint=False`), in one run.

    python benchmarks/mosaics.py rings --half claim             # rings of 6 and 12: who is placed, how well
    python benchmarks/mosaics.py errors --half claim --runs 50  # do standard errors hold? NEES per dimension
    python benchmarks/mosaics.py gammas --half claim --runs 14  # rings of 6 whose maps each have a gamma of their own
    python benchmarks/mosaics.py grid --size 512                # twenty maps: processor time and memory
    python benchmarks/mosaics.py added --size 256               # the twentieth map, added to the others

What was chosen, was chosen on the scenes of the half "choose"; "claim" has scenes that were not looked at. A map is
wrong if it is called aligned and its corners are off by more than a pixel in the mean. The error of a mosaic is the
root mean square over the maps that both ways place. NEES is eᵀ Σ⁻¹ e over the dimension of the warp: 1 in the mean if
standard errors hold.
"""

import argparse
import itertools
import resource
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.ndimage
import torch
import truth_second
from jaxtyping import Float
from timing import print_machine, print_table
from truth_scenes import cells, grains, night, normalised, raster_of, stars

from mslsq.alignment import Alignment, align
from mslsq.alignment.measures import corner_error
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.mosaics import Mosaic, cut, ring

SCENES = {
    "choose": (
        "camera", "grass", "moon", "hubble", "elevation", "brick", "stars",
        "astronaut", "gravel", "retina", "coffee", "night", "cells", "grains",
    ),
    "claim": ("villa", "cloth", "cracks", "shells", "waves", "fields", "clusters"),
}  # fmt: skip
DRAWN = {
    "stars": stars,
    "night": night,
    "cells": cells,
    "grains": lambda size, random: grains(size, 1.5, random),
    "cloth": truth_second.cloth,
    "cracks": truth_second.cracks,
    "shells": truth_second.shells,
    "waves": truth_second.waves,
    "fields": truth_second.fields,
    "clusters": truth_second.cluster,
}

WRONG = 1.0
"""Pixels."""

NEIGHBOURS = {6: 0.62, 12: 1.2}
"""Radius of a ring in sides of its maps: neighbours share 35 to 40 %."""


def scene(name: str, seed: int) -> np.ndarray:
    if name == "villa":
        return normalised(truth_second.villa())
    if name not in DRAWN:
        return raster_of(name)
    field = DRAWN[name](512, np.random.default_rng(seed))
    return normalised(scipy.ndimage.gaussian_filter(field, 0.8))


def ring_of(name: str, count: int, seed: int, largest: int, **options: Any) -> Mosaic:
    """A ring as large as the scene allows, of maps up to `largest`² pixels."""
    base = scene(name, seed)
    height, width = base.shape
    size = min(largest, int((min(height, width) - 8) / (2 * NEIGHBOURS[count] + 1)))
    reach = NEIGHBOURS[count] * size + size / 2 + 4
    random = np.random.default_rng(seed)
    middle = [random.uniform(reach, side - reach) if side > 2 * reach else side / 2 for side in (width, height)]
    return cut(base, ring(count, NEIGHBOURS[count] * size, (middle[0], middle[1])), size, seed, **options)


def errors(transforms: Float[torch.Tensor, "maps 3 3"], mosaic: Mosaic) -> np.ndarray:
    """Of every map but the first at its own corners; NaN for those left out."""
    eye, found = torch.eye(3, dtype=torch.float64), []
    for transform, true, raster in zip(transforms[1:], mosaic.transforms[1:], mosaic.maps[1:], strict=True):
        apart = transform @ torch.linalg.inv(true)
        found.append(corner_error(apart, eye, *raster.shape) if bool(apart.isfinite().all()) else np.nan)
    return np.array(found)


def chain(mosaic: Mosaic, model: str) -> Float[torch.Tensor, "maps 3 3"]:
    """Every map on the one before it; NaN from the first that is left out."""
    transforms = [torch.eye(3, dtype=torch.float64)]
    for pair in itertools.pairwise(mosaic.maps):
        transforms.append(align(list(pair), model=model).transforms[1] @ transforms[-1])
    return torch.stack(transforms)


def nees(result: Alignment, mosaic: Mosaic, model: str) -> list[float]:
    """Of every placed map but the first."""
    height, width = mosaic.maps[0].shape
    kind, frame = MODELS[model], Frame(height, width, mosaic.transforms)
    out = []
    for i in result.aligned[1:]:
        found, true = (kind.from_matrix(frame.from_pixels(t[i])) for t in (result.transforms, mosaic.transforms))
        off = found.local(true)
        out.append(float(off @ torch.linalg.inv(result.covariance[i]) @ off) / len(off))
    return out


def timed(mosaic: Mosaic, model: str, joint: bool) -> tuple[Alignment, float]:
    begin = time.process_time()
    result = align(mosaic.maps, model=model, joint=joint)
    return result, time.process_time() - begin


def rings(arguments: argparse.Namespace) -> None:
    """The ratios are over the maps that both ways place within `WRONG`."""
    rows, ratios = [], {other: [] for other in arguments.beside}
    for name in arguments.scenes or SCENES[arguments.half]:
        for count in arguments.counts:
            mosaic = ring_of(name, count, arguments.first, arguments.size, noise=arguments.noise)
            row, off = [name, count, len(mosaic.maps[0])], {}
            if "chain" in ratios:
                off["chain"] = errors(chain(mosaic, arguments.model), mosaic)
            for way in ("tree", "joint") if "tree" in ratios else ("joint",):
                result, seconds = timed(mosaic, arguments.model, way == "joint")
                off[way] = errors(result.transforms, mosaic)
                row += [f"{len(result.aligned)} / {count}", int((off[way] > WRONG).sum()), f"{seconds:.1f}"]
            for other, known in ratios.items():
                both = (off[other] <= WRONG) & (off["joint"] <= WRONG)
                rms = [np.sqrt(np.mean(off[way][both] ** 2)) if both.any() else np.nan for way in (other, "joint")]
                known.append(rms[1] / rms[0])
                row += [int(both.sum()), f"{rms[0]:.4f}", f"{rms[1]:.4f}", f"{known[-1]:.2f}"]
            rows.append(row)
            print(*row, flush=True)
    heads = ["scene", "maps", "side"]
    for way in ("tree", "joint") if "tree" in ratios else ("joint",):
        heads += [f"{way}: placed", "wrong", "s"]
    for other in ratios:
        heads += ["both", f"{other} px", "joint px", "ratio"]
    print_table("Rings", heads, rows)
    for other, known in ratios.items():
        finite = np.array(known)[np.isfinite(known)]
        print(f"\nto the {other}: median {np.median(finite):.2f}, largest {max(finite):.2f}, over {len(finite)} rings")


def standard_errors(arguments: argparse.Namespace) -> None:
    rows = []
    names = arguments.scenes or SCENES[arguments.half]
    for label, options in (
        ("noise 1 %", {"noise": 0.01}), ("noise 5 %", {"noise": 0.05}), ("noise 10 %", {"noise": 0.1}),
        ("noise 20 %", {"noise": 0.2}), ("tilt 10 %", {"tilt": 0.1}), ("drift 0.2 px", {"drift": 0.2}),
    ):  # fmt: skip
        if arguments.only and label not in arguments.only:
            continue
        found, placed, rms = [], 0, []
        for run in range(arguments.runs):
            name = names[run % len(names)]
            mosaic = ring_of(name, 6, arguments.first + run, arguments.size, model=arguments.model, **options)
            result, _ = timed(mosaic, arguments.model, joint=True)
            placed += len(result.aligned) - 1
            off = errors(result.transforms, mosaic)
            if np.isfinite(off).any():
                rms.append(np.sqrt(np.nanmean(off**2)))
                found.append(np.mean(nees(result, mosaic, arguments.model)))
        share = placed / (5 * arguments.runs)
        figures = (f"{np.mean(found):.2f}", f"{np.median(found):.2f}", f"{np.median(rms):.4f}") if found else ("",) * 3
        rows.append((label, arguments.runs, f"{share:.0%}", *figures))
        print(*rows[-1], flush=True)
    print_table("NEES per dimension", ("mosaics", "number", "placed", "mean", "median", "px (median)"), rows)


def root_and_most(off: np.ndarray) -> tuple[float, float]:
    """Root mean square and largest of those that are known."""
    known = off[np.isfinite(off)]
    return (float(np.sqrt(np.mean(known**2))), float(known.max())) if len(known) else (np.nan, np.nan)


def gammas(arguments: argparse.Namespace) -> None:
    """Every map but the first to a power of exp(-0.5) to exp(0.5) of its values in [0, 1], noise added after that."""
    rows = []
    names = arguments.scenes or SCENES[arguments.half]
    for run in range(arguments.runs):
        seed = arguments.first + run
        mosaic = ring_of(names[run % len(names)], 6, seed, arguments.size, model=arguments.model, noise=0.0)
        random, maps = np.random.default_rng(seed), []
        for index, one in enumerate(mosaic.maps):
            values = ((one - one.min()) / (one.max() - one.min())).numpy()
            power = np.exp(random.uniform(-0.5, 0.5)) if index else 1.0
            maps.append(torch.from_numpy(values**power + arguments.noise * random.standard_normal(values.shape)))
        bent = replace(mosaic, maps=maps)
        row = [names[run % len(names)], seed]
        for together in (False, True):
            result, seconds = timed(bent, arguments.model, together)
            off = errors(result.transforms, bent)
            ratio = off / result.corner_sigma[1:].numpy()
            row += [f"{len(result.aligned) - 1} / 5", *root_and_most(off), *root_and_most(ratio), seconds]
        rows.append(row)
        print(*(f"{each:.4f}" if isinstance(each, float) else each for each in row), flush=True)
    heads = ["scene", "seed"]
    for way in ("tree", "joint"):
        heads += [f"{way}: placed", "px rms", "px most", "px / ± rms", "px / ± most", "s"]
    print_table("Rings of six under gammas", heads, rows)
    tree, joint = (np.array([row[place] for row in rows]) for place in (3, 9))
    print(f"\njoint to the tree: median {np.nanmedian(joint / tree):.2f}, largest {np.nanmax(joint / tree):.2f}")


def twenty(size: int, noise: float) -> Mosaic:
    """Five by four maps of a mosaic of rasters."""
    step = int(0.6 * size)
    parts = [scene(name, 0)[:400, :512] for name in ("camera", "astronaut", "gravel", "moon", "grass")]
    parts += [part[:, ::-1] for part in parts]  # no rotation takes one to the other
    hubble = scene("hubble", 0)
    parts += [scene("coffee", 0)[:400, :512], hubble[:400, :512], hubble[400:800, :512], hubble[:400, 488:1000]]
    parts += [scene("retina", 0)[:400, :512], hubble[400:800, 488:1000]]
    tiles = np.concatenate([np.concatenate(parts[k::4], 1) for k in range(4)], 0)
    middles = [(size / 2 + 8 + step * x, size / 2 + 8 + step * y) for y in range(4) for x in range(5)]
    return cut(tiles, middles, size, 0, noise=noise)


def grid(arguments: argparse.Namespace) -> None:
    mosaic = twenty(arguments.size, arguments.noise)
    result, seconds = timed(mosaic, arguments.model, joint=True)
    off = errors(result.transforms, mosaic)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = (arguments.size, f"{len(result.aligned)} / 20", int((off > WRONG).sum()))
    heads = ("side", "placed", "wrong", "px", "processor s", "GB at most")
    values = f"{np.sqrt(np.nanmean(off**2)):.4f}", f"{seconds:.1f}", f"{memory:.2f}"
    print_table("Twenty maps", heads, [(*figures, *values)])


def added(arguments: argparse.Namespace) -> None:
    """What was placed must stay, to the bit."""
    mosaic = twenty(arguments.size, arguments.noise)
    whole, of_all = timed(mosaic, arguments.model, joint=True)
    first = align(mosaic.maps[:-1], model=arguments.model)
    begin = time.process_time()
    more = align(mosaic.maps, model=arguments.model, previous=first)
    seconds = time.process_time() - begin
    stays = bool(torch.equal(more.transforms[:-1].nan_to_num(), first.transforms.nan_to_num()))
    off = [errors(result.transforms, mosaic)[-1] for result in (whole, more)]
    sigma = [float(result.corner_sigma[-1]) for result in (whole, more)]
    rows = [
        ("all together", f"{of_all:.1f}", f"{off[0]:.4f}", f"{sigma[0]:.4f}", ""),
        ("added", f"{seconds:.1f}", f"{off[1]:.4f}", f"{sigma[1]:.4f}", "yes" if stays else "NO"),
    ]
    print_table("The twentieth map", ("how", "processor s", "px", "stated px", "the others stay"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rings", "errors", "gammas", "grid", "added"))
    parser.add_argument("--half", choices=tuple(SCENES), default="claim")
    parser.add_argument("--scenes", nargs="*")
    parser.add_argument("--model", default="sim2", choices=tuple(MODELS))
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=160, help="of the maps, at most")
    parser.add_argument("--counts", nargs="*", type=int, choices=tuple(NEIGHBOURS), default=tuple(NEIGHBOURS))
    parser.add_argument("--beside", nargs="*", choices=("tree", "chain"), default=("tree", "chain"))
    parser.add_argument("--only", nargs="*", help='errors: some of "noise 1 %%", "tilt 10 %%" and so on')
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(("torch", "numpy", "scipy"))
    ways = {"rings": rings, "errors": standard_errors, "gammas": gammas, "grid": grid, "added": added}
    ways[arguments.what](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
