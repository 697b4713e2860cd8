"""Maps placed one by one: on the reference, or on the first map already placed that accepts them."""

import torch
from torch import Tensor

from mslsq.alignment.draft import Draft
from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.result import MapStatus


def place_by_tree(linker: Linker, draft: Draft, starts: Tensor | None) -> None:
    """Fill the draft, best links first. Every map's covariance is that of its own link only."""
    tried: dict[int, list[Linked]] = {}
    waiting, frontier, out = draft.waiting, [draft.reference], draft.entries
    while frontier and waiting:
        parent = frontier.pop(0)
        reached = []
        for i in waiting:
            link = linker.link(parent, i, initial_of(starts, i, out["transforms"][parent]))
            tried.setdefault(i, []).append(link)
            if not link.placed.status.ok:
                continue
            draft.place(
                i,
                link.transform @ out["transforms"][parent],
                out["gain"][parent] * link.gain,
                out["gain"][parent] * link.bias + out["bias"][parent],
                link.placed.covariance,
                link.placed.corner_sigma,
            )
            draft.believe(i, parent, link.placed)
            reached.append(i)
        waiting = [i for i in waiting if i not in reached]
        frontier += sorted(reached, key=lambda i: -float(out["ncc"][i] * out["overlap"][i]))
    for i in waiting:
        best = max((link.placed for link in tried[i]), key=lambda p: (p.status == MapStatus.LOW_CORRELATION, p.ncc))
        draft.says(i, best.status, best.reason)


def initial_of(starts: Tensor | None, index: int, parent: Tensor) -> Tensor | None:
    """The user's start for a map, seen from another that the reference is taken to by `parent`."""
    if starts is None or not bool(starts[index].isfinite().all()):
        return None
    return starts[index].to(parent) @ torch.linalg.inv(parent)
