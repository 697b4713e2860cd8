"""An earlier alignment that maps are added to."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate, with_overlap
from mslsq.alignment.linking import Linker
from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.options import AlignmentOptionError, Options
from mslsq.alignment.result import Alignment, MapStatus
from mslsq.validation import instance_of

STILL = 0.8
"""Of the correlation that a map had with the one it was placed on: less is of another map, or of one that was changed.
The same maps kept 0.985 and more of it (noise, gammas, lamps, few values, things that move), maps of one photograph in
another order 0.66 at most."""


def check_previous(
    previous: Any,
    options: Options,
    reference: int,
    states: Sequence[MapStatus],
    sizes: Sequence[tuple[int, int] | None],
    joint: bool | str,
) -> None:
    """Raise where this is no result for the first of the maps, with these options; `states` say which can be used."""
    instance_of("align: previous", previous, Alignment, error=AlignmentOptionError)
    if joint is False:
        raise AlignmentOptionError("align: maps are added to previous together; leave joint at 'auto' or give True.")
    count = len(previous.transforms)
    if count > len(states):
        raise AlignmentOptionError(
            f"align: previous is of {count} maps, and {len(states)} were given. Give its maps first, then the new ones."
        )
    for name, before, now in [
        ("model", previous.model, options.model),
        ("reference", previous.reference, reference),
    ]:
        if before != now:
            raise AlignmentOptionError(f"align: previous has {name}={before!r}, not {now!r}; give the same.")
    by_values = SquaredDifference()
    if options.metric != by_values:
        raise AlignmentOptionError(
            f"align: maps are added to previous by their values, not by metric={options.metric.name!r}."
        )
    for index in previous.aligned:
        if previous.metrics[index] not in ("", by_values.name):
            raise AlignmentOptionError(
                f"align: previous placed map {index} by {previous.metrics[index]!r}, and maps are added by values; "
                "align all of them again."
            )
        if not states[index].ok:
            raise AlignmentOptionError(
                f"align: previous placed map {index}, which cannot be used now: {states[index].sentence}"
            )
        if previous.sizes and sizes[index] != previous.sizes[index]:
            raise AlignmentOptionError(
                f"align: map {index} has {sizes[index]} pixels, and {previous.sizes[index]} in previous. Give its maps "
                "first, in order."
            )


def check_places(previous: Alignment, linker: Linker, transforms: Float[Tensor, "maps 3 3"]) -> None:
    """Raise where a map is not the one that previous has placed: it does not agree any more with the one that it was
    placed on. `transforms` are those of the linker's maps."""
    for index in previous.aligned:
        parent = int(previous.parent[index])
        if index == previous.reference or parent not in previous.aligned:
            continue
        warp = linker.frame(parent).from_pixels(transforms[index] @ torch.linalg.inv(transforms[parent]))
        now = with_overlap(Estimate(warp, warp.new_zeros(2), "previous"), linker.finest(parent, index)).ncc
        before = float(previous.ncc[index])
        if math.isfinite(before) and not now >= before - (1 - STILL) * abs(before):
            raise AlignmentOptionError(
                f"align: map {index} is not the one that previous has placed: where it lies it correlates by {now:.2f} "
                f"with map {parent}, and by {before:.2f} then. Give its maps first, in order, and the same prefilter, "
                "or align all of them again."
            )
