"""The joint alignment from its first link to its standard errors."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.draft import Draft
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.joint.connections import bridges, strongest_tree
from mslsq.alignment.joint.consensus import Consensus, agreed
from mslsq.alignment.joint.dense import Dense, settle, weights_of
from mslsq.alignment.joint.distortion import Distorted, covariance
from mslsq.alignment.joint.gathering import Gathering
from mslsq.alignment.joint.links import Link, LinkStatus
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.pose_graph import Graph, excess, spread_of_links
from mslsq.alignment.joint.state import Coordinates, State, in_values, standardised
from mslsq.alignment.light import to_come
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import corner_error
from mslsq.alignment.result import MapStatus
from mslsq.alignment.uncertainty import corner_sigma

ROUNDS = 4
"""Of links and transforms: transforms say which maps overlap, and new links where others are."""

BY_LOOPS = "The pair alone leaves it open; loops through other maps close."
"""Of a link that was `open`."""

NO_LOOP = "(The solve of all maps together failed, and no loop of links holds this one.)"
"""A pair of maps in strong noise was placed 29 px off; beside its link from the other map the solve had no end."""

FREEZES, IN_LIGHT = 2, 4
"""Times that the valid samples are chosen, each before a solve; and where light is between maps, what it leaves."""

MISSED = 0.25
"""Of what light has moved links by, the part that may be left: light that multiplies leaves some of its detail."""

LIT = " Residuals vary slowly over the maps, as light does: they are placed without that."


def place_jointly(linker: Linker, draft: Draft, starts: Float[Tensor, "maps 3 3"] | None) -> list[Link]:
    """Fill the draft; returns all links that were tried. What the draft knows already is held."""
    known = {index: draft.entries["transforms"][index] for index in draft.known}
    usable = sorted([*draft.known, *draft.waiting])
    gathering = Gathering(linker, usable, known)
    given = dict(known)
    if starts is not None:
        like = linker.map(draft.reference).values
        given |= {i: starts[i].to(like) for i in draft.waiting if bool(starts[i].isfinite().all())}
    gathering.by_transforms(given)
    if len(given) < len(usable):
        gathering.by_headers()
    if len(given) < len(usable) and not gathering.whole:
        gathering.by_screening()
    graph = Graph(linker, [], linker.frame(draft.reference), known)
    consensus = agreed(gathering, graph)
    for _ in range(ROUNDS):
        if not consensus.ask(gathering, graph):
            break
        consensus = agreed(gathering, graph)
    if len(consensus.placed) > len(known):
        _Filling(linker, draft, graph, consensus).fill()
    _say_why_not(draft, gathering, consensus)
    return list(gathering.links.values())


@dataclass(frozen=True)
class _Filling:
    """The dense solve of the maps that the consensus places, and their entries."""

    linker: Linker
    draft: Draft
    graph: Graph
    consensus: Consensus

    def fill(self) -> None:
        """All from the pixels; where that solve has no end, what links say whose loops close."""
        start = state = self.start()
        links = self.graph.restricted(self.consensus.links)
        lit, ways = False, []
        while len(ways) < (IN_LIGHT if lit else FREEZES):
            dense = self.dense(state)
            lit = lit or any(overlap.lit for overlap in dense.overlaps)
            settled = settle(dense, state, self.linker.options.max_steps)
            if settled.status in UNFINISHED:
                factor = excess(links, self.consensus.poses)
                why = f" The solve of all maps together failed ({settled.status.sentence}): placed by links alone."
                self.write(
                    start, factor * spread_of_links(links, self.consensus.poses), why + loops(factor), self.loose
                )
                return
            ways.append(self.apart(state, settled.state))
            state = settled.state
        of_known = {index: self.draft.entries["covariance"][index].numpy(force=True) for index in self.graph.known}
        maps = np.arange(len(dense.free))
        found = covariance(dense, state, of_known)
        rest = np.hypot(to_come(ways[-1], ways[-2]), MISSED * self.apart(start, state)) if lit else None
        self.write(state, found.covariance[maps, :, maps], (LIT if lit else "") + distorted(found), rest=rest)

    @property
    def loose(self) -> set[int]:
        """The maps that one link alone holds: no loop says that they are where it puts them."""
        return {index for _, part in bridges(self.graph.known, self.consensus.links) for index in part}

    def write(
        self,
        state: State,
        spread: Float[np.ndarray, "maps tangent tangent"],
        remark: str,
        doubted: Collection[int] = (),
        rest: Float[np.ndarray, " maps"] | None = None,
    ) -> None:
        """The maps' entries, with the covariances of their warps, and pixels that are to come; but for the doubted,
        which are left out."""
        frame, options = self.graph.frame, self.linker.options
        pixels = frame.to_pixels(torch.from_numpy(state.warps)).to(frame.centre)
        for index, link in self.tree.items():
            if link is None:
                continue
            if index in doubted:
                self.draft.says(index, MapStatus.NOT_CONVERGED, f"{MapStatus.NOT_CONVERGED.sentence} {NO_LOOP}")
                continue
            placed = link.linked.placed
            if not placed.status.ok:
                placed = replace(placed, reason=f"{MapStatus.ALIGNED.sentence} {BY_LOOPS}")
            estimate = Estimate(pixels.new_tensor(state.warps[index]), pixels.new_zeros(2), "joint")
            block = pixels.new_tensor(spread[index])
            sigma = corner_sigma(estimate, block, frame, options.model)
            if rest is not None:
                whole = math.hypot(sigma, rest[index])
                block, sigma = block * (whole / sigma) ** 2, whole
            if placed.drift > sigma:  # what the link's reason says
                block, sigma = block * (placed.drift / sigma) ** 2, placed.drift
            gain, bias = (pixels.new_tensor(value) for value in self.in_pixels(index, *state.values[index]))
            self.draft.place(index, pixels[index], gain, bias, block, sigma)
            self.draft.believe(index, link.fixed if index == link.moving else link.moving, placed, remark)

    def apart(self, one: State, other: State) -> Float[np.ndarray, " maps"]:
        """How far two states put the reference's corners apart on every map, in pixels."""
        frame, size = self.graph.frame, self.linker.map(self.draft.reference).mask.shape
        pixels = (frame.to_pixels(torch.from_numpy(state.warps)).to(frame.centre) for state in (one, other))
        return np.array([corner_error(a, b, *size) for a, b in zip(*pixels, strict=True)])

    def dense(self, state: State) -> Dense:
        """Every link from both of its maps."""
        graph, linker = self.graph, self.linker
        coordinates = Coordinates(graph.frame, {i: linker.frame(i) for i in self.consensus.placed}, graph.kind)
        pairs = [pair for link in self.consensus.links for pair in (link.pair, link.pair[::-1])]
        found = [Overlap.of(linker, a, b, coordinates.between(state, a, b), self.draft.reference) for a, b in pairs]
        overlaps = [overlap for overlap in found if overlap.count]
        free = np.zeros((len(linker.maps), graph.kind.tangent_dim + 2))
        for index in set(self.consensus.placed) - set(graph.known):
            free[index, :-2] = 1
            free[index, -2:] = linker.options.freedom
        return Dense(overlaps, weights_of(overlaps), coordinates, free, linker.options.correlated)

    def start(self) -> State:
        """The pose graph's warps, and the values along the strongest links."""
        warps = self.consensus.poses.matrix().numpy(force=True)
        entries, values = self.draft.entries, np.zeros((len(self.linker.maps), 2))
        in_pixels = {i: (float(entries["gain"][i]), float(entries["bias"][i])) for i in self.graph.known}
        for index, link in self.tree.items():
            if link is not None:
                gain, bias = float(link.linked.gain), float(link.linked.bias)
                if index == link.moving:
                    before = in_pixels[link.fixed]
                    in_pixels[index] = before[0] * gain, before[0] * bias + before[1]
                else:
                    before = in_pixels[link.moving]
                    in_pixels[index] = before[0] / gain, before[1] - before[0] / gain * bias
            values[index] = self.standardised(index, *in_pixels[index])
        return State(warps / warps[:, 2:, 2:], values)

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
        reference = self.draft.reference
        return self.linker.units(reference, reference)[0], self.linker.units(reference, index)[1]


def loops(factor: float) -> str:
    """What there is to say where links' loops do not close as well as noise would let them."""
    if factor <= 1:
        return ""
    why = f" Loops do not close as well as noise would let them: standard errors are {math.sqrt(factor):.1f} times"
    return f"{why} those of noise."


def distorted(found: Distorted) -> str:
    """What there is to say where more than half of the variances is of distortions."""
    if not found.share > 0.5:
        return ""
    why = (
        f" The maps are distorted, by some {found.sigma:.2g} px, as no warp of the model is: standard errors are larger"
    )
    return f"{why} than those of noise."


def _say_why_not(draft: Draft, gathering: Gathering, consensus: Consensus) -> None:
    """The reasons of the maps that were left out."""
    for index in set(draft.waiting) - set(consensus.placed):
        if index in consensus.doubts:
            draft.says(index, MapStatus.INCONSISTENT, consensus.doubts[index])
            continue
        mine = [link for link in gathering.links.values() if index in link.pair]
        used = [link.moving if link.fixed == index else link.fixed for link in mine if link.status is LinkStatus.USED]
        tried = [link.linked.placed for link in mine if link.status is not LinkStatus.USED]
        if used:
            others = ", ".join(str(other) for other in sorted(used))
            why = f"(It hangs together with map {others}, but not with the reference.)"
            draft.says(index, MapStatus.NO_OVERLAP, f"{MapStatus.NO_OVERLAP.sentence} {why}")
        elif tried:
            best = max(tried, key=lambda placed: (placed.status == MapStatus.LOW_CORRELATION, placed.ncc))
            draft.leave(index, best)
        else:
            draft.says(index, MapStatus.NO_OVERLAP)
