"""A pair that values have placed, placed once more with one map's values taken along the curve to the other's.

The curve is seen at the place that it moves, so it is taken again until little more is to come; what is still to come,
as a geometric series has it, is added to the error that is stated. It is that of the maps as they are: behind a
prefilter an edge from dark to bright has other values in between than the curve of its values, and lies elsewhere.
Where values in between are those of edges alone, a curve and a shift of the edges are one and the same to the
residuals; so by how much the curve behind the prefilter would move the map is added, too.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from mslsq.alignment.curves import CURVED, Curve, curve_between, is_curved, taken_along
from mslsq.alignment.evenness import UNEVEN, unevenness
from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.pair_level import PairLevel

CURVES = 6
"""Are taken at most: each is seen where the one before it has moved the map."""

SETTLED = 0.2
"""Standard errors: what curves would move the map further, were they taken again and again, and no more are taken."""

SHRINKS = 0.5, 0.75
"""By what each curve moves the map less than the one before it did: of the first one it is not known, and at most."""


@dataclass(frozen=True)
class Bent:
    """A place along a curve, and how evenly it leaves residuals (`unevenness`)."""

    linked: Linked
    share: float


@dataclass(frozen=True)
class Settled(Bent):
    """Where curve after curve leads to."""

    shrinks: float
    """By what each move was less than the one before it."""
    rest: float
    """Pixels at the corners, still to come."""


@dataclass(frozen=True)
class AlongCurves:
    """Two maps, as values have placed them, and curves between them."""

    linker: Linker
    by_values: Linked
    near: float
    """Pixels: a place farther off from that of the values is another one."""

    @property
    def pair(self) -> tuple[int, int]:
        return self.by_values.fixed, self.by_values.moving

    @cached_property
    def level(self) -> PairLevel:
        """The two behind the prefilter."""
        return self.linker.finest(*self.pair)

    @cached_property
    def sharp(self) -> PairLevel:
        """The two as they are."""
        return replace(self.linker, options=replace(self.linker.options, prefilter=0.0)).finest(*self.pair)

    def placed(self) -> Bent:
        """By values along a curve where a gain and a bias leave one that is believed; as it was elsewhere."""
        curve = curve_between(self.level, self.by_values.placed.estimate)
        settled = self.settled() if curve is not None and curve.explained >= CURVED else None
        if curve is None or settled is None:
            doubtful = is_curved(self.level, self.by_values.placed.estimate, curve)
            linked = self.doubted(curve) if curve is not None and doubtful else self.by_values
            return Bent(linked, unevenness(self.level, self.by_values.placed.estimate))
        other, doubt = self.behind_the_prefilter(settled), 0.0
        found = Bent(settled.linked, settled.share)
        if other is not None:
            doubt = self.linker.apart(other.linked, settled.linked) / (1 - settled.shrinks)
            # Noise flattens the curve of the maps as they are, and then more is left by it.
            if other.share < UNEVEN <= settled.share and other.linked.placed.status.ok:
                found = other
        why = f" By values along a curve: it explains {curve.explained:.0%} of what a gain and a bias leave."
        return replace(found, linked=self.stated(found.linked, settled.rest, doubt).explained(why))

    def settled(self) -> Settled | None:
        """Curves of the maps as they are, until little more is to come; None without one, or where a place is not
        believed or is another one."""
        found, shrinks, moved, rest = None, SHRINKS[0], math.inf, math.inf
        for _ in range(CURVES):
            at = self.by_values if found is None else found.linked
            curve = curve_between(self.sharp, at.placed.estimate)
            if curve is None:
                break
            again = self.along(curve, at.transform)
            if not again.linked.placed.status.ok or self.linker.apart(again.linked, self.by_values) > self.near:
                return None
            before, moved = moved, self.linker.apart(again.linked, at)
            found = again
            if before < math.inf:
                shrinks = min(moved / max(before, 1e-300), SHRINKS[1])
            rest = moved * shrinks / (1 - shrinks)
            if rest < SETTLED * found.linked.placed.corner_sigma:
                break
        return None if found is None else Settled(found.linked, found.share, shrinks, rest)

    def doubted(self, curve: Curve) -> Linked:
        """As it was, where the place along a curve is not believed: by how far curves would move it, if that is
        another place nearby, is a part of its error."""
        first = self.by_values
        moved = self.linker.apart(self.along(curve, first.transform).linked, first)
        if not moved <= self.near:
            return first
        why = f" A curve of values explains {curve.explained:.0%} of its residuals, and may move it by {moved:.2g} px."
        return self.stated(first, 0.0, moved / (1 - SHRINKS[1])).explained(why)

    def behind_the_prefilter(self, settled: Settled) -> Bent | None:
        """Where one curve more would put it, of the maps as the solve sees them."""
        curve = curve_between(self.level, settled.linked.placed.estimate)
        return None if curve is None else self.along(curve, settled.linked.transform)

    def along(self, curve: Curve, start: Tensor) -> Bent:
        """One map's values taken along a curve, and the pair placed by them from a start."""
        maps, changed = list(self.linker.maps), 0 if curve.of_fixed else 1
        index = self.pair[changed]
        bent = taken_along(self.linker.map(index), curve, *self.linker.units(*self.pair)[changed])
        # What is compared inverted is inverted once more.
        maps[index] = bent.inverted() if changed == 1 and self.linker.options.metric.sign < 0 else bent
        curved = replace(self.linker, maps=maps)
        again = curved.link(*self.pair, start, trusted=True)
        return Bent(again, unevenness(curved.finest(*self.pair), again.placed.estimate))

    def stated(self, found: Linked, rest: float, doubt: float) -> Linked:
        """With what is still to come and what the curve leaves open in its error; gain, bias and what was asked of
        the place at first are those without a curve."""
        first = self.by_values
        sigma = math.hypot(found.placed.corner_sigma, rest, doubt)
        covariance = found.placed.covariance * (sigma / found.placed.corner_sigma) ** 2
        placed = replace(found.placed, value=first.placed.value, lead=first.placed.lead)
        return replace(
            found,
            placed=replace(placed, corner_sigma=sigma, covariance=covariance),
            gain=first.gain,
            bias=first.bias,
        )
