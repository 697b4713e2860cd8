"""`metric="auto"`: which metric a pair is placed by, and why.

Values are asked first, and most pairs are done with that. Where they are refused (a negative, another modality, a lamp
that moved) the pair is searched for by the strength of edges, under the same tests of evidence. Where that is believed,
values are asked once more from there, as they are and inverted: they are more accurate where they hold. And where
values were believed but a curve of values explains some of the residuals, which biases the place by a pixel, it is
taken out (`mslsq.alignment.curves`). Where residuals vary slowly over the map even so, light is between them: then
edges are asked from there.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from mslsq.alignment.curves import CURVED, Curve, curve_between, taken_along
from mslsq.alignment.draft import Draft
from mslsq.alignment.evenness import unevenness
from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.measures import corner_error
from mslsq.alignment.metrics import Metric, NormalizedGradients, SquaredDifference
from mslsq.alignment.result import MapStatus
from mslsq.alignment.tree import grow

EDGES = NormalizedGradients()

UNEVEN = 0.2
"""Share of the residuals' energy that the means of the blocks hold, at which values are doubted. It was 0.04 to 0.09
where a gain and a bias are all that is between two maps, 0.2 to 0.8 under a gamma, 0.6 to 0.9 under a lamp (the half
"choose" of `benchmarks/metric_pairs.py`)."""

NEAR = 0.04
"""Of the reference's longer side: how far two metrics may put the corners apart and still mean one place."""

CURVES = 6
"""Are taken at most: each is seen where the one before it has moved the map."""

SETTLED = 0.2
"""Standard errors: what curves would move the map further, were they taken again and again, and no more are taken."""

SHRINKS = 0.5, 0.75
"""By what each curve moves the map less than the one before it did: of the first one it is not known, and at most."""

CONTRADICTED = 3.0
"""Standard errors: values that are doubted and put the corners farther than this from where edges do, which are not
sure, are not believed. (They were 1.3 and 2.7 px off, 5 and 10 standard errors.)"""


@dataclass(frozen=True)
class Choice:
    """The maps, compared by values, and what else is tried."""

    linker: Linker

    def first(self, fixed: int, moving: int, initial: Tensor | None = None) -> Linked:
        """By values; by edges from there, where values leave residuals that vary slowly."""
        by_values = self.linker.link(fixed, moving, initial)
        if not by_values.placed.status.ok:
            return by_values
        by_values, share = self._along_a_curve(by_values)
        if share < UNEVEN:
            return by_values
        doubt = f"values leave residuals of which {share:.0%} vary slowly over the map, as light does"
        by_edges, apart = self._again(by_values, EDGES)
        if not by_edges.placed.status.ok:  # looked for, they may lead every other place by enough
            searched = self._by_edges(fixed, moving, initial)
            if searched.placed.status.ok:
                by_edges, apart = searched, self._apart(searched, by_values)
        allowed = CONTRADICTED * by_values.placed.corner_sigma
        if by_edges.placed.status.ok and apart <= max(NEAR * self._side(fixed), allowed):
            return explained(by_edges, f" By {EDGES.words}: {doubt}.")
        if apart <= allowed:
            return by_values
        status = MapStatus.LOW_CORRELATION
        reason = f"{status.sentence} ({doubt[0].upper()}{doubt[1:]}, and {EDGES.words} puts it {apart:.1f} px away.)"
        return replace(by_values, placed=replace(by_values.placed, status=status, reason=reason))

    def _along_a_curve(self, by_values: Linked) -> tuple[Linked, float]:
        """Values once more from there, one map's taken along a curve to the other's where gain and bias leave one, and
        how unevenly residuals are left; the same as before where that is not believed.

        The curve is seen at the place that it moves, so it is taken again until little more is to come; what is still
        to come, as a geometric series has it, is added to the error that is stated. It is that of the maps as they
        are: behind a prefilter an edge from dark to bright has other values in between than the curve of its values,
        and lies elsewhere. Where values in between are those of edges alone, a curve and a shift of the edges are one
        and the same to the residuals; so by how much the curve behind the prefilter would move the map is added, too.
        """
        pair = by_values.fixed, by_values.moving
        level, units = self.linker.finest(*pair), self.linker.units(*pair)
        curve = curve_between(level, by_values.placed.estimate)
        if curve is None or curve.explained < CURVED:
            return by_values, unevenness(level, by_values.placed.estimate)
        sharp = replace(self.linker, options=replace(self.linker.options, prefilter=0.0)).finest(*pair)
        explains, curve = curve.explained, curve_between(sharp, by_values.placed.estimate)

        def along(curve: Curve, start: Tensor) -> tuple[Linker, Linked]:
            maps, changed = list(self.linker.maps), 0 if curve.of_fixed else 1
            maps[pair[changed]] = taken_along(self.linker.map(pair[changed]), curve, *units[changed])
            curved = replace(self.linker, maps=maps)
            return curved, curved.link(*pair, start, trusted=True)

        found, share, shrinks, moved, rest = by_values, 1.0, SHRINKS[0], math.inf, math.inf
        for _ in range(CURVES):
            if curve is None:
                break
            curved, again = along(curve, found.transform)
            if not again.placed.status.ok or self._apart(again, by_values) > NEAR * self._side(pair[0]):
                return by_values, unevenness(level, by_values.placed.estimate)
            before, moved = moved, self._apart(again, found)
            found, share = again, unevenness(curved.finest(*pair), again.placed.estimate)
            if before < math.inf:
                shrinks = min(moved / max(before, 1e-300), SHRINKS[1])
            rest = moved * shrinks / (1 - shrinks)
            if rest < SETTLED * found.placed.corner_sigma:
                break
            curve = curve_between(sharp, found.placed.estimate)
        if found is by_values:
            return by_values, unevenness(level, by_values.placed.estimate)
        other, doubt = curve_between(level, found.placed.estimate), 0.0
        if other is not None:
            curved, behind = along(other, found.transform)
            doubt = self._apart(behind, found) / (1 - shrinks)
            evenly = unevenness(curved.finest(*pair), behind.placed.estimate)
            # Noise flattens the curve of the maps as they are, and then more is left by it.
            if evenly < UNEVEN <= share and behind.placed.status.ok:
                found, share = behind, evenly
        sigma = math.hypot(found.placed.corner_sigma, rest, doubt)
        placed = replace(found.placed, value=by_values.placed.value, lead=by_values.placed.lead, corner_sigma=sigma)
        placed = replace(placed, covariance=placed.covariance * (sigma / found.placed.corner_sigma) ** 2)
        found = replace(found, placed=placed, gain=by_values.gain, bias=by_values.bias)
        why = f" By values along a curve: it explains {explains:.0%} of what a gain and a bias leave."
        return explained(found, why), share

    def second(self, fixed: int, moving: int, initial: Tensor | None = None) -> Linked:
        """By edges, for a pair whose values were refused; and by values from there, where they hold."""
        by_edges = self._by_edges(fixed, moving, initial)
        if not by_edges.placed.status.ok:
            return by_edges
        found = f" Found by {EDGES.words}, as values were refused"
        for metric in (SquaredDifference(inverted=True), SquaredDifference()):
            if metric.sign < 0 and not self.linker.options.freedom[0]:
                continue
            by_values, apart = self._again(by_edges, metric)
            near = by_values.placed.status.ok and apart <= NEAR * self._side(fixed)
            if near and self.unevenness(by_values) < UNEVEN:
                return explained(by_values, f"{found}; then by {metric.words}.")
        return explained(by_edges, f"{found}.")

    def _by_edges(self, fixed: int, moving: int, initial: Tensor | None) -> Linked:
        """Where edges put it, of all places."""
        return self.linker.by(EDGES).link(fixed, moving, initial)

    def _side(self, fixed: int) -> int:
        return max(self.linker.map(fixed).mask.shape)

    def _again(self, linked: Linked, metric: Metric) -> tuple[Linked, float]:
        """Another metric, asked from the place that one has found; and how far it moves the corners."""
        pair = linked.fixed, linked.moving
        again = self.linker.by(metric).link(*pair, linked.transform, trusted=True)
        # How far a place stands out from others was asked of the first metric.
        placed = replace(again.placed, lead=linked.placed.lead)
        return replace(again, placed=placed), self._apart(again, linked)

    def _apart(self, one: Linked, other: Linked) -> float:
        """How far two places put the corners apart."""
        return corner_error(one.transform, other.transform, *self.linker.map(one.fixed).mask.shape)

    def unevenness(self, linked: Linked) -> float:
        """Which share of the energy of a placement's residuals in values the means of blocks hold."""
        by_values = self.linker.by(SquaredDifference(linked.metric == "inverted"))
        return unevenness(by_values.finest(linked.fixed, linked.moving), linked.placed.estimate)


def explained(linked: Linked, why: str) -> Linked:
    """The same with more to its reason."""
    return replace(linked, placed=replace(linked.placed, reason=linked.placed.reason + why))


ASKED_AGAIN = (MapStatus.LOW_CORRELATION, MapStatus.NO_OVERLAP, MapStatus.NOT_CONVERGED)
"""What another metric may find a place for. A map that fits in several places, or that the others contradict, stays
out."""


def place_by_edges(choice: Choice, draft: Draft, starts: Tensor | None) -> None:
    """Ask again about the maps that were left out, on all that are placed."""
    waiting = [index for index, state in enumerate(draft.states) if state in ASKED_AGAIN]
    placed = [draft.reference, *(i for i, state in enumerate(draft.states) if state == MapStatus.ALIGNED)]
    for index, best in grow(choice.second, draft, starts, waiting, placed).items():
        draft.reasons[index] += f" By {EDGES.words}, no better: {best.reason}"
