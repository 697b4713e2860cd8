"""`coregister_files`: elevation models that do not fit in memory, coregistered from windows of their files."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.big import coarse
from mslsq.alignment.big.elevations import ElevationFile, StableTerrain
from mslsq.alignment.big.files import factor_for
from mslsq.alignment.big.memory import FEWEST_TILES, bytes_of
from mslsq.alignment.big.passing import Judged, Passes, Progress
from mslsq.alignment.big.settling import Settled, settle
from mslsq.alignment.big.tiles import Ground, candidates, cells_of, chosen, in_overlap
from mslsq.alignment.big.windows import SLOT, TILE, Models
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.dem.assembling import numbers_of
from mslsq.alignment.dem.bias import Bias, Frame
from mslsq.alignment.dem.change import typical
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.coregister import coregister
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.judging import not_seen
from mslsq.alignment.dem.pair import geometry
from mslsq.alignment.dem.regridding import comparable, resampled_words
from mslsq.alignment.dem.result import Coregistration, CoregistrationStatus
from mslsq.alignment.dem.solving import Answer, solve
from mslsq.alignment.measures import nmad
from mslsq.validation import integer, number

LEVELS = 3
"""Of a tile: from pixels of four to the files' own."""

PROCESS = 900_000_000
"""Bytes: the process with PyTorch, and windows."""
PER_TILE = 450 * SLOT * SLOT
"""Bytes that a fit needs of a tile."""

AGREE = 2.0
"""Reduced pixels by which tiles may move what the reduced models say."""


@dataclass(frozen=True, eq=False)
class FilesCoregistration(Coregistration):
    """The result of `coregister_files`: a `Coregistration` in pixels of the files. Its `changed` is on pixels reduced
    by `factor`; where terrain changed at the files' own pixels `write_coregistered` writes. All numbers are of all
    pixels but the standard errors, which are of the tiles that were used, and larger."""

    factor: int = 1
    """By which the models were reduced to be found at all."""
    notes: Sequence[str] = ()
    """In words: what was reduced, and which tiles were used."""
    share: float = 0.0
    coarse: Coregistration | None = field(repr=False, default=None)
    """That of the reduced models."""
    reduced: tuple[Float[np.ndarray, "h w"], Float[np.ndarray, "r c"]] | None = field(repr=False, default=None)
    """The reduced models, NaN where they have no data."""
    passes: Passes | None = field(repr=False, default=None)

    @property
    def changed_share(self) -> float:
        """Of the reference's pixels, those that were taken for changed terrain."""
        return self.share

    def message(self) -> str:
        """The answer in a sentence or two, and what was used."""
        return " ".join([super().message(), *self.notes])


@dataclass(frozen=True)
class _Reduced:
    """Both models reduced until they fit, and what `coregister` says of them."""

    factor: int
    values: tuple[Tensor, Tensor]
    stable: Bool[Tensor, "height width"]
    found: Coregistration


def coregister_files(
    reference: str | Path,
    dem: str | Path,
    *,
    pixel_size: float | Sequence[float] | None = None,
    mask: Any = None,
    buffer: float = 0.0,
    bias: str = "offset",
    loss: str | None = "tukey",
    min_overlap: float = 0.1,
    max_shift: float | str = "auto",
    find_changes: bool = True,
    nodata: float | None = None,
    memory: str | float = "2GB",
    tiles: int = 144,
    progress: Progress | None = None,
) -> FilesCoregistration:
    """`coregister` of elevation models in files, of which windows are read (needs rasterio).

    Both are reduced, by the means of blocks, to a million pixels at most, and `coregister` finds them with all of its
    evidence. Then tiles of 128 x 128 pixels are read where both have data on stable terrain: those that hold the
    largest information about shift and bias, spread over the overlap. Shift, bias and what changed are found again from
    these at pixels of four, two and one. Passes over the files follow: some until shift, bias and what changed are
    those of all pixels (`mslsq.alignment.big.settling`), one for the bias by least squares of all stable pixels, and
    one for the statistics before and after.

    Args:
        reference: a GeoTIFF, or any raster that GDAL reads, of elevations in metres (its scale and offset are heeded).
        dem: the model to be moved; of another pixel size or in another CRS it is seen on the reference's pixels (by the
            cubic spline), window by window.
        pixel_size: metres, as of `coregister`, where a file does not say where it lies, or its CRS is in degrees.
        mask: a raster, non-zero where terrain is stable, or outlines of terrain that moves.
        buffer: units of the CRS by which outlines are widened.
        bias, loss, min_overlap, max_shift, find_changes: as of `coregister`.
        nodata: a number of the files for no data, beside those that they name.
        memory: that the process may take: fewer tiles are used where it is small.
        tiles: at most; more of them make standard errors smaller.
        progress: called with what is done ("settling pass 1", "heights", "statistics"), the windows that are done, and
            their number.

    Returns:
        `FilesCoregistration`; its `notes` say what was used. It never raises for bad terrain. Models of a million
        pixels or less are coregistered in memory, as they are.

    Raises:
        CoregistrationError: as of `coregister`.
        RasterError: rasterio is missing, or a file cannot be read.
        AlignmentOptionError: `memory` is no size.
    """
    number("coregister_files: buffer", buffer, least=0.0, error=CoregistrationError)
    integer("coregister_files: tiles", tiles, FEWEST_TILES, error=CoregistrationError)
    affordable = max(FEWEST_TILES, min(tiles, (bytes_of(memory) - PROCESS) // PER_TILE))
    fixed, moving = ElevationFile.open(reference, nodata), ElevationFile.open(dem, nodata)
    first, second = fixed.file.georeference, moving.file.georeference
    if (first is None or second is None) and pixel_size is None:
        raise CoregistrationError(
            f"coregister_files: {reference if first is None else dem} does not say where it lies; give pixel_size "
            "in metres, if both first pixels are at the same place."
        )
    if first is not None and second is not None and pixel_size is None and not comparable(first, second):
        moving = moving.around(fixed)
    seen = moving.seen.georeference
    both = None if first is None or seen is None else (first, seen)
    metres, offset = geometry(pixel_size, both, fixed.size)
    stable = StableTerrain.of(mask, buffer, fixed.size, first)
    models = Models(fixed, moving, stable, metres, offset, None if both is None else seen)
    options = {"loss": loss, "min_overlap": min_overlap, "max_shift": max_shift, "find_changes": find_changes}
    small = _reduce(models, both, pixel_size, {"bias": bias, **options})
    if small.found.status in (
        CoregistrationStatus.NO_DATA, CoregistrationStatus.LITTLE_OVERLAP, CoregistrationStatus.FAR_FROM_HEADER,
    ) or small.factor == 1:  # fmt: skip
        return _enlarged(models, small, small.found, _notes(models, small))
    return _refined(models, small, loss, find_changes, affordable, progress)


def _reduce(models: Models, both: Sequence[Georeference] | None, pixel_size: Any, options: dict[str, Any]) -> _Reduced:
    files = models.reference.seen, models.dem.seen
    factor = max(factor_for(file.size, coarse.PIXELS) for file in files)
    rasters = [model.reduced(factor) for model in (models.reference, models.dem)]
    stable = models.stable.read(0, 0, *files[0].reduced(factor), factor)
    where: dict[str, Any] = {"pixel_size": None if pixel_size is None else np.multiply(pixel_size, factor)}
    if both is not None:
        where["georeferences"] = [header.reduced(factor) for header in both]
    found = coregister(*rasters, mask=stable, **where, **options)
    return _Reduced(factor, (rasters[0], rasters[1]), stable, found)


def _refined(
    models: Models, small: _Reduced, loss: str | None, changes: bool, count: int, progress: Progress | None
) -> FilesCoregistration:
    """By tiles, and by passes over all pixels."""
    found, (height, width) = small.found, models.size
    model = Bias.named(found.bias)
    frame = Frame(((width - 1) / 2, (height - 1) / 2), found.frame.elevation, found.frame.unit)
    start = Solved(
        np.linalg.solve(models.metres, np.nan_to_num(found.shift[:2])),
        np.array([found.coefficients[name] for name in model.names]),
    )
    notes = _notes(models, small)
    tiles, of, overlap = _tiles(models, small, start, model, frame, count)
    if not tiles:
        return _enlarged(models, small, found, [*notes, "No tile has data of both: all is of the reduced models."])
    pair, steps = models.tiles(tiles, start.shift, overlap)
    pyramids = Pyramids.of(pair, LEVELS, frame)
    answer = solve(pyramids, model, start, LEVELS - 1, loss, changes)
    reason = "" if answer is None else not_seen(answer, pair)
    if reason:
        nowhere = Solved(np.zeros(2), np.zeros(model.count))
        pair, steps = models.tiles(tiles, nowhere.shift, overlap)
        pyramids = Pyramids.of(pair, LEVELS, frame)
        answer = solve(pyramids, model, nowhere, 0, loss, changes, held=True)
    if answer is None:
        return _enlarged(models, small, found, [*notes, "Tiles do not overlap there: all is of the reduced models."])
    notes.append(f"Standard errors are of {len(tiles)} tiles of {of:,}, {TILE} x {TILE} pixels each.")
    passes = Passes(models, model, frame, small.factor, _typical(pyramids, model, answer, steps, changes))
    errors = np.sqrt(np.diag(answer.known.covariance))
    settled = settle(passes, errors, loss, changes, answer.held, progress)
    status, reason = _judged(answer, settled, found, start, small.factor, reason)
    passes = replace(passes, judged=settled.judged)
    at = Solved(settled.judged.robust.shift, passes.heights(progress))
    result = _enlarged(models, small, found, notes)
    result = replace(
        result,
        **numbers_of(answer._replace(at=at), model, models.metres),
        status=status,
        reason=reason,
        frame=frame,
        passes=passes,
    )
    before, after, changed, share = passes.statistics(result, progress)
    return replace(result, before=before, after=after, changed=changed, share=share)


def _tiles(
    models: Models, small: _Reduced, at: Solved, model: Bias, frame: Frame, count: int
) -> tuple[list[tuple[int, int]], int, float]:
    """Rows and columns of the tiles that are used, of how many, and the pixels of the overlap."""
    transform = torch.eye(3, dtype=torch.float64, device="cpu")
    transform[:2, 2] = torch.from_numpy(models.offset - at.shift)
    one, other = (values.isfinite() for values in small.values)
    own, there = Ground(one & small.stable, small.factor), Ground(other, small.factor)
    every, total = in_overlap(models.size, 1, transform, own, there, TILE)
    if not len(every):
        return [], total, 0.0
    read = every[candidates(every, count)]
    information = np.array([models.information((int(row), int(column)), model, frame) for row, column in read])
    used = read[chosen(information, cells_of(read, max(1, count // 2)), count)]
    return [(int(row), int(column)) for row, column in used], total, float(len(every) * TILE * TILE)


def _typical(pyramids: Pyramids, model: Bias, answer: Answer, steps: tuple[float, float], changes: bool) -> Judged:
    robust = answer.robust
    samples = Comparison.of(pyramids.unsmoothed, 0, model, ~answer.changed).valid(robust.shift)
    left = -samples.residual(robust)
    near = typical(Comparison.of(pyramids, 0, model), robust, answer.share) if changes else []
    return Judged(robust, answer.fitted.scale, steps, near, float(left.median()), nmad(left), answer.share)


def _judged(
    answer: Answer, settled: Settled, found: Coregistration, start: Solved, factor: int, reason: str
) -> tuple[CoregistrationStatus, str]:
    if reason:
        return CoregistrationStatus.Z_ONLY, reason
    away = float(np.abs(answer.at.shift - start.shift).max())
    known = found.status is not CoregistrationStatus.Z_ONLY
    if not answer.settled or (known and away > AGREE * factor):
        return (
            CoregistrationStatus.NOT_CONVERGED,
            f"The fit of tiles did not settle where the reduced models say ({away:.1f} pixels apart); try another bias "
            "model, or a mask.",
        )
    if not settled.last <= 1:
        return (
            CoregistrationStatus.NOT_CONVERGED,
            "The fit of all pixels did not settle within a standard error of the tiles; try another bias model, or a "
            "mask.",
        )
    if found.status is CoregistrationStatus.AMBIGUOUS:
        return found.status, found.reason
    return CoregistrationStatus.COREGISTERED, "Coregistered."


def _enlarged(models: Models, small: _Reduced, found: Coregistration, notes: list[str]) -> FilesCoregistration:
    """What the reduced models say, in pixels of the files."""
    height, width = models.size
    fields = {name: getattr(found, name) for name in Coregistration.__dataclass_fields__}
    fields |= {"metres": models.metres, "offset": models.offset, "shape": models.size, "header": models.header}
    regridded = models.dem.regridded
    fields["own"] = None if regridded is None else regridded.source
    fields["frame"] = Frame(((width - 1) / 2, (height - 1) / 2), found.frame.elevation, found.frame.unit)
    reduced = small.values[0].numpy(), small.values[1].numpy()
    passes = (
        Passes(models, Bias.named(found.bias), fields["frame"], small.factor) if np.isfinite(found.shift[2]) else None
    )
    return FilesCoregistration(
        **fields, factor=small.factor, notes=notes, share=found.changed_share, coarse=found, reduced=reduced,
        passes=passes,
    )  # fmt: skip


def _notes(models: Models, small: _Reduced) -> list[str]:
    """What was done before."""
    reference, dem = models.reference.seen, models.dem.regridded
    words = (
        "the whole models: they are small"
        if small.factor == 1
        else f"models reduced to 1/{small.factor} of their sides"
    )
    notes = [f"Believed on {words}."]
    if dem is None or reference.georeference is None:
        return notes
    return [resampled_words(models.reference.file.name, dem.file.name, dem.source, reference.georeference), *notes]
