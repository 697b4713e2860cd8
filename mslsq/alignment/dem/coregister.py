"""`coregister`: an elevation model laid on another, shift and vertical bias in one least-squares problem."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.dem import choosing
from mslsq.alignment.dem.assembling import nothing, result_of
from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.comparison import Pyramids, Solved
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.fitting import FEWEST
from mslsq.alignment.dem.judging import judged, not_seen, too_far
from mslsq.alignment.dem.pair import pair_of
from mslsq.alignment.dem.result import Coregistration, CoregistrationStatus
from mslsq.alignment.dem.solving import solve
from mslsq.alignment.dem.starts import best_starts, overlap_of
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.pyramid import depth
from mslsq.validation import integer, number, one_of


def coregister(
    reference: Any,
    dem: Any,
    *,
    pixel_size: float | Sequence[float] | None = None,
    georeferences: Sequence[Georeference] | None = None,
    mask: Any = None,
    dem_mask: Any = None,
    bias: str = "offset",
    loss: str | None = "tukey",
    levels: int | str = "auto",
    min_overlap: float = 0.1,
    max_shift: float | str = "auto",
    find_changes: bool = True,
) -> Coregistration:
    """Find the shift in x, y and z, and the vertical bias, that lay an elevation model on a reference.

    All unknowns are estimated together, by robust least squares on differences of elevation, coarse to fine, in place
    of corrections one after the other: a tilt that is removed first takes a part of the shift with it. Method:
    `docs/guide/elevation.md`; for the classical alternative see Nuth and Kääb, The Cryosphere 5 (2011) 271-290.

    Args:
        reference: (height, width) elevations in metres; a tensor or an array, NaN (or masked) where there are none.
        dem: (rows, columns), the model to be moved, of the same pixel size; its size may differ.
        pixel_size: metres, a number or (dx, dy); rows go south, and both first pixels are at the same place.
        georeferences: (of the reference, of the model) instead. Of a CRS in degrees a pixel has the metres that it has
            in the middle of the reference; with `pixel_size` those.
        mask: (height, width) on the reference's grid, true where terrain is stable (`stable_terrain` makes one).
        dem_mask: (rows, columns), true where `dem` is to be used.
        bias: what a vertical error may depend on: "offset", or one or several of "plane", "quadratic", "cubic" (in x
            and y), "scale", "elevation" (linear, cubic in the elevation) joined by "+"; or "auto", which takes the
            simplest that predicts left-out blocks as well as any.
        loss: "tukey", "cauchy", "huber", "geman_mcclure", or None for least squares; their scale is from the MAD.
        levels: of the pyramid, or "auto".
        min_overlap: share of the smaller model's data that must be compared.
        max_shift: metres; a horizontal shift beyond it is refused, with what it would be. "auto": no limit without
            georeferences; with them half of `dem` must stay within the outline that its own header gives it.
        find_changes: leave out terrain where neighbouring residuals agree that it changed.

    Returns:
        The shift in metres, standard errors, coefficients, statistics; a status and a reason where the terrain or the
        overlap does not allow an answer. It never raises for bad terrain.

    Raises:
        CoregistrationError: arguments that make no sense: no data at all, wrong shapes, pixels of no size or of
            different sizes, two CRS, unknown names.

    >>> import torch
    >>> from mslsq.alignment import coregister
    >>> x, y = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="xy")
    >>> hills = lambda x, y: 40 * torch.sin(x / 7) * torch.cos(y / 9) + 25 * torch.sin((x + 2 * y) / 23)
    >>> found = coregister(hills(x, y), hills(x + 0.5, y) - 3, pixel_size=10.0)
    >>> [round(metres) for metres in found.shift.tolist()]  # half a pixel to the east, 3 m up
    [5, 0, 3]
    """
    one_of("coregister: loss", loss, [None, *LOSSES], CoregistrationError)
    number("coregister: min_overlap", min_overlap, least=0.0, most=1.0, error=CoregistrationError)
    if max_shift != "auto":
        number("coregister: max_shift, where not 'auto',", max_shift, least=0.0, error=CoregistrationError)
    if levels != "auto":
        integer("coregister: levels", levels, 1, 12, otherwise="'auto'", error=CoregistrationError)
    model = choosing.LARGEST if bias == "auto" else Bias.named(bias)
    pair = pair_of(reference, dem, pixel_size, georeferences, mask, dem_mask)
    if int((pair.known & pair.stable).sum()) < FEWEST:
        return nothing(pair, model, bias, CoregistrationStatus.NO_DATA, "The mask leaves no stable pixel with data.")
    count = depth(*(min(a, b) for a, b in zip(pair.known.shape, pair.dem_known.shape, strict=True)))
    pyramids = Pyramids.of(pair, count if levels == "auto" else min(int(levels), count))
    index, starts = best_starts(pyramids, model, min_overlap)
    if not starts:
        return nothing(
            pair, model, bias, CoregistrationStatus.LITTLE_OVERLAP,
            f"No shift lets {min_overlap:.0%} of the smaller model's data overlap stable terrain; with at least "
            f"{FEWEST} pixels; check the georeferences and the mask, or lower min_overlap.",
        )  # fmt: skip
    answer = solve(pyramids, model, starts[0].fitted.at, index, loss, find_changes)
    if bias == "auto" and answer is not None:
        bias = choosing.choose(
            answer.fitted.samples, answer.robust, loss, answer.fitted.scale, answer.known.block
        )  # fmt: skip
        start = Solved(answer.robust.shift, answer.robust.bias[Bias.named(bias).within(model)])
        model = Bias.named(bias)
        answer = solve(pyramids, model, start, 0, loss, find_changes)
    reason = "" if answer is None else not_seen(answer, pair)
    if reason:
        nowhere = Solved(np.zeros(2), np.zeros(model.count))
        answer = solve(pyramids, model, nowhere, 0, loss, find_changes, held=True)
    if answer is None:
        return nothing(
            pair, model, bias, CoregistrationStatus.LITTLE_OVERLAP,
            f"Fewer than {FEWEST} stable pixels have data in both models.",
        )  # fmt: skip
    far = "" if answer.held else too_far(answer, pair, max_shift)
    if far:
        return nothing(pair, model, bias, CoregistrationStatus.FAR_FROM_HEADER, far)
    rivals = [start.score / starts[0].score for start in starts[1:2] if starts[0].score > 0]
    overlap = overlap_of(pyramids, 0, len(answer.fitted.samples.pixels))
    status, reason = judged(answer, overlap, min_overlap, rivals, reason)
    return result_of(pyramids, model, bias, answer, status, reason, overlap)
