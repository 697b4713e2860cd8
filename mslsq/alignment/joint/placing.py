"""The joint alignment from its first link to its standard errors."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.draft import Draft
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.joint.connections import strongest_tree
from mslsq.alignment.joint.consensus import Consensus, agreed
from mslsq.alignment.joint.dense import Dense, settle, weights_of
from mslsq.alignment.joint.gathering import Gathering
from mslsq.alignment.joint.links import Link, LinkStatus
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.pose_graph import Graph
from mslsq.alignment.joint.sandwich import covariance
from mslsq.alignment.joint.state import Coordinates, State
from mslsq.alignment.linking import Linker
from mslsq.alignment.result import MapStatus
from mslsq.alignment.uncertainty import corner_sigma

ROUNDS = 4
"""Of links and transforms: transforms say which maps overlap, and new links where others are."""

FREEZES = 2
"""Times that the valid samples are chosen, each before a solve."""


def place_jointly(linker: Linker, draft: Draft, starts: Float[Tensor, "maps 3 3"] | None) -> list[Link]:
    """Fill the draft; returns all links that were tried."""
    usable = sorted([draft.reference, *draft.waiting])
    gathering = Gathering(linker, usable)
    if starts is not None:
        like = linker.map(draft.reference).values
        known = {i: starts[i].to(like) for i in usable if bool(starts[i].isfinite().all())}
        known[draft.reference] = torch.eye(3).to(like)
        gathering.by_transforms(known)
    if starts is None or len(known) < len(usable):
        gathering.by_screening()
    graph = Graph(linker, [], linker.frame(draft.reference), draft.reference)
    consensus = agreed(gathering, graph)
    for _ in range(ROUNDS):
        if not sum(gathering.by_transforms(transforms) for transforms in consensus.transforms(graph)):
            break
        consensus = agreed(gathering, graph)
    if len(consensus.placed) > 1:
        _fill(linker, draft, graph, consensus)
    _say_why_not(draft, gathering, consensus)
    return list(gathering.links.values())


def _fill(linker: Linker, draft: Draft, graph: Graph, consensus: Consensus) -> None:
    """The dense solve of the maps that the consensus places; where it has no end, what their links say."""
    coordinates = Coordinates(graph.frame, {i: linker.frame(i) for i in consensus.placed}, graph.kind)
    start = state = _start(linker, graph, consensus)
    for _ in range(FREEZES):
        dense = _dense(linker, graph, consensus, coordinates, state)
        settled = settle(dense, state, linker.options.max_steps)
        if settled.status in UNFINISHED:
            why = f" The solve of all maps together failed ({settled.status.sentence}): placed by links alone."
            _write(linker, draft, graph, consensus, start, None, why)
            return
        state = settled.state
    spread = covariance(dense, state).reshape(dense.free.shape * 2)
    _write(linker, draft, graph, consensus, state, spread, "")


def _write(
    linker: Linker,
    draft: Draft,
    graph: Graph,
    consensus: Consensus,
    state: State,
    spread: Float[np.ndarray, "maps unknowns maps unknowns"] | None,
    remark: str,
) -> None:
    """The maps' entries. Without their covariances each has that of its own link, as in `tree`."""
    pixels = graph.frame.to_pixels(torch.from_numpy(state.warps)).to(graph.frame.centre)
    tangent, reference = graph.kind.tangent_dim, draft.reference
    of_reference = linker.map(reference)
    for index, link in strongest_tree(reference, consensus.links).items():
        if link is None:
            continue
        mean, spread_of_values = linker.units(reference, index)[1]
        log_gain, bias = state.values[index]
        gain = of_reference.spread * np.exp(log_gain) / spread_of_values
        offset = linker.units(reference, reference)[0][0] + of_reference.spread * bias - gain * mean
        placed = link.linked.placed
        block, sigma = placed.covariance, placed.corner_sigma
        if spread is not None:
            block = pixels.new_tensor(spread[index, :tangent, index, :tangent])
            estimate = Estimate(pixels.new_tensor(state.warps[index]), pixels.new_zeros(2), "joint")
            sigma = corner_sigma(estimate, block, graph.frame, linker.options.model)
        draft.place(index, pixels[index], pixels.new_tensor(gain), pixels.new_tensor(offset), block, sigma)
        draft.believe(index, link.fixed if index == link.moving else link.moving, placed, remark)


def _dense(linker: Linker, graph: Graph, consensus: Consensus, coordinates: Coordinates, state: State) -> Dense:
    """Every link from both of its maps."""
    pairs = [(a, b) for link in consensus.links for a, b in (link.pair, (link.moving, link.fixed))]
    overlaps = [Overlap.of(linker, a, b, coordinates.between(state, a, b), reference=graph.reference) for a, b in pairs]
    overlaps = [overlap for overlap in overlaps if overlap.count]
    free = np.zeros((len(linker.maps), graph.kind.tangent_dim + 2))
    for index in consensus.placed:
        if index != graph.reference:
            free[index, :-2] = 1
            free[index, -2:] = linker.options.freedom
    return Dense(overlaps, weights_of(overlaps), coordinates, free)


def _start(linker: Linker, graph: Graph, consensus: Consensus) -> State:
    """The pose graph's warps, and the values along the strongest links."""
    reference = graph.reference
    warps = consensus.poses.matrix().numpy(force=True)
    in_pixels = {reference: (1.0, 0.0)}
    values = np.zeros((len(linker.maps), 2))
    of_reference = linker.units(reference, reference)[0]
    for index, link in strongest_tree(reference, consensus.links).items():
        if link is None:
            continue
        gain, bias = float(link.linked.gain), float(link.linked.bias)
        if index == link.moving:
            before = in_pixels[link.fixed]
            in_pixels[index] = before[0] * gain, before[0] * bias + before[1]
        else:
            before = in_pixels[link.moving]
            in_pixels[index] = before[0] / gain, before[1] - before[0] / gain * bias
        mean, spread = linker.units(reference, index)[1]
        gain, bias = in_pixels[index]
        values[index, 0] = np.log(gain * spread / of_reference[1])
        values[index, 1] = (gain * mean + bias - of_reference[0]) / of_reference[1]
    return State(warps / warps[:, 2:, 2:], values)


def _say_why_not(draft: Draft, gathering: Gathering, consensus: Consensus) -> None:
    """The reasons of the maps that were left out."""
    for index in draft.waiting:
        if index in consensus.placed:
            continue
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
            draft.says(index, best.status, best.reason)
        else:
            draft.says(index, MapStatus.NO_OVERLAP)
