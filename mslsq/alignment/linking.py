"""One map placed on another, in the maps' own pixels and values: `pairwise.place` for maps that are prepared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from mslsq.alignment import occupancy
from mslsq.alignment.coordinates.lattice import Lattice
from mslsq.alignment.evenness import correlated_pixels
from mslsq.alignment.measures import corner_error
from mslsq.alignment.metrics import Metric, Occupancy, SquaredDifference
from mslsq.alignment.models import Frame
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pairwise import Placed, place
from mslsq.alignment.prepared import Prepared
from mslsq.alignment.pyramid import Level, depth
from mslsq.alignment.result import MapStatus, Stage

SQUARED = SquaredDifference()

SHARP = 0.8
"""Correlation of the finest detail from which values are believed to say a place better than walls: maps that have
drifted by a few pixels have less, and their residuals tell nothing of the error."""

NEAR = 0.04
"""Of the reference's longer side: how far two ways to compare maps may put the corners apart and still mean one
place."""

NEAR_WALLS = 3.0
"""Standard errors of a place found by walls, within which values must say the same."""

WALLS_ALONE = "walls and free space say the same place, but of what they could say less than is asked."


@dataclass(frozen=True)
class Linked:
    """Map `moving` placed on map `fixed`: fixed pixel (x, y, 1) to moving pixel, fixed ≈ gain · moving + bias."""

    fixed: int
    moving: int
    placed: Placed
    transform: Float[Tensor, "3 3"]
    gain: Float[Tensor, ""]
    bias: Float[Tensor, ""]
    spread: float
    """Of the fixed map's values: residuals of solves are in units of it."""
    metric: str = "squared"
    """The name of what they were compared by."""

    def explained(self, why: str) -> "Linked":
        """The same with more to its reason."""
        return replace(self, placed=replace(self.placed, reason=self.placed.reason + why))


def left_out(linked: Linked, why: str, status: MapStatus = MapStatus.LOW_CORRELATION) -> Linked:
    """Refused, and why."""
    return replace(linked, placed=replace(linked.placed, status=status, reason=f"{status.sentence} {why}"))


@dataclass(frozen=True)
class Linker:
    """The maps of one alignment, and how two of them are placed on each other. Maps that cannot be used are None."""

    maps: Sequence[Prepared | None]
    options: Options
    levels: int | str
    progress: Callable[[Stage], None] | None = None
    stages: list[Stage] = field(default_factory=list)
    lattice: Lattice | None = None
    """Where headers put the maps."""

    def map(self, index: int) -> Prepared:
        """A map that can be used."""
        prepared = self.maps[index]
        assert prepared is not None
        return prepared

    def frame(self, index: int) -> Frame:
        """The normalised coordinates of one map."""
        prepared = self.map(index)
        height, width = prepared.mask.shape
        return Frame(height, width, prepared.values)

    def units(self, fixed: int, moving: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(mean, spread) that each is standardised by: both alike where gain or bias is held, each by its own where it
        is free, with the sign of the metric's gain."""
        one, other, value = self.map(fixed), self.map(moving), self.comparison.value
        spread = other.spread * self.options.metric.sign if value in ("gain", "gain_bias") else one.spread
        mean = {"gain_bias": other.mean, "bias": other.mean, "gain": 0.0, "none": one.mean}[value]
        return (0.0 if value == "gain" else one.mean, one.spread), (mean, spread)

    def pyramid(self, index: int, count: int, units: tuple[float, float]) -> list[Level]:
        """The levels of one map in these units."""
        return self.map(index).pyramid(count, *units, self.options.prefilter, self.options.metric)

    @property
    def comparison(self) -> Options:
        """The options of the solves: gain and bias of what is no value are always free."""
        return self.options if self.options.metric.values else replace(self.options, value="gain_bias")

    def by(self, metric: Metric) -> "Linker":
        """The same maps, compared by another metric."""
        return replace(self, options=replace(self.options, metric=metric))

    def apart(self, one: Linked, other: Linked) -> float:
        """How far two places of a pair put the corners apart, in pixels."""
        return corner_error(one.transform, other.transform, *self.map(one.fixed).mask.shape)

    def count(self, fixed: int, moving: int) -> int:
        """How many levels the two have in common."""
        short = min(*self.map(fixed).mask.shape, *self.map(moving).mask.shape)
        return depth(short, short) if self.levels == "auto" else int(self.levels)

    def link(self, fixed: int, moving: int, initial: Tensor | None = None, trusted: bool = False) -> Linked:
        """Place one map on another; `initial`, from pixels of the one to those of the other, replaces the search. Where
        it is `trusted`, other maps having said so, no other place is compared with it."""
        if initial is None:
            headed = self.at_header(fixed, moving)
            if headed is not None and headed.placed.status.ok:
                return headed
        return self._placed(fixed, moving, initial, trusted)

    def at_header(self, fixed: int, moving: int) -> Linked | None:
        """Place one map where their headers put it, under the same evidence as any other place. None without
        headers, and by walls: that a place stands out is asked of the search, which looks at every place."""
        asked = self.options.init == "auto" and not isinstance(self.options.metric, Occupancy)
        start = None if self.lattice is None or not asked else self.lattice.start(fixed, moving)
        key = fixed, moving, self.options.metric.name
        if start is None or self.lattice is None or key in self.lattice.tried:
            return None
        self.lattice.tried.add(key)
        headed = self._placed(fixed, moving, start, grow=True)
        self.lattice.heard(fixed, moving, headed.placed.status.ok, headed.placed.reason)
        return headed

    def _placed(
        self, fixed: int, moving: int, initial: Tensor | None, trusted: bool = False, grow: bool = False
    ) -> Linked:
        if isinstance(self.options.metric, Occupancy):
            return self.by_walls(fixed, moving, initial)
        count, frame = self.count(fixed, moving), self.frame(fixed)
        of_fixed, of_moving = self.units(fixed, moving)
        pyramids = self.pyramid(fixed, count, of_fixed), self.pyramid(moving, count, of_moving)
        options = self.comparison.between(fixed, moving)
        options = replace(options, init="given") if trusted else options
        placed = place(*pyramids, frame, options, moving, initial, self.progress, grow)
        self.stages.extend(placed.stages)
        if self.options.metric.values:
            log_gain, offset = placed.value.tolist()
            factor = of_fixed[1] * math.exp(log_gain) / of_moving[1]
            gain, bias = placed.value.new_tensor(
                [factor, of_fixed[0] + of_fixed[1] * offset - factor * of_moving[0]]
            ).unbind()
        else:
            gain, bias = self.values_between(fixed, moving, placed.warp)
            placed = self.widened(fixed, moving, placed)
        metric = self.options.metric.name
        return Linked(fixed, moving, placed, frame.to_pixels(placed.warp), gain, bias, of_fixed[1], metric)

    def by_walls(self, fixed: int, moving: int, initial: Tensor | None) -> Linked:
        """`occupancy.place`, and values where they say the same place: more accurately from there on, or, where walls
        alone do not hold it, by a search and evidence of their own."""
        frame = self.frame(fixed)
        header = self.lattice.start(fixed, moving) if self.lattice and self.options.init == "auto" else None
        maps = self.map(fixed), self.map(moving)
        by_walls = occupancy.place(*maps, frame, self.options, moving, initial, self.progress, header)
        placed = by_walls.placed
        self.stages.extend(placed.stages)
        found = frame.to_pixels(placed.warp)
        by_values = None
        if placed.status.ok and by_walls.exact:
            values = self.by(SQUARED)
            by_values, near = values.link(fixed, moving, found, trusted=True), placed.corner_sigma
            reason = f"{placed.reason} Then by {SQUARED.words}."
            sharp = values.finest(fixed, moving).judgement(by_values.placed.warp)["detail"] >= SHARP
        elif by_walls.doubted:
            by_values, near, sharp = self.of_known(fixed, moving).link(fixed, moving), by_walls.drift, True
            reason = f"{by_values.placed.reason} By {SQUARED.words}: {WALLS_ALONE}"
        if by_values is not None and by_values.placed.status.ok and sharp:
            apart = corner_error(by_values.transform, found, *self.map(fixed).mask.shape)
            if apart < NEAR_WALLS * near:
                said = replace(by_values.placed, reason=reason, lead=placed.lead)
                return replace(by_values, placed=said, metric=self.options.metric.name)
        gain, bias = self.values_between(fixed, moving, placed.warp)
        spread = self.map(fixed).spread
        return Linked(fixed, moving, placed, found, gain, bias, spread, self.options.metric.name)

    def of_known(self, fixed: int, moving: int) -> "Linker":
        """Two occupancy maps by values of what is known of them, wherever their headers put them."""
        metric, maps = self.options.metric, list(self.maps)
        assert isinstance(metric, Occupancy)
        for index in (fixed, moving):
            maps[index] = occupancy.without_unknown(self.map(index), metric)
        return replace(self.by(SQUARED), maps=maps, lattice=None)

    def finest(self, fixed: int, moving: int) -> PairLevel:
        """The finest level of the two, as the metric sees it."""
        units = self.units(fixed, moving)
        one, other = (self.pyramid(index, 1, of)[0] for index, of in zip((fixed, moving), units, strict=True))
        return PairLevel.of(one, other, self.frame(fixed), 0)

    def widened(self, fixed: int, moving: int, placed: Placed) -> Placed:
        """With standard errors for residuals that are correlated farther than the prefilter makes them: what a metric
        makes of two modalities differs by more than noise."""
        if not placed.status.ok:
            return placed
        white = max(1.0, 4 * math.pi * self.options.prefilter**2)
        factor = max(correlated_pixels(self.finest(fixed, moving), placed.estimate) / white, 1.0)
        sigma = placed.corner_sigma * factor**0.5
        return replace(placed, covariance=placed.covariance * factor, corner_sigma=sigma)

    def values_between(self, fixed: int, moving: int, warp: Float[Tensor, "3 3"]) -> tuple[Tensor, Tensor]:
        """Gain and bias (where they are free) that give both maps the same mean and spread where they overlap; the
        gain has the sign of their correlation there."""
        one, other = (
            self.map(index).pyramid(1, 0.0, 1.0, self.options.prefilter, SQUARED)[0] for index in (fixed, moving)
        )
        level = PairLevel.of(one, other, self.frame(fixed), 0)
        sampled, valid = level.look(warp)
        x, y = sampled[valid].reshape(-1), level.target[valid].reshape(-1)
        gain, bias = x.new_ones(()), x.new_zeros(())
        free_gain, free_bias = self.options.freedom
        if free_gain and len(x) > 1:
            product = (x - x.mean()) @ (y - y.mean()) if free_bias else x @ y
            spreads = (y.std() / x.std()) if free_bias else (y.norm() / x.norm())
            gain = spreads.nan_to_num(1.0, 1.0, 1.0) * (-1.0 if product < 0 else 1.0)
        if free_bias and len(x):
            bias = y.mean() - gain * x.mean()
        return gain, bias
