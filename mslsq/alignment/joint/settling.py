"""All warps and values of an alignment from the pixels of all overlaps: solve after solve, until they stay.

The samples that count, the losses, and what light or a curve of values has done are seen where the solve before has put
the maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

import mslsq
from mslsq.alignment.along_curves import CURVES, SETTLED
from mslsq.alignment.choosing import NEAR
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.joint.connections import strongest_tree
from mslsq.alignment.joint.consensus import Consensus
from mslsq.alignment.joint.dense import Dense, settle, weights_of
from mslsq.alignment.joint.links import Link
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.pose_graph import Graph
from mslsq.alignment.joint.state import Coordinates, State, in_values, standardised
from mslsq.alignment.joint.values import of_reference
from mslsq.alignment.light import to_come
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import corner_error

FREEZES, IN_LIGHT = 2, 4
"""Times that the valid samples are chosen, each before a solve; and where light is between maps, what it leaves."""


@dataclass(frozen=True)
class Solved:
    """Where solves of all maps have led, one after the other, and the last one's overlaps."""

    state: State
    dense: Dense
    ways: Sequence[Float[np.ndarray, " maps"]]
    """Pixels, of every solve."""
    status: mslsq.Status
    lit: bool = False
    """Was light taken from any?"""
    doubt: Float[np.ndarray, " maps"] | float = 0.0
    """Pixels."""

    @property
    def rest(self) -> Float[np.ndarray, " maps"]:
        """Pixels that are to come, were there more solves, and those of doubt."""
        before = self.ways[-2] if len(self.ways) > 1 else self.ways[-1]
        return np.hypot(to_come(self.ways[-1], before), self.doubt)

    @property
    def uneven(self) -> float:
        """Share of the residuals' energy that varies slowly, in the mean."""
        return float(np.mean([overlap.uneven for overlap in self.dense.overlaps]))


@dataclass(frozen=True)
class Settling:
    """The solves of the maps that the consensus places."""

    linker: Linker
    graph: Graph
    consensus: Consensus
    reference: int

    def plain(self, state: State) -> Solved:
        """From the pixels, with samples chosen at every end."""
        lit, ways = False, []
        while True:
            dense = self.dense(state)
            lit = lit or any(overlap.lit for overlap in dense.overlaps)
            settled = settle(dense, state, self.linker.options.max_steps)
            ways.append(self.apart(state, settled.state))
            state = settled.state
            if settled.status in UNFINISHED or len(ways) >= (IN_LIGHT if lit else FREEZES):
                return Solved(state, dense, ways, settled.status, lit)

    def along_curves(self, plain: Solved) -> Solved | None:
        """With all maps in the reference's values, where curves of values leave residuals that vary less slowly than
        those of gains and biases; None where they do not, or lead to other places.

        Curves are those of the maps as they are: behind the prefilter an edge has other values in between than the
        curve has, and lies elsewhere. Where noise hides these, curves are seen behind the prefilter, and by how far one
        more such curve would move the maps is a part of the error elsewhere, too.
        """
        curved, lit = (sum(getattr(each, kind) for each in plain.dense.overlaps) for kind in ("curved", "lit"))
        if curved <= lit:
            return None
        sharp = self.settled_along(plain, plain, 0.0)
        behind = self.settled_along(plain, sharp or plain, self.linker.options.prefilter)
        found = min((each for each in (plain, sharp, behind) if each is not None), key=lambda each: each.uneven)
        if found is plain:
            return None
        if sharp is None or behind is None:
            return found
        return replace(found, doubt=self.apart(sharp.state, behind.state))

    def settled_along(self, plain: Solved, at: Solved, prefilter: float) -> Solved | None:
        """Curves are taken where the solve before has put the maps, until little more is to come."""
        reference, links = self.reference, self.consensus.links
        order = [reference, *(index for index in self.tree if index != reference)]
        in_pixels = {index: self.in_pixels(index, *plain.state.values[index]) for index in order}
        enough = SETTLED * min(link.linked.placed.corner_sigma for link in links)
        near = NEAR * max(self.linker.map(reference).mask.shape)
        state, ways = at.state, []
        while True:
            coordinates, pairs = plain.dense.coordinates, {link.pair for link in links}
            alike = replace(
                self, linker=of_reference(self.linker, coordinates, state, order, pairs, in_pixels, prefilter)
            )
            values = state.values.copy()
            for index in order:
                values[index] = alike.standardised(index, 1.0, 0.0)
            dense = alike.dense(State(state.warps, values))
            settled = settle(dense, State(state.warps, values), self.linker.options.max_steps)
            ways.append(self.apart(state, settled.state))
            state = settled.state
            if settled.status in UNFINISHED or bool((self.apart(plain.state, state) > near).any()):
                return None
            if len(ways) >= CURVES or ways[-1].max() < enough:
                return Solved(state, dense, ways, settled.status)

    def apart(self, one: State, other: State) -> Float[np.ndarray, " maps"]:
        """How far two states put the reference's corners apart on every map, in pixels."""
        frame, size = self.graph.frame, self.linker.map(self.reference).mask.shape
        pixels = (frame.to_pixels(torch.from_numpy(state.warps)).to(frame.centre) for state in (one, other))
        return np.array([corner_error(a, b, *size) for a, b in zip(*pixels, strict=True)])

    def dense(self, state: State) -> Dense:
        """Every link from both of its maps."""
        graph, linker = self.graph, self.linker
        coordinates = Coordinates(graph.frame, {i: linker.frame(i) for i in self.consensus.placed}, graph.kind)
        pairs = [pair for link in self.consensus.links for pair in (link.pair, link.pair[::-1])]
        found = [Overlap.of(linker, a, b, coordinates.between(state, a, b), self.reference) for a, b in pairs]
        overlaps = [overlap for overlap in found if overlap.count]
        free = np.zeros((len(linker.maps), graph.kind.tangent_dim + 2))
        for index in set(self.consensus.placed) - set(graph.known):
            free[index, :-2] = 1
            free[index, -2:] = linker.options.freedom
        return Dense(overlaps, weights_of(overlaps), coordinates, free, linker.options.correlated)

    @property
    def tree(self) -> dict[int, Link | None]:
        """The link by which each map is believed; None for what was known."""
        return strongest_tree(self.graph.known, self.consensus.links)

    def in_pixels(self, index: int, log_gain: float, bias: float) -> tuple[float, float]:
        """Gain and bias between the values of the maps, of those between standardised ones."""
        return in_values(self.units(index), log_gain, bias)

    def standardised(self, index: int, gain: float, bias: float) -> tuple[float, float]:
        """The other way."""
        return standardised(self.units(index), gain, bias)

    def units(self, index: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(mean, spread) of the reference and of a map."""
        reference = self.reference
        return self.linker.units(reference, reference)[0], self.linker.units(reference, index)[1]
