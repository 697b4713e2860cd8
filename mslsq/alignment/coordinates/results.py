"""An alignment on a lattice, taken back to the maps that were given and to the world."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.lattice import Lattice
from mslsq.alignment.coordinates.placement import world_placements
from mslsq.alignment.options import AlignmentOptionError, Options
from mslsq.alignment.prepared import Prepared
from mslsq.alignment.result import Alignment, MapStatus

ELSEWHERE = 2.0
"""Pixels of the reference: what is nearer than this to where the header says is the place that it says."""


def checked_georeferences(given: Any, count: int) -> list[Georeference | None] | None:
    """One or None for every map.

    Raises:
        AlignmentOptionError: another number of them, or something else.
    """
    if given is None:
        return None
    given = list(given)
    if len(given) != count:
        raise AlignmentOptionError(
            f"align: {len(given)} georeferences for {count} maps; give one per map (None where there is none)."
        )
    for index, one in enumerate(given):
        if one is not None and not isinstance(one, Georeference):
            raise AlignmentOptionError(
                f"align: georeferences[{index}] must be a Georeference or None, not {one!r}; GDAL's six numbers become "
                "one by Georeference.from_geotransform."
            )
    return given


def lattice_of(
    maps: Sequence[Prepared | None],
    georeferences: list[Georeference | None] | None,
    reference: int,
    options: Options,
    sized: bool,
) -> tuple[Lattice, Options]:
    """The maps on one lattice, and the options there; `sized` says whether pixel sizes were given.

    Raises:
        AlignmentOptionError: a coordinate reference system cannot be used.
    """
    try:
        lattice = Lattice.of(maps, georeferences, reference, options.model)
    except GeoreferenceError as error:
        raise AlignmentOptionError(f"align: {error}") from error
    if options.pixel_sizes is not None and (sized or not lattice.starts):
        options = replace(options, pixel_sizes=lattice.sizes(options.pixel_sizes))
    elif options.scale_range is not None:
        options = replace(options, pixel_sizes=lattice.header_sizes)
    return lattice, options


def in_world(
    result: Alignment,
    lattice: Lattice,
    georeferences: list[Georeference | None] | None,
    given: Sequence[Prepared | None],
    previous: Alignment | None,
) -> Alignment:
    """The result in pixels of the maps that were given, with what it says of the world."""
    if georeferences is None:
        return result
    transforms, covariance, sigma = result.transforms.clone(), result.covariance.clone(), result.corner_sigma.clone()
    reasons, kept = list(result.reasons), [] if previous is None else previous.aligned
    for index, entry in enumerate(lattice.entries):
        if index in kept and previous is not None:
            transforms[index] = previous.transforms[index]
            continue
        if index in result.aligned:
            transforms[index] = lattice.given(index, transforms[index])
            transforms[index] = transforms[index] / transforms[index][2, 2]
            # Repeated pixels are no measurements, and what an affine map cannot say of a CRS is an error beside noise.
            noise = entry.repeats * float(sigma[index]) ** 2
            wider = entry.repeats * (1 + entry.error**2 / max(noise, 1e-300))
            covariance[index] *= wider
            sigma[index] *= wider**0.5
    sizes = [None if one is None else (one.mask.shape[0], one.mask.shape[1]) for one in given]
    places = [transforms[i].numpy(force=True) if i in result.aligned else None for i in range(len(sizes))]
    world = world_placements(places, georeferences, sizes, result.reference, sigma.tolist())
    for index, entry in enumerate(lattice.entries):
        if index == result.reference or index in kept:
            continue
        reasons[index] += entry.note
        doubt, place = lattice.doubt(index), world[index]
        if not doubt:
            continue
        if not MapStatus(int(result.status[index])).ok:
            reasons[index] += f" Where its georeference puts it, it was tried first: {_bare(doubt)}"
        elif place is not None and place.off is not None and place.off > ELSEWHERE:
            reasons[index] += (
                f" But its georeference says another place, {place.off:.1f} px from here, where the maps do not agree: "
                f"{_bare(doubt)}"
            )
    return replace(
        result, transforms=transforms, covariance=covariance, corner_sigma=sigma, reasons=reasons, world=world
    )


def _bare(reason: str) -> str:
    """A reason without what it says of leaving the map out and of what to try."""
    if not reason.endswith(")"):
        return reason.removeprefix("Left out: ")
    depth = 0
    for start in range(len(reason) - 1, -1, -1):
        depth += (reason[start] == ")") - (reason[start] == "(")
        if depth == 0:
            return reason[start:]
    return reason
