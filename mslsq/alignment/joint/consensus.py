"""Which links are believed, all together: those that close loops, and of the others those that nothing contradicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mslsq.alignment.joint.connections import bridges, component, cut_off, strongest_tree
from mslsq.alignment.joint.gathering import Gathering, Transforms
from mslsq.alignment.joint.links import Link, LinkStatus, in_line
from mslsq.alignment.joint.pose_graph import Graph, robustly_solved, solved
from mslsq.alignment.joint.screening import predicted_overlap
from mslsq.alignment.models import Warp
from mslsq.alignment.result import MapStatus

REFUTED = 0.25
"""Detail below which two maps that should overlap, by their transforms, are seen not to: false placements of 13 kinds
of pairs have 0.26 at most in the median, true ones in the noise of a fifth of the signal 0.5."""

OUTWEIGHS = 2.0
"""A single link that another single link contradicts is believed where its support is this multiple of the other's."""


@dataclass
class Consensus:
    """The links that are believed, the transforms that follow, and why maps are left out."""

    links: list[Link]
    poses: Warp
    placed: list[int]
    against: list[Link] = field(default_factory=list)
    """Links that these contradict."""
    doubts: dict[int, str] = field(default_factory=dict)
    alternatives: list[Transforms] = field(default_factory=list)
    """Where maps would be, if other links were right: pixels can tell."""

    def ask(self, gathering: Gathering, graph: Graph) -> int:
        """Ask the pairs that overlap where the maps are, and where else they might be; how many are asked."""
        count = gathering.by_transforms(transforms_of(graph, self.poses, self.placed))
        return count + sum(gathering.by_transforms(where, trusted=False) for where in self.alternatives)


def agreed(gathering: Gathering, graph: Graph) -> Consensus:
    """The believed part of the graph.

    Links that their pairs alone leave open are asked after the others, and only where maps are left: they may not
    speak against what is believed without them.
    """
    found = _agreed_on(gathering, graph, [link for link in gathering.links.values() if link.carries])
    undecided = [link for link in gathering.links.values() if link.is_open and not link.carries]
    if undecided and len(found.placed) < len(gathering.usable):
        against = {link.pair for link in found.against}
        carrying = [link for link in gathering.links.values() if link.carries and link.pair not in against]
        firm = [link for link in carrying if not set(link.pair) & set(found.doubts)]
        more = _agreed_on(gathering, graph, [*firm, *undecided])
        kept = {link.pair for link in found.links} <= {link.pair for link in more.links}
        if kept and len(more.placed) > len(found.placed):
            contradicted = [*found.against, *(link for link in more.against if not link.is_open)]
            doubts = {index: why for index, why in found.doubts.items() if index not in more.placed}
            found = replace(more, against=contradicted, doubts=more.doubts | doubts)
        elif kept:
            found.alternatives += more.alternatives
    for link in found.against:
        gathering.links[link.pair] = link.marked(LinkStatus.CONTRADICTED)
    for link in found.links:
        gathering.links[link.pair] = link
    return found


def _agreed_on(gathering: Gathering, graph: Graph, candidates: Sequence[Link]) -> Consensus:
    """What some links say together.

    1. Links whose residuals their maps' noise does not explain take no part.
    2. Graduated non-convexity over the links finds the transforms that most of them agree with; the others are
       contradicted.
    3. Open links must be in loops, which close then.
    4. A part that one link alone holds is left out where a link of like support contradicts it, or where it would cover
       other maps whose pixels do not agree with it (more of them than the link has behind it).
    """
    candidates = joined(graph.known, in_line(candidates))
    if not candidates:
        return Consensus([], poses_of_tree(graph.restricted([])), sorted(graph.known))
    whole = graph.restricted(candidates)
    poses, agree = robustly_solved(whole, poses_of_trees(whole))
    agreeing = joined(graph.known, [link for link, yes in zip(candidates, agree.tolist(), strict=True) if yes])
    against = [link for link, yes in zip(candidates, agree.tolist(), strict=True) if not yes]
    kept = in_loops(graph.known, agreeing)
    doubts: dict[int, str] = {}
    case, rivals = _Case(gathering, graph, poses, kept, [link for link in against if not link.is_open]), []
    for bridge, part in bridges(graph.known, kept):
        rivals += [(bridge, rival) for rival in case.rivals(bridge, part)]
        why = case.doubt(bridge, part)
        if why:
            doubts |= {index: why for index in part if index not in doubts}
    others = alternatives(graph, kept, rivals)
    if len(kept) < len(agreeing):
        others.append(transforms_of(graph, poses, component(graph.known, agreeing)))
    kept = [link for link in kept if not set(link.pair) & set(doubts)]
    believed = [replace(link, status=LinkStatus.USED) for link in in_loops(graph.known, joined(graph.known, kept))]
    placed = sorted(component(graph.known, believed))
    if believed:
        poses = solved(graph.restricted(believed), poses)
    return Consensus(believed, poses, placed, against, doubts, others)


def in_loops(roots: Iterable[int], links: Sequence[Link]) -> list[Link]:
    """The links that hang together with the roots, without open ones that no loop goes through."""
    while True:
        loose = [link for link in links if link.is_open and cut_off(link, roots, links)]
        if not loose:
            return list(links)
        pairs = {link.pair for link in loose}
        links = joined(roots, [link for link in links if link.pair not in pairs])


def joined(roots: Iterable[int], links: Sequence[Link]) -> list[Link]:
    """The links of the part that the roots are in."""
    part = component(roots, links)
    return [link for link in links if link.fixed in part]


@dataclass(frozen=True)
class _Case:
    """What there is to be said about parts that a single link holds."""

    gathering: Gathering
    graph: Graph
    poses: Warp
    kept: Sequence[Link]
    against: Sequence[Link]

    def doubt(self, bridge: Link, part: set[int]) -> str:
        """Why a part that this link alone holds is not believed; empty if it is."""
        ends = f"the link between maps {bridge.fixed} and {bridge.moving}"
        why = ""
        for link in self.rivals(bridge, part):
            why = f"Two links contradict each other: {ends}, and that between {link.fixed} and {link.moving}."
        if not why and self.refuted(part) > bridge.linked.placed.overlap:
            why = f"Where {ends} puts it, it covers other maps that do not agree with it."
        return why and f"{MapStatus.INCONSISTENT.sentence} ({why})"

    def rivals(self, bridge: Link, part: set[int]) -> list[Link]:
        """The contradicted links that would hold the part elsewhere, and have as much behind them."""
        across = [link for link in self.against if (link.fixed in part) != (link.moving in part)]
        return [link for link in across if bridge.support < OUTWEIGHS * link.support]

    def refuted(self, part: set[int]) -> float:
        """How much of other maps a part covers without agreeing with them, as a sum of overlaps."""
        transforms = transforms_of(self.graph, self.poses, component(self.graph.known, self.kept))
        total = 0.0
        for pair in self.gathering.predicted:
            if (pair[0] in part) == (pair[1] in part) or not set(pair) <= set(transforms):
                continue
            between = transforms[pair[1]] @ torch.linalg.inv(transforms[pair[0]])
            link = self.gathering.tried_at(pair, between)
            if link and link.status is LinkStatus.REFUSED and link.linked.placed.detail < REFUTED:
                total += predicted_overlap(self.graph.linker, *pair, between)
        return total


def alternatives(graph: Graph, kept: Sequence[Link], rivals: Sequence[tuple[Link, Link]]) -> list[Transforms]:
    """The transforms that would follow if, of two links that contradict each other, the other were right."""
    found = []
    for bridge, rival in rivals:
        links = joined(graph.known, [*(link for link in kept if link is not bridge), rival])
        poses = poses_of_tree(graph.restricted(links))
        found.append(transforms_of(graph, poses, component(graph.known, links)))
    return found


def poses_of_trees(graph: Graph) -> list[Warp]:
    """By the strongest tree, and by the strongest without one of its links: starts, of which some know no wrong
    link."""
    found = [poses_of_tree(graph)]
    for link in strongest_tree(graph.known, graph.links).values():
        others = [other for other in graph.links if other is not link]
        if link is not None and component(graph.known, others) == component(graph.known, graph.links):
            found.append(poses_of_tree(graph.restricted(others)))
    return found


def poses_of_tree(graph: Graph) -> Warp:
    """Every map through the strongest chain of links from one that is known; the identity where there is none."""
    like = graph.frame.centre
    matrices: list[Tensor] = [torch.eye(3, device="cpu").to(like) for _ in graph.linker.maps]
    for index, transform in graph.known.items():
        matrices[index] = graph.frame.from_pixels(transform)
    for index, link in strongest_tree(graph.known, graph.links).items():
        if link is None:
            continue
        into = graph.into(link.fixed)
        between = torch.linalg.inv(into) @ link.linked.placed.warp @ into
        forward = index == link.moving
        matrices[index] = (
            between @ matrices[link.fixed] if forward else torch.linalg.inv(between) @ matrices[link.moving]
        )
    return graph.kind.from_matrix(torch.stack([matrix / matrix[2, 2] for matrix in matrices]))


def transforms_of(graph: Graph, poses: Warp, maps: set[int] | list[int]) -> Transforms:
    """Reference pixel to map pixel."""
    pixels = graph.frame.to_pixels(poses.matrix())
    return {index: pixels[index] for index in maps}
