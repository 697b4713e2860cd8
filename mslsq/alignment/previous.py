"""An earlier alignment that maps are added to."""

from collections.abc import Sequence
from typing import Any

from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.options import AlignmentOptionError, Options
from mslsq.alignment.result import Alignment, MapStatus
from mslsq.validation import instance_of


def check_previous(
    previous: Any, options: Options, reference: int, states: Sequence[MapStatus], joint: bool | str
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
