"""The links of an alignment: few pairs are searched in full, as coarse levels and other links say where to look."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.grain import unless_on_noise
from mslsq.alignment.joint.connections import components
from mslsq.alignment.joint.links import DECISIVE, Link, LinkStatus
from mslsq.alignment.joint.screening import Candidate, coarse_levels, predicted_overlap, screened
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import corner_error

PARTNERS = 4
"""Of every map, the best on the coarse level: these pairs are placed from there. Of twelve maps around a ring a true
neighbour ranked fourth at worst."""

SEARCHES = 4
"""Full searches that may fail for each map of a part, before the part is given up."""

NEAR = 0.02
"""Of a map's longer side: a refinement from places so close to each other ends at the same one."""

Transforms = dict[int, Float[Tensor, "3 3"]]


@dataclass
class Gathering:
    """All pairs that have been tried, with the link that came of each."""

    linker: Linker
    usable: Sequence[int]
    known: Collection[int] = ()
    """The maps whose places are known: pairs of them are not asked."""
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    predicted: dict[tuple[int, int], list[tuple[Tensor, Link]]] = field(default_factory=dict)
    """What came of pairs that were tried where other links put them: the place, and the link found from there."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        pairs = [(i, j) for n, i in enumerate(self.usable) for j in self.usable[n + 1 :]]
        return [pair for pair in pairs if not all(index in self.known for index in pair)]

    @property
    def used(self) -> list[Link]:
        return [link for link in self.links.values() if link.status is LinkStatus.USED]

    def attempt(self, fixed: int, moving: int, initial: Tensor | None = None, predicted: bool = False) -> Link:
        """Place one map on another, and keep the result unless a better one is known."""
        linked = self.linker.link(fixed, moving, initial, trusted=predicted)
        link = Link.of(linked if predicted else unless_on_noise(self.linker, linked), predicted)
        known = self.links.get(link.pair)
        if known is None or link.status < known.status:
            self.links[link.pair] = link
        return link

    # ---- by headers

    def by_headers(self) -> None:
        """Pairs that overlap where their georeferences put them."""
        for pair in self.pairs:
            lattice = self.linker.lattice
            start = None if lattice is None else lattice.start(*pair)
            if lattice is None or start is None:
                continue
            if predicted_overlap(self.linker, *pair, start) < self.linker.options.min_overlap:
                lattice.heard(*pair, False, "(They hardly overlap there, or not at all.)")
                continue
            linked = self.linker.at_header(*pair)
            if linked is not None:
                link = Link.of(linked)
                self.links[pair] = link
                self.predicted.setdefault(pair, []).append((start, link))

    # ---- by the coarse level

    def by_screening(self) -> None:
        """Upright shifts first, each map with its best partners; then what does not hang together by that, with
        searches of all rotations."""
        if self.linker.options.init in ("identity", "phase"):
            self._without_search()
            return
        levels = coarse_levels(self.linker, self.usable)
        upright = screened(self.linker, levels, self.pairs, turned=False)
        for candidate in leading(upright, PARTNERS):
            if self.linker.lattice is None or (candidate.fixed, candidate.moving) not in self.linker.lattice.agreed:
                self._at_peaks(candidate)
        apart = self._apart(self.pairs)
        if apart:
            turns = self.linker.options.model != "translation"
            self._search(screened(self.linker, levels, apart, turned=True) if turns else upright)

    def _at_peaks(self, candidate: Candidate) -> None:
        """Place a pair from every peak of its correlation, and keep the placement with the most support; undecided
        where another one has nearly as much."""
        pair = candidate.fixed, candidate.moving
        found = [self.linker.link(*pair, transform) for transform in candidate.transforms]
        links = [Link.of(unless_on_noise(self.linker, linked)) for linked in found]
        links.sort(key=lambda link: (link.status, -link.support))
        best, side = links[0], max(self.linker.map(pair[0]).mask.shape)
        for other in links[1:]:
            distance = corner_error(other.linked.transform, best.linked.transform, side, side)
            if other.status is LinkStatus.USED and distance > NEAR * side and other.support > DECISIVE * best.support:
                best = best.marked(LinkStatus.UNDECIDED)
        self.links[pair] = best

    @property
    def whole(self) -> bool:
        """Do all maps hang together by links?"""
        return not self._apart(self.pairs)

    def _apart(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those pairs whose maps do not hang together by links."""
        parts = components(self.usable, self.used, self.known)
        return [(i, j) for i, j in pairs if not any(i in part and j in part for part in parts)]

    def _search(self, ranked: Sequence[Candidate]) -> None:
        """Pairs of different parts in full, until all hang together or too many searches have failed.

        The smaller part decides (of two alike both), so that a map that belongs to nothing fails with four of the many
        that hang together, and not with every one of them.
        """
        failures = dict.fromkeys(self.usable, 0)
        parts = components(self.usable, self.used, self.known)
        for candidate in ranked:
            pair = candidate.fixed, candidate.moving
            one, other = (next(part for part in parts if index in part) for index in pair)
            smaller = [part for part in (one, other) if len(part) == min(len(one), len(other))]
            if one is other or all(_given_up(part, failures) for part in smaller):
                continue
            if self.attempt(*pair).status is LinkStatus.USED:
                parts = components(self.usable, self.used, self.known)
                continue
            for index in pair:
                failures[index] += 1

    def _without_search(self) -> None:
        for pair in self.pairs:
            self.attempt(*pair)

    # ---- by transforms

    def by_transforms(self, transforms: Transforms, trusted: bool = True) -> int:
        """Pairs of maps that overlap where these transforms (from the reference) put them; how many were tried.

        A pair is tried so once per place, and not if it has a link already that others do not contradict. Transforms
        that only might be right are not `trusted`: there a pair must stand out from other places, too.
        """
        count = 0
        for pair in self.pairs:
            known = self.links.get(pair)
            if (known is not None and known.status is LinkStatus.USED) or not all(i in transforms for i in pair):
                continue
            between = transforms[pair[1]] @ torch.linalg.inv(transforms[pair[0]])
            if predicted_overlap(self.linker, *pair, between) < self.linker.options.min_overlap:
                continue
            if self.tried_at(pair, between, trusted) is None:
                link = self.attempt(*pair, initial=between, predicted=trusted)
                self.predicted.setdefault(pair, []).append((between, link))
                count += 1
        return count

    def tried_at(self, pair: tuple[int, int], between: Float[Tensor, "3 3"], trusted: bool = False) -> Link | None:
        """What came of this pair when it was tried at this place or near; or was tried there on trust."""
        height, width = self.linker.map(pair[0]).mask.shape
        near = NEAR * max(height, width)
        for place, link in self.predicted.get(pair, []):
            if (link.predicted or not trusted) and corner_error(between, place, height, width) <= near:
                return link
        return None


def _given_up(part: Collection[int], failures: Mapping[int, int]) -> bool:
    return sum(failures[index] for index in part) >= SEARCHES * len(part)


def leading(ranked: Sequence[Candidate], partners: int) -> list[Candidate]:
    """The candidates that are among the first few of one of their two maps, in order."""
    seen: dict[int, int] = {}
    chosen = []
    for candidate in ranked:
        ends = candidate.fixed, candidate.moving
        if any(seen.get(index, 0) < partners for index in ends):
            chosen.append(candidate)
        for index in ends:
            seen[index] = seen.get(index, 0) + 1
    return chosen
