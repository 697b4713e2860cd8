"""`metric="auto"`: which metric a pair is placed by, and why.

Values are asked first, and most pairs are done with that. Where they are refused (a negative, another modality, a lamp
that moved) the pair is searched for by the strength of edges, under the same tests of evidence. Where that is believed,
values are asked once more from there, as they are and inverted: they are more accurate where they hold. And where
values were believed but a curve of values explains some of the residuals, which biases the place by a pixel, it is
taken out (`mslsq.alignment.along_curves`). Where residuals vary slowly over the map even so, light is between them:
then edges are asked from there.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mslsq.alignment import grain, hot, light
from mslsq.alignment.along_curves import AlongCurves
from mslsq.alignment.draft import Draft
from mslsq.alignment.evenness import UNEVEN, unevenness
from mslsq.alignment.forms import disagreeing, form_alone, form_contradicted, of_another_kind, voting_levels
from mslsq.alignment.linking import NEAR, Linked, Linker, left_out
from mslsq.alignment.measures import corner_error
from mslsq.alignment.metrics import Metric, NormalizedGradients, SquaredDifference
from mslsq.alignment.result import MapStatus
from mslsq.alignment.tree import grow
from mslsq.alignment.weighing import STILL

EDGES = NormalizedGradients()

CONTRADICTED = 3.0
"""Standard errors: values that are doubted and put the corners farther than this from where edges do, which are not
sure, are not believed. (They were 1.3 and 2.7 px off, 5 and 10 standard errors.)"""


@dataclass(frozen=True)
class Choice:
    """The maps, compared by values, and what else is tried."""

    linker: Linker

    def first(self, fixed: int, moving: int, initial: Tensor | None = None) -> Linked:
        """By values; by edges from there, where values leave residuals that vary slowly."""
        linker, by_values = grain.link(self.linker, fixed, moving, initial)
        if not by_values.placed.status.ok:
            return self._beyond_marks(by_values, initial)
        if linker is not self.linker:  # the sharpest edges are those of the grain
            return light.evened(linker, by_values)
        bent = AlongCurves(self.linker, by_values, NEAR * self._side(fixed)).placed()
        by_values, share = bent.linked, bent.share
        if share < UNEVEN:
            return by_values
        doubt = f"values leave residuals of which {share:.0%} vary slowly over the map, as light does"
        by_edges, apart = self._again(by_values, EDGES)
        if not by_edges.placed.status.ok:  # looked for, they may lead every other place by enough
            searched = self._by_edges(fixed, moving, initial)
            if searched.placed.status.ok:
                by_edges, apart = searched, self.linker.apart(searched, by_values)
        allowed = CONTRADICTED * by_values.placed.corner_sigma
        if by_edges.placed.status.ok and apart <= max(NEAR * self._side(fixed), allowed):
            return self._unless_a_form(by_edges, f" By {EDGES.words}: {doubt}.")
        if apart <= allowed:
            return by_values
        why = f"({doubt[0].upper()}{doubt[1:]}, and {EDGES.words} puts it {apart:.1f} px away.)"
        return left_out(by_values, why)

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
                form = form_contradicted(by_values, voting_levels(self.linker.by(EDGES), by_values))
                return left_out(by_values, form) if form else by_values.explained(f"{found}; then by {metric.words}.")
        return self._unless_a_form(by_edges, f"{found}.")

    def _beyond_marks(self, by_values: Linked, initial: Tensor | None) -> Linked:
        """By edges, where values may agree in marks alone: of two modalities parts agree, too."""
        if not by_values.placed.marks:
            return by_values
        by_edges = self._by_edges(by_values.fixed, by_values.moving, initial)
        placed = by_edges.placed.status.ok and not self._hot(by_edges)
        if not (placed and of_another_kind(self.linker.by(EDGES), by_edges)):
            return by_values
        return by_edges.explained(f" Found by {EDGES.words}, as values agree in parts alone.")

    def _unless_a_form(self, by_edges: Linked, why: str) -> Linked:
        """The place by edges, with a reason; refused where it may be that of one form that both maps have."""
        linker = self.linker.by(EDGES)
        if hot := self._hot(by_edges):
            return left_out(by_edges, hot)
        levels = voting_levels(linker, by_edges)
        form = form_alone(linker, by_edges, levels) or form_contradicted(by_edges, levels)
        return left_out(by_edges, form) if form else by_edges.explained(why + disagreeing(by_edges, levels))

    def _hot(self, by_edges: Linked) -> str:
        """What speaks for hot pixels where a map lies on the very pixels that it lay on, within its standard error;
        empty if nothing does."""
        one, other = self.linker.map(by_edges.fixed), self.linker.map(by_edges.moving)
        there = torch.eye(3, device="cpu").to(by_edges.transform)
        # As far as it is known: edges of two sensors' noise move a map that lies on its hot pixels, too.
        known = max(STILL, min(by_edges.placed.corner_sigma, 1.0))
        still = corner_error(by_edges.transform, there, *one.mask.shape) < known
        count = hot.in_common(one, other) if still else 0
        if count < hot.FEWEST:
            return ""
        return f"({count} points stand out alone at the same pixels of both maps, as hot pixels do: mask them.)"

    def _by_edges(self, fixed: int, moving: int, initial: Tensor | None) -> Linked:
        """Where edges put it, of all places."""
        return grain.link(self.linker.by(EDGES), fixed, moving, initial)[1]

    def _side(self, fixed: int) -> int:
        return max(self.linker.map(fixed).mask.shape)

    def _again(self, linked: Linked, metric: Metric) -> tuple[Linked, float]:
        """Another metric, asked from the place that one has found; and how far it moves the corners."""
        pair = linked.fixed, linked.moving
        again = self.linker.by(metric).link(*pair, linked.transform, trusted=True)
        # How far a place stands out from others was asked of the first metric.
        placed = replace(again.placed, lead=linked.placed.lead)
        return replace(again, placed=placed), self.linker.apart(again, linked)

    def unevenness(self, linked: Linked) -> float:
        """Which share of the energy of a placement's residuals in values the means of blocks hold."""
        by_values = self.linker.by(SquaredDifference(linked.metric == "inverted"))
        return unevenness(by_values.finest(linked.fixed, linked.moving), linked.placed.estimate)


ASKED_AGAIN = (MapStatus.LOW_CORRELATION, MapStatus.NO_OVERLAP, MapStatus.NOT_CONVERGED)
"""What another metric may find a place for. A map that fits in several places, or that the others contradict, stays
out."""


def place_by_edges(choice: Choice, draft: Draft, starts: Tensor | None) -> None:
    """Ask again about the maps that were left out, on all that are placed."""
    waiting = [index for index, state in enumerate(draft.states) if state in ASKED_AGAIN]
    placed = [draft.reference, *(i for i, state in enumerate(draft.states) if state == MapStatus.ALIGNED)]
    for index, best in grow(choice.second, choice.linker.frame, draft, starts, waiting, placed).items():
        draft.reasons[index] += f" By {EDGES.words}, no better: {best.reason}"
