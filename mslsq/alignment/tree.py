"""Maps placed one by one: on the reference, or on the first map already placed that accepts them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mslsq.alignment.draft import Draft
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.linking import Linked, left_out
from mslsq.alignment.models import Frame
from mslsq.alignment.pairwise import Placed
from mslsq.alignment.result import MapStatus
from mslsq.alignment.tangents import adjoint, change
from mslsq.alignment.uncertainty import corner_sigma
from mslsq.alignment.vague import why_vague

Link = Callable[[int, int, Tensor | None], Linked]
"""Places one map (the second) on another, from a start or a search."""

FrameOf = Callable[[int], Frame]
"""The normalised coordinates of a map."""


def place_by_tree(link_of: Link, frame_of: FrameOf, draft: Draft, starts: Tensor | None) -> None:
    """Fill the draft from the reference on. `frame_of` knows the normalised coordinates of every map."""
    for i, best in grow(link_of, frame_of, draft, starts, draft.waiting, [draft.reference]).items():
        draft.leave(i, best)


def grow(
    link_of: Link,
    frame_of: FrameOf,
    draft: Draft,
    starts: Tensor | None,
    waiting: Sequence[int],
    placed: Sequence[int],
) -> dict[int, Placed]:
    """Place the maps that wait on those that are placed, or on each other, best links first. Returns, of the maps that
    still wait, the best that was tried."""
    tried: dict[int, list[Linked]] = {}
    waiting, frontier, out = list(waiting), list(placed), draft.entries
    while frontier and waiting:
        parent = frontier.pop(0)
        reached = []
        for i in waiting:
            link = link_of(parent, i, initial_of(starts, i, out["transforms"][parent]))
            tried.setdefault(i, []).append(link)
            if not link.placed.status.ok:
                continue
            covariance, sigma = through(link, draft, frame_of)
            if vague := why_vague(float(sigma), frame_of(draft.reference), link.placed.reason):
                tried[i][-1] = left_out(link, vague, MapStatus.AMBIGUOUS)
                continue
            draft.place(
                i,
                link.transform @ out["transforms"][parent],
                out["gain"][parent] * link.gain,
                out["gain"][parent] * link.bias + out["bias"][parent],
                covariance,
                sigma,
            )
            draft.believe(i, parent, link.placed, metric=link.metric)
            reached.append(i)
        waiting = [i for i in waiting if i not in reached]
        frontier += sorted(reached, key=lambda i: -float(out["ncc"][i] * out["overlap"][i]))
    return {i: max((link.placed for link in tried[i]), key=_promise) for i in waiting}


def through(link: Linked, draft: Draft, frame_of: FrameOf) -> tuple[Tensor, Tensor | float]:
    """Covariance and standard error at the reference's corners of a map that is placed through another: that of its own
    link, and that of the other map, which are independent.

    With S from the reference's normalised coordinates to those of the other map the warp is S⁻¹ L S W, L of the link
    and W of the other map: its tangent is Ad((S W)⁻¹) ξ_L + ξ_W.
    """
    parent, own = link.fixed, link.placed
    if parent == draft.reference:
        return own.covariance, own.corner_sigma
    reference, frame = frame_of(draft.reference), frame_of(parent)
    before, covariance = draft.entries["transforms"][parent], draft.entries["covariance"][parent]
    onto = change(reference, frame) @ reference.from_pixels(before)
    turned = covariance.new_tensor(adjoint(torch.linalg.inv(onto).numpy(force=True), len(covariance)))
    covariance = turned @ own.covariance @ turned.T + covariance
    estimate = Estimate(reference.from_pixels(link.transform @ before), own.value, "tree")
    return covariance, corner_sigma(estimate, covariance, reference, draft.model)


def _promise(placed: Placed) -> tuple[bool, float]:
    """Of refused placements, the one that says most has the most."""
    return placed.status == MapStatus.LOW_CORRELATION, placed.ncc


def initial_of(starts: Tensor | None, index: int, parent: Tensor) -> Tensor | None:
    """The user's start for a map, seen from another that the reference is taken to by `parent`."""
    if starts is None or not bool(starts[index].isfinite().all()):
        return None
    return starts[index].to(parent) @ torch.linalg.inv(parent)
