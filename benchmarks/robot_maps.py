"""Drifting maps of buildings, recorded several times: how many pairs are placed right, beside a plain search by FFT.

    git clone https://github.com/saeedghsh/Halmstad-Robot-Maps
    python benchmarks/robot_maps.py Halmstad-Robot-Maps --half claim

Occupancy maps of two flats and two floors of offices, rotations up to 180°, with hand-annotated correspondences
(Gholami Shahbandi, Magnusson, 2017; GPL, hence not part of this repository). Even the best rigid fit leaves 5 to 20 px
of them, as the maps have drifted: a placement is right if their root mean square distance is below twice that floor, or
15 px. One flat and one floor are to choose on, the others to claim on. The peer takes the best of 120 rotations and all
shifts at an eighth of the size, by the correlation of the walls, and believes everything.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import scipy.ndimage
import scipy.stats
import torch
from timing import print_table

from mslsq.alignment import MapStatus, align
from mslsq.alignment.rasters import read_raster

HALVES = {"choose": ("HIH", "E5"), "claim": ("KPT4A", "F5")}
SHRINK = 8
ROTATIONS = 120
Array = np.ndarray


def correspondences(folder: Path, maps: dict[str, Array], names: tuple[str, str]) -> tuple[Array, Array] | None:
    """Annotated points of either map, (x, y) in pixels from the top left; the files count y from below.

    None where the annotation is a pickle (some are), which may run code.
    """
    try:
        pairs = np.load(folder / "annotations" / f"association_{names[0]}_{names[1]}.npy")
    except ValueError:
        return None
    found = []
    for name, indices in zip(names, pairs.T, strict=True):
        points = np.load(folder / "annotations" / f"keypoints_{name}.npy")[indices, :2]
        found.append(np.stack([points[:, 0], maps[name].shape[0] - 1 - points[:, 1]], 1))
    return found[0], found[1]


def rigid(a: Array, b: Array) -> Array:
    """The rotation and shift that take a to b best (Kabsch, 1976), as a matrix."""
    u, _, vt = np.linalg.svd((b - b.mean(0)).T @ (a - a.mean(0)))
    turn = u @ np.diag([1, np.linalg.det(u @ vt)]) @ vt
    return np.block([[turn, (b.mean(0) - turn @ a.mean(0))[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])


def rms(matrix: Array, a: Array, b: Array) -> float:
    return float(np.sqrt(np.mean(np.sum((a @ matrix[:2, :2].T + matrix[:2, 2] - b) ** 2, 1))))


def by_fft(one: Array, other: Array) -> Array:
    """The plain search: walls at an eighth of the size, every rotation, the highest correlation."""
    small = [
        scipy.ndimage.zoom(scipy.ndimage.gaussian_filter(1.0 - image, SHRINK / 2), 1 / SHRINK, order=1)
        for image in (one, other)
    ]
    fixed, moving = (np.asarray(image) - np.median(np.asarray(image)) for image in small)
    side = int(np.hypot(*moving.shape)) + max(fixed.shape)
    spectrum = np.fft.rfft2(fixed, (side, side)).conj()
    middle = (np.array(moving.shape) - 1) / 2
    best, found = -np.inf, np.eye(3)
    for k in range(ROTATIONS):
        turned = scipy.ndimage.rotate(moving, 360 * k / ROTATIONS, order=1)
        scores = np.fft.irfft2(spectrum * np.fft.rfft2(turned, (side, side)), (side, side))
        if scores.max() > best:
            best = scores.max()
            y, x = (n if n < side / 2 else n - side for n in np.unravel_index(scores.argmax(), scores.shape))
            c, s = np.cos(2 * np.pi * k / ROTATIONS), np.sin(2 * np.pi * k / ROTATIONS)
            # scipy.ndimage.rotate: pixel (row, column) of the turned map shows R (pixel - its middle) + middle.
            turn = np.array([[c, s], [-s, c]])
            shift = turn @ (np.array([y, x]) - (np.array(turned.shape) - 1) / 2) + middle
            flip = np.array([[0, 1], [1, 0]])
            found = np.block([[flip @ turn @ flip, (flip @ shift)[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])
    scale = np.diag([SHRINK, SHRINK, 1.0])
    return scale @ found @ np.linalg.inv(scale)


def maps_of(folder: Path, building: str, count: int) -> dict[str, Array]:
    """The first maps of a building, by name."""
    files = sorted((folder / "maps" / building / "pseudo_occupancy").glob(f"{building}_*.png"))
    return {file.stem: read_raster(file).luminance()[0].numpy() for file in files[:count]}


def without_match(arguments: argparse.Namespace) -> int:
    """Maps of different buildings: whatever is placed is false."""
    ones, others = (maps_of(arguments.folder, name, arguments.maps) for name in arguments.without_match)
    false = 0
    for one, other in itertools.product(ones, others):
        pair = [torch.from_numpy(ones[one]), torch.from_numpy(others[other])]
        result = align(pair, model=arguments.model, metric=arguments.metric)
        false += MapStatus(int(result.status[1])).ok
        if arguments.each:
            print(f"{one} on {other}: {result.reasons[1]}", flush=True)
    count = len(ones) * len(others)
    least = scipy.stats.beta.ppf(0.95, false + 1, count - false) if false < count else 1.0
    print(f"{false} of {count} pairs without a match are placed: the rate is below {least:.2%} (95 %)")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=tuple(HALVES), default="claim")
    parser.add_argument("--maps", type=int, default=5, help="how many of each building")
    parser.add_argument("--model", default="se2")
    parser.add_argument("--metric", default="occupancy", help="what mslsq compares: occupancy, squared, ...")
    parser.add_argument(
        "--without-match", metavar="BUILDING", nargs=2, help="all pairs of maps of two buildings instead"
    )
    parser.add_argument("--each", action="store_true", help="a line for every pair")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.without_match:
        return without_match(arguments)
    rows, totals = [], {}
    for building in HALVES[arguments.half]:
        maps = maps_of(arguments.folder, building, arguments.maps)
        for one, other in itertools.combinations(maps, 2):
            annotated = correspondences(arguments.folder, maps, (one, other))
            if annotated is None:
                continue
            a, b = annotated
            floor = rms(rigid(a, b), a, b)
            limit = max(2 * floor, 15.0)
            begin = time.process_time()
            plain = rms(by_fft(maps[one], maps[other]), a, b)
            between = time.process_time()
            pair = [torch.from_numpy(maps[name]) for name in (one, other)]
            result = align(pair, model=arguments.model, metric=arguments.metric)
            seconds = between - begin, time.process_time() - between
            status = MapStatus(int(result.status[1]))
            ours = rms(result.transforms[1].numpy(), a, b) if status.ok else float("inf")
            for name, right, believed, took in (
                ("FFT search", plain < limit, True, seconds[0]),
                ("mslsq", ours < limit, status.ok, seconds[1]),
            ):
                totals.setdefault((building, name), []).append((right, believed and not right, took))
            if arguments.each:
                figures = f"floor {floor:.0f}, FFT {plain:.0f}, mslsq {ours:.0f} px, lead {float(result.lead[1]):.2f}"
                print(f"{one} on {other}: {figures}; {result.reasons[1]}", flush=True)
    for (building, name), each in totals.items():
        right, wrong, took = (np.array(column) for column in zip(*each, strict=True))
        rows.append((building, name, len(each), int(right.sum()), int(wrong.sum()), f"{np.median(took):.2f}"))
    print_table("Pairs placed", ("building", "method", "pairs", "right", "wrong", "s"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
