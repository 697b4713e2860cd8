"""The joint alignment from its first link to the reasons of what found no place."""

from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.draft import Draft
from mslsq.alignment.joint.consensus import Consensus, agreed
from mslsq.alignment.joint.filling import Filling
from mslsq.alignment.joint.gathering import Gathering
from mslsq.alignment.joint.links import Link, LinkStatus
from mslsq.alignment.joint.pose_graph import Graph
from mslsq.alignment.linking import Linker
from mslsq.alignment.result import MapStatus

ROUNDS = 4
"""Of links and transforms: transforms say which maps overlap, and new links where others are."""


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
        Filling(linker, draft, graph, consensus).fill()
    _say_why_not(draft, gathering, consensus)
    return list(gathering.links.values())


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
