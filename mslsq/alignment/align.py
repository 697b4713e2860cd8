"""The front door of map alignment: `align(maps)` places N overlapping rasters on one of them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mslsq.alignment import light
from mslsq.alignment.choosing import ASKED_AGAIN, Choice, place_by_edges
from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.coordinates.results import checked_georeferences, in_world, lattice_of
from mslsq.alignment.draft import Draft
from mslsq.alignment.fields import fields_apart
from mslsq.alignment.joint import place_jointly
from mslsq.alignment.linking import Linker
from mslsq.alignment.metrics import Metric, SquaredDifference
from mslsq.alignment.models import Frame
from mslsq.alignment.options import AUTO, AlignmentOptionError, checked_options
from mslsq.alignment.piecewise import bend_all, check_bends
from mslsq.alignment.prepared import Prepared, prepare
from mslsq.alignment.previous import check_places, check_previous
from mslsq.alignment.result import Alignment, MapStatus, Stage
from mslsq.alignment.tree import place_by_tree
from mslsq.alignment.undeclared import IF_SO, undeclared
from mslsq.alignment.vague import why_vague

WELL = 0.9
"""Correlation from which a border of one value does no harm: black corners moved a picture by 0.087 px at 0.69."""


def align(
    maps: Sequence[Any],
    *,
    model: str = "sim2",
    reference: int = 0,
    masks: Sequence[Any] | None = None,
    value: str = "gain_bias",
    levels: int | str = "auto",
    loss: str | None = "cauchy",
    init: Any = "auto",
    min_overlap: float = 0.15,
    min_ncc: float = 0.5,
    min_detail: float = 0.6,
    min_lead: float = 1.3,
    prefilter: float = 1.0,
    max_steps: int = 100,
    progress: Callable[[Stage], None] | None = None,
    joint: bool | str = "auto",
    metric: str | Metric = "squared",
    previous: Alignment | None = None,
    pixel_sizes: Sequence[float] | None = None,
    scale_range: Sequence[float] | None = None,
    georeferences: Sequence[Georeference | None] | None = None,
) -> Alignment:
    """Place overlapping rasters on a reference: warp, gain and bias jointly, coarse to fine, with masks.

    Args:
        maps: rasters (H, W) or (C, H, W), tensors or arrays of any real dtype; sizes may differ, NaN is no data. Where
            the numbers of channels differ, all are reduced to the mean of their channels. Computation is in float64 on
            the CPU, wherever the maps are, and the result is there.
        model: "translation", "se2", "sim2", "affine", "homography", or "piecewise": "sim2", and then a smooth grid of
            shifts on top of it (`mslsq.alignment.bends`), for maps that bend; `result.to_map` is the whole warp. The
            grid is the most probable one under the residuals' noise and a prior: second differences of neighbouring
            shifts have a standard deviation of 0.05 of the grid's step, an eighth of the reference's longer side. A
            map is believed, or not, before it is bent. Maps are placed one by one, and bent where the reference
            overlaps them.
        reference: index of the map on which all others are placed.
        masks: per map None or (H, W), true where the map holds data.
        value: what relates values, reference ≈ gain · map + bias: "gain_bias", "gain", "bias" or "none". One gain
            and one bias per map, for all its channels.
        levels: of the pyramid; "auto" adds levels while the short side stays at or above 24 px.
        loss: "cauchy", "huber", "tukey" or "geman_mcclure": used on the coarse levels, with a scale from the
            residuals' MAD, and on the finest level where the residuals have outliers; the finest level is plain least
            squares otherwise. None or "l2": plain least squares on all levels.
        init: "auto": identity and phase correlation, and where their detail does not agree clearly, "search" (every
            rotation, log-polar; the best eight are refined); "phase" (the shift alone, to a fraction of a pixel of the
            coarsest level, as complex least squares on the phase of the cross-power spectrum), "identity", or a tensor
            (N, 3, 3) of starts in the convention of the result.
        min_overlap: share of the smaller map's area of data that must be common, whatever the scale between the two.
        min_ncc: correlation over the overlap below which a placement is not believed.
        min_detail: the median correlation of the blocks with the strongest detail below which a placement is not
            believed, if there are many blocks; of a few, more is asked (`mslsq.alignment.evidence`), and of maps with
            white noise as much less as that explains (`mslsq.alignment.noise`). 0.2 less where many small blocks agree
            all but entirely, as of a scene in which things have moved (`mslsq.alignment.consensus`). Where what agrees
            may be one form in two scenes, a rim, the other blocks must agree, too (`mslsq.alignment.weighing`). -1 asks
            nothing.
        min_lead: how far a placement must stand out from every other shift of the map (`mslsq.alignment.rivals`): 1 is
            twice their score, or 0.8 more; else it is ambiguous, as in a wall of bricks. Where less than half overlaps,
            more is asked; of models that turn, 0.4 `min_lead` over every other rotation. `min_detail` is lowered by 0.4
            where parts of a map fit better elsewhere, as it has drifted, and of metrics that do not compare values
            where the lead is 3 (of learned features 2). 0.3 of it will do where most small blocks, each looked for in
            all of the map, agree best where they were laid (`mslsq.alignment.votes`); and it does not, up to four times
            of it, where what agrees agrees elsewhere as well, as of equal rooms (`mslsq.alignment.repeats`). Not asked
            where `init` says where to look ("identity" or a tensor). 0 asks nothing. Of "occupancy" the ratio of the
            scores: 1 is a tie.
        prefilter: sigma in pixels of the Gaussian that both maps pass first; 0 for none. A pair whose pixels repeat, or
            that has few values, a dither, is placed once more behind 3 px (`mslsq.alignment.grain`); the reason says
            so.
        max_steps: of Levenberg-Marquardt on the finest level. A placement that needs more is left out, unless coarse
            detail alone says that it is right, as of maps that have drifted, or the second half of the steps has moved
            it by less than a standard error.
        progress: called with a `Stage` after every solve.
        joint: place all maps together (`mslsq.alignment.joint`): links between all pairs that overlap, of which loops
            must close, then one solve for all warps, gains and biases from the pixels of all overlaps. False: each map
            is placed on the reference or on the first map placed already that accepts it. "auto": together where three
            maps or more can be used, and values are compared.
        metric: what maps are compared by (`mslsq.alignment.metrics`), a name or an object. "squared": values, with
            `value` between them; "inverted": values, with a negative gain; "local": values relative to what is around
            them, where light or gamma differ; "gradients": the strength of edges, for negatives and other modalities;
            "occupancy": walls and free space of plans that robots draw, which drift (`min_detail` is not asked).
            "auto": values, and edges for what they leave out or where their residuals vary slowly; the reason says
            which and why.
        previous: the result for the first of these maps, with the same model and reference. Maps that it placed stay
            where they are, to the bit; the others, new ones and those that were left out, are placed on them, with
            standard errors that take theirs in. This takes the time of the new maps alone. A map that is not the one
            which was placed raises an error.
        pixel_sizes: the side of a pixel of every map in one unit (metres, degrees), as metadata have it. Placements
            whose scale contradicts them are refused.
        scale_range: (least, most) of the factor between the scale of a placement, in every direction, and the one that
            `pixel_sizes` or `georeferences` say (1 without them); (0.8, 1.25) where only sizes are given, and without
            both any.
        georeferences: per map None or where it lies in the world (`Georeference`); pixel sizes, directions and
            coordinate reference systems may differ (the latter need pyproj). With init="auto" every pair is first
            tried where they put it, under the same evidence as any other place, and searched for elsewhere where the
            maps do not agree there; the reason then says so. Models are corrections of them: "translation" places maps
            of other pixel sizes, too. `result.world` has shifts in units of the CRS and corrected geotransforms.

    Returns:
        `Alignment`; `.transforms[i]` takes a reference pixel (x, y, 1), centres at integers, to a pixel of map i. A
        map that cannot be placed is NaN there and has its `status` and `reasons[i]`. `.links` are the pairs of maps
        that were tried together.

    Raises:
        AlignmentOptionError: an option that is not valid (never for the content of a map), model="piecewise" with
            joint=True, `previous` or metric="occupancy", pixel sizes that a model without a scale contradicts, or maps
            that are not those of `previous`.

    >>> from mslsq.alignment import align, synthetic
    >>> pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
    >>> result = align([pair.reference, pair.moving], model="translation")
    >>> bool((result.transforms[1] - pair.transform).abs().max() < 0.1)
    True
    """
    maps = list(maps)
    if joint != "auto" and not isinstance(joint, bool):
        raise AlignmentOptionError(f"align: joint must be True, False or 'auto', not {joint!r}.")
    options = checked_options(
        maps,
        model,
        reference,
        masks,
        value,
        levels,
        loss,
        init,
        min_overlap,
        min_ncc,
        min_detail,
        min_lead,
        prefilter,
        max_steps,
        metric,
        pixel_sizes,
        scale_range,
    )
    if options.bends:
        check_bends(joint, options.metric, previous)
    known_places = checked_georeferences(georeferences, len(maps))
    prepared, states, reasons = prepare(maps, masks)
    lattice, options = lattice_of(prepared, known_places, reference, options, pixel_sizes is not None)
    sizes = [None if one is None else (one.mask.shape[0], one.mask.shape[1]) for one in prepared]
    if previous is not None:
        check_previous(previous, options, reference, states, sizes, joint)
    like = next((r.values for r in prepared if r is not None), torch.zeros((), dtype=torch.float64, device="cpu"))
    draft = Draft(states, reasons, reference, options.model, like)
    if previous is not None:
        draft.keep(previous)
        for index in previous.aligned:
            draft.entries["transforms"][index] = lattice.own(index, previous.transforms[index])
    linker = Linker(lattice.maps, options, levels, progress, lattice=lattice)
    if previous is not None:
        check_places(previous, linker, draft.entries["transforms"])
    starts, links = lattice.all_own(init.cpu()) if isinstance(init, Tensor) else None, []
    squared = options.metric == SquaredDifference()
    if joint is True and not squared:
        raise AlignmentOptionError(
            f"align: joint=True compares values; metric={options.metric.name!r} needs joint=False, or 'auto'."
        )
    together = (
        squared
        and not options.bends
        and (len(draft.known) + len(draft.waiting) > 2 if joint == "auto" else bool(joint))
    )
    if states[reference].ok and draft.waiting and together:
        links = place_jointly(linker, draft, starts)
    elif states[reference].ok:
        link_of = partial(light.link, linker) if metric != AUTO else Choice(linker).first
        place_by_tree(link_of, linker.frame, draft, starts)
    if states[reference].ok and metric == AUTO:
        place_by_edges(Choice(linker), draft, starts)
    if options.bends and states[reference].ok:
        bend_all(linker, draft)
    _name_undeclared(draft, prepared)
    _name_fields(draft, prepared)
    if states[reference].ok:
        _take_back_vague(draft, linker.frame(reference))
    links = links if previous is None else [*previous.links, *links]
    draft.model = model
    placed = draft.finished(stages=linker.stages, links=links, sizes=sizes)
    return in_world(placed, lattice, known_places, prepared, previous)


def _name_fields(draft: Draft, prepared: Sequence[Prepared | None]) -> None:
    """Where a map that was placed, or what it was placed on, is woven of two fields, its place is known to how far they
    are apart, in pixels of the reference."""
    placed, ways = [index for index, state in enumerate(draft.states) if state == MapStatus.ALIGNED], {}
    for index in {*placed, draft.reference}:
        raster = prepared[index]
        if raster is not None and (way := fields_apart(raster.values, raster.mask)) > 0.0:
            warp = draft.entries["transforms"][index][:2, :2]
            ways[index] = way * math.sqrt(2) / float(warp.norm())  # pixels of the map to those of the reference
    for index in placed if ways else ():
        under = int(draft.entries["parent"][index])
        one = max((index, draft.reference, under), key=lambda k: ways.get(k, 0.0))
        way, sigma = ways.get(one, 0.0), float(draft.entries["corner_sigma"][index])
        if way > sigma:
            which = {index: "this map", draft.reference: "the reference"}.get(one, "the map it was placed on")
            draft.reasons[index] += (
                f" The rows of {which} alternate, as two fields of a moving camera do, {way:.2g} px apart: the place "
                "is known to that. Align one field of it alone."
            )
            draft.entries["covariance"][index] *= (way / sigma) ** 2
            draft.entries["corner_sigma"][index] = way


def _take_back_vague(draft: Draft, frame: Frame) -> None:
    """Leave out what has been placed and is not known well enough, with the errors as they are stated; what was placed
    before stays."""
    for index, state in enumerate(draft.states):
        if state == MapStatus.ALIGNED and index not in draft.known:
            sigma = float(draft.entries["corner_sigma"][index])
            if vague := why_vague(sigma, frame, draft.reasons[index]):
                draft.take_back(index, MapStatus.AMBIGUOUS, vague)


def _name_undeclared(draft: Draft, prepared: Sequence[Prepared | None]) -> None:
    """Add to the reason of a map that found no place, one where it correlates badly, or one with more to say of it
    (such a number looks like a curve of values), that it, or the reference, may hold a number for no data."""
    unplaced, ncc = (*ASKED_AGAIN, MapStatus.AMBIGUOUS), draft.entries["ncc"]
    for index, state in enumerate(draft.states):
        plain = draft.reasons[index] == state.sentence and not ncc[index] < WELL
        if state not in unplaced and (state != MapStatus.ALIGNED or plain):
            continue
        for one, what in ((index, "this map"), (draft.reference, "the reference")):
            raster = prepared[one]
            found = None if raster is None else undeclared(raster.values, raster.mask, frames=True)
            if found is not None:
                draft.reasons[index] += f" {found.words(what)} {IF_SO}"
