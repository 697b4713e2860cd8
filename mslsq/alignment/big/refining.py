"""From the coarse places to those of the files' own pixels: one solve over the tiles of all links on every level."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.big.coarse import Coarse
from mslsq.alignment.big.precision import Tiled
from mslsq.alignment.big.records import TileLevel
from mslsq.alignment.big.tiles import Ground, candidates, cells_of, chosen, in_overlap
from mslsq.alignment.big.views import LEVELS, Source, TiledLink, information, view_of
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.evidence import evidence
from mslsq.alignment.joint.dense import Dense, settle
from mslsq.alignment.joint.links import LinkStatus
from mslsq.alignment.joint.state import Coordinates, State, standardised
from mslsq.alignment.kinds import RasterError
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import corner_error
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import Options
from mslsq.alignment.result import Stage

STEEP = 32
"""Of a larger reduction there is a stage between: tiles of pixels of a sixteenth of it."""

FREEZES = 2
"""Times that the valid samples of the finest level are chosen, each before a solve."""

FEWEST = 4
"""Tiles of a link, however many links there are."""

WORSE = 2e-3
"""By which the correlation of a link may fall in a solve: rounding."""

FAR = 2.0
"""Coarse pixels that a refinement may move the corners of the reference, beside six standard errors."""


@dataclass
class Refining:
    """The places of all maps while they are refined. `state` is where they are, on the last level that is believed."""

    coarse: Coarse
    linker: Linker
    options: Options
    tiles: int
    progress: Callable[[Stage], None] | None = None
    levels: list[TileLevel] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    """Maps that stay where the coarse stage put them."""

    def __post_init__(self) -> None:
        found, like = self.coarse.result, torch.zeros((), dtype=torch.float64, device="cpu")
        files = {i: file for i in found.aligned if (file := self.coarse.files[i]) is not None}
        self.frames = {i: Frame(*file.size, like) for i, file in files.items()}
        self.coordinates = Coordinates(self.frames[found.reference], self.frames, MODELS[self.options.model])
        self.state = self._start()
        self.last: Tiled | None = None
        self.links: list[TiledLink] = []
        self.used: dict[tuple[int, int], tuple[int, int]] = {}
        self.reading = 0, 0, 0
        self.at = LEVELS - 1

    def _start(self) -> State:
        found, frame = self.coarse.result, self.coordinates.frame
        maps = len(found.reasons)
        warps, values = np.tile(np.eye(3), (maps, 1, 1)), np.zeros((maps, 2))
        for i in found.aligned:
            warp = self.coordinates.kind.from_matrix(frame.from_pixels(self.coarse.transform(i))).matrix().numpy()
            warps[i] = warp / warp[2, 2]
            values[i] = standardised(self.units(i), float(found.gain[i]), float(found.bias[i]))
        return State(warps, values)

    def units(self, index: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(mean, spread) of the reference and of a map."""
        reference = self.coarse.result.reference
        return self.linker.units(reference, reference)[0], self.linker.units(reference, index)[1]

    def transform(self, fixed: int, moving: int) -> Float[Tensor, "3 3"]:
        """Pixels of one file to those of another, where the two are now."""
        into = [
            self.coordinates.frame.to_pixels(torch.from_numpy(self.state.warps[index])) for index in (fixed, moving)
        ]
        return into[1] @ torch.linalg.inv(into[0])

    # ---- which pairs, and by which pixels

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The links that the coarse stage used; of maps that were placed one by one, each with its parent."""
        found = self.coarse.result
        used = [link.pair for link in found.links if link.status is LinkStatus.USED]
        used = [pair for pair in used if all(index in found.aligned for index in pair)]
        return used or [(int(found.parent[i]), i) for i in found.aligned if i != found.reference]

    def factors(self, fixed: int, moving: int, least: int) -> tuple[int, int]:
        """By what the two are read reduced, so that their pixels are of about one size."""
        matrix = self.transform(fixed, moving)
        scale = math.sqrt(abs(float(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0])))
        if scale >= 1:
            return least, least * max(1, round(scale))
        return least * max(1, round(1 / scale)), least

    def run(self) -> None:
        """All levels, until one is not believed."""
        steepest = max(self.coarse.factors)
        for least in [steepest // 16, 1] if steepest > STEEP else [1]:
            if not self._gather(least) or not self._descend():
                return

    def _gather(self, least: int) -> bool:
        """Choose and read the tiles of all links."""
        self.links, self.used, self.at = [], {}, LEVELS - 1
        share = max(FEWEST, self.tiles // max(1, len(self.pairs)))
        used, total, unreadable = 0, 0, 0
        for pair in self.pairs:
            link, of, damaged = self._link(*pair, least, share)
            unreadable, total = unreadable + damaged, total + of
            if link is not None:
                self.links.append(link)
                used += len(link.views)
                self.used[pair] = len(link.views), of
        self.reading = used, total, unreadable
        if unreadable:
            self.doubts.append(f"{unreadable:,} tiles could not be read: a file is damaged.")
        self.held = self._apart()
        if self.held:
            names = ", ".join(str(index) for index in sorted(self.held))
            self.doubts.append(f"Of map {names} no tile could be used: it stays where the reduced rasters put it.")
        return bool(self.links)

    def _apart(self) -> set[int]:
        """Maps that no chain of tiled links joins with the reference."""
        reached, before = {self.coarse.result.reference}, 0
        while len(reached) > before:
            before = len(reached)
            for link in self.links:
                if link.fixed in reached or link.moving in reached:
                    reached |= {link.fixed, link.moving}
        return set(self.coarse.result.aligned) - reached

    def _link(self, fixed: int, moving: int, least: int, share: int) -> tuple[TiledLink | None, int, int]:
        factors = self.factors(fixed, moving, least)
        sources = self._source(fixed, factors[0]), self._source(moving, factors[1])
        transform = self.transform(fixed, moving)
        own, other = self._ground(fixed), self._ground(moving)
        inside, of = in_overlap(sources[0].file.reduced(factors[0]), factors[0], transform, own, other)
        if not len(inside):
            return None, of, 0
        asked = inside[candidates(inside, share)]
        found, damaged, kept = [], 0, []
        for tile in asked.tolist():
            try:
                holds = information(sources[0], (tile[0], tile[1]), self.options)
            except RasterError:
                damaged, holds = damaged + 1, None
            if holds is not None:
                found.append(holds)
                kept.append(tile)
        if not kept:
            return None, of, damaged
        places = np.array(kept)
        views = []
        for index in chosen(np.stack(found), cells_of(places, max(1, share // 2)), share).tolist():
            try:
                view = view_of(*sources, (kept[index][0], kept[index][1]), transform, self.options.prefilter)
            except RasterError:
                damaged, view = damaged + 1, None
            if view is not None:
                views.append(view)
        return (TiledLink(fixed, moving, sources, views) if views else None), of, damaged

    def _source(self, index: int, factor: int) -> Source:
        file, reference = self.coarse.files[index], self.coarse.result.reference
        assert file is not None
        own, units = self.units(index)
        return Source(file, factor, own if index == reference else units, self.frames[index])

    def _ground(self, index: int) -> Ground:
        mask = self.coarse.masks[index]
        assert mask is not None
        return Ground(mask, self.coarse.factors[index])

    # ---- the solves

    def _descend(self) -> bool:
        """From the tiles' coarsest level to their finest; False where one is not believed."""
        for position in range(LEVELS - 1, -1, -1):
            for _ in range(FREEZES if position == 0 else 1):
                tiled = self._dense(position)
                settled = settle(tiled.dense, self.state, self.options.max_steps)
                doubt = self._doubt(settled.status, settled.state, position)
                if doubt:
                    self.doubts.append(f"Pixels of {self._factor(position)} were not used for the place: {doubt}")
                    return False
                self.state, self.last, self.at = settled.state, tiled, position
            factor, used = self._factor(position), settled.normal.samples
            self.levels.append(TileLevel(factor, self.reading[0], self.reading[1], used, self.reading[2]))
            self._tell(position, factor, settled.costs, used)
        return True

    def _factor(self, position: int) -> int:
        """Pixels of the files per sample, of the finer map of a link."""
        return min(source.factor for link in self.links for source in link.sources) * 2**position

    def _dense(self, position: int) -> "Tiled":
        overlaps, weights, per_tile = [], [], []
        for link in self.links:
            there = self.coordinates.between(self.state, link.fixed, link.moving)
            back = self.coordinates.between(self.state, link.moving, link.fixed)
            for both in link.overlaps(position, there, back, self.options):
                usable = [one for one in both if one.count]
                per_tile.append(range(len(overlaps), len(overlaps) + len(usable)))
                overlaps += usable
                weights += [1 / one.sigma**2 for one in usable]
        free = np.zeros((len(self.state.warps), self.coordinates.kind.tangent_dim + 2))
        for index in set(self.coarse.result.aligned) - {self.coarse.result.reference} - self.held:
            free[index, :-2] = 1
            free[index, -2:] = self.options.freedom
        dense = Dense(overlaps, np.array(weights), self.coordinates, free, self.options.correlated)
        return Tiled(dense, [one for one in per_tile if len(one)], float(self._factor(position)))

    def _doubt(self, status: int, state: State, position: int) -> str:
        """Why the end of a solve is not believed; empty where it is."""
        if status in UNFINISHED:
            return "the solve had no end."
        found = self.coarse.result
        for index in set(found.aligned) - {found.reference}:
            moved = self.coordinates.frame.to_pixels(torch.from_numpy(state.warps[index]))
            height, width = self._size(found.reference)
            off = corner_error(moved, self.coarse.transform(index), height, width)
            coarse = self.coarse.factors[index]
            sigma = float(found.corner_sigma[index]) * self.coarse.factors[found.reference]
            if not off <= FAR * coarse + 6 * sigma:
                return f"it moved map {index} by {off:.1f} px from where the reduced rasters agree."
        for link in self.links:
            before, after = (self._agreement(link, at, position) for at in (self.state, state))
            if after < before - WORSE:
                return f"maps {link.fixed} and {link.moving} correlate less there ({before:.3f} to {after:.3f})."
        return ""

    def _size(self, index: int) -> tuple[int, int]:
        file = self.coarse.files[index]
        assert file is not None
        return file.size

    def _agreement(self, link: TiledLink, state: State, position: int) -> float:
        """The correlation of all tiles of a link together, over samples that are valid here and there."""
        here, there = (
            torch.from_numpy(self.coordinates.between(at, link.fixed, link.moving).matrix) for at in (self.state, state)
        )
        return link.correlation(position, here, there)

    def _tell(self, position: int, factor: int, costs: Sequence[float], samples: int) -> None:
        """A stage per link, of the one solve of all of them: residuals in units of their own spread."""
        rms = [math.sqrt(2 * cost / max(samples, 1)) for cost in costs]
        for link in self.links:
            size = link.sources[0].file.reduced(factor)
            overlap = float(self.coarse.result.overlap[link.moving])
            loss = "l2" if self.options.loss is None else self.options.loss
            ncc = self._agreement(link, self.state, position)
            stage = Stage(link.moving, int(math.log2(factor)), size, self.options.model, loss, rms, overlap, ncc)
            self.stages.append(stage)
            if self.progress is not None:
                self.progress(stage)

    # ---- how well all is determined

    def spread(self) -> Float[np.ndarray, "maps tangent tangent"] | None:
        """Of every map's warp, of the tiles that were used on the last level. None where no level was believed."""
        return None if self.last is None else self.last.spread(self.state)

    # ---- what is to be said

    def evidence(self, index: int) -> tuple[float, float, float]:
        """Of the links that end at a map, on the last level: the correlation, the median of the tiles' agreement in
        detail, and the share of tiles that agree by less than `min_detail`."""
        agreements, correlations = [], []
        for link in self.links:
            if index in (link.fixed, link.moving):
                correlations.append(self._agreement(link, self.state, self.at))
                at = torch.from_numpy(self.coordinates.between(self.state, link.fixed, link.moving).matrix)
                agreements += [evidence(level, at).agreement for level in link.pair_levels(self.at)]
        known = np.array([one for one in agreements if math.isfinite(one)])
        if not len(known):
            return (max(correlations, default=math.nan), math.nan, math.nan)
        return max(correlations), float(np.median(known)), float((known < self.options.min_detail).mean())
