"""2,000 pairs of maps of 256 x 256, aligned on a device: `cuda.py` measures a step of all of them, this file also the
whole of it, from a pyramid to transforms, beside `align` on the CPU.

    python benchmarks/cuda_pairs.py                        # on a GPU
    python benchmarks/cuda_pairs.py --device cpu --small

`align` computes on the CPU, one pair at a time. What is here is the same cost (`objective.Photometric`), the same
pyramid and the same splines, of many pairs at once, by `mslsq.solve` on tensors of the device: a batch of similarities,
each with a gain and a bias. It searches nothing and judges nothing: every start has to lie within reach of the
coarsest level, as placements of a sensor or a tracker do.

The maps are sums of waves, evaluated where the true placement puts them, so that no interpolator is favoured.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from timing import print_table
from torch import Tensor

import mslsq
from mslsq.alignment import align
from mslsq.alignment.grids import pixel_grid
from mslsq.alignment.models import Frame, Similarity
from mslsq.alignment.objective import photometric_problem
from mslsq.alignment.pyramid import blur, depth
from mslsq.alignment.sampling import spline_coefficients

COUNT, SIDE, SMALL_SIDE = 2000, 256, 48
WAVES = 24
NOISE = 0.01
"""Of values whose standard deviation is about 1."""
SLICE = 64
"""Pairs that are solved at once: 4 million samples, whose 16 coefficients each take 0.5 GiB in float64."""
BORDER = 3.0
"""Pixels of a level that are not compared: blurs and splines see the mirrored values beyond the border."""
CPU_SHARE = 16
"""The CPU aligns a sixteenth of the pairs; its time is multiplied."""
ALONE = 8
"""Pairs that `align` is timed on."""


class Given(NamedTuple):
    """Pairs of maps, (n, side, side) each, and the similarities from pixels of the references to those of the maps."""

    references: Tensor
    maps: Tensor
    truth: Tensor


def given(count: int, side: int, device: torch.device, dtype: torch.dtype) -> Given:
    """Pairs up to 4 % of a side apart, turned by up to 0.04, scaled by up to 4 %; gain 0.8, bias 0.2. The first are the
    same however many there are."""
    random = torch.Generator().manual_seed(0)
    drawn = torch.rand(count, 4 + 3 * WAVES, dtype=torch.float64, generator=random).to(device)
    shift, turn, grow = 0.08 * (drawn[:, :2] - 0.5), 0.08 * (drawn[:, 2] - 0.5), 0.08 * (drawn[:, 3] - 0.5)
    frame = Frame(side, side, drawn)
    truth = frame.to_pixels(
        Similarity.identity(count, dtype=torch.float64, device=device)
        .retract(torch.cat([2 * shift, turn[:, None], grow[:, None]], 1))
        .matrix()
    )
    length, direction, phase = drawn[:, 4:].reshape(count, 3, WAVES).unbind(1)
    length = 6.0 * (side / 12.0) ** length  # from 6 pixels to half of a side
    wave = (
        torch.stack([direction.mul(2 * math.pi).cos(), direction.mul(2 * math.pi).sin()], 1)
        * (2 * math.pi / length)[:, None]
    )
    height = length.sqrt() / (0.5 * length.sum(1, keepdim=True)).sqrt()
    pixels = pixel_grid(side, side, drawn)

    def seen(points: Tensor, which: slice) -> Tensor:
        angle = 2 * math.pi * phase[which, :, None] + wave[which].mT @ points.mT
        return (height[which, :, None] * angle.cos()).sum(1).reshape(-1, side, side)

    def noisy(maps: Tensor, seed: int, which: slice) -> Tensor:
        noise = torch.Generator(device).manual_seed(seed + which.start)
        drawn = torch.randn(maps.shape, dtype=torch.float64, generator=noise, device=device)
        return (maps + NOISE * drawn).to(dtype)

    references, maps = (torch.empty(count, side, side, dtype=dtype, device=device) for _ in range(2))
    back = truth.inverse()
    for which in slices(count):
        there = pixels @ back[which, :2, :2].mT + back[which, None, :2, 2]
        references[which] = noisy(seen(pixels.expand(len(there), -1, -1), which), 1, which)
        maps[which] = noisy((seen(there, which) - 0.2) / 0.8, 1_000_000, which)
    return Given(references, maps, truth)


def slices(count: int, size: int = SLICE) -> Iterator[slice]:
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


@dataclass(frozen=True)
class Level:
    """One level of the pyramids of a slice of pairs."""

    target: Tensor
    """(n, samples, 1): the references."""
    coefficients: Tensor
    """(n, 1, h, w): of the splines through the maps."""
    points: Tensor
    """(samples, 2): the references' pixels, normalised."""
    to_level: Tensor
    """(3,)"""

    @staticmethod
    def of(references: Tensor, maps: Tensor, frame: Frame, factor: int) -> "Level":
        height, width = references.shape[-2:]
        pixels = pixel_grid(height, width, references) * factor
        to_level = torch.cat([frame.centre.new_tensor([frame.half]), frame.centre]) / factor
        return Level(
            references.flatten(1)[..., None], spline_coefficients(maps[:, None]), frame.normalise(pixels), to_level
        )

    def solved(self, at: dict[str, Any], solver: mslsq.LevenbergMarquardt) -> mslsq.Solution:
        """The least cost from placements and values, over the samples that fall on their maps there."""
        shape = self.coefficients.shape[1:]
        seen = torch.func.vmap(lambda warp: warp.act(self.points))(at["warp"]) * self.to_level[0] + self.to_level[1:]
        own = self.points * self.to_level[0] + self.to_level[1:]
        last = seen.new_tensor([shape[2] - 1.0 - BORDER, shape[1] - 1.0 - BORDER])
        valid = ((torch.minimum(seen, own) >= BORDER) & (torch.maximum(seen, own) <= last)).all(-1)
        data = {
            "point": self.points,
            "target": self.target,
            "valid": valid.to(self.points.dtype),
            "coefficients": self.coefficients,
            "to_level": self.to_level,
            "freedom": torch.ones_like(self.to_level[:2]),
        }
        each = dict.fromkeys(data) | {"target": 0, "valid": 0, "coefficients": 0}
        problem = photometric_problem(
            "sim2", len(self.points), tuple(shape), None, self.points.dtype, self.points.device
        )
        return mslsq.solve(problem, at, {"photometric": data}, in_dims=(0, {"photometric": each}), solver=solver)


def pyramid(references: Tensor, maps: Tensor, levels: int) -> list[Level]:
    """The finest first: blurred by a pixel, every second pixel of the last level after that."""
    height, width = references.shape[-2:]
    frame, out = Frame(height, width, references), []
    for index in range(levels):
        references, maps = (blur(x, 1.0, "mirror") for x in (references, maps))
        if index > 0:
            references, maps = references[:, ::2, ::2], maps[:, ::2, ::2]
        out.append(Level.of(references, maps, frame, 2**index))
    return out


def nowhere(count: int, like: Tensor) -> dict[str, Any]:
    """The start: unmoved, values as they are."""
    warp = Similarity.identity(count, dtype=like.dtype, device=like.device)
    return {"warp": warp, "value": like.new_zeros(count, 2)}


def aligned(pairs: Given, solver: mslsq.LevenbergMarquardt) -> Tensor:
    """(n, 3, 3): from pixels of the references to those of the maps, from the coarsest level to the finest."""
    count, height, width = pairs.maps.shape
    frame, out = Frame(height, width, pairs.maps), []
    for which in slices(count):
        references, maps = pairs.references[which], pairs.maps[which]
        at = nowhere(len(maps), maps)
        for level in reversed(pyramid(references, maps, depth(height, width))):
            at = level.solved(at, solver).value
        out.append(frame.to_pixels(at["warp"].matrix()))
    return torch.cat(out)


def count_on(device: torch.device, small: bool) -> int:
    """How many pairs are made there."""
    return 3 if small else COUNT // CPU_SHARE if device.type == "cpu" else COUNT


def steps_of(
    count: int, device: torch.device, dtype: torch.dtype, small: bool
) -> Callable[[mslsq.LevenbergMarquardt], Any]:
    """Solves of all pairs on the finest level, from a pixel off."""
    side = SMALL_SIDE if small else SIDE
    pairs = given(count, side, device, dtype)
    frame = Frame(side, side, pairs.maps)
    near = pairs.truth.to(dtype).clone()
    near[:, 0, 2] += 1.0
    parts = []
    for which in slices(count):
        level = pyramid(pairs.references[which], pairs.maps[which], 1)[0]
        start = Similarity.from_matrix(frame.from_pixels(near[which]))
        parts.append((level, nowhere(len(start), level.target) | {"warp": start}))

    def solve(solver: mslsq.LevenbergMarquardt) -> Any:
        for level, start in parts:
            last = level.solved(start, solver)
        return last

    return solve


def errors(found: Tensor, truth: Tensor, side: int) -> list[float]:
    """Of every pair, pixels at the worst of the reference's corners."""
    corners = truth.new_tensor([[x, y, 1] for x in (0, side - 1) for y in (0, side - 1)])
    off = (found.to(truth) - truth)[:, :2] @ corners.T
    return off.norm(dim=1).amax(1).tolist()


def rows(device: torch.device, dtype: torch.dtype, small: bool) -> list[tuple[Any, ...]]:
    """Whole alignments: all pairs on the device, some by `align` on the CPU, each with a model that is known."""
    count, side = count_on(device, small), SMALL_SIDE if small else SIDE
    pairs, precision = given(count, side, device, dtype), str(dtype).removeprefix("torch.")

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        for _ in range(2):  # what they make, later ones take
            work()
        wait()
        begin = time.perf_counter()
        found = work()
        wait()
        return found, time.perf_counter() - begin

    some = [tuple(maps) for maps in zip(pairs.references[:ALONE].cpu(), pairs.maps[:ALONE].cpu(), strict=True)]
    solver = mslsq.LevenbergMarquardt(max_steps=30, native="wait")
    ways = {
        f"a batch on {device.type}": (count, lambda: aligned(pairs, solver)),
        "align, a process of the CPU": (
            len(some),
            lambda: torch.stack([align(pair, model="sim2").transforms[1] for pair in some]),
        ),
    }
    out, each = [], 0.0
    for way, (number, work) in ways.items():
        found, seconds = timed(work)
        each = each or seconds / number
        off = errors(found.to(device), pairs.truth[:number], side)
        out.append(
            (way, precision, number, 1e3 * seconds / number, seconds / number / each, statistics.median(off), max(off))
        )
    return out


def tell(device: torch.device, small: bool = False) -> None:
    """Measure and print."""
    header = ("way", "dtype", "pairs", "ms a pair", "times the batch", "error, median px", "largest")
    side = SMALL_SIDE if small else SIDE
    table = [row for dtype in (torch.float64, torch.float32) for row in rows(device, dtype, small)]
    title = (
        f"Whole alignments of pairs of {side}², wall time; {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    print_table(title, header, table)
    print("\nThe batch begins at the identity. align searches, refines and judges; nothing is judged in the batch.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no GPU here.")
    tell(torch.device(options.device), options.small)
