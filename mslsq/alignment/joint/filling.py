"""The entries of the maps that are placed together: from the pixels, or where these have no end from links alone."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment import grain
from mslsq.alignment.coarser import AGREES
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.draft import Draft
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.joint.connections import bridges
from mslsq.alignment.joint.consensus import Consensus
from mslsq.alignment.joint.distortion import Distorted, covariance
from mslsq.alignment.joint.pose_graph import Graph, excess, spread_of_links
from mslsq.alignment.joint.settling import Settling
from mslsq.alignment.joint.state import State
from mslsq.alignment.linking import Linker
from mslsq.alignment.result import MapStatus
from mslsq.alignment.uncertainty import corner_sigma

BY_LOOPS = "The pair alone leaves it open; loops through other maps close."
"""Of a link that was `open`."""

NO_LOOP = "(The solve of all maps together failed, and no loop of links holds this one.)"
"""A pair of maps in strong noise was placed 29 px off; beside its link from the other map the solve had no end."""

MISSED = 0.25
"""Of what light has moved links by, the part that may be left: light that multiplies leaves some of its detail."""

CURVED = " By values along curves, which explain what a gain and a bias leave."

LIT = " Residuals vary slowly over the maps, as light does: they are placed without that."


@dataclass(frozen=True)
class Filling:
    """The dense solve of the maps that the consensus places, and their entries."""

    linker: Linker
    draft: Draft
    graph: Graph
    consensus: Consensus

    @cached_property
    def grained(self) -> grain.Grain | None:
        """A grain that maps have in common, where it may pull at their places."""
        asked = (link for link in self.consensus.links if link.linked.placed.pulled)
        found = (grain.in_common(self.linker, *link.pair) for link in asked)
        return next((each for each in found if each is not None), None)

    @cached_property
    def settling(self) -> Settling:
        """The solves."""
        linker = self.linker if self.grained is None else self.grained.linker
        return Settling(linker, self.graph, self.consensus, self.draft.reference)

    def fill(self) -> None:
        """All from the pixels; where that solve has no end, what links say whose loops close."""
        start = self.start()
        links = self.graph.restricted(self.consensus.links)
        plain = self.settling.plain(start)
        if plain.status in UNFINISHED:
            factor = excess(links, self.consensus.poses)
            why = f" The solve of all maps together failed ({plain.status.sentence}): placed by links alone."
            self.write(start, factor * spread_of_links(links, self.consensus.poses), why + loops(factor), self.loose)
            return
        along = self.settling.along_curves(plain)
        found = plain if along is None else along
        of_known = {index: self.draft.entries["covariance"][index].numpy(force=True) for index in self.graph.known}
        maps = np.arange(len(found.dense.free))
        spread = covariance(found.dense, found.state, of_known)
        remark, rest = distorted(spread), None
        if along is not None:
            remark, rest = CURVED + remark, found.rest
        elif plain.lit:
            remark, rest = LIT + remark, np.hypot(found.rest, MISSED * self.settling.apart(start, found.state))
        if self.grained is not None:
            remark = f" {self.grained.what}: placed behind a Gaussian of {grain.WIDER:.0f} px." + remark
        # Gains and biases are those without a curve.
        state = State(found.state.warps, plain.state.values)
        self.write(state, spread.covariance[maps, :, maps], remark, rest=rest, grained=self.grained is not None)

    def start(self) -> State:
        """The pose graph's warps, and the values along the strongest links."""
        warps = self.consensus.poses.matrix().numpy(force=True)
        entries, values = self.draft.entries, np.zeros((len(self.linker.maps), 2))
        in_pixels = {i: (float(entries["gain"][i]), float(entries["bias"][i])) for i in self.graph.known}
        for index, link in self.settling.tree.items():
            if link is not None:
                gain, bias = float(link.linked.gain), float(link.linked.bias)
                if index == link.moving:
                    before = in_pixels[link.fixed]
                    in_pixels[index] = before[0] * gain, before[0] * bias + before[1]
                else:
                    before = in_pixels[link.moving]
                    in_pixels[index] = before[0] / gain, before[1] - before[0] / gain * bias
            values[index] = self.settling.standardised(index, *in_pixels[index])
        return State(warps / warps[:, 2:, 2:], values)

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
        grained: bool = False,
    ) -> None:
        """The maps' entries, with the covariances of their warps, and pixels that are to come; but for the doubted,
        which are left out. Of solves without the grain what links say of it is not true any more."""
        frame, options = self.graph.frame, self.linker.options
        pixels = frame.to_pixels(torch.from_numpy(state.warps)).to(frame.centre)
        for index, link in self.settling.tree.items():
            if link is None:
                continue
            if index in doubted:
                self.draft.says(index, MapStatus.NOT_CONVERGED, f"{MapStatus.NOT_CONVERGED.sentence} {NO_LOOP}")
                continue
            placed = link.linked.placed
            if not placed.status.ok:
                placed = replace(placed, reason=f"{MapStatus.ALIGNED.sentence} {BY_LOOPS}", apart=AGREES)
            elif grained:
                placed = replace(placed, reason=placed.reason.replace(placed.apart.sentence, ""), apart=AGREES)
            estimate = Estimate(pixels.new_tensor(state.warps[index]), pixels.new_zeros(2), "joint")
            block = pixels.new_tensor(spread[index])
            sigma = corner_sigma(estimate, block, frame, options.model)
            if rest is not None:
                whole = math.hypot(sigma, rest[index])
                block, sigma = block * (whole / sigma) ** 2, whole
            said = max(placed.drift, placed.apart.pixels)  # in the link's reason
            if said > sigma:
                block, sigma = block * (said / sigma) ** 2, said
            gain, bias = (pixels.new_tensor(value) for value in self.settling.in_pixels(index, *state.values[index]))
            self.draft.place(index, pixels[index], gain, bias, block, sigma)
            self.draft.believe(index, link.fixed if index == link.moving else link.moving, placed, remark)


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
