"""A tile of one map and what of another shows the same ground: pyramids of both, seen from either."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.tiles import SIDE
from mslsq.alignment.descent import Between
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.measures import masked_ncc, project
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level, build
from mslsq.alignment.spread import are_heavy, spread_over

LEVELS = 4
"""Of a tile: from its own pixels to those of eight."""

MARGIN = 48
"""Pixels around what a tile shows in the other map: by this the coarse placement may be off."""

LARGEST_WINDOW = 3 * SIDE
"""Pixels along a side of the other map's window: a tile that shows more has a scale that no reduction met."""

Units = tuple[float, float]
"""(mean, spread) by which values are standardised."""


@dataclass(frozen=True)
class Window:
    """A part of a map: its pyramid, finest first, and the pixel (x, y) of the file where it begins."""

    pyramid: list[Level]
    corner: tuple[float, float]


@dataclass(frozen=True)
class Source:
    """A map as tiles see it: its file, what it is reduced by, its units and its frame."""

    file: RasterFile
    factor: int
    units: Units
    frame: Frame

    def window(self, top: int, left: int, height: int, width: int, levels: int, prefilter: float) -> Window | None:
        """None without data. Its pixels are those of the file reduced by `factor`."""
        values, known = self.file.grey(top, left, height, width, self.factor)
        if not bool(known.any()):
            return None
        mean, spread = self.units
        pyramid = build((values - mean) / spread, known, levels, prefilter)
        off = (self.factor - 1) / 2
        corner = left * self.factor + off, top * self.factor + off
        return Window([replace(level, factor=level.factor * self.factor) for level in pyramid], corner)


@dataclass(frozen=True)
class View:
    """One tile of the map `fixed` and its counterpart in the map `moving`."""

    fixed: Window
    moving: Window


def view_of(
    fixed: Source,
    moving: Source,
    tile: tuple[int, int],
    transform: Float[Tensor, "3 3"],
    prefilter: float,
    one: Window | None = None,
) -> View | None:
    """The tile (row, column), and what of the other map it shows by a transform of the files' pixels. None where one
    of them has no data there."""
    top, left = tile[0] * SIDE, tile[1] * SIDE
    one = fixed.window(top, left, SIDE, SIDE, LEVELS, prefilter) if one is None else one
    far = SIDE * fixed.factor
    x, y = left * fixed.factor, top * fixed.factor
    outline = transform.new_tensor([[x, y], [x + far, y], [x + far, y + far], [x, y + far]])
    seen = project(transform, outline) / moving.factor
    if one is None or not bool(seen.isfinite().all()):
        return None
    (low_x, low_y), (high_x, high_y) = seen.amin(0).tolist(), seen.amax(0).tolist()
    height, width = moving.file.reduced(moving.factor)
    first_x, first_y = max(0, math.floor(low_x) - MARGIN), max(0, math.floor(low_y) - MARGIN)
    last_x, last_y = min(width, math.ceil(high_x) + MARGIN), min(height, math.ceil(high_y) + MARGIN)
    size = last_y - first_y, last_x - first_x
    if min(size) <= 2 * LEVELS or max(size) > LARGEST_WINDOW + 2 * MARGIN:
        return None
    other = moving.window(first_y, first_x, *size, LEVELS, prefilter)
    return None if other is None else View(one, other)


def information(
    source: Source, tile: tuple[int, int], options: Options
) -> Float[np.ndarray, "unknowns unknowns"] | None:
    """JᵀJ of a tile's own gradients, averages of four pixels: noise has less of these. None without data."""
    seen = source.window(tile[0] * SIDE, tile[1] * SIDE, SIDE, SIDE, 2, options.prefilter)
    if seen is None:
        return None
    level, still = seen.pyramid[1], Between(np.eye(3), np.zeros(2))
    own = _overlap((0, 0), level, level, (source.frame, seen.corner, seen.corner), still, options, 1.0, None)
    return own.normal_equations(still).matrix if own.count else np.zeros((own.kind.tangent_dim + 2,) * 2)


def _overlap(
    ends: tuple[int, int],
    one: Level,
    other: Level,
    where: tuple[Frame, tuple[float, float], tuple[float, float]],
    at: Between,
    options: Options,
    sigma: float,
    loss: str | None,
) -> Overlap:
    level, probe = (_pair_level(one, other, *where) for _ in range(2))
    valid = probe.look(torch.from_numpy(at.matrix))[1]  # what the probe keeps of the look goes with it
    freedom = np.array(options.freedom, float)
    return Overlap(*ends, level, one.coefficients, MODELS[options.model], freedom, valid, sigma, loss)


def _pair_level(
    one: Level, other: Level, frame: Frame, corner: tuple[float, float], origin: tuple[float, float]
) -> PairLevel:
    return PairLevel.of(one, other, frame, 0, most=SIDE * SIDE * 64, corner=corner, origin=origin)


@dataclass(frozen=True)
class TiledLink:
    """Two maps, and the tiles by which they are laid on each other."""

    fixed: int
    moving: int
    sources: tuple[Source, Source]
    views: Sequence[View]

    def overlaps(self, position: int, there: Between, back: Between, options: Options) -> list[tuple[Overlap, Overlap]]:
        """Every tile seen from either map on one level, with one spread and one loss for all: robust on coarse levels,
        on the finest where residuals have outliers."""
        there_and_back = []
        for ends, at in (((self.fixed, self.moving), there), ((self.moving, self.fixed), back)):
            pairs = [self.levels(view, position, ends[0] == self.fixed) for view in self.views]
            estimate = Estimate(torch.from_numpy(at.matrix), torch.from_numpy(at.value), "tile")
            probes = [_pair_level(*pair) for pair in pairs]
            sigma, deviation = spread_over([estimate] * len(probes), probes)
            heavy = position > 0 or are_heavy(sigma, deviation)
            loss = options.loss if options.loss and heavy else None
            there_and_back.append([_overlap(ends, *pair[:2], pair[2:], at, options, sigma, loss) for pair in pairs])
        return list(zip(*there_and_back, strict=True))

    def levels(
        self, view: View, position: int, forward: bool
    ) -> tuple[Level, Level, Frame, tuple[float, float], tuple[float, float]]:
        """Both levels of a tile, the frame that it is seen in, and where both begin."""
        one, other = (view.fixed, view.moving) if forward else (view.moving, view.fixed)
        frame = self.sources[0 if forward else 1].frame
        # Copies: what is made of a level for one look (its spline) goes with it.
        levels = (replace(one.pyramid[position]), replace(other.pyramid[position]))
        return *levels, frame, one.corner, other.corner

    def correlation(self, position: int, here: Float[Tensor, "3 3"], there: Float[Tensor, "3 3"]) -> float:
        """That of all tiles together at the place `there`, over samples that are valid at both places (normalised
        matrices)."""
        sampled, target, valid = [], [], []
        for level in self.pair_levels(position):
            known = level.look(here)[1].clone()
            values, now = level.look(there)
            sampled.append(values.T)
            target.append(level.planes)
            valid.append(known & now)
        return float(masked_ncc(torch.cat(sampled, 1), torch.cat(target, 1), torch.cat(valid)))

    def pair_levels(self, position: int) -> list[PairLevel]:
        """Every tile seen from the fixed map."""
        return [_pair_level(*self.levels(view, position, True)) for view in self.views]
