"""Where every placement that `align` has tried lies, refused ones too: who loses a pair, the search, the solve or the
belief?

`align` keeps no place of a map that it leaves out. So it is watched here: each call of `place` with the status it
gives, how far its end is from the truth, and the rank of the first of its starts that lies near the truth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from mslsq.alignment import linking, pairwise
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.measures import corner_error
from mslsq.alignment.models import Frame
from mslsq.alignment.pairwise import Placed

BASIN = 8.0
"""Pixels (mean distance of the corners) of a start that should lead to the truth: two samples of the coarsest of three
levels, about what a refinement there reaches."""

RIGHT = 1.0


@contextmanager
def watched(truth: torch.Tensor, height: int, width: int) -> Iterator[list[dict[str, Any]]]:
    """What is tried meanwhile, in order; `truth` takes pixels of the reference, of this size, to those of the map."""
    tried: list[dict[str, Any]] = []
    searched: list[list[Estimate]] = []
    place, first_starts = linking.place, pairwise.first_starts

    def error(frame: Frame, matrix: torch.Tensor) -> float:
        return float(corner_error(frame.to_pixels(matrix), truth, height, width))

    def starts(*arguments: Any) -> list[Estimate]:
        searched.append(first_starts(*arguments))
        return searched[-1]

    def placed(*arguments: Any) -> Placed:
        searched.clear()
        found = place(*arguments)
        frame, options = arguments[2], arguments[3]
        near = [error(frame, start.matrix) < BASIN for start in (searched[-1] if searched else [])]
        figures = {name: float(getattr(found, name)) for name in ("ncc", "detail", "lead", "overlap", "corner_sigma")}
        tried.append(
            figures
            | {
                "metric": options.metric.name,
                "given": options.init == "given" or (len(arguments) > 5 and arguments[5] is not None),
                "status": found.status.name,
                "error": error(frame, found.warp),
                "starts": len(near),
                "rank": near.index(True) if True in near else None,
                "reason": found.reason,
            }
        )
        return found

    with patch.object(linking, "place", placed), patch.object(pairwise, "first_starts", starts):
        yield tried


def lost_by(tried: list[dict[str, Any]]) -> str:
    """Of a pair that was refused: "belief" where some metric had the right place, "refinement" where one had it among
    its starts, and else "search"."""
    if any(one["error"] < RIGHT for one in tried):
        return "belief"
    return "refinement" if any(one["rank"] is not None for one in tried) else "search"
