"""Is a placement true? Evidence per area: how well the detail of small blocks agrees.

A correlation of the whole is decided by what holds most of the energy: a common sky, a slope, a few bright stars that
can be laid on each other. It was 1.00 for false placements. Here every block of a level is asked by itself, after a
quadratic surface has been taken out of it (what varies more slowly than the block), and the third of the blocks in
which the most is to be seen, in either map, must agree in the median. What stands in one map alone counts against the
placement, and blocks that hold only noise do not count. Nor do blocks that are flat in both maps, as most are of
drawings, plans, masks and night pictures: the correlation of what rounding leaves of them is 1.00 anywhere.

What agrees because it had to is no evidence. An edge that runs on from one block into the next is measured once
(`mslsq.alignment.apertures`), and the unknowns take as many of the blocks as they are: six of an affine warp lay a
piece of one line on any other. What is left over is counted (`Evidence.left`).
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.apertures import independent_both
from mslsq.alignment.measures import middle_of
from mslsq.alignment.noise import Noise, in_blocks, reliability
from mslsq.alignment.pair_level import PairLevel
from mslsq.kernels import Kernel, may_read

_BLOCK_DETAILS = Kernel("block_details", "nnnTT?ndd")
_SHOWN_BLOCKS = Kernel("shown_blocks", "nndddl")

SIDES = 16, 8
"""Sides of the blocks in samples; the first that gives `ENOUGH` of them."""

ENOUGH = 36

FILLED = 0.6
"""Share of a block that must be valid in both maps."""

LOUDEST = 3
"""One block of this many is asked: those with the most energy."""

FEWEST = 4
"""Blocks that are asked at least."""

SHOWS = 0.1
"""A block shows something in a map if its amplitude is this share of the mean over the map's blocks. Tails of halos
and of filters lie below. Of 448 placements of maps without a match the detail of 30 sufficed without this, of 14
with it (18 at a share of 0.03, 9 at 0.17); of 484 with one, one was lost (the same half "choose")."""

ROUNDING = 1e-6
"""Of the standardised values: less than this shows nothing, whatever the mean is."""

SCATTER = 4.0
"""The median of k blocks must exceed the threshold L by (1 - L) tanh(SCATTER / (1 - L) k): a few blocks agree by
chance, more so where two bright stars are laid on each other. Chosen with `FAINTEST` on 988 placements of maps with a
match and 856 of maps without one (`benchmarks/alignment_truth.py`, the half "choose"): 964 are believed and none; at 3
one of those without a match, two dark streets of which 7 blocks agree by 0.94."""

FAINTEST = 1 / 3
"""Reliability: noise lowers what is asked by no more than this. Noise itself agrees by 0.9 / √k in the best of the
places that are tried (0.18 in 19 blocks, of which 0.26 is asked)."""


class Evidence(NamedTuple):
    """What one level says of a placement."""

    agreement: float
    """The median correlation of the blocks that were asked; NaN where there are too few."""
    blocks: int
    """How many were asked."""
    reliability: float = 1.0
    """What noise leaves of the correlation of detail that agrees, in the median of the blocks that were asked."""
    independent: float = math.inf
    """How many of the blocks that were asked agree in what no other one has said (`apertures.independent`)."""
    arc_by_arc: float = math.inf
    """The same, where the next piece of an arc says something of its own."""
    position: int = 0
    """Of the level in the pyramid: 0 is the finest."""

    def left(self, unknowns: int) -> float:
        """Blocks that speak for the placement, beyond those that the unknowns of the warp were fitted to."""
        return max(min(self.blocks, self.independent) - unknowns, 0.0)

    def asked(self, least: float, unknowns: int = 0) -> float:
        """The agreement at which a chance match is out of the question: `least` of many blocks, more of a few, and as
        much less as noise explains. -1 or less asks nothing."""
        room = max(1 - least, 1e-3)
        more = room * math.tanh(SCATTER / (room * max(self.left(unknowns), 1e-3)))
        return max(self.reliability, FAINTEST) * (least + more)

    def suffices(self, least: float, unknowns: int = 0) -> bool:
        return least <= -1 or self.agreement >= self.asked(least, unknowns)


def evidence(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Evidence:
    """The agreement of the blocks of one level under a warp; the level keeps the last one."""
    return level.kept("evidence", matrix, partial(_agreement, level))


def _agreement(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Evidence:
    asked = loudest(level, matrix)
    count = len(asked.correlation)
    if not count:
        return Evidence(math.nan, 0)
    middles = [middle_of(one) for one in (asked.correlation, asked.reliability)]
    # As well as half of them do: noise, and what a metric makes of values, lower them all.
    agreement = (asked.correlation / max(middles[0], 1e-3)).clip(0, 1)
    each, once = independent_both(asked.slopes, asked.at, agreement)
    return Evidence(middles[0], count, middles[1], once, each)


class Compared(NamedTuple):
    """The blocks that both maps know, and of those that show something in either map how well they agree."""

    count: int
    """Of all that are known, the flat ones too."""
    correlation: Float[np.ndarray, " shown"]
    """Channels added up; 0 where one of the two maps shows nothing."""
    energy: Float[np.ndarray, " shown"]
    """Of the detail over its median, in either map, whichever is more."""
    at: Float[np.ndarray, "shown 2"]
    """Row and column of the block."""
    reliability: Float[np.ndarray, " shown"]
    """What noise leaves of the correlation of detail that agrees (`noise.reliability`)."""
    slopes: Float[np.ndarray, "shown 3"]
    """Means of the products of both maps' slopes: xx, xy, yy."""

    @property
    def asked(self) -> "Compared":
        """The loudest of them; none if they are too few."""
        shown = len(self.correlation)
        asked = min(max(FEWEST, math.ceil(self.count / LOUDEST)), shown) if shown >= FEWEST else 0
        loudest = np.argsort(-self.energy, kind="stable")[:asked]
        return Compared(self.count, *(figures[loudest] for figures in self[1:]))


def compared(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Compared:
    """The blocks of one level under a warp, of the first side of which there are enough; the level keeps the last."""
    return level.kept("blocks", matrix, partial(_all_compared, level))


def loudest(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Compared:
    """Of the blocks of one level those that are asked; the level keeps the last."""
    return level.kept("asked", matrix, lambda at: compared(level, at).asked)


def others_agree(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> float:
    """The median correlation of the blocks that show something and are not among the loudest, over what noise leaves of
    it; 0 without any."""
    seen = compared(level, matrix)
    quiet = np.argsort(-seen.energy, kind="stable")[len(seen.asked.correlation) :]
    if not len(quiet):
        return 0.0
    return middle_of(seen.correlation[quiet]) / max(middle_of(seen.reliability[quiet]), FAINTEST)


def _all_compared(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Compared:
    seen = compared_in(level, matrix, SIDES[0])
    return seen if seen.count >= ENOUGH else compared_in(level, matrix, SIDES[1])


def compared_in(level: PairLevel, matrix: Float[Tensor, "3 3"], side: int) -> Compared:
    """The same of blocks of this side."""
    sampled, valid = level.look(matrix)
    one, other = (values.T.reshape(-1, *level.grid) for values in (sampled, level.target))
    return _compared(one, other, valid.reshape(level.grid), side, (level.moving.noise, level.noise), level.stride)


def block_energies(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    valid: Bool[Tensor, "height width"],
    side: int,
) -> tuple[Float[np.ndarray, "maps blocks"], Float[np.ndarray, " blocks"]]:
    """Of the blocks of this side that both maps know, row by row, the mean square of either map's detail, and the mean
    of their product."""
    return _energies(one, other, valid, side)[1:3]


def block_means(
    values: Float[Tensor, "height width"], valid: Bool[Tensor, "height width"], side: int
) -> Float[np.ndarray, " blocks"]:
    """The means of one raster in the same blocks."""
    known = _blocks(valid.to(values.dtype)[None], side)[0]
    filled = known.sum(-1) >= FILLED * side**2
    total = (_blocks(values[None], side)[0] * known).sum(-1)[filled]
    return (total / known.sum(-1)[filled]).numpy(force=True).astype(np.float64)


BLUR = 2.0
"""Samples: the largest prefilter with which blocks of a level are asked. The bars are those of 1. Behind 4 a block of
16 holds few independent samples, and agrees by chance: 0.85 for a map that was 161 px off."""


def clear(levels: Sequence[PairLevel], prefilter: float) -> int:
    """The finest level whose samples are not blurred by more than `BLUR` of them."""
    usable = [position for position, level in enumerate(levels) if prefilter <= BLUR * level.factor]
    return usable[0] if usable else len(levels) - 1


def strongest(
    levels: Sequence[PairLevel],
    matrix: Float[Tensor, "3 3"],
    least: float,
    first: int,
    unknowns: int,
    arcs: bool = True,
) -> tuple[Evidence, bool]:
    """The evidence of the finest level on which it suffices, or of the finest; and whether it does.

    On a coarser level noise is weaker, and so is the drift of a map whose parts have moved by a few pixels; but it has
    fewer blocks, of which more is asked. `first` is the finest level that is asked, `unknowns` are those of the warp;
    without `arcs` the next piece of an arc counts, too.
    """

    def seen(position: int) -> Evidence:
        found = evidence(levels[position], matrix)
        return found._replace(position=position, independent=found.independent if arcs else found.arc_by_arc)

    finest = seen(first)
    for position in range(first, len(levels)):
        found = seen(position) if position > first else finest
        if found.suffices(least, unknowns):
            return found, True
    return finest, False


def _compared(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    valid: Bool[Tensor, "height width"],
    side: int,
    noises: tuple[Noise, Noise],
    stride: int,
) -> Compared:
    if may_read(one, other, valid) and one.dtype == other.dtype and one.dtype in (torch.float32, torch.float64):
        return _shown(one, other, valid, side, in_blocks(noises, side, stride))
    number, energy, product, slopes = _energies(one, other, valid, side)
    if not len(number):
        none = np.empty(0)
        return Compared(0, none, none, np.empty((0, 2)), none, np.empty((0, 3)))
    amplitude = np.sqrt(energy)
    shows = amplitude > np.maximum(SHOWS * amplitude.mean(-1, keepdims=True), ROUNDING)
    either = shows.any(0)
    shown, seen, energy, amplitude = number[either], shows[:, either], energy[:, either], amplitude[:, either]
    both = np.where(seen.all(0), amplitude[0] * amplitude[1], np.inf)
    typical = [_lower_median(of_map[there]) for of_map, there in zip(energy, seen, strict=True)]
    relative = np.where(seen, energy / np.array(typical)[:, None], 0.0).max(0)
    at = np.stack(np.divmod(shown, -(-valid.shape[-1] // side)), -1).astype(np.float64)
    trusted = reliability(energy, noises, side, stride)
    return Compared(len(number), product[either] / both, relative, at, trusted, slopes[either])


def _shown(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    valid: Bool[Tensor, "height width"],
    side: int,
    noise: list[float],
) -> Compared:
    """The same by kernels; `noise` is what it has in the blocks of either map."""
    (height, width), least = valid.shape, FILLED * side**2
    down, across = -(-height // side), -(-width // side)
    details, found, counts = np.empty((down * across, 7)), np.empty((down * across, 8)), np.empty(2, dtype=np.int64)
    rasters = one.contiguous(), other.contiguous(), valid.contiguous()
    _BLOCK_DETAILS(*one.shape, *rasters, side, np.array([least]), details)
    _SHOWN_BLOCKS(len(details), across, details, np.array([least, SHOWS, ROUNDING, *noise]), found, counts)
    filled, shown = counts.tolist()
    found = found[:shown]
    return Compared(filled, found[:, 0], found[:, 1], found[:, 2:4], found[:, 4], found[:, 5:])


def _lower_median(values: Float[np.ndarray, " n"]) -> float:
    """Of an even number the smaller of the two in the middle; 1 of nothing."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else 1.0


def _energies(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    valid: Bool[Tensor, "height width"],
    side: int,
) -> tuple[
    Int[np.ndarray, " blocks"], Float[np.ndarray, "maps blocks"], Float[np.ndarray, " blocks"],
    Float[np.ndarray, "blocks 3"],
]:  # fmt: skip
    """Of the blocks that are filled, row by row, the numbers, the mean square of either map's detail, the mean of their
    product, and those of their slopes' products (xx, xy, yy)."""
    known = _blocks(valid.to(one.dtype)[None], side)[0]
    filled = known.sum(-1) >= FILLED * side**2
    known, number = known[filled], filled.nonzero()[:, 0].numpy(force=True)
    if not len(known):
        return number, np.empty((2, 0)), np.empty(0), np.empty((0, 3))
    detail = _detail(torch.stack([_blocks(values, side)[:, filled] for values in (one, other)]), known)
    energy = (detail * detail).sum((1, -1)) / known.sum(-1)
    slopes = _common_slopes(detail.unflatten(-1, (side, side)), known.unflatten(-1, (side, side)))
    product, slopes = (detail[0] * detail[1]).sum((0, -1)) / known.sum(-1), slopes / known.sum(-1)[:, None]
    energy, product, slopes = (one.numpy(force=True).astype(np.float64) for one in (energy, product, slopes))
    return number, energy, product, slopes


def _common_slopes(
    detail: Float[Tensor, "maps channels blocks side side"], known: Float[Tensor, "blocks side side"]
) -> Float[Tensor, "blocks 3"]:
    """The products of both maps' slopes, added up: xx, xy (the mean of both orders), yy. Slopes are those of the
    middles between four known samples."""
    right, down = (0.5 * torch.diff(detail, dim=way) for way in (-1, -2))
    use = known[:, 1:, 1:] * known[:, 1:, :-1] * known[:, :-1, 1:] * known[:, :-1, :-1]
    x = use * (right[..., 1:, :] + right[..., :-1, :])
    y = use * (down[..., 1:] + down[..., :-1])
    products = x[0] * x[1], 0.5 * (x[0] * y[1] + y[0] * x[1]), y[0] * y[1]
    return torch.stack([product.sum((0, -2, -1)) for product in products], -1)


def _detail(
    values: Float[Tensor, "maps channels blocks samples"], known: Float[Tensor, "blocks samples"]
) -> Float[Tensor, "maps channels blocks samples"]:
    """What a quadratic surface, fitted to the known samples of each block, leaves of it; 0 where nothing is known."""
    surfaces = _surfaces(math.isqrt(known.shape[-1])).to(values)
    normal = torch.einsum("kp,np,lp->nkl", surfaces, known, surfaces)
    # Few samples may not determine a surface.
    factor = torch.linalg.cholesky(normal + 1e-9 * known.shape[-1] * torch.eye(len(surfaces), device="cpu").to(normal))
    projected = torch.einsum("kp,mcnp->mcnk", surfaces, known * values)
    fitted = torch.cholesky_solve(projected[..., None], factor)[..., 0]
    return known * (values - fitted @ surfaces)


def _blocks(values: Float[Tensor, "channels height width"], side: int) -> Float[Tensor, "channels blocks samples"]:
    """Squares of `side` samples; what lies beyond the border is 0."""
    height, width = values.shape[-2:]
    padded = torch.nn.functional.pad(values, (0, -width % side, 0, -height % side))
    squares = padded.unflatten(-2, (-1, side)).unflatten(-1, (-1, side))
    return squares.movedim(-3, -2).flatten(-2).flatten(-3, -2)


@lru_cache(maxsize=4)
def _surfaces(side: int) -> Float[Tensor, "6 samples"]:
    """1, x, y, x², xy, y² over a block."""
    at = torch.linspace(-1, 1, side, dtype=torch.float64, device="cpu")
    y, x = (part.flatten() for part in torch.meshgrid(at, at, indexing="ij"))
    return torch.stack((torch.ones_like(x), x, y, x * x, x * y, y * y))
