"""How well can the maps of a ring be placed at all? The Cramér-Rao bound, and draws of noise beside it.

    python benchmarks/mosaic_bounds.py --scenes moon --counts 12 --draws 5 --first 7000 --size 112
    python benchmarks/mosaic_bounds.py --scenes waves --counts 12 --chained 3 --first 7000 --size 112

The bound is that of all warps, gains and biases together, every map but the first free: two maps see a common pixel
with independent white noise, and the scene between samples is known. Draws have one geometry, that of `mosaics.py
rings`, and noise of their own: how far the joint alignment and the chain are off, each over the maps that it places.

How often is the chain nearer in one draw, if nothing is wrong? Where the joint estimate is the best that there is, what
the chain is off by more is independent of what the joint one is off by, with the difference of their covariances (Gauss
and Markov; Hausman, 1978). `RATIOS` such draws give the ratio of their errors over the first maps.
"""

import argparse
import itertools
import sys
from dataclasses import replace

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float
from mosaics import NEIGHBOURS, SCENES, chain, errors, nees, ring_of
from timing import print_machine, print_table

from mslsq.alignment import align
from mslsq.alignment.mosaics import Mosaic

MODEL = "sim2"
UNKNOWNS = 6
"""Of a map: shift in x and y, rotation and log scale (in pixels at half of its side), log gain, bias."""

STEP = 0.05
"""Pixels, of the central differences."""

FEWEST = 50
"""Common pixels of two maps that are counted."""

RATIOS = 20_000
"""Draws by covariances alone."""


def similarity(parameters: Float[np.ndarray, "4"], side: int) -> Float[np.ndarray, "3 3"]:
    """A small one about the middle of a map, in its pixels."""
    centre, half = (side - 1) / 2, side / 2
    angle, scale = parameters[2] / half, np.exp(parameters[3] / half)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.full(2, centre)
    return np.block([[turn, (middle - turn @ middle + parameters[:2])[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])


def information(
    mosaic: Mosaic, noise: float
) -> tuple[Float[np.ndarray, "maps_unknowns maps_unknowns"], Float[np.ndarray, "maps_unknowns maps_unknowns"]]:
    """Of all maps' unknowns, from the pixels that two maps have in common: of all pairs, and of every map with the one
    before it alone. The mosaic is without noise."""
    count, side = len(mosaic.maps), len(mosaic.maps[0])
    values = [
        (raster * gain + bias).numpy() for raster, gain, bias in zip(mosaic.maps, mosaic.gain, mosaic.bias, strict=True)
    ]
    splines = [scipy.ndimage.spline_filter(one, 5) for one in values]
    warps = mosaic.transforms.numpy()
    y, x = np.mgrid[:side, :side].reshape(2, -1)
    pixels = np.stack([x, y, np.ones(x.size)])
    whole, of_chain = np.zeros((2, count * UNKNOWNS, count * UNKNOWNS))

    def seen(of: int, warp: Float[np.ndarray, "3 3"], at: Float[np.ndarray, "3 n"]) -> Float[np.ndarray, " n"]:
        there = warp @ at
        return scipy.ndimage.map_coordinates(splines[of], there[1::-1] / there[2], order=5, prefilter=False)

    for i, j in itertools.combinations(range(count), 2):
        there = warps[j] @ np.linalg.inv(warps[i]) @ pixels
        inside = (np.abs(there[:2] / there[2] - (side - 1) / 2) <= (side - 1) / 2 - 2).all(0)
        if inside.sum() < FEWEST:
            continue
        common, columns = pixels[:, inside], []
        for moved, sign in ((i, -1.0), (j, 1.0)):
            for unknown in range(4):
                ends = []
                for step in (STEP, -STEP):
                    change = similarity(step * np.eye(4)[unknown], side)
                    one, other = (change @ warps[k] if k == moved else warps[k] for k in (i, j))
                    ends.append(seen(j, other @ np.linalg.inv(one), common))
                columns.append((ends[0] - ends[1]) / (2 * STEP))
            own = values[i].ravel()[inside] if moved == i else seen(j, warps[j] @ np.linalg.inv(warps[i]), common)
            columns += [sign * own, np.full(len(own), sign)]
        jacobian = np.stack(columns, 1)
        both = np.r_[i * UNKNOWNS : (i + 1) * UNKNOWNS, j * UNKNOWNS : (j + 1) * UNKNOWNS]
        of_pair = jacobian.T @ jacobian / (2 * noise**2)
        whole[np.ix_(both, both)] += of_pair
        if j == i + 1:
            of_chain[np.ix_(both, both)] += of_pair
    return whole, of_chain


def of_corners(maps: int) -> Float[np.ndarray, "maps_8 maps_unknowns"]:
    """What moves the four corners (±1, ±1) of half sides: shift, and rotation and scale times (∓y, x) and (x, y)."""
    corners = [[[1, 0, -v, u, 0, 0], [0, 1, u, v, 0, 0]] for u, v in itertools.product((-1.0, 1.0), repeat=2)]
    return np.kron(np.eye(maps), np.concatenate(corners))


def bound(covariance: Float[np.ndarray, "free_unknowns free_unknowns"]) -> Float[np.ndarray, " free"]:
    """Root mean square of the corners' errors in pixels, of every map but the first."""
    move = of_corners(len(covariance) // UNKNOWNS)
    return np.sqrt(np.diag(move @ covariance @ move.T).reshape(-1, 8).sum(-1) / 4)


def ratios_by_chance(
    best: Float[np.ndarray, "free_unknowns free_unknowns"],
    other: Float[np.ndarray, "free_unknowns free_unknowns"],
    maps: int,
) -> Float[np.ndarray, " draws"]:
    """The error of the best estimate over that of another one of the first maps, draw by draw, by their covariances."""
    random, move = np.random.default_rng(0), of_corners(maps)
    off = []
    for covariance in (best, other - best):
        values, vectors = np.linalg.eigh(move @ covariance[: maps * UNKNOWNS, : maps * UNKNOWNS] @ move.T)
        off.append((vectors * np.sqrt(np.maximum(values, 0))) @ random.standard_normal((len(values), RATIOS)))
    return np.linalg.norm(off[0], axis=0) / np.linalg.norm(off[0] + off[1], axis=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", nargs="*", default=SCENES["choose"])
    parser.add_argument("--counts", nargs="*", type=int, choices=tuple(NEIGHBOURS), default=tuple(NEIGHBOURS))
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=160, help="of the maps, at most")
    parser.add_argument("--first", type=int, default=0, help="the seed of the geometry")
    parser.add_argument("--draws", type=int, default=0, help="of noise")
    parser.add_argument("--chained", type=int, help="the maps that the chain places after the first: all if left out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(("torch", "numpy", "scipy"))
    rows = []
    for name, count in itertools.product(arguments.scenes, arguments.counts):
        clean = ring_of(name, count, arguments.first, arguments.size, noise=0.0)
        covariances = [np.linalg.inv(one[UNKNOWNS:, UNKNOWNS:]) for one in information(clean, arguments.noise)]
        least = bound(covariances[0])
        by_chance = ratios_by_chance(covariances[0], covariances[1], min(arguments.chained or count, count - 1))
        joint, chained, dimension, ratios = [], [], [], []
        for draw in range(arguments.draws):
            random = np.random.default_rng([arguments.first, draw])
            maps = [
                raster + torch.from_numpy(arguments.noise / float(gain) * random.standard_normal(raster.shape))
                for raster, gain in zip(clean.maps, clean.gain, strict=True)
            ]
            mosaic = replace(clean, maps=maps)
            result = align(maps, model=MODEL)
            joint.append(errors(result.transforms, mosaic))
            chained.append(errors(chain(mosaic, MODEL), mosaic))
            both = np.isfinite(joint[-1]) & np.isfinite(chained[-1])
            if both.any():
                ratios.append(np.sqrt(np.mean(joint[-1][both] ** 2) / np.mean(chained[-1][both] ** 2)))
            dimension += nees(result, mosaic, MODEL)
        row = [name, count, f"{np.sqrt(np.mean(least**2)):.3f}", f"{least.max():.2f}"]
        row += [f"{np.median(by_chance):.2f}, {np.quantile(by_chance, 0.95):.2f}", f"{np.mean(by_chance > 1):.1%}"]
        if joint:
            row += [f"{np.sqrt(np.nanmean(np.square(each))):.3f}" for each in (joint, chained)]
            row += [" ".join(f"{ratio:.2f}" for ratio in sorted(ratios)), f"{np.mean(dimension):.2f}"]
        rows.append(row)
        print(*row, flush=True)
    heads = ["scene", "maps", "bound px", "of the worst map", "ratio by chance: median, 95 %", "above 1"]
    heads += ["joint px", "chain px", "ratios, the same maps", "NEES"] if arguments.draws else []
    print_table("Rings", heads, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
