"""What an alignment costs beside OpenCV's best recipe (`peers/opencv_alignment.py`), in one run, and how accurate both
are beside the Cramér-Rao bound.

    python benchmarks/alignment_time.py                      # 256²: fifty pairs that nothing was chosen on
    python benchmarks/alignment_time.py --size 2048 --pairs 1
    MSLSQ_TARGET=avx2 python benchmarks/alignment_time.py

Processor time, one thread, turns taken; the first call apart. A step is one linearization with its normal equations,
beside one cubic `cv2.remap` of the map in float32. Needs opencv-python-headless (5.0).
"""

import argparse
import os
import sys

from peers.turns import Stopwatch, limit_threads

limit_threads(1)

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import scipy.ndimage  # noqa: E402
import torch  # noqa: E402
from peers import opencv_alignment  # noqa: E402

from mslsq.alignment import align, synthetic  # noqa: E402
from mslsq.alignment.descent import step_matrix  # noqa: E402
from mslsq.alignment.measures import corner_error, project  # noqa: E402
from mslsq.alignment.models import MODELS, Frame  # noqa: E402
from mslsq.alignment.pair_level import PairLevel  # noqa: E402
from mslsq.alignment.passes import normal_equations  # noqa: E402
from mslsq.alignment.pyramid import build, depth  # noqa: E402
from mslsq.kernels import target  # noqa: E402

HELD_OUT = 20
"""The draws of `synthetic.benchmark_pairs` below this one were looked at when things were chosen."""

NOISE = 0.01


def mosaic(side: int, tile: int = 400) -> np.ndarray:
    """Crops of the bundled rasters, one beside the other: none of them is large enough."""
    random = np.random.default_rng(0)
    names = [name for name in synthetic.NAMES if name != "elevation"]
    count = -(-side // tile)
    out = np.empty((count * tile, count * tile))
    for row in range(count):
        for column in range(count):
            base = synthetic.base_raster(names[random.integers(len(names))])
            y, x = (random.integers(0, size - tile + 1) for size in base.shape)
            out[row * tile :, column * tile :][:tile, :tile] = base[y : y + tile, x : x + tile]
    return out


class Scene:
    """A reference and a map with and without noise, and the truth."""

    def __init__(self, model: str, draw: int, size: int):
        seed = 1000 * synthetic.MODELS.index(model) + draw
        if size <= 512:
            name = synthetic.NAMES[draw % len(synthetic.NAMES)]
            noisy, clean = (synthetic.make_pair(name, model, seed, size, noise) for noise in (NOISE, 0.0))
            self.reference, self.moving = noisy.reference.numpy(), noisy.moving.numpy()
            self.clean, self.truth, gain = clean.reference, noisy.transform, noisy.gain
        else:
            random = np.random.default_rng(seed)
            margin = size // 16
            base = scipy.ndimage.gaussian_filter(mosaic(size + 2 * margin), synthetic.BASE_SIGMA)
            truth = synthetic.random_transform(model, size, random, shift=0.6 * margin, degrees=2.0)
            gain, bias = random.uniform(0.7, 1.3), random.uniform(-0.15, 0.15)
            clean = base[margin : margin + size, margin : margin + size].copy()
            moving = gain * synthetic.warp_from_base(base, (margin, margin), truth, (size, size)) + bias
            self.reference, self.moving = (one + NOISE * random.standard_normal(one.shape) for one in (clean, moving))
            self.clean, self.truth, gain = torch.from_numpy(clean), torch.from_numpy(truth), 1 / gain
        self.sigma = NOISE * (1 + gain**2) ** 0.5  # of the difference, in the reference's values

    def bound(self, model: str) -> float:
        """Root mean square error of the corners at the Cramér-Rao bound, gain and bias unknown, pixels.

        Σ = σ²(JᵀJ)⁻¹ with the gradient of the reference without noise at its own pixels, those that the map shows.
        """
        height, width = self.clean.shape
        known = torch.ones(height, width, dtype=torch.bool)
        frame = Frame(height, width, self.clean)
        clean = build(self.clean[None], known, 1, 0.0)[0]
        level = PairLevel.of(clean, clean, frame, 0, most=height * width)
        common = PairLevel.look(level, frame.from_pixels(self.truth))[1]
        kind = MODELS[model]
        tangent = kind.tangent_dim
        matrix = normal_equations(level, np.eye(3), np.zeros(2), np.ones(2), common, tangent).matrix
        covariance = self.sigma**2 * np.linalg.inv(matrix)[:tangent, :tangent]
        corners = (frame.centre / frame.half) * torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]).double()
        step, total = 1e-6, 0.0
        for corner in corners:
            columns = [
                (project(torch.from_numpy(step_matrix(kind, step * unit)), corner[None])[0] - corner).numpy() / step
                for unit in np.eye(tangent)
            ]
            derivative = np.stack(columns, -1)
            total += float(np.trace(derivative @ covariance @ derivative.T)) / 4
        return total**0.5 * frame.half


def in_turns(scene: Scene, model: str, levels: int, repeats: int) -> list[tuple[torch.Tensor, float]]:
    """The matrix found by each of the two and its median time in processor milliseconds, after one turn to warm up."""
    both = scene.reference, scene.moving
    contestants = [
        lambda: align(both, model=model).transforms[1],
        lambda: torch.from_numpy(opencv_alignment.align(*both, model, levels)),
    ]
    taken: list[list[float]] = [[], []]
    found = [contestant() for contestant in contestants]
    for _ in range(repeats):
        for contestant, times in zip(contestants, taken, strict=True):
            watch = Stopwatch()
            contestant()
            times.append(watch.cpu)
    return [(matrix, float(np.median(times))) for matrix, times in zip(found, taken, strict=True)]


def step_and_remap(size: int, repeats: int) -> tuple[dict[str, float], float]:
    """One linearization of every model and loss, and one cubic `cv2.remap` in float32; in turns."""
    taken: dict[str, list[float]] = {}
    remaps = []
    for model in synthetic.MODELS:
        scene = Scene(model, HELD_OUT, size)
        height, width = scene.reference.shape
        known = torch.ones(height, width, dtype=torch.bool)
        frame = Frame(height, width, scene.clean)
        pyramids = [build(torch.from_numpy(one)[None], known, 1)[0] for one in (scene.reference, scene.moving)]
        level = PairLevel.of(pyramids[0], pyramids[1], frame, 0, most=height * width)
        warp = frame.from_pixels(scene.truth)
        valid = level.look(warp)[1]
        where = project(scene.truth, level.points * frame.half + frame.centre).reshape(height, width, 2).numpy()
        x, y = (np.ascontiguousarray(where[..., k], dtype=np.float32) for k in range(2))
        single = scene.moving.astype(np.float32)
        for _ in range(repeats):
            watch = Stopwatch()
            cv2.remap(single, x, y, cv2.INTER_CUBIC)
            remaps.append(watch.cpu)
            for loss in (None, "cauchy"):
                watch = Stopwatch()
                tangent = MODELS[model].tangent_dim
                normal_equations(level, warp.numpy(), np.zeros(2), np.ones(2), valid, tangent, loss, 0.1)
                taken.setdefault(f"{model}, {loss or 'l2'}", []).append(watch.cpu)
    return {name: float(np.median(times)) for name, times in taken.items()}, float(np.median(remaps))


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and accuracy of alignments beside OpenCV's.")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=10, help="pairs per model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=list(synthetic.MODELS), choices=synthetic.MODELS)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    load = ", ".join(f"{entry:.1f}" for entry in os.getloadavg())
    print(f"instruction set {target()}, one thread, load average {load}\n", flush=True)

    steps, remap = step_and_remap(arguments.size, 7)
    print(f"cv2.remap, cubic, float32, {arguments.size}²: {remap:.2f} ms\n")
    print("| one step | ms | of a remap |\n|---|---|---|")
    for name, milliseconds in steps.items():
        print(f"| {name} | {milliseconds:.2f} | {milliseconds / remap:.1f} |")
    found = "px | 90 % | < 0.1 px"
    print(
        f"\n| model | ms | OpenCV ms | ratio | 90 % | {found} | OpenCV {found} | bound px |\n|{'---|' * 12}", flush=True
    )
    levels = depth(arguments.size, arguments.size)
    everything = []
    for model in arguments.models:
        rows = []
        for draw in range(HELD_OUT, HELD_OUT + arguments.pairs):
            scene = Scene(model, draw, arguments.size)
            (matrix, own), (peer, theirs) = in_turns(scene, model, levels, arguments.repeats)
            errors = [corner_error(one, scene.truth, *scene.reference.shape) for one in (matrix, peer)]
            rows.append((own, theirs, own / theirs, *errors, scene.bound(model)))
        everything += rows
        print(line(model, np.array(rows)), flush=True)
    print(line("all", np.array(everything)))
    return 0


def line(model: str, rows: np.ndarray) -> str:
    own, theirs, ratio, error, other, bound = rows.T
    ninety = lambda x: np.quantile(x, 0.9, method="higher")  # noqa: E731
    parts = [
        model,
        f"{np.median(own):.1f}",
        f"{np.median(theirs):.1f}",
        f"{np.median(ratio):.2f}",
        f"{ninety(ratio):.2f}",
    ]
    for one in (error, other):
        parts += [f"{np.median(one):.4f}", f"{ninety(one):.4f}", f"{(one < 0.1).mean():.0%}"]
    return "| " + " | ".join([*parts, f"{np.median(bound):.4f}"]) + " |"


if __name__ == "__main__":
    sys.exit(main())
