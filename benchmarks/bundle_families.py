"""Families of bundle adjustments with robust losses, in halves: steps of Levenberg–Marquardt beside those of Ceres.

    python benchmarks/bundle_families.py                 # the half on which nothing is chosen, some five minutes
    python benchmarks/bundle_families.py --half choose

Needs g++ and libceres-dev. A problem is a scene (cameras on a ring around points, along a street, above a field), its
size, how far its start is off, and its share of wrong observations; its half comes from a hash of these. Both minimise
½ Σ ρ(|e|²), e in pixels, ρ of scale 1, from the same start, with at most `STEPS` steps; what is counted is steps,
rejected ones too, to within 1e-3 of the better of the two costs in the end. Who does not get there counts as `STEPS`.
Steps depend neither on the processor nor on its load.
"""

import argparse
import hashlib
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from peers import ceres
from robust_steps import LOSSES, reached
from timing import print_table

import mslsq
from mslsq.datasets.bal import BundleAdjustment, write_bal

STEPS, CLOSE = 60, 1e-3
PIXEL = 0.5
"""Standard deviation of a right observation, in pixels."""
STARTS = {"near": 0.3, "usual": 1.0, "far": 3.0}
"""Times the start's standard deviations: 0.02 rad, 0.05 m and 1 % of focal length per camera, 0.1 m per point."""
WRONG = {"clean": 0.0, "some": 0.05, "many": 0.25}
"""Share of observations that are anywhere in the picture."""


def ring(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, what they look at, and points: around an object."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    position = np.stack([8 * np.cos(angle), 8 * np.sin(angle), random.normal(1, 0.3, count)], -1)
    return position, 0.3 * random.normal(size=(count, 3)), random.uniform(-2, 2, (20 * count, 3))


def street(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Along a road, looking ahead, between two walls."""
    x = 1.0 * np.arange(count)
    position = np.stack([x, 0.2 * np.sin(x), random.normal(1.5, 0.02, count)], -1)
    wall = np.where(random.random(20 * count) < 0.5, -5.0, 5.0) + random.normal(0, 0.5, 20 * count)
    points = np.stack([random.uniform(3, count + 15, 20 * count), wall, random.uniform(0, 6, 20 * count)], -1)
    return position, position + np.array([6.0, 0.0, 0.0]), points


def field(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a flight above hilly ground."""
    row, column = np.divmod(np.arange(count), 4)
    position = np.stack([4.0 * column, 4.0 * row, random.normal(12, 0.3, count)], -1)
    ground = random.uniform(-4, [18, count + 4], (20 * count, 2))
    height = np.sin(ground[:, :1] / 3) + np.cos(ground[:, 1:] / 4) + random.normal(0, 0.2, (20 * count, 1))
    below = np.concatenate([position[:, :2] + 0.5 * random.normal(size=(count, 2)), np.zeros((count, 1))], 1)
    return position, below, np.concatenate([ground, height], 1)


SCENES = {"ring": ring, "street": street, "field": field}


def names(half: str) -> list[str]:
    """Of a half, `choose` or `claim`."""
    every = map("-".join, itertools.product(SCENES, ("8", "20"), STARTS, WRONG))
    return [name for name in every if ("choose", "claim")[hashlib.sha256(name.encode()).digest()[0] % 2] == half]


def scene(name: str) -> BundleAdjustment:
    """The problem of a name: scene-cameras-start-wrong."""
    kind, size, start, wrong = name.split("-")
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
    position, target, points = SCENES[kind](int(size), random)
    rotation = looking(target - position)
    focal = random.normal(600, 5, len(position))
    # Snavely's cameras look along -z.
    seen = np.einsum("nij,mnj->mni", rotation, points[:, None] - position)
    pixels = -focal[:, None] * seen[..., :2] / seen[..., 2:]
    point, camera = np.nonzero(
        (seen[..., 2] < -1) & (np.abs(pixels) < 400).all(-1) & (random.random(seen.shape[:2]) < 0.7)
    )
    counts = np.bincount(point, minlength=len(points))
    kept = (counts >= 2)[point]
    point, camera = point[kept], camera[kept]
    of_use, point = np.unique(point, return_inverse=True)
    measured = pixels[of_use][point, camera] + PIXEL * random.normal(size=(len(point), 2))
    bad = random.random(len(point)) < WRONG[wrong]
    measured[bad] = random.uniform(-400, 400, (bad.sum(), 2))
    off = STARTS[start]
    turn = torch.from_numpy(rotation)
    vectors = mslsq.SO3.from_matrix(turn).log().numpy() + 0.02 * off * random.normal(size=(len(position), 3))
    moved = position + 0.05 * off * random.normal(size=position.shape)
    shift = -np.einsum("nij,nj->ni", mslsq.SO3.exp(torch.from_numpy(vectors)).matrix().numpy(), moved)
    lens = np.stack([focal * (1 + 0.01 * off * random.normal(size=len(focal))), 0 * focal, 0 * focal], -1)
    cameras = torch.from_numpy(np.concatenate([vectors, shift, lens], 1))
    at = torch.from_numpy(points[of_use] + 0.1 * off * random.normal(size=(len(of_use), 3)))
    return BundleAdjustment(
        name, cameras, at, torch.from_numpy(camera), torch.from_numpy(point), torch.from_numpy(measured)
    )


def looking(ahead: np.ndarray) -> np.ndarray:
    """Rotations from the world to cameras that look that way, (cameras, 3, 3)."""
    z = -ahead / np.linalg.norm(ahead, axis=-1, keepdims=True)
    up = np.where(np.abs(z[:, 2:]) > 0.9, [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]])
    x = np.cross(up, z)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return np.stack([x, np.cross(z, x), z], 1)


def compared(given: BundleAdjustment, loss: str, program: ceres.Ceres) -> tuple[int, int, float, float]:
    """Steps of ours and of Ceres' to the better cost, and both costs in the end."""
    problem, start = given.problem(loss=LOSSES[loss](1.0)), {"camera": given.cameras, "point": given.points}
    solver = mslsq.LevenbergMarquardt(max_steps=STEPS, ftol=0, gtol=0, xtol=0, native="never")
    cost = mslsq.solve(problem, start, solver=solver).history.cost.reshape(-1)
    ours = cost[~cost.isnan()].tolist()
    options = {"linear_solver": "DENSE_SCHUR", "ftol": 0, "steps": STEPS, "threads": 1}
    theirs = program.solve(**options, loss=loss, scale=1.0).costs
    target = min(ours[-1], theirs[-1]) * (1 + CLOSE)
    one, other = (reached(costs, target) for costs in (ours, theirs))
    return STEPS if one is None else one, STEPS if other is None else other, ours[-1], theirs[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--verbose", action="store_true", help="a line for every problem")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[int, int, float, float]]] = {loss: [] for loss in LOSSES}
    for name in names(arguments.half):
        given = scene(name)
        with tempfile.TemporaryDirectory() as folder:
            text = write_bal(Path(folder) / "scene.txt", given).read_text()
        with ceres.Ceres("ceres_bundle_adjustment", text) as program:
            for loss in LOSSES:
                found[loss].append(compared(given, loss, program))
                if arguments.verbose:
                    print(name, loss, *found[loss][-1], flush=True)
    header = ("loss", "problems", "mean", "median", "90 %", "worst", "higher costs", "lower")
    title = f"Bundle adjustments of the half {arguments.half!r}: steps divided by those of Ceres"
    print_table(title, header, [row(loss, all_of) for loss, all_of in found.items()])


def row(loss: str, found: Sequence[tuple[int, int, float, float]]) -> tuple:
    """Of one loss."""
    ratios = [max(ours, 1) / max(theirs, 1) for ours, theirs, *_ in found]
    higher = sum(ours > theirs * (1 + CLOSE) for *_, ours, theirs in found)
    lower = sum(theirs > ours * (1 + CLOSE) for *_, ours, theirs in found)
    deciles = statistics.quantiles(ratios, n=10)
    return loss, len(found), statistics.mean(ratios), statistics.median(ratios), deciles[-1], max(ratios), higher, lower


if __name__ == "__main__":
    main()
